//! Messages that are handed over piece by piece.

use super::tests::{MINUTE, Wire, body, config};
use super::*;
use crate::time::Duration;

/// Submits `message` from node 0 to node 1 and feeds it as the engine asks; returns the most that was held meanwhile.
fn stream(wire: &mut Wire, lane: Lane, message: &[u8]) -> usize {
    let to = NodeId(1);
    wire.nodes[0]
        .engine
        .submit_stream(to, lane, message.len(), false)
        .unwrap();
    let (mut rest, mut held) = (message, 0);
    while !rest.is_empty() {
        let engine = &mut wire.nodes[0].engine;
        rest = &rest[engine.feed(to, rest).unwrap()..];
        held = held.max(engine.flow(to).unwrap().queued_bytes);
        wire.run(MINUTE, |wire| {
            wire.nodes[0].engine.is_hungry(to) || wire.queued(0, 1) == 0
        });
    }
    held
}

/// Long messages arrive whole and in order among others, over a bad wire, and are never held whole.
#[test]
fn streams_survive_a_bad_wire() {
    for seed in 0..4 {
        let mut wire = Wire::new(2);
        if seed > 0 {
            (wire.random, wire.loss_percent) = (seed, 20);
            (wire.jitter_us, wire.duplicate_percent) = (50, 10);
        }
        let lane = Lane::ordered(0);
        let sizes = [0, 1, 5_000_000, 100, 65_536, 3_000_000];
        let sent: Vec<_> = sizes.iter().map(|&size| body(size, size)).collect();
        for message in &sent {
            let held = stream(&mut wire, lane, message);
            assert!(held < 3_000_000, "{held} bytes held, seed {seed}");
            wire.send(0, 1, lane, body(7, 10));
        }
        wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
        let flow = wire.nodes[0].engine.flow(NodeId(1)).unwrap();
        assert_eq!((flow.queued_bytes, flow.queued_messages), (0, 0));
        let got = &wire.nodes[1].inbox.messages;
        assert_eq!(got.len(), 2 * sent.len());
        for (pair, sent) in got.chunks(2).zip(&sent) {
            assert!(
                pair[0].2 == *sent && pair[1].2 == body(7, 10),
                "seed {seed}"
            );
        }
    }
}

/// One message is fed at a time; the rest that is handed over must be the rest of it.
#[test]
fn feeding_is_checked() {
    let mut wire = Wire::new(2);
    let (to, lane) = (NodeId(1), Lane::ordered(0));
    let engine = &mut wire.nodes[0].engine;
    assert!(engine.feed(to, b"nothing was submitted").is_err());
    engine.submit_stream(to, lane, 1_000_000, false).unwrap();
    assert_eq!(
        engine.submit_stream(to, lane, 10, false),
        Err(SubmitError::QueueFull { peer: to })
    );
    let message = body(1, 1_000_000);
    assert_eq!(engine.feed(to, &message), Ok(0), "not before hello");
    wire.run(MINUTE, |wire| wire.nodes[0].engine.is_hungry(to));
    let engine = &mut wire.nodes[0].engine;
    assert!(engine.feed(to, &message[1..]).is_err());
    let taken = engine.feed(to, &message).unwrap();
    assert!(taken > 0 && !engine.is_hungry(to));
    assert_eq!(engine.feed(to, &message[taken..]), Ok(0), "enough waits");
}

/// A peer that dies while it is fed is told to whoever feeds, and its memory comes free.
#[test]
fn death_ends_feeding() {
    let mut wire = Wire::new(2);
    let (to, lane) = (NodeId(1), Lane::ordered(0));
    let message = body(1, 4_000_000);
    let engine = &mut wire.nodes[0].engine;
    engine
        .submit_stream(to, lane, message.len(), false)
        .unwrap();
    wire.run(MINUTE, |wire| wire.nodes[0].engine.is_hungry(to));
    let taken = wire.nodes[0].engine.feed(to, &message).unwrap();
    wire.nodes[1].cut_off = true;
    wire.run(Duration::from_secs(5), |wire| {
        !wire.nodes[0].engine.is_up(to)
    });
    let engine = &mut wire.nodes[0].engine;
    assert!(!engine.is_hungry(to));
    assert_eq!(
        engine.feed(to, &message[taken..]),
        Err(SubmitError::PeerDead { peer: to })
    );
    assert_eq!(engine.flow(to).unwrap().queued_bytes, 0);
}

/// A message that is larger than the peer turns out to take ends for whoever feeds it, and the next one is fed.
#[test]
fn too_large_ends_feeding() {
    let mut wire = Wire::new(2);
    let (to, lane) = (NodeId(1), Lane::ordered(0));
    let limit = config(1, 1).message_limit_bytes;
    let message = body(1, limit + 1);
    let engine = &mut wire.nodes[0].engine;
    let id = engine.submit_stream(to, lane, message.len(), true).unwrap();
    assert_eq!(engine.feed(to, &message), Ok(0), "not before hello");
    wire.run(MINUTE, |wire| wire.nodes[0].engine.is_hungry(to));
    let size = message.len();
    assert!(wire.nodes[0].events.contains(&Event::TooLarge {
        peer: to,
        id,
        size,
        limit
    }));
    let engine = &mut wire.nodes[0].engine;
    assert_eq!(
        engine.feed(to, &message),
        Err(SubmitError::TooLarge {
            size,
            limit,
            peer: to
        })
    );
    assert_eq!(engine.flow(to).unwrap().queued_messages, 0);
    let message = body(2, 100_000);
    stream(&mut wire, lane, &message);
    wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
    assert_eq!(wire.nodes[1].inbox.messages[0].2, message);
}

/// Lends `message` from node 0 to node 1 until no more than `ahead` bytes of it wait, then has the engine keep the rest. Returns
/// what is held of it then.
fn lend(wire: &mut Wire, lane: Lane, message: &[u8], ahead: usize) -> usize {
    let (to, length) = (NodeId(1), message.len());
    wire.nodes[0].lent = message.to_vec();
    let engine = &mut wire.nodes[0].engine;
    engine.submit_lent(to, lane, length, false).unwrap();
    wire.run(MINUTE, |wire| {
        let unsent = wire.nodes[0].engine.unsent_bytes(to, length).unwrap();
        unsent.is_none_or(|bytes| bytes <= ahead)
    });
    assert!(wire.nodes[0].engine.keep(to, message));
    wire.nodes[0].lent.clear();
    wire.nodes[0].engine.flow(to).unwrap().queued_bytes
}

/// Lent messages arrive whole and in order among others, over a bad wire, in runs or not, and only what is under way is kept.
#[test]
fn lent_messages_survive_a_bad_wire() {
    for seed in 0..6 {
        let mut wire = Wire::new(2);
        wire.scatters = seed % 2 == 0;
        if seed > 1 {
            (wire.random, wire.loss_percent) = (seed, 20);
            (wire.jitter_us, wire.duplicate_percent) = (50, 10);
        }
        let lane = Lane::ordered(0);
        let sizes = [3_000_000, 1, 1432, 65_536, 100_000, 1_000_000];
        let sent: Vec<_> = sizes.iter().map(|&size| body(size, size)).collect();
        for (index, message) in sent.iter().enumerate() {
            let ahead = [0, 50_000, 200_000][index % 3];
            let held = lend(&mut wire, lane, message, ahead);
            assert!(held < 1_500_000, "{held} bytes held, seed {seed}");
            wire.send(0, 1, lane, body(7, 10));
        }
        wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
        let flow = wire.nodes[0].engine.flow(NodeId(1)).unwrap();
        assert_eq!((flow.queued_bytes, flow.queued_messages), (0, 0));
        let got = &wire.nodes[1].inbox.messages;
        assert_eq!(got.len(), 2 * sent.len());
        for (pair, sent) in got.chunks(2).zip(&sent) {
            assert!(
                pair[0].2 == *sent && pair[1].2 == body(7, 10),
                "seed {seed}"
            );
        }
    }
}

/// A lent message that is acknowledged whole needs no copy, and the next one is taken.
#[test]
fn what_is_acknowledged_is_not_kept() {
    let mut wire = Wire::new(2);
    let (to, lane) = (NodeId(1), Lane::ordered(0));
    for turn in 0..3 {
        let message = body(turn, 300_000);
        wire.nodes[0].lent = message.clone();
        let engine = &mut wire.nodes[0].engine;
        let id = engine.submit_lent(to, lane, message.len(), true).unwrap();
        assert_eq!(
            engine.submit_lent(to, lane, 10, false),
            Err(SubmitError::QueueFull { peer: to }),
            "one at a time"
        );
        assert!(
            !engine.is_up(to) || engine.feed(to, &message).is_err(),
            "it is lent, not fed"
        );
        assert_eq!(engine.unsent_bytes(to, message.len()), Ok(Some(300_000)));
        wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
        let engine = &mut wire.nodes[0].engine;
        assert_eq!(engine.unsent_bytes(to, message.len()), Ok(None));
        assert!(engine.keep(to, &message) && engine.is_acknowledged(to, id));
        assert_eq!(engine.flow(to).unwrap().queued_bytes, 0);
        assert_eq!(wire.nodes[1].inbox.messages[turn].2, message);
    }
}

/// What is taken back before the peer is up waits like any other message, and leaves in whatever fragments are agreed on.
#[test]
fn kept_before_hello() {
    let mut wire = Wire::new(2);
    let message = body(1, 100_000);
    let engine = &mut wire.nodes[0].engine;
    let to = NodeId(1);
    engine
        .submit_lent(to, Lane::ordered(0), message.len(), false)
        .unwrap();
    assert!(engine.keep(to, &message));
    assert_eq!(engine.flow(to).unwrap().queued_bytes, message.len());
    wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
    assert_eq!(wire.nodes[1].inbox.messages[0].2, message);
}

/// Whoever lends a message learns that its peer died, or takes no message of that length; nothing is left of it.
#[test]
fn lending_ends_with_the_message() {
    let mut wire = Wire::new(2);
    let (to, lane) = (NodeId(1), Lane::ordered(0));
    let limit = config(1, 1).message_limit_bytes;
    let message = body(1, limit + 1);
    let length = message.len();
    let engine = &mut wire.nodes[0].engine;
    engine.submit_lent(to, lane, length, false).unwrap();
    wire.nodes[0].lent = message.clone();
    wire.run(MINUTE, |wire| wire.nodes[0].engine.is_up(to));
    let engine = &mut wire.nodes[0].engine;
    assert!(matches!(
        engine.unsent_bytes(to, length),
        Err(SubmitError::TooLarge { size, .. }) if size == length
    ));
    assert!(engine.keep(to, &message));
    let message = body(2, 4_000_000);
    engine.submit_lent(to, lane, message.len(), false).unwrap();
    wire.nodes[0].lent = message.clone();
    wire.run(Duration::from_micros(40), |_| false);
    wire.nodes[1].cut_off = true;
    wire.run(Duration::from_secs(5), |wire| {
        !wire.nodes[0].engine.is_up(to)
    });
    let engine = &mut wire.nodes[0].engine;
    assert_eq!(
        engine.unsent_bytes(to, message.len()),
        Err(SubmitError::PeerDead { peer: to })
    );
    assert!(engine.keep(to, &message));
    assert_eq!(engine.accounts().queued_bytes, 0);
}

/// A lent message is withdrawn without a trace before anything of it has left, and not afterwards.
#[test]
fn withdrawn_messages_leave_nothing() {
    let mut wire = Wire::new(2);
    let (to, lane) = (NodeId(1), Lane::ordered(0));
    let engine = &mut wire.nodes[0].engine;
    assert!(!engine.withdraw(to), "nothing is lent");
    engine.submit_lent(to, lane, 50_000, true).unwrap();
    assert!(engine.withdraw(to));
    assert_eq!(engine.flow(to).unwrap().queued_messages, 0);
    assert!(!engine.withdraw(to), "once");
    wire.send(0, 1, lane, body(7, 10));
    let message = body(8, 300_000);
    wire.nodes[0].lent = message.clone();
    let engine = &mut wire.nodes[0].engine;
    engine.submit_lent(to, lane, message.len(), false).unwrap();
    wire.run(MINUTE, |wire| {
        wire.nodes[0].engine.unsent_bytes(to, 300_000) != Ok(Some(300_000))
    });
    let engine = &mut wire.nodes[0].engine;
    assert!(!engine.withdraw(to), "some of it has left");
    assert!(engine.keep(to, &message));
    wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
    let got = &wire.nodes[1].inbox.messages;
    assert!(got.len() == 2 && got[0].2 == body(7, 10) && got[1].2 == message);
    // What was withdrawn leaves no place marked as lent.
    let fed = body(9, 70_000);
    stream(&mut wire, lane, &fed);
    wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
    assert!(wire.nodes[1].inbox.messages[2].2 == fed);
}
