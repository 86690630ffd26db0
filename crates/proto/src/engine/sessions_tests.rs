//! Death and restart of one of two engines.

use super::tests::{MINUTE, Wire, body};
use super::*;
use crate::congestion::Congestion;
use crate::event::Destination;
use crate::message::{Payload, SubmitError};
use crate::time::Duration;
use tsumuji_wire::{Channel, Datagram};

/// After too long a silence the peer is dead: sends fail, and both sides reconnect when the wire is repaired.
#[test]
fn silence_is_death_and_healing_is_a_new_session() {
    let mut wire = Wire::new(2);
    wire.run(Duration::from_millis(50), |_| false);
    wire.nodes[1].cut_off = true;
    wire.send(0, 1, Channel::ordered(0), body(1, 10));
    wire.run(Duration::from_millis(1100), |_| false);
    let dead = Event::PeerDead {
        peer: NodeId(1),
        failed_messages: 1,
    };
    assert!(
        wire.nodes[0].events.contains(&dead),
        "{:?}",
        wire.nodes[0].events
    );
    let refused = wire.nodes[0].engine.submit(
        NodeId(1),
        Channel::ordered(0),
        Payload::Copied(&[1], &[]),
        false,
    );
    assert_eq!(refused, Err(SubmitError::PeerDead { peer: NodeId(1) }));
    wire.nodes[1].cut_off = false;
    let now = wire.now;
    wire.nodes[0].engine.reconnect_peer(now, NodeId(1));
    wire.run(Duration::from_secs(1), |_| false);
    wire.send(0, 1, Channel::ordered(0), body(2, 20));
    wire.send(1, 0, Channel::ordered(0), body(3, 30));
    wire.run(MINUTE, |wire| wire.queued(0, 1) + wire.queued(1, 0) == 0);
    assert_eq!(
        wire.nodes[1].mailbox.messages.last().unwrap().2,
        body(2, 20)
    );
    assert_eq!(
        wire.nodes[0].mailbox.messages.last().unwrap().2,
        body(3, 30)
    );
}

/// A restarted peer is another incarnation: the old one's death is reported first, and nothing of the old session reaches the new one.
#[test]
fn restart_is_a_new_session() {
    let mut wire = Wire::new(2);
    wire.send(0, 1, Channel::ordered(0), body(1, 7_000_000));
    wire.run(Duration::from_micros(60), |_| false);
    wire.nodes[0].events.clear();
    wire.nodes[1] = Wire::node(1, 999, 2, wire.now, Congestion::Credit);
    wire.run(Duration::from_millis(100), |_| false);
    let lost = Event::MessagesLost {
        peer: NodeId(1),
        messages: 1,
    };
    let dead = Event::PeerDead {
        peer: NodeId(1),
        failed_messages: 1,
    };
    assert_eq!(
        wire.nodes[0].events,
        [
            lost,
            dead,
            Event::PeerUp {
                peer: NodeId(1),
                incarnation: 999
            }
        ]
    );
    assert!(wire.nodes[1].mailbox.messages.is_empty());
    wire.send(0, 1, Channel::ordered(0), body(2, 2000));
    wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
    assert_eq!(wire.nodes[1].mailbox.messages.len(), 1);
    assert_eq!(wire.nodes[1].mailbox.messages[0].2, body(2, 2000));
    assert_eq!(wire.nodes[1].mailbox.session, 0, "the first that it knows");
}

/// Every delivery names the session of its sender, even before the program was told that the one before has ended.
#[test]
fn deliveries_name_the_session() {
    let mut wire = Wire::new(2);
    for session in 0..3 {
        if session > 0 {
            wire.nodes[1] = Wire::node(1, 200 + session as u32, 2, wire.now, Congestion::Credit);
        }
        // In one frame, in several, and behind one that is late.
        for bytes in [20, 50_000, 20] {
            wire.send(1, 0, Channel::ordered(0), body(1, bytes));
        }
        wire.run(MINUTE, |wire| wire.nodes[0].mailbox.messages.len() == 3);
        assert_eq!(wire.nodes[0].mailbox.session, session);
        wire.nodes[0].mailbox.messages.clear();
        let payload = &[session as u8; 8];
        let datagram = Datagram {
            lap: 3,
            payload,
            ..Datagram::EMPTY
        };
        let engine = &mut wire.nodes[1].engine;
        engine
            .submit_datagram(Destination::Broadcast, datagram, None)
            .unwrap();
        wire.run(MINUTE, |wire| !wire.nodes[0].mailbox.datagrams.is_empty());
        let came = wire.nodes[0].mailbox.datagrams.pop().unwrap();
        assert_eq!(came, (3, session, payload.to_vec()));
    }
}
