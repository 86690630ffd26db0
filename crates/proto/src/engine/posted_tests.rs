//! Messages that are assembled in posted buffers.

use super::tests::{Wire, body};
use super::*;
use crate::congestion::Congestion;
use crate::time::Duration;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};
use tsumuji_wire::Channel;

const CHANNEL: Channel = Channel::ordered(3);
const SECOND: Duration = Duration::from_secs(1);
const BYTES: usize = 50_000;

/// A buffer that counts how often it is written to: a message that is assembled in it is written in pieces.
struct Buffer(Vec<u8>, Arc<AtomicUsize>);

impl crate::ReceiveBuffer for Buffer {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.1.fetch_add(1, Ordering::Relaxed);
        &mut self.0
    }
}

fn post(wire: &mut Wire, number: u64, bytes: usize) -> Arc<AtomicUsize> {
    let writes = Arc::default();
    let buffer = Buffer(alloc::vec![0; bytes], Arc::clone(&writes));
    let posts = &mut wire.nodes[1].mailbox.posts;
    posts.insert(0, (number, Box::new(buffer))); // taken from the other end
    writes
}

fn delivered(wire: &Wire) -> usize {
    wire.nodes[1].mailbox.messages.len()
}

/// Long messages arrive in the buffers posted for them, in order, whatever the wire loses, and however the link delivers frames; short ones and those
/// that are longer than their buffer do not.
#[test]
fn long_messages_land_there() {
    for congestion in [Congestion::Credit, Congestion::SUCI] {
        for (scatters, loss) in [(false, 0), (true, 0), (false, 10), (true, 10)] {
            let mut wire = Wire::under(2, congestion);
            (wire.scatters, wire.loss_percent) = (scatters, loss);
            let writes = [post(&mut wire, 1, BYTES), post(&mut wire, 2, 2 * BYTES)];
            wire.send(0, 1, CHANNEL, body(0, 8));
            wire.run(SECOND.times(10), |wire| delivered(wire) == 1);
            for index in 1..4 {
                wire.send(0, 1, CHANNEL, body(index, BYTES));
                wire.run(SECOND.times(10), |wire| delivered(wire) > index);
            }
            let mailbox = &wire.nodes[1].mailbox;
            let filled: Vec<_> = mailbox.filled.iter().map(|(number, _)| *number).collect();
            assert_eq!(filled, [1, 2], "{congestion:?} {scatters} {loss}");
            for (number, message) in &mailbox.filled {
                assert!(*message == body(*number as usize, BYTES), "{number}");
            }
            assert!(mailbox.messages[3].2 == body(3, BYTES));
            for count in writes {
                let count = count.load(Ordering::Relaxed);
                assert!(count > 3, "{count} pieces");
            }
            post(&mut wire, 3, BYTES - 1);
            wire.send(0, 1, CHANNEL, body(4, BYTES));
            wire.run(SECOND.times(10), |wire| delivered(wire) == 5);
            let mailbox = &wire.nodes[1].mailbox;
            assert_eq!((mailbox.filled.len(), mailbox.posts.len()), (2, 1));
        }
    }
}

/// However many messages are incomplete, and in whatever order their frames arrive, buffers are filled in the order of the channel.
#[test]
fn buffers_are_filled_in_order() {
    for seed in 0..20 {
        let mut wire = Wire::new(2);
        (wire.random, wire.loss_percent, wire.jitter_us) = (seed, 5, [0, 20][seed as usize % 2]);
        for number in 1..=20 {
            post(&mut wire, number, BYTES);
        }
        for index in 1..=20 {
            wire.send(0, 1, CHANNEL, body(index, BYTES));
        }
        wire.run(SECOND.times(100), |wire| delivered(wire) == 20);
        let mailbox = &wire.nodes[1].mailbox;
        let least = if wire.jitter_us == 0 { 15 } else { 1 };
        let filled = mailbox.filled.len();
        assert!(filled >= least, "{seed}: {filled}");
        let in_order = mailbox.filled.windows(2).all(|pair| pair[0].0 < pair[1].0);
        assert!(in_order, "{seed}");
        for (index, (_, _, message)) in (1..).zip(&mailbox.messages) {
            assert!(*message == body(index, BYTES), "{seed}: {index}");
        }
    }
}

/// A message whose buffer is recalled arrives elsewhere; a buffer returns if the session ends before its message is complete.
#[test]
fn buffers_come_back() {
    let mut wire = Wire::new(2);
    let begun = |wire: &Wire| wire.nodes[1].mailbox.posts.is_empty();
    post(&mut wire, 1, BYTES);
    wire.jitter_us = 100;
    wire.send(0, 1, CHANNEL, body(1, BYTES));
    wire.run(SECOND, begun);
    assert!(begun(&wire) && delivered(&wire) == 0, "under way");
    let engine = &mut wire.nodes[1].engine;
    assert!(engine.recall(NodeId(0), CHANNEL, 2).unwrap().is_none());
    assert!(engine.recall(NodeId(9), CHANNEL, 1).unwrap().is_none());
    assert!(
        engine
            .recall(NodeId(0), Channel::ordered(4), 1)
            .unwrap()
            .is_none()
    );
    let posted = engine.recall(NodeId(0), CHANNEL, 1).unwrap().unwrap();
    assert_eq!(posted.number, 1);
    assert!(engine.recall(NodeId(0), CHANNEL, 1).unwrap().is_none());
    wire.run(SECOND.times(10), |wire| delivered(wire) == 1);
    let mailbox = &wire.nodes[1].mailbox;
    assert!(mailbox.messages[0].2 == body(1, BYTES));
    assert!(mailbox.filled.is_empty());

    post(&mut wire, 2, 20 * BYTES);
    wire.send(0, 1, CHANNEL, body(2, 14 * BYTES));
    wire.run(SECOND, begun);
    wire.nodes[0].cut_off = true;
    assert!(wire.nodes[1].engine.poll_unused().is_none());
    wire.run(SECOND.times(10), |wire| {
        !wire.nodes[1].engine.is_up(NodeId(0))
    });
    let unused = wire.nodes[1].engine.poll_unused();
    assert_eq!(unused.map(|posted| posted.number), Some(2));
    assert!(wire.nodes[1].engine.poll_unused().is_none());
}
