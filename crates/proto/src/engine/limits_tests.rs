//! Bounds on what is kept and waited for: a full queue, and a peer that has left.

use super::tests::{MINUTE, Mailbox, Wire, config, next_frame};
use super::*;
use crate::message::Payload;
use alloc::vec;
use tsumuji_wire::{Channel, DeliveryClass, Priority};

/// A peer that has a session with us and closes before we have one with it is dead, and gets no more hellos: its close names the session of both
/// incarnations, so it is not forged.
#[test]
fn who_leaves_before_it_is_met_is_not_asked_for() {
    let now = Instant::from_nanos(0);
    let [mut a, mut b] = [(0, 1), (1, 0)].map(|(me, peer)| {
        let mut engine = Engine::new(config(me, 100 + u32::from(me)));
        engine.add_peer(now, NodeId(peer));
        engine
    });
    let written = |engine: &mut Engine| {
        let mut frames = Vec::new();
        while let Some(to) = engine.next_destination(now) {
            frames.push(next_frame(engine, now, to));
        }
        frames
    };
    let mut mailbox = Mailbox::default();
    b.submit(
        NodeId(0),
        Channel::ordered(0),
        Payload::Copied(b"x", &[]),
        false,
    )
    .unwrap();
    for hello in written(&mut a) {
        b.handle_frame(now, &hello, &mut mailbox);
    }
    // The hello of b is lost.
    for welcome in written(&mut b).iter().filter(|frame| frame[0] & 15 == 4) {
        a.handle_frame(now, welcome, &mut mailbox);
    }
    assert!(matches!(a.poll_event(), Some(Event::PeerUp { .. })));
    a.close(now);
    let [close] = &written(&mut a)[..] else {
        panic!("one frame is a's last word")
    };
    let mut forged = close.clone();
    forged[8] ^= 1;
    b.handle_frame(now, &forged, &mut mailbox);
    assert_eq!(b.poll_event(), None, "of another session");
    b.handle_frame(now, close, &mut mailbox);
    let peer = NodeId(0);
    let lost = Event::MessagesLost { peer, messages: 1 };
    assert_eq!(b.poll_event(), Some(lost));
    let dead = Event::PeerDead {
        peer,
        failed_messages: 1,
    };
    assert_eq!(b.poll_event(), Some(dead));
    assert!(written(&mut b).is_empty());
    let later = now + Duration::from_secs(10);
    b.handle_timeout(later);
    assert!(!b.is_up(NodeId(0)) && b.next_destination(later).is_none());
    b.handle_frame(now, close, &mut mailbox);
    assert_eq!(b.poll_event(), None, "once");
}

/// Empty messages are not free: their slots fill the queue, too, and the program is told when there is room again.
#[test]
fn empty_messages_fill_the_queue() {
    let mut wire = Wire::new(2);
    let engine = &mut wire.nodes[0].engine;
    let mut empty = || {
        engine.submit(
            NodeId(1),
            Channel::ordered(0),
            Payload::Copied(&[], &[]),
            false,
        )
    };
    let most = (0..1 << 20).take_while(|_| empty().is_ok()).count();
    // Not so large that their slots alone are several times the limit.
    let limit_bytes = config(0, 1).send_queue_bytes;
    assert!(
        (limit_bytes / 256..=limit_bytes / 64).contains(&most),
        "{most}"
    );
    assert!(!engine.has_room(NodeId(1), 0));
    wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
    wire.pump();
    let writable = Event::Writable { peer: NodeId(1) };
    assert!(wire.nodes[0].events.contains(&writable));
    assert!(wire.nodes[0].engine.has_room(NodeId(1), limit_bytes));
}

/// Memory is full of messages of an ordered channel, and the one they wait for was lost: it goes before a more urgent one, for which only its arrival
/// makes room.
#[test]
fn what_memory_waits_for_goes_first() {
    let mut wire = Wire::new(2);
    wire.run(MINUTE, |_| false);
    let bulk = Channel::new(DeliveryClass::Ordered, Priority::NORMAL, 0);
    let urgent = Channel::new(DeliveryClass::Unordered, Priority::URGENT, 1);
    wire.loses = Some(|frame| frame.ends_with(b"the first of its channel"));
    wire.send(0, 1, bulk, b"the first of its channel".to_vec());
    for _ in 0..3 {
        wire.send(0, 1, bulk, vec![7; 400_000]);
    }
    let is_full = |wire: &Wire| wire.nodes[1].engine.shared.memory.free_bytes() == 0;
    wire.run(Duration::from_millis(700), |wire| {
        is_full(wire) && wire.queued(0, 1) == 1
    });
    assert!(is_full(&wire));
    wire.send(0, 1, urgent, b"urgent".to_vec());
    wire.run(Duration::from_millis(50), |_| false);
    wire.loses = None;
    wire.run(Duration::from_secs(5), |wire| wire.queued(0, 1) == 0);
    assert_eq!(wire.nodes[1].mailbox.messages.len(), 5);
}
