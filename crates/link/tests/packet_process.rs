//! Two processes and one interface: the second is refused and told who has it; a killed one leaves nothing behind. Needs root, or
//! `unshare -Urn`; without, the test says so and tests nothing.

#[path = "common/segment.rs"]
mod segment;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use segment::{Segment, lacking};
use tsumuji_link::packet::{Packet, PacketConfig};

/// A holder whose test died ends by itself.
const HELD: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(10);
const LOOKS_MAX: usize = 1000;
/// Tells this program, started again, to hold a link.
const HOLD_ENV: &str = "TSUMUJI_PACKET_TEST_HOLD";

/// Not a test by itself: what the other starts.
#[test]
fn hold_a_link() {
    if std::env::var_os(HOLD_ENV).is_none() {
        return;
    }
    let _link = Packet::open("n0", PacketConfig::default()).expect("open");
    println!("held");
    std::thread::sleep(HELD);
}

/// Starts this program again, in this thread's network, and waits until it has the interface.
fn start_holder() -> Child {
    let mut child = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "hold_a_link", "--nocapture"])
        .env(HOLD_ENV, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("start");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let held = lines.any(|line| line.expect("text").ends_with("held"));
    assert!(held, "the child has the interface");
    child
}

/// What the kernel says of this thread's network.
fn network(file: &str) -> String {
    std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).expect("read")
}

fn leftovers() -> Option<String> {
    let names = network("unix");
    let claims = names.lines().find(|line| line.contains("tsumuji"));
    // The first line is a heading; other programs' sockets are in other networks.
    let sockets = network("packet");
    let socket = sockets.lines().nth(1);
    claims.or(socket).map(str::to_owned)
}

/// While a process has the interface a second one is refused; SIGKILL frees it at once, and nothing remains.
#[test]
fn second_process_is_refused_and_killed() {
    if let Some(reason) = lacking() {
        eprintln!("{reason}");
        return;
    }
    Segment::new(2, 1500);
    assert_eq!(leftovers(), None);
    for _ in 0..3 {
        let mut child = start_holder();
        assert!(leftovers().is_some());
        let error = Packet::open("n0", PacketConfig::default()).expect_err("taken");
        let text = error.to_string();
        let holder = format!("`n0` is in use by process {} (", child.id());
        assert!(text.contains(&holder), "{text}");
        let own = "ip link add link n0 name n0a type macvlan mode bridge && ip link set n0a up";
        assert!(text.contains(own), "{text}");
        drop(Packet::open("n1", PacketConfig::default()).expect("the other interface is free"));
        child.kill().expect("SIGKILL");
        child.wait().expect("dead");
        drop(Packet::open("n0", PacketConfig::default()).expect("free again"));
    }
    // The kernel frees a socket's memory a moment after its last user is gone.
    for _ in 0..LOOKS_MAX {
        if leftovers().is_none() {
            return;
        }
        std::thread::sleep(LOOK);
    }
    panic!("left behind: {:?}", leftovers());
}
