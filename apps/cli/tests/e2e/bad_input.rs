//! Bad input: each gets one clear line that names the place, exit code 2, and leaves nothing half-written.

use crate::common::{self, assert_refused, file, npy, tridiagonal, tsumuji};
use std::path::Path;

fn assert_matrix_refused(folder: &Path, name: &str, content: &[u8], words: &[&str]) {
    let path = file(folder, name, content);
    assert_refused(
        &["solve", &path, "--workers", "2"],
        &[&[name], words].concat(),
    );
}

/// Matrices that are missing, empty, cut off, not square, not numbers, or impossible to relax.
#[test]
fn matrices() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let coordinate = "%%MatrixMarket matrix coordinate real general\n";
    assert_refused(&["solve", "/nonexistent/A.mtx"], &["/nonexistent/A.mtx"]);
    assert_refused(
        &["solve", folder.to_str().unwrap()],
        &[folder.to_str().unwrap()],
    );
    for empty in ["empty.mtx", "empty.npy", "empty.mtx.gz", "empty.rua"] {
        assert_matrix_refused(folder, empty, b"", &[]);
    }
    assert_matrix_refused(folder, "noise.mtx", b"hello\nworld\n", &[]);
    assert_matrix_refused(folder, "noise.npy", b"not a numpy file at all", &[]);
    assert_matrix_refused(folder, "what.xyz", b"1 2 3", &[]);
    let whole = tridiagonal(30);
    assert_matrix_refused(folder, "cut.mtx", &whole.as_bytes()[..whole.len() / 2], &[]);
    let whole = npy("(3, 3)", &[4.0, 1.0, 1.0, 1.0, 4.0, 1.0, 1.0, 1.0, 4.0]);
    assert_matrix_refused(folder, "cut.npy", &whole[..whole.len() - 12], &[]);
    assert_matrix_refused(
        folder,
        "wide.mtx",
        format!("{coordinate}2 3 1\n1 1 1.0\n").as_bytes(),
        &["2", "3"],
    );
    assert_matrix_refused(folder, "wide.npy", &npy("(2, 3)", &[1.0; 6]), &["2", "3"]);
    assert_matrix_refused(
        folder,
        "outside.mtx",
        format!("{coordinate}2 2 3\n1 1 1.0\n2 2 1.0\n3 1 1.0\n").as_bytes(),
        &["line 5"],
    );
    assert_matrix_refused(
        folder,
        "word.mtx",
        format!("{coordinate}2 2 2\n1 1 1.0\n2 2 one\n").as_bytes(),
        &["line 4"],
    );
    assert_matrix_refused(
        folder,
        "nan.npy",
        &npy("(2, 2)", &[4.0, f64::NAN, 1.0, 4.0]),
        &["NaN"],
    );
    assert_matrix_refused(
        folder,
        "nan.mtx",
        format!("{coordinate}2 2 2\n1 1 1.0\n2 2 nan\n").as_bytes(),
        &[],
    );
    assert_matrix_refused(
        folder,
        "zero.npy",
        &npy("(3, 3)", &[4.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 4.0]),
        &["singular", "diagonal"],
    );
    assert_matrix_refused(
        folder,
        "hole.mtx",
        format!("{coordinate}3 3 3\n1 1 1.0\n2 1 1.0\n3 3 1.0\n").as_bytes(),
        &["singular", "diagonal"],
    );
}

/// Right-hand sides that are missing, of the wrong length, or hold what is no number.
#[test]
fn right_hand_sides() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let matrix = file(folder, "A.mtx", tridiagonal(3));
    for (name, content, words) in [
        ("short.npy", npy("(2,)", &[1.0, 2.0]), ["2", "3"]),
        ("nan.npy", npy("(3,)", &[1.0, f64::NAN, 3.0]), ["2", "NaN"]),
        (
            "long.mtx",
            b"%%MatrixMarket matrix array real general\n4 1\n1\n2\n3\n4\n".to_vec(),
            ["4", "3"],
        ),
    ] {
        let rhs = file(folder, name, content);
        assert_refused(
            &["solve", &matrix, "--rhs", &rhs],
            &[&[name], &words[..]].concat(),
        );
    }
    assert_refused(
        &["solve", &matrix, "--rhs", "/nonexistent/b.mtx"],
        &["/nonexistent/b.mtx"],
    );
}

/// Options that cannot be met, each with what is accepted.
#[test]
fn options() {
    let folder = tempfile::tempdir().unwrap();
    let matrix = file(folder.path(), "A.mtx", tridiagonal(3));
    let cases: [(&[&str], &[&str]); 28] = [
        (&["--workers", "4"], &["4", "3"]),
        (&["--workers", "0"], &["0"]),
        (&["--link", "warp"], &["warp", "shm", "udp"]),
        (
            &["--congestion", "reno"],
            &["reno", "`credit`, `suci` and `suci:K`"],
        ),
        (&["--link", "udp:nowhere"], &["udp:nowhere", "udp:"]),
        (
            &["--mode", "fast"],
            &["fast", "async", "sync", "threads", "single"],
        ),
        (&["--inner", "qr"], &["qr", "sweep", "lu"]),
        (&["--method", "qr"], &["qr", "gmres", "cg", "direct"]),
        (
            &["--method", "gmres", "--elements", "4"],
            &["--elements", "gmres"],
        ),
        (&["--method", "cg", "--inner", "lu"], &["--inner", "cg"]),
        (&["--method", "cg", "--omega", "1"], &["--omega", "cg"]),
        (&["--method", "cg", "--mode", "sync"], &["--mode", "cg"]),
        (&["--method", "direct", "--workers", "2"], &["--workers"]),
        (
            &["--method", "cg", "--threads", "2", "--mode", "single"],
            &["--threads", "single"],
        ),
        (&["--threads", "0", "--workers", "2"], &["--threads", "256"]),
        (&["--take-over"], &["--id"]),
        (&["--preconditioner", "lu"], &["--preconditioner", "gmres"]),
        (
            &["--method", "cg", "--preconditioner", "amg"],
            &["amg", "milu"],
        ),
        (&["--elements", "none"], &["none", "auto"]),
        (&["--elements", "0"], &["0", "auto"]),
        (&["--omega", "2"], &["2"]),
        (&["--omega", "zero"], &["zero"]),
        (&["--tol", "0"], &["0"]),
        (&["--tol", "-1e-3"], &["-0.001"]),
        (&["--loss", "1.5"], &["1.5", "20%"]),
        (&["--max-laps", "0"], &["0"]),
        (&["--generate", "dense:5"], &["--generate"]),
        (&["--id", "1"], &["--hosts"]),
    ];
    for (options, words) in cases {
        assert_refused(&[&["solve", &matrix], options].concat(), words);
    }
    assert_refused(&["solve"], &["--generate"]);
    assert_refused(&["solve", "--generate", "cube:3"], &["cube", "poisson2d"]);
    assert_refused(&["solve", "--generate", "dense:0"], &["dense"]);
    assert_refused(&["frobnicate"], &["frobnicate"]);
    assert_refused(&["launch", "-n", "2"], &["PROGRAM"]);
    assert_refused(&["launch", "-n", "0", "--", "true"], &["0"]);
    assert_refused(&["bench", "pingpong", "--size", "huge"], &["huge"]);
    for command in [&["bench", "burst"][..], &["launch", "-n", "2"]] {
        let words = &["reno", "`credit`, `suci` and `suci:K`"];
        assert_refused(&[command, &["--congestion", "reno"]].concat(), words);
    }
}

/// With `--json` a refusal is one object, too.
#[test]
fn refusals_as_json() {
    let (code, value) = common::json(&["solve", "/nonexistent/A.mtx"]);
    assert_eq!(code, 2);
    assert!(
        value["error"]
            .as_str()
            .unwrap()
            .contains("/nonexistent/A.mtx"),
        "{value}"
    );
    let (code, value) = common::json(&["solve", "--mode", "fast", "A.mtx"]);
    assert_eq!(code, 2);
    assert!(value["error"].as_str().unwrap().contains("fast"), "{value}");
}

/// An output that cannot be written is refused before any work is done, and what was there stays.
#[test]
fn outputs() {
    let folder = tempfile::tempdir().unwrap();
    let matrix = file(folder.path(), "A.mtx", tridiagonal(3));
    let inside = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    assert_refused(
        &["solve", &matrix, "--output", &inside("missing/x.npy")],
        &["missing", "does not exist"],
    );
    std::fs::create_dir(inside("folder.npy")).unwrap();
    assert_refused(
        &["solve", &matrix, "--output", &inside("folder.npy")],
        &["directory"],
    );
    assert_refused(
        &["bench", "pingpong", "--csv", &inside("folder.npy")],
        &["folder.npy: is a directory; give the name of a file"],
    );
    assert_refused(
        &["solve", &matrix, "--output", &inside("x.png")],
        &["x.png", ".npy", ".mtx"],
    );
    let kept = file(folder.path(), "x.npy", "kept");
    assert_refused(
        &["solve", &inside("no.mtx"), "--output", &kept],
        &["no.mtx"],
    );
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "kept");
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 3, "something was left behind: {left:?}");
}

/// A tolerance below what 64-bit numbers give ends the run with that explanation, not never.
#[test]
fn tolerance_out_of_reach() {
    let (code, run) = common::json(&[
        "solve",
        "--generate",
        "dense:50",
        "--workers",
        "2",
        "--tol",
        "1e-30",
    ]);
    assert!(code == 1 || code == 2, "{run}");
    assert!(
        run["reason"] == "stagnated"
            || run["error"]
                .as_str()
                .is_some_and(|error| error.contains("tol")),
        "{run}"
    );
}

/// Options without effect are refused, with the one that would give them one.
#[test]
fn options_without_effect() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("lab.key").to_str().unwrap().to_owned();
    assert!(tsumuji(&["key", &key]).status.success());
    let solve = ["solve", "--generate", "poisson2d:4"];
    for more in [
        &["--seal", "auth"][..],
        &["--seal", "encrypt", "--link", "udp"],
        &["--seal", "auth", "--open"],
    ] {
        assert_refused(&[&solve, more].concat(), &["--seal", "--key FILE"]);
    }
    assert_refused(
        &["launch", "-n", "1", "--seal", "auth", "--", "true"],
        &["--seal auth"],
    );
    for mode in ["threads", "single"] {
        for more in [
            &["--link", "udp"][..],
            &["--loss", "0.1"],
            &["--elements", "8"],
            &["--congestion", "suci"],
            &["--metrics", "local"],
            &["--lease", "5"],
            &["--key", &key],
            &["--open"],
        ] {
            let words = [more[0], "no effect with --mode", mode, "async"];
            assert_refused(&[&solve[..], &["--mode", mode], more].concat(), &words);
        }
    }
    for figure in ["suci-fig6", "suci-fig7"] {
        let words = ["--nodes", figure, "suci-fig8"];
        assert_refused(&["paper", figure, "--nodes", "4"], &words);
    }
    assert_refused(&["paper", "--list", "--csv", "x.csv"], &["--list", "--csv"]);
}

/// What would be ignored is refused, and a sweep before its first run.
#[test]
fn options_that_would_be_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let matrix = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n2 2 1\n";
    let matrix = file(folder.path(), "A.mtx", matrix);
    let x = folder.path().join("x.npy").to_str().unwrap().to_owned();
    let csv = folder.path().join("a.csv").to_str().unwrap().to_owned();
    for (more, words) in [
        (&["--seed", "2"][..], &["--seed", "random"][..]),
        (
            &["--plan=only", "--output", &x],
            &["--output", "--plan=only"],
        ),
        (
            &["--plan=only", "--history", &csv],
            &["--history", "--plan=only"],
        ),
        (
            &["--method", "direct", "--max-laps", "9"],
            &["--max-laps", "--method direct"],
        ),
        (
            &["--sweep", "elements=1,4", "--method", "direct"],
            &["--sweep", "--method direct"],
        ),
        (
            &["--sweep", "elements=1,4", "--method", "cg"],
            &["--sweep", "--method cg"],
        ),
        (
            &["--sweep", "elements=1,4", "--mode", "single"],
            &["--sweep", "--mode single"],
        ),
        (
            &["--sweep", "workers=1,2", "--method", "direct"],
            &["--sweep", "--method direct"],
        ),
    ] {
        assert_refused(&[&["solve", &matrix][..], more].concat(), words);
    }
}

/// Key files that cannot be used are found before anything starts; where there is no key the line says what makes one.
#[test]
fn key_files() {
    let folder = tempfile::tempdir().unwrap();
    let inside = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let secret = |name: &str, content: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = file(folder.path(), name, content);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        path
    };
    let (missing, empty, noise) = (
        inside("missing"),
        secret("empty", ""),
        secret("noise", "x\n"),
    );
    let makes = |path: &str| format!("tsumuji key {path}");
    for (key, words) in [
        (&missing, [missing.as_str(), &makes(&missing)]),
        (&empty, [empty.as_str(), &makes(&empty)]),
        (&noise, [noise.as_str(), "64 hex digits"]),
    ] {
        for command in [
            &["solve", "--generate", "dense:4", "--key", key][..],
            &[
                "launch",
                "-n",
                "1",
                "--key",
                key,
                "--",
                "touch",
                &inside("started"),
            ],
            &["tune", "-n", "2", "--key", key],
            &["bench", "pingpong", "--link", "udp", "--key", key],
            &["bench", "gather", "--link", "udp", "--key", key],
        ] {
            assert_refused(command, &words);
        }
    }
    // One that the environment or the hosts file names, too.
    let mut command = common::command(&["launch", "-n", "1", "--", "true"]);
    command
        .env("TSUMUJI_KEY", &empty)
        .stderr(std::process::Stdio::piped());
    let output = common::finish(command.spawn().unwrap());
    assert_eq!(output.status.code(), Some(2));
    assert!(common::text(&output.stderr).contains(&makes(&empty)));
    let entry =
        "key = \"empty\"\n[[node]]\nid = 0\nhost = \"localhost\"\naddr = \"udp:127.0.0.1:7000\"\n";
    let hosts = file(folder.path(), "hosts.toml", entry);
    assert_refused(
        &["launch", "--hosts", &hosts, "--", "true"],
        &[&makes(&empty)],
    );
    assert!(!Path::new(&inside("started")).exists());
}

/// Entries of a hosts file without a name where one is needed, and links that cannot meet.
#[test]
fn hosts_files() {
    let folder = tempfile::tempdir().unwrap();
    let entry = |id: u32, more: &str| format!("[[node]]\nid = {id}\n{more}\n");
    let near = "host = \"localhost\"\naddr = \"udp:127.0.0.1:7000\"";
    let hosts = file(
        folder.path(),
        "nameless.toml",
        entry(0, near) + &entry(1, "addr = \"udp:192.0.2.1:7000\""),
    );
    for command in [
        &["launch", "--hosts", &hosts, "--open", "--", "true"][..],
        &[
            "solve",
            "--generate",
            "dense:4",
            "--hosts",
            &hosts,
            "--open",
        ],
        &["tune", "--hosts", &hosts, "--open"],
        &["bench", "pingpong", "--hosts", &hosts, "--open"],
    ] {
        assert_refused(command, &["nameless.toml", "node 1", "`host`", "`via`"]);
    }
    let raw = "host = \"b\"\naddr = \"packet:eth1\"\nmac = \"02:00:00:00:00:01\"";
    let hosts = file(folder.path(), "mixed.toml", entry(0, near) + &entry(1, raw));
    let words = [
        "mixed.toml: node 1 (`b`)",
        "`addr`",
        "`packet`",
        "`udp`",
        "--link",
    ];
    assert_refused(
        &["launch", "--hosts", &hosts, "--open", "--", "true"],
        &words,
    );
    // The judge has node 0.
    let nodes = (0..4).map(|id| entry(id, &near.replace("7000", &(7000 + id).to_string())));
    let hosts = file(folder.path(), "many.toml", nodes.collect::<String>());
    assert_refused(
        &[
            "solve",
            "--generate",
            "dense:2",
            "--hosts",
            &hosts,
            "--open",
        ],
        &["many.toml: 3 workers for 2 rows", "at most 2"],
    );
}

/// Plots are SVG; another name is refused before anything is measured.
#[test]
fn plots() {
    for path in ["x.png", "x", "svg"] {
        for command in [
            &["bench", "pingpong", "--sizes", "4..8", "--plot", path][..],
            &["paper", "suci-fig6", "--plot", path],
        ] {
            assert_refused(command, &["--plot", path, "SVG", ".svg"]);
        }
    }
}

/// Numbers, ranges, missing words and unknown commands are told in plain words.
#[test]
fn mistyped_words() {
    let folder = tempfile::tempdir().unwrap();
    let there = file(folder.path(), "there", "x");
    for (words, wanted) in [
        (
            &["solve", "--generate", "dense:4", "--workers", "x"][..],
            "'x' for '--workers <N>': accepted are whole numbers\n",
        ),
        (
            &["join", "--to", "10.0.0.1", "--", "true"],
            "'10.0.0.1' for '--to <ADDRESS>': accepted are udp:ADDRESS:PORT or an Ethernet address",
        ),
        (
            &["solve", "--generate", "dense:4", "--workers", "-1"],
            "'-1' for '--workers <N>': accepted are whole numbers\n",
        ),
        (
            &["solve", "--generate", "dense:4", "--omega", "x"],
            "'x' for '--omega <W>': accepted are numbers, for example",
        ),
        (
            &[
                "solve",
                "--generate",
                "dense:4",
                "--seed",
                "99999999999999999999",
            ],
            "the number is too large\n",
        ),
        (
            &["solve", "--generate", "dense:4", "--slots", "3"],
            "provided: --hosts <FILE>\n",
        ),
        (
            &["bench", "pingpong", "--rounds", "0"],
            "'0' for '--rounds <R>': accepted are 1 to 1000\n",
        ),
        (
            &["bench", "pingpong", "--iterations", "0"],
            "accepted are numbers from 1\n",
        ),
        (
            &["bench", "pingpong", "--link", "packet"],
            "link `packet` joins hosts, one process each; say which by --hosts FILE",
        ),
        (
            &["solve", "--generate", "dense:4", "--link", "xdp:eth9"],
            "link `xdp:eth9` joins hosts",
        ),
        (
            &["solve", "--hosts", "/no/such", "A.mtx"],
            "/no/such: No such file or directory\n",
        ),
        (
            &["testbed", "up", "-n", "2", "--mtu", "x"],
            "'x' for '--mtu <BYTES>': accepted are whole numbers\n",
        ),
        (
            &["testbed", "foo"],
            "'foo'; `tsumuji testbed --help` lists the commands\n",
        ),
        (&["frob"], "'frob'; `tsumuji --help` lists the commands\n"),
        (
            &["key", &there],
            "is there already and is left as it is; give another name",
        ),
        (
            &["launch", "--frob", "-n", "2", "--", "x"],
            "unexpected argument '--frob' found\n",
        ),
    ] {
        assert_refused(words, &[wanted]);
    }
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "x");
}

/// Names that no file can have are refused before the run, also where only the longer name of an unfinished result is too long.
#[test]
fn names_that_no_file_can_have() {
    let folder = tempfile::tempdir().unwrap();
    let within = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let data = file(folder.path(), "a.csv", "a,y\n1,1\n2,3\n3,5\n");
    let netlist = file(
        folder.path(),
        "d.cir",
        "title\nV1 a 0 5\nR1 a b 1k\nR2 b 0 1k\n.end\n",
    );
    let long = |letters: usize, ending: &str| within(&format!("{}{ending}", "m".repeat(letters)));
    let system = ["solve", "--generate", "poisson2d:9"];
    let solve = |option| [&system[..], &[option]].concat();
    let slash = |name: &str| format!("{}/", within(name));
    for (words, name, reason) in [
        (solve("--output"), long(300, ".npy"), "too long"),
        (solve("--output"), long(245, ".npy"), "too long"),
        (solve("--checkpoint"), long(300, ".npy"), "too long"),
        (solve("--history"), long(300, ".csv"), "too long"),
        (solve("--output"), slash("m.npy"), "folder"),
        (
            vec!["solve", &netlist, "--output"],
            long(245, ".csv"),
            "too long",
        ),
        (
            vec!["learn", "linear", &data, "--model"],
            long(300, ""),
            "too long",
        ),
        (
            vec!["learn", "linear", &data, "--model"],
            slash("m.json"),
            "folder",
        ),
    ] {
        assert_refused(&[&words[..], &[&name]].concat(), &[reason]);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}
