//! Where nothing can be written: one line says so, the exit code is 1 or 2, and nothing is left half-written.

use std::fs::File;
use std::process::{Command, Stdio};

use crate::common::{command, file, finish, json, text, tridiagonal};

/// Runs with a standard output that is as full as a disk can be; its exit code, and what it says.
fn on_full_disk(args: &[&str]) -> (Option<i32>, String) {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let child = command(args)
        .stdin(Stdio::null())
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn();
    let output = finish(child.unwrap());
    (output.status.code(), text(&output.stderr).to_owned())
}

const FULL: &str = "tsumuji: standard output is not whole: cannot write: No space left on device\n";

/// Results that could not be printed are no success, whichever command had them.
#[test]
fn full_output_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let matrix = file(folder.path(), "t.mtx", tridiagonal(50));
    let key = folder.path().join("cluster.key");
    let lines = "i=0; while [ $i -lt 200 ]; do echo $i; i=$((i+1)); done; sleep 0.2; echo last";
    let cases: [&[&str]; 8] = [
        &["solve", &matrix, "--workers", "2", "--json"],
        &["bench", "pingpong", "--iterations", "10", "--json"],
        &["top", "--once", "--interval", "0.1"],
        &["top", "--json", "--interval", "0.1"],
        &["launch", "-n", "2", "--", "echo", "x"],
        &["launch", "-n", "1", "--", "sh", "-c", lines],
        &["key", key.to_str().unwrap()],
        &["--help"],
    ];
    for args in cases {
        let (code, said) = on_full_disk(args);
        assert_eq!(code, Some(1), "{args:?}: {said}");
        assert_eq!(said.matches(FULL).count(), 1, "{args:?}: {said}");
    }
    let status = on_full_disk(&["testbed", "status", "--json", "--name", "nosuchbed"]);
    assert!(status.0 != Some(0), "{status:?}");
}

/// What nobody can be told on standard error costs no result.
#[test]
fn full_standard_error_costs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("x.npy");
    let x = output.to_str().unwrap();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let data = file(folder.path(), "d.csv", "a,y\n1,2\n2,4\n3,5\n4,9\n");
    let cases: [(&[&str], i32); 5] = [
        (
            &[
                "solve",
                "--generate",
                "poisson2d:30",
                "--workers",
                "2",
                "--output",
                x,
            ],
            0,
        ),
        (
            &[
                "solve",
                "--generate",
                "poisson2d:30",
                "--plan",
                "--output",
                x,
            ],
            0,
        ),
        (
            &["learn", "linear", &data, "--method", "sgd", "--epochs", "1"],
            1,
        ),
        (&["launch", "-n", "1", "--", "false"], 1),
        (&["solve", "--generate", "nothing:3"], 2),
    ];
    for (args, wanted) in cases {
        let _ = std::fs::remove_file(&output);
        let child = command(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(full())
            .spawn();
        let code = finish(child.unwrap()).status.code();
        assert_eq!(code, Some(wanted), "{args:?}");
        assert_eq!(output.exists(), args.contains(&x), "{args:?}");
    }
}

/// A capture that could not be written to its end is told, and the run that was to be captured is no success.
#[test]
fn capture_on_a_full_disk_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let matrix = file(folder.path(), "t.mtx", tridiagonal(500));
    let limited = "trap '' XFSZ; ulimit -f 1; exec \"$0\" solve \"$1\" --workers 2 --link udp";
    let child = Command::new("sh")
        .args(["-c", limited, env!("CARGO_BIN_EXE_tsumuji"), &matrix])
        .env("TSUMUJI_CAPTURE", folder.path().join("trace.pcapng"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let output = finish(child.unwrap());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for node in [1, 2] {
        let wanted = format!("trace.{node}.pcapng is not whole: ");
        assert_eq!(said.matches(&wanted).count(), 1, "{said}");
    }
}

/// A key that cannot be written leaves no file in its place, so that the next try is not refused for it.
#[test]
fn key_leaves_no_empty_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cluster.key");
    let program = env!("CARGO_BIN_EXE_tsumuji");
    // Files may have no bytes; the signal that says so is ignored, and writing fails as on a full disk.
    let limited = "trap '' XFSZ; ulimit -f 0; exec \"$0\" key \"$1\"";
    let output = Command::new("sh")
        .args(["-c", limited, program])
        .arg(&path)
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.starts_with("tsumuji: cannot write a key to ") && said.lines().count() == 1,
        "{said}"
    );
    assert!(!path.exists());
}

/// A table of a sweep that cannot be written takes no result: JSON has it, with the error.
#[test]
fn sweeps_are_told_without_their_files() {
    let sweep = [
        "solve",
        "--generate",
        "poisson2d:30",
        "--sweep",
        "n=10,20",
        "--repeat",
        "1",
    ];
    for option in ["--history", "--csv"] {
        let words = match option {
            "--csv" => vec![
                "lab",
                "run",
                "--sizes",
                "1K",
                "--rounds",
                "1",
                "--seconds",
                "0.05",
            ],
            _ => sweep.to_vec(),
        };
        let (code, run) = json(&[&words[..], &[option, "/dev/full"]].concat());
        assert_eq!(code, 1, "{run}");
        assert!(!run["results"].as_array().unwrap().is_empty(), "{run}");
        let error = run["error"].as_str().unwrap();
        assert!(
            error.contains("/dev/full") && error.contains("No space"),
            "{error}"
        );
    }
}

/// A file that cannot be written takes no result of `learn`: JSON has it, with the error.
#[test]
fn learning_is_told_without_its_files() {
    let words = ["learn", "ridge", "--generate", "100x3"];
    for option in ["--history", "--model"] {
        let (code, run) = json(&[&words[..], &[option, "/dev/full"]].concat());
        assert_eq!(code, 1, "{run}");
        assert_eq!(run["converged"], true, "{run}");
        let error = run["error"].as_str().unwrap();
        assert!(
            error.contains("/dev/full") && error.contains("No space"),
            "{error}"
        );
    }
}
