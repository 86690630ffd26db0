//! TCP's semantics: one program of cases, run over kernel TCP and over ours. The kernel is the oracle: what its cases see is what ours must see.

mod common;
#[path = "semantics/groups.rs"]
mod groups;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use common::{Carried, Kernel, Way, build, carried, run, with};
use groups::GROUPS;

const SOURCES: [&str; 13] = [
    "semantics/main.c",
    "semantics/data.c",
    "semantics/ends.c",
    "semantics/waiting.c",
    "semantics/epoll.c",
    "semantics/early.c",
    "semantics/processes.c",
    "semantics/programs.c",
    "semantics/files.c",
    "semantics/back.c",
    "semantics/overlaps.c",
    "semantics/turns.c",
    "semantics/near/ends.c",
];

/// What each case has written.
fn seen(program: &Path, way: Way, words: &[&str]) -> BTreeMap<String, Vec<String>> {
    let mut command = Command::new(program);
    command.args(words);
    with(&mut command, way);
    command.env_remove("TSUMUJI_SOCKETS_EXPLAIN");
    let output = run(&mut command, b"");
    assert!(
        output.status.success(),
        "{way:?} {words:?}: {} {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    groups::cases(&String::from_utf8_lossy(&output.stdout))
}

/// Every case sees over ours what it sees over kernel TCP; there are more than two hundred.
#[test]
fn ours_is_as_the_kernels() {
    let Some(program) = build("ours_is_as_the_kernels", "semantics", &SOURCES) else {
        return;
    };
    let mut list = Command::new(&program);
    let list = run(list.arg("--list"), b"");
    let listed = String::from_utf8_lossy(&list.stdout);
    for name in listed.lines() {
        let groups = GROUPS.iter();
        let of = groups.filter(|words| words.iter().any(|word| name.starts_with(word)));
        assert_eq!(of.count(), 1, "groups of {name}");
    }
    let mut total = 0;
    let mut different = String::new();
    for words in GROUPS {
        let (kernel, ours) = (
            seen(&program, Kernel, words),
            seen(&program, Carried, words),
        );
        total += kernel.len();
        for (name, expected) in &kernel {
            let found = ours.get(name);
            if found != Some(expected) {
                different += &format!("{name}\n  kernel: {expected:?}\n  ours:   {found:?}\n");
            }
        }
    }
    assert!(different.is_empty(), "{different}");
    assert_eq!(total, listed.lines().count());
    assert!(total > 200, "{total} cases only");
    println!("{total} cases");
}

/// Cases without a connection that both ends have agreed about: there is none, it has ended before that, or it stays with TCP.
const NOT_CARRIED: [&str; 18] = [
    "accept_of_nothing",
    "accept_short_address",
    "closed_before_accept",
    "connect_refused",
    "connect_refused_nonblocking",
    "connect_to_any",
    "copy_before_connect",
    "copy_before_connect_above_number",
    "copy_before_connect_to_number",
    "epoll_added_before_late_refusal",
    "epoll_added_before_refusal",
    "epoll_added_exclusively_before_connect",
    "half_close_before_accept",
    "listener_closed_with_waiting",
    "poll_listener",
    "shutdown_of_unconnected",
    "stdio_before_accept",
    "system_io_uring_before_accept",
];

/// The cases are about what they claim: in each of them connections are carried.
#[test]
fn cases_are_carried() {
    let Some(program) = build("cases_are_carried", "semantics-carried", &SOURCES) else {
        return;
    };
    let mut cases: BTreeMap<String, usize> = BTreeMap::new();
    for words in GROUPS {
        // What the library explains between what the cases write.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 2>&1"]);
        command.arg(&program).args(words);
        with(&mut command, Carried);
        let output = run(&mut command, b"");
        let mut last = String::new();
        for line in output.stdout.split(|byte| *byte == b'\n') {
            if let Some(name) = line.strip_prefix(b"== ") {
                last = String::from_utf8_lossy(name).into_owned();
                cases.insert(last.clone(), 0);
            } else if let Some(count) = cases.get_mut(&last) {
                *count += carried(line);
            }
        }
    }
    let is_exempt = |name: &String| NOT_CARRIED.contains(&name.as_str());
    let without = cases.iter().filter(|(_, count)| **count == 0);
    let wrong: Vec<_> = without.filter(|(name, _)| !is_exempt(name)).collect();
    assert!(wrong.is_empty(), "nothing is carried in {wrong:?}");
    let missing = NOT_CARRIED
        .iter()
        .filter(|name| !cases.contains_key(**name));
    assert_eq!(missing.count(), 0, "{NOT_CARRIED:?}");
}

/// How often that is tried: on a busy machine more than half of the answers may take longer than a call sleeps for them.
const TRIES: usize = 10;

/// Calls that wait for some milliseconds are woken without bytes over TCP, but for those at the beginning.
#[test]
fn short_waits_ring_no_bells() {
    let test = "short_waits_ring_no_bells";
    let Some(program) = build(test, "semantics-waits", &SOURCES) else {
        return;
    };
    for case in [
        "wait_some_milliseconds",
        "poll_some_milliseconds",
        "epoll_some_milliseconds",
    ] {
        is_woken_without_bells(&program, case);
    }
}

fn is_woken_without_bells(program: &Path, case: &str) {
    let mut seen = String::new();
    for _ in 0..TRIES {
        let mut command = Command::new(program);
        command.arg(case);
        with(&mut command, Carried);
        let output = run(&mut command, b"");
        let said = String::from_utf8_lossy(&output.stderr);
        let counter = |name: &str| {
            let after = said.split(&format!("\"{name}\":")).nth(1);
            let number = after.and_then(|rest| rest.split(',').next()?.parse::<u32>().ok());
            number.unwrap_or_else(|| panic!("no {name}: {said}"))
        };
        assert!(counter("sleeps") >= counter("wakes"), "{said}");
        // Of forty answers.
        if counter("bells") < 20 && counter("wakes") > 20 {
            return;
        }
        seen += &said;
    }
    panic!("{case}: {seen}");
}
