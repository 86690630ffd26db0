//! State of one peer.
//!
//! Owned by the engine, one for each member; `session` agrees with which incarnation frames are exchanged, `send` and `receive` are the two halves.

mod borrowing;
pub(crate) mod channel;
pub(crate) mod datagrams;
pub(crate) mod direct;
pub(crate) mod flight;
pub(crate) mod loss;
pub(crate) mod outgoing;
pub(crate) mod pace;
pub(crate) mod places;
pub(crate) mod queue;
pub(crate) mod reassembly;
pub(crate) mod receive;
pub(crate) mod rtt;
pub(crate) mod send;
pub(crate) mod session;

use crate::alarms::Alarm;
use crate::config::PeerLink;
use crate::congestion::Congestion;
use crate::receiving::Account;
use crate::time::Instant;
use direct::Talk;
use receive::Receive;
use send::Send;
use session::{Phase, Session};
use tsumuji_wire::NodeId;

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: NodeId,
    pub(crate) link: PeerLink,
    pub(crate) session: Session,
    /// How many sessions with the peer have ended here; this is the number of the present one.
    pub(crate) ended_sessions: u64,
    pub(crate) send: Send,
    pub(crate) receive: Receive,
    pub(crate) account: Account,
    /// State of direct messages.
    pub(crate) direct: Talk,
    /// The program was told that the peer runs another congestion control.
    pub(crate) told_other_congestion: bool,
    /// When `engine::timers` handles this peer next.
    pub(crate) alarm: Alarm,
    /// The peer is in the engine's queue of peers with something to write.
    pub(crate) queued: bool,
    /// A submit was refused: the program is told when there is room again.
    pub(crate) wants_writable: bool,
    /// Frame size agreed with the peer; 0 before.
    pub(crate) frame_bytes: usize,
    /// Largest message that the peer accepts.
    pub(crate) message_limit_bytes: usize,
    /// Free part of the peer's budget in KiB, as it stated last; `None`: not in this session.
    pub(crate) window_kib: Option<u32>,
    pub(crate) last_heard: Instant,
    pub(crate) last_ping: Instant,
    /// An acknowledgement is to be requested from the peer.
    pub(crate) ping_pending: bool,
}

impl Peer {
    pub(crate) fn new(
        (id, link): (NodeId, PeerLink),
        now: Instant,
        incarnation: u32,
        congestion: Congestion,
        account: Account,
    ) -> Self {
        Self {
            id,
            link,
            session: Session::new(now, incarnation),
            ended_sessions: 0,
            send: Send::new(congestion),
            receive: Receive::new(),
            account,
            direct: Talk::default(),
            told_other_congestion: false,
            alarm: Alarm::new(),
            queued: false,
            wants_writable: false,
            frame_bytes: 0,
            message_limit_bytes: u32::MAX as usize,
            window_kib: None,
            last_heard: now,
            last_ping: now,
            ping_pending: false,
        }
    }

    /// Free part of the peer's budget in bytes, as it stated last.
    pub(crate) fn window_bytes(&self) -> Option<usize> {
        let bytes = |kib| (kib as usize).saturating_mul(1024);
        self.window_kib.map(bytes)
    }

    pub(crate) fn is_up(&self) -> bool {
        self.session.phase == Phase::Up
    }

    /// The pending acknowledgement needs a frame of its own.
    #[inline]
    pub(crate) fn wants_ack_alone(&self) -> bool {
        self.receive.arrivals.has_gap()
            || self.receive.refused
            || self.direct.is(Talk::WORD_PENDING)
            || !self.send.carries_acks()
    }

    /// Whether something may be written now.
    #[inline(always)] // as Queue::acknowledge
    pub(crate) fn wants_transmit(&mut self, now: Instant) -> bool {
        // Most peers that may write have data or acknowledgements: these are checked first.
        self.is_up()
            && (self.receive.ack_now | self.receive.grant_pending | self.ping_pending
                || self.send.is_sendable(now))
            || self.session.has_control()
    }
}
