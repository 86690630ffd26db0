//! Questions about flows, and their answers.
//!
//! A part of `frame`, with a room of its own because a report has a layout within its payload.
//!
//! Invariant: a [`Report`] that `frame::parse` returned holds whole records.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::frame::{DropReason, first_byte, write_parts};
use crate::id::NodeId;
use crate::raw::kind;

/// Asks a node for the state of its traffic with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inquiry {
    /// Sender.
    pub source: NodeId,
    /// Receiver.
    pub destination: NodeId,
    /// Names the pair of lives that talk.
    pub session: u32,
    /// Which question of the sender's it is.
    pub nonce: u32,
    /// Of the receiver's peers, those with this id and above.
    pub first: NodeId,
    /// So many records at most.
    pub most: u16,
}

/// Answers an inquiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report<'a> {
    /// Sender.
    pub source: NodeId,
    /// Receiver.
    pub destination: NodeId,
    /// Names the pair of lives that talk.
    pub session: u32,
    /// The question's.
    pub nonce: u32,
    /// What to ask for next: peers from this id on. 65535: there are no more.
    pub next: NodeId,
    /// Whole records, one after the other; see `records`.
    pub payload: &'a [u8],
}

/// A peer's state, in a record.
pub mod state {
    /// Hello is under way.
    pub const CONNECTING: u8 = 0;
    /// Hello and welcome were exchanged.
    pub const UP: u8 = 1;
    /// Declared dead.
    pub const DEAD: u8 = 2;
}

/// One flow in a report: the traffic of the reporting node with one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowRecord {
    /// With whom.
    pub peer: u16,
    /// See `state`.
    pub state: u8,
    /// More wait to be sent to the reporting node.
    pub incoming_backlog: bool,
    /// Smoothed round-trip time, ns, saturating.
    pub rtt_ns: u32,
    /// Its mean deviation.
    pub rttvar_ns: u32,
    /// Frames sent and neither acknowledged nor lost.
    pub in_flight_frames: u32,
    /// What the peer's budget holds, KiB.
    pub window_kib: u32,
    /// Messages submitted and not acknowledged.
    pub queued_messages: u32,
    /// Their bytes.
    pub queued_bytes: u64,
    /// Frames sent again, ever.
    pub retransmitted_frames: u64,
    /// Frames that may be sent before the peer grants more.
    pub credit_frames: u32,
    /// Datagrams of several frames that were replaced.
    pub superseded_datagrams: u32,
    /// Datagrams of several frames that were late.
    pub late_datagrams: u32,
    /// Datagrams of several frames that were lost.
    pub lost_datagrams: u32,
    /// Frames that the peer may send.
    pub granted_frames: u32,
    /// Its share of the reporting node's window.
    pub incoming_window_frames: u32,
    /// Memory that its messages take at the reporting node.
    pub incoming_bytes: u64,
}

/// Bytes of a report before its records.
pub const REPORT_HEADER_BYTES: usize = size_of::<RawReport>();
/// Bytes of each record.
pub const FLOW_RECORD_BYTES: usize = size_of::<RawRecord>();
/// `next`, where there are no more.
pub const NO_MORE: NodeId = NodeId(u16::MAX);

/// Both kinds begin alike: an inquiry has `most` where a report has zero.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawReport {
    version_kind: u8,
    flags: u8,
    source: U16,
    destination: U16,
    payload_bytes: U16,
    session: U32,
    nonce: U32,
    first: U16,
    most: U16,
}
const _: () = assert!(size_of::<RawReport>() == 20);

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawRecord {
    peer: U16,
    state: u8,
    incoming_backlog: u8,
    rtt_ns: U32,
    rttvar_ns: U32,
    in_flight_frames: U32,
    window_kib: U32,
    queued_messages: U32,
    queued_bytes: U64,
    retransmitted_frames: U64,
    credit_frames: U32,
    superseded_datagrams: U32,
    late_datagrams: U32,
    lost_datagrams: U32,
    granted_frames: U32,
    incoming_window_frames: U32,
    incoming_bytes: U64,
}
const _: () = assert!(size_of::<RawRecord>() == 72);

pub(crate) fn parse_inquiry(bytes: &[u8]) -> Result<Inquiry, DropReason> {
    let (raw, _) = RawReport::ref_from_prefix(bytes).map_err(|_| DropReason::Truncated)?;
    if raw.payload_bytes.get() != 0 || raw.most.get() == 0 {
        return Err(DropReason::Malformed);
    }
    Ok(Inquiry {
        source: NodeId(raw.source.get()),
        destination: NodeId(raw.destination.get()),
        session: raw.session.get(),
        nonce: raw.nonce.get(),
        first: NodeId(raw.first.get()),
        most: raw.most.get(),
    })
}

pub(crate) fn parse_report(bytes: &[u8]) -> Result<Report<'_>, DropReason> {
    let (raw, rest) = RawReport::ref_from_prefix(bytes).map_err(|_| DropReason::Truncated)?;
    let payload = rest
        .get(..usize::from(raw.payload_bytes.get()))
        .ok_or(DropReason::Truncated)?;
    if payload.len() % FLOW_RECORD_BYTES != 0 || raw.most.get() != 0 {
        return Err(DropReason::Malformed);
    }
    Ok(Report {
        source: NodeId(raw.source.get()),
        destination: NodeId(raw.destination.get()),
        session: raw.session.get(),
        nonce: raw.nonce.get(),
        next: NodeId(raw.first.get()),
        payload,
    })
}

impl Inquiry {
    /// Writes the frame; `None` if `slot` is too small.
    pub fn write(&self, slot: &mut [u8]) -> Option<usize> {
        let header = RawReport {
            version_kind: first_byte(kind::INQUIRY),
            flags: 0,
            source: self.source.0.into(),
            destination: self.destination.0.into(),
            payload_bytes: 0.into(),
            session: self.session.into(),
            nonce: self.nonce.into(),
            first: self.first.0.into(),
            most: self.most.into(),
        };
        write_parts(slot, &header, &[])
    }
}

impl Report<'_> {
    /// Writes the frame; `None` if `slot` is too small.
    pub fn write(&self, slot: &mut [u8]) -> Option<usize> {
        let header = RawReport {
            version_kind: first_byte(kind::REPORT),
            flags: 0,
            source: self.source.0.into(),
            destination: self.destination.0.into(),
            payload_bytes: (self.payload.len() as u16).into(),
            session: self.session.into(),
            nonce: self.nonce.into(),
            first: self.next.0.into(),
            most: 0.into(),
        };
        write_parts(slot, &header, self.payload)
    }

    /// The flows, in order of their peers' ids.
    pub fn records(&self) -> impl Iterator<Item = FlowRecord> + '_ {
        self.payload
            .chunks_exact(FLOW_RECORD_BYTES)
            .filter_map(|bytes| RawRecord::ref_from_bytes(bytes).ok())
            .map(|raw| FlowRecord {
                peer: raw.peer.get(),
                state: raw.state,
                incoming_backlog: raw.incoming_backlog != 0,
                rtt_ns: raw.rtt_ns.get(),
                rttvar_ns: raw.rttvar_ns.get(),
                in_flight_frames: raw.in_flight_frames.get(),
                window_kib: raw.window_kib.get(),
                queued_messages: raw.queued_messages.get(),
                queued_bytes: raw.queued_bytes.get(),
                retransmitted_frames: raw.retransmitted_frames.get(),
                credit_frames: raw.credit_frames.get(),
                superseded_datagrams: raw.superseded_datagrams.get(),
                late_datagrams: raw.late_datagrams.get(),
                lost_datagrams: raw.lost_datagrams.get(),
                granted_frames: raw.granted_frames.get(),
                incoming_window_frames: raw.incoming_window_frames.get(),
                incoming_bytes: raw.incoming_bytes.get(),
            })
    }
}

impl FlowRecord {
    /// Writes the record into the first bytes of `room`; `None` if that is too small.
    pub fn write(&self, room: &mut [u8]) -> Option<usize> {
        let raw = RawRecord {
            peer: self.peer.into(),
            state: self.state,
            incoming_backlog: self.incoming_backlog.into(),
            rtt_ns: self.rtt_ns.into(),
            rttvar_ns: self.rttvar_ns.into(),
            in_flight_frames: self.in_flight_frames.into(),
            window_kib: self.window_kib.into(),
            queued_messages: self.queued_messages.into(),
            queued_bytes: self.queued_bytes.into(),
            retransmitted_frames: self.retransmitted_frames.into(),
            credit_frames: self.credit_frames.into(),
            superseded_datagrams: self.superseded_datagrams.into(),
            late_datagrams: self.late_datagrams.into(),
            lost_datagrams: self.lost_datagrams.into(),
            granted_frames: self.granted_frames.into(),
            incoming_window_frames: self.incoming_window_frames.into(),
            incoming_bytes: self.incoming_bytes.into(),
        };
        room.get_mut(..FLOW_RECORD_BYTES)?
            .copy_from_slice(raw.as_bytes());
        Some(FLOW_RECORD_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, parse};

    /// Question and answer read as written; half a record, or a question for none, is malformed.
    #[test]
    fn reports_read_as_written() {
        let inquiry = Inquiry {
            source: NodeId(1),
            destination: NodeId(2),
            session: 3,
            nonce: 4,
            first: NodeId(5),
            most: 6,
        };
        let mut slot = [0; 400];
        assert_eq!(inquiry.write(&mut slot), Some(20));
        assert_eq!(parse(&slot), Ok(Frame::Inquiry(inquiry)));
        let none = Inquiry { most: 0, ..inquiry };
        none.write(&mut slot);
        assert_eq!(parse(&slot), Err(DropReason::Malformed));
        let records = [1_u16, 7].map(|peer| FlowRecord {
            peer,
            state: state::UP,
            incoming_backlog: peer == 7,
            rtt_ns: 1 << 20,
            queued_bytes: 1 << 40,
            incoming_bytes: u64::MAX,
            lost_datagrams: 9,
            ..FlowRecord::default()
        });
        let mut payload = [0; 2 * FLOW_RECORD_BYTES];
        for (record, room) in records
            .iter()
            .zip(payload.chunks_exact_mut(FLOW_RECORD_BYTES))
        {
            assert!(record.write(room).is_some());
        }
        assert_eq!(records[0].write(&mut [0; FLOW_RECORD_BYTES - 1]), None);
        let report = Report {
            source: NodeId(1),
            destination: NodeId(2),
            session: 3,
            nonce: 4,
            next: NO_MORE,
            payload: &payload,
        };
        assert_eq!(report.write(&mut slot), Some(20 + 144));
        let Ok(Frame::Report(read)) = parse(&slot) else {
            panic!("no report");
        };
        assert_eq!(read, report);
        assert!(read.records().eq(records));
        for bytes in 0..20 + 144 {
            assert_eq!(parse(&slot[..bytes]), Err(DropReason::Truncated), "{bytes}");
        }
        slot[6] -= 1;
        assert_eq!(parse(&slot), Err(DropReason::Malformed));
    }
}
