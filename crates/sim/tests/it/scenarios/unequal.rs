//! Two ends that differ: in the frames their links carry, and in the messages they take.

use super::config;
use tsumuji_proto::{Channel, Config, Event, NodeId};
use tsumuji_sim::{Net, Seed};

/// Large and small messages both ways between links of unequal frames, with losses: all arrive, and no frame of any kind is longer
/// than the other side's link carries (the net stops at the first that is).
#[test]
fn frames_suit_the_smaller_link() {
    for (here, there) in [(576, 9_000), (65_000, 1_400), (64, 1_500), (9_000, 1_500)] {
        for seed in Seed::several(7_000, 4) {
            let mut net = Net::new(seed)
                .rate_mbit(10_000)
                .delay_us(20..40)
                .loss_percent(10)
                .duplicate_percent(2);
            let [a, b] = [here, there].map(|frame_bytes| {
                // A ring of so many frames makes acknowledgements longer than the smallest frames.
                net.node(Config {
                    frame_bytes,
                    receive_frames: 2048,
                    ..config()
                })
            });
            net.connect(a, b);
            net.run_until_up();
            let bytes = if here < 100 { 60_000 } else { 1 << 20 };
            for (from, to) in [(a, b), (b, a)] {
                net.stream(from, to, Channel::ordered(0), bytes, 3);
                net.stream(from, to, Channel::unordered(1), 1_000, 20);
                net.stream(from, to, Channel::ordered(2), 1, 20);
            }
            net.run_until_idle();
            let delivered = [a, b].map(|node| net.deliveries(node).len());
            net.check(delivered == [43, 43], || {
                format!("{here} and {there}: {delivered:?}")
            });
        }
    }
}

/// `node`'s messages to `peer` that were refused as too large, by length; the stated limit is checked.
fn given_up(net: &Net, node: NodeId, peer: NodeId, limit_bytes: usize) -> Vec<usize> {
    let mut sizes = Vec::new();
    for (_, event) in net.events(node) {
        if let Event::TooLarge {
            peer: to,
            size,
            limit,
            ..
        } = event
        {
            assert_eq!((*to, *limit), (peer, limit_bytes));
            sizes.push(*size);
        }
    }
    sizes
}

/// What was queued before hello and is more than the peer takes fails with an event that names the limit; the rest arrives, in order.
/// The same holds for a peer that restarts.
#[test]
fn early_messages_meet_the_limit() {
    const LIMIT_BYTES: usize = 10_000;
    for seed in Seed::several(7_100, 10) {
        let mut net = Net::new(seed).loss_percent(20);
        let a = net.node(config());
        let b = net.node(Config {
            message_limit_bytes: LIMIT_BYTES,
            ..config()
        });
        net.connect(a, b);
        for bytes in [10_001, 10_000, 1 << 20, 0, 50_000, 3_000] {
            net.stream(a, b, Channel::ordered(0), bytes, 2);
            net.stream(a, b, Channel::unordered(3), bytes, 1);
        }
        net.run_until_idle();
        let mut failed = given_up(&net, a, b, LIMIT_BYTES);
        failed.sort_unstable();
        let large = [10_001, 50_000, 1 << 20];
        assert_eq!(failed, large.map(|bytes| [bytes; 3]).concat());
        assert_eq!(net.deliveries(b).len(), 9);
        assert_eq!(net.declared_dead(a, b), None);

        // The next incarnation of the peer is met afresh: what is queued to it before hello is judged when it has answered.
        net.crash(b);
        net.run_until(|net| !net.is_up(a, b));
        net.reconnect(a, b);
        net.stream(a, b, Channel::ordered(0), 20_000, 1);
        net.stream(a, b, Channel::ordered(0), 5_000, 1);
        net.restart(b);
        net.run_until_idle();
        assert_eq!(given_up(&net, a, b, LIMIT_BYTES).len(), 10);
        assert_eq!(net.deliveries(b).len(), 10);
    }
}
