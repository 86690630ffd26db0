//! All that is known of one peer.
//!
//! Owned by the engine, one per member; `session` says which life we talk to, `send` and `receive` are the two halves.

pub(crate) mod flight;
pub(crate) mod lane;
pub(crate) mod latest;
pub(crate) mod loss;
pub(crate) mod outgoing;
pub(crate) mod queue;
pub(crate) mod reassembly;
pub(crate) mod receive;
pub(crate) mod rtt;
pub(crate) mod send;
pub(crate) mod session;
mod stream;

use crate::time::Instant;
use receive::Receive;
use send::Send;
use session::{Phase, Session};
use tsumuji_wire::NodeId;

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: NodeId,
    pub(crate) session: Session,
    pub(crate) send: Send,
    pub(crate) receive: Receive,
    /// Stands in the engine's queue of peers with something to write.
    pub(crate) queued: bool,
    /// A submit was refused: say when there is room again.
    pub(crate) wants_writable: bool,
    /// Largest frame that both sides take.
    pub(crate) frame_bytes: usize,
    /// Largest message the peer takes.
    pub(crate) message_limit_bytes: usize,
    /// What the peer's program had room for when it last said so.
    pub(crate) window_bytes: usize,
    pub(crate) last_heard: Instant,
    pub(crate) last_ping: Instant,
    /// Ask for a sign of life.
    pub(crate) ping_due: bool,
}

impl Peer {
    pub(crate) fn new(id: NodeId, now: Instant, incarnation: u32) -> Self {
        Self {
            id,
            session: Session::new(now, incarnation),
            send: Send::new(),
            receive: Receive::new(),
            queued: false,
            wants_writable: false,
            frame_bytes: 0,
            message_limit_bytes: u32::MAX as usize,
            window_bytes: 0,
            last_heard: now,
            last_ping: now,
            ping_due: false,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.session.phase == Phase::Up
    }

    /// Something may be written now.
    #[inline]
    pub(crate) fn wants_transmit(&mut self, now: Instant) -> bool {
        self.session.has_control()
            || self.is_up() && (self.receive.ack_now || self.ping_due || self.send.is_sendable(now))
    }
}
