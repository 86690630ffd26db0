//! A hostile peer: whatever it sends, nothing panics, memory stays bounded, and frames that are not used are counted.
//!
//! Node 0 is hostile: frames are forged in its name, for the session that is up.

use super::tests::{MINUTE, Wire, body, next_frame};
use super::*;
use crate::congestion::Congestion;
use crate::counters::Drop;
use crate::numbers::FIRST_NUMBER;
use crate::time::Duration;
use alloc::vec;
use tsumuji_wire::{Ack, Channel, Control, Data, Hello, flags};

/// Two nodes with a session.
pub(super) fn pair() -> Wire {
    pair_under(Congestion::Credit)
}

pub(super) fn pair_under(congestion: Congestion) -> Wire {
    let mut wire = Wire::under(2, congestion);
    wire.run(MINUTE, |wire| {
        wire.nodes[0].engine.is_up(NodeId(1)) && wire.nodes[1].engine.is_up(NodeId(0))
    });
    wire
}

pub(super) fn session(wire: &Wire) -> u32 {
    let peer = wire.nodes[1].engine.peer(NodeId(0));
    peer.expect("a member").session.incoming
}

pub(super) fn fragment_bytes(wire: &Wire) -> usize {
    let peer = wire.nodes[1].engine.peer(NodeId(0));
    peer.expect("a member").send.queue.fragment_bytes
}

/// A first fragment that is legal, to be modified.
pub(super) fn data(wire: &Wire, payload: &'static [u8]) -> Data<'static> {
    Data {
        source: NodeId(0),
        destination: NodeId(1),
        flags: 0,
        session: session(wire),
        number: FIRST_NUMBER as u32,
        ack: FIRST_NUMBER as u32,
        credit: FIRST_NUMBER as u32,
        message: FIRST_NUMBER as u32,
        offset: 0,
        length: payload.len() as u32,
        floor_delta: 0,
        channel: Channel::ordered(0),
        ack_delay: 0,
        payload,
    }
}

pub(super) fn ack(wire: &Wire) -> Ack<'static> {
    Ack {
        source: NodeId(0),
        destination: NodeId(1),
        flags: 0,
        session: session(wire),
        ack: FIRST_NUMBER as u32,
        credit: FIRST_NUMBER as u32,
        window_kib: 0,
        ack_delay_us: 0,
        bitmap: &[],
    }
}

pub(super) fn control(session: u32) -> Control {
    Control {
        source: NodeId(0),
        destination: NodeId(1),
        session,
    }
}

pub(super) fn close(session: u32) -> Ack<'static> {
    Ack {
        source: NodeId(0),
        destination: NodeId(1),
        flags: 0,
        session,
        ack: FIRST_NUMBER as u32,
        credit: 0,
        window_kib: 0,
        ack_delay_us: 0,
        bitmap: &[],
    }
}

/// Passes a frame that `write` writes to node 1.
pub(super) fn forge(wire: &mut Wire, write: impl FnOnce(&mut [u8]) -> Option<usize>) {
    let mut slot = [0; 1472];
    let bytes = write(&mut slot).expect("fits");
    let (now, node) = (wire.now, &mut wire.nodes[1]);
    node.engine
        .handle_frame(now, &slot[..bytes], &mut node.mailbox);
}

pub(super) fn drops(wire: &Wire, reason: Drop) -> u64 {
    wire.nodes[1].engine.counters().drops.get(reason)
}

/// The pair still works: a message each way.
pub(super) fn assert_alive(wire: &mut Wire) {
    wire.send(1, 0, Channel::ordered(5), body(1, 5000));
    wire.run(MINUTE, |wire| wire.queued(1, 0) == 0);
    assert_eq!(wire.queued(1, 0), 0);
}

/// Acknowledgements of numbers never sent are malformed, in either kind of frame, and acknowledge nothing.
#[test]
fn acks_of_the_unsent() {
    let mut wire = pair();
    wire.send(1, 0, Channel::ordered(0), body(1, 100));
    let ahead = FIRST_NUMBER as u32 + 1;
    for lie in [ahead, ahead.wrapping_add(5000), ahead.wrapping_add(1 << 30)] {
        let forged = Ack {
            ack: lie,
            ..ack(&wire)
        };
        forge(&mut wire, |slot| forged.write(slot));
        let forged = Data {
            ack: lie,
            ..data(&wire, b"x")
        };
        forge(&mut wire, |slot| forged.write(slot));
    }
    let forged = Ack {
        bitmap: &[255; 512],
        ..ack(&wire)
    };
    forge(&mut wire, |slot| forged.write(slot));
    assert_eq!(drops(&wire, Drop::Malformed), 7);
    assert_eq!(wire.queued(1, 0), 1, "still to be sent");
    assert!(wire.nodes[1].mailbox.messages.is_empty());
    assert_alive(&mut wire);
}

/// However much credit is claimed, no more numbers are unanswered than the window holds.
#[test]
fn credit_jumps() {
    let mut wire = pair();
    wire.send(1, 0, Channel::ordered(0), body(1, 8_000_000));
    for (credit, refused) in [(i32::MAX as u32, 1), (1 << 19, 1)] {
        let forged = Ack {
            credit: (FIRST_NUMBER as u32).wrapping_add(credit),
            ..ack(&wire)
        };
        forge(&mut wire, |slot| forged.write(slot));
        assert_eq!(drops(&wire, Drop::Malformed), refused);
    }
    let (now, engine) = (wire.now, &mut wire.nodes[1].engine);
    let mut frames = 0;
    while let Some(to) = engine.next_destination(now) {
        next_frame(engine, now, to);
        frames += 1;
        assert!(frames < 5000, "beyond the window");
    }
    assert!(engine.flow(NodeId(0)).unwrap().in_flight_frames <= 4096);
}

/// Numbers and messages far ahead are refused; floors far ahead skip numbers, but nothing else.
#[test]
fn numbers_far_ahead() {
    let mut wire = pair();
    for jump in [4096, 100_000, i32::MAX as u32] {
        let forged = Data {
            number: (FIRST_NUMBER as u32).wrapping_add(jump),
            floor_delta: u16::MAX,
            ..data(&wire, b"x")
        };
        forge(&mut wire, |slot| forged.write(slot));
        let forged = Data {
            message: (FIRST_NUMBER as u32).wrapping_add(jump),
            ..data(&wire, b"x")
        };
        forge(&mut wire, |slot| forged.write(slot));
    }
    assert_eq!(drops(&wire, Drop::Window), 6);
    for round in 1..50u32 {
        let forged = Data {
            number: (FIRST_NUMBER as u32).wrapping_add(round * 4000),
            message: (FIRST_NUMBER as u32).wrapping_add(round - 1),
            ..data(&wire, b"x")
        };
        forge(&mut wire, |slot| forged.write(slot));
    }
    assert_eq!(wire.nodes[1].mailbox.messages.len(), 49);
    let receiving = &wire.nodes[1].engine.shared.receiving;
    assert!(receiving.claimed() <= 256);
}

/// Fragments of one message that contradict each other, or the agreed size, are refused.
#[test]
fn contradicting_fragments() {
    static FULL: [u8; 1432] = [7; 1432];
    let mut wire = pair();
    let size = fragment_bytes(&wire) as u32;
    assert_eq!(size as usize, FULL.len());
    let whole = Data {
        length: 3 * size,
        ..data(&wire, &FULL)
    };
    forge(&mut wire, |slot| whole.write(slot));
    let lies = [
        (size, 4 * size, &FULL[..]),
        (size, 2 * size, &FULL[..]),
        (1, 3 * size, &FULL[..]),
        (size, 3 * size, &FULL[..100]),
        (2 * size, 3 * size - 1, &FULL[..]),
        (0, 10, &FULL[..5]),
    ];
    for (index, (offset, length, payload)) in lies.into_iter().enumerate() {
        let forged = Data {
            number: whole.number.wrapping_add(1 + index as u32),
            offset,
            length,
            payload,
            ..whole
        };
        forge(&mut wire, |slot| forged.write(slot));
    }
    let refused = drops(&wire, Drop::Window) + drops(&wire, Drop::Malformed);
    assert_eq!(refused, lies.len() as u64);
    assert!(wire.nodes[1].mailbox.messages.is_empty());
    for index in [1, 2] {
        let rest = Data {
            number: whole.number.wrapping_add(20 + index),
            offset: index * size,
            ..whole
        };
        forge(&mut wire, |slot| rest.write(slot));
    }
    assert_eq!(wire.nodes[1].mailbox.messages[0].2, vec![7; 3 * FULL.len()]);
}

/// A message of 2000 bytes has two fragments of 1000: a frame cut at the agreed size instead is refused, whichever part comes first.
#[test]
fn fragments_cut_otherwise() {
    static FULL: [u8; 1432] = [7; 1432];
    let mut wire = pair();
    let honest = Data {
        length: 2000,
        ..data(&wire, &FULL[..1000])
    };
    let lies = [
        (0, &FULL[..]),
        (1432, &FULL[..568]),
        (1000, &FULL[..568]),
        (1000, &FULL[..]),
        (0, &FULL[..0]),
        (2000, &FULL[..0]),
        (500, &FULL[..500]),
    ];
    for (index, (offset, payload)) in lies.into_iter().enumerate() {
        let forged = Data {
            number: honest.number.wrapping_add(index as u32),
            offset,
            payload,
            ..honest
        };
        forge(&mut wire, |slot| forged.write(slot));
    }
    assert_eq!(drops(&wire, Drop::Malformed), lies.len() as u64);
    assert_eq!(wire.nodes[1].engine.shared.memory.used_bytes(), 0);
    for (index, offset) in [(20, 1000), (21, 0)] {
        let part = Data {
            number: honest.number.wrapping_add(index),
            offset,
            ..honest
        };
        forge(&mut wire, |slot| part.write(slot));
    }
    assert_eq!(wire.nodes[1].mailbox.messages[0].2, vec![7; 2000]);
}

/// A datagram of several frames begins with 16 bytes: a shorter one is malformed, under either congestion control.
#[test]
fn datagrams_without_a_stamp() {
    static ZEROS: [u8; 16] = [0; 16];
    for congestion in [Congestion::Credit, Congestion::SUCI] {
        let mut wire = pair_under(congestion);
        for bytes in 0..=16 {
            let forged = Data {
                channel: Channel::datagram(3),
                ..data(&wire, &ZEROS[..bytes])
            };
            forge(&mut wire, |slot| forged.write(slot));
        }
        assert_eq!(drops(&wire, Drop::Malformed), 16);
        assert_eq!(wire.nodes[1].mailbox.datagrams.len(), 1);
    }
}

/// A length of 4 GiB is malformed where hello stated less; where it is allowed, fragments far ahead of the first missing one are refused.
#[test]
fn claims_commit_no_memory() {
    static FULL: [u8; 1432] = [7; 1432];
    let mut wire = pair();
    let size = fragment_bytes(&wire) as u32;
    let forged = Data {
        length: u32::MAX,
        ..data(&wire, &FULL)
    };
    forge(&mut wire, |slot| forged.write(slot));
    assert_eq!(drops(&wire, Drop::Malformed), 1);
    assert_eq!(wire.nodes[1].engine.shared.memory.used_bytes(), 0);

    let fragments = 44_000;
    for (number, offset) in [(1, fragments - 1), (2, 4096), (3, 0), (4, 4096)] {
        let forged = Data {
            number: forged.number.wrapping_add(number),
            offset: offset * size,
            length: fragments * size,
            ..forged
        };
        forge(&mut wire, |slot| forged.write(slot));
    }
    assert_eq!(
        drops(&wire, Drop::Window),
        2,
        "far ahead of what is missing"
    );
    let engine = &mut wire.nodes[1].engine;
    assert_eq!(
        engine.shared.memory.used_bytes() as u32,
        fragments * size + 64
    );
    assert_eq!(engine.shared.memory.free_bytes(), 0);
    let close = close(session(&wire));
    forge(&mut wire, |slot| close.write_close(slot));
    assert_eq!(wire.nodes[1].engine.shared.memory.used_bytes(), 0);
}

/// One fragment each of more messages than memory holds: the excess is refused and counted, and the memory returns when the session ends.
#[test]
fn half_messages_are_bounded() {
    static FULL: [u8; 1432] = [7; 1432];
    let mut wire = pair();
    for index in 0..4000 {
        let first = data(&wire, &FULL);
        let forged = Data {
            number: first.number.wrapping_add(index),
            message: first.message.wrapping_add(index),
            length: 2 * FULL.len() as u32,
            channel: Channel::unordered(0),
            ..first
        };
        forge(&mut wire, |slot| forged.write(slot));
    }
    let used = wire.nodes[1].engine.shared.memory.used_bytes();
    assert!(used <= (1 << 20) + 3000, "{used}");
    assert!(drops(&wire, Drop::Memory) > 3000);
    let close = close(session(&wire));
    forge(&mut wire, |slot| close.write_close(slot));
    assert_eq!(wire.nodes[1].engine.shared.memory.used_bytes(), 0);
}

/// A thousand hellos get one welcome, and do not end the session.
#[test]
fn floods_of_hellos() {
    let mut wire = pair();
    let hello = Hello {
        source: NodeId(0),
        destination: NodeId(1),
        flags: 0,
        incarnation: 1,
        pairing: 0,
        nonce: 0,
        frame_bytes: u32::MAX,
        credit: u32::MAX,
        message_limit: u32::MAX,
        taken: 0,
    };
    for nonce in 0..1000 {
        let forged = Hello {
            incarnation: 1 + nonce,
            nonce,
            ..hello
        };
        forge(&mut wire, |slot| forged.write_hello(slot));
        forge(&mut wire, |slot| forged.write_welcome(slot));
    }
    assert_eq!(
        drops(&wire, Drop::Session),
        1000,
        "answers to nothing asked"
    );
    let (now, engine) = (wire.now, &mut wire.nodes[1].engine);
    let mut frames = 0;
    while let Some(to) = engine.next_destination(now) {
        next_frame(engine, now, to);
        frames += 1;
    }
    assert!(frames <= 2, "a welcome and a hello, not {frames} frames");
    assert!(engine.is_up(NodeId(0)));
    assert_alive(&mut wire);
}

/// Repeated frames are duplicates; resets and closes of other sessions change nothing.
#[test]
fn replays_and_wrong_sessions() {
    let mut wire = pair();
    let first = data(&wire, b"once");
    for _ in 0..100 {
        forge(&mut wire, |slot| first.write(slot));
    }
    assert_eq!(wire.nodes[1].mailbox.messages.len(), 1);
    assert_eq!(drops(&wire, Drop::Duplicate), 99);
    let wrong = session(&wire) ^ 1;
    for _ in 0..100 {
        forge(&mut wire, |slot| close(wrong).write_close(slot));
        forge(&mut wire, |slot| control(wrong).write_reset(slot));
    }
    assert_eq!(drops(&wire, Drop::Session), 200);
    assert!(wire.nodes[1].engine.is_up(NodeId(0)));
    wire.run(Duration::from_millis(1), |_| false);
    assert!(wire.nodes[1].engine.is_up(NodeId(0)));
}

/// A frame that contradicts the session's state is dropped whole: nothing else of it is taken, not even a valid acknowledgement, and it is no sign of
/// life.
#[test]
fn contradictions_change_nothing() {
    static FULL: [u8; 1432] = [7; 1432];
    let mut wire = pair();
    // Node 1 has sent a message that is not acknowledged, and is receiving a message of three fragments.
    wire.nodes[0].cut_off = true;
    wire.send(1, 0, Channel::ordered(0), body(1, 100));
    wire.run(Duration::from_micros(100), |_| false);
    let size = fragment_bytes(&wire) as u32;
    let first = Data {
        length: 3 * size,
        ..data(&wire, &FULL)
    };
    forge(&mut wire, |slot| first.write(slot));
    let honest = Data {
        number: first.number.wrapping_add(1),
        ack: FIRST_NUMBER as u32 + 1,
        credit: (FIRST_NUMBER as u32).wrapping_add(1000),
        offset: size,
        ..first
    };
    let lies = [
        Data {
            length: 4 * size,
            ..honest
        },
        Data {
            length: size,
            offset: 0,
            ..honest
        },
        Data {
            offset: size + 1,
            ..honest
        },
        Data {
            payload: &FULL[..9],
            ..honest
        },
        Data {
            message: honest.message.wrapping_add(4096),
            ..honest
        },
        Data {
            message: honest.message.wrapping_add(5000),
            channel: Channel::ordered(9),
            ..honest
        },
        Data {
            number: honest.number.wrapping_add(9000),
            ..honest
        },
        Data {
            number: honest.number.wrapping_add(1 << 30),
            floor_delta: u16::MAX,
            ..honest
        },
        Data {
            floor_delta: 4096,
            ..honest
        },
        Data {
            ack: FIRST_NUMBER as u32 + 2,
            ..honest
        },
        Data {
            flags: flags::BUNDLE,
            ..honest
        },
    ];
    let state = |wire: &Wire| {
        let engine = &wire.nodes[1].engine;
        let peer = engine.peer(NodeId(0)).expect("a member");
        let arrivals = &peer.receive.arrivals;
        (
            (
                engine.accounts(),
                engine.flow(NodeId(0)).map(|flow| flow.credit_frames),
            ),
            (peer.last_heard, arrivals.base(), arrivals.next()),
        )
    };
    let before = state(&wire);
    wire.now += Duration::from_micros(50);
    for (index, lie) in lies.iter().enumerate() {
        let dropped = wire.nodes[1].engine.counters().drops.total();
        forge(&mut wire, |slot| lie.write(slot));
        assert_eq!(state(&wire), before, "lie {index}");
        let drops = &wire.nodes[1].engine.counters().drops;
        assert_eq!(drops.total(), dropped + 1, "lie {index}");
    }
    let told = Ack {
        ack: honest.ack,
        credit: honest.credit,
        ..ack(&wire)
    };
    for lie in [
        Ack {
            bitmap: &[0, 0, 2],
            ..told
        },
        Ack {
            bitmap: &[1],
            ..told
        },
        Ack {
            credit: honest.credit.wrapping_add(1 << 21),
            ..told
        },
        Ack {
            ack: honest.ack + 1,
            ..told
        },
    ] {
        forge(&mut wire, |slot| lie.write(slot));
        assert_eq!(state(&wire), before, "{lie:?}");
    }
    forge(&mut wire, |slot| honest.write(slot));
    assert_eq!(wire.queued(1, 0), 0, "what is honest is taken");
    assert_ne!(state(&wire), before);
}
