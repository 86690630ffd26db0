//! What a program holds: an engine over a link, and what arrived for the program and was not taken yet.
//!
//! Here are opening, closing, counters, and the loop run on behalf of calls that wait. What a program does with it lies below:
//! `send`, `receive`, `shares`, `presence` (who is there), `flow` (flow control), and `aside` (for libraries between).
//!
//! Owns a [`Drive`], an [`Inbox`] for what arrives during calls without a handler, and the state of peers. One thread at a
//! time: everything takes `&mut self`.

mod aside;
mod flow;
mod presence;
mod receive;
mod send;
mod shares;

use std::net::SocketAddr;
use std::time::Duration;

use tsumuji_link::{Link, LinkCounters, SealCounters};
use tsumuji_proto::{Config, Engine, Loan, NodeId};

use crate::aside::Shelf;
use crate::bootstrap::rendezvous::random_u64;
use crate::clock::{Clock, from_std};
use crate::drive::Drive;
use crate::error::{EndpointError, OpenError};
use crate::idle::Idle;
use crate::inbox::Inbox;
use crate::intake::Kept;
use crate::membership::{Member, Membership};
use crate::metrics::Publisher;
use crate::options::Options;
use crate::peers::Peers;
use crate::table::Table;

/// A link must carry at least this: any header and some payload. Every real link carries 1,400 or more.
const LEAST_FRAME_BYTES: usize = 256;

/// Silence after which no peer is thought to wait for an acknowledgement: some retransmission time-outs of a local network.
const LINGER: Duration = Duration::from_millis(20);

/// A peer that never falls silent does not keep us longer than this.
const LINGER_MOST: Duration = Duration::from_secs(1);

/// Farewells on a link that may lose them: all of three are lost once in 125 times at 20 % loss, and then silence tells.
const FAREWELLS: usize = 3;

/// A member of a cluster that sends and receives. See the crate's head for an example.
#[derive(Debug)]
pub struct Endpoint<L: Link> {
    drive: Drive<L>,
    inbox: Inbox,
    shelf: Shelf,
    peers: Peers,
    membership: Membership,
    send_queue_bytes: usize,
    /// The copy of a message found no memory since a wait found some.
    is_memory_short: bool,
    taken_bytes: usize,
}

/// What an endpoint has counted since it was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// The engine's: messages and frames, drops by reason.
    pub engine: tsumuji_proto::Counters,
    /// The link's: frames and bytes.
    pub link: LinkCounters,
    /// The seal's, if frames are sealed.
    pub seal: Option<SealCounters>,
    /// Frames dropped because they did not come from where their source lives.
    pub misplaced_frames: u64,
    /// Shares dropped because they came while no handler was there and the inbox was full.
    pub dropped_shares: u64,
}

impl<L: Link> Endpoint<L> {
    /// Joins `link` and `membership`, and begins hello with every other member.
    pub fn new(link: L, membership: Membership, options: Options) -> Result<Self, OpenError> {
        membership.check()?;
        let caps = link.caps();
        if caps.frame_bytes < LEAST_FRAME_BYTES {
            return Err(OpenError::FrameTooSmall {
                link: caps.name,
                frame_bytes: caps.frame_bytes,
                least: LEAST_FRAME_BYTES,
            });
        }
        let incarnation = match options.incarnation {
            Some(0) => return Err(OpenError::ZeroIncarnation),
            Some(given) => given,
            None => random_u64().map_err(OpenError::Random)? as u32 | 1, // never 0
        };
        let mut engine = Engine::new(Config {
            me: membership.me,
            incarnation,
            seed: options.seed
                ^ (u64::from(membership.me.0) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15), // golden ratio: spreads ids
            frame_bytes: caps.frame_bytes,
            receive_frames: caps.receive_frames,
            lossless: caps.lossless,
            congestion: options.congestion,
            budget_bytes: options.budget_bytes,
            message_limit_bytes: options.message_limit_bytes,
            send_queue_bytes: options.send_queue_bytes,
            keep_alive: from_std(options.keep_alive),
            dead_after: from_std(options.dead_after),
        });
        let table = Table::new(&membership);
        let clock = Clock::new();
        let now = clock.now();
        for peer in table.peers() {
            engine.add_peer(now, peer);
            engine.set_pace(now, peer, options.pace);
        }
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let idle = Idle::new(options.idle, table.pollers_here(), cores);
        let publisher = Publisher::start(options.metrics, &membership, caps.name)?;
        Ok(Self {
            drive: Drive::new(link, engine, table, clock, idle, publisher),
            inbox: Inbox::default(),
            shelf: Shelf::default(),
            peers: Peers::new(membership.members.len()),
            membership,
            send_queue_bytes: options.send_queue_bytes,
            is_memory_short: false,
            taken_bytes: 0,
        })
    }

    /// This node.
    pub fn me(&self) -> NodeId {
        self.membership.me
    }

    /// Everyone, this node included, in order of their ids.
    pub fn members(&self) -> &[Member] {
        &self.membership.members
    }

    /// As messages to people name it; empty if there is no such node.
    pub fn name_of(&self, id: NodeId) -> &str {
        self.membership
            .members
            .get(usize::from(id.0))
            .map_or("", |member| &member.name)
    }

    /// What was counted since the endpoint was opened.
    pub fn counters(&self) -> Counters {
        Counters {
            engine: *self.drive.engine.counters(),
            link: self.drive.link.counters(),
            seal: self.drive.link.sealing(),
            misplaced_frames: self.drive.misplaced_frames,
            dropped_shares: self.inbox.dropped_shares,
        }
    }

    /// Shows the present numbers to readers of metrics now, as polling does ten times a second: for a program about to compute
    /// long without polling. Never waits.
    pub fn publish_metrics(&mut self) {
        self.drive.look();
        self.drive.publish(self.inbox.dropped_shares);
    }

    /// Where metrics can be read over TCP, if `Options::metrics` asked for that.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.drive.publisher.as_ref().and_then(Publisher::addr)
    }

    /// As users write it, without parameters: `shm`, `udp`.
    pub fn link_name(&self) -> &'static str {
        self.drive.caps().name
    }

    /// Waits up to `timeout` for acknowledgements, then tells peers that this node leaves. On a link that loses frames it stays
    /// a moment longer, to answer those whose last acknowledgement got lost.
    pub fn close(mut self, timeout: Duration) {
        // A link that fails now ends the waiting; there is nobody left to tell.
        if !matches!(self.flush(timeout), Ok(true)) || self.drive.caps().lossless {
            return;
        }
        let start = std::time::Instant::now();
        while start.elapsed() < LINGER_MOST.min(timeout) {
            let linger = LINGER.min(timeout);
            if !matches!(self.run_until(linger, |_, _| true), Ok(true)) {
                return; // silence
            }
        }
    }

    fn run_until(
        &mut self,
        timeout: Duration,
        done: impl FnMut(&Engine, &Kept<'_>) -> bool,
    ) -> Result<bool, EndpointError> {
        self.run_lent(timeout, &Loan::NONE, done)
    }

    /// The same while `lent` is lent to the engine.
    fn run_lent(
        &mut self,
        timeout: Duration,
        lent: &Loan<'_>,
        mut done: impl FnMut(&Engine, &Kept<'_>) -> bool,
    ) -> Result<bool, EndpointError> {
        let mut kept = Kept {
            inbox: &mut self.inbox,
            shelf: &mut self.shelf,
            peers: &mut self.peers,
            lent,
        };
        Ok(self
            .drive
            .run_until(&mut kept, timeout, |engine, kept| done(engine, kept))?)
    }
}

impl<L: Link> Drop for Endpoint<L> {
    /// Tells peers that this node leaves, so that they need not wait for silence.
    fn drop(&mut self) {
        let _ = self.drive.send_pile(); // farewells overtake what waits
        let farewells = if self.drive.caps().lossless {
            1
        } else {
            FAREWELLS
        };
        for _ in 0..farewells {
            let now = self.drive.look();
            self.drive.engine.close(now);
            while let Ok(1..) = self.drive.transmit(&Loan::NONE) {} // a failed link has nobody to tell
        }
    }
}
