//! Borrowed and shared long messages.

use super::tests::{MINUTE, Wire, body, config};
use super::*;
use crate::congestion::Congestion;
use crate::message::{Borrowed, Payload, SubmitError};
use crate::time::Duration;
use alloc::vec;
use bytes::Bytes;
use tsumuji_wire::Channel;

const CHANNEL: Channel = Channel::ordered(0);

/// Borrows `message` from node 0 to node 1 until no more than `ahead` bytes of it wait, then has the engine retain the rest. Returns how many bytes
/// are held then.
fn borrow(wire: &mut Wire, channel: Channel, message: &[u8], ahead: usize) -> usize {
    wire.nodes[0].borrow(1, channel, message.to_vec(), false);
    wire.run(MINUTE, |wire| {
        let unsent = wire.nodes[0].unsent_bytes().unwrap();
        unsent.is_none_or(|bytes| bytes <= ahead)
    });
    assert!(wire.nodes[0].retain());
    wire.nodes[0].engine.flow(NodeId(1)).unwrap().queued_bytes
}

/// Borrowed messages arrive whole and in order among others, over a bad wire, in batches or not, and only what is in flight is retained.
#[test]
fn borrowed_messages_survive_a_bad_wire() {
    for seed in 0..6 {
        for congestion in Congestion::ALL {
            let mut wire = Wire::under(2, congestion);
            wire.scatters = seed % 2 == 0;
            if seed > 1 {
                (wire.random, wire.loss_percent) = (seed, 20);
                (wire.jitter_us, wire.duplicate_percent) = (50, 10);
            }
            let sizes = [3_000_000, 0, 1, 1432, 65_536, 100_000, 1_000_000];
            let sent: Vec<_> = sizes.iter().map(|&size| body(size, size)).collect();
            for (index, message) in sent.iter().enumerate() {
                let ahead = [0, 50_000, 200_000][index % 3];
                let held = borrow(&mut wire, CHANNEL, message, ahead);
                assert!(held < 1_500_000, "{held} bytes held, seed {seed}");
                wire.send(0, 1, CHANNEL, body(7, 10));
            }
            wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
            let flow = wire.nodes[0].engine.flow(NodeId(1)).unwrap();
            assert_eq!((flow.queued_bytes, flow.queued_messages), (0, 0));
            let got = &wire.nodes[1].mailbox.messages;
            assert_eq!(got.len(), 2 * sent.len());
            for (pair, sent) in got.chunks(2).zip(&sent) {
                assert!(
                    pair[0].2 == *sent && pair[1].2 == body(7, 10),
                    "seed {seed} {congestion}"
                );
            }
        }
    }
}

/// The engine no longer holds it. An empty one is never held.
fn is_given_up(message: &Bytes) -> bool {
    message.is_empty() || message.is_unique()
}

/// Shared messages arrive whole and in order among others, over a bad wire, in batches or not; they count in the queue, and are released when they
/// are acknowledged; short ones at once.
#[test]
fn shared_messages_are_held_until_acknowledged() {
    for seed in 0..6 {
        for congestion in Congestion::ALL {
            let mut wire = Wire::under(2, congestion);
            wire.scatters = seed % 2 == 0;
            if seed > 1 {
                (wire.random, wire.loss_percent) = (seed, 20);
                (wire.jitter_us, wire.duplicate_percent) = (50, 10);
            }
            let sizes = [700_000, 0, 1, 4095, 4096, 65_536, 100_000];
            let sent: Vec<Bytes> = sizes.iter().map(|&size| body(size, size).into()).collect();
            for message in &sent {
                let engine = &mut wire.nodes[0].engine;
                let payload = Payload::Shared(message.clone());
                engine.submit(NodeId(1), CHANNEL, payload, false).unwrap();
                assert_eq!(is_given_up(message), message.len() < 4096);
                wire.send(0, 1, CHANNEL, body(7, 10));
            }
            let flow = wire.nodes[0].engine.flow(NodeId(1)).unwrap();
            assert!(flow.queued_bytes >= sizes.iter().sum());
            wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
            let flow = wire.nodes[0].engine.flow(NodeId(1)).unwrap();
            assert_eq!((flow.queued_bytes, flow.queued_messages), (0, 0));
            assert!(sent.iter().all(is_given_up), "seed {seed} {congestion}");
            let got = &wire.nodes[1].mailbox.messages;
            assert_eq!(got.len(), 2 * sent.len());
            for (pair, sent) in got.chunks(2).zip(&sent) {
                assert!(
                    pair[0].2 == *sent && pair[1].2 == body(7, 10),
                    "seed {seed} {congestion}"
                );
            }
        }
    }
}

/// A shared message is released when the session ends, and when it turns out larger than the peer accepts.
#[test]
fn shared_messages_that_fail_are_given_up() {
    let mut wire = Wire::new(2);
    let message = Bytes::from(body(1, 200_000));
    let submit = |wire: &mut Wire| {
        let payload = Payload::Shared(message.clone());
        wire.nodes[0]
            .engine
            .submit(NodeId(1), CHANNEL, payload, false)
            .unwrap();
    };
    submit(&mut wire);
    wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
    submit(&mut wire);
    assert!(!message.is_unique());
    let now = wire.now;
    wire.nodes[0].engine.abort(now, NodeId(1));
    assert!(message.is_unique());
    let mut wire = Wire::new(2);
    let limit = config(1, 1).message_limit_bytes;
    let large = Bytes::from(vec![0; limit + 1]);
    let payload = Payload::Shared(large.clone());
    let submitted = wire.nodes[0]
        .engine
        .submit(NodeId(1), CHANNEL, payload, false);
    assert!(submitted.is_ok() && !large.is_unique());
    wire.run(MINUTE, |wire| wire.nodes[0].engine.is_up(NodeId(1)));
    assert!(large.is_unique());
    let flow = wire.nodes[0].engine.flow(NodeId(1)).unwrap();
    assert_eq!((flow.queued_bytes, flow.queued_messages), (0, 0));
    submit(&mut wire);
    wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
    assert!(message.is_unique() && wire.nodes[1].mailbox.messages[0].2 == message);
}

/// A borrowed message that is no longer passed never leaves with the bytes of another: whatever is borrowed to another peer meanwhile, or again to
/// the same one, its fragments leave empty, and are dropped.
#[test]
fn bytes_of_another_message_never_leave() {
    for (congestion, scatters, seed) in [
        (Congestion::Credit, false, 1),
        (Congestion::Credit, true, 2),
        (Congestion::SUCI, false, 3),
    ] {
        let mut wire = Wire::under(3, congestion);
        wire.run(MINUTE, |wire| {
            let up = |of: usize, peer: u16| wire.nodes[of].engine.is_up(NodeId(peer));
            up(0, 1) && up(0, 2) && up(1, 0) && up(2, 0)
        });
        (wire.scatters, wire.random, wire.loss_percent) = (scatters, seed, 10);
        let (first, second) = (body(1, 3_000_000), body(2, 3_000_000));
        wire.nodes[0].borrow(1, CHANNEL, first.clone(), false);
        wire.run(MINUTE, |wire| {
            let unsent = wire.nodes[0].unsent_bytes().unwrap();
            unsent.is_some_and(|bytes| bytes < 2_000_000)
        });
        assert_ne!(wire.nodes[0].unsent_bytes(), Ok(Some(0)));
        let left = wire.nodes[0].borrowed.take();

        wire.nodes[0].borrow(2, CHANNEL, second.clone(), false);
        wire.run(Duration::from_secs(5), |wire| wire.queued(0, 2) == 0);
        assert!(wire.nodes[0].retain());
        assert!(wire.nodes[2].mailbox.messages[0].2 == second);
        assert!(
            wire.nodes[1].mailbox.messages.is_empty(),
            "nobody has the rest"
        );
        let drops = wire.nodes[1].engine.counters().drops;
        assert!(
            drops.get(crate::counters::Drop::Malformed) > 0,
            "{congestion}: {drops:?}"
        );
        let again = wire.nodes[0]
            .engine
            .submit_borrowed(NodeId(1), CHANNEL, 9, false);
        assert_eq!(again, Err(SubmitError::QueueFull { peer: NodeId(1) }));

        // The message is passed again, and all of it arrives.
        wire.nodes[0].borrowed = left;
        wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
        assert!(wire.nodes[1].mailbox.messages[0].2 == first);
        assert_eq!(wire.nodes[0].unsent_bytes(), Ok(None));
    }
}

/// A driver that can neither pass the message nor retain it aborts the session: it ends on both sides, nothing of the message arrives, and the next
/// session works.
#[test]
fn giving_up_ends_the_session() {
    for congestion in Congestion::ALL {
        let mut wire = Wire::under(2, congestion);
        let to = NodeId(1);
        wire.nodes[0].borrow(1, CHANNEL, body(1, 3_000_000), false);
        wire.run(MINUTE, |wire| {
            wire.nodes[0].unsent_bytes() != Ok(Some(3_000_000))
        });
        let now = wire.now;
        wire.nodes[0].engine.abort(now, to);
        assert_eq!(
            wire.nodes[0].unsent_bytes(),
            Err(SubmitError::PeerDead { peer: to })
        );
        assert!(wire.nodes[0].retain() && !wire.nodes[0].engine.is_up(to));
        assert_eq!(wire.nodes[0].engine.accounts().queued_bytes, 0);
        let now = wire.now;
        wire.nodes[0].engine.reconnect_peer(now, to);
        wire.run(Duration::from_secs(5), |wire| {
            wire.nodes[0].engine.is_up(to) && wire.nodes[1].engine.is_up(NodeId(0))
        });
        let message = body(2, 300_000);
        borrow(&mut wire, CHANNEL, &message, 0);
        wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
        let got = &wire.nodes[1].mailbox.messages;
        assert!(got.len() == 1 && got[0].2 == message, "{congestion}");
        assert_eq!(wire.nodes[1].engine.accounts().memory_bytes, 0);
    }
}

/// A borrowed message that is acknowledged whole needs no copy, and the next one is taken.
#[test]
fn what_is_acknowledged_is_not_kept() {
    let mut wire = Wire::new(2);
    let to = NodeId(1);
    for round in 0..3 {
        let message = body(round, 300_000);
        wire.nodes[0].borrow(1, CHANNEL, message.clone(), true);
        assert_eq!(
            wire.nodes[0].engine.submit_borrowed(to, CHANNEL, 10, false),
            Err(SubmitError::QueueFull { peer: to }),
            "one at a time"
        );
        assert_eq!(wire.nodes[0].unsent_bytes(), Ok(Some(300_000)));
        wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
        assert_eq!(wire.nodes[0].unsent_bytes(), Ok(None));
        let id = wire.nodes[0].borrowed.as_ref().unwrap().1;
        assert!(wire.nodes[0].retain() && wire.nodes[0].engine.is_acknowledged(to, id));
        assert_eq!(wire.nodes[0].engine.flow(to).unwrap().queued_bytes, 0);
        assert_eq!(wire.nodes[1].mailbox.messages[round].2, message);
    }
}

/// An acknowledged message has not failed, even if the session ends before its state is read.
#[test]
fn acknowledged_before_death() {
    let mut wire = Wire::new(2);
    wire.nodes[0].borrow(1, CHANNEL, body(1, 300_000), false);
    wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
    wire.nodes[1].cut_off = true;
    wire.run(Duration::from_secs(5), |wire| {
        !wire.nodes[0].engine.is_up(NodeId(1))
    });
    assert_eq!(wire.nodes[0].unsent_bytes(), Ok(None));
}

/// A message that is retained before the peer is up waits like any other, and leaves in fragments of the agreed size.
#[test]
fn kept_before_hello() {
    let mut wire = Wire::new(2);
    let message = body(1, 100_000);
    wire.nodes[0].borrow(1, CHANNEL, message.clone(), false);
    assert!(wire.nodes[0].retain());
    let flow = wire.nodes[0].engine.flow(NodeId(1)).unwrap();
    assert_eq!(flow.queued_bytes, message.len());
    wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
    assert_eq!(wire.nodes[1].mailbox.messages[0].2, message);
}

/// If the peer accepts no message of that length, `unsent_bytes` and an event report it, nothing of the message is left, and the next is accepted.
#[test]
fn too_large_ends_borrowing() {
    let mut wire = Wire::new(2);
    let to = NodeId(1);
    let limit = config(1, 1).message_limit_bytes;
    let size = limit + 1;
    wire.nodes[0].borrow(1, CHANNEL, body(1, size), true);
    let id = wire.nodes[0].borrowed.as_ref().unwrap().1;
    wire.run(MINUTE, |wire| wire.nodes[0].engine.is_up(to));
    let peer = to;
    assert!(wire.nodes[0].events.contains(&Event::TooLarge {
        peer,
        id,
        size,
        limit
    }));
    assert_eq!(
        wire.nodes[0].unsent_bytes(),
        Err(SubmitError::TooLarge { size, limit, peer })
    );
    assert!(wire.nodes[0].retain());
    assert_eq!(wire.nodes[0].engine.flow(to).unwrap().queued_messages, 0);
    let message = body(2, 100_000);
    borrow(&mut wire, CHANNEL, &message, 0);
    wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
    assert_eq!(wire.nodes[1].mailbox.messages[0].2, message);
}

/// If the peer dies while a message is borrowed, or after it was retained, `unsent_bytes` reports it, and nothing is left of the message.
#[test]
fn death_ends_borrowing() {
    for kept in [false, true] {
        let mut wire = Wire::new(2);
        let to = NodeId(1);
        wire.nodes[0].borrow(1, CHANNEL, body(2, 4_000_000), false);
        wire.run(MINUTE, |wire| {
            wire.nodes[0].unsent_bytes() != Ok(Some(4_000_000))
        });
        let borrowed = wire.nodes[0].borrowed.clone();
        assert!(!kept || wire.nodes[0].retain());
        wire.nodes[1].cut_off = true;
        wire.run(Duration::from_secs(5), |wire| {
            !wire.nodes[0].engine.is_up(to)
        });
        wire.nodes[0].borrowed = borrowed;
        assert_eq!(
            wire.nodes[0].unsent_bytes(),
            Err(SubmitError::PeerDead { peer: to })
        );
        assert!(wire.nodes[0].retain());
        assert_eq!(wire.nodes[0].engine.accounts().queued_bytes, 0);
    }
}

/// A borrowed message is cancelled without a trace before anything of it has left, and not afterwards.
#[test]
fn cancelled_messages_leave_nothing() {
    let mut wire = Wire::new(2);
    let to = NodeId(1);
    let engine = &mut wire.nodes[0].engine;
    assert!(!engine.cancel(&Borrowed::NONE), "nothing is borrowed");
    let bytes = vec![0; 50_000];
    let id = engine
        .submit_borrowed(to, CHANNEL, bytes.len(), true)
        .unwrap();
    let borrowed = Borrowed::new(to, id, &bytes);
    assert!(engine.cancel(&borrowed));
    assert_eq!(engine.flow(to).unwrap().queued_messages, 0);
    assert!(!engine.cancel(&borrowed), "once");
    wire.send(0, 1, CHANNEL, body(7, 10));
    let message = body(8, 300_000);
    wire.nodes[0].borrow(1, CHANNEL, message.clone(), false);
    wire.run(MINUTE, |wire| {
        wire.nodes[0].unsent_bytes() != Ok(Some(300_000))
    });
    let (_, id, borrowed) = wire.nodes[0].borrowed.clone().unwrap();
    let engine = &mut wire.nodes[0].engine;
    let borrowed = Borrowed::new(to, id, &borrowed);
    assert!(!engine.cancel(&borrowed), "some of it has left");
    assert!(wire.nodes[0].retain());
    wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
    let got = &wire.nodes[1].mailbox.messages;
    assert!(got.len() == 2 && got[0].2 == body(7, 10) && got[1].2 == message);
    // A cancelled message leaves no slot marked as borrowed.
    let next = body(9, 70_000);
    borrow(&mut wire, CHANNEL, &next, 0);
    wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
    assert!(wire.nodes[1].mailbox.messages[2].2 == next);
}
