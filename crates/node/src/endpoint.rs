//! What a program holds: an engine over a link, and what arrived for the program and was not taken yet.
//!
//! Here are opening, closing, counters, and the loop run on behalf of calls that wait. What a program does with it lies below:
//! `send`, `receive`, `channels` (owners, and other threads), `datagrams`, `presence` (who is there), `flow` (flow control), and `library`
//! (what libraries between must know of the link).
//!
//! An [`Endpoint`] is the program's side of a lock around a [`Core`]: a [`Drive`], [`Channels`] with what arrived and was not taken, and
//! the state of peers. The other side is the `assistant`'s, which drives while the program is away. One thread of the
//! program's at a time: what changes something takes `&mut self`.

mod batch;
mod channels;
mod datagrams;
mod descriptor;
mod flow;
mod library;
mod posts;
mod presence;
mod receive;
mod send;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tsumuji_link::checked::Checked;
use tsumuji_link::{Link, LinkCounters, LinkError, Rings, SealCounters};
use tsumuji_proto::{Borrowed, Config, Engine, NodeId};

pub use self::batch::Batch;
pub use self::datagrams::NOW_OR_NEVER;
use self::descriptor::{Descriptor, Mail};
pub use self::posts::{Post, Unposted};
use crate::assistant::Assistant;
use crate::channel::Channels;
use crate::channel::bell::Bell;
use crate::clock::{Clock, SystemClock, from_std};
use crate::drive::Drive;
use crate::error::{CloseError, OpenError, SendError};
use crate::idle::Idle;
use crate::intake::Keeping;
use crate::lock::{self, Owner, Stamped, biased};
use crate::membership::{Member, Membership};
use crate::metrics::Publisher;
use crate::options::{Options, ProgressBy};
use crate::peers::Peers;
use crate::random::random_u64;
use crate::table::Table;

/// A link must carry at least this: any header and some payload. Every real link carries 1,400 or more.
const LEAST_FRAME_BYTES: usize = 256;

/// Silence after which no peer is thought to wait for an acknowledgement: some retransmission time-outs of a local network.
const LINGER: Duration = Duration::from_millis(20);

/// A peer that never falls silent does not keep us longer than this.
const LINGER_MOST: Duration = Duration::from_secs(1);

/// Farewells on a link that may lose them: all of five are lost once in 3,000 times at 20 % loss, and then silence tells. They say what has
/// come, too: what a peer has no other answer for counts as lost.
const FAREWELLS: usize = 5;

/// A member of a cluster that sends and receives. See the crate's head for an example.
///
/// After `fork` the child's copy is inert: it says nothing to peers, and using it panics.
#[derive(Debug)]
pub struct Endpoint<L: Link> {
    /// Ended before the rest: it holds the link's descriptor.
    assistant: Option<Assistant>,
    descriptor: Descriptor,
    membership: Arc<Membership>,
    /// It ends without a farewell.
    vanishes: bool,
    core: Owner<Core<L>>,
}

/// What program and assistant drive in turn.
#[derive(Debug)]
pub(crate) struct Core<L: Link> {
    pub(crate) drive: Drive<L>,
    channels: Channels,
    peers: Peers,
    membership: Arc<Membership>,
    /// The copy of a message found no memory since a wait found some.
    is_memory_short: bool,
    taken_bytes: usize,
    /// Rung when the assistant takes in what a program that sleeps on its descriptor waits for.
    mail: Mail,
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
    pub spoofed_source_frames: u64,
    /// Datagrams dropped because they came while no handler was there and their channel was full.
    pub dropped_datagrams: u64,
}

impl<L: Link> Endpoint<L> {
    /// Joins `link` and `membership`, and begins hello with every other member.
    pub fn new(link: L, membership: Membership, options: Options) -> Result<Self, OpenError>
    where
        L: Send + 'static,
    {
        membership.check()?;
        let membership = Arc::new(membership);
        let link = Checked::new(link);
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
        let table = Table::new(&membership);
        let kernel_tells = (table.peers())
            .filter_map(|peer| table.addr(peer))
            .any(|addr| {
                link.rings()
                    .is_some_and(|rings| rings.process_at(addr).is_some())
            });
        let mut engine = Engine::new(Config {
            me: membership.me,
            incarnation,
            frame_bytes: caps.frame_bytes,
            receive_frames: caps.receive_frames,
            lossless: caps.lossless,
            ring_bytes: link.rings().map_or(0, Rings::ring_bytes),
            congestion: options.congestion,
            budget_bytes: options.budget_bytes,
            message_limit_bytes: options.message_limit_bytes,
            send_queue_bytes: options.send_queue_bytes,
            keep_alive: from_std(options.keep_alive),
            dead_after: from_std(options.dead_after),
        });
        if kernel_tells {
            engine.bear_silence();
        }
        let clock = SystemClock::new();
        let now = clock.now();
        for peer in table.peers() {
            engine.add_peer(now, peer);
            engine.set_pace(now, peer, options.pace);
        }
        let is_contended = membership.is_oversubscribed(&membership.members);
        let idle = Idle::new(options.idle, is_contended);
        let publisher = Publisher::start(options.metrics, &membership, caps.name)?;
        let descriptor = Descriptor::new(&link).map_err(OpenError::Descriptor)?;
        let rung = lock::bell().map_err(OpenError::Descriptor)?;
        let bell = Arc::new(Bell::new(descriptor.fd(), Arc::clone(&rung)));
        let watched = clock.clone();
        let ours = Arc::clone(&bell);
        let mut drive = Drive::new(link, engine, table, clock, idle, publisher, Some(ours));
        if kernel_tells {
            drive.watch_liveness();
        }
        let core = Core {
            drive,
            channels: Channels::new(
                (membership.me, membership.members.len()),
                options.send_queue_bytes,
                Arc::clone(&bell),
            ),
            peers: Peers::new(membership.members.len()),
            membership: Arc::clone(&membership),
            is_memory_short: false,
            taken_bytes: 0,
            mail: descriptor.mail(),
        };
        let (core, other) = biased(core, rung);
        let assistant = match options.progress {
            ProgressBy::Program => None,
            ProgressBy::Assistant => {
                Some(Assistant::start(other, watched, bell).map_err(OpenError::Descriptor)?)
            }
        };
        Ok(Self {
            assistant,
            descriptor,
            membership,
            vanishes: false,
            core,
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
        let core = self.core.read();
        Counters {
            engine: *core.drive.engine.counters(),
            link: core.drive.link.counters(),
            seal: core.drive.link.sealing(),
            spoofed_source_frames: core.drive.spoofed_source_frames,
            dropped_datagrams: core.channels.dropped.datagrams,
        }
    }

    /// Shows the present numbers to readers of metrics now, as polling does ten times a second: for a program about to compute
    /// long without polling. Never waits.
    pub fn publish_metrics(&mut self) {
        let core = &mut *self.core.write();
        core.drive.refresh_now();
        core.drive.publish(core.channels.dropped);
    }

    /// Where metrics can be read over TCP, if `Options::metrics` asked for that.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        let core = self.core.read();
        core.drive.publisher.as_ref().and_then(Publisher::addr)
    }

    /// As users write it, without parameters: `shm`, `udp`.
    pub fn link_name(&self) -> &'static str {
        self.core.read().drive.caps().name
    }

    /// Ends without a word to anybody, as if the process had been killed: for tests of those who are left.
    #[doc(hidden)]
    pub fn vanish(mut self) {
        self.vanishes = true;
    }

    /// Waits up to `timeout` for acknowledgements, then tells peers that this node leaves. On a link that loses frames it stays
    /// a moment longer, to answer those whose last acknowledgement got lost. The endpoint is closed also where an error says what
    /// was not delivered.
    pub fn close(mut self, timeout: Duration) -> Result<(), CloseError> {
        let core = &mut *self.core.write();
        core.channels.tools.outbox.close();
        let start = std::time::Instant::now();
        let mut lost = Vec::new();
        let flushed = loop {
            // What was lost to one peer does not end the waiting for the others.
            match core.flush(timeout.saturating_sub(start.elapsed())) {
                Ok(flushed) => break flushed,
                Err(SendError::MessagesLost { peer, messages }) => lost.push((peer, messages)),
                Err(SendError::TooLarge { peer, .. }) => lost.push((peer, 1)),
                Err(SendError::Link(error)) => return Err(error.into()),
                Err(_) => break false, // `flush` says nothing else
            }
        };
        let given_up: Vec<(NodeId, usize)> = (core.drive.table.peers())
            .map(|peer| (peer, core.promised_messages(peer)))
            .filter(|(_, messages)| *messages > 0)
            .collect();
        let start = std::time::Instant::now();
        let lingers = flushed && !core.drive.caps().lossless;
        while lingers && start.elapsed() < LINGER_MOST.min(timeout) {
            let linger = LINGER.min(timeout);
            if !matches!(core.run_until(linger, |_, _| true), Ok(true)) {
                break; // silence
            }
        }
        if lost.is_empty() && given_up.is_empty() {
            return Ok(());
        }
        Err(CloseError::Undelivered { lost, given_up })
    }
}

impl<L: Link> Stamped for Core<L> {
    #[inline]
    fn stamp_ns(&self) -> u64 {
        self.drive.polled_at().as_nanos()
    }
}

impl<L: Link> Core<L> {
    /// One turn that keeps what arrives for later calls.
    pub(crate) fn progress(&mut self) -> Result<usize, LinkError> {
        let mut intake = Keeping {
            taker: None,
            channels: &mut self.channels,
            peers: &mut self.peers,
            borrowed: &Borrowed::NONE,
        };
        self.drive.poll_once(true, &mut intake)
    }

    /// The program sleeps on its descriptor, as far as is known.
    pub(crate) fn sleeps_on_descriptor(&self) -> bool {
        self.mail.is_armed()
    }

    /// Wakes a program that sleeps on its descriptor: what it waits for may have happened.
    pub(crate) fn tell_program(&mut self) {
        self.mail.ring();
    }

    /// A turn of the assistant's; how much it did. If the link fails, the program's next turn says so.
    pub(crate) fn progress_by_assistant(&mut self) -> usize {
        if self.drive.failure.is_some() {
            return 0;
        }
        match self.progress() {
            Ok(done) => done,
            Err(error) => {
                self.drive.failure = Some(error);
                0
            }
        }
    }

    /// The link's descriptor wakes the assistant. It does not where the link failed.
    pub(crate) fn arm_for_assistant(&mut self) -> bool {
        if self.drive.failure.is_some() {
            return true; // nothing will come
        }
        match self.drive.link.arm_fd() {
            Ok(armed) => armed,
            Err(error) => {
                self.drive.failure = Some(error);
                true
            }
        }
    }

    fn run_until(
        &mut self,
        timeout: Duration,
        done: impl FnMut(&Engine, &mut Keeping<'_>) -> bool,
    ) -> Result<bool, LinkError> {
        self.run_borrowed(timeout, &Borrowed::NONE, done)
    }

    /// The same while `borrowed` is borrowed to the engine.
    fn run_borrowed(
        &mut self,
        timeout: Duration,
        borrowed: &Borrowed<'_>,
        mut done: impl FnMut(&Engine, &mut Keeping<'_>) -> bool,
    ) -> Result<bool, LinkError> {
        let mut intake = Keeping {
            taker: None,
            channels: &mut self.channels,
            peers: &mut self.peers,
            borrowed,
        };
        self.drive
            .run_until(&mut intake, timeout, |engine, intake| done(engine, intake))
    }

    /// Messages to a peer that were accepted and not acknowledged, wherever they wait.
    fn promised_messages(&self, peer: NodeId) -> usize {
        let queued = self.drive.engine.promised_messages(peer) + self.drive.unread(peer);
        queued + self.channels.tools.outbox.messages_to(peer)
    }

    /// Tells peers that this node leaves, so that they need not wait for silence.
    fn say_farewell(&mut self) {
        self.drive.refresh_now();
        let _ = self.drive.transmit(&Borrowed::NONE); // farewells overtake what waits
        let farewells = if self.drive.caps().lossless {
            1
        } else {
            FAREWELLS
        };
        for _ in 0..farewells {
            let now = self.drive.refresh_now();
            self.drive.engine.close(now);
            while let Ok(1..) = self.drive.transmit(&Borrowed::NONE) {} // a failed link has nobody to tell
        }
    }
}

impl<L: Link> Drop for Endpoint<L> {
    fn drop(&mut self) {
        match (self.assistant.take(), self.core.is_forked()) {
            (Some(assistant), true) => assistant.forget(),
            (Some(assistant), false) => assistant.stop(&self.core),
            (None, _) => {}
        }
        if self.core.is_forked() {
            return; // the parent's peers hear nothing of it
        }
        if !self.vanishes && !self.core.is_spoiled() {
            self.core.write().say_farewell();
        }
    }
}
