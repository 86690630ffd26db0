//! The cost of timers: peers without expired deadlines cost nothing. Visits are counted; no time is measured.

use super::tests::{config, next_frame};
use super::*;
use crate::event::Destination;
use crate::message::{Delivery, Payload, Sink};
use crate::time::Duration;
use alloc::vec;
use tsumuji_wire::{Channel, Datagram};

struct Nobody;

impl Sink for Nobody {
    fn message(&mut self, _: Delivery<'_>) {}
    fn datagram(&mut self, _: u64, _: Datagram<'_>) {}
}

const HUB: NodeId = NodeId(0);

fn engine(me: NodeId, keep_alive: Duration) -> Engine {
    Engine::new(Config {
        receive_frames: 1 << 15,
        keep_alive,
        dead_after: keep_alive.times(100),
        ..config(me.0, 1 + u32::from(me.0))
    })
}

/// Moves all frames between the two until neither has any to send.
fn exchange(now: Instant, hub: &mut Engine, leaf: &mut Engine) {
    loop {
        let mut moved = false;
        while let Some(to) = hub.next_destination(now) {
            leaf.handle_frame(now, &next_frame(hub, now, to), &mut Nobody);
            moved = true;
        }
        while let Some(to) = leaf.next_destination(now) {
            hub.handle_frame(now, &next_frame(leaf, now, to), &mut Nobody);
            moved = true;
        }
        if !moved {
            break;
        }
    }
    while hub.poll_event().is_some() || leaf.poll_event().is_some() {}
}

/// A hub with sessions to `peers` peers, and the last of these peers.
fn star(peers: u16, keep_alive: Duration) -> (Engine, Engine) {
    let now = Instant::from_nanos(0);
    let mut hub = engine(HUB, keep_alive);
    let mut last = None;
    for peer in (1..=peers).map(NodeId) {
        hub.add_peer(now, peer);
        let mut leaf = engine(peer, keep_alive);
        leaf.add_peer(now, HUB);
        exchange(now, &mut hub, &mut leaf);
        assert!(hub.is_up(peer));
        last = Some(leaf);
    }
    (hub, last.expect("a peer"))
}

/// Sends a thousand messages to one of `peers` peers, one each 100 µs, and returns how often the hub checked a peer's deadlines.
fn checks(peers: u16) -> u64 {
    let (mut hub, mut leaf) = star(peers, Duration::from_secs(10));
    let mut now = Instant::from_nanos(0);
    let before = hub.counters().timer_checks;
    for _ in 0..1_000 {
        now += Duration::from_micros(100);
        let to = NodeId(peers);
        let body = Payload::Copied(b"8 bytes!", &[]);
        hub.submit(to, Channel::ordered(0), body, false)
            .expect("room");
        hub.handle_timeout(now);
        leaf.handle_timeout(now);
        exchange(now, &mut hub, &mut leaf);
        hub.release(to, 8);
        leaf.release(HUB, 8);
    }
    hub.counters().timer_checks - before
}

/// Timers of a busy peer cost the same whether it is the only one or there are 10,000 idle ones beside it.
#[test]
fn idle_peers_cost_no_checks() {
    let alone = checks(1);
    assert!((1..=4_000).contains(&alone), "{alone}");
    for peers in [100, 10_000] {
        // Each idle peer was visited once at most, because of a deadline of its hello.
        let checks = checks(peers);
        assert!(
            checks <= alone + 2 * u64::from(peers),
            "{checks} instead of {alone}"
        );
    }
}

/// Each peer is asked for an acknowledgement when its time has come, and visited no more often than that: a call that comes too early visits none.
#[test]
fn each_is_kept_alive_in_its_time() {
    const PEERS: u16 = 10_000;
    let keep_alive = Duration::from_secs(1);
    let (mut hub, _) = star(PEERS, keep_alive);
    let mut now = Instant::from_nanos(0);
    // Past the deadlines of the handshakes.
    now += Duration::from_millis(500);
    hub.handle_timeout(now);
    let before = *hub.counters();
    for _ in 0..1_000 {
        now += Duration::from_micros(400);
        hub.handle_timeout(now);
        assert!(hub.next_destination(now).is_none(), "too early");
    }
    assert_eq!(hub.counters().timer_checks, before.timer_checks);
    now += Duration::from_millis(100);
    hub.handle_timeout(now);
    assert_eq!(
        hub.counters().timer_checks,
        before.timer_checks + u64::from(PEERS)
    );
    let mut asked = vec![0; usize::from(PEERS) + 1];
    while let Some(to) = hub.next_destination(now) {
        let Destination::Peer(peer) = to else {
            panic!("a broadcast")
        };
        asked[usize::from(peer.0)] += 1;
        next_frame(&mut hub, now, to);
    }
    assert_eq!(asked[0], 0);
    assert!(asked[1..].iter().all(|&asked| asked == 1), "once each");
}

/// Idle peers that live are not taken for dead, however short the time after which they would be.
#[test]
fn idle_peers_live_on() {
    let engine = |me: NodeId| {
        Engine::new(Config {
            keep_alive: Duration::from_secs(1),
            dead_after: Duration::from_millis(500),
            ..config(me.0, 1 + u32::from(me.0))
        })
    };
    let mut now = Instant::from_nanos(0);
    let (mut hub, mut leaf) = (engine(HUB), engine(NodeId(1)));
    hub.add_peer(now, NodeId(1));
    leaf.add_peer(now, HUB);
    for _ in 0..200 {
        hub.handle_timeout(now);
        leaf.handle_timeout(now);
        exchange(now, &mut hub, &mut leaf);
        assert!(hub.is_up(NodeId(1)) && leaf.is_up(HUB), "{now:?}");
        now += Duration::from_millis(10);
    }
}

/// Time in which a node did not run is no silence of its peers; what follows is.
#[test]
fn own_absence_is_no_silence() {
    let peer = NodeId(1);
    let (mut hub, _) = star(1, Duration::from_secs(1)); // dead after 100 s
    let absence = Duration::from_secs(1_000);
    let mut now = Instant::from_nanos(0) + absence;
    hub.note_absence(now, absence);
    hub.handle_timeout(now);
    assert!(hub.is_up(peer));
    now += Duration::from_secs(99);
    hub.handle_timeout(now);
    assert!(hub.is_up(peer));
    now += Duration::from_secs(2);
    hub.handle_timeout(now);
    assert!(!hub.is_up(peer), "it is silent for 101 s");
}
