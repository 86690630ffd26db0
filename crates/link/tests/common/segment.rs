//! A network of veth interfaces that only the calling thread sees.
//!
//! The thread leaves for a network namespace of its own, which the kernel removes with all its interfaces when the thread has
//! ended and its sockets are closed, however that comes about: nothing is left to clean up.

#![allow(dead_code)] // Each test program uses a part.

use std::io::Write;
use std::process::{Command, Stdio};

/// Interfaces `n0`, `n1` … that reach each other.
pub(crate) struct Segment {
    nodes: usize,
}

/// Why no such network can be made here; tests that need one print it and return.
pub(crate) fn lacking() -> Option<String> {
    let made = std::thread::spawn(|| {
        enter()?;
        ip("link add n0 type veth peer name n1\n")
    });
    match made.join().expect("no panic") {
        Ok(()) => None,
        Err(reason) => Some(format!(
            "skipped, no network namespace here (root makes one): {reason}"
        )),
    }
}

/// Takes the thread into a network of its own.
#[allow(deprecated)] // The safe call is enough: only descriptors tables would be dangerous to leave.
pub(crate) fn enter() -> Result<(), String> {
    rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET).map_err(|error| error.to_string())
}

/// Interfaces `v0`, `v1` … of the kind macvlan on one cable, in a network of the calling thread's own.
pub(crate) fn macvlans(nodes: usize) {
    enter().expect("a network namespace");
    let mut commands =
        "link add e0 type veth peer name e1\nlink set e0 up\nlink set e1 up\n".to_owned();
    for node in 0..nodes {
        commands += &format!(
            "link add link e0 name v{node} type macvlan mode bridge\nlink set v{node} up\n"
        );
    }
    ip(&commands).expect("macvlan interfaces");
}

/// Runs commands of `ip`, one a line.
pub(crate) fn ip(commands: &str) -> Result<(), String> {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("ip (package iproute2): {error}"))?;
    let mut input = child.stdin.take().expect("piped");
    input
        .write_all(commands.as_bytes())
        .map_err(|error| error.to_string())?;
    drop(input);
    let output = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

impl Segment {
    /// Two nodes are the ends of a pair; more are joined by a bridge. All have one queue.
    pub(crate) fn new(nodes: usize, mtu: u32) -> Self {
        enter().expect("a network namespace");
        let queues = "numrxqueues 1 numtxqueues 1";
        let mut commands = String::new();
        if nodes == 2 {
            commands += &format!(
                "link add n0 mtu {mtu} {queues} type veth peer name n1 mtu {mtu} {queues}\n\
                 link set n0 up\nlink set n1 up\n"
            );
        } else {
            commands += &format!("link add br0 mtu {mtu} type bridge\nlink set br0 up\n");
            for node in 0..nodes {
                commands += &format!(
                    "link add n{node} mtu {mtu} {queues} type veth peer name p{node} mtu {mtu} {queues}\n\
                     link set p{node} master br0\nlink set p{node} up\nlink set n{node} up\n"
                );
            }
        }
        ip(&commands).expect("veth interfaces");
        Self { nodes }
    }

    pub(crate) fn interfaces(&self) -> impl Iterator<Item = String> {
        (0..self.nodes).map(|node| format!("n{node}"))
    }
}
