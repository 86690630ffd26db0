//! Bundles between whole engines. `queue::bundling` tests which messages are joined.

use super::tests::{MINUTE, Wire, body};
use super::*;
use crate::time::Duration;
use alloc::vec::Vec;
use tsumuji_wire::Channel;

/// Messages that wait leave together, arrive one by one, and are charged as if they had left alone: on a bad wire, for a program that is slow to
/// release them, and for a peer that accepts no large messages.
#[test]
fn bundles_arrive_as_messages() {
    for seed in 0..20 {
        let mut wire = Wire::new(2);
        if seed % 2 > 0 {
            (wire.random, wire.loss_percent, wire.jitter_us) = (seed, 20, 50);
            wire.duplicate_percent = 10;
        }
        let limit_bytes = if seed % 4 < 2 { 64 << 20 } else { 300 };
        for node in &mut wire.nodes {
            let started = node.engine.shared.config.clone();
            node.engine = Engine::new(Config {
                message_limit_bytes: limit_bytes,
                budget_bytes: 20_000,
                ..started
            });
        }
        for (node, other) in [(0, 1), (1, 0)] {
            wire.nodes[node].engine.add_peer(wire.now, NodeId(other));
        }
        (wire.copies, wire.nodes[1].consumes) = (true, false);
        wire.run(MINUTE, |wire| wire.nodes[0].engine.is_up(NodeId(1)));
        let channels = [Channel::ordered(0), Channel::unordered(3)];
        let length = |i: usize| i * 7 % 90;
        for channel in channels {
            (0..1000).for_each(|i| wire.send(0, 1, channel, body(i, length(i))));
        }
        assert_eq!(wire.queued(0, 1), 2000);
        let mut taken = 0;
        while wire.queued(0, 1) > 0 {
            wire.run(Duration::from_millis(3), |_| false);
            let receiver = &mut wire.nodes[1];
            let accounts = receiver.engine.accounts();
            assert!(accounts.are_balanced(), "seed {seed}: {accounts:?}");
            let held: usize = receiver.mailbox.messages[taken..]
                .iter()
                .map(|(_, _, body)| crate::memory::charge(body.len()))
                .sum();
            assert!(held <= accounts.memory_bytes, "seed {seed}");
            for (from, _, body) in &receiver.mailbox.messages[taken..] {
                receiver.engine.release(*from, body.len());
            }
            taken = receiver.mailbox.messages.len();
        }
        let accounts = wire.nodes[1].engine.accounts();
        assert_eq!((taken, accounts.memory_bytes), (2000, 0), "seed {seed}");
        for channel in channels {
            let messages = wire.nodes[1].mailbox.messages.iter();
            let mut got: Vec<_> = messages
                .filter(|message| message.1 == channel)
                .map(|message| message.2.clone())
                .collect();
            let mut expected: Vec<_> = (0..1000).map(|i| body(i, length(i))).collect();
            if channel == channels[1] {
                got.sort();
                expected.sort();
            }
            assert!(got == expected, "seed {seed} {channel:?}");
        }
        let counters = wire.nodes[0].engine.counters();
        let frames = counters.sent_frames - counters.retransmitted_frames;
        // Probes on a bad wire, and of a window that stays closed for long, are added.
        let most = if limit_bytes > 300 { 500 } else { 1000 };
        assert!(
            seed % 2 > 0 || frames < most,
            "seed {seed}: {frames} frames"
        );
    }
}
