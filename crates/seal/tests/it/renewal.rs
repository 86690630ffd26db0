//! Sessions are renewed by the clock: what one pair of keys opens is bounded in time.

use std::collections::HashSet;
use std::time::Duration;

use crate::mem::{Net, Node, assert_all_counted, meet, receive, seal_counters, send, send_to};
use tsumuji_link::{Link, LinkAddr};
use tsumuji_seal::SealMode;

/// As `docs/protocol.md` states them.
const REKEY_AFTER: Duration = Duration::from_secs(900);
const SPARE: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(20);

/// Frames between all and to all for so long; returns how many of those to one node got lost, and of those to all.
fn traffic(net: &Net, nodes: &mut [Node], time: Duration) -> [usize; 2] {
    let count = nodes.len();
    let mut lost = [0; 2];
    for round in 0..(time.as_nanos() / STEP.as_nanos()) as u32 {
        // Seldom enough that the test is quick, often enough that no session seems quiet.
        let talks = round.is_multiple_of(50);
        for from in (0..count).filter(|_| talks) {
            send(&mut nodes[from], LinkAddr::Broadcast, b"all");
            for to in (0..count).filter(|to| *to != from) {
                send_to(&mut nodes[from], to as u16, b"one");
            }
        }
        net.pass(STEP);
        let mut arrived = [0; 2];
        for node in nodes.iter_mut() {
            node.wait(Duration::ZERO).expect("wait");
            for (_, frame) in receive(node) {
                arrived[usize::from(frame == b"all")] += 1;
            }
        }
        if talks {
            let sent = count * (count - 1);
            lost = [lost[0] + sent - arrived[0], lost[1] + sent - arrived[1]];
        }
    }
    lost
}

/// Key ids of sealed frames on the tape that are not between seals.
fn key_ids(net: &Net) -> HashSet<[u8; 4]> {
    let tape = net.tape();
    let sealed = tape
        .iter()
        .filter(|taped| taped.bytes[0] == 0x17 && taped.bytes[1] & 4 == 0);
    sealed
        .map(|taped| taped.bytes[4..8].try_into().expect("4"))
        .collect()
}

/// Each session and each broadcast key gives way to a new one in time, while frames flow and none between two nodes is lost.
#[test]
fn old_sessions_are_renewed() {
    for mode in [SealMode::Auth, SealMode::Encrypt] {
        let net = Net::new(3);
        let mut nodes = net.nodes(3, mode);
        meet(&net, &mut nodes);
        let rekeys = |nodes: &[Node]| nodes.iter().map(|n| seal_counters(n).rekeys).sum::<u64>();
        assert_eq!(traffic(&net, &mut nodes, REKEY_AFTER - 2 * SPARE), [0, 0]);
        let mut before = key_ids(&net);
        for period in 1..=3 {
            let [to_one, to_all] = traffic(&net, &mut nodes, 4 * SPARE);
            assert_eq!(to_one, 0);
            assert!(to_all <= 3 * 2, "{to_all} broadcasts lost around new keys");
            assert_eq!(rekeys(&nodes), 6 * period, "both sides of 3 sessions");
            net.clear();
            let quiet_time = REKEY_AFTER - 4 * SPARE;
            assert_eq!(traffic(&net, &mut nodes, quiet_time), [0, 0]);
            let during = key_ids(&net);
            assert_eq!(during.len(), 6 + 3, "a key each way, and one for all");
            assert!(during.is_disjoint(&before), "a key outlived its time");
            before = during;
        }
        nodes.iter().for_each(assert_all_counted);
    }
}

/// Where handshakes do not get through, the old session goes on and the peer is asked seldom; once they do, it is renewed.
#[test]
fn renewal_that_fails_costs_nothing() {
    let net = Net::new(2);
    let mut nodes = net.nodes(2, SealMode::Encrypt);
    meet(&net, &mut nodes);
    net.lose(|taped| taped.bytes[0] == 0x18);
    assert_eq!(traffic(&net, &mut nodes, REKEY_AFTER), [0, 0]);
    net.clear();
    assert_eq!(traffic(&net, &mut nodes, 3 * REKEY_AFTER)[0], 0);
    let asked = net.tape().iter().filter(|t| t.bytes[0] == 0x18).count();
    // Two nodes, 13 frames in each 13 s.
    assert!((1000..6000).contains(&asked), "{asked} frames");
    assert_eq!(seal_counters(&nodes[0]).rekeys, 0);
    net.lose(|_| false);
    assert_eq!(traffic(&net, &mut nodes, 2 * SPARE)[0], 0);
    assert_eq!(seal_counters(&nodes[0]).rekeys, 1);
}

/// A peer that is gone is asked for a few minutes when its session is old; then nothing of it is left, and nothing is said.
#[test]
fn sessions_with_the_dead_end() {
    let net = Net::new(2);
    let mut nodes = net.nodes(2, SealMode::Encrypt);
    meet(&net, &mut nodes);
    let mut left = nodes.pop().map_or_else(Vec::new, |dead| {
        drop(dead);
        nodes
    });
    for _ in 0..((REKEY_AFTER + 10 * SPARE).as_millis() / STEP.as_millis()) {
        net.pass(STEP);
        left[0].wait(Duration::ZERO).expect("wait");
    }
    let counters = seal_counters(&left[0]);
    assert_eq!((counters.sessions, counters.peers), (0, 0));
    net.clear();
    for _ in 0..1000 {
        net.pass(Duration::from_secs(10));
        left[0].wait(Duration::ZERO).expect("wait");
    }
    assert_eq!(net.tape().len(), 0);
}
