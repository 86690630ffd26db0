//! Two processes and one interface: the second is refused and told who has it; a killed one leaves nothing behind. Needs root, or
//! `unshare -Urn`; without, the test says so and tests nothing.

use std::time::Duration;

use crate::holder;
use crate::segment::{Segment, lacking};
use tsumuji_link::packet::{Packet, PacketConfig};

/// The test that [`holder::start`] runs.
const HOLDER: &str = "packet_process::hold_a_link";
const POLL_EVERY: Duration = Duration::from_millis(10);
const POLLS_MAX: usize = 1000;

/// Not a test by itself: what the other starts.
#[test]
#[ignore = "run by another test as a program to be killed"]
fn hold_a_link() {
    holder::hold(|| Packet::open("n0", PacketConfig::default()).expect("open"));
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
        let mut child = holder::start(HOLDER);
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
    for _ in 0..POLLS_MAX {
        if leftovers().is_none() {
            return;
        }
        std::thread::sleep(POLL_EVERY);
    }
    panic!("left behind: {:?}", leftovers());
}
