//! The endpoint: an engine over a link, and the queues of messages that arrived and were not taken yet.
//!
//! This file opens and closes endpoints, reads counters, and runs the loop for calls that wait. The other calls are in `send`, `receive`, `channels`
//! (opening channels; handles for other threads), `datagrams`, `presence` (which peers are up), `flow` (flow control) and `library` (what libraries
//! on top need to know of the link).
//!
//! An [`Endpoint`] is the program's side of a lock around a [`Core`]: a [`Drive`], the [`Channels`] with arrived messages, and the state of peers.
//! The `assistant` has the other side and drives while the program is away. Only one thread of the program uses an endpoint at a time: calls that
//! change state take `&mut self`.

mod batch;
mod channels;
mod datagrams;
mod descriptor;
mod flow;
mod joining;
mod library;
mod posts;
mod presence;
mod receive;
mod send;

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tsumuji_link::checked::Checked;
use tsumuji_link::{Link, LinkAddr, LinkError, MayHaveRings, Rings};
use tsumuji_proto::{Borrowed, Config, Engine, NodeId};

pub use self::batch::Batch;
pub use self::joining::JoinRequest;
pub use self::posts::{Post, Unposted};
use crate::any_link::AnyLink;
use crate::assistant::Assistant;
use crate::channel::bell::Bell;
use crate::channel::{Channels, Members};
use crate::clock::{SystemClock, from_std};
use crate::counters::Counters;
use crate::drive::Drive;
use crate::error::{CloseError, OpenError, SendError};
use crate::idle::Idle;
use crate::intake::Intake;
use crate::lock::{self, Owner, Stamped, biased};
use crate::membership::{Member, Membership};
use crate::metrics::Publisher;
use crate::options::{Options, ProgressBy};
use crate::peers::Peers;
use crate::random::random_u64;
use crate::table::Table;
use crate::tuning::{Found, Tuning};

/// Least frame size of a link, in bytes: any header and some payload. Every real link carries 1,400 or more.
const LEAST_FRAME_BYTES: usize = 256;

/// `close` ends after this much silence: no peer then waits for an acknowledgement. It is a few retransmission time-outs of a local network.
const LINGER: Duration = Duration::from_millis(20);

/// Limit of that wait, for a peer that never falls silent.
const LINGER_MOST: Duration = Duration::from_secs(1);

/// Close frames sent on a link that may lose them: at 20 % loss all five are lost once in 3,000 times, and then the peer's time-out decides. They
/// carry the last acknowledgement, too: a message without one counts as lost at its sender.
const CLOSE_REPEATS: usize = 5;

/// A member of a cluster that sends and receives. See the crate's head for an example.
///
/// After `fork` the child's copy is inert: it says nothing to peers, and using it panics.
#[derive(Debug)]
pub struct Endpoint {
    /// Stopped before the other fields are dropped: it holds the link's descriptor.
    assistant: Option<Assistant>,
    /// See `fd`.
    descriptor: Option<OwnedFd>,
    /// As of the last `update_members`.
    membership: Arc<Membership>,
    /// It is dropped without sending close frames.
    vanishes: bool,
    core: Owner<Core>,
}

/// State that program and assistant drive in turn.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) drive: Drive<AnyLink>,
    channels: Channels,
    peers: Peers,
    /// A copy of a message found no memory; cleared when a wait has found some.
    is_memory_short: bool,
    taken_bytes: usize,
}

impl Endpoint {
    /// Opens an endpoint on `link` as a member of `membership`, and begins hello with every other member.
    pub fn new(
        link: impl Into<AnyLink>,
        membership: Membership,
        options: Options,
    ) -> Result<Self, OpenError> {
        Self::over(Checked::new(link.into()), membership, options)
    }

    fn over(
        link: Checked<AnyLink>,
        membership: Membership,
        options: Options,
    ) -> Result<Self, OpenError> {
        membership.check()?;
        let membership = Arc::new(membership);
        let caps = link.caps();
        if caps.frame_bytes < LEAST_FRAME_BYTES {
            return Err(OpenError::FrameTooSmall {
                link: caps.name,
                frame_bytes: caps.frame_bytes,
                least: LEAST_FRAME_BYTES,
            });
        }
        let tuning = match options.tuning {
            Some(given) => given.bounded(),
            None => Found::search()?.tuning(caps.name),
        };
        let incarnation = match options.incarnation {
            Some(0) => return Err(OpenError::ZeroIncarnation),
            Some(given) => given,
            None => random_u64().map_err(OpenError::Random)? as u32 | 1, // never 0
        };
        let engine = Engine::new(Config {
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
        let clock = SystemClock::new();
        let is_contended = membership.is_oversubscribed(&membership.members);
        let idle = Idle::new(options.idle, is_contended);
        let publisher = Publisher::start(options.metrics, &membership, caps.name)?;
        let mail = lock::bell().map_err(OpenError::Descriptor)?;
        let descriptor = descriptor::over(&link, mail.as_fd()).map_err(OpenError::Descriptor)?;
        let rung = lock::bell().map_err(OpenError::Descriptor)?;
        let bell = Arc::new(Bell::new(mail, Arc::clone(&rung)));
        let watched = clock.clone();
        let ours = Arc::clone(&bell);
        let table = Table::empty(membership.me);
        let mut drive = Drive::new(link, engine, table, clock, idle, publisher, Some(ours));
        drive.set_tuning(tuning);
        if options.progress == ProgressBy::Assistant {
            drive.set_assistant();
        }
        for member in &membership.members {
            let addr = membership.way(member);
            if member.id != membership.me && addr != LinkAddr::Broadcast {
                drive.meet_member(member, addr, options.pace);
            }
        }
        let core = Core {
            drive,
            channels: Channels::new(
                Members::new(
                    Arc::clone(&membership),
                    options.admits,
                    (options.pace, options.dead_after),
                ),
                options.send_queue_bytes,
                Arc::clone(&bell),
            ),
            peers: Peers::new(membership.members.len()),
            is_memory_short: false,
            taken_bytes: 0,
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

    /// Id of this node.
    pub fn me(&self) -> NodeId {
        self.membership.me
    }

    /// All members, this node included, in order of their ids.
    pub fn members(&self) -> &[Member] {
        &self.membership.members
    }

    /// Number of a member's host, where several share one; `None`: it shares its host with none, as far as is known.
    pub fn host_of(&self, id: NodeId) -> Option<u16> {
        let host = self.membership.hosts.get(usize::from(id.0));
        host.copied().flatten()
    }

    /// Name of a member for messages to people; empty if there is no such node.
    pub fn name_of(&self, id: NodeId) -> &str {
        self.membership
            .members
            .get(usize::from(id.0))
            .map_or("", |member| &member.name)
    }

    /// Counters since the endpoint was opened.
    pub fn counters(&self) -> Counters {
        let core = self.core.read();
        Counters {
            engine: *core.drive.engine.counters(),
            link: core.drive.link.counters(),
            seal: core.drive.link.sealing(),
            spoofed_source_frames: core.drive.spoofed_source_frames,
            dropped_datagrams: core.channels.dropped_datagrams,
        }
    }

    /// Publishes the present counters to readers of metrics, as polling does ten times a second: for a program about to compute for long without
    /// polling. Never waits.
    pub fn publish_metrics(&mut self) {
        let core = &mut *self.core.write();
        core.drive.refresh_now();
        core.drive.publish(core.channels.dropped_datagrams);
    }

    /// TCP address at which metrics can be read, if `Options::metrics` asked for that.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        let core = self.core.read();
        core.drive.publisher.as_ref().and_then(Publisher::addr)
    }

    /// Name of the link as users write it, without parameters: `shm`, `udp`.
    pub fn link_name(&self) -> &'static str {
        self.core.read().drive.caps().name
    }

    /// Thresholds of this endpoint: those of [`Options::tuning`](crate::Options::tuning), of the profile in force, or the defaults.
    pub fn tuning(&self) -> Tuning {
        self.core.read().drive.tuning
    }

    /// Ends the endpoint without sending anything, as if the process had been killed: for tests of the remaining nodes.
    #[doc(hidden)]
    pub fn vanish(mut self) {
        self.vanishes = true;
    }

    /// Waits up to `timeout` for acknowledgements, then tells peers that this node leaves. On a link that loses frames it stays a moment longer, to
    /// answer peers whose last acknowledgement was lost. The endpoint is closed even if an error names undelivered messages.
    pub fn close(mut self, timeout: Duration) -> Result<(), CloseError> {
        let core = &mut *self.core.write();
        core.channels.tools.outbox.close();
        let start = std::time::Instant::now();
        let mut lost = Vec::new();
        let flushed = loop {
            // A loss to one peer does not end the wait for the others.
            match core.flush(timeout.saturating_sub(start.elapsed())) {
                Ok(flushed) => break flushed,
                Err(SendError::MessagesLost { peer, messages }) => lost.push((peer, messages)),
                Err(SendError::TooLarge { peer, .. }) => lost.push((peer, 1)),
                Err(SendError::Link(error)) => return Err(error.into()),
                Err(_) => break false, // `flush` returns no other error
            }
        };
        let unacknowledged: Vec<(NodeId, usize)> = (core.drive.table.peers())
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
        if lost.is_empty() && unacknowledged.is_empty() {
            return Ok(());
        }
        Err(CloseError::Undelivered {
            lost,
            unacknowledged,
        })
    }
}

impl Stamped for Core {
    #[inline]
    fn stamp_ns(&self) -> u64 {
        self.drive.polled_at().as_nanos()
    }
}

impl Core {
    /// One poll; what arrives waits for later calls.
    pub(crate) fn progress(&mut self) -> Result<usize, LinkError> {
        let mut intake = Intake {
            taker: None,
            channels: &mut self.channels,
            peers: &mut self.peers,
            borrowed: &Borrowed::NONE,
        };
        self.drive.poll_once(true, &mut intake)
    }

    /// Whether the program sleeps on its descriptor, as far as is known.
    pub(crate) fn sleeps_on_descriptor(&self) -> bool {
        self.channels.bell().is_program_asleep()
    }

    /// Wakes a program that sleeps on its descriptor, as its wait may be over.
    pub(crate) fn tell_program(&self) {
        self.channels.bell().wake_program();
    }

    /// A poll by the assistant; returns how much it did. If the link fails, the program's next poll returns the error.
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

    /// Arms the link's descriptor to wake the assistant; `false`: it is readable now. After a failure of the link nothing will wake it.
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
        done: impl FnMut(&Engine, &mut Intake<'_>) -> bool,
    ) -> Result<bool, LinkError> {
        self.run_borrowed(timeout, &Borrowed::NONE, done)
    }

    /// As `run_until`, while the engine borrows a message.
    fn run_borrowed(
        &mut self,
        timeout: Duration,
        borrowed: &Borrowed<'_>,
        mut done: impl FnMut(&Engine, &mut Intake<'_>) -> bool,
    ) -> Result<bool, LinkError> {
        let mut intake = Intake {
            taker: None,
            channels: &mut self.channels,
            peers: &mut self.peers,
            borrowed,
        };
        self.drive
            .run_until(&mut intake, timeout, |engine, intake| done(engine, intake))
    }

    /// Messages to a peer that were accepted and not acknowledged, in the engine's queue, the ring or the outbox.
    fn promised_messages(&self, peer: NodeId) -> usize {
        let queued = self.drive.engine.promised_messages(peer) + self.drive.unread(peer);
        queued + self.channels.tools.outbox.messages_to(peer)
    }

    /// Tells peers that this node leaves, so that they need not wait for a time-out.
    fn send_close(&mut self) {
        self.drive.refresh_now();
        let _ = self.drive.transmit(&Borrowed::NONE); // close frames overtake queued messages
        let repeats = if self.drive.caps().lossless {
            1
        } else {
            CLOSE_REPEATS
        };
        for _ in 0..repeats {
            let now = self.drive.refresh_now();
            self.drive.engine.close(now);
            while let Ok(1..) = self.drive.transmit(&Borrowed::NONE) {} // on a failed link there is no peer to tell
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        match (self.assistant.take(), self.core.is_forked()) {
            (Some(assistant), true) => assistant.forget(),
            (Some(assistant), false) => assistant.stop(&self.core),
            (None, _) => {}
        }
        if self.core.is_forked() {
            return; // the parent's peers must not notice
        }
        if !self.vanishes && !self.core.is_spoiled() {
            self.core.write().send_close();
        }
    }
}
