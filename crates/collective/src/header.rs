//! The header of 32 bytes before each message of this crate.
//!
//! Used by `core` and `operation` for every message. Input may be any bytes: an invalid header gives `None`.

use tsumuji_node::Priority;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

use crate::group::Hash;

/// Version of headers. It is part of what members compare when they compare tables: of another version they are told as of another table.
pub(crate) const VERSION: u64 = 2;

/// Bytes before the payload.
pub(crate) const HEADER_BYTES: usize = size_of::<RawHeader>();

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawHeader {
    kind: u8,
    code: u8,
    tag: U16,
    sequence: U32,
    key: U64,
    offset: U64,
    /// Its low 40 bits: no transfer has a tebibyte.
    total: [u8; 5],
    digest: [u8; 3],
}

/// Type of a message; on the wire its number, from 0 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, TryFromBytes, Immutable, KnownLayout)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A whole small transfer, sent on credit.
    Eager,
    /// A piece of a transfer that the receiver has opened.
    Piece,
    /// The receiver of a transfer is ready; `offset` 1: and may read it in the sender's memory. The receiver of a small one sends this when it has waited
    /// for long, or is asked.
    Open,
    /// The sender of a small transfer has no credit left, or that of a long one has waited for long: they ask for `Open`.
    Ask,
    /// `offset` bytes of eager messages were consumed.
    Credit,
    /// The group failed from this operation on: `tag` is the reason, `offset` the member.
    Abort,
    /// Hash of the sender's table (`offset`): all members must choose the same algorithms.
    Table,
    /// In a native broadcast the sender, and all below it in the tree, have `offset` bytes without gap.
    Reached,
    /// The sender lacks the ranges in the payload.
    Missing,
    /// A piece of a native broadcast, sent reliably to a member that lacked it.
    Repair,
    /// The whole transfer is at address `offset` of the sender; the payload identifies its process.
    Direct,
    /// The transfer was read (`offset` is its length), or cannot be (0).
    Taken,
    /// The transfer was still unchanged when it was read.
    Confirm,
    /// In a native broadcast the sender lacks the first report of the receiver, its child in the tree.
    Unheard,
    /// Answer to a question whose kind is `offset`: the operation is over at the sender.
    Over,
}

impl Kind {
    /// Whether this message makes its receiver answer, which must reach the session in which it was sent.
    pub(crate) fn wants_answer(self) -> bool {
        matches!(
            self,
            Self::Open | Self::Ask | Self::Missing | Self::Direct | Self::Taken | Self::Unheard
        )
    }

    /// Whether this message asks for what a member whose operation is over has told before, or never will.
    pub(crate) fn asks(self) -> bool {
        matches!(self, Self::Open | Self::Ask | Self::Missing | Self::Unheard)
    }
}

/// What a member called, as others see it: a code of operation and algorithm (`api`), with a digest of the arguments that must be the same on all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Called {
    code: u8,
    /// 24 bits.
    digest: u32,
}

impl Called {
    /// An operation without further arguments.
    pub(crate) const fn new(code: u8) -> Self {
        Self { code, digest: 0 }
    }

    /// The same with one more argument.
    pub(crate) fn with(self, argument: u64) -> Self {
        let mut hash = Hash::new(u64::from(self.digest));
        hash.add(argument);
        let [.., high, middle, low] = hash.0.to_be_bytes();
        Self {
            digest: u32::from_be_bytes([0, high, middle, low]),
            ..self
        }
    }
}

/// A valid header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// What the sender called: members that called or chose differently find out.
    pub(crate) called: Called,
    /// Number of the transfer between these two members within the operation.
    pub(crate) tag: u16,
    /// Sequence number of the operation within its group.
    pub(crate) sequence: u32,
    /// Key of the group.
    pub(crate) key: u64,
    /// Offset of the payload within the transfer.
    pub(crate) offset: u64,
    /// Bytes of the whole transfer.
    pub(crate) total: u64,
}

impl Header {
    /// Of a message that concerns no transfer: a number, in `offset`.
    pub(crate) fn told(kind: Kind, offset: u64) -> Self {
        Self {
            kind,
            called: Called::new(0),
            tag: 0,
            sequence: 0,
            key: 0,
            offset,
            total: 0,
        }
    }

    /// Priority of a control message. The answer to a receiver's question must not overtake the transfer's bytes.
    pub(crate) fn priority(&self) -> Priority {
        if self.kind == Kind::Over && self.offset == Kind::Open as u64 {
            Priority::NORMAL
        } else {
            Priority::URGENT
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let [t0, t1, t2, t3, t4, ..] = self.total.to_le_bytes();
        let [d0, d1, d2, _] = self.called.digest.to_le_bytes();
        zerocopy::transmute!(RawHeader {
            kind: self.kind as u8,
            code: self.called.code,
            tag: self.tag.into(),
            sequence: self.sequence.into(),
            key: self.key.into(),
            offset: self.offset.into(),
            total: [t0, t1, t2, t3, t4],
            digest: [d0, d1, d2],
        })
    }

    /// Splits a message into header and payload; `None` if it is invalid.
    pub(crate) fn split(message: &[u8]) -> Option<(Self, &[u8])> {
        let (raw, payload) = RawHeader::read_from_prefix(message).ok()?;
        let kind = Kind::try_read_from_bytes(&[raw.kind]).ok()?;
        let [t0, t1, t2, t3, t4] = raw.total;
        let [d0, d1, d2] = raw.digest;
        let header = Self {
            kind,
            called: Called {
                code: raw.code,
                digest: u32::from_le_bytes([d0, d1, d2, 0]),
            },
            tag: raw.tag.get(),
            sequence: raw.sequence.get(),
            key: raw.key.get(),
            offset: raw.offset.get(),
            total: u64::from_le_bytes([t0, t1, t2, t3, t4, 0, 0, 0]),
        };
        Some((header, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of kinds.
    const KINDS: u8 = 15;

    /// A header is read as it was written; short messages and unknown kinds are rejected.
    #[test]
    fn headers_are_read_and_written() {
        // Members of a group run one version, but their order is no accident.
        assert_eq!((Kind::Eager as u8, Kind::Over as u8), (0, KINDS - 1));
        for number in 0..KINDS {
            let kind = Kind::try_read_from_bytes(&[number]).expect("known");
            let header = Header {
                kind,
                called: Called::new(3).with(5),
                tag: 0xabcd,
                sequence: u32::MAX,
                key: 0x0123_4567_89ab_cdef,
                offset: 7,
                total: (1 << 40) - 1,
            };
            let mut message = header.to_bytes().to_vec();
            message.extend_from_slice(b"rest");
            assert_eq!(Header::split(&message), Some((header, &b"rest"[..])));
            assert_eq!(Header::split(&message[..HEADER_BYTES - 1]), None);
            message[0] = KINDS;
            assert_eq!(Header::split(&message), None);
        }
    }

    /// Calls of one operation with other arguments differ, whatever the order in which roots and operations are counted.
    #[test]
    fn calls_differ_by_their_arguments() {
        let plain = Called::new(0x61);
        let mut calls = vec![plain, Called::new(0x62)];
        calls.extend((0..200).map(|root| plain.with(root)));
        calls.extend((0..200).map(|root| plain.with(root).with(7)));
        for (place, call) in calls.iter().enumerate() {
            assert!(call.digest < 1 << 24);
            assert!(!calls[..place].contains(call), "{place}: {call:?}");
        }
        assert_eq!(plain.with(3).with(7), Called::new(0x61).with(3).with(7));
    }
}
