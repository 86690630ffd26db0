//! Every kind of frame survives a round trip; no bytes make `parse` panic or read past the end.

use super::*;
use crate::{DeliveryClass, Priority};
use proptest::prelude::*;

fn data(payload: &[u8]) -> Data<'_> {
    Data {
        source: NodeId(3),
        destination: NodeId(0xfffe),
        flags: flags::MORE | flags::ACK_NOW,
        session: 0x1234_5678,
        number: u32::MAX,
        ack: 7,
        credit: 7 + 0xfffe,
        message: 9,
        offset: 1000,
        length: 1000 + payload.len() as u32,
        floor_delta: u16::MAX,
        channel: Channel::new(DeliveryClass::Datagram, Priority::BULK, 0xfedc),
        ack_delay: 200,
        payload,
    }
}

/// A parsed frame equals the one that was written, and trailing bytes are padding.
#[test]
fn data_round_trip_ignores_padding() {
    let frame = data(b"whirlwind");
    let mut slot = [0xaa; 100];
    let bytes = frame.write(&mut slot).unwrap();
    assert_eq!(bytes, 40 + 9);
    assert_eq!(parse(&slot[..bytes]), Ok(Frame::Data(frame)));
    assert_eq!(parse(&slot), Ok(Frame::Data(frame)));
    assert_eq!(source_of(&slot), Some(NodeId(3)));
}

/// Credit is stated relative to the ack, also where numbers wrap. Credit below the ack is stated as 0, and too much as the largest value.
#[test]
fn credit_is_ahead_of_the_ack() {
    let told = |ack: u32, credit: u32| {
        let frame = Data {
            ack,
            credit,
            ..data(b"x")
        };
        let mut slot = [0; 64];
        let bytes = frame.write(&mut slot).unwrap();
        match parse(&slot[..bytes]) {
            Ok(Frame::Data(data)) => data.credit,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(told(u32::MAX - 1, 3), 3);
    assert_eq!(told(7, 7), 7);
    assert_eq!(told(7, 5), 7);
    assert_eq!(told(7, 100_000), 7 + 0xffff);
}

/// A channel of a class that does not exist is malformed.
#[test]
fn channels_of_no_class_are_refused() {
    let mut slot = [0; 64];
    let bytes = data(b"x").write(&mut slot).unwrap();
    for value in 0..=u8::MAX {
        slot[38] = value;
        assert_eq!(parse(&slot[..bytes]).is_ok(), value < 12, "{value}");
    }
}

/// A frame cut anywhere is refused as truncated.
#[test]
fn truncation_is_seen_at_every_length() {
    let mut slot = [0; 100];
    let bytes = data(b"whirlwind").write(&mut slot).unwrap();
    for cut in 0..bytes {
        assert_eq!(parse(&slot[..cut]), Err(DropReason::Truncated), "at {cut}");
    }
}

/// Envelopes and handshakes are distinguished from unassigned kinds.
#[test]
fn sealed_kinds_are_refused_as_such() {
    for kind in [7, 8, 11, 14, 15] {
        let expected = if kind < 9 {
            DropReason::Sealed
        } else {
            DropReason::Kind
        };
        assert_eq!(parse(&[VERSION << 4 | kind; 64]), Err(expected));
    }
}

/// The other kinds survive a round trip.
#[test]
fn other_kinds_round_trip() {
    let mut slot = [0; 100];
    let datagram = Datagram {
        source: NodeId(1),
        incarnation: 2,
        channel_id: 3,
        epoch: 4,
        lap: 5,
        key: 6,
        payload: &[7; 24],
    };
    let bytes = datagram.write(&mut slot).unwrap();
    assert_eq!(parse(&slot[..bytes]), Ok(Frame::Datagram(datagram)));
    let ack = Ack {
        source: NodeId(1),
        destination: NodeId(2),
        flags: flags::ACK_NOW,
        session: 3,
        ack: 4,
        credit: 5,
        window_kib: 6,
        ack_delay_us: 7,
        bitmap: &[8, 9],
    };
    let bytes = ack.write(&mut slot).unwrap();
    assert_eq!(parse(&slot[..bytes]), Ok(Frame::Ack(ack)));
    let hello = Hello {
        source: NodeId(1),
        destination: NodeId(2),
        flags: flags::SUCI,
        incarnation: 3,
        pairing: 4,
        nonce: 5,
        frame_bytes: 6,
        credit: 7,
        message_limit: 8,
        taken: 9,
    };
    let bytes = hello.write_hello(&mut slot).unwrap();
    assert_eq!(parse(&slot[..bytes]), Ok(Frame::Hello(hello)));
    let bytes = hello.write_welcome(&mut slot).unwrap();
    assert_eq!(parse(&slot[..bytes]), Ok(Frame::Welcome(hello)));
    let control = Control {
        source: NodeId(1),
        destination: NodeId(2),
        session: 3,
    };
    let bytes = control.write_reset(&mut slot).unwrap();
    assert_eq!(parse(&slot[..bytes]), Ok(Frame::Reset(control)));
    let permit = Permit {
        source: NodeId(1),
        destination: NodeId(2),
        session: 3,
        round: 4,
        number: 5,
        frames: 6,
    };
    let bytes = permit.write_ask(&mut slot).unwrap();
    assert_eq!(parse(&slot[..bytes]), Ok(Frame::Ask(permit)));
    let bytes = permit.write_grant(&mut slot).unwrap();
    assert_eq!((bytes, parse(&slot)), (24, Ok(Frame::Grant(permit))));
    let message = [&datagram.stamp()[..], datagram.payload].concat();
    let of = (datagram.source, datagram.incarnation);
    let read = |message| Datagram::of_message(of, datagram.channel_id, message);
    assert_eq!(read(&message), Some(datagram));
    assert_eq!(read(&message[..STAMP_BYTES - 1]), None, "too short");
    let mut other = message.clone();
    other[STAMP_BYTES - 1] = 1;
    assert_eq!(read(&other), None, "the zero is none");
}

/// An ask cut anywhere is refused as truncated; one that claims a payload contradicts itself.
#[test]
fn hostile_permits_are_refused() {
    let mut slot = [0; 24];
    let permit = Permit {
        source: NodeId(1),
        destination: NodeId(2),
        session: 3,
        round: u32::MAX,
        number: u32::MAX,
        frames: u32::MAX,
    };
    permit.write_ask(&mut slot).unwrap();
    for cut in 0..slot.len() {
        assert_eq!(parse(&slot[..cut]), Err(DropReason::Truncated), "at {cut}");
    }
    slot[6] = 1;
    assert_eq!(parse(&slot), Err(DropReason::Malformed));
    assert_eq!(permit.write_grant(&mut slot[..23]), None);
}

/// A slot that is too small is refused, not overrun.
#[test]
fn small_slot_is_refused() {
    assert_eq!(data(b"abc").write(&mut [0; 42]), None);
}

/// An empty message is one frame; an empty fragment of a longer message is malformed.
#[test]
fn empty_payload_needs_an_empty_message() {
    let mut slot = [0; 64];
    let mut frame = Data {
        offset: 0,
        length: 0,
        ..data(b"")
    };
    let bytes = frame.write(&mut slot).unwrap();
    assert!(parse(&slot[..bytes]).is_ok());
    frame.length = 5;
    let bytes = frame.write(&mut slot).unwrap();
    assert_eq!(parse(&slot[..bytes]), Err(DropReason::Malformed));
}

proptest! {
    /// No bytes make the parser panic.
    #[test]
    fn any_bytes_are_parsed(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0u8..16) {
        let _ = parse(&bytes);
        if let Some(first) = bytes.first_mut() {
            *first = VERSION << 4 | kind;
        }
        if let Some(second) = bytes.get_mut(1) {
            *second &= 0x7f;
        }
        let _ = parse(&bytes);
    }

    /// `parse_data` and `parse` agree on any bytes.
    #[test]
    fn data_is_read_alike(
        payload in proptest::collection::vec(any::<u8>(), 0..20),
        left in 0usize..70,
        (place, byte) in (0..raw::DATA_HEADER_BYTES, any::<u8>()),
        changes in any::<bool>(),
    ) {
        let mut slot = [0; 70];
        let whole = Data { offset: 0, length: payload.len() as u32, ..data(&payload) };
        whole.write(&mut slot).unwrap();
        if changes {
            slot[place] = byte;
        }
        for bytes in [&slot[..left], &slot] {
            let told = match parse(bytes) {
                Ok(Frame::Data(data)) => Some(data),
                _ => None,
            };
            prop_assert_eq!(parse_data(bytes), told);
        }
    }
}
