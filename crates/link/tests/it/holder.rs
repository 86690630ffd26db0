//! This program, started again, holds an interface until it is killed. A module that uses it has an ignored test for that, which calls [`hold`].

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A holder whose test died ends by itself.
const HELD: Duration = Duration::from_secs(20);

/// Opens a link and keeps it, in the process that was started for it.
pub(crate) fn hold<L>(open: impl FnOnce() -> L) {
    let _link = open();
    println!("held");
    std::thread::sleep(HELD);
}

/// Starts this program again, in this thread's network, for its test `test`, and waits until it has the interface.
pub(crate) fn start(test: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "--ignored", test, "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("start");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let held = lines.any(|line| line.expect("text").ends_with("held"));
    assert!(held, "the child has the interface");
    child
}
