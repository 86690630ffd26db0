//! This program, started again, holds an interface until it is killed. Who uses it has a test for that, which calls [`hold`].

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A holder whose test died ends by itself.
const HELD: Duration = Duration::from_secs(20);
/// Tells this program, started again, to hold a link.
const HOLD_ENV: &str = "TSUMUJI_TEST_HOLD";

/// Opens a link and keeps it, in the process that was started for it.
pub(crate) fn hold<L>(open: impl FnOnce() -> L) {
    if std::env::var_os(HOLD_ENV).is_none() {
        return;
    }
    let _link = open();
    println!("held");
    std::thread::sleep(HELD);
}

/// Starts this program again, in this thread's network, for its test `test`, and waits until it has the interface.
pub(crate) fn start(test: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", test, "--nocapture"])
        .env(HOLD_ENV, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("start");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let held = lines.any(|line| line.expect("text").ends_with("held"));
    assert!(held, "the child has the interface");
    child
}
