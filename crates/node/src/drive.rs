//! The run-to-completion loop: receive a burst, deliver, handle timers, transmit, flush. One engine over one link, by one clock.
//!
//! `endpoint` calls it with an [`Intake`] that receives what arrives. No other module of this crate uses engine and link together.
//!
//! Invariants: `timer_at` is the engine's next timer, and `backlog` is set whenever the engine may have frames to send or events to report, so a poll
//! without backlog and before `timer_at` ends after receiving; `now` never goes back; no frame's path allocates, logs, or reads the clock more than once.

mod arrivals;
mod batches;
mod datagrams;
mod direct;
mod liveness;
mod meeting;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use tsumuji_link::checked::Checked;
use tsumuji_link::{Link, LinkAddr, LinkCaps, LinkError, MayHaveRings};
use tsumuji_proto::{
    Borrowed, Channel, Datagram, Delivery, Destination, Engine, Event, Instant, NodeId, Payload,
    Posted, SendId, SubmitError,
};
use tsumuji_wire::Join;

use self::arrivals::{Arrivals, next_burst};
use self::batches::{fan_out, send_batch};
pub use self::datagrams::NOW_OR_NEVER;
pub(crate) use self::direct::Sent;
use crate::channel::Way;
use crate::channel::bell::{self, Bell};
use crate::clock::{Clock, SystemClock, from_std, to_std};
use crate::cork::Cork;
use crate::error::SendError;
use crate::idle::{Idle, Step};
use crate::metrics::{NEVER, PUBLISH_EVERY, Publisher};
use crate::runqueue::Runqueue;
use crate::sleep;
use crate::table::Table;
use crate::tuning::Tuning;

/// Aim for the messages of one poll: if frames bring many messages each, fewer frames are received, as peers must be answered meanwhile.
const MESSAGES_PER_POLL: u64 = 1024;

/// Least frames received in one poll.
const RECEIVE_FRAMES_MIN: usize = 4;

/// Most frames sent in one poll before acknowledgements are received again.
const SEND_FRAMES_PER_POLL: usize = 64;

/// Empty polls between two readings of the clock while spinning: a reading costs as much as a poll (10 ns), timers and the
/// idle policy need no better than a fraction of a microsecond.
const POLLS_PER_CLOCK: u32 = 16;

/// Limit of polls in a call that does not wait: under load no poll may ever be empty.
const BUSY_POLLS: u32 = 64;

/// Sleep at most this long while a frame waits for a slot of the link: nothing wakes us when one becomes free.
const BACKLOG_SLEEP: Duration = Duration::from_micros(100);

/// Sleep at most this long in any case, so that a missed wake-up (a peer killed in the middle of one) heals.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// Without a poll for so long, several times the longest sleep, the process did not run: it was stopped.
const ABSENT_AFTER: tsumuji_proto::Duration = tsumuji_proto::Duration::from_secs(2);

/// Sleep at most this long if other threads may ring and the link has no descriptor to sleep on.
const BELL_POLL: Duration = Duration::from_millis(1);

/// Id of all messages that are not tracked.
pub const UNTRACKED: SendId = SendId(u64::MAX);

/// Most polls that receive what a dead process had sent before its session ends, while other peers keep sending.
const DYING_POLLS_MAX: u32 = 4096;

/// Receiver of what a poll brings: the channels of an endpoint, or a program of the simulator, which has none and the functions that are given here.
pub trait Intake {
    /// Returns `true` if the message was consumed and its bytes are free again; `false`: it was kept, and is released later.
    fn message(&mut self, delivery: Delivery<'_>) -> bool;
    /// `session`: as in `Delivery`.
    fn datagram(&mut self, session: u64, datagram: Datagram<'_>);
    /// The events of a poll, in order, after all its messages and datagrams.
    fn event(&mut self, event: &Event);
    /// As `Sink::place`.
    fn place(&mut self, from: NodeId, channel: Channel, length_bytes: usize) -> Option<Posted>;
    /// A process that is no member asks to become one.
    fn asked(&mut self, _from: LinkAddr, _join: &Join<'_>) {}
    /// Returns buffers whose messages will not arrive in them.
    fn put_back_all(&mut self, _posted: Vec<Posted>) {}
    /// That many accepted messages to the peer are lost, beside those of an event.
    fn lost(&mut self, _peer: NodeId, _messages: usize) {}
    /// The message that the engine borrows.
    fn borrowed(&self) -> &Borrowed<'_>;
    /// Datagrams that were dropped for lack of room.
    fn dropped_datagrams(&self) -> u64 {
        0
    }
    /// Whether `settle` has something to do.
    fn is_pending(&self) -> bool {
        false
    }
    /// Sends and releases what handlers and other threads have asked for; returns how much that was.
    fn settle(&mut self, _way: &mut impl Way) -> usize {
        0
    }
}

/// Engine and link, and the state of the loop.
#[derive(Debug)]
pub(crate) struct Drive<L: Link, C = SystemClock> {
    pub(crate) link: Checked<L>,
    pub(crate) engine: Engine,
    pub(crate) table: Table,
    caps: LinkCaps,
    clock: C,
    now: Instant,
    timer_at: Option<Instant>,
    backlog: bool,
    /// Most frames to receive in the next poll.
    receive_frames: usize,
    pub(crate) tuning: Tuning,
    idle: Idle,
    runqueue: Runqueue,
    /// Batches of the program.
    cork: Cork,
    /// The link holds datagrams that were written and wait for `flush`.
    gathered: bool,
    /// Rung by other threads; `None`: there are none.
    bell: Option<Arc<Bell>>,
    /// Frames that did not come from the address of their source.
    pub(crate) spoofed_source_frames: u64,
    pub(crate) publisher: Option<Publisher>,
    polled_at: Instant,
    /// An assistant polls, whatever the program does.
    has_assistant: bool,
    /// The end of the last time without a poll for `ABSENT_AFTER`.
    absent_until: Option<Instant>,
    /// The link failed in a poll of the assistant; the program's next poll returns this error.
    pub(crate) failure: Option<LinkError>,
    /// When to ask the kernel which processes are alive; `NEVER` where it cannot tell.
    liveness_at: Instant,
    direct: direct::Processes,
    /// Peers whose process was found dead, and when; frames they sent before may still lie in the link.
    dying: Vec<(NodeId, Instant)>,
    dying_polls: u32,
    /// When to publish counters again; `NEVER` without publisher.
    publish_at: Instant,
}

impl<L: MayHaveRings, C: Clock> Drive<L, C> {
    pub(crate) fn new(
        link: Checked<L>,
        engine: Engine,
        table: Table,
        clock: C,
        idle: Idle,
        publisher: Option<Publisher>,
        bell: Option<Arc<Bell>>,
    ) -> Self {
        let caps = link.caps();
        let now = clock.now();
        let tuning = Tuning::default();
        Self {
            direct: direct::Processes::default(),
            cork: Cork::default(),
            gathered: false,
            bell,
            link,
            engine,
            table,
            caps,
            clock,
            now,
            timer_at: None,
            backlog: true,
            receive_frames: tuning.poll_frames,
            tuning,
            idle,
            runqueue: Runqueue::default(),
            spoofed_source_frames: 0,
            polled_at: now,
            has_assistant: false,
            absent_until: None,
            failure: None,
            dying_polls: 0,
            liveness_at: NEVER,
            dying: Vec::new(),
            publish_at: if publisher.is_some() { now } else { NEVER },
            publisher,
        }
    }

    pub(crate) fn set_tuning(&mut self, tuning: Tuning) {
        self.engine.set_unscheduled(tuning.unscheduled_frames);
        self.idle.set_spin(tuning.spin_us);
        self.receive_frames = tuning.poll_frames;
        self.tuning = tuning;
    }

    /// An assistant polls from now on, whatever the program does.
    pub(crate) fn set_assistant(&mut self) {
        self.has_assistant = true;
    }

    /// About when the last poll was.
    #[inline]
    pub(crate) fn polled_at(&self) -> Instant {
        self.polled_at
    }

    pub(crate) fn caps(&self) -> LinkCaps {
        self.caps
    }

    /// One poll. Returns the number of frames received and sent, and of events. `refreshes`: read the clock even if nothing arrives.
    #[inline]
    pub(crate) fn poll_once(
        &mut self,
        refreshes: bool,
        intake: &mut impl Intake,
    ) -> Result<usize, LinkError> {
        if self.failure.is_some() {
            return self.fail();
        }
        let Self {
            link,
            engine,
            table,
            clock,
            spoofed_source_frames,
            ..
        } = self;
        let read = refreshes.then(|| clock.now());
        if let Some(now) = read {
            link.note_time(now.as_nanos());
        }
        let before = engine.counters().delivered_messages;
        let mut arrivals = Arrivals {
            engine,
            table,
            clock,
            spoofed_source_frames,
            intake,
            read,
            backlog: self.backlog,
        };
        let received = link.receive(self.receive_frames, &mut arrivals)?;
        let Arrivals { read, backlog, .. } = arrivals;
        self.backlog = backlog;
        self.direct.heard();
        if received > 0 {
            if let (false, Some(now)) = (refreshes, read) {
                self.link.note_time(now.as_nanos());
            }
            self.timer_at = self.engine.poll_timeout();
            let messages = self.engine.counters().delivered_messages - before;
            self.receive_frames = next_burst(
                self.receive_frames,
                (received, messages),
                self.tuning.poll_frames,
            );
        }
        self.now = read.unwrap_or(self.now);
        let pause = self.now.since(self.polled_at);
        if pause >= ABSENT_AFTER {
            // A gap soon after another does not mean that the process was stopped: its program polls seldom.
            let since = self.absent_until.map(|until| self.polled_at.since(until));
            let is_apart = since.is_none_or(|since| since >= ABSENT_AFTER);
            if self.has_assistant && is_apart {
                self.engine.note_absence(self.now, pause);
            }
            self.absent_until = Some(self.now);
        }
        self.polled_at = self.now;
        if self.now >= self.publish_at {
            self.publish(intake.dropped_datagrams());
        }
        if !self.dying.is_empty() {
            self.dying_polls += 1;
            self.take_events(intake); // a peer that was met again is not dead
            if received == 0 || self.dying_polls >= DYING_POLLS_MAX {
                self.end_dead_sessions();
            }
        }
        if self.now >= self.liveness_at {
            self.check_liveness();
        }
        let mut settled = 0;
        if intake.is_pending() {
            settled = intake.settle(self);
            self.backlog = true;
        }
        let expired = self.timer_at.is_some_and(|at| at <= self.now);
        if !expired && !self.backlog {
            return Ok(received); // no arrival needs an answer or an event
        }
        if expired {
            self.engine.handle_timeout(self.now);
        }
        let sent = self.transmit(intake.borrowed())?;
        Ok(received + settled + sent + self.take_events(intake))
    }

    #[cold]
    fn fail(&mut self) -> Result<usize, LinkError> {
        self.failure.take().map_or(Ok(0), Err)
    }

    /// The next timer, of the engine or of the liveness check.
    fn next_timer(&self) -> Option<Instant> {
        self.timer_at
            .into_iter()
            .chain(self.next_liveness_check())
            .min()
    }

    /// Publishes the present counters, if there is a publisher.
    #[cold]
    pub(crate) fn publish(&mut self, dropped_datagrams: u64) {
        if let Some(publisher) = &self.publisher {
            publisher.publish(
                &self.engine,
                &self.link,
                self.spoofed_source_frames,
                dropped_datagrams,
            );
            self.publish_at = self.now + PUBLISH_EVERY;
        }
    }

    /// Sends pending frames, as far as the link takes them, and wakes receivers. `borrowed`: the message that the engine borrows.
    pub(crate) fn transmit(&mut self, borrowed: &Borrowed<'_>) -> Result<usize, LinkError> {
        let Self {
            link,
            engine,
            table,
            now,
            ..
        } = self;
        let (mut sent, mut refused, mut stuck) = (0, 0, None);
        self.cork.leaves();
        self.backlog = false;
        while let Some(to) = engine.next_destination(*now) {
            let addr = match to {
                Destination::Peer(peer) => table.addr(peer),
                Destination::Broadcast => Some(LinkAddr::Broadcast).filter(|_| self.caps.broadcast),
            };
            let taken = match addr {
                Some(addr) => send_batch(link, engine, addr, *now, to, borrowed)?,
                None => fan_out(link, table, engine, *now, to)?,
            };
            if taken > 0 {
                (sent, stuck) = (sent + taken, None);
            } else {
                engine.defer(to);
                refused += 1;
                if stuck == Some(to) {
                    break; // all pending destinations were tried in vain
                }
                stuck = stuck.or(Some(to));
            }
            if sent >= SEND_FRAMES_PER_POLL || refused >= REFUSALS_PER_POLL {
                self.backlog = true;
                break;
            }
        }
        self.backlog |= refused > 0;
        if sent > 0 || self.gathered {
            link.flush()?;
            self.gathered = false;
        }
        self.timer_at = engine.poll_timeout();
        Ok(sent)
    }

    fn take_events(&mut self, intake: &mut impl Intake) -> usize {
        let mut events = 0;
        while let Some(mut event) = self.engine.poll_event() {
            let lost = self.note_direct(&event);
            if let Event::PeerUp { peer, .. } = event {
                self.note_reach(peer);
            }
            if let (
                Event::PeerDead {
                    peer,
                    failed_messages,
                },
                1..,
            ) = (&mut event, lost)
            {
                intake.lost(*peer, lost);
                *failed_messages += lost;
            }
            if matches!(event, Event::PeerDead { .. }) {
                let engine = &mut self.engine;
                intake.put_back_all(std::iter::from_fn(|| engine.poll_unused()).collect());
            }
            intake.event(&event);
            events += 1;
        }
        events
    }

    /// Limits the frames that the link merges: for one peer to the frame size agreed with it, for broadcasts to the smallest of all.
    #[cold]
    fn note_reach(&mut self, peer: NodeId) {
        let Self { link, engine, .. } = self;
        if let Some(addr) = self.table.addr(peer) {
            link.set_reach(addr, engine.frame_bytes(Destination::Peer(peer)));
            link.set_reach(
                LinkAddr::Broadcast,
                engine.frame_bytes(Destination::Broadcast),
            );
        }
    }

    /// Queues a message and sends what the peer's window allows: at once, or with the rest of a batch.
    #[inline]
    pub(crate) fn enqueue(
        &mut self,
        to: NodeId,
        channel: Channel,
        payload: Payload<'_>,
        notify: bool,
        more: bool,
    ) -> Result<SendId, SendError> {
        self.now = self.clock.now();
        let bytes = payload.bytes();
        let id = self
            .engine
            .submit(to, channel, payload, notify)
            .map_err(refused)?;
        if self.cork.holds(bytes, more) {
            self.backlog = true;
            return Ok(id);
        }
        self.transmit(&Borrowed::NONE)?;
        Ok(id)
    }

    /// Begins a batch: messages wait for each other until its end, or until they fill a call of the link.
    pub(crate) fn begin_batch(&mut self) {
        self.cork.begin();
    }

    /// Ends a batch: waiting messages are sent.
    pub(crate) fn end_batch(&mut self) -> Result<(), LinkError> {
        if self.cork.end() {
            self.refresh_now();
            self.transmit(&Borrowed::NONE)?;
        }
        Ok(())
    }

    /// Whether a message to that peer leaves at once, by a call of the link of its own that gathers it from the caller's memory.
    #[inline]
    pub(crate) fn gathers_alone(&self, to: NodeId) -> bool {
        let is_near = matches!(self.table.addr(to), Some(LinkAddr::Local(_)));
        self.caps.gathers && !is_near && !self.cork.is_in()
    }

    /// Queues a message that the engine borrows until it copies or forgets it. The caller passes it to `transmit`.
    pub(crate) fn submit_borrowed(
        &mut self,
        to: NodeId,
        channel: Channel,
        length_bytes: usize,
        notify: bool,
    ) -> Result<SendId, SendError> {
        self.now = self.clock.now();
        self.engine
            .submit_borrowed(to, channel, length_bytes, notify)
            .map_err(refused)
    }

    /// Ends the session with a peer, as if it had died.
    pub(crate) fn abort(&mut self, peer: NodeId, intake: &mut impl Intake) {
        let now = self.refresh_now();
        self.engine.abort(now, peer);
        self.take_events(intake);
        self.mark_pending();
    }

    /// The program is done with a kept message. Peers get the credit with the next poll.
    pub(crate) fn release(&mut self, peer: NodeId, bytes: usize) {
        self.engine.release(peer, bytes);
        self.backlog = true;
    }

    /// The engine was changed outside a poll.
    pub(crate) fn mark_pending(&mut self) {
        self.backlog = true;
    }

    /// Reads the clock, for calls into the engine outside a poll.
    pub(crate) fn refresh_now(&mut self) -> Instant {
        self.now = self.clock.now();
        self.now
    }

    /// Polls until `done` is true (returns `true`) or `timeout` has passed (`false`), idling as the policy says.
    ///
    /// `done` is called after each poll that did something; the caller has checked it before.
    pub(crate) fn run_until<I: Intake>(
        &mut self,
        intake: &mut I,
        timeout: Duration,
        mut done: impl FnMut(&Engine, &mut I) -> bool,
    ) -> Result<bool, LinkError> {
        self.idle.begin();
        let (mut deadline, mut empty, mut busy, mut step) = (None, 0_u32, 0, Step::Spin);
        loop {
            // The first empty poll starts the wait, so it reads the clock; most spinning ones do not. A call that does not wait reads it always: the
            // program may make no other calls, and timers depend on it.
            let refreshes = timeout.is_zero()
                || empty == 1
                || step != Step::Spin
                || empty % POLLS_PER_CLOCK == POLLS_PER_CLOCK - 1;
            if self.poll_once(refreshes, intake)? > 0 {
                if done(&self.engine, intake) {
                    self.idle.work(self.now.as_nanos());
                    return Ok(true);
                }
                self.idle.work(self.now.as_nanos());
                (empty, step) = (0, Step::Spin);
                if timeout.is_zero() {
                    busy += 1;
                    if busy < BUSY_POLLS {
                        continue;
                    }
                    return Ok(false);
                }
                // Under load no poll may ever be empty.
                let now = self.refresh_now();
                if now >= *deadline.get_or_insert(now + from_std(timeout)) {
                    return Ok(false);
                }
                continue;
            }
            if timeout.is_zero() {
                return Ok(false);
            }
            empty = empty.wrapping_add(1);
            if !refreshes {
                continue;
            }
            let deadline = *deadline.get_or_insert(self.now + from_std(timeout));
            if self.now >= deadline {
                return Ok(false);
            }
            step = self.idle.empty(self.now.as_nanos());
            match step {
                Step::Spin => {}
                Step::Yield => {
                    rustix::thread::sched_yield();
                    let now = self.refresh_now();
                    self.idle.yielded(now.as_nanos());
                }
                Step::Sleep => self.sleep(deadline)?,
            }
            if self.idle.asks() {
                let delay_ns = self.runqueue.delay_ns();
                self.idle.kept_waiting(self.now.as_nanos(), delay_ns);
            }
        }
    }

    fn sleep(&mut self, deadline: Instant) -> Result<(), LinkError> {
        let until = self.next_timer().map_or(deadline, |at| at.min(deadline));
        let most = if self.backlog {
            BACKLOG_SLEEP
        } else {
            LONGEST_SLEEP
        };
        let span = to_std(until.since(self.now)).min(most);
        if !span.is_zero() {
            match self.bell.clone().filter(|bell| bell.is_minded()) {
                Some(bell) => self.sleep_by_bell(&bell, span)?,
                None => self.link.wait(span)?,
            }
        }
        self.now = self.clock.now();
        self.idle.woke(self.now.as_nanos());
        Ok(())
    }

    /// Sleeps on the link's descriptor and on the bell of other threads.
    fn sleep_by_bell(&mut self, bell: &Bell, span: Duration) -> Result<(), LinkError> {
        if !bell.sleeps(bell::PROGRAM) {
            return Ok(());
        }
        let slept = if self.link.fd().is_none() {
            self.link.wait(span.min(BELL_POLL))
        } else {
            self.link.arm_fd().map(|armed| {
                let span = self.link.unsent_sleep().map_or(span, |most| span.min(most));
                if let Some(fd) = self.link.fd().filter(|_| armed) {
                    wait_for_either(fd, bell.program_fd(), span);
                }
            })
        };
        bell.rises(bell::PROGRAM);
        bell.drain_program();
        slept
    }

    /// Time until the next timer, ignoring frames that wait for the link; `None`: there is none.
    pub(crate) fn until_expiry(&mut self) -> Option<Duration> {
        let now = self.refresh_now();
        self.next_timer().map(|at| to_std(at.since(now)))
    }

    /// Time after which the program must poll again: zero while frames wait; `None`: there is no timer.
    pub(crate) fn until_timer(&mut self) -> Option<Duration> {
        if self.backlog {
            return Some(Duration::ZERO);
        }
        self.until_expiry()
            .into_iter()
            .chain(self.link.unsent_sleep())
            .min()
    }

    /// Whether a wait begins with spinning at present.
    pub(crate) fn spins(&self) -> bool {
        self.idle.spins(self.now.as_nanos())
    }

    /// Whether frames wait for a poll, regardless of the link's descriptor.
    pub(crate) fn has_backlog(&self) -> bool {
        self.backlog
    }
}

/// Waits for either descriptor; the caller checks both afterwards.
fn wait_for_either(one: BorrowedFd<'_>, other: BorrowedFd<'_>, most: Duration) {
    let mut fds = [one, other].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let _ = sleep::poll(&mut fds, Some(most));
}

/// Most destinations without a slot in one poll; if more peers are full, the loop goes on receiving.
const REFUSALS_PER_POLL: usize = 16;

#[cold]
pub(crate) fn refused(refusal: SubmitError) -> SendError {
    match refusal {
        SubmitError::TooLarge { size, limit, peer } => SendError::TooLarge { size, limit, peer },
        SubmitError::QueueFull { peer } => SendError::WouldBlock { peer },
        SubmitError::NoMemory { size } => SendError::NoMemory { bytes: size },
        SubmitError::PeerDead { peer } => SendError::PeerDead { peer },
        SubmitError::UnknownPeer { peer } => SendError::UnknownPeer { peer },
        other => SendError::Refused(other),
    }
}
