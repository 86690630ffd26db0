//! Frames of every kind, by the writers of `wire` or by hand.

use tsumuji_link::checked::{self, CHECK_BYTES};
use tsumuji_node::{Channel, DeliveryClass, NodeId, Priority};
use tsumuji_wire::{Ack, Admission, Control, Data, Datagram, Hello, Join, Permit, Refusal, flags};

pub(crate) const SOURCE: NodeId = NodeId(3);

pub(crate) const DESTINATION: NodeId = NodeId(5);

pub(crate) fn data(payload: &[u8]) -> Data<'_> {
    Data {
        source: SOURCE,
        destination: DESTINATION,
        flags: flags::ACK_NOW | flags::MORE,
        session: 0xdead_beef,
        number: 17,
        ack: 12,
        credit: 40,
        message: 4,
        offset: 0,
        length: 9000,
        floor_delta: 20,
        channel: Channel::new(DeliveryClass::Ordered, Priority::new(1).expect("legal"), 0),
        ack_delay: 7,
        payload,
    }
}

pub(crate) fn ack(bitmap: &[u8]) -> Ack<'_> {
    Ack {
        source: SOURCE,
        destination: DESTINATION,
        flags: flags::REFUSED,
        session: 0xdead_beef,
        ack: u32::MAX - 5, // so that the numbers wrap
        credit: 100,
        window_kib: 65536,
        ack_delay_us: 50,
        bitmap,
    }
}

pub(crate) fn datagram(payload: &[u8]) -> Datagram<'_> {
    Datagram {
        source: SOURCE,
        incarnation: 0x0102_0304,
        channel_id: 9,
        epoch: 2,
        lap: u32::MAX,
        key: 1000,
        payload,
    }
}

pub(crate) const HELLO: Hello = Hello {
    source: SOURCE,
    destination: DESTINATION,
    flags: flags::SUCI,
    incarnation: 0xcafe,
    pairing: 1,
    nonce: 0x89ab_cdef,
    frame_bytes: 1472,
    credit: 256,
    message_limit: u32::MAX,
    taken: 7,
};

pub(crate) const CONTROL: Control = Control {
    source: SOURCE,
    destination: DESTINATION,
    session: 0xdead_beef,
};

/// Ask, or grant, of no frames.
pub(crate) const PERMIT: Permit = Permit {
    source: SOURCE,
    destination: DESTINATION,
    session: 0xdead_beef,
    round: 6,
    number: 77,
    frames: 0,
};

fn admission(answer: Result<NodeId, Refusal<'_>>) -> Admission<'_> {
    Admission {
        source: SOURCE,
        nonce: 1 << 60,
        answer,
    }
}

pub(crate) fn written(write: impl FnOnce(&mut [u8]) -> Option<usize>) -> Vec<u8> {
    let mut slot = vec![0; 2048];
    let bytes = write(&mut slot).expect("fits");
    slot.truncate(bytes);
    slot
}

/// Kind 7: header, inner frame, tag.
pub(crate) fn sealed(flags: u8, inner: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x17, flags];
    frame.extend((inner.len() as u16).to_le_bytes());
    frame.extend(0x0badu32.to_le_bytes());
    frame.extend((1_u64 << 40).to_le_bytes());
    frame.extend(inner);
    frame.extend([0xee; 16]);
    frame
}

/// Kind 11: header with checksum, inner frame.
pub(crate) fn checked(inner: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; CHECK_BYTES];
    frame.extend(inner);
    checked::close(&mut frame, inner.len());
    frame
}

/// Bytes of each step's body, and where its parts end.
pub(crate) const STEPS: [(&str, &[(&str, usize)]); 4] = [
    ("ask", &[("asker_nonce", 8), ("zeros", 40)]),
    ("challenge", &[("asker_nonce", 8), ("cookie", 40)]),
    (
        "first",
        &[
            ("asker_nonce", 8),
            ("cookie", 40),
            ("ephemeral", 72),
            ("noise_key_id", 92),
        ],
    ),
    (
        "second",
        &[("asker_nonce", 8), ("ephemeral", 40), ("noise_key_id", 60)],
    ),
];

pub(crate) fn body_bytes(step: usize) -> Option<usize> {
    let (_, parts) = STEPS.get(step)?;
    parts.last().map(|(_, end)| *end)
}

/// Kind 8: header, body, proof.
pub(crate) fn handshake(step: u8) -> Vec<u8> {
    let bytes = body_bytes(step.into()).expect("a step") as u8;
    let header = [0x18, 1, bytes, 0, step, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 0xab];
    let body: Vec<u8> = (0..bytes).collect();
    [&header[..], &body, &[0xcc; 32]].concat()
}

/// read anew: what a seal takes for a legal frame of its own.
pub(crate) fn is_legal_seal(frame: &[u8]) -> bool {
    let stated = |at: usize| usize::from(u16::from_le_bytes([frame[at], frame[at + 1]]));
    if frame.len() < 16 {
        return false;
    }
    if frame[0] == 0x17 {
        let flags_known = matches!(frame[1], 0..=4);
        return flags_known && stated(2) > 0 && frame.len() >= 16 + stated(2) + 16;
    }
    frame[1] <= 1
        && frame[5..8] == [0; 3]
        && body_bytes(frame[4].into()) == Some(stated(2))
        && frame.len() >= 16 + stated(2) + 32
}

/// One of every kind, with and without what is optional.
pub(crate) fn every_kind() -> Vec<Vec<u8>> {
    let bitmap: Vec<u8> = [0x02, 0, 0xff].into_iter().chain([1; 20]).collect();
    vec![
        written(|slot| data(&[1; 1400]).write(slot)),
        written(|slot| {
            let mut data = data(&[2; 200]);
            (data.number, data.offset) = (19, 8800);
            (data.flags, data.floor_delta) = (flags::BUSY, u16::MAX);
            data.channel = Channel::new(DeliveryClass::Unordered, Priority::BULK, 3100);
            data.write(slot)
        }),
        // The content of the first again.
        written(|slot| {
            let mut data = data(&[1; 1400]);
            data.number = 20;
            data.write(slot)
        }),
        written(|slot| datagram(&1.5_f64.to_le_bytes()).write(slot)),
        written(|slot| ack(&bitmap).write(slot)),
        written(|slot| ack(&[]).write(slot)),
        written(|slot| HELLO.write_hello(slot)),
        written(|slot| HELLO.write_welcome(slot)),
        written(|slot| CONTROL.write_reset(slot)),
        written(|slot| ack(&[]).write_close(slot)),
        sealed(2, &[7; 50]),
        sealed(1, &written(|slot| data(&[3; 10]).write(slot))),
        sealed(4, &[8; 60]),
        sealed(3, &written(|slot| datagram(&[5; 8]).write(slot))),
        handshake(0),
        handshake(1),
        handshake(2),
        handshake(3),
        written(|slot| {
            let mut ack = ack(&[]);
            ack.flags = flags::NACK;
            ack.write(slot)
        }),
        written(|slot| {
            let ask = Permit {
                frames: 20,
                ..PERMIT
            };
            ask.write_ask(slot)
        }),
        written(|slot| PERMIT.write_ask(slot)),
        written(|slot| {
            let grant = Permit {
                frames: 8,
                ..PERMIT
            };
            grant.write_grant(slot)
        }),
        written(|slot| PERMIT.write_grant(slot)),
        written(|slot| {
            let mut data = data(&[4; 30]);
            (data.number, data.message, data.length) = (21, 5, 30);
            data.channel = Channel::datagram(11);
            data.write(slot)
        }),
        written(|slot| {
            let mut data = data(&[3, 0, 7, 8, 9, 0, 0, 1, 0, 6]);
            (data.number, data.message, data.length) = (22, 6, 10);
            data.flags = flags::BUNDLE;
            data.write(slot)
        }),
        checked(&written(|slot| datagram(&[6; 8]).write(slot))),
        written(|slot| {
            let join = Join {
                id: None,
                nonce: 1 << 60,
                name: b"pc3 4711",
            };
            join.write(slot)
        }),
        written(|slot| {
            let join = Join {
                id: Some(DESTINATION),
                nonce: 1 << 60,
                name: b"",
            };
            join.write(slot)
        }),
        written(|slot| admission(Ok(DESTINATION)).write(slot)),
        written(|slot| {
            let refusal = Refusal {
                reason: b"it is not dead",
                is_final: false,
            };
            admission(Err(refusal)).write(slot)
        }),
        written(|slot| {
            let refusal = Refusal {
                reason: b"it admits nobody",
                is_final: true,
            };
            admission(Err(refusal)).write(slot)
        }),
    ]
}
