//! What launched programs print: whole lines, tags, floods, closed outputs and readers that go away.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use crate::common::{
    command, finish, signal, start, text, tsumuji, wait_for_children, wait_until_stuck,
};

fn launch(options: &[&str], script: &str) -> std::process::Output {
    let args = [&["launch"], options, &["--", "sh", "-c", script]].concat();
    tsumuji(&args)
}

/// Programs that print at once, and in pieces, do not mix within lines; with --tag each line bears a name.
#[test]
fn lines_are_whole_and_tagged() {
    let script = "i=0; while [ $i -lt 200 ]; do printf 'one '; printf 'two '; echo $TSUMUJI_NODE; i=$((i+1)); done; \
                  echo oops $TSUMUJI_NODE >&2";
    for tag in [false, true] {
        let options: &[&str] = if tag {
            &["-n", "4", "--tag"]
        } else {
            &["-n", "4"]
        };
        let output = launch(options, script);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let lines = text(&output.stdout);
        assert_eq!(lines.lines().count(), 800);
        for node in 0..4 {
            let before = if tag {
                format!("node {node}: ")
            } else {
                String::new()
            };
            let wanted = format!("{before}one two {node}");
            assert_eq!(lines.lines().filter(|line| *line == wanted).count(), 200);
            let complaints = text(&output.stderr);
            assert!(
                complaints.contains(&format!("{before}oops {node}\n")),
                "{complaints}"
            );
        }
    }
}

/// Nothing of a flood is lost, however slowly it is read, and what has no line end arrives byte for byte.
#[test]
fn floods_arrive_whole() {
    let mut child = start(&[
        "launch",
        "-n",
        "2",
        "--",
        "sh",
        "-c",
        "head -c 6000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero | tr '\\0' e >&2",
    ]);
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let errors = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        err.read_to_end(&mut bytes).unwrap();
        bytes
    });
    // Read only after both programs found the pipe full and the launcher its queue.
    wait_until_stuck(child.id());
    let mut bytes = Vec::new();
    out.read_to_end(&mut bytes).unwrap();
    assert_eq!(finish(child).status.code(), Some(0));
    assert_eq!(bytes.len(), 12_000_000);
    assert!(bytes.iter().all(|byte| *byte == b'x'));
    assert_eq!(errors.join().unwrap().len(), 6_000_000);
}

/// An output that nobody reads any more ends the programs that print to it, as without a launcher.
#[test]
fn reader_that_goes_away_ends_the_programs() {
    let mut child = start(&["launch", "-n", "2", "--", "yes"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "y\n");
    drop(lines);
    let output = finish(child); // fails when it hangs
    assert_eq!(
        output.status.code(),
        Some(128 + 13),
        "{}",
        text(&output.stderr)
    );
}

/// An output that takes nothing does not keep the launcher from ending everything when told to.
#[test]
fn blocked_output_can_be_interrupted() {
    let mut child = command(&["launch", "-n", "2", "--", "yes"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let unread = child.stdout.take();
    let programs = wait_for_children(child.id(), 2);
    wait_until_stuck(child.id());
    signal("-INT", child.id());
    assert_eq!(finish(child).status.code(), Some(130));
    drop(unread);
    for program in programs {
        assert!(!std::path::Path::new(&format!("/proc/{program}")).exists());
    }
}

/// Programs may close their outputs, and leave somebody behind who holds them open.
#[test]
fn closed_and_kept_outputs_hang_nothing() {
    let output = launch(&["-n", "2"], "exec >&- 2>&-; sleep 0.2; true");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let output = launch(&["-n", "1"], "setsid sleep 5 & echo done");
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str()),
        (Some(0), "done\n")
    );
}

/// The last words of a program that fails are repeated in the line that names it.
#[test]
fn last_words_are_told() {
    let output = launch(
        &["-n", "2", "--json"],
        "echo on standard output; test $TSUMUJI_NODE = 0 && exec sleep 60; \
         for i in 1 2 3 4 5 6 7; do echo reason $i >&2; done; exit 3",
    );
    assert_eq!(output.status.code(), Some(3));
    let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let failure = run["failure"].as_str().unwrap();
    assert!(
        failure.ends_with(
            "exited with code 3; it said last: reason 3 / reason 4 / reason 5 / reason 6 / reason 7"
        ),
        "{failure}"
    );
    let complaints = text(&output.stderr);
    assert!(complaints.contains("on standard output\n"), "{complaints}");
    let told = complaints.find("reason 7\n").unwrap();
    assert!(
        told < complaints.find("tsumuji: node 1").unwrap(),
        "{complaints}"
    );
}

/// Workers of `solve` are named before each line of theirs, on standard error only.
#[test]
fn workers_of_solve_are_tagged() {
    let output = command(&[
        "solve",
        "--generate",
        "poisson2d:8",
        "--workers",
        "2",
        "--json",
    ])
    .env("LD_DEBUG", "statistics") // the loader prints some lines in each process
    .output()
    .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(run["converged"], true);
    let complaints = text(&output.stderr);
    for name in ["worker 1: ", "worker 2: "] {
        let lines = complaints.lines().filter(|line| line.starts_with(name));
        assert!(lines.count() > 3, "{complaints}");
    }
}
