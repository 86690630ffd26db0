//! What `make install` puts where: symbols, names, manual pages, and that programs find it all.

mod common;

use std::process::Command;

use common::{has, here, installed, libraries, run, skip_without, text};

/// The shared library shows the headers' functions and nothing else, and bears a name that programs can rely on.
#[test]
fn only_our_names_are_visible() {
    let library = installed().file("lib/libtsumuji.so");
    let symbols = text(
        &run(Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(&library))
        .stdout,
    );
    let mut shown: Vec<&str> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    shown.sort_unstable();
    let headers: String = ["tsumuji.h", "suci.h"]
        .map(|name| std::fs::read_to_string(here("include").join(name)).expect("header"))
        .concat();
    let mut declared: Vec<&str> = functions(&headers);
    declared.sort_unstable();
    declared.dedup();
    assert!(declared.len() > 50, "{declared:?}");
    assert_eq!(shown, declared);

    let dynamic = text(&run(Command::new("readelf").arg("-d").arg(&library)).stdout);
    assert!(dynamic.contains("soname: [libtsumuji.so.0]"), "{dynamic}");
}

/// Names before `(` at the beginning of declarations.
fn functions(header: &str) -> Vec<&str> {
    header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#', '}']))
        .filter_map(|line| line.split_once('('))
        .filter_map(|(before, _)| before.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("tsumuji_") || name.starts_with("datagram"))
        .collect()
}

/// The tree is complete, its links lead to the library, and pkg-config knows the version.
#[test]
fn tree_is_complete() {
    let tree = installed();
    let version = env!("CARGO_PKG_VERSION");
    for file in [
        &format!("lib/libtsumuji.so.{version}"),
        "lib/libtsumuji.so.0",
        "lib/libtsumuji.so",
        "lib/libtsumuji.a",
        "lib/pkgconfig/tsumuji.pc",
        "include/tsumuji.h",
        "include/suci.h",
        "share/man/man3/tsumuji.3",
        "share/man/man3/suci.3",
        "share/man/man3/tsumuji_send.3",
        "share/man/man3/datagram_addrdb_new.3",
    ] {
        assert!(tree.file(file).is_file(), "{file}");
    }
    let target = std::fs::canonicalize(tree.file("lib/libtsumuji.so")).expect("a link");
    assert!(
        target.ends_with(format!("libtsumuji.so.{version}")),
        "{target:?}"
    );
    assert_eq!(tree.pkg_config(&["--modversion"]), [version]);
    let outside = std::fs::read_dir(tree.root()).expect("root").count();
    assert_eq!(outside, 1, "something was installed beside PREFIX");
}

/// The Debian package holds program, library, headers and pages, and Debian has what it depends on.
#[test]
fn debian_package_can_be_installed() {
    let test = "debian_package_can_be_installed";
    let program = libraries().join("../tsumuji");
    if !program.is_file() {
        return skip_without("deb", test, "the program is not built");
    }
    if !libraries().join("libtsumuji_sockets.so").is_file() {
        return skip_without("deb", test, "the library of `tsumuji run` is not built");
    }
    if !has("dpkg-shlibdeps") {
        return skip_without("deb", test, "dpkg-dev is not installed");
    }
    let folder = installed().root();
    let made = run(Command::new("bash")
        .arg(here("../../scripts/deb.sh"))
        .arg(&folder)
        .env("LIBS", libraries())
        .env("PROGRAM", program)
        // Of what is not optimised there is much to compress.
        .env("DPKG_DEB_COMPRESSOR_LEVEL", "1"));
    let package = text(&made.stdout).trim().to_owned();
    let content = text(&run(Command::new("dpkg-deb").args(["--contents", &package])).stdout);
    for file in [
        "/usr/bin/tsumuji",
        "/usr/lib/libtsumuji.so -> libtsumuji.so.0",
        "/usr/lib/tsumuji/libtsumuji_sockets.so",
        "/usr/include/tsumuji.h",
        "/usr/share/man/man1/tsumuji-launch.1.gz",
        "/usr/share/man/man3/tsumuji_send.3",
        "/usr/share/bash-completion/completions/tsumuji",
    ] {
        assert!(content.contains(file), "no {file} in {content}");
    }
    let unpacked = folder.join("unpacked");
    run(Command::new("dpkg-deb")
        .args(["--extract", &package])
        .arg(&unpacked));
    let version = run(Command::new(unpacked.join("usr/bin/tsumuji")).arg("--version"));
    assert!(text(&version.stdout).starts_with("tsumuji "));
    std::fs::remove_dir_all(unpacked).expect("removed");
    std::fs::remove_file(package).expect("removed");
}

/// The headers are C99 without any other header before them, and C++; a program is built without a warning.
#[test]
fn everything_compiles_without_a_warning() {
    let tree = installed();
    tree.build("pingpong", &["examples/pingpong.c"], &[]);
    for header in ["tsumuji.h", "suci.h"] {
        run(Command::new("gcc")
            .args([
                "-std=c99",
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-fsyntax-only",
                "-x",
                "c",
            ])
            .arg(tree.file("include").join(header)));
    }
    if !has("g++") {
        return skip_without(
            "c",
            "everything_compiles_without_a_warning",
            "g++ is not installed",
        );
    }
    let program = tree.build("headers-cpp", &["tests/headers.cpp"], &[]);
    run(&mut tree.command(program));
}

/// Every function is named in a manual page, and every name there is a function.
#[test]
fn manual_names_every_function() {
    for (header, page) in [("tsumuji.h", "tsumuji.3"), ("suci.h", "suci.3")] {
        let header = std::fs::read_to_string(here("include").join(header)).expect("header");
        let page = std::fs::read_to_string(here("man").join(page)).expect("page");
        for function in functions(&header) {
            let said = page
                .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .any(|word| word == function);
            assert!(said, "{function} is not in the manual page");
        }
        let prefix = if header.contains("SUCI_H") {
            "datagram"
        } else {
            "tsumuji_"
        };
        for line in page.lines().filter_map(|line| line.strip_prefix(".Fn ")) {
            let name = line.split_whitespace().next().unwrap_or_default();
            let known = !name.starts_with(prefix) || functions(&header).contains(&name);
            assert!(known, "{name} is in the manual page, but not in the header");
        }
    }
}

/// The pages are sound in the eyes of mandoc and groff.
#[test]
fn manual_pages_are_sound() {
    let mut checked = false;
    for page in ["man/tsumuji.3", "man/suci.3"] {
        if has("mandoc") {
            checked = true;
            // -W style: whatever it has to say.
            let found = Command::new("mandoc")
                .args(["-T", "lint", "-W", "warning"])
                .arg(here(page))
                .output()
                .expect("mandoc");
            assert!(
                found.status.success() && found.stdout.is_empty(),
                "{}",
                text(&found.stdout)
            );
        }
        if has("groff") {
            checked = true;
            let found = run(Command::new("groff")
                .args(["-mdoc", "-ww", "-Tascii", "-z"])
                .arg(here(page)));
            assert!(found.stderr.is_empty(), "{}", text(&found.stderr));
        }
    }
    if !checked {
        skip_without(
            "c",
            "manual_pages_are_sound",
            "neither mandoc nor groff is installed",
        );
    }
}
