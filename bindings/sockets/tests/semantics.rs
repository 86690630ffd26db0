//! TCP's semantics: one program of cases, run over kernel TCP and over ours. The kernel is the oracle: what its cases see is what ours must see.

mod common;
#[path = "semantics/groups.rs"]
mod groups;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use common::{Carried, Kernel, Way, build, carried, run, with};
use groups::GROUPS;

const SOURCES: [&str; 9] = [
    "semantics/main.c",
    "semantics/data.c",
    "semantics/ends.c",
    "semantics/waiting.c",
    "semantics/epoll.c",
    "semantics/processes.c",
    "semantics/programs.c",
    "semantics/files.c",
    "semantics/back.c",
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
    assert!(total > 200, "{total} cases only");
    println!("{total} cases");
}

/// The cases are about what they claim: their connections are carried.
#[test]
fn cases_are_carried() {
    let Some(program) = build("cases_are_carried", "semantics-carried", &SOURCES) else {
        return;
    };
    let mut command = Command::new(program);
    command.args(["data_write_read", "epoll_level", "fork_server"]);
    with(&mut command, Carried);
    let output = run(&mut command, b"");
    let count = carried(&output.stderr);
    // Both ends of: four cases with a connection, and ten connections to a server that forks.
    assert!(
        count >= 2 * 14,
        "{count}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
