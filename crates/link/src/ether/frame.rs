//! The Ethernet header, the choice of frames that are for us, and the announcement.
//!
//! Called by the links for each frame, in both directions. `accept` reads untrusted bytes: it never panics.

use super::MacAddr;
use crate::{LinkAddr, LinkError};

/// IEEE 802 local experimental EtherType 1.
pub const ETHERTYPE: u16 = 0x88B5;
/// Bytes of destination, source and EtherType.
pub const HEADER_BYTES: usize = 14;
/// Shortest Ethernet frame, without its checksum: so an announcement is the same on every medium.
const FRAME_BYTES_MIN: usize = 60;
/// Start of an announcement's payload: no frames, and a text for people who capture frames.
const ANNOUNCEMENT: [u8; 17] = *b"\0\0tsumuji is here";

/// Writes the header of a frame into the first 14 bytes of `slot`.
///
/// # Panics
/// If `slot` is shorter.
#[inline]
pub fn write_header(slot: &mut [u8], destination: MacAddr, source: MacAddr) {
    slot[..6].copy_from_slice(&destination.0);
    slot[6..12].copy_from_slice(&source.0);
    slot[12..HEADER_BYTES].copy_from_slice(&ETHERTYPE.to_be_bytes());
}

/// The destination of a frame that the station `me` of the link `name` sends to `to`; an error if `to` is no address of another station.
#[inline]
pub(crate) fn destination(
    name: &'static str,
    me: MacAddr,
    to: LinkAddr,
) -> Result<MacAddr, LinkError> {
    match to {
        LinkAddr::Ether(mac) if mac.is_station() && mac != me => Ok(mac),
        LinkAddr::Broadcast | LinkAddr::Ether(MacAddr::BROADCAST) => Ok(MacAddr::BROADCAST),
        _ => Err(LinkError::NoSuchPeer { link: name, to }),
    }
}

/// Why a received frame is not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ignored {
    /// Shorter than a header.
    Short,
    /// Of another protocol.
    EtherType,
    /// For another station or a group.
    Destination,
    /// From no possible station address, or from our own address.
    Source,
    /// No payload.
    Empty,
    /// An announcement: only the switch needs it.
    Announcement,
}

impl Ignored {
    /// Whether the frame counts as dropped: an announcement does not.
    #[must_use]
    pub fn is_drop(self) -> bool {
        self != Self::Announcement
    }
}

/// The sender and the payload (see `Frames`) of a frame that arrived at the station `me`.
#[inline]
pub fn accept(frame: &[u8], me: MacAddr) -> Result<(MacAddr, &[u8]), Ignored> {
    let Some((header, payload)) = frame.split_first_chunk::<HEADER_BYTES>() else {
        return Err(Ignored::Short);
    };
    let [
        d0,
        d1,
        d2,
        d3,
        d4,
        d5,
        s0,
        s1,
        s2,
        s3,
        s4,
        s5,
        type_high,
        type_low,
    ] = *header;
    let destination = MacAddr([d0, d1, d2, d3, d4, d5]);
    let source = MacAddr([s0, s1, s2, s3, s4, s5]);
    if u16::from_be_bytes([type_high, type_low]) != ETHERTYPE {
        return Err(Ignored::EtherType);
    }
    if destination != me && destination != MacAddr::BROADCAST {
        return Err(Ignored::Destination);
    }
    if source == me || !source.is_station() {
        return Err(Ignored::Source);
    }
    match payload.first() {
        None => Err(Ignored::Empty),
        Some(0) if payload.starts_with(&ANNOUNCEMENT) => Err(Ignored::Announcement),
        Some(_) => Ok((source, payload)),
    }
}

/// A broadcast frame from which every switch of the segment learns where `me` is; `accept` ignores it.
#[must_use]
pub fn announcement(me: MacAddr) -> [u8; FRAME_BYTES_MIN] {
    let mut frame = [0; FRAME_BYTES_MIN];
    write_header(&mut frame, MacAddr::BROADCAST, me);
    frame[HEADER_BYTES..][..ANNOUNCEMENT.len()].copy_from_slice(&ANNOUNCEMENT);
    frame
}
