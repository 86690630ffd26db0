//! `tsumuji run`: programs of the system over the sockets layer, and those that it cannot reach.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::common::{self, command, finish, text};

/// The preloaded library, where cargo left it for the tests of its own crate.
fn library(test: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().expect("own path");
    let found = own
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("libtsumuji_sockets.so"))
        .find(|path| path.is_file());
    if found.is_none() {
        common::skipped(
            test,
            "libtsumuji_sockets.so is not built; cargo build -p tsumuji-sockets",
        );
    }
    found
}

fn run(words: &[&str], library: &PathBuf) -> Output {
    let mut command = command(&[&["run"], words].concat());
    command.env("TSUMUJI_SOCKETS_LIBRARY", library);
    let started = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    finish(started.expect("the program"))
}

const TALK: &str = "
import socket
listener = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
for part in (b'one', b'two'):
    client.sendall(part)
    assert server.recv(100) == part
    server.sendall(part)
    assert client.recv(100) == part
print('talked')
";

/// The program's output and exit code are its own; the explanation says which path its connection took, and counts.
#[test]
fn connections_are_carried_and_explained() {
    let Some(library) = library("connections_are_carried_and_explained") else {
        return;
    };
    let output = run(&["--explain", "--", "python3", "-c", TALK], &library);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(text(&output.stdout), "talked\n");
    for part in [
        "linked dynamically",
        "datagram sockets are not carried",
        ": shm: both ends have agreed",
        "counters: offered=1 claimed=1 carried=2",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let output = run(
        &["--explain", "--json", "--", "python3", "-c", TALK],
        &library,
    );
    for line in text(&output.stderr).lines() {
        let value: serde_json::Value = serde_json::from_str(line).expect(line);
        assert!(value["event"].is_string(), "{line}");
    }
    let output = run(
        &["--", "python3", "-c", "import sys; sys.exit(7)"],
        &library,
    );
    assert_eq!(output.status.code(), Some(7));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

/// A program with a library of its own to be preloaded keeps it.
#[test]
fn other_preloaded_libraries_stay() {
    let Some(library) = library("other_preloaded_libraries_stay") else {
        return;
    };
    let mut command = command(&["run", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    command.env("TSUMUJI_SOCKETS_LIBRARY", &library);
    command.env("LD_PRELOAD", "libc.so.6");
    let output = command.output().expect("the program");
    let said = text(&output.stdout);
    assert!(
        said.trim().ends_with(":libc.so.6") && said.contains("libtsumuji_sockets"),
        "{said}"
    );
}

/// A static program is named, and runs.
#[test]
fn static_programs_are_named() {
    let Some(library) = library("static_programs_are_named") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("main.c"), folder.path().join("static"));
    std::fs::write(
        &source,
        "#include <stdio.h>\nint main(void) { puts(\"ran\"); return 3; }\n",
    )
    .expect("a file");
    let mut compiler = Command::new("gcc");
    compiler.arg("-static").arg("-o").arg(&program).arg(&source);
    if !compiler
        .output()
        .is_ok_and(|output| output.status.success())
    {
        return common::skipped("static_programs_are_named", "no static C library");
    }
    let output = run(&["--", program.to_str().expect("a path")], &library);
    assert_eq!(text(&output.stdout), "ran\n");
    assert_eq!(output.status.code(), Some(3));
    let said = text(&output.stderr);
    assert!(
        said.contains("stays with kernel TCP: it is linked statically"),
        "{said}"
    );
}

/// What cannot be started is told in one line.
#[test]
fn failures_are_told() {
    let Some(library) = library("failures_are_told") else {
        return;
    };
    for (words, expected) in [
        (
            &["--", "no-such-program"][..],
            "neither a file nor found in PATH",
        ),
        (&["--link", "udp", "--", "true"], "over shm only"),
        (&["--json", "--", "true"], "--explain"),
        (
            &["true"],
            "write `--` before the program: tsumuji run -- true",
        ),
    ] {
        let output = run(words, &library);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let output = run(&["--", "true"], &PathBuf::from("/nonexistent"));
    assert!(text(&output.stderr).contains("TSUMUJI_SOCKETS_LIBRARY=/nonexistent"));
}

/// Streams of an unmodified program are measured over every path, in all three shapes, and plotted.
#[test]
fn streams_are_measured() {
    let Some(library) = library("streams_are_measured") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("plot.svg");
    for (shape, more) in [
        ("rr", &["--spin"][..]),
        ("stream", &[]),
        ("manyclients", &["--clients", "1,3"]),
    ] {
        let words = [
            "bench",
            shape,
            "--size",
            "1,5000",
            "--rounds",
            "1",
            "--seconds",
            "0.05",
        ];
        let plotted = ["--plot", plot.to_str().unwrap(), "--json"];
        let mut command = command(&[&words[..], more, &plotted].concat());
        command.env("TSUMUJI_SOCKETS_LIBRARY", &library);
        let started = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let output = finish(started.expect("the program"));
        assert!(output.status.success(), "{shape}: {}", text(&output.stderr));
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let results = found["results"].as_array().unwrap();
        assert_eq!(results.len(), if shape == "manyclients" { 4 } else { 2 });
        for path in results
            .iter()
            .flat_map(|one| one["paths"].as_array().unwrap())
        {
            assert!(
                path["per_second"]["median"].as_f64().unwrap() > 0.0,
                "{path}"
            );
            assert!(
                path["us_per_kb"]["median"].as_f64().unwrap() > 0.0,
                "{path}"
            );
            let has_times = path["p50_us"]["median"].as_f64().unwrap() > 0.0;
            assert_eq!(has_times, shape != "stream", "{path}");
        }
        assert!(std::fs::read_to_string(&plot).unwrap().contains("<svg"));
    }
}
