//! Layout of each kind of frame on the wire (R-1 … ): little-endian, in field order, without padding.
//!
//! Used by `frame` only; no field has been checked.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the format: the high half of a frame's first byte.
pub const VERSION: u8 = 1;

/// Length of a data frame's header.
pub const DATA_HEADER_BYTES: usize = size_of::<RawData>();
/// Length of an ack frame's header, before the bitmap.
pub const ACK_HEADER_BYTES: usize = size_of::<RawAck>();
/// Length of the header of a datagram in one frame.
pub const DATAGRAM_HEADER_BYTES: usize = size_of::<RawDatagram>();
/// Length of the stamp of a datagram in several frames, before its payload.
pub const STAMP_BYTES: usize = size_of::<RawStamp>();
/// Length of a hello or welcome frame.
pub const HELLO_BYTES: usize = size_of::<RawHello>();
/// Length of an ask or grant frame.
pub const PERMIT_BYTES: usize = size_of::<RawPermit>();
/// Largest payload that the length field of 16 bits can state.
pub const MAX_PAYLOAD_BYTES: usize = u16::MAX as usize;

/// Low half of a frame's first byte. 14 and 15 are unassigned, and 11 is used by links.
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const DATAGRAM: u8 = 1;
    pub(crate) const ACK: u8 = 2;
    pub(crate) const HELLO: u8 = 3;
    pub(crate) const WELCOME: u8 = 4;
    pub(crate) const RESET: u8 = 5;
    pub(crate) const CLOSE: u8 = 6;
    /// An envelope around any other frame, defined by the sealing link.
    pub(crate) const SEALED: u8 = 7;
    /// Handshake between sealing links.
    pub(crate) const HANDSHAKE: u8 = 8;
    pub(crate) const ASK: u8 = 9;
    pub(crate) const GRANT: u8 = 10;
    pub(crate) const JOIN: u8 = 12;
    pub(crate) const ADMISSION: u8 = 13;
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawData {
    pub(crate) version_kind: u8,
    pub(crate) flags: u8,
    pub(crate) source: U16,
    pub(crate) destination: U16,
    pub(crate) payload_bytes: U16,
    pub(crate) session: U32,
    pub(crate) number: U32,
    pub(crate) ack: U32,
    pub(crate) credit_ahead: U16,
    pub(crate) channel_id: U16,
    pub(crate) message: U32,
    pub(crate) offset: U32,
    pub(crate) length: U32,
    pub(crate) floor_delta: U16,
    pub(crate) class_priority: u8,
    pub(crate) ack_delay: u8,
}
const _: () = assert!(size_of::<RawData>() == 40);

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawDatagram {
    pub(crate) version_kind: u8,
    pub(crate) flags: u8,
    pub(crate) source: U16,
    pub(crate) channel_id: U16,
    pub(crate) payload_bytes: U16,
    pub(crate) incarnation: U32,
    pub(crate) epoch: U32,
    pub(crate) lap: U32,
    pub(crate) key: U32,
}
const _: () = assert!(size_of::<RawDatagram>() == 24);

/// Fields of a datagram of several frames, before its payload.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawStamp {
    pub(crate) epoch: U32,
    pub(crate) lap: U32,
    pub(crate) key: U32,
    /// Aligns the payload for elements of 8 bytes.
    pub(crate) zero: U32,
}
const _: () = assert!(size_of::<RawStamp>() == 16);

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawAck {
    pub(crate) version_kind: u8,
    pub(crate) flags: u8,
    pub(crate) source: U16,
    pub(crate) destination: U16,
    pub(crate) payload_bytes: U16,
    pub(crate) session: U32,
    pub(crate) ack: U32,
    pub(crate) credit: U32,
    pub(crate) window_kib: U32,
    pub(crate) ack_delay_us: U32,
}
const _: () = assert!(size_of::<RawAck>() == 28);

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawHello {
    pub(crate) version_kind: u8,
    pub(crate) flags: u8,
    pub(crate) source: U16,
    pub(crate) destination: U16,
    pub(crate) payload_bytes: U16,
    pub(crate) incarnation: U32,
    pub(crate) pairing: U32,
    pub(crate) nonce: U32,
    pub(crate) frame_bytes: U32,
    pub(crate) credit: U32,
    pub(crate) message_limit: U32,
    pub(crate) taken: U32,
}
const _: () = assert!(size_of::<RawHello>() == 36);

/// Reset.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawControl {
    pub(crate) version_kind: u8,
    pub(crate) flags: u8,
    pub(crate) source: U16,
    pub(crate) destination: U16,
    pub(crate) payload_bytes: U16,
    pub(crate) session: U32,
}
const _: () = assert!(size_of::<RawControl>() == 12);

/// Ask and grant.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawPermit {
    pub(crate) version_kind: u8,
    pub(crate) flags: u8,
    pub(crate) source: U16,
    pub(crate) destination: U16,
    pub(crate) payload_bytes: U16,
    pub(crate) session: U32,
    pub(crate) round: U32,
    pub(crate) number: U32,
    pub(crate) frames: U32,
}
const _: () = assert!(size_of::<RawPermit>() == 24);
