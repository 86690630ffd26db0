//! Bad input of `learn` and `predict`, as in `bad_input`.

use crate::common::{assert_refused, file, npy, tsumuji};

/// Data to learn from that are missing, empty, ragged, not numbers, of one class, or of another kind than the model's.
#[test]
fn data_to_learn_from() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let refuse = |kind: &str, name: &str, content: &[u8], words: &[&str]| {
        let path = file(folder, name, content);
        assert_refused(&["learn", kind, &path], &[&[name], words].concat());
    };
    assert_refused(
        &["learn", "ridge", "/nonexistent/a.csv"],
        &["/nonexistent/a.csv", "No such file"],
    );
    refuse("ridge", "a.xls", b"", &["svmlight", ".csv", ".npz"]);
    for name in ["e.csv", "e.svm", "e.npy", "e.npz", "e.csv.gz"] {
        refuse("ridge", name, b"", &[]);
    }
    refuse("ridge", "head.csv", b"a,y\n", &["no rows"]);
    refuse(
        "ridge",
        "ragged.csv",
        b"a,y\n1,2\n3\n",
        &["line 3", "1 cells", "2"],
    );
    refuse(
        "ridge",
        "nan.csv",
        b"a,y\n1,2\nnan,2\n",
        &["line 3", "column 1", "finite"],
    );
    refuse(
        "ridge",
        "hole.csv",
        b"a,y\n1,2\n,2\n",
        &["line 3", "column 1", "empty"],
    );
    refuse(
        "linear",
        "names.csv",
        b"a,y\n1,ant\n2,bee\n",
        &["line 2", "'ant'", "linear and ridge"],
    );
    refuse(
        "logistic",
        "one.csv",
        b"a,y\n1,ant\n2,ant\n",
        &["one class", "'ant'"],
    );
    refuse("svm", "one.svm", b"1 1:1\n1 1:2\n", &["one class", "'1'"]);
    refuse(
        "svm",
        "zero.svm",
        b"1 0:1\n-1 1:2\n",
        &["line 1", "index 0", "from 1"],
    );
    refuse(
        "svm",
        "word.svm",
        b"1 1:1\n-1 x\n",
        &["line 2", "'x'", "index:value"],
    );
    refuse(
        "ridge",
        "cut.npy",
        &npy("(2, 2)", &[1.0, 2.0, 3.0]),
        &["bytes of data"],
    );
    refuse(
        "ridge",
        "nan.npy",
        &npy("(1, 2)", &[f64::NAN, 2.0]),
        &["row 1", "NaN"],
    );
    refuse("ridge", "twice.csv", b"x,x\n1,2\n2,3\n", &["line 1", "'x'"]);
    refuse(
        "ridge",
        "huge.csv",
        b"x,y\n1e308,1\n-1e308,2\n1e308,3\n",
        &["column 1 'x'", "too large"],
    );
    refuse("ridge", "noise.gz.csv", b"\x1f\x8b\x08rubbish", &[]);
}

/// Options of learning that cannot be met, or would have no effect.
#[test]
fn options_of_learning() {
    let folder = tempfile::tempdir().unwrap();
    let data = file(folder.path(), "a.csv", "a,b,y\n1,2,3\n2,1,4\n3,5,1\n");
    let cases: [(&[&str], &[&str]); 22] = [
        (&["--workers", "4"], &["4 workers", "3 rows"]),
        (&["--workers", "0"], &["0"]),
        (&["--mode", "single", "--workers", "2"], &["single", "2"]),
        (
            &["--mode", "single", "--link", "udp"],
            &["--link", "no effect"],
        ),
        (
            &["--mode", "single", "--order", "file"],
            &["--order", "no effect"],
        ),
        (
            &["--mode", "tcp", "--loss", "0.1"],
            &["--loss", "no effect"],
        ),
        (&["--mode", "fast"], &["fast", "gossip", "allreduce"]),
        (&["--epochs", "3"], &["--epochs", "sgd"]),
        (&["--period", "3"], &["--period", "sgd"]),
        (&["--rate", "0.1"], &["--rate", "sgd"]),
        (&["--method", "sgd", "--rate", "0"], &["--rate 0"]),
        (&["--method", "sgd", "--batch", "0"], &["0", "--batch"]),
        (&["--l2", "-1"], &["--l2 -1"]),
        (&["--tol", "0"], &["--tol 0"]),
        (&["--tol", "nan"], &["--tol"]),
        (&["--target", "z"], &["'z'", "line 1"]),
        (&["--plot", "a.png"], &["a.png", ".svg"]),
        (&["--model", "/nonexistent/m.json"], &["does not exist"]),
        (&["--link", "packet:eth0"], &["packet"]),
        (
            &["--method", "sgd", "--average", "table"],
            &["--average", "newton"],
        ),
        (
            &["--mode", "single", "--average", "table"],
            &["--average", "no effect"],
        ),
        (
            &["--mode", "allreduce", "--average", "auto"],
            &["--average", "no effect"],
        ),
    ];
    for (options, words) in cases {
        assert_refused(&[&["learn", "ridge", &data], options].concat(), words);
    }
    // One of two files of one name would be lost.
    let twice = folder.path().join("same").display().to_string();
    let link = folder.path().join("link.csv");
    std::os::unix::fs::symlink(&data, &link).unwrap();
    let link = link.display().to_string();
    let cases: [(&[&str], &str); 3] = [
        (&["--model", &twice, "--history", &twice], "--model"),
        (&["--model", &data], "DATA"),
        (&["--history", &link], "DATA"),
    ];
    for (options, word) in cases {
        assert_refused(
            &[&["learn", "ridge", &data], options].concat(),
            &[word, "too"],
        );
    }
    assert!(std::fs::read(&data).unwrap().starts_with(b"a,b,y"));
    assert_refused(&["learn", "linear", &data, "--l2", "1"], &["ridge"]);
    assert_refused(&["learn", "tree", &data], &["tree", "logistic"]);
    assert_refused(&["learn", "ridge"], &["DATA"]);
}

/// Test sets and models that do not fit the data.
#[test]
fn test_sets_and_models() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let data = file(folder, "a.csv", "a,b,y\n1,2,u\n2,1,v\n3,5,u\n");
    let learn = |test: &str| {
        vec![
            "learn".to_owned(),
            "logistic".into(),
            data.clone(),
            "--test".into(),
            test.into(),
        ]
    };
    for (name, content, words) in [
        ("other.csv", "a,c,y\n1,2,u\n", &["line 1", "'c'", "'b'"][..]),
        ("few.csv", "a,y\n1,u\n", &["1 columns", "2"]),
        ("blind.csv", "a,b\n1,2\n", &["'y'"]),
        ("label.csv", "a,b,y\n1,2,w\n", &["'w'", "2 labels"]),
    ] {
        let test = file(folder, name, content);
        let words = [&[name], words].concat();
        let line = learn(&test);
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        assert_refused(&line, &words);
    }
    let model = folder.join("m.json");
    let model = model.to_str().unwrap();
    assert!(
        tsumuji(&[
            "learn", "logistic", &data, "--mode", "single", "--l2", "0.1", "--model", model
        ])
        .status
        .success()
    );
    let narrow = file(folder, "n.csv", "a\n1\n");
    assert_refused(&["predict", model, &narrow], &["n.csv", "1 columns", "2"]);
    let noise = file(folder, "noise.json", "{}");
    assert_refused(&["predict", &noise, &data], &["noise.json", "is no model"]);
    let whole = std::fs::read_to_string(model).unwrap();
    let cut = file(folder, "cut.json", &whole[..whole.len() / 2]);
    assert_refused(&["predict", &cut, &data], &["cut.json", "is no model"]);
    assert_refused(
        &["predict", "/nonexistent/m.json", &data],
        &["/nonexistent/m.json"],
    );
    assert_refused(
        &["predict", folder.to_str().unwrap(), &data],
        &["is no file"],
    );
    for (output, read) in [(&data[..], "DATA"), (model, "MODEL")] {
        let before = std::fs::read(output).unwrap();
        assert_refused(
            &["predict", model, &data, "--output", output],
            &["--output", &format!("the file of {read}")],
        );
        assert_eq!(std::fs::read(output).unwrap(), before);
    }
}

/// Targets whose loss is no number are refused whatever the mode.
#[test]
fn targets_that_are_too_large() {
    let folder = tempfile::tempdir().unwrap();
    let rows = |scale: &str, signs: [&str; 4]| {
        let rows = signs.iter().zip([1.1, 1.5, 1.2, 1.7]).enumerate();
        let rows = rows.map(|(row, (sign, target))| format!("{row},{sign}{target}{scale}\n"));
        format!("a,y\n{}", rows.collect::<String>())
    };
    for (name, content) in [
        ("h.csv", rows("e308", ["", "", "", ""])),
        ("signs.csv", rows("e308", ["", "-", "-", ""])),
        ("half.csv", rows("e307", ["", "-", "-", ""])),
        ("far.csv", rows("e160", ["", "", "", ""])),
    ] {
        let data = file(folder.path(), name, content);
        for more in [
            &["--mode", "single"][..],
            &["--workers", "1"],
            &["--workers", "2"],
            &["--workers", "2", "--mode", "allreduce"],
            &["--workers", "2", "--mode", "tcp"],
            &["--method", "sgd", "--mode", "single"],
        ] {
            let words = [&["learn", "linear", &data], more].concat();
            assert_refused(&words, &[name, "the target cannot be scaled"]);
        }
    }
}

/// A label with a line break would be no line of predictions.
#[test]
fn labels_of_several_lines() {
    let folder = tempfile::tempdir().unwrap();
    let content = "a,y\n1,u\n2,\"v\nw\"\n3,u\n4,u\n";
    let data = file(folder.path(), "lines.csv", content);
    assert_refused(
        &["learn", "logistic", &data],
        &["lines.csv: line 3:", "'v\\nw'", "line break"],
    );
}
