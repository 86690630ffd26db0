//! The rules of Suci one by one: frames are forged to node 1, and its answers are read. The scenarios are in `sim`.

use super::hostile_tests::{self, assert_alive, drops, forge, session};
use super::tests::{Wire, body, next_frame};
use super::*;
use crate::congestion::Congestion;
use crate::counters::Drop;
use crate::numbers::{FIRST_NUMBER, NUMBER_WINDOW};
use crate::time::Duration;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use tsumuji_wire::{Ack, Channel, Data, Frame, Permit, flags};

/// Two nodes with a session. Node 1 is tested; the engine of node 0 is not used further.
fn pair() -> Wire {
    pair_under(Congestion::SUCI)
}

fn pair_under(congestion: Congestion) -> Wire {
    let mut wire = hostile_tests::pair_under(congestion);
    assert_eq!(said(&mut wire), Vec::<String>::new());
    wire
}

fn low(number: u64) -> u32 {
    (FIRST_NUMBER + number) as u32
}

/// A message of one frame, under this number.
fn data(wire: &mut Wire, number: u64) {
    let data = Data {
        number: low(number),
        ack: 0,
        credit: 0,
        message: low(number),
        ..hostile_tests::data(wire, &[7; 1000])
    };
    forge(wire, |slot| data.write(slot));
}

fn answer(wire: &mut Wire, bits: u8, number: u64, window: u64) {
    let ack = ack(wire, bits, number, window);
    forge(wire, |slot| ack.write(slot));
}

/// An acknowledgement of nothing that states so much free memory.
fn state_window(wire: &mut Wire, window_kib: u32) {
    let ack = Ack {
        window_kib,
        ..ack(wire, 0, 0, 256)
    };
    forge(wire, |slot| ack.write(slot));
}

fn ack(wire: &Wire, bits: u8, number: u64, window: u64) -> Ack<'static> {
    Ack {
        flags: bits,
        ack: low(number),
        credit: low(number + window),
        ..hostile_tests::ack(wire)
    }
}

fn permit(wire: &Wire, round: u32, number: u64, frames: u32) -> Permit {
    Permit {
        source: NodeId(0),
        destination: NodeId(1),
        session: session(wire),
        round,
        number: low(number),
        frames,
    }
}

/// The frames that node 1 sends now, as text.
fn said(wire: &mut Wire) -> Vec<String> {
    let (now, engine) = (wire.now, &mut wire.nodes[1].engine);
    let mut said = Vec::new();
    let plain = |low: u32| low.wrapping_sub(FIRST_NUMBER as u32);
    while let Some(to) = engine.next_destination(now) {
        said.push(match tsumuji_wire::parse(&next_frame(engine, now, to)) {
            Ok(Frame::Data(data)) => format!("data {}", plain(data.number)),
            Ok(Frame::Ack(ack)) => {
                assert!(ack.bitmap.is_empty(), "no selective acknowledgement");
                let kind = ["ack", "nack"][usize::from(ack.flags & flags::NACK != 0)];
                let window = ack.credit.wrapping_sub(ack.ack);
                let refused = ["", " refused"][usize::from(ack.flags & flags::REFUSED != 0)];
                format!("{kind} {} window {window}{refused}", plain(ack.ack))
            }
            Ok(Frame::Ask(ask)) => {
                format!("ask {}: {} +{}", ask.round, plain(ask.number), ask.frames)
            }
            Ok(Frame::Grant(grant)) => {
                let (number, frames) = (plain(grant.number), grant.frames);
                format!("grant {}: {number} +{frames}", grant.round)
            }
            other => format!("{other:?}"),
        });
    }
    said
}

/// Releases all messages that arrived.
fn release_all(wire: &mut Wire) {
    let node = &mut wire.nodes[1];
    for (from, _, body) in node.mailbox.messages.drain(..) {
        node.engine.release(from, body.len());
    }
}

/// R1: an expected frame is taken and acknowledged. R3: an old one is acknowledged again. R4: after a gap frames are dropped, and the missing one is
/// reported once; later ones are dropped silently until it arrives.
#[test]
fn receiver_takes_only_what_is_next() {
    let mut wire = pair();
    data(&mut wire, 0);
    release_all(&mut wire);
    assert_eq!(said(&mut wire), ["ack 1 window 256"]);
    data(&mut wire, 0);
    assert_eq!(said(&mut wire), ["ack 1 window 256"]);
    assert_eq!(drops(&wire, Drop::Duplicate), 1);
    data(&mut wire, 2);
    assert_eq!(said(&mut wire), ["nack 1 window 256"]);
    data(&mut wire, 3);
    data(&mut wire, 4);
    assert_eq!(said(&mut wire), Vec::<String>::new());
    assert_eq!(drops(&wire, Drop::Gap), 3);
    assert!(wire.nodes[1].mailbox.messages.is_empty());
    data(&mut wire, 1);
    data(&mut wire, 2);
    assert_eq!(wire.nodes[1].mailbox.messages.len(), 2);
    release_all(&mut wire);
    assert_eq!(said(&mut wire), ["ack 3 window 256"]);
    data(&mut wire, 3 + NUMBER_WINDOW);
    assert_eq!(drops(&wire, Drop::Window), 1);
    assert_eq!(wire.nodes[1].engine.counters().nacks, 1);
}

/// R2: a frame that memory refuses is dropped and reported, once; each acknowledgement states the remaining window. Permission to send it again is
/// refused while there is no room, and given when there is.
#[test]
fn overflow_is_refused_and_comes_again() {
    let mut wire = pair();
    let mut number = 0;
    while drops(&wire, Drop::Memory) == 0 {
        data(&mut wire, number);
        let said = said(&mut wire);
        // 1 MiB, 1064 bytes each; a frame holds 1432 bytes of content.
        let left = (1usize << 20)
            .saturating_sub((number as usize + 1) * 1064)
            .div_ceil(1432);
        if drops(&wire, Drop::Memory) == 0 && number < 985 {
            assert_eq!(
                said,
                [format!("ack {} window {}", number + 1, left.min(256))]
            );
        } else if drops(&wire, Drop::Memory) > 0 {
            assert_eq!(said, [format!("nack {number} window 0 refused")]);
        }
        number += 1;
    }
    number -= 1;
    data(&mut wire, number);
    assert_eq!(said(&mut wire), Vec::<String>::new(), "once");
    let ask = permit(&wire, 1, number, 3);
    forge(&mut wire, |slot| ask.write_ask(slot));
    assert_eq!(said(&mut wire), [format!("grant 1: {number} +0")]);
    release_all(&mut wire);
    assert_eq!(
        said(&mut wire),
        [
            format!("grant 1: {number} +3"),
            format!("ack {number} window 256")
        ]
    );
    data(&mut wire, number);
    assert_eq!(wire.nodes[1].mailbox.messages.len(), 1);
}

/// S1: a message stays queued until it is acknowledged. S2: an acknowledgement frees it. S3: after a NACK all frames from there on are sent again
/// under the same numbers; with K = 0, after permission was asked for and as far as it was given.
#[test]
fn sender_repeats_only_what_was_granted() {
    let mut wire = pair_under(Congestion::SUCI_ASKING);
    for message in 0..5 {
        wire.send(1, 0, Channel::ordered(0), body(message, 10));
    }
    let all: Vec<String> = (0..5).map(|number| format!("data {number}")).collect();
    assert_eq!(said(&mut wire), all);
    assert_eq!(wire.queued(1, 0), 5);
    answer(&mut wire, 0, 1, 256);
    assert_eq!(wire.queued(1, 0), 4);
    answer(&mut wire, flags::NACK, 2, 256);
    assert_eq!(wire.queued(1, 0), 3);
    assert_eq!(said(&mut wire), ["ask 1: 2 +3"]);
    wire.send(1, 0, Channel::ordered(0), body(5, 10));
    assert_eq!(said(&mut wire), Vec::<String>::new(), "new ones wait, too");
    for nothing in [
        permit(&wire, 0, 2, 3),
        permit(&wire, 2, 2, 3),
        permit(&wire, 1, 2, 0),
    ] {
        forge(&mut wire, |slot| nothing.write_grant(slot));
        assert_eq!(said(&mut wire), Vec::<String>::new(), "not granted");
    }
    let some = permit(&wire, 1, 2, 2);
    for _ in 0..3 {
        forge(&mut wire, |slot| some.write_grant(slot));
    }
    assert_eq!(said(&mut wire), ["data 2", "data 3"], "each once");
    let rest = permit(&wire, 1, 3, u32::MAX);
    forge(&mut wire, |slot| rest.write_grant(slot));
    assert_eq!(said(&mut wire), ["data 4", "data 5"], "and then new ones");
    answer(&mut wire, 0, 6, 256);
    assert_eq!(wire.queued(1, 0), 0);
    let counters = wire.nodes[1].engine.counters();
    assert_eq!((counters.retransmitted_frames, counters.asks), (3, 1));
}

/// S3 up to K: a NACK has a queue of K frames sent again at once, and new ones follow; a NACK that names the same number once more has the sender
/// ask. One frame more than K is congestion, which it asks about at once.
#[test]
fn short_queue_is_repeated_unasked() {
    let k = u64::from(Congestion::UNASKED_FRAMES);
    for congested in [false, true] {
        let mut wire = pair();
        let messages = k + u64::from(congested);
        let all: Vec<String> = (0..messages)
            .map(|number| format!("data {number}"))
            .collect();
        for message in 0..messages {
            wire.send(1, 0, Channel::ordered(0), body(message as usize, 10));
        }
        assert_eq!(said(&mut wire), all);
        wire.send(1, 0, Channel::ordered(0), body(messages as usize, 10));
        let new = format!("data {messages}");
        assert_eq!(said(&mut wire), [&*new]);
        answer(&mut wire, 0, 1, 256);
        answer(&mut wire, flags::NACK, 1, 256);
        if congested {
            assert_eq!(said(&mut wire), [format!("ask 1: 1 +{messages}")]);
            continue;
        }
        let mut again = all[1..].to_vec();
        again.push(new);
        assert_eq!(said(&mut wire), again);
        let late = permit(&wire, 0, 1, u32::MAX);
        forge(&mut wire, |slot| late.write_grant(slot));
        assert_eq!(said(&mut wire), Vec::<String>::new(), "once");
        answer(&mut wire, flags::NACK, 1, 256);
        assert_eq!(said(&mut wire), [format!("ask 2: 1 +{messages}")]);
        // The next number begins anew.
        answer(&mut wire, flags::NACK, 2, 256);
        assert_eq!(
            said(&mut wire),
            Vec::<String>::new(),
            "permission is awaited"
        );
        let grant = permit(&wire, 2, 2, u32::MAX);
        forge(&mut wire, |slot| grant.write_grant(slot));
        assert_eq!(said(&mut wire), again[1..]);
        answer(&mut wire, flags::NACK, 3, 256);
        assert_eq!(said(&mut wire), again[2..]);
        let counters = wire.nodes[1].engine.counters();
        let frames = 3 * messages - 3;
        assert_eq!((counters.retransmitted_frames, counters.asks), (frames, 1));
    }
}

/// What memory refused is asked for, however little it is: the receiver grants it when there is room.
#[test]
fn refused_frames_are_asked_for() {
    let mut wire = pair();
    wire.send(1, 0, Channel::ordered(0), body(1, 10));
    assert_eq!(said(&mut wire), ["data 0"]);
    answer(&mut wire, flags::NACK | flags::REFUSED, 0, 0);
    assert_eq!(said(&mut wire), ["ask 1: 0 +1"]);
}

/// No more than the window leaves; a sender with a closed window asks, because the acknowledgement that opened it may be lost.
#[test]
fn window_bounds_what_leaves() {
    let mut wire = pair();
    answer(&mut wire, 0, 0, 0);
    for message in 0..300 {
        wire.send(1, 0, Channel::ordered(0), body(message, 10));
    }
    assert_eq!(
        said(&mut wire).len(),
        256,
        "hello said so, and a window may not shrink"
    );
    answer(&mut wire, 0, 256, 0);
    assert_eq!(said(&mut wire), Vec::<String>::new());
    wire.now += Duration::from_millis(5);
    let now = wire.now;
    wire.nodes[1].engine.handle_timeout(now);
    assert_eq!(said(&mut wire), ["ask 0: 256 +0"]);
    answer(&mut wire, 0, 256, 2);
    assert_eq!(said(&mut wire), ["data 256", "data 257"]);
}

/// A lost ask or grant stops no sender: the ask is repeated at growing intervals, and nothing else is sent meanwhile.
#[test]
fn lost_permission_is_asked_for_again() {
    let mut wire = pair();
    wire.send(1, 0, Channel::ordered(0), body(1, 10));
    assert_eq!(said(&mut wire), ["data 0"]);
    let mut asked_at = vec![];
    let start = wire.now;
    while wire.now.since(start) < Duration::from_millis(800) {
        let now = wire.nodes[1].engine.poll_timeout().expect("a deadline");
        wire.now = now.max(wire.now);
        let now = wire.now;
        wire.nodes[1].engine.handle_timeout(now);
        let mut asks = said(&mut wire);
        asks.retain(|said| !said.starts_with("ack"));
        if !asks.is_empty() {
            assert_eq!(asks, ["ask 1: 0 +1"]);
            asked_at.push(now.since(start).as_nanos());
        }
    }
    assert!((8..=12).contains(&asked_at.len()), "{asked_at:?}");
    let waits: Vec<u64> = asked_at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits.is_sorted(), "{waits:?}");
    let grant = permit(&wire, 1, 0, 1);
    forge(&mut wire, |slot| grant.write_grant(slot));
    assert_eq!(said(&mut wire), ["data 0"]);
}

/// The program brings forward what silence would do: `suci` asks, `credit` sends the oldest frame again. A round trip must have passed since the
/// last frame left, and something must be unanswered.
#[test]
fn repair_is_brought_forward() {
    for (congestion, sent) in [
        (Congestion::SUCI, "ask 1: 0 +2"),
        (Congestion::Credit, "data 2"),
    ] {
        let mut wire = pair_under(congestion);
        let repair = |wire: &mut Wire, after: Duration| {
            wire.now += after;
            wire.nodes[1].engine.repair_now(wire.now, NodeId(0))
        };
        let (soon, late) = (Duration::from_micros(200), Duration::from_millis(1));
        assert!(!repair(&mut wire, late), "nothing is unanswered");
        for message in 0..2 {
            wire.send(1, 0, Channel::ordered(0), body(message, 10));
            assert_eq!(said(&mut wire), [format!("data {message}")]);
        }
        assert!(!repair(&mut wire, soon), "too early");
        assert!(repair(&mut wire, late));
        assert!(!repair(&mut wire, soon), "twice");
        assert_eq!(said(&mut wire), [sent]);
        assert!(repair(&mut wire, late), "no longer silence is waited for");
        assert_eq!(said(&mut wire).len(), 1);
        assert_eq!(wire.nodes[1].engine.counters().probes, 2);
    }
}

/// An ack that asks is answered by an ack, which states the window, also where data could carry the acknowledgement. A message fits the window
/// if what is queued leaves room for it, or if nothing is queued.
#[test]
fn windows_are_asked_for() {
    let mut wire = pair_under(Congestion::Credit);
    wire.send(1, 0, Channel::ordered(0), body(1, 10));
    answer(&mut wire, flags::ACK_NOW, 0, 256);
    let heard = said(&mut wire);
    assert!(
        heard[0].starts_with("ack 0") && heard[1] == "data 0",
        "{heard:?}"
    );
    let engine = &mut wire.nodes[1].engine;
    assert_eq!(engine.flow(NodeId(0)).unwrap().window_bytes, 0);
    assert!(!engine.window_takes(NodeId(0), 1), "one is queued");
    for (pause_us, asked) in [(2_000, 1), (100, 0), (1_000, 1)] {
        wire.now += Duration::from_micros(pause_us);
        let now = wire.now;
        wire.nodes[1].engine.ask_window(now, NodeId(0));
        let acks = said(&mut wire)
            .iter()
            .filter(|said| said.starts_with("ack"))
            .count();
        assert_eq!(acks, asked, "after {pause_us} us");
    }
    state_window(&mut wire, 1);
    let engine = &mut wire.nodes[1].engine;
    let queued = engine.flow(NodeId(0)).unwrap().queued_bytes;
    assert!(engine.window_takes(NodeId(0), 1024 - queued));
    assert!(!engine.window_takes(NodeId(0), 1025 - queued));
    let acknowledged = Ack {
        window_kib: 1,
        ..ack(&wire, 0, 1, 256)
    };
    forge(&mut wire, |slot| acknowledged.write(slot));
    assert!(
        wire.nodes[1].engine.window_takes(NodeId(0), 5000),
        "nothing is queued"
    );
    state_window(&mut wire, 0);
    assert!(
        !wire.nodes[1].engine.window_takes(NodeId(0), 1),
        "it is full"
    );
}

/// An ask about frames that have arrived is answered by an acknowledgement; one about frames that cannot have been sent, or of an earlier round, is
/// not answered.
#[test]
fn asks_are_judged() {
    let mut wire = pair();
    data(&mut wire, 0);
    release_all(&mut wire);
    assert_eq!(said(&mut wire), ["ack 1 window 256"]);
    for (ask, expected) in [
        (permit(&wire, 7, 0, 1), "ack 1 window 256"),
        (permit(&wire, 7, 1, 0), "ack 1 window 256"),
        (permit(&wire, 7, 0, 4), "grant 7: 1 +3"),
        (permit(&wire, 7, 0, 4), "grant 7: 1 +3"),
        (permit(&wire, 6, 0, 4), ""),
        (permit(&wire, 8, 1, 5000), ""),
        (permit(&wire, 8, 5000, 1), ""),
        (permit(&wire, 8, 1, u32::MAX), ""),
    ] {
        forge(&mut wire, |slot| ask.write_ask(slot));
        assert_eq!(said(&mut wire).concat(), expected, "{ask:?}");
    }
    assert_eq!(drops(&wire, Drop::Malformed), 3);
    assert_eq!(drops(&wire, Drop::Duplicate), 1);
}

/// Two nodes with different congestion controls begin no session, and both programs are told why, once.
#[test]
fn other_congestion_control_is_refused_by_name() {
    let mut wire = Wire::new(2);
    wire.nodes[1] = Wire::node(1, 101, 2, wire.now, Congestion::SUCI);
    wire.run(Duration::from_millis(500), |_| false);
    for (node, theirs) in [(0, CongestionKind::Suci), (1, CongestionKind::Credit)] {
        let peer = NodeId(1 - node as u16);
        let node = &wire.nodes[node];
        assert!(!node.engine.is_up(peer));
        assert_eq!(node.events, [Event::OtherCongestion { peer, theirs }]);
        assert!(node.engine.counters().drops.get(Drop::Congestion) > 1);
    }
}

/// Asks and grants are dropped and counted under `credit`, and change nothing.
#[test]
fn permits_are_refused_under_credit() {
    let mut wire = Wire::new(2);
    wire.run(Duration::from_millis(10), |_| false);
    for _ in 0..10 {
        let permit = permit(&wire, 1, 0, 100);
        forge(&mut wire, |slot| permit.write_ask(slot));
        forge(&mut wire, |slot| permit.write_grant(slot));
    }
    assert_eq!(drops(&wire, Drop::Congestion), 20);
    assert_eq!(said(&mut wire), Vec::<String>::new());
    assert_alive(&mut wire);
}
