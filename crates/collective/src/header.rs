//! The header of 32 bytes before each message of this crate.
//!
//! Used by `core` and `operation` for every message. Input may be any bytes: an invalid header gives `None`.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// Bytes before the payload.
pub(crate) const HEADER_BYTES: usize = size_of::<RawHeader>();

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawHeader {
    kind: u8,
    algorithm: u8,
    tag: U16,
    sequence: U32,
    key: U64,
    offset: U64,
    total: U64,
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
}

impl Kind {
    /// Whether this message makes its receiver answer, which must reach the session in which it was sent.
    pub(crate) fn wants_answer(self) -> bool {
        matches!(
            self,
            Self::Open | Self::Ask | Self::Missing | Self::Direct | Self::Taken
        )
    }
}

/// A valid header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// Code of the operation: members that chose differently find out.
    pub(crate) algorithm: u8,
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
            algorithm: 0,
            tag: 0,
            sequence: 0,
            key: 0,
            offset,
            total: 0,
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        zerocopy::transmute!(RawHeader {
            kind: self.kind as u8,
            algorithm: self.algorithm,
            tag: self.tag.into(),
            sequence: self.sequence.into(),
            key: self.key.into(),
            offset: self.offset.into(),
            total: self.total.into(),
        })
    }

    /// Splits a message into header and payload; `None` if it is invalid.
    pub(crate) fn split(message: &[u8]) -> Option<(Self, &[u8])> {
        let (raw, payload) = RawHeader::read_from_prefix(message).ok()?;
        let kind = Kind::try_read_from_bytes(&[raw.kind]).ok()?;
        let header = Self {
            kind,
            algorithm: raw.algorithm,
            tag: raw.tag.get(),
            sequence: raw.sequence.get(),
            key: raw.key.get(),
            offset: raw.offset.get(),
            total: raw.total.get(),
        };
        Some((header, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of kinds.
    const KINDS: u8 = 13;

    /// A header is read as it was written; short messages and unknown kinds are rejected.
    #[test]
    fn headers_are_read_and_written() {
        // Members of a group run one version, but their order is no accident.
        assert_eq!((Kind::Eager as u8, Kind::Confirm as u8), (0, KINDS - 1));
        for number in 0..KINDS {
            let kind = Kind::try_read_from_bytes(&[number]).expect("known");
            let header = Header {
                kind,
                algorithm: 3,
                tag: 0xabcd,
                sequence: u32::MAX,
                key: 0x0123_4567_89ab_cdef,
                offset: 7,
                total: u64::MAX,
            };
            let mut message = header.to_bytes().to_vec();
            message.extend_from_slice(b"rest");
            assert_eq!(Header::split(&message), Some((header, &b"rest"[..])));
            assert_eq!(Header::split(&message[..HEADER_BYTES - 1]), None);
            message[0] = KINDS;
            assert_eq!(Header::split(&message), None);
        }
    }
}
