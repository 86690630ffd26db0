//! Flows of other nodes: asked for, answered without the program's help, and told to the program as an event (R-80 … R-82).
//!
//! Called by `receive` and `transmit` for the two kinds of frame, and by the driver. Best effort: who hears nothing asks again.
//!
//! Invariants: of each peer one question of ours and one of its own is open at most, and a report answers the open one; what a question
//! costs is one frame, and no peer causes more than one in [`REPORT_EVERY`].

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Engine;
use super::receive::find;
use crate::counters::Drop;
use crate::event::{Event, Flow, RemoteFlow};
use crate::message::SubmitError;
use crate::peer::Peer;
use crate::peer::session::Phase;
use crate::time::{Duration, Instant};
use tsumuji_wire::report::{FLOW_RECORD_BYTES, NO_MORE, REPORT_HEADER_BYTES, state};
use tsumuji_wire::{FlowRecord, Inquiry, NodeId, Report};

/// One peer is answered at most so often: 5,000 frames a second, whatever it asks.
const REPORT_EVERY: Duration = Duration::from_micros(200);

/// Records of a report at most: as many as a frame of 9,000 bytes holds.
const RECORDS_MAX: usize = 124;

/// What is open between us and one peer. Most never ask, so it is made when the first question is.
#[derive(Debug, Default)]
pub(crate) struct Inquiries {
    /// Nonce of our last question.
    nonce: u32,
    /// It waits for its answer.
    open: bool,
    /// It waits to be written: from whom on, and how many.
    ask_due: Option<(NodeId, u16)>,
    /// The peer's waits to be answered.
    report_due: Option<Inquiry>,
    reported_at: Option<Instant>,
}

impl Engine {
    /// Asks `node` for the state of its traffic with its peers of id `first` and above, at most `most` of them and no more than a frame
    /// holds. The answer comes as [`Event::Flows`], or not at all: question and answer may be lost. A new question to the same
    /// node replaces an open one. Returns what names it.
    pub fn ask_flows(
        &mut self,
        now: Instant,
        node: NodeId,
        first: NodeId,
        most: u16,
    ) -> Result<u32, SubmitError> {
        let Some(peer) = self.peer_mut(node) else {
            return Err(SubmitError::UnknownPeer { peer: node });
        };
        if peer.session.phase == Phase::Dead {
            return Err(SubmitError::PeerDead { peer: node });
        }
        let inquiries = peer.inquiries.get_or_insert_default();
        inquiries.nonce = inquiries.nonce.wrapping_add(1);
        (inquiries.open, inquiries.ask_due) = (true, Some((first, most.max(1))));
        let nonce = inquiries.nonce;
        peer.session.set_inquiry_due(peer.is_up());
        self.enqueue(node, now);
        Ok(nonce)
    }

    /// An answer to what was last asked of `node` is no longer wanted.
    pub fn forget_question(&mut self, node: NodeId) {
        if let Some(peer) = self.peer_mut(node)
            && let Some(inquiries) = &mut peer.inquiries
        {
            (inquiries.open, inquiries.ask_due) = (false, None);
        }
    }

    #[cold]
    pub(super) fn handle_inquiry(&mut self, now: Instant, inquiry: &Inquiry) -> Result<(), Drop> {
        let (peer, _) = find(
            &mut self.peers,
            &mut self.shared,
            now,
            inquiry.source,
            inquiry.destination,
            Some(inquiry.session),
        )?;
        peer.last_heard = now;
        let inquiries = peer.inquiries.get_or_insert_default();
        if inquiries
            .reported_at
            .is_some_and(|at| now < at + REPORT_EVERY)
        {
            return Err(Drop::Rate);
        }
        inquiries.reported_at = Some(now);
        inquiries.report_due = Some(*inquiry);
        peer.session.set_inquiry_due(true);
        self.enqueue(inquiry.source, now);
        Ok(())
    }

    #[cold]
    pub(super) fn handle_report(&mut self, now: Instant, report: &Report<'_>) -> Result<(), Drop> {
        let (peer, shared) = find(
            &mut self.peers,
            &mut self.shared,
            now,
            report.source,
            report.destination,
            Some(report.session),
        )?;
        peer.last_heard = now;
        let Some(inquiries) = &mut peer.inquiries else {
            return Err(Drop::Session);
        };
        if !inquiries.open || inquiries.nonce != report.nonce {
            return Err(Drop::Session);
        }
        inquiries.open = false;
        let flows = report.records().take(RECORDS_MAX);
        shared.events.push_back(Event::Flows {
            peer: report.source,
            nonce: report.nonce,
            flows: flows.map(|record| RemoteFlow::from(&record)).collect(),
            next: (report.next != NO_MORE).then_some(report.next),
        });
        Ok(())
    }

    /// Writes what is open: the answer to the peer first.
    #[cold]
    pub(super) fn write_inquiry(&mut self, id: NodeId, slot: &mut [u8]) -> usize {
        let me = self.shared.config.me;
        let Some(peer) = self.peers[usize::from(id.0)].as_deref_mut() else {
            return 0;
        };
        peer.session.set_inquiry_due(false);
        let (session, room) = (peer.session.outgoing, slot.len().min(peer.frame_bytes));
        let Some(inquiries) = &mut peer.inquiries else {
            return 0;
        };
        if let Some(inquiry) = inquiries.report_due.take() {
            peer.session.set_inquiry_due(inquiries.ask_due.is_some());
            self.shared.counters.flow_answers += 1;
            return self.write_report(&inquiry, session, &mut slot[..room]);
        }
        let Some((first, most)) = inquiries.ask_due.take() else {
            return 0;
        };
        self.shared.counters.flow_questions += 1;
        let inquiry = Inquiry {
            source: me,
            destination: id,
            session,
            nonce: inquiries.nonce,
            first,
            most,
        };
        inquiry.write(slot).unwrap_or(0)
    }

    fn write_report(&self, inquiry: &Inquiry, session: u32, slot: &mut [u8]) -> usize {
        let room = slot.len().saturating_sub(REPORT_HEADER_BYTES) / FLOW_RECORD_BYTES;
        let most = usize::from(inquiry.most).min(room).min(RECORDS_MAX);
        let mut payload = Vec::with_capacity(most * FLOW_RECORD_BYTES);
        let mut next = NO_MORE;
        let peers = self.peers.iter().skip(usize::from(inquiry.first.0));
        for peer in peers.flatten() {
            if payload.len() == most * FLOW_RECORD_BYTES {
                next = peer.id;
                break;
            }
            let mut record = [0; FLOW_RECORD_BYTES];
            if let Some(flow) = self.flow(peer.id) {
                record_of(peer, &flow).write(&mut record);
            }
            payload.extend_from_slice(&record);
        }
        let report = Report {
            source: self.shared.config.me,
            destination: inquiry.source,
            session,
            nonce: inquiry.nonce,
            next,
            payload: &payload,
        };
        report.write(slot).unwrap_or(0)
    }
}

impl Peer {
    /// A session begins: what was asked before it did may leave. Or it ends, and nothing is open.
    pub(super) fn begin_inquiries(&mut self) {
        let due = |inquiries: &Inquiries| inquiries.ask_due.is_some();
        self.session
            .set_inquiry_due(self.inquiries.as_deref().is_some_and(due));
    }

    pub(super) fn end_inquiries(&mut self) {
        self.session.set_inquiry_due(false);
        if let Some(inquiries) = &mut self.inquiries {
            (inquiries.open, inquiries.ask_due, inquiries.report_due) = (false, None, None);
        }
    }
}

fn low(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn low64(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn record_of(peer: &Peer, flow: &Flow) -> FlowRecord {
    FlowRecord {
        peer: peer.id.0,
        state: match peer.session.phase {
            Phase::Connecting => state::CONNECTING,
            Phase::Up => state::UP,
            Phase::Dead => state::DEAD,
        },
        incoming_backlog: flow.incoming_backlog,
        rtt_ns: low64(flow.rtt.as_nanos()),
        rttvar_ns: low64(flow.rttvar.as_nanos()),
        in_flight_frames: low(flow.in_flight_frames),
        window_kib: low(flow.window_bytes / 1024),
        queued_messages: low(flow.queued_messages),
        queued_bytes: flow.queued_bytes as u64,
        retransmitted_frames: flow.retransmitted_frames,
        credit_frames: low(flow.credit_frames),
        superseded_datagrams: low64(flow.superseded_datagrams),
        late_datagrams: low64(flow.late_datagrams),
        lost_datagrams: low64(flow.lost_datagrams),
        granted_frames: low(flow.granted_frames),
        incoming_window_frames: low(flow.incoming_window_frames),
        incoming_bytes: flow.incoming_bytes as u64,
    }
}

impl From<&FlowRecord> for RemoteFlow {
    fn from(record: &FlowRecord) -> Self {
        let bytes = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        Self {
            peer: NodeId(record.peer),
            up: record.state == state::UP,
            flow: Flow {
                rtt: Duration::from_nanos(record.rtt_ns.into()),
                rttvar: Duration::from_nanos(record.rttvar_ns.into()),
                in_flight_frames: record.in_flight_frames as usize,
                window_bytes: (record.window_kib as usize).saturating_mul(1024),
                queued_messages: record.queued_messages as usize,
                queued_bytes: bytes(record.queued_bytes),
                retransmitted_frames: record.retransmitted_frames,
                credit_frames: record.credit_frames as usize,
                superseded_datagrams: record.superseded_datagrams.into(),
                late_datagrams: record.late_datagrams.into(),
                lost_datagrams: record.lost_datagrams.into(),
                granted_frames: record.granted_frames as usize,
                incoming_window_frames: record.incoming_window_frames as usize,
                incoming_bytes: bytes(record.incoming_bytes),
                incoming_backlog: record.incoming_backlog,
                ..Flow::default()
            },
        }
    }
}

pub(crate) type OpenInquiries = Option<Box<Inquiries>>;
