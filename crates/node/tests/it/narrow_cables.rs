//! A path between two hosts that ceases to carry frames of full size: what was sent fails by name, and what is sent next arrives in smaller frames
//! . Needs root and the commands of `tsumuji-testbed`; says what it skips.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::hosts::{Wire, endpoint, open};
use crate::common::{LONG, pattern};
use tsumuji_link::Link;
use tsumuji_node::{Channel, Destination, NodeId, Options, SendError};
use tsumuji_testbed::{Spec, Testbed};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const CHANNEL: Channel = Channel::ordered(0);
const LONG_MESSAGE: usize = 100_000;

/// No port of the switch takes longer frames from now on.
fn lower_mtu(testbed: &Testbed, mtu: &str) {
    let switch = testbed.name().switch();
    for port in ["p0", "p1"] {
        let status = Command::new("ip")
            .args(["-n", &switch, "link", "set", "dev", port, "mtu", mtu])
            .status()
            .expect("ip");
        assert!(status.success(), "{port}");
    }
}

/// The MTU falls under way: the sender of long messages is told in bounded time what is lost, both meet again by themselves, and long messages and
/// datagrams arrive.
#[test]
fn a_lowered_mtu_is_told_and_borne() {
    if let Err(why) = tsumuji_testbed::check_rights() {
        eprintln!("skipped: {why}");
        return;
    }
    let name = format!("narrow{}", std::process::id());
    let mut spec = Spec::new(2).named(name.parse().expect("name"));
    spec.mtu_bytes = 4000;
    let testbed = Testbed::up(&spec).expect("testbed");
    let options = Options {
        keep_alive: Duration::from_millis(50),
        dead_after: Duration::from_millis(500),
        ..Options::default()
    };
    let bases = [0, 1].map(|id| open(&testbed.hosts()[id], Wire::Packet).expect("packet socket"));
    let addrs = [bases[0].local_addr(), bases[1].local_addr()];
    let [base_a, base_b] = bases;
    let mut a = endpoint(base_a, A, &addrs, None, &options);
    let mut b = endpoint(base_b, B, &addrs, None, &options);
    let message = pattern(LONG_MESSAGE, 1);
    a.send(B, CHANNEL, &message).expect("up");
    assert_eq!(b.recv(LONG).expect("link").expect("arrives").body, message);
    let full = a.datagram_capacity_bytes();

    lower_mtu(&testbed, "1500");
    let start = Instant::now();
    let lost = loop {
        a.send(B, CHANNEL, &message).expect("queued");
        match a.flush(LONG) {
            Ok(all) => assert!(all, "neither acknowledged nor lost"),
            Err(SendError::MessagesLost { peer, messages }) => break (peer, messages),
            Err(other) => panic!("{other}"),
        }
        assert!(start.elapsed() < LONG, "nothing is lost");
    };
    assert_eq!(lost, (B, 1));

    while !a.is_up(B) {
        drop(a.recv(Duration::from_millis(10)).expect("link")); // B makes no call
        assert!(start.elapsed() < LONG, "they do not meet again");
    }
    a.send(B, CHANNEL, &message).expect("up");
    assert!(a.flush(LONG).expect("acknowledged"));
    let arrived = b.recv(LONG).expect("link").expect("arrives");
    assert_eq!((arrived.from, arrived.body == message), (A, true));
    assert!(a.datagram_capacity_bytes() < full);
    for bytes in [100, 2000, 3900] {
        let payload = pattern(bytes, 2);
        let datagram = tsumuji_node::Datagram {
            channel_id: 3,
            key: bytes as u32,
            payload: &payload,
            ..tsumuji_node::Datagram::EMPTY
        };
        let missed = a.datagram(Destination::Peer(B), datagram, None);
        assert_eq!(missed.expect("sent"), 0);
        let came = b.recv_datagram(None, LONG).expect("link");
        let came = came.unwrap_or_else(|| panic!("{bytes}: {:?}", a.flow(B)));
        assert!(came.payload == payload, "{bytes}");
    }
    drop((a, b));
    testbed.down().expect("down");
}
