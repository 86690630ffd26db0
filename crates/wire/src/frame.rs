//! Parsing and writing of legal frames.
//!
//! Invariant: a frame that `parse` returned lies within the bytes it was given, and its fields obey R-1 …. The engine decides whether it
//! is wanted (session, window, incarnation).

use zerocopy::{FromBytes, IntoBytes};

use crate::bundle;
use crate::id::{Channel, NodeId};
use crate::raw::{
    self, RawAck, RawControl, RawData, RawDatagram, RawHello, RawPermit, RawStamp, STAMP_BYTES,
    VERSION, kind,
};

/// Bits of a frame's second byte.
pub mod flags {
    /// Data, ack: the sender requests an acknowledgement at once.
    pub const ACK_NOW: u8 = 1;
    /// Admission: the refusal stands; to ask again is of no use.
    pub const FINAL: u8 = 1;
    /// Data: the sender has more frames for this peer.
    pub const MORE: u8 = 1 << 1;
    /// Data: the sender serves other peers too and cannot use all its credit.
    pub const BUSY: u8 = 1 << 2;
    /// Ack: memory refused frames that are not in the bitmap.
    pub const REFUSED: u8 = 1 << 3;
    /// Ack, under `suci`: the number that it states is missing.
    pub const NACK: u8 = 1 << 4;
    /// Hello, welcome: the sender runs the congestion control `suci`; without it, `credit`.
    pub const SUCI: u8 = 1 << 5;
    /// Data: a direct message or a part of one, without a number.
    pub const DIRECT: u8 = 1 << 5;
    /// Ack: the sender takes direct messages.
    pub const TAKES_DIRECT: u8 = 1 << 6;
    /// Data: the payload is a bundle of whole messages.
    pub const BUNDLE: u8 = 1 << 6;
    /// Reserved: no frame bears it, and one that does is refused.
    pub const SEALED: u8 = 1 << 7;
}

/// Why bytes are not a legal frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// Shorter than its header or its stated length.
    Truncated,
    /// Another version.
    Version,
    /// Unknown kind.
    Kind,
    /// An envelope or a handshake of sealed links, or flagged as sealed; this node has no key.
    Sealed,
    /// Fields that contradict each other (an offset past the end, an odd bitmap …).
    Malformed,
}

/// A legal frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A fragment of a reliable message.
    Data(Data<'a>),
    /// A best-effort message.
    Datagram(Datagram<'a>),
    /// Acknowledgement and credit.
    Ack(Ack<'a>),
    /// First step of the handshake between two nodes.
    Hello(Hello),
    /// Answer to a hello.
    Welcome(Hello),
    /// The session of a received frame is unknown.
    Reset(Control),
    /// The sender leaves; also its last acknowledgement.
    Close(Ack<'a>),
    /// Asks for permission to send frames again.
    Ask(Permit),
    /// Permits frames to be sent again.
    Grant(Permit),
}

/// A fragment of a reliable message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data<'a> {
    /// Sender.
    pub source: NodeId,
    /// Receiver.
    pub destination: NodeId,
    /// See `flags`.
    pub flags: u8,
    /// Session of the two nodes.
    pub session: u32,
    /// Packet number, low 32 bits; under `credit` never used twice.
    pub number: u32,
    /// All packet numbers below have arrived or are no longer awaited; low 32 bits.
    pub ack: u32,
    /// The receiver of this frame may send packet numbers below this; low 32 bits.
    pub credit: u32,
    /// Message number within its channel, low 32 bits.
    pub message: u32,
    /// Offset of the payload in the message.
    pub offset: u32,
    /// Length of the whole message.
    pub length: u32,
    /// `number` minus the lowest packet number the sender still awaits an answer for; 65535 means at least that.
    pub floor_delta: u16,
    /// Channel of the message.
    pub channel: Channel,
    /// How long the acknowledgement was held back, in units of 4 µs; saturates.
    pub ack_delay: u8,
    /// The message's bytes from `offset` on.
    pub payload: &'a [u8],
}

/// A best-effort message of one frame or several: for example values of a shared vector, or the state of something.
///
/// It may be lost, late or repeated: lap and epoch state which datagram is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Sender. The engine fills it in, and the incarnation.
    pub source: NodeId,
    /// Incarnation of the sender.
    pub incarnation: u32,
    /// Id of its channel: a board, or a use of the program's own.
    pub channel_id: u16,
    /// Subject: a newer datagram replaces an older one of the same channel and key. On a board, the index of the first element.
    pub key: u32,
    /// Period of the computation; wraps.
    pub epoch: u32,
    /// Sequence number within the epoch; wraps. On a board, the lap in which the source wrote the values.
    pub lap: u32,
    /// Content. On a board, elements of f64, little-endian.
    pub payload: &'a [u8],
}

/// Acknowledgement, credit and window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack<'a> {
    /// Sender.
    pub source: NodeId,
    /// Receiver.
    pub destination: NodeId,
    /// See `flags`.
    pub flags: u8,
    /// Session of the two nodes.
    pub session: u32,
    /// As in `Data`.
    pub ack: u32,
    /// As in `Data`.
    pub credit: u32,
    /// Free part of the program's budget, in KiB.
    pub window_kib: u32,
    /// How long the acknowledgement was held back, in µs. In a close frame: how many direct messages of the program were taken.
    pub ack_delay_us: u32,
    /// Bit i of byte j: packet number `ack + 8 j + i` has arrived.
    pub bitmap: &'a [u8],
}

/// Hello and welcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Sender.
    pub source: NodeId,
    /// Receiver.
    pub destination: NodeId,
    /// See `flags`.
    pub flags: u8,
    /// Incarnation of the sender; never 0.
    pub incarnation: u32,
    /// How often the sender, in this incarnation, has declared the receiver dead.
    pub pairing: u32,
    /// In a hello, it counts up; a welcome repeats that of the hello.
    pub nonce: u32,
    /// Largest frame that the sender takes from the receiver, and sends to it.
    pub frame_bytes: u32,
    /// Number of frames that may be sent at once.
    pub credit: u32,
    /// Largest message that the sender accepts.
    pub message_limit: u32,
    /// Direct messages of the program that the sender took in its session before this one.
    pub taken: u32,
}

/// Reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// Sender.
    pub source: NodeId,
    /// Receiver.
    pub destination: NodeId,
    /// Session that is unknown.
    pub session: u32,
}

/// Ask and grant of the congestion control `suci`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permit {
    /// Sender.
    pub source: NodeId,
    /// Receiver.
    pub destination: NodeId,
    /// Session of the two nodes.
    pub session: u32,
    /// Counts how often the asking node has found frames lost; a grant repeats it.
    pub round: u32,
    /// In an ask, the first number that waits to be sent again; in a grant, the number expected next. Low 32 bits.
    pub number: u32,
    /// In an ask, how many frames from `number` on wait to be sent again; in a grant, how many may be.
    pub frames: u32,
}

/// Stated source of a frame; `None` if the bytes are too short. Nothing else is checked.
pub fn source_of(bytes: &[u8]) -> Option<NodeId> {
    let source = bytes.get(2..4)?;
    Some(NodeId(u16::from_le_bytes([source[0], source[1]])))
}

/// Parses any bytes. Bytes after the stated length are link padding and ignored.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<Frame<'_>, DropReason> {
    let [version_kind, flag_bits, ..] = *bytes else {
        return Err(DropReason::Truncated);
    };
    if version_kind >> 4 != VERSION {
        return Err(DropReason::Version);
    }
    if flag_bits & flags::SEALED != 0 {
        return Err(DropReason::Sealed);
    }
    match version_kind & 0xf {
        kind::DATA => {
            let (raw, rest) = RawData::ref_from_prefix(bytes).map_err(|_| DropReason::Truncated)?;
            let payload = rest
                .get(..usize::from(raw.payload_bytes.get()))
                .ok_or(DropReason::Truncated)?;
            data_of(raw, raw.payload_bytes.get().into(), payload)
                .map(Frame::Data)
                .ok_or(DropReason::Malformed)
        }
        kind::DATAGRAM => parse_datagram(bytes),
        kind::ACK => parse_ack(bytes).map(Frame::Ack),
        kind => parse_seldom(kind, bytes),
    }
}

/// Parses the kinds of frames that are rare in steady traffic, out of line.
#[cold]
#[inline(never)]
fn parse_seldom(kind: u8, bytes: &[u8]) -> Result<Frame<'_>, DropReason> {
    match kind {
        kind::HELLO => parse_hello(bytes).map(Frame::Hello),
        kind::WELCOME => parse_hello(bytes).map(Frame::Welcome),
        kind::RESET => parse_control(bytes).map(Frame::Reset),
        kind::CLOSE => parse_ack(bytes).map(Frame::Close),
        kind::ASK => parse_permit(bytes).map(Frame::Ask),
        kind::GRANT => parse_permit(bytes).map(Frame::Grant),
        kind::SEALED | kind::HANDSHAKE => Err(DropReason::Sealed),
        _ => Err(DropReason::Kind),
    }
}

pub(crate) fn first_byte(kind: u8) -> u8 {
    VERSION << 4 | kind
}

/// As `parse`, for legal data frames, the most frequent kind. `None`: the bytes are something else, and `parse` states what.
#[inline]
pub fn parse_data(bytes: &[u8]) -> Option<Data<'_>> {
    let (raw, rest) = RawData::ref_from_prefix(bytes).ok()?;
    if raw.version_kind != first_byte(kind::DATA) || raw.flags & flags::SEALED != 0 {
        return None;
    }
    let payload = rest.get(..usize::from(raw.payload_bytes.get()))?;
    data_of(raw, raw.payload_bytes.get().into(), payload)
}

/// Parses the header of a data frame whose payload of `payload_bytes` is elsewhere; the result has an empty payload. The header must state that
/// length, or 0 if it is a direct message by reference, whose payload is whole.
#[inline]
pub fn parse_data_head(head: &[u8], payload_bytes: usize) -> Result<Data<'_>, DropReason> {
    let (raw, _) = RawData::ref_from_prefix(head).map_err(|_| DropReason::Truncated)?;
    if raw.version_kind != first_byte(kind::DATA) {
        return Err(DropReason::Kind);
    }
    if raw.flags & flags::SEALED != 0 {
        return Err(DropReason::Sealed);
    }
    let stated = match (raw.payload_bytes.get(), raw.flags & flags::DIRECT) {
        (0, flags::DIRECT) => raw.length.get(),
        (stated, _) => stated.into(),
    };
    if stated as usize != payload_bytes {
        return Err(DropReason::Truncated);
    }
    data_of(raw, stated, &[]).ok_or(DropReason::Malformed)
}

/// A data frame with that payload, or, if that is empty, with `stated` bytes elsewhere. `None`: it is malformed.
#[inline(always)] // on the path of every frame
fn data_of<'a>(raw: &RawData, stated: u32, payload: &'a [u8]) -> Option<Data<'a>> {
    let (offset, length) = (raw.offset.get(), raw.length.get());
    let end = u64::from(offset) + u64::from(stated);
    // An empty payload is legal only as the whole of an empty message.
    if end > u64::from(length) || (stated == 0 && length != 0) {
        return None;
    }
    let number = u32::from(raw.class_priority) << 16 | u32::from(raw.channel_id.get());
    let channel = Channel::from_number(number)?;
    let ack = raw.ack.get();
    Some(Data {
        source: NodeId(raw.source.get()),
        destination: NodeId(raw.destination.get()),
        flags: raw.flags,
        session: raw.session.get(),
        number: raw.number.get(),
        ack,
        credit: ack.wrapping_add(raw.credit_ahead.get().into()),
        message: raw.message.get(),
        offset,
        length,
        floor_delta: raw.floor_delta.get(),
        channel,
        ack_delay: raw.ack_delay,
        payload,
    })
}

fn parse_datagram(bytes: &[u8]) -> Result<Frame<'_>, DropReason> {
    let (raw, rest) = RawDatagram::ref_from_prefix(bytes).map_err(|_| DropReason::Truncated)?;
    let payload = rest
        .get(..usize::from(raw.payload_bytes.get()))
        .ok_or(DropReason::Truncated)?;
    Ok(Frame::Datagram(Datagram {
        source: NodeId(raw.source.get()),
        incarnation: raw.incarnation.get(),
        channel_id: raw.channel_id.get(),
        epoch: raw.epoch.get(),
        lap: raw.lap.get(),
        key: raw.key.get(),
        payload,
    }))
}

fn parse_ack(bytes: &[u8]) -> Result<Ack<'_>, DropReason> {
    let (raw, rest) = RawAck::ref_from_prefix(bytes).map_err(|_| DropReason::Truncated)?;
    let bitmap = rest
        .get(..usize::from(raw.payload_bytes.get()))
        .ok_or(DropReason::Truncated)?;
    Ok(Ack {
        source: NodeId(raw.source.get()),
        destination: NodeId(raw.destination.get()),
        flags: raw.flags,
        session: raw.session.get(),
        ack: raw.ack.get(),
        credit: raw.credit.get(),
        window_kib: raw.window_kib.get(),
        ack_delay_us: raw.ack_delay_us.get(),
        bitmap,
    })
}

fn parse_hello(bytes: &[u8]) -> Result<Hello, DropReason> {
    let (raw, _) = RawHello::ref_from_prefix(bytes).map_err(|_| DropReason::Truncated)?;
    if raw.incarnation.get() == 0 || raw.payload_bytes.get() != 0 {
        return Err(DropReason::Malformed);
    }
    Ok(Hello {
        source: NodeId(raw.source.get()),
        destination: NodeId(raw.destination.get()),
        flags: raw.flags,
        incarnation: raw.incarnation.get(),
        pairing: raw.pairing.get(),
        nonce: raw.nonce.get(),
        frame_bytes: raw.frame_bytes.get(),
        credit: raw.credit.get(),
        message_limit: raw.message_limit.get(),
        taken: raw.taken.get(),
    })
}

fn parse_control(bytes: &[u8]) -> Result<Control, DropReason> {
    let (raw, _) = RawControl::ref_from_prefix(bytes).map_err(|_| DropReason::Truncated)?;
    if raw.payload_bytes.get() != 0 {
        return Err(DropReason::Malformed);
    }
    Ok(Control {
        source: NodeId(raw.source.get()),
        destination: NodeId(raw.destination.get()),
        session: raw.session.get(),
    })
}

fn parse_permit(bytes: &[u8]) -> Result<Permit, DropReason> {
    let (raw, _) = RawPermit::ref_from_prefix(bytes).map_err(|_| DropReason::Truncated)?;
    if raw.payload_bytes.get() != 0 {
        return Err(DropReason::Malformed);
    }
    Ok(Permit {
        source: NodeId(raw.source.get()),
        destination: NodeId(raw.destination.get()),
        session: raw.session.get(),
        round: raw.round.get(),
        number: raw.number.get(),
        frames: raw.frames.get(),
    })
}

/// Writes `header` and `payload`; `None` if the slot is too small or the payload has more than 65535 bytes.
#[inline]
pub(crate) fn write_parts(
    slot: &mut [u8],
    header: &(impl IntoBytes + zerocopy::Immutable),
    payload: &[u8],
) -> Option<usize> {
    let header = header.as_bytes();
    let bytes = header.len() + payload.len();
    if payload.len() > raw::MAX_PAYLOAD_BYTES {
        return None;
    }
    let slot = slot.get_mut(..bytes)?;
    let (head, body) = slot.split_at_mut(header.len());
    head.copy_from_slice(header);
    body.copy_from_slice(payload);
    Some(bytes)
}

impl Data<'_> {
    /// Whether the payload is flagged as a bundle.
    #[inline]
    pub fn is_bundle(&self) -> bool {
        self.flags & flags::BUNDLE != 0
    }

    /// Number of messages in a frame that is flagged as a bundle; `None`: it is no legal bundle.
    pub fn bundled(&self) -> Option<usize> {
        let whole = self.offset == 0 && self.length as usize == self.payload.len();
        if whole && !self.channel.is_datagram() {
            bundle::count(self.payload)
        } else {
            None
        }
    }

    /// Writes the frame; `None` if `slot` is too small.
    #[inline]
    pub fn write(&self, slot: &mut [u8]) -> Option<usize> {
        write_parts(slot, &self.raw(), self.payload)
    }

    /// The header alone, for a payload that is sent from its own place.
    #[inline]
    pub fn head(&self) -> [u8; raw::DATA_HEADER_BYTES] {
        self.head_before(self.payload.len() as u16)
    }

    /// The header alone, for a payload of `payload_bytes` that is in several places.
    #[inline]
    pub fn head_before(&self, payload_bytes: u16) -> [u8; raw::DATA_HEADER_BYTES] {
        let mut header = self.raw();
        header.payload_bytes = payload_bytes.into();
        zerocopy::transmute!(header)
    }

    #[inline(always)] // on the path of every frame
    fn raw(&self) -> RawData {
        RawData {
            version_kind: first_byte(kind::DATA),
            flags: self.flags,
            source: self.source.0.into(),
            destination: self.destination.0.into(),
            payload_bytes: (self.payload.len() as u16).into(),
            session: self.session.into(),
            number: self.number.into(),
            ack: self.ack.into(),
            credit_ahead: credit_ahead(self.ack, self.credit).into(),
            channel_id: self.channel.id().into(),
            message: self.message.into(),
            offset: self.offset.into(),
            length: self.length.into(),
            floor_delta: self.floor_delta.into(),
            class_priority: (self.channel.number() >> 16) as u8,
            ack_delay: self.ack_delay,
        }
    }
}

/// How many numbers from `ack` on may be sent. Credit below the acknowledgement permits none; if it is too far ahead for the field, part of it is
/// stated.
#[inline]
fn credit_ahead(ack: u32, credit: u32) -> u16 {
    let ahead = credit.wrapping_sub(ack);
    if ahead > u32::MAX / 2 {
        0
    } else {
        ahead.min(u16::MAX.into()) as u16
    }
}

impl Datagram<'_> {
    /// An empty datagram, for the fields that are not set when one is made.
    pub const EMPTY: Datagram<'static> = Datagram {
        source: NodeId(0),
        incarnation: 0,
        channel_id: 0,
        epoch: 0,
        lap: 0,
        key: 0,
        payload: &[],
    };

    /// Writes the frame; `None` if `slot` is too small.
    pub fn write(&self, slot: &mut [u8]) -> Option<usize> {
        write_parts(slot, &self.head(), self.payload)
    }

    /// The header alone.
    #[inline]
    pub fn head(&self) -> [u8; raw::DATAGRAM_HEADER_BYTES] {
        let header = RawDatagram {
            version_kind: first_byte(kind::DATAGRAM),
            flags: 0,
            source: self.source.0.into(),
            channel_id: self.channel_id.into(),
            payload_bytes: (self.payload.len() as u16).into(),
            incarnation: self.incarnation.into(),
            epoch: self.epoch.into(),
            lap: self.lap.into(),
            key: self.key.into(),
        };
        zerocopy::transmute!(header)
    }

    /// The fields before the payload, if the datagram takes several frames.
    pub fn stamp(&self) -> [u8; STAMP_BYTES] {
        zerocopy::transmute!(RawStamp {
            epoch: self.epoch.into(),
            lap: self.lap.into(),
            key: self.key.into(),
            zero: 0.into(),
        })
    }

    /// Parses a datagram of several frames from its message; `None` if it is malformed.
    pub fn of_message(
        (source, incarnation): (NodeId, u32),
        channel_id: u16,
        message: &[u8],
    ) -> Option<Datagram<'_>> {
        let (raw, payload) = RawStamp::ref_from_prefix(message).ok()?;
        (raw.zero.get() == 0).then_some(Datagram {
            source,
            incarnation,
            channel_id,
            key: raw.key.get(),
            epoch: raw.epoch.get(),
            lap: raw.lap.get(),
            payload,
        })
    }
}

impl Ack<'_> {
    /// Writes an ack; `None` if `slot` is too small.
    pub fn write(&self, slot: &mut [u8]) -> Option<usize> {
        self.write_as(kind::ACK, slot)
    }

    /// Writes a close frame, which also acknowledges; `None` if `slot` is too small.
    pub fn write_close(&self, slot: &mut [u8]) -> Option<usize> {
        self.write_as(kind::CLOSE, slot)
    }

    fn write_as(&self, kind: u8, slot: &mut [u8]) -> Option<usize> {
        let header = RawAck {
            version_kind: first_byte(kind),
            flags: self.flags,
            source: self.source.0.into(),
            destination: self.destination.0.into(),
            payload_bytes: (self.bitmap.len() as u16).into(),
            session: self.session.into(),
            ack: self.ack.into(),
            credit: self.credit.into(),
            window_kib: self.window_kib.into(),
            ack_delay_us: self.ack_delay_us.into(),
        };
        write_parts(slot, &header, self.bitmap)
    }
}

impl Hello {
    /// Writes a hello; `None` if `slot` is too small.
    pub fn write_hello(&self, slot: &mut [u8]) -> Option<usize> {
        self.write(kind::HELLO, slot)
    }

    /// Writes a welcome; `None` if `slot` is too small.
    pub fn write_welcome(&self, slot: &mut [u8]) -> Option<usize> {
        self.write(kind::WELCOME, slot)
    }

    fn write(&self, kind: u8, slot: &mut [u8]) -> Option<usize> {
        let header = RawHello {
            version_kind: first_byte(kind),
            flags: self.flags,
            source: self.source.0.into(),
            destination: self.destination.0.into(),
            payload_bytes: 0.into(),
            incarnation: self.incarnation.into(),
            pairing: self.pairing.into(),
            nonce: self.nonce.into(),
            frame_bytes: self.frame_bytes.into(),
            credit: self.credit.into(),
            message_limit: self.message_limit.into(),
            taken: self.taken.into(),
        };
        write_parts(slot, &header, &[])
    }
}

impl Control {
    /// Writes a reset; `None` if `slot` is too small.
    pub fn write_reset(&self, slot: &mut [u8]) -> Option<usize> {
        self.write(kind::RESET, slot)
    }

    fn write(&self, kind: u8, slot: &mut [u8]) -> Option<usize> {
        let header = RawControl {
            version_kind: first_byte(kind),
            flags: 0,
            source: self.source.0.into(),
            destination: self.destination.0.into(),
            payload_bytes: 0.into(),
            session: self.session.into(),
        };
        write_parts(slot, &header, &[])
    }
}

impl Permit {
    /// Writes an ask; `None` if `slot` is too small.
    pub fn write_ask(&self, slot: &mut [u8]) -> Option<usize> {
        self.write(kind::ASK, slot)
    }

    /// Writes a grant; `None` if `slot` is too small.
    pub fn write_grant(&self, slot: &mut [u8]) -> Option<usize> {
        self.write(kind::GRANT, slot)
    }

    fn write(&self, kind: u8, slot: &mut [u8]) -> Option<usize> {
        let header = RawPermit {
            version_kind: first_byte(kind),
            flags: 0,
            source: self.source.0.into(),
            destination: self.destination.0.into(),
            payload_bytes: 0.into(),
            session: self.session.into(),
            round: self.round.into(),
            number: self.number.into(),
            frames: self.frames.into(),
        };
        write_parts(slot, &header, &[])
    }
}

#[cfg(test)]
mod tests;
