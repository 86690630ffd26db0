//! Commands that are interrupted or killed: their exit codes, and that nothing stays.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, command, file, finish, signal, start, text};
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

/// Ctrl-Z suspends the programs of a launch, on all hosts, and the launcher; they go on together, and Ctrl-C ends them as ever.
#[test]
fn launches_are_suspended_and_continued() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = loopback(folder.path(), 2, "[\"env\"]");
    for (index, place) in [["-n", "2"], ["--hosts", &hosts]].into_iter().enumerate() {
        let mark = format!("mark-{}-{index}-suspended", std::process::id());
        let script = format!("echo up; while :; do sleep 0.05; done; : {mark}");
        let words = [&["launch"], &place[..], &["--", "sh", "-c", &script]].concat();
        let mut child = command(&words)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0) // as a shell's job
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..2 {
            assert_eq!(lines.next().unwrap().unwrap(), "up");
        }
        let is_stopped = |pid: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
            state.is_some_and(|state| state.starts_with('T'))
        };
        // The launcher and both programs hold the mark; a program that starts another may for a moment be two.
        for (name, stopped) in [("-TSTP", 3..=5), ("-CONT", 0..=0)] {
            signal(name, child.id());
            let begun = Instant::now();
            while !stopped.contains(&marked(&mark).iter().filter(|pid| is_stopped(pid)).count()) {
                assert!(begun.elapsed() < PATIENCE, "{place:?} {name}");
                std::thread::sleep(Duration::from_millis(10));
            }
            assert!(marked(&mark).len() >= 3, "{place:?} {name}");
        }
        signal("-INT", child.id());
        assert_eq!(finish(child).status.code(), Some(130), "{place:?}");
        assert_all_gone(&mark);
    }
}

/// A second Ctrl-C ends a launch at once, whatever its programs do; they are killed.
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
    while child.try_wait().unwrap().is_none() {
        signal("-INT", child.id());
        std::thread::sleep(Duration::from_millis(100));
    }
    let output = finish(child);
    // Not the code of the orderly end.
    assert_eq!(output.status.code(), None, "{}", text(&output.stderr));
    assert_all_gone(&mark);
}

/// The first Ctrl-C ends a command that waits for a host without an answer, long before the host's 30 s are over, and nothing stays.
#[test]
fn waits_for_hosts_are_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let data = file(folder.path(), "data.csv", "x,y\n1,2\n2,4\n3,7\n");
    let commands: [&[&str]; 3] = [
        &["solve", "--generate", "poisson2d:20"],
        &["learn", "linear", &data],
        &["bench", "pingpong"],
    ];
    for (index, words) in commands.into_iter().enumerate() {
        let mark = format!("mark-{}-{index}-unanswered", std::process::id());
        let hosts = loopback(folder.path(), 2, "[]");
        let reached = std::fs::read_to_string(&hosts).unwrap();
        let (before, after) = reached.rsplit_once("[]").unwrap();
        let silent = format!("[\"sh\", \"-c\", \"MARK={mark} sleep 1000; : {mark}\"]");
        std::fs::write(&hosts, format!("{before}{silent}{after}")).unwrap();
        let child = start(&[words, &["--hosts", &hosts]].concat());
        let begun = Instant::now();
        while marked(&mark).is_empty() {
            assert!(begun.elapsed() < PATIENCE, "{words:?} asks no host");
            std::thread::sleep(Duration::from_millis(5));
        }
        let begun = Instant::now();
        signal("-INT", child.id());
        let output = finish(child);
        assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
        assert!(begun.elapsed() < Duration::from_secs(10), "{words:?}");
        assert_all_gone(&mark);
    }
}
