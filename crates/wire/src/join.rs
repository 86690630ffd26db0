//! Frames by which a process becomes a member of a running cluster: it asks one member, and that one answers.
//!
//! They pass between a process without an id and a node that does not know its address, so engines neither make nor take them.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::frame::{first_byte, flags};
use crate::id::NodeId;
use crate::raw::kind;

/// Longest text of a join or an admission, in bytes.
pub const JOIN_TEXT_BYTES: usize = 128;
/// Length of a join or admission frame before its text.
pub const JOIN_HEADER_BYTES: usize = size_of::<RawJoin>();

/// Stands for no id.
const NO_ID: u16 = u16::MAX;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawJoin {
    version_kind: u8,
    flags: u8,
    source: U16,
    destination: U16,
    text_bytes: U16,
    nonce: U64,
}
const _: () = assert!(size_of::<RawJoin>() == 16);

/// A process asks to become a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Join<'a> {
    /// The id that it had before; `None`: any.
    pub id: Option<NodeId>,
    /// Random number of the process; an answer repeats it.
    pub nonce: u64,
    /// Its name for people.
    pub name: &'a [u8],
}

/// Answer to a [`Join`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission<'a> {
    /// The member that answers.
    pub source: NodeId,
    /// That of the join.
    pub nonce: u64,
    /// The id of the new member, or why there is none.
    pub answer: Result<NodeId, Refusal<'a>>,
}

/// Why a process does not become a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal<'a> {
    /// For people.
    pub reason: &'a [u8],
    /// To ask again is of no use.
    pub is_final: bool,
}

impl<'a> Join<'a> {
    /// Reads a join; `None`: the bytes are something else.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (raw, name) = parse(kind::JOIN, bytes)?;
        (raw.source.get() == NO_ID).then_some(Self {
            id: id_of(raw.destination),
            nonce: raw.nonce.get(),
            name,
        })
    }

    /// Writes the frame; `None` if `slot` is too small or the name too long.
    pub fn write(&self, slot: &mut [u8]) -> Option<usize> {
        let ids = [NO_ID, self.id.map_or(NO_ID, |id| id.0)];
        write((kind::JOIN, 0), ids, self.nonce, self.name, slot)
    }
}

impl<'a> Admission<'a> {
    /// Reads an admission; `None`: the bytes are something else.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (raw, reason) = parse(kind::ADMISSION, bytes)?;
        Some(Self {
            source: id_of(raw.source)?,
            nonce: raw.nonce.get(),
            answer: id_of(raw.destination).ok_or(Refusal {
                reason,
                is_final: raw.flags & flags::FINAL != 0,
            }),
        })
    }

    /// Writes the frame; `None` if `slot` is too small or the reason too long.
    pub fn write(&self, slot: &mut [u8]) -> Option<usize> {
        let (id, reason, flag_bits) = match self.answer {
            Ok(id) => (id.0, &[][..], 0),
            Err(Refusal { reason, is_final }) => {
                (NO_ID, reason, if is_final { flags::FINAL } else { 0 })
            }
        };
        write(
            (kind::ADMISSION, flag_bits),
            [self.source.0, id],
            self.nonce,
            reason,
            slot,
        )
    }
}

fn id_of(raw: U16) -> Option<NodeId> {
    (raw.get() != NO_ID).then_some(NodeId(raw.get()))
}

fn parse(kind: u8, bytes: &[u8]) -> Option<(&RawJoin, &[u8])> {
    let (raw, rest) = RawJoin::ref_from_prefix(bytes).ok()?;
    let length = usize::from(raw.text_bytes.get());
    let is_sound = raw.version_kind == first_byte(kind)
        && raw.flags & flags::SEALED == 0
        && length <= JOIN_TEXT_BYTES;
    Some((raw, rest.get(..length).filter(|_| is_sound)?))
}

fn write(
    (kind, flags): (u8, u8),
    [source, destination]: [u16; 2],
    nonce: u64,
    text: &[u8],
    slot: &mut [u8],
) -> Option<usize> {
    let header = RawJoin {
        version_kind: first_byte(kind),
        flags,
        source: source.into(),
        destination: destination.into(),
        text_bytes: (text.len() as u16).into(),
        nonce: nonce.into(),
    };
    if text.len() > JOIN_TEXT_BYTES {
        return None;
    }
    let bytes = JOIN_HEADER_BYTES + text.len();
    let (head, rest) = slot.get_mut(..bytes)?.split_at_mut(JOIN_HEADER_BYTES);
    head.copy_from_slice(header.as_bytes());
    rest.copy_from_slice(text);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DropReason, source_of};

    /// What is written is read back; a frame cut anywhere, one of the other kind, and a text that is too long are refused.
    #[test]
    fn joins_read_as_written() {
        let mut slot = [0; 256];
        for id in [None, Some(NodeId(7))] {
            let join = Join {
                id,
                nonce: u64::MAX - 1,
                name: "östlich 3".as_bytes(),
            };
            let bytes = join.write(&mut slot).expect("room");
            assert_eq!(Join::parse(&slot), Some(join), "padding is ignored");
            assert_eq!(Admission::parse(&slot), None);
            assert_eq!(source_of(&slot), Some(NodeId(NO_ID)));
            assert_eq!(crate::parse(&slot), Err(DropReason::Kind));
            for cut in 0..bytes {
                assert_eq!(Join::parse(&slot[..cut]), None);
            }
        }
        let refused = |is_final| {
            Err(Refusal {
                reason: b"node 3 is alive",
                is_final,
            })
        };
        for answer in [Ok(NodeId(0)), Ok(NodeId(9)), refused(false), refused(true)] {
            let admission = Admission {
                source: NodeId(0),
                nonce: 1,
                answer,
            };
            admission.write(&mut slot).expect("room");
            assert_eq!(Admission::parse(&slot), Some(admission));
            assert_eq!(Join::parse(&slot), None);
        }
        let name = &[b'a'; JOIN_TEXT_BYTES + 1][..];
        let id = None;
        assert_eq!(Join { id, nonce: 0, name }.write(&mut slot), None);
        let name = &name[1..];
        assert_eq!(Join { id, nonce: 0, name }.write(&mut slot), Some(144));
        slot[6] += 1;
        assert_eq!(Join::parse(&slot), None);
    }
}
