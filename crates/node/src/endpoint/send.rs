//! Sending messages, waiting for room in the queue, and waiting for acknowledgements.
//!
//! A short message is copied into the engine's queue. A long one is borrowed by the engine: frames are sent from the caller's memory, and only what
//! is not acknowledged when the call returns is copied.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tsumuji_link::LinkError;
use tsumuji_proto::{Borrowed, Channel, Engine, NodeId, Payload, SendId};

use super::{Core, Endpoint};
use crate::channel::Channels;
use crate::drive::{Sent, UNTRACKED, refused};
use crate::error::SendError;
use crate::intake::Intake;
use crate::peers::Peers;

/// Messages of this size and more, in bytes, are borrowed. Over links that gather, those of
/// [`Tuning::borrow_bytes`](crate::Tuning::borrow_bytes) and more are, too, unless they are part of a batch: they are copied while they travel.
const BORROWED_BYTES: usize = 32 << 10;

/// `send` waits until nearly all of a message of this size and more has left; the rest of a shorter one waits in the queue.
const AWAITED_BYTES: usize = 256 << 10;

/// The part of such a message that may wait in the queue: as much as fills a burst of the link.
const AHEAD_BYTES: usize = 64 << 10;

/// Pause before trying again to get memory for a message, or for the rest of one that has begun to leave.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// Interval at which `flush` checks whether peers have read direct messages.
const READ_POLL: Duration = Duration::from_micros(50);

/// How often a peer is asked for its window while a program waits for it: often enough for programs, and few frames.
const WINDOW_POLL: Duration = Duration::from_millis(10);

/// Limit of polls in which `listen` empties the rings, if peers keep filling them.
const LISTEN_POLLS: u32 = 512;

/// Least time that `send` waits for a reader of a full ring without any progress: a few times as long as one message of the ring takes. For a longer
/// message it waits a nanosecond for each byte: its reader may touch the memory for the first time.
const RING_PATIENCE: Duration = Duration::from_micros(200);

/// A wait without limit, longer than any program runs.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

impl Endpoint {
    /// Sends a copy of `message`. It leaves at once if window and link permit, else later in one of the program's calls or by the progress assistant.
    /// Waits while the queue to `to` is full.
    ///
    /// A message of 32 KiB or more is sent from the caller's memory as far as possible, and then what is unacknowledged is copied; over links that
    /// gather also one of 12 KiB or more outside a batch. With 256 KiB or more the call returns when nearly all has left, and receives meanwhile: it
    /// takes little memory for any length.
    ///
    /// Over shared memory a message that fits a quarter of the ring between two processes (256 KiB for few processes) is written there at once. If
    /// the ring is full, an endpoint that may spin waits, as long as the peer reads a message every 200 us.
    ///
    /// Many small messages are sent faster in a [`batch`](Self::batch).
    #[inline]
    pub fn send(&mut self, to: NodeId, channel: Channel, message: &[u8]) -> Result<(), SendError> {
        let core = &mut *self.core.write();
        core.send_copied(to, channel, message, false, false)
            .map(drop)
    }

    /// As `send`, with the hint that more messages follow at once: this one may wait for the next without the hint, for a call that polls, or for the
    /// assistant.
    #[inline]
    pub fn send_more(
        &mut self,
        to: NodeId,
        channel: Channel,
        message: &[u8],
    ) -> Result<(), SendError> {
        let core = &mut *self.core.write();
        core.send_copied(to, channel, message, false, true)
            .map(drop)
    }

    /// Sends `message` from where the program has it, without a copy; waits as `send` does. The program may read it meanwhile, and send it to others.
    /// It is held until it was acknowledged or read, or has failed, and then dropped by the driving thread: an owner ([`Bytes::from_owner`]) is
    /// dropped when the memory can be used again, and [`send_shared_tracked`](Self::send_shared_tracked) tells when the message was acknowledged.
    /// Messages of less than 4 KiB are copied, and dropped at once. `message.into()` gives a `Vec` away.
    ///
    /// Over shared memory a message of 32 KiB or more, and no longer than a ring (1 MiB for few nodes), leaves *by reference*, unless it is tracked:
    /// the receiver reads it in the sender's memory, with one copy instead of two and none of the sender's time. If the kernel does not let processes
    /// of one user read each other (`kernel.yama.ptrace_scope`), or the receiver's budget has no room (by default between more than nine nodes), it
    /// is copied as by `send`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
    /// # use tsumuji_node::{Bytes, Endpoint, Channel, Membership, NodeId, Options};
    /// # let job = ShmJob::create(3, ShmConfig::for_nodes(3))?;
    /// # let open = |id: u16| -> Result<_, Box<dyn std::error::Error>> {
    /// #     Ok(Endpoint::new(Shm::attach(&job, id)?, Membership::local(NodeId(id), 3), Options::default())?)
    /// # };
    /// # let (mut a, mut b, mut c) = (open(0)?, open(1)?, open(2)?);
    /// let block = Bytes::from(vec![7; 100_000]);
    /// for peer in [1, 2] {
    ///     a.send_shared(NodeId(peer), Channel::ordered(0), block.clone())?; // one block for both
    /// }
    /// # for node in [&mut b, &mut c] {
    /// #     assert_eq!(node.recv(Duration::from_secs(5))?.ok_or("none")?.body, block);
    /// # }
    /// a.flush(Duration::from_secs(5))?;
    /// assert!(block.is_unique()); // nobody else holds it any more
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn send_shared(
        &mut self,
        to: NodeId,
        channel: Channel,
        message: Bytes,
    ) -> Result<(), SendError> {
        let core = &mut *self.core.write();
        core.send_shared(to, channel, message, false).map(drop)
    }

    /// As `send_shared`, and returns an id by which the acknowledgement can be asked for.
    pub fn send_shared_tracked(
        &mut self,
        to: NodeId,
        channel: Channel,
        message: Bytes,
    ) -> Result<SendId, SendError> {
        let core = &mut *self.core.write();
        let id = core.send_shared(to, channel, message, true)?;
        let is_open = !core.drive.engine.is_acknowledged(to, id);
        core.peers.track(to, id, is_open);
        Ok(id)
    }

    /// Sends a copy of `message`, or returns [`SendError::WouldBlock`]: the queue to `to` is full, or the peer has stopped the channel, or there is
    /// no memory for the copy before a waiting message is acknowledged. `wait_writable` waits for all three,
    /// [`Handler::writable`](crate::Handler::writable) tells of the first two. [`SendError::NoMemory`]: there is none, and no message waits.
    pub fn try_send(
        &mut self,
        to: NodeId,
        channel: Channel,
        message: &[u8],
    ) -> Result<(), SendError> {
        let core = &mut *self.core.write();
        core.try_send(to, channel, Payload::Copied(message, &[]))
    }

    /// As `try_send`, for one message in two parts.
    pub fn try_send_joined(
        &mut self,
        to: NodeId,
        channel: Channel,
        (head, body): (&[u8], &[u8]),
    ) -> Result<(), SendError> {
        let core = &mut *self.core.write();
        core.try_send(to, channel, Payload::Copied(head, body))
    }

    /// As `send`, and returns an id by which the acknowledgement can be asked for.
    pub fn send_tracked(
        &mut self,
        to: NodeId,
        channel: Channel,
        message: &[u8],
    ) -> Result<SendId, SendError> {
        let core = &mut *self.core.write();
        let id = core.send_copied(to, channel, message, true, false)?;
        // A message that was borrowed may be acknowledged by now.
        let is_open = message.len() < core.drive.tuning.borrow_bytes
            || !core.drive.engine.is_acknowledged(to, id);
        core.peers.track(to, id, is_open);
        Ok(id)
    }

    /// Whether the peer has acknowledged the whole of a tracked message, and of all before it on an ordered channel. Polls. A message that failed with its
    /// peer is an error, and so is an id that was not given yet for this peer.
    pub fn is_sent(&mut self, to: NodeId, id: SendId) -> Result<bool, SendError> {
        let core = &mut *self.core.write();
        if !core.peers.is_sent(to, id)? {
            core.progress()?;
        }
        core.peers.is_sent(to, id)
    }

    /// Waits until a tracked message is acknowledged; returns `false` after `timeout`.
    pub fn wait_sent(
        &mut self,
        to: NodeId,
        id: SendId,
        timeout: Duration,
    ) -> Result<bool, SendError> {
        let core = &mut *self.core.write();
        if !core.peers.is_sent(to, id)? {
            core.run_until(timeout, |_, intake| {
                !matches!(intake.peers.is_sent(to, id), Ok(false))
            })?;
        }
        core.peers.is_sent(to, id)
    }

    /// Waits until a message of `bytes` can be queued to `to` on `channel_id` without waiting; returns `false` after `timeout`. If a copy found no
    /// memory before, it also waits for memory for this one. With no limit of time (136 years or more) it does so only while messages to `to` wait
    /// that may free some, and then returns [`SendError::NoMemory`].
    ///
    /// A message larger than the whole queue is accepted when the queue is empty.
    pub fn wait_writable(
        &mut self,
        to: NodeId,
        channel_id: u16,
        bytes: usize,
        timeout: Duration,
    ) -> Result<bool, SendError> {
        let core = &mut *self.core.write();
        core.wait_writable((to, channel_id), bytes, timeout)
    }

    /// As `wait_writable`, and until the window that the peer stated last ([`Flow::window_bytes`](crate::Flow::window_bytes), in bytes) takes the message
    /// besides what is queued to it. When nothing is queued, a message larger than that window is accepted as long as the window is not 0. The peer is asked
    /// for its window meanwhile.
    pub fn wait_window(
        &mut self,
        to: NodeId,
        channel_id: u16,
        bytes: usize,
        timeout: Duration,
    ) -> Result<bool, SendError> {
        let core = &mut *self.core.write();
        core.wait_window((to, channel_id), bytes, timeout)
    }

    /// Waits until all messages are acknowledged; returns `false` after `timeout`. [`SendError::MessagesLost`] names a peer that died before, and the
    /// number of messages lost with it; the next call waits for the others.
    pub fn flush(&mut self, timeout: Duration) -> Result<bool, SendError> {
        self.core.write().flush(timeout)
    }

    /// Messages to `to` that are not acknowledged yet, including those of handlers and other threads.
    pub fn queue_length(&self, to: NodeId) -> usize {
        let core = self.core.read();
        core.queue_length(to) + core.channels.tools.outbox.messages_to(to)
    }

    /// Bytes of those messages that the engine's queue holds.
    pub fn queued_bytes(&self, to: NodeId) -> usize {
        let core = self.core.read();
        let queued = core.drive.engine.queued(to);
        queued.map_or(0, |queued| queued.bytes)
    }
}

impl Core {
    pub(super) fn wait_writable(
        &mut self,
        (to, channel_id): (NodeId, u16),
        bytes: usize,
        timeout: Duration,
    ) -> Result<bool, SendError> {
        self.peers.tell_losses(to)?;
        if !self.is_memory_short {
            return self.wait_room(to, channel_id, bytes, timeout);
        }
        let (start, mut left, mut is_last) = (Instant::now(), timeout, false);
        loop {
            if !self.wait_room(to, channel_id, bytes, left)? {
                return Ok(false);
            }
            if self.drive.engine.reserve(bytes) {
                self.is_memory_short = false;
                return Ok(true);
            }
            if is_last {
                return Ok(false);
            }
            // None of our messages will free memory: `send` returns this error, too.
            if timeout >= FOREVER && self.queue_length(to) == 0 {
                return Err(SendError::NoMemory { bytes });
            }
            self.pause_for_memory(to, left)?;
            left = timeout.saturating_sub(start.elapsed());
            is_last = left.is_zero();
        }
    }

    fn wait_window(
        &mut self,
        (to, channel_id): (NodeId, u16),
        bytes: usize,
        timeout: Duration,
    ) -> Result<bool, SendError> {
        let (start, mut left, mut is_last) = (Instant::now(), timeout, false);
        loop {
            if !self.wait_writable((to, channel_id), bytes, left)? {
                return Ok(false);
            }
            // Messages in the ring are not counted in bytes, and have left the queue.
            if self.drive.engine.window_takes(to, bytes) {
                return Ok(true);
            }
            if is_last {
                return Ok(false);
            }
            let now = self.drive.refresh_now();
            self.drive.engine.ask_window(now, to);
            self.drive.mark_pending();
            // A peer does not announce a grown window to a node that has nothing under way: this node asks again.
            self.run_until(left.min(WINDOW_POLL), |engine, intake| {
                engine.window_takes(to, bytes) || intake.peers.is_lost(to)
            })?;
            left = timeout.saturating_sub(start.elapsed());
            is_last = left.is_zero();
        }
    }

    pub(super) fn flush(&mut self, timeout: Duration) -> Result<bool, SendError> {
        // A peer that sends the next request on each answer would keep the queue from ever being empty.
        self.channels.statistics.is_paused = true;
        let flushed = self.flush_all(timeout);
        self.channels.statistics.is_paused = false;
        flushed
    }

    fn flush_all(&mut self, timeout: Duration) -> Result<bool, SendError> {
        self.peers.tell_any_losses()?;
        let nodes = self.channels.members.len();
        let all_sent = |engine: &Engine| {
            let peers = (0..=u16::MAX).take(nodes).map(NodeId);
            peers
                .filter_map(|peer| engine.queued(peer))
                .all(|queued| queued.messages == 0)
        };
        let is_done = |engine: &Engine, channels: &Channels| {
            all_sent(engine) && channels.tools.outbox.is_empty()
        };
        let (start, mut is_last) = (Instant::now(), false);
        loop {
            let unread = self.drive.unread_in_all();
            let is_flushed = unread == 0 && is_done(&self.drive.engine, &self.channels);
            if is_flushed || is_last {
                self.drive.release_read()?;
                return Ok(is_flushed);
            }
            // Nothing tells that a direct message was read.
            let left = timeout.saturating_sub(start.elapsed());
            let span = if unread == 0 {
                left
            } else {
                left.min(READ_POLL)
            };
            is_last = left.is_zero();
            self.run_until(span, |engine, intake| {
                is_done(engine, intake.channels) || intake.peers.has_losses()
            })?;
            self.peers.tell_any_losses()?;
        }
    }

    pub(super) fn queue_length(&self, to: NodeId) -> usize {
        let queued = self.drive.engine.queued(to);
        queued.map_or(0, |queued| queued.messages) + self.drive.unread(to)
    }

    fn try_send(
        &mut self,
        to: NodeId,
        channel: Channel,
        payload: Payload<'_>,
    ) -> Result<(), SendError> {
        self.permits(to, channel)?;
        let channel_id = channel.id();
        if self.channels.is_stopped(to, channel_id) {
            self.channels.want(to, channel_id);
            return Err(SendError::WouldBlock { peer: to });
        }
        if self.drive.send_past(to, channel, &payload)? == Sent::Whole {
            return Ok(());
        }
        match self.drive.enqueue(to, channel, payload, false, false) {
            Err(SendError::NoMemory { bytes }) => {
                self.is_memory_short = true;
                if self.queue_length(to) > 0 {
                    return Err(SendError::WouldBlock { peer: to });
                }
                Err(SendError::NoMemory { bytes })
            }
            Err(SendError::WouldBlock { peer }) => {
                self.channels.want(to, channel_id);
                Err(SendError::WouldBlock { peer })
            }
            done => done.map(drop),
        }
    }

    /// Waits until a message to `to` is acknowledged and frees memory, or for a while: others that free memory do not tell.
    fn pause_for_memory(&mut self, to: NodeId, most: Duration) -> Result<(), SendError> {
        let queued = self.queue_length(to);
        self.run_until(most.min(MEMORY_PAUSE), |engine, intake| {
            let now = engine.queued(to);
            now.is_none_or(|now| now.messages < queued) || intake.peers.is_lost(to)
        })?;
        self.alive(to)
    }

    /// Waits until the queue to `to` has room for a message of `bytes`, if there is memory for it, and the peer has not stopped the channel.
    fn wait_room(
        &mut self,
        to: NodeId,
        channel_id: u16,
        bytes: usize,
        timeout: Duration,
    ) -> Result<bool, SendError> {
        self.known(to)?;
        let is_over = |engine: &Engine, channels: &Channels, peers: &Peers| {
            engine.has_room(to, bytes) && !channels.is_stopped(to, channel_id) || peers.is_lost(to)
        };
        if is_over(&self.drive.engine, &self.channels, &self.peers) {
            return self.alive(to).map(|()| true);
        }
        let writable = self.run_until(timeout, |engine, intake| {
            is_over(engine, intake.channels, intake.peers)
        })?;
        self.alive(to)?;
        // The peer may have died and come up again meanwhile: nothing is sent to the new process before the loss was reported.
        self.peers.tell_losses(to)?;
        Ok(writable)
    }

    /// Errors: a library channel that is not open; on the program's channels, losses that were not reported yet.
    #[inline]
    pub(super) fn permits(&mut self, to: NodeId, channel: Channel) -> Result<(), SendError> {
        if self.drive.is_deaf() {
            self.listen()?;
        }
        if !channel.is_library() {
            return self.peers.tell_losses(to);
        }
        let channel_id = channel.id();
        if !self.channels.is_open(channel_id) {
            return Err(SendError::ReservedChannel { channel_id });
        }
        Ok(())
    }

    /// Receives what peers have sent so far: a control message that stops a channel may lie behind all of it.
    #[cold]
    fn listen(&mut self) -> Result<(), LinkError> {
        for _ in 0..LISTEN_POLLS {
            if self.progress()? == 0 {
                break;
            }
        }
        Ok(())
    }

    #[inline]
    fn send_copied(
        &mut self,
        to: NodeId,
        channel: Channel,
        message: &[u8],
        notify: bool,
        more: bool,
    ) -> Result<SendId, SendError> {
        self.permits(to, channel)?;
        let (bytes, channel_id) = (message.len(), channel.id());
        if self.channels.is_stopped(to, channel_id) {
            self.wait_room(to, channel_id, 0, FOREVER)?;
        }
        if !notify && !more && self.send_directly(to, channel, &Payload::Copied(message, &[]))? {
            return Ok(UNTRACKED);
        }
        let borrows = bytes >= BORROWED_BYTES
            || bytes >= self.drive.tuning.borrow_bytes && self.drive.gathers_alone(to);
        if borrows {
            match self.send_borrowed(to, channel, message, notify) {
                // Nothing has left, so it may wait for memory like a copied message.
                Err(SendError::NoMemory { .. }) if bytes < BORROWED_BYTES => {}
                done => return done,
            }
        }
        self.enqueue(to, channel, &Payload::Copied(message, &[]), notify, more)
    }

    /// Queues a message, as soon as there is room and memory for it.
    #[inline]
    fn enqueue(
        &mut self,
        to: NodeId,
        channel: Channel,
        payload: &Payload<'_>,
        notify: bool,
        more: bool,
    ) -> Result<SendId, SendError> {
        loop {
            let queued = (self.drive).enqueue(to, channel, payload.clone(), notify, more);
            match queued {
                Err(SendError::NoMemory { .. }) if self.queue_length(to) > 0 => {
                    self.pause_for_memory(to, MEMORY_PAUSE)?;
                }
                Err(SendError::WouldBlock { .. }) => {
                    self.wait_room(to, channel.id(), payload.bytes(), FOREVER)?;
                }
                done => return done,
            }
        }
    }

    /// Sends a message past the queue, if that is possible now or as soon as its reader has made room. Returns whether it was sent.
    #[inline]
    fn send_directly(
        &mut self,
        to: NodeId,
        channel: Channel,
        payload: &Payload<'_>,
    ) -> Result<bool, SendError> {
        match self.drive.send_past(to, channel, payload)? {
            Sent::Whole => Ok(true),
            Sent::Full if self.drive.spins() => self.await_ring(to, channel, payload),
            Sent::Full | Sent::No => Ok(false),
        }
    }

    /// Waits for a full ring: while its reader goes on reading, that costs less than a copy into the queue and another through the ring.
    #[cold]
    fn await_ring(
        &mut self,
        to: NodeId,
        channel: Channel,
        payload: &Payload<'_>,
    ) -> Result<bool, SendError> {
        let patience = RING_PATIENCE.max(Duration::from_nanos(payload.bytes() as u64));
        let (mut since, mut waiting) = (Instant::now(), usize::MAX);
        while since.elapsed() < patience {
            self.progress()?;
            let still = self.queue_length(to);
            if still < waiting {
                (since, waiting) = (Instant::now(), still);
            }
            // As after any wait: nothing is sent to another process before a loss was reported.
            self.alive(to)?;
            self.permits(to, channel)?;
            if self.channels.is_stopped(to, channel.id()) {
                self.wait_room(to, channel.id(), 0, FOREVER)?;
            }
            match self.drive.send_past(to, channel, payload)? {
                Sent::Whole => return Ok(true),
                Sent::Full => {}
                Sent::No => break,
            }
        }
        Ok(false)
    }

    fn send_shared(
        &mut self,
        to: NodeId,
        channel: Channel,
        message: Bytes,
        notify: bool,
    ) -> Result<SendId, SendError> {
        self.permits(to, channel)?;
        let (bytes, payload) = (message.len(), Payload::Shared(message));
        if !notify {
            if self.channels.is_stopped(to, channel.id()) {
                self.wait_room(to, channel.id(), 0, FOREVER)?;
            }
            if self.send_directly(to, channel, &payload)? {
                return Ok(UNTRACKED);
            }
        }
        self.wait_room(to, channel.id(), bytes, FOREVER)?;
        self.enqueue(to, channel, &payload, notify, false)
    }

    /// Sends a long message from the caller's memory. When nearly all has left, only what is unacknowledged is copied: a copy of all would delay the
    /// first frame, evict everything else from the caches, and occupy memory for as long as the message travels.
    fn send_borrowed(
        &mut self,
        to: NodeId,
        channel: Channel,
        message: &[u8],
        notify: bool,
    ) -> Result<SendId, SendError> {
        let id = loop {
            match self
                .drive
                .submit_borrowed(to, channel, message.len(), notify)
            {
                Err(SendError::WouldBlock { .. }) => {
                    self.wait_room(to, channel.id(), 0, FOREVER)?
                }
                done => break done?,
            };
        };
        let mut send = BorrowedSend {
            core: self,
            borrowed: Borrowed::new(to, id, message),
            is_over: false,
        };
        let sent = send.core.end_borrowed(&send.borrowed);
        send.is_over = true;
        sent.map(|()| id)
    }

    /// Sends the borrowed message as far as possible, and ends the borrow.
    fn end_borrowed(&mut self, borrowed: &Borrowed<'_>) -> Result<(), SendError> {
        let left = self.await_left(borrowed);
        if let Ok(None) = self.drive.engine.unsent_bytes(borrowed) {
            return Ok(()); // acknowledged, even if the peer or the link has failed since
        }
        if left.is_err() && self.drive.engine.cancel(borrowed) {
            return left;
        }
        left.and(self.take_back(borrowed))
    }

    /// Waits until so much of the borrowed message has left that the rest may wait in the queue.
    fn await_left(&mut self, borrowed: &Borrowed<'_>) -> Result<(), SendError> {
        self.drive.transmit(borrowed)?;
        let (to, unsent) = (borrowed.to(), |engine: &Engine| {
            engine.unsent_bytes(borrowed)
        });
        if borrowed.message().len() >= AWAITED_BYTES {
            self.run_borrowed(Duration::ZERO, borrowed, |_, _| true)?; // what is acknowledged need not be copied
            let waits = |engine: &Engine| matches!(unsent(engine), Ok(Some(AHEAD_BYTES..)));
            if waits(&self.drive.engine) {
                self.run_borrowed(FOREVER, borrowed, |engine, intake| {
                    !waits(engine) || intake.peers.is_lost(to)
                })?;
            }
        }
        if unsent(&self.drive.engine).map_err(refused)?.is_some() {
            self.alive(to)?; // a peer that is never met
        }
        Ok(())
    }

    /// Ends the session with a peer if a message that has begun to leave can neither be sent nor copied.
    pub(super) fn abort(&mut self, peer: NodeId) {
        let mut intake = Intake {
            taker: None,
            channels: &mut self.channels,
            peers: &mut self.peers,
            borrowed: &Borrowed::NONE,
        };
        self.drive.abort(peer, &mut intake);
    }

    /// Has the engine copy what is unacknowledged of the borrowed message. No message stays borrowed: later calls could not present it.
    fn take_back(&mut self, borrowed: &Borrowed<'_>) -> Result<(), SendError> {
        while !self.drive.engine.retain(borrowed) {
            if self.drive.engine.cancel(borrowed) {
                let bytes = borrowed.message().len();
                return Err(SendError::NoMemory { bytes });
            }
            // A message that has begun must be ended: memory may become free, the rest may leave, or the peer may die.
            let waited = self.run_borrowed(MEMORY_PAUSE, borrowed, |_, _| false);
            if let Ok(None) = self.drive.engine.unsent_bytes(borrowed) {
                return Ok(());
            }
            if let Err(error) = waited {
                self.abort(borrowed.to());
                return Err(error.into());
            }
            if let Err(gone) = self.drive.engine.unsent_bytes(borrowed) {
                return Err(refused(gone));
            }
        }
        Ok(())
    }
}

/// A message that the engine borrows during a call. If the call panics (in a policy, a link or a log subscriber), the borrow still ends: otherwise
/// later messages to the peer would wait behind it for ever.
struct BorrowedSend<'a, 'b> {
    core: &'a mut Core,
    borrowed: Borrowed<'b>,
    is_over: bool,
}

impl Drop for BorrowedSend<'_, '_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let engine = &mut self.core.drive.engine;
        if engine.cancel(&self.borrowed) || engine.retain(&self.borrowed) {
            self.core.drive.mark_pending();
        } else {
            self.core.abort(self.borrowed.to()); // there is no memory for the copy
        }
    }
}
