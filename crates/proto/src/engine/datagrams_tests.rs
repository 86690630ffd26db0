//! Datagrams of one frame and of several: broadcast, before a session, to dead peers, and on channels that carry no messages.

use super::tests::{MINUTE, Wire};
use super::*;
use crate::event::Destination;
use crate::message::{Payload, SubmitError};
use crate::time::Duration;
use alloc::vec;
use tsumuji_wire::{Channel, Datagram};

/// Datagrams reach every peer that knows this incarnation, and change no other peer's counters.
#[test]
fn datagrams_are_broadcast() {
    let mut wire = Wire::new(3);
    wire.run(Duration::from_millis(5), |_| false);
    wire.nodes[0]
        .engine
        .submit_datagram(
            Destination::Broadcast,
            Datagram {
                channel_id: 1,
                epoch: 2,
                lap: 3,
                key: 4,
                payload: &[5; 8],
                ..Datagram::EMPTY
            },
            None,
        )
        .unwrap();
    wire.run(Duration::from_millis(1), |_| false);
    assert_eq!(wire.nodes[1].mailbox.datagrams, [(3, 0, vec![5; 8])]);
    assert_eq!(wire.nodes[2].mailbox.datagrams, [(3, 0, vec![5; 8])]);
}

/// A datagram to a peer that was not met yet waits for it, and a newer one replaces it meanwhile; one to a dead peer does not wait.
#[test]
fn datagrams_wait_for_hello() {
    let mut wire = Wire::new(2);
    let datagram = |lap| Datagram {
        lap,
        payload: &[5; 8],
        ..Datagram::EMPTY
    };
    let to = Destination::Peer(NodeId(1));
    for lap in 1..=3 {
        let engine = &mut wire.nodes[0].engine;
        assert_eq!(engine.submit_datagram(to, datagram(lap), None), Ok(0));
    }
    wire.run(MINUTE, |wire| !wire.nodes[1].mailbox.datagrams.is_empty());
    assert_eq!(wire.nodes[1].mailbox.datagrams, [(3, 0, vec![5; 8])]);
    let flow = wire.nodes[0].engine.flow(NodeId(1)).unwrap();
    assert_eq!(flow.superseded_datagrams, 2);
    let now = wire.now;
    let engine = &mut wire.nodes[0].engine;
    engine.abort(now, NodeId(1));
    assert_eq!(engine.submit_datagram(to, datagram(4), None), Ok(0));
    assert!(!engine.datagrams.is_empty());
    engine.next_destination(now);
    assert!(engine.datagrams.is_empty(), "nobody waits for the dead");
}

/// A datagram of several frames reaches every peer, too, with its stamps; its channels carry no messages, and an unknown peer is reported.
#[test]
fn long_datagrams_are_broadcast() {
    let mut wire = Wire::new(3);
    wire.run(Duration::from_millis(5), |_| false);
    let engine = &mut wire.nodes[0].engine;
    let datagram = Datagram {
        lap: 3,
        payload: &[5; 100_000],
        ..Datagram::EMPTY
    };
    let missed = engine.submit_datagram(Destination::Broadcast, datagram, None);
    assert_eq!(missed, Ok(0));
    let channel = Channel::datagram(0);
    let refused = engine.submit(NodeId(1), channel, Payload::Copied(b"x", &[]), false);
    assert_eq!(refused, Err(SubmitError::DatagramChannel));
    assert_eq!(
        engine.submit_borrowed(NodeId(1), channel, 9, false),
        refused
    );
    let nobody = NodeId(9);
    assert_eq!(
        engine.submit_datagram(Destination::Peer(nobody), datagram, None),
        Err(SubmitError::UnknownPeer { peer: nobody })
    );
    wire.run(MINUTE, |wire| {
        (wire.nodes[1..].iter()).all(|node| !node.mailbox.datagrams.is_empty())
    });
    for node in &wire.nodes[1..] {
        assert_eq!(node.mailbox.datagrams, [(3, 0, vec![5; 100_000])]);
        assert_eq!(node.engine.accounts().memory_bytes, 0);
    }
}
