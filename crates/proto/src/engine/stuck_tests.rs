//! Single frames that could stop a pair, and bounds on channels.

use super::hostile_tests::*;
use super::tests::{Wire, body};
use super::*;
use crate::congestion::Congestion;
use crate::counters::Drop;
use crate::message::Payload;
use crate::numbers::FIRST_NUMBER;
use crate::peer::places::CHANNELS_MAX;
use crate::time::Duration;
use proptest::prelude::*;
use tsumuji_wire::{Ack, Channel, Data, Permit, flags};

/// A frame of one channel more than a session may have is dropped whole, with its acknowledgement; the other channels go on.
#[test]
fn one_channel_too_many() {
    let mut wire = pair();
    wire.nodes[0].cut_off = true;
    wire.send(1, 0, Channel::ordered(0), body(1, 100));
    wire.run(Duration::from_micros(100), |_| false);
    let channels = CHANNELS_MAX as u32;
    let of_channel = |wire: &Wire, step: u32| Data {
        number: (FIRST_NUMBER as u32).wrapping_add(step),
        channel: Channel::ordered((step % (channels + 1)) as u16),
        ..data(wire, b"x")
    };
    for step in 0..channels {
        let fair = of_channel(&wire, step);
        forge(&mut wire, |slot| fair.write(slot));
    }
    assert_eq!(wire.nodes[1].mailbox.messages.len(), CHANNELS_MAX);
    let told = FIRST_NUMBER as u32 + 1;
    let lie = Data {
        ack: told,
        ..of_channel(&wire, channels)
    };
    forge(&mut wire, |slot| lie.write(slot));
    assert_eq!(drops(&wire, Drop::Window), 1);
    assert_eq!(wire.queued(1, 0), 1);
    let fair = Data {
        ack: told,
        message: told,
        channel: Channel::ordered(0),
        ..lie
    };
    forge(&mut wire, |slot| fair.write(slot));
    assert_eq!(wire.nodes[1].mailbox.messages.len(), CHANNELS_MAX + 1);
    assert_eq!(wire.queued(1, 0), 0);
}

/// A frame that no check can tell from an honest one may end a session, but stalls it no longer than `dead_after` and the time to notice: afterwards
/// messages go both ways again.
#[test]
fn no_single_frame_stalls() {
    static FULL: [u8; 1432] = [7; 1432];
    let dead_after = super::tests::config(0, 1).dead_after;
    for kind in 0..6 {
        let mut wire = pair();
        wire.send(0, 1, Channel::ordered(0), body(1, 100));
        wire.send(1, 0, Channel::ordered(0), body(2, 100));
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
            // It skips numbers, or takes the place of the next message or a later one, whole or in part.
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
                wire.send(1, 0, Channel::ordered(0), body(3, 100_000));
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
                .mailbox
                .messages
                .iter()
                .any(|one| one.2 == body)
        };
        let mut attempt = 0;
        // The program goes on, and sends again what is lost with a session.
        loop {
            attempt += 1;
            let mark = body(10 + attempt, 3000);
            for (from, to) in [(0, 1), (1, 0)] {
                let payload = Payload::Shared(mark.clone().into());
                let engine = &mut wire.nodes[from].engine;
                let _ = engine.submit(NodeId(to), Channel::ordered(0), payload, false);
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
    /// Frames of the present session with arbitrary fields cause no panic, and the sum of credit and the memory stay within their bounds.
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
        wire.send(1, 0, Channel::ordered(0), body(1, 100_000));
        for (wild, bytes, near, kind, floor_delta, take) in frames {
            // Half of the fields are close to what is expected: otherwise none would pass the first check.
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
                    channel: Channel::from_number(u32::from(bytes[2] & 0x17) << 14).unwrap_or(Channel::datagram(1)),
                    ack_delay: bytes[3],
                    ..data(&wire, &ZEROS)
                };
                forge(&mut wire, |slot| forged.write(slot));
            }
            wire.run(Duration::from_micros(steps_us), |_| false);
            let shared = &wire.nodes[1].engine.shared;
            prop_assert!(shared.receiving.claimed() <= 256);
            // Under `suci` one message of each priority may exceed the budget, too.
            let exceeding = if suci { 5 } else { 2 };
            prop_assert!(shared.memory.used_bytes() <= (1 << 20) + exceeding * ((64 << 20) + 64) + 72);
            prop_assert!(wire.nodes[1].engine.accounts().are_balanced());
        }
    }
}
