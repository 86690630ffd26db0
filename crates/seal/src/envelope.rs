//! The header before a sealed frame, as bytes and as a parsed value.
//!
//! Invariant: an `Envelope` that `parse` returned states no more bytes than the frame has, and has no unknown flag.

/// Version of the protocol; the high half of a frame's first byte.
const VERSION: u8 = 1;
/// Low half of a sealed frame's first byte.
const KIND_SEALED: u8 = 7;
/// Low half of a handshake frame's first byte.
const KIND_HANDSHAKE: u8 = 8;
/// Kinds from here on are unassigned.
const KIND_UNASSIGNED: u8 = 14;

pub(crate) const SEALED: u8 = VERSION << 4 | KIND_SEALED;
pub(crate) const HANDSHAKE: u8 = VERSION << 4 | KIND_HANDSHAKE;

/// Bytes before the inner frame.
pub(crate) const HEADER_BYTES: usize = 16;
/// Bytes after the inner frame.
pub(crate) const TAG_BYTES: usize = 16;
/// Bytes that sealing adds to each frame.
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + TAG_BYTES;
/// The length field has 16 bits.
pub(crate) const INNER_BYTES_MAX: usize = u16::MAX as usize;

/// Bits of the second byte.
pub(crate) mod flags {
    /// The inner frame is readable; only its tag protects it.
    pub(crate) const READABLE: u8 = 1;
    /// Sealed with the sender's group key, for all.
    pub(crate) const GROUP: u8 = 1 << 1;
    /// For the peer's seal, not for its engine.
    pub(crate) const CONTROL: u8 = 1 << 2;
    pub(super) const ALL: u8 = READABLE | GROUP | CONTROL;
}

/// Kind of a frame by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sealed,
    Handshake,
    /// An unsealed frame of the protocol.
    Open,
    /// No frame of the protocol.
    Unknown,
}

pub(crate) fn kind_of(frame: &[u8]) -> Kind {
    match frame.first() {
        Some(&SEALED) => Kind::Sealed,
        Some(&HANDSHAKE) => Kind::Handshake,
        // The other kinds that are assigned.
        Some(first) if first >> 4 == VERSION && first & 0xf < KIND_UNASSIGNED => Kind::Open,
        _ => Kind::Unknown,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) flags: u8,
    /// Bytes between header and tag; never 0.
    pub(crate) inner_bytes: u16,
    /// Identifies the session at the receiver, or the sender's group key.
    pub(crate) key_id: u32,
    /// The nonce: never used twice with one key.
    pub(crate) counter: u64,
}

impl Envelope {
    #[inline]
    pub(crate) fn header(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0] = SEALED;
        header[1] = self.flags;
        header[2..4].copy_from_slice(&self.inner_bytes.to_le_bytes());
        header[4..8].copy_from_slice(&self.key_id.to_le_bytes());
        header[8..].copy_from_slice(&self.counter.to_le_bytes());
        header
    }

    /// Reads a frame's first bytes; `frame_bytes` is the length of the whole. Bytes behind the tag are padding of the link.
    #[inline]
    pub(crate) fn parse(header: &[u8; HEADER_BYTES], frame_bytes: usize) -> Option<Self> {
        let [kind, flags, low, high, a, b, c, d, counter @ ..] = *header;
        let inner_bytes = u16::from_le_bytes([low, high]);
        let legal = kind == SEALED
            && flags & !flags::ALL == 0
            && inner_bytes > 0
            && frame_bytes >= OVERHEAD_BYTES + usize::from(inner_bytes);
        legal.then_some(Self {
            flags,
            inner_bytes,
            key_id: u32::from_le_bytes([a, b, c, d]),
            counter: u64::from_le_bytes(counter),
        })
    }

    #[inline]
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: Envelope = Envelope {
        flags: flags::GROUP,
        inner_bytes: 300,
        key_id: 0xdead_beef,
        counter: 0x0102_0304_0506_0708,
    };

    /// A header is read as it was written, and its layout is R-61's.
    #[test]
    fn header_as_documented() {
        let header = SOME.header();
        let expected = [
            0x17, 2, 0x2c, 1, 0xef, 0xbe, 0xad, 0xde, 8, 7, 6, 5, 4, 3, 2, 1,
        ];
        assert_eq!(header, expected);
        assert_eq!(Envelope::parse(&header, 332), Some(SOME));
        assert_eq!(Envelope::parse(&header, 400), Some(SOME));
    }

    /// Frames that are too short, empty, of another kind, or with unknown flags, have no envelope.
    #[test]
    fn illegal_headers() {
        assert_eq!(Envelope::parse(&SOME.header(), 331), None);
        for (at, value) in [(0, 0x16), (0, 0x27), (1, 8), (1, 0x80)] {
            let mut header = SOME.header();
            header[at] = value;
            assert_eq!(Envelope::parse(&header, 332), None);
        }
        let mut empty = SOME;
        empty.inner_bytes = 0;
        assert_eq!(Envelope::parse(&empty.header(), 332), None);
    }

    /// Each first byte is of one kind.
    #[test]
    fn kinds() {
        assert_eq!(kind_of(&[]), Kind::Unknown);
        for first in 0..=255_u8 {
            let expected = match first {
                0x10..=0x16 | 0x19..=0x1d => Kind::Open,
                0x17 => Kind::Sealed,
                0x18 => Kind::Handshake,
                _ => Kind::Unknown,
            };
            assert_eq!(kind_of(&[first]), expected);
        }
    }
}
