//! Long messages that leave in batches and are placed by the link.

use super::tests::{MINUTE, Wire, body};
use super::*;
use crate::counters::Drop;
use crate::event::Destination;
use crate::message::{Borrowed, Payload};
use tsumuji_wire::Channel;

fn scattering(count: u16) -> Wire {
    let mut wire = Wire::new(count);
    wire.scatters = true;
    wire
}

/// Messages of every length arrive as they were sent, and most of their fragments are placed.
#[test]
fn long_messages_land() {
    let mut wire = scattering(2);
    let sizes = [
        0, 1, 1432, 1433, 2864, 7160, 7161, 100_000, 65_536, 1_000_000, 10,
    ];
    for (seed, &size) in sizes.iter().enumerate() {
        wire.send(0, 1, Channel::ordered(0), body(seed, size));
    }
    wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
    let got = &wire.nodes[1].mailbox.messages;
    assert_eq!(got.len(), sizes.len());
    for (seed, (message, &size)) in got.iter().zip(&sizes).enumerate() {
        assert!(message.2 == body(seed, size), "message of {size}");
    }
    let fragments: usize = sizes.iter().map(|size| size.div_ceil(1432).max(1)).sum();
    assert!(
        wire.placed as usize * 10 > fragments * 8,
        "{} of {fragments} placed",
        wire.placed
    );
    assert_eq!(wire.nodes[0].engine.counters().retransmitted_frames, 0);
}

/// Wrong guesses cost a copy only: lost, repeated or overtaken frames, and messages that alternate between channels and peers.
#[test]
fn wrong_guesses_do_no_harm() {
    for seed in 0..12 {
        let mut wire = scattering(3);
        (wire.random, wire.jitter_us) = (seed, 20 * (seed % 3));
        (wire.loss_percent, wire.duplicate_percent) = (5 * (seed % 4), 5 * (seed % 5));
        let channels = [
            Channel::ordered(0),
            Channel::ordered(1),
            Channel::unordered(2),
        ];
        let size = |i: usize| [20_000, 300, 70_000, 1500][i % 4] + i;
        for i in 0..24 {
            for from in [0, 2] {
                wire.send(from, 1, channels[i % 3], body(i + from, size(i)));
            }
            wire.send(1, 0, channels[i % 3], body(i, size(i) / 2));
        }
        wire.run(MINUTE, |wire| {
            wire.queued(0, 1) + wire.queued(2, 1) + wire.queued(1, 0) == 0
        });
        for (from, to) in [(0, 1), (2, 1), (1, 0)] {
            for (index, channel) in channels.into_iter().enumerate() {
                let mut expected: Vec<_> = (0..24)
                    .filter(|i| i % 3 == index)
                    .map(|i| match from {
                        1 => body(i, size(i) / 2),
                        _ => body(i + from, size(i)),
                    })
                    .collect();
                let mut got: Vec<_> = wire.nodes[to]
                    .mailbox
                    .messages
                    .iter()
                    .filter(|message| (usize::from(message.0.0), message.1) == (from, channel))
                    .map(|message| message.2.clone())
                    .collect();
                if index == 2 {
                    got.sort();
                    expected.sort();
                }
                assert!(got == expected, "seed {seed}, {from} to {to}, {channel:?}");
            }
        }
        for node in &wire.nodes {
            let accounts = node.engine.accounts();
            assert_eq!((accounts.memory_bytes, accounts.queued_bytes), (0, 0));
        }
    }
}

/// A header with any wrong field is not expected, and a header with a wrong number or message is dropped.
#[test]
fn forged_headers_are_not_expected() {
    let mut wire = scattering(2);
    wire.run(MINUTE, |wire| wire.nodes[0].engine.is_up(NodeId(1)));
    wire.send(0, 1, Channel::ordered(0), body(0, 20_000));
    let now = wire.now;
    let to = wire.nodes[0].engine.next_destination(now).unwrap();
    let engine = &mut wire.nodes[0].engine;
    assert_eq!(engine.plan(now, to, &Borrowed::NONE, (6, 65_000)), 6);
    let frames: Vec<_> = engine
        .batch(&Borrowed::NONE)
        .map(|(head, body)| (head.to_vec(), body.to_vec()))
        .collect();
    let node = &mut wire.nodes[1];
    assert!(node.engine.placement().is_none());
    assert!(!node.engine.is_expected(0, &frames[0].0, 1429));
    let first = [&frames[0].0[..], &frames[0].1].concat();
    node.engine.handle_frame(now, &first, &mut node.mailbox);
    let placement = node.engine.placement().unwrap();
    // 14 fragments, none longer than 1432 bytes.
    assert_eq!((placement.head_bytes, placement.body_bytes), (40, 1429));
    assert_eq!(placement.place.len(), 20_000 - 1429);
    let (head, bytes) = (&frames[1].0, frames[1].1.len());
    assert!(node.engine.is_expected(0, head, bytes));
    assert!(!node.engine.is_expected(1, head, bytes));
    assert!(!node.engine.is_expected(usize::MAX, head, bytes));
    assert!(!node.engine.is_expected(0, head, bytes - 1));
    assert!(!node.engine.is_expected(0, &head[..39], bytes));
    assert!(node.engine.is_expected(1, &frames[2].0, bytes));
    // Flags, number, ack, credit, floor and delay are checked when the frame is taken.
    let checked_later = |byte: usize| matches!(byte, 1 | 12..24 | 36 | 37 | 39);
    for byte in (0..40).filter(|&byte| !checked_later(byte)) {
        let mut forged = head.clone();
        forged[byte] ^= 0x10;
        assert!(!node.engine.is_expected(0, &forged, bytes), "byte {byte}");
    }
    // A repeated number: dropped as a duplicate, and the fragment is still missing.
    let mut repeated = head.clone();
    repeated[12..16].copy_from_slice(&frames[0].0[12..16]);
    node.engine
        .handle_placed(now, &repeated, bytes, &mut node.mailbox);
    assert_eq!(node.engine.counters().drops.get(Drop::Duplicate), 1);
    assert!(node.engine.is_expected(0, head, bytes), "as before");
    // A fragment of another message is in no place.
    let mut elsewhere = head.clone();
    elsewhere[28..32].copy_from_slice(&0_u32.to_le_bytes());
    node.engine
        .handle_placed(now, &elsewhere, bytes, &mut node.mailbox);
    let drops = node.engine.counters().drops;
    assert_eq!(drops.get(Drop::Malformed), 1);
    assert_eq!(drops.total(), 2);
}

/// Heads and payloads of a message of `bytes` bytes from node 0 to node 1, which have a session.
fn fragments_of(wire: &mut Wire, bytes: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    wire.send(0, 1, Channel::ordered(0), body(0, bytes));
    let (now, engine) = (wire.now, &mut wire.nodes[0].engine);
    let mut fragments = Vec::new();
    while let Some(to) = engine.next_destination(now) {
        assert!(engine.plan(now, to, &Borrowed::NONE, (44, 65_000)) > 0);
        let batch = engine.batch(&Borrowed::NONE);
        fragments.extend(batch.map(|(head, body)| (head.to_vec(), body.to_vec())));
    }
    fragments
}

/// One refused head does not affect the others: the fragments behind it are in their places, and are taken.
#[test]
fn a_refused_head_is_refused_alone() {
    let mut wire = scattering(2);
    wire.run(MINUTE, |wire| wire.nodes[0].engine.is_up(NodeId(1)));
    let fragments = fragments_of(&mut wire, 1432 * 6);
    let (now, node) = (wire.now, &mut wire.nodes[1]);
    let first = [&fragments[0].0[..], &fragments[0].1].concat();
    node.engine.handle_frame(now, &first, &mut node.mailbox);
    let placement = node.engine.placement().unwrap();
    for (place, (_, payload)) in placement.place.chunks_mut(1432).zip(&fragments[1..]) {
        place.copy_from_slice(payload);
    }
    // The second fragment arrives with the first one's number.
    let mut heads: Vec<_> = fragments[1..]
        .iter()
        .map(|(head, _)| head.clone())
        .collect();
    let number = heads[0][12..16].to_vec();
    heads[0][12..16].copy_from_slice(&fragments[0].0[12..16]);
    for (index, head) in heads.iter().enumerate() {
        assert!(node.engine.is_expected(index, head, 1432));
    }
    for head in &heads {
        node.engine
            .handle_placed(now, head, 1432, &mut node.mailbox);
    }
    let drops = node.engine.counters().drops;
    assert_eq!((drops.get(Drop::Duplicate), drops.total()), (1, 1));
    // It arrives again with its own number, and completes the message.
    heads[0][12..16].copy_from_slice(&number);
    let again = [&heads[0][..], &fragments[1].1].concat();
    node.engine.handle_frame(now, &again, &mut node.mailbox);
    assert!(node.mailbox.messages[0].2 == body(0, 1432 * 6));
    // A further fragment, placed or not, is a duplicate.
    node.engine
        .handle_placed(now, &heads[1], 1432, &mut node.mailbox);
    assert_eq!(node.mailbox.messages.len(), 1);
}

/// R-14 holds for placed fragments as for copied ones: none is taken 4096 or more beyond the first missing one.
#[test]
fn placed_fragments_stay_within_the_window() {
    let mut wire = scattering(2);
    wire.run(MINUTE, |wire| wire.nodes[0].engine.is_up(NodeId(1)));
    let one = fragments_of(&mut wire, 1432 * 2).remove(0);
    let length = 1432 * 5000_u32;
    // As from an attacker in the session, or a sender that got answers for all numbers but the second: heads of a message of 5000 fragments.
    let head = |fragment: u32| {
        let mut head = one.0.clone();
        let number = u32::from_le_bytes(head[12..16].try_into().unwrap());
        head[12..16].copy_from_slice(&number.wrapping_add(fragment).to_le_bytes());
        head[28..32].copy_from_slice(&(fragment * 1432).to_le_bytes());
        head[32..36].copy_from_slice(&length.to_le_bytes());
        head[36..38].copy_from_slice(&0_u16.to_le_bytes()); // no earlier number is awaited
        head
    };
    let (now, node) = (wire.now, &mut wire.nodes[1]);
    for fragment in (0..4096).filter(|&fragment| fragment != 1) {
        let frame = [&head(fragment)[..], &one.1].concat();
        node.engine.handle_frame(now, &frame, &mut node.mailbox);
    }
    assert_eq!(node.engine.counters().drops.total(), 0);
    let placement = node.engine.placement().unwrap();
    assert!(placement.place.len() > 1432 * 3);
    // Fragment 1 is missing, so 4096 is the last that may be taken.
    for index in 0..3 {
        let head = head(4096 + index as u32);
        assert!(node.engine.is_expected(index, &head, 1432));
        node.engine
            .handle_placed(now, &head, 1432, &mut node.mailbox);
    }
    let copied = [&head(4099)[..], &one.1].concat();
    node.engine.handle_frame(now, &copied, &mut node.mailbox);
    let drops = node.engine.counters().drops;
    assert_eq!((drops.get(Drop::Window), drops.total()), (3, 3));
}

/// A batch ends when its limits are reached, or when no other frame may leave; one frame always fits.
#[test]
fn batches_end() {
    let mut wire = scattering(2);
    wire.run(MINUTE, |wire| wire.nodes[0].engine.is_up(NodeId(1)));
    let (now, to) = (wire.now, Destination::Peer(NodeId(1)));
    let engine = &mut wire.nodes[0].engine;
    let submit = |engine: &mut Engine, size| {
        let payload = Payload::Shared(body(0, size).into());
        let channel = Channel::ordered(0);
        engine.submit(NodeId(1), channel, payload, false).unwrap();
    };
    // Number of frames of the next batch, and bytes of their payloads.
    let plan = |engine: &mut Engine, most: (usize, usize)| {
        assert_eq!(engine.next_destination(now), Some(to));
        let planned = engine.plan(now, to, &Borrowed::NONE, most);
        let bodies = engine.batch(&Borrowed::NONE).map(|(_, body)| body.len());
        (planned, bodies.sum::<usize>())
    };
    submit(engine, 1000);
    assert_eq!(plan(engine, (10, 65_000)), (1, 1000));
    assert_eq!(engine.next_destination(now), None);
    submit(engine, 5000);
    submit(engine, 5000);
    // Each has four fragments of 1250 bytes.
    assert_eq!(plan(engine, (10, 100)), (1, 1250), "one fits");
    assert_eq!(plan(engine, (10, 1290 * 3 - 1)), (2, 2 * 1250));
    assert_eq!(plan(engine, (4, 65_000)), (4, 4 * 1250), "of both messages");
    submit(engine, 1432 * 4);
    assert_eq!(plan(engine, (10, 65_000)), (5, 1250 + 4 * 1432));
    let flow = engine.flow(NodeId(1)).unwrap();
    assert_eq!(flow.in_flight_frames, 13);
    let left = flow.credit_frames;
    submit(engine, 1432 * 200);
    let mut sent = 0;
    while engine.next_destination(now).is_some() {
        sent += plan(engine, (44, 65_000)).0;
    }
    assert_eq!(sent, left, "no more than was granted");
    let unknown = Destination::Peer(NodeId(77));
    assert_eq!(engine.plan(now, unknown, &Borrowed::NONE, (9, 65_000)), 0);
}
