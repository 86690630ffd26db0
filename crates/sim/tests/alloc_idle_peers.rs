//! One endpoint, any number of peers: what an idle peer costs in memory.
//!
//! A program of its own, for it has an allocator of its own, which counts what the whole process has.

#[path = "../../link/tests/common/counting_alloc.rs"]
mod counting_alloc;

use tsumuji_proto::{
    Borrowed, Channel, Config, Destination, Duration, Engine, Instant, NodeId, Payload,
};
use tsumuji_proto::{Datagram, Delivery, Sink};
use tsumuji_sim::config;

struct Nobody;

impl Sink for Nobody {
    fn message(&mut self, _: Delivery<'_>) {}
    fn datagram(&mut self, _: u64, _: Datagram<'_>) {}
}

const ME: NodeId = NodeId(0);
const CHANNEL: Channel = Channel::ordered(0);

fn engine(me: u16) -> Engine {
    Engine::new(Config {
        me: NodeId(me),
        incarnation: 1 + u32::from(me),
        receive_frames: 1 << 15,
        keep_alive: Duration::from_secs(1),
        dead_after: Duration::from_secs(100),
        ..config()
    })
}

fn next_frame(engine: &mut Engine, now: Instant, to: Destination) -> Vec<u8> {
    engine.plan(now, to, &Borrowed::NONE, (1, usize::MAX));
    let mut frames = engine.batch(&Borrowed::NONE);
    frames
        .next()
        .map(|(head, body)| [head, body].concat())
        .expect("a frame")
}

/// Moves all frames between the two until neither has any to send.
fn exchange(now: Instant, hub: &mut Engine, leaf: &mut Engine) {
    for _ in 0..8 {
        while let Some(to) = hub.next_destination(now) {
            leaf.handle_frame(now, &next_frame(hub, now, to), &mut Nobody);
        }
        while let Some(to) = leaf.next_destination(now) {
            assert_eq!(to, Destination::Peer(ME));
            hub.handle_frame(now, &next_frame(leaf, now, to), &mut Nobody);
        }
    }
    while hub.poll_event().is_some() || leaf.poll_event().is_some() {}
}

/// Bytes that each of `peers` costs the engine: merely known, up, and after a message each way.
fn bytes_per_peer(peers: u16) -> [usize; 3] {
    let mut now = Instant::from_nanos(0);
    let start = counting_alloc::live_bytes();
    let mut hub = engine(ME.0);
    let live = || counting_alloc::live_bytes().saturating_sub(start);
    for peer in 1..=peers {
        hub.add_peer(now, NodeId(peer));
    }
    let known = live();
    // Hello leaves to all; one leaf after the other lives, answers, and is gone.
    for peer in 1..=peers {
        meet(now, &mut hub, peer);
    }
    let up = live();
    for peer in 1..=peers {
        now += Duration::from_micros(50);
        let mut leaf = meet(now, &mut hub, peer);
        let body = || Payload::Copied(b"8 bytes!", &[]);
        hub.submit(NodeId(peer), CHANNEL, body(), false)
            .expect("room");
        leaf.submit(ME, CHANNEL, body(), false).expect("room");
        for _ in 0..3 {
            now += Duration::from_micros(100);
            hub.handle_timeout(now);
            leaf.handle_timeout(now);
            exchange(now, &mut hub, &mut leaf);
        }
        hub.release(NodeId(peer), 8);
        let flow = hub.flow(NodeId(peer)).expect("a peer");
        assert_eq!((flow.queued_messages, flow.incoming_bytes), (0, 0));
    }
    let talked = live();
    let each = |bytes: usize| bytes / usize::from(peers);
    [each(known), each(up), each(talked)]
}

/// The peer's process begins (anew), and both are up.
fn meet(now: Instant, hub: &mut Engine, peer: u16) -> Engine {
    let mut leaf = engine(peer);
    leaf.add_peer(now, ME);
    exchange(now, hub, &mut leaf);
    assert!(hub.is_up(NodeId(peer)) && leaf.is_up(ME), "{peer}");
    leaf
}

/// An idle peer costs little more than a kilobyte, one that was talked with little more than two, however many there are. All the rest
/// (the engine itself, its pool) is shared, and counted here too.
#[test]
fn idle_peers_are_cheap() {
    for peers in [1_000, 10_000] {
        let [known, up, talked] = bytes_per_peer(peers);
        println!(
            "{peers} peers: {known} B each when known, {up} B when up, {talked} B after a message each way"
        );
        assert!(
            up <= 1_280 && talked <= 2_560,
            "{peers} peers: {up} and {talked} B"
        );
    }
}
