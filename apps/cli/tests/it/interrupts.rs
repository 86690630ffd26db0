//! Commands that are interrupted or killed: their exit codes, and that nothing stays.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::common::{command, finish, signal, text};
use crate::hosts::{assert_all_gone, loopback, marked};

/// However a launch ends, what its programs started ends, too: in the background, in another session, and behind a shell that has gone away.
#[test]
fn nothing_that_programs_started_stays() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = loopback(folder.path(), 2, "[\"env\"]");
    for how in ["-KILL", "-QUIT", "-INT", "-TERM", "-HUP", "end"] {
        for (index, place) in [["-n", "2"], ["--hosts", &hosts]].into_iter().enumerate() {
            let mark = format!("mark-{}-{index}{how}", std::process::id());
            let wait = if how == "end" { "" } else { "wait" };
            let script = format!(
                "sh -c 'sleep 1000; : {mark}' & setsid sh -c 'sleep 1000; : {mark}' & sh -c 'setsid sleep 1000 &' & sleep 0.3; echo up; {wait}"
            );
            let words = [&["launch"], &place[..], &["--", "sh", "-c", &script]].concat();
            let mut child = command(&words)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .env("TSUMUJI_TEST_MARK", &mark)
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            for _ in 0..2 {
                assert_eq!(lines.next().unwrap().unwrap(), "up");
            }
            if how != "end" {
                assert!(marked(&mark).len() >= 8, "programs and what they started");
                signal(how, child.id());
            }
            let code = finish(child).status.code();
            match how {
                "-KILL" | "-QUIT" => assert_eq!(code, None),
                "end" => assert_eq!(code, Some(0)),
                _ => assert_eq!(code, Some(130), "{how}"),
            }
            assert_all_gone(&mark);
        }
    }
}

/// The second Ctrl-C ends a launch at once, whatever its programs do; they are killed.
#[test]
fn second_interrupt_ends_at_once() {
    let mark = format!("mark-{}-second", std::process::id());
    let script = "trap '' TERM; trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done";
    let mut child = command(&["launch", "-n", "1", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .env("TSUMUJI_TEST_MARK", &mark)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "up");
    signal("-INT", child.id());
    assert_eq!(lines.next().unwrap().unwrap(), "asked");
    signal("-INT", child.id());
    let output = finish(child);
    // Not the code of the orderly end.
    assert_eq!(output.status.code(), None, "{}", text(&output.stderr));
    assert_all_gone(&mark);
}
