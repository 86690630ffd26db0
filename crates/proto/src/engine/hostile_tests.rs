//! A peer that lies: whatever it sends, nothing panics, memory stays bounded, and what is not used is counted.
//!
//! Node 0 is the liar: frames are forged in its name, with the session that is up.

use super::tests::{MINUTE, Wire, body};
use super::*;
use crate::counters::Drop;
use crate::message::Payload;
use crate::numbers::FIRST_NUMBER;
use crate::peer::places::LANES_MAX;
use crate::time::Duration;
use alloc::vec;
use proptest::prelude::*;
use tsumuji_wire::{Ack, Control, Data, Hello, Lane, Permit, flags};

/// Two nodes that know each other.
fn pair() -> Wire {
    pair_under(Congestion::Credit)
}

fn pair_under(congestion: Congestion) -> Wire {
    let mut wire = Wire::under(2, congestion);
    wire.run(MINUTE, |wire| {
        wire.nodes[0].engine.is_up(NodeId(1)) && wire.nodes[1].engine.is_up(NodeId(0))
    });
    wire
}

fn session(wire: &Wire) -> u32 {
    let peer = wire.nodes[1].engine.peer(NodeId(0));
    peer.expect("a member").session.incoming
}

fn fragment_bytes(wire: &Wire) -> usize {
    let peer = wire.nodes[1].engine.peer(NodeId(0));
    peer.expect("a member").send.fragment_bytes()
}

/// A first fragment that is all right, to be spoilt.
fn data(wire: &Wire, payload: &'static [u8]) -> Data<'static> {
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
        lane: Lane::ordered(0),
        ack_delay: 0,
        payload,
    }
}

fn ack(wire: &Wire) -> Ack<'static> {
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

fn control(session: u32) -> Control {
    Control {
        source: NodeId(0),
        destination: NodeId(1),
        session,
    }
}

fn close(session: u32) -> Ack<'static> {
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

/// Hands the victim what `write` puts into a slot.
fn forge(wire: &mut Wire, write: impl FnOnce(&mut [u8]) -> Option<usize>) {
    let mut slot = [0; 1472];
    let bytes = write(&mut slot).expect("fits");
    let (now, node) = (wire.now, &mut wire.nodes[1]);
    node.engine
        .handle_frame(now, &slot[..bytes], &mut node.inbox);
}

fn drops(wire: &Wire, reason: Drop) -> u64 {
    wire.nodes[1].engine.counters().drops.get(reason)
}

/// The pair still works: a message each way.
fn assert_alive(wire: &mut Wire) {
    wire.send(1, 0, Lane::ordered(5), body(1, 5000));
    wire.run(MINUTE, |wire| wire.queued(1, 0) == 0);
    assert_eq!(wire.queued(1, 0), 0);
}

/// Acknowledgements of numbers never sent are malformed, in either kind of frame, and acknowledge nothing.
#[test]
fn acks_of_the_unsent() {
    let mut wire = pair();
    wire.send(1, 0, Lane::ordered(0), body(1, 100));
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
    assert!(wire.nodes[1].inbox.messages.is_empty());
    assert_alive(&mut wire);
}

/// However much credit is claimed, no more numbers are unanswered than the window holds.
#[test]
fn credit_jumps() {
    let mut wire = pair();
    wire.send(1, 0, Lane::ordered(0), body(1, 8_000_000));
    for (credit, refused) in [(i32::MAX as u32, 1), (1 << 19, 1)] {
        let forged = Ack {
            credit: (FIRST_NUMBER as u32).wrapping_add(credit),
            ..ack(&wire)
        };
        forge(&mut wire, |slot| forged.write(slot));
        assert_eq!(drops(&wire, Drop::Malformed), refused);
    }
    let mut slot = [0; 1472];
    let (now, engine) = (wire.now, &mut wire.nodes[1].engine);
    let mut frames = 0;
    while let Some(to) = engine.next_destination(now) {
        assert!(engine.write_frame(now, to, &mut slot) > 0);
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
    assert_eq!(wire.nodes[1].inbox.messages.len(), 49);
    let credit = &wire.nodes[1].engine.shared.credit;
    assert!(credit.claimed() <= 256);
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
    assert!(wire.nodes[1].inbox.messages.is_empty());
    for index in [1, 2] {
        let rest = Data {
            number: whole.number.wrapping_add(20 + index),
            offset: index * size,
            ..whole
        };
        forge(&mut wire, |slot| rest.write(slot));
    }
    assert_eq!(wire.nodes[1].inbox.messages[0].2, vec![7; 3 * FULL.len()]);
}

/// A message of 2000 bytes comes in two fragments of 1000: whoever cuts it at the agreed size instead is refused, whichever part comes first.
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
    assert_eq!(wire.nodes[1].inbox.messages[0].2, vec![7; 2000]);
}

/// A claim of 4 GiB is malformed where hello said less; where it is allowed, what was sent is filled and no more.
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

/// One fragment each of more messages than memory holds: it is refused and counted, and comes back with the peer's end.
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
            lane: Lane::unordered(0),
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

/// A thousand hellos get one welcome, and do not end what is up.
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
    let mut slot = [0; 1472];
    let (now, engine) = (wire.now, &mut wire.nodes[1].engine);
    let mut frames = 0;
    while let Some(to) = engine.next_destination(now) {
        engine.write_frame(now, to, &mut slot);
        frames += 1;
    }
    assert!(frames <= 2, "a welcome and a hello, not {frames} frames");
    assert!(engine.is_up(NodeId(0)));
    assert_alive(&mut wire);
}

/// Frames heard before are duplicates; resets and closes of other sessions change nothing.
#[test]
fn replays_and_wrong_sessions() {
    let mut wire = pair();
    let first = data(&wire, b"once");
    for _ in 0..100 {
        forge(&mut wire, |slot| first.write(slot));
    }
    assert_eq!(wire.nodes[1].inbox.messages.len(), 1);
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

/// A frame that contradicts the session's state is dropped whole: what it says besides, an acknowledgement that is right among it, is not taken,
/// and it is no sign of life.
#[test]
fn contradictions_change_nothing() {
    static FULL: [u8; 1432] = [7; 1432];
    let mut wire = pair();
    // The victim has sent a message, which nobody has acknowledged, and has a message of three fragments under way.
    wire.nodes[0].cut_off = true;
    wire.send(1, 0, Lane::ordered(0), body(1, 100));
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
            lane: Lane::ordered(9),
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

/// A frame of one lane more than a session may have is dropped whole, with the acknowledgement that it bears; the lanes there are go on
///
#[test]
fn one_lane_too_many() {
    let mut wire = pair();
    wire.nodes[0].cut_off = true;
    wire.send(1, 0, Lane::ordered(0), body(1, 100));
    wire.run(Duration::from_micros(100), |_| false);
    let lanes = LANES_MAX as u32;
    let of_lane = |wire: &Wire, step: u32| Data {
        number: (FIRST_NUMBER as u32).wrapping_add(step),
        lane: Lane::ordered((step % (lanes + 1)) as u16),
        ..data(wire, b"x")
    };
    for step in 0..lanes {
        let fair = of_lane(&wire, step);
        forge(&mut wire, |slot| fair.write(slot));
    }
    assert_eq!(wire.nodes[1].inbox.messages.len(), LANES_MAX);
    let told = FIRST_NUMBER as u32 + 1;
    let lie = Data {
        ack: told,
        ..of_lane(&wire, lanes)
    };
    forge(&mut wire, |slot| lie.write(slot));
    assert_eq!(drops(&wire, Drop::Window), 1);
    assert_eq!(wire.queued(1, 0), 1);
    let fair = Data {
        ack: told,
        message: told,
        lane: Lane::ordered(0),
        ..lie
    };
    forge(&mut wire, |slot| fair.write(slot));
    assert_eq!(wire.nodes[1].inbox.messages.len(), LANES_MAX + 1);
    assert_eq!(wire.queued(1, 0), 0);
}

/// A frame that no check can tell from an honest one may end a session, but stalls it no longer than `dead_after` and the time to notice: after
/// that messages go both ways again.
#[test]
fn no_single_frame_stalls() {
    static FULL: [u8; 1432] = [7; 1432];
    let dead_after = super::tests::config(0, 1).dead_after;
    for kind in 0..6 {
        let mut wire = pair();
        wire.send(0, 1, Lane::ordered(0), body(1, 100));
        wire.send(1, 0, Lane::ordered(0), body(2, 100));
        wire.run(Duration::from_millis(5), |_| false);
        let number = (FIRST_NUMBER + 1) as u32;
        let fair = Data {
            number,
            message: number,
            ack: number,
            credit: number,
            ..data(&wire, b"forged")
        };
        let long = 3 * fragment_bytes(&wire) as u32;
        match kind {
            // It skips numbers, or takes the place of the next message, whole or in part, now or later.
            0 => forge(&mut wire, |slot| {
                let number = number.wrapping_add(4000);
                Data { number, ..fair }.write(slot)
            }),
            1 => forge(&mut wire, |slot| fair.write(slot)),
            2 => forge(&mut wire, |slot| {
                Data {
                    length: long,
                    payload: &FULL,
                    ..fair
                }
                .write(slot)
            }),
            3 => forge(&mut wire, |slot| {
                let message = number.wrapping_add(5);
                Data {
                    message,
                    length: long,
                    payload: &FULL,
                    ..fair
                }
                .write(slot)
            }),
            // It acknowledges a part of a long message that never arrived, or all of it.
            _ => {
                wire.send(1, 0, Lane::ordered(0), body(3, 100_000));
                wire.nodes[0].cut_off = true;
                wire.run(Duration::from_micros(2), |_| false);
                wire.nodes[0].cut_off = false;
                let told = Ack {
                    ack: if kind == 4 { number + 3 } else { number },
                    bitmap: if kind == 4 { &[] } else { &[0b10] },
                    credit: number.wrapping_add(100),
                    ..ack(&wire)
                };
                forge(&mut wire, |slot| told.write(slot));
            }
        }
        let begun = wire.now;
        let arrived = |wire: &Wire, to: usize, body: &[u8]| {
            wire.nodes[to]
                .inbox
                .messages
                .iter()
                .any(|one| one.2 == body)
        };
        let mut attempt = 0;
        // The program goes on: what is lost with a session it sends anew.
        loop {
            attempt += 1;
            let mark = body(10 + attempt, 3000);
            for (from, to) in [(0, 1), (1, 0)] {
                let payload = Payload::Owned(mark.clone());
                let engine = &mut wire.nodes[from].engine;
                let _ = engine.submit(NodeId(to), Lane::ordered(0), payload, false);
            }
            wire.run(Duration::from_millis(20), |_| false);
            if arrived(&wire, 0, &mark) && arrived(&wire, 1, &mark) {
                break;
            }
            let waited = wire.now.since(begun);
            assert!(waited <= dead_after.times(2), "kind {kind}: {waited:?}");
        }
    }
}

proptest! {
    /// Frames of the session that is up with any fields at all: no panic, and Σ credit and memory within their bounds.
    #[test]
    fn any_fields(
        frames in proptest::collection::vec(
            (any::<[u32; 4]>(), any::<[u8; 4]>(), 0u32..6000, 0u8..4, any::<u16>(), 0usize..600),
            1..200,
        ),
        steps_us in 0u64..2000,
        suci in any::<bool>(),
    ) {
        static ZEROS: [u8; 1432] = [0; 1432];
        static ONES: [u8; 512] = [255; 512];
        let mut wire = pair_under(Congestion::ALL[usize::from(suci)]);
        wire.send(1, 0, Lane::ordered(0), body(1, 100_000));
        for (wild, bytes, near, kind, floor_delta, take) in frames {
            // Half of the fields lie near what is expected: else nothing gets past the first check.
            let pick = |index: usize| {
                let near = (FIRST_NUMBER as u32).wrapping_add(near >> (index * 3));
                if bytes[0] & (1 << index) == 0 { near } else { wild[index] }
            };
            if kind == 0 {
                let forged = Ack {
                    flags: bytes[1] & (flags::ACK_NOW | flags::REFUSED | flags::NACK),
                    ack: pick(0),
                    credit: pick(1),
                    window_kib: wild[2],
                    ack_delay_us: wild[3],
                    bitmap: &ONES[..take.min(512)],
                    ..ack(&wire)
                };
                forge(&mut wire, |slot| forged.write(slot));
            } else if kind == 1 {
                let forged = Permit {
                    source: NodeId(0),
                    destination: NodeId(1),
                    session: session(&wire),
                    round: if bytes[1] & 1 == 0 { u32::from(bytes[2] & 3) } else { wild[2] },
                    number: pick(0),
                    frames: pick(3).wrapping_sub(FIRST_NUMBER as u32),
                };
                let is_ask = bytes[1] & 2 == 0;
                forge(&mut wire, |slot| {
                    if is_ask { forged.write_ask(slot) } else { forged.write_grant(slot) }
                });
            } else {
                let length = if bytes[0] & 128 == 0 { 1432 * near } else { wild[3] };
                let forged = Data {
                    flags: bytes[1] & 7,
                    number: pick(0),
                    ack: FIRST_NUMBER as u32,
                    credit: pick(1),
                    message: pick(2),
                    offset: if near == 0 { 0 } else { wild[2] % near / 2 * 1432 },
                    length,
                    floor_delta,
                    lane: Lane::from_number(u32::from(bytes[2] & 0x17) << 14).unwrap_or(Lane::datagram(1)),
                    ack_delay: bytes[3],
                    ..data(&wire, &ZEROS)
                };
                forge(&mut wire, |slot| forged.write(slot));
            }
            wire.run(Duration::from_micros(steps_us), |_| false);
            let shared = &wire.nodes[1].engine.shared;
            prop_assert!(shared.credit.claimed() <= 256);
            // Under `suci` one of each priority may exceed, too.
            let exceeding = if suci { 5 } else { 2 };
            prop_assert!(shared.memory.used_bytes() <= (1 << 20) + exceeding * ((64 << 20) + 64) + 72);
            prop_assert!(wire.nodes[1].engine.accounts().are_balanced());
        }
    }
}
