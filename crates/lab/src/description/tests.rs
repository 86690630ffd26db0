use super::*;

fn refusal(text: &str) -> String {
    let error = Description::parse(text, Path::new("my.toml")).expect_err("is refused");
    let said = error.to_string();
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

const SHORT: &str = "title = 't'\n[clock]\nmhz = 10\n[rate.bus]\nmb_per_s = 100\n[[variant]]\nname = 'v'\n[[variant.stage]]\nname = 's'\nby = 'user'\nus = 1\n";

/// A file of a dozen lines is enough.
#[test]
fn short_file_is_read() {
    let read = Description::parse(SHORT, Path::new("my.toml")).expect("accepted");
    assert_eq!((read.variants.len(), read.rates.len()), (1, 1));
}

/// Whatever is wrong is told in one line, with file, line, place, and what is accepted.
#[test]
fn wrong_files_are_refused_in_one_line() {
    for (more, wanted) in [
        (
            "[[variant.stage]]\nname = 's'\nby = 'user'",
            ["my.toml:12:", "stage 's'", "twice"],
        ),
        (
            "after = ['x']",
            ["my.toml:8:", "'x' is no earlier stage", "accepted: none"],
        ),
        (
            "rates = ['pci']",
            ["my.toml:8:", "no [rate.pci]", "accepted: bus"],
        ),
        (
            "us_per_word = -1",
            ["my.toml:8:", "us_per_word: -1", "from 0"],
        ),
        (
            "us_per_word = nan",
            ["my.toml:8:", "us_per_word: NaN", "from 0"],
        ),
        (
            "usec = 4",
            ["my.toml:12:", "unknown field `usec`", "accepted are"],
        ),
        (
            "took = { bytes = 4, us = 1 }",
            ["my.toml:8:", "took", "give rates"],
        ),
        (
            "chunk_bytes = 4",
            ["my.toml:8:", "overlaps and chunk_bytes", "together"],
        ),
        (
            "[[variant]]\nname = 'w'",
            ["my.toml:12:", "variant 'w'", "0 [[variant.stage]]s"],
        ),
        (
            "[improved]\nburst_bytes = 4",
            ["my.toml:12:", "burst_bytes", "no rate"],
        ),
        (
            "[rate.x]\nmhz = 4",
            ["my.toml:12:", "rate 'x'", "either mb_per_s"],
        ),
        (
            "[rate.x]\nmb_per_s = 0",
            ["my.toml:12:", "rate 'x', mb_per_s: 0", "above 0"],
        ),
        (
            "[[measured]]\nsource = 'm'\nof = 'total_us'\nvalue = 1\nvariant = 'w'\nbytes = 4",
            ["my.toml:12:", "no variant 'w'", "accepted: v"],
        ),
        (
            "[[measured]]\nsource = 'm'\nof = 'stage_us'\nvalue = 1\nvariant = 'v'\nbytes = 4",
            ["my.toml:12:", "measured of 'm'", "needs `stage`"],
        ),
        (
            "[[measured]]\nsource = 'm'\nof = 'speed'\nvalue = 1",
            ["my.toml:14:", "unknown variant `speed`", "accepted are"],
        ),
        ("by = ", ["my.toml:12:", "", ""]),
    ] {
        let said = refusal(&format!("{SHORT}{more}\n"));
        assert!(
            wanted.iter().all(|part| said.contains(part)),
            "{more}: {said}"
        );
    }
    for (text, wanted) in [
        ("", "title"),
        ("title = 4", "string"),
        ("title = 't'", "[[variant]]"),
    ] {
        let said = refusal(text);
        assert!(said.contains(wanted), "{said}");
    }
}

/// What is no file, no text or far too long is refused by its name.
#[test]
fn files_that_are_none_are_refused() {
    let said = Description::read(Path::new("/nowhere/my.toml")).expect_err("missing");
    assert!(
        said.to_string().contains("/nowhere/my.toml: No such file"),
        "{said}"
    );
    let said = Description::read(Path::new("/")).expect_err("a folder");
    assert!(
        said.to_string().contains("accepted are TOML files"),
        "{said}"
    );
}
