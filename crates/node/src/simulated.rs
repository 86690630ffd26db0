//! The production loop (`drive`) over any link and clock, for the simulator. Not a part of this crate's interface.
//!
//! Used by `tsumuji-sim` only. There are no channels, no other threads and no waiting here: the simulator plays the program, and calls `poll_once` when a
//! timer has expired or something arrived.

use tsumuji_link::checked::Checked;
use tsumuji_link::{Link, LinkAddr, LinkError, MayHaveRings};
use tsumuji_proto::{
    Channel, Datagram, Destination, Duration, Engine, Instant, NodeId, Pace, Payload, SendId,
    SubmitError,
};

pub use crate::clock::Clock;
use crate::clock::to_std;
use crate::drive::{Drive, Sent};
pub use crate::drive::{Intake as Program, UNTRACKED};
pub use crate::error::SendError;
use crate::idle::Idle;
use crate::membership::Member;
use crate::options::IdlePolicy;
use crate::table::Table;

/// An engine over a link, driven as in production.
#[derive(Debug)]
pub struct Driver<L: Link, C: Clock> {
    drive: Drive<L, C>,
}

impl<L: MayHaveRings, C: Clock> Driver<L, C> {
    /// A driver of the node `me`, without peers.
    pub fn new(me: NodeId, link: L, engine: Engine, clock: C) -> Self {
        let (link, table) = (Checked::new(link), Table::empty(me));
        let idle = Idle::new(IdlePolicy::default(), false);
        Self {
            drive: Drive::new(link, engine, table, clock, idle, None, None),
        }
    }

    /// Adds `peer` with its address.
    pub fn add_peer(&mut self, now: Instant, peer: NodeId, addr: LinkAddr) {
        if self.drive.link.rings().is_some() {
            let member = Member {
                id: peer,
                name: peer.to_string(),
                addr,
            };
            return self.drive.meet_member(&member, addr, Pace::Free);
        }
        self.drive.table.add(peer, addr);
        self.engine_mut().add_peer(now, peer);
    }

    /// Its engine.
    pub fn engine(&self) -> &Engine {
        &self.drive.engine
    }

    /// The engine, to be changed; a poll should follow.
    pub fn engine_mut(&mut self) -> &mut Engine {
        self.drive.mark_pending();
        &mut self.drive.engine
    }

    /// Sends a message of the program past the queue, where the link has rings, or queues it. [`UNTRACKED`]: it passed. A poll should follow.
    pub fn submit(
        &mut self,
        to: NodeId,
        channel: Channel,
        payload: Payload<'_>,
        notify: bool,
    ) -> Result<SendId, SubmitError> {
        let may_pass = !notify && !self.drive.is_deaf();
        if may_pass && matches!(self.drive.send_past(to, channel, &payload), Ok(Sent::Whole)) {
            return Ok(UNTRACKED);
        }
        self.engine_mut().submit(to, channel, payload, notify)
    }

    /// Sends a datagram of the program; it is dropped if it has not left after `deadline`. Returns for how many peers it neither left nor waits.
    /// A poll should follow.
    pub fn datagram(
        &mut self,
        to: Destination,
        datagram: Datagram<'_>,
        deadline: Option<Duration>,
    ) -> Result<usize, SendError> {
        self.drive.datagram(to, datagram, deadline.map(to_std))
    }

    /// One poll of the loop; returns how much it did.
    pub fn poll_once(&mut self, program: &mut impl Program) -> Result<usize, LinkError> {
        self.drive.poll_once(true, program)
    }

    /// When the engine, or the check for dead processes, needs a poll at the latest.
    pub fn next_timer(&self) -> Option<Instant> {
        let timeout = self.drive.engine.poll_timeout();
        timeout
            .into_iter()
            .chain(self.drive.next_liveness_check())
            .min()
    }

    /// Whether frames wait for room in the link.
    pub fn has_backlog(&self) -> bool {
        self.drive.has_backlog()
    }

    /// Number of frames refused for their checksums.
    pub fn refused_frames(&self) -> u64 {
        let counters = self.drive.link.counters();
        counters.damaged_frames + counters.unchecked_frames
    }
}
