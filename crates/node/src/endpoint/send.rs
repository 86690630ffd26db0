//! Sending messages, waiting for room in the queue, and waiting for acknowledgements.
//!
//! A short message is copied into the engine's queue. A long one is borrowed by the engine: frames leave from where the caller has
//! it, and only what is left when the call returns is copied.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tsumuji_link::{Link, LinkError};
use tsumuji_proto::{Borrowed, Channel, Engine, NodeId, Payload, SendId};

use super::{Core, Endpoint};
use crate::channel::Channels;
use crate::drive::{Sent, UNTRACKED, refused};
use crate::error::SendError;
use crate::intake::Keeping;
use crate::peers::Peers;

/// Messages of this size and more leave from where the caller has them.
const BORROWED_BYTES: usize = 32 << 10;

/// So do those of this size and more over links that gather, unless they follow each other in a loop and leave together: their copy can be made while they
/// travel. Of smaller ones it takes less time than borrowing.
const BORROWED_ALONE_BYTES: usize = 12 << 10;

/// Of such a message of this size and more `send` waits until nearly all has left; what a shorter one has left waits in the queue.
const AWAITED_BYTES: usize = 256 << 10;

/// Nearly all: but for what fills a link's burst.
const AHEAD_BYTES: usize = 64 << 10;

/// How long to wait for memory for a message, or for the next piece of one that has begun to leave.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// `flush` looks so often whether peers have read what was sent directly.
const READ_LOOK: Duration = Duration::from_micros(50);

/// Turns in which all that rings hold has been taken in, whoever goes on filling them.
const LISTEN_TURNS: u32 = 512;

/// How long `send` waits for a reader that ends with no message meanwhile, at least: some times as long as one takes that fits a ring. For one
/// that is longer it waits a nanosecond for each byte: its reader may touch the memory for the first time.
const RING_PATIENCE: Duration = Duration::from_micros(200);

/// Longer than any program runs; a wait without limit.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

impl<L: Link> Endpoint<L> {
    /// Sends a copy of `message`. It leaves at once if window and link permit, else as soon as they do: in one of the program's calls, or by
    /// the progress assistant. Waits while the queue to `to` is full.
    ///
    /// A message of 32 KiB or more leaves from where it is as far as it may, and only then is copied what is on its way or waits. Of one
    /// of 256 KiB or more the call returns when nearly all has left, and receives meanwhile: it takes little memory, whatever its
    /// length. Over links that gather one of 12 KiB or more leaves like that, too, if it is in no batch.
    ///
    /// Over shared memory one that fits a quarter of the ring between two processes (256 KiB where they are few) is written there at once;
    /// if the ring is full, the call waits where it may spin, as long as the peer reads a message every 200 us.
    ///
    /// Many small messages cost less as a [`batch`](Self::batch).
    #[inline]
    pub fn send(&mut self, to: NodeId, channel: Channel, message: &[u8]) -> Result<(), SendError> {
        let core = &mut *self.core.write();
        core.send_copied(to, channel, message, false, false)
            .map(drop)
    }

    /// As `send`, and says that more messages follow at once: this one may wait for the first that is sent without saying so, for the next
    /// call that polls, or for the assistant.
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

    /// Sends `message` from where the program has it, without a copy; waits as `send` does. The program may read it meanwhile, and send it to
    /// others: it is held until it is acknowledged, was read or has failed, and then given up by whoever drives. So the end of its owner
    /// ([`Bytes::from_owner`]) says that the memory can be used again, and [`send_shared_tracked`](Self::send_shared_tracked) that
    /// it has arrived. Messages of less than 4 KiB are copied, and given up at once.
    /// A `Vec` is given away by `message.into()`.
    ///
    /// Over shared memory one of 32 KiB or more, and no longer than a ring (1 MiB where nodes are few), leaves *by reference*, unless it is
    /// tracked: its receiver reads it where it lies, one copy instead of two, and no time of the sender's. Where the kernel does not let processes
    /// of one user read each other (`kernel.yama.ptrace_scope`), or the receiver's budget has no room for it (by default between more than
    /// nine nodes), it is copied as by `send`.
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

    /// The same, and names the message so that its acknowledgement can be asked for.
    pub fn send_shared_tracked(
        &mut self,
        to: NodeId,
        channel: Channel,
        message: Bytes,
    ) -> Result<SendId, SendError> {
        let core = &mut *self.core.write();
        let id = core.send_shared(to, channel, message, true)?;
        if !core.drive.engine.is_acknowledged(to, id) {
            core.peers.track(to, id);
        }
        Ok(id)
    }

    /// Sends a copy of `message`, or says [`SendError::WouldBlock`]: the queue to `to` is full, or its owner there wants nothing on the channel
    /// for now, or there is no memory for the copy before something that waits is acknowledged. `wait_writable` waits for all of them,
    /// [`Handler::writable`](crate::Handler::writable) tells of the first two. [`SendError::NoMemory`]: nothing waits.
    pub fn try_send(
        &mut self,
        to: NodeId,
        channel: Channel,
        message: &[u8],
    ) -> Result<(), SendError> {
        let core = &mut *self.core.write();
        core.try_send(to, channel, Payload::Copied(message, &[]))
    }

    /// The same of one message in two parts.
    pub fn try_send_joined(
        &mut self,
        to: NodeId,
        channel: Channel,
        (head, body): (&[u8], &[u8]),
    ) -> Result<(), SendError> {
        let core = &mut *self.core.write();
        core.try_send(to, channel, Payload::Copied(head, body))
    }

    /// Like `send`, and names the message so that its acknowledgement can be asked for.
    pub fn send_tracked(
        &mut self,
        to: NodeId,
        channel: Channel,
        message: &[u8],
    ) -> Result<SendId, SendError> {
        let core = &mut *self.core.write();
        let id = core.send_copied(to, channel, message, true, false)?;
        // A message that was borrowed may be acknowledged by now.
        let is_open =
            message.len() < BORROWED_ALONE_BYTES || !core.drive.engine.is_acknowledged(to, id);
        if is_open {
            core.peers.track(to, id);
        }
        Ok(id)
    }

    /// Has the peer acknowledged the whole of a tracked message? Takes a turn. A message that failed with its peer is an error.
    pub fn is_sent(&mut self, to: NodeId, id: SendId) -> Result<bool, SendError> {
        let core = &mut *self.core.write();
        if !core.peers.is_sent(to, id)? {
            core.progress()?;
        }
        core.peers.is_sent(to, id)
    }

    /// Waits until a tracked message is acknowledged; `false`: not within `timeout`.
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

    /// Waits until a message of `bytes` can be queued to `to` on `channel_id` without waiting; `false`: not within `timeout`. If a copy found no memory
    /// before, it waits until there is memory for this one, too; without a limit of time (some 136 years) as long as messages to
    /// `to` wait that may leave some: then it says [`SendError::NoMemory`].
    ///
    /// A message larger than the whole queue is taken when nothing else waits.
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

    /// Waits until all messages that were sent are acknowledged; `false`: not within `timeout`. [`SendError::MessagesLost`] names a peer
    /// that died before, and how many messages were lost with it; the next call waits for the others.
    pub fn flush(&mut self, timeout: Duration) -> Result<bool, SendError> {
        self.core.write().flush(timeout)
    }

    /// Messages to `to` that are not yet acknowledged, those of handlers and other threads included.
    pub fn queue_length(&self, to: NodeId) -> usize {
        let core = self.core.read();
        core.queue_length(to) + core.channels.tools.outbox.messages_to(to)
    }

    /// Their bytes, as far as they are held here.
    pub fn queued_bytes(&self, to: NodeId) -> usize {
        let core = self.core.read();
        let queued = core.drive.engine.queued(to);
        queued.map_or(0, |queued| queued.bytes)
    }
}

impl<L: Link> Core<L> {
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
            // Nothing of ours will give any back: `send` says so, too.
            if timeout >= FOREVER && self.queue_length(to) == 0 {
                return Err(SendError::NoMemory { bytes });
            }
            self.pause_for_memory(to, left)?;
            left = timeout.saturating_sub(start.elapsed());
            is_last = left.is_zero();
        }
    }

    pub(super) fn flush(&mut self, timeout: Duration) -> Result<bool, SendError> {
        // A peer that asks again with each answer would keep the queue from ever being empty.
        self.channels.statistics.is_paused = true;
        let flushed = self.flush_all(timeout);
        self.channels.statistics.is_paused = false;
        flushed
    }

    fn flush_all(&mut self, timeout: Duration) -> Result<bool, SendError> {
        self.peers.tell_any_losses()?;
        let nodes = self.membership.members.len();
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
                self.drive.abort_read()?;
                return Ok(is_flushed);
            }
            // Nobody says that a direct message was read.
            let left = timeout.saturating_sub(start.elapsed());
            let span = if unread == 0 {
                left
            } else {
                left.min(READ_LOOK)
            };
            is_last = left <= span;
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
        match self.drive.submit(to, channel, payload, false, false) {
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

    /// Until something that waits for `to` is acknowledged and leaves its memory, or for a while: others who free some do not say so.
    fn pause_for_memory(&mut self, to: NodeId, most: Duration) -> Result<(), SendError> {
        let queued = self.queue_length(to);
        self.run_until(most.min(MEMORY_PAUSE), |engine, intake| {
            let now = engine.queued(to);
            now.is_none_or(|now| now.messages < queued) || intake.peers.is_lost(to)
        })?;
        self.alive(to)
    }

    /// Waits until the queue to `to` has room for a message of `bytes`, if there is memory for it, and the peer wants more on the channel.
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
        // It may have died and be back meanwhile: nothing goes to another process before that is told.
        self.peers.tell_losses(to)?;
        Ok(writable)
    }

    /// Channels for libraries are for who has opened them. All others are the program's, which is told first what it has lost.
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

    /// Takes in what peers have sent so far: a word that this node is to stop may lie behind all of it.
    #[cold]
    fn listen(&mut self) -> Result<(), LinkError> {
        for _ in 0..LISTEN_TURNS {
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
        let lends =
            bytes >= BORROWED_BYTES || bytes >= BORROWED_ALONE_BYTES && self.drive.gathers_alone();
        if lends {
            match self.send_borrowed(to, channel, message, notify) {
                // Nothing has left: it may wait for memory as other messages of its length do.
                Err(SendError::NoMemory { .. }) if bytes < BORROWED_BYTES => {}
                done => return done,
            }
        }
        loop {
            match self
                .drive
                .enqueue(to, channel, Payload::Copied(message, &[]), notify, more)
            {
                Err(SendError::NoMemory { .. }) if self.queue_length(to) > 0 => {
                    self.pause_for_memory(to, MEMORY_PAUSE)?;
                }
                Err(SendError::WouldBlock { .. }) => {
                    self.wait_room(to, channel_id, message.len(), FOREVER)?;
                }
                done => return done,
            }
        }
    }

    /// Sends a message past the queue, if that is possible now or as soon as its reader has made room.
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

    /// The ring is full: as long as its reader goes on reading, waiting costs less than a copy into the queue, or one more through the ring.
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
            // As after any wait: nothing goes to another process before what was lost is told.
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
        if !notify {
            if self.channels.is_stopped(to, channel.id()) {
                self.wait_room(to, channel.id(), 0, FOREVER)?;
            }
            if self.send_directly(to, channel, &Payload::Shared(message.clone()))? {
                return Ok(UNTRACKED);
            }
        }
        loop {
            self.wait_room(to, channel.id(), message.len(), FOREVER)?;
            let payload = Payload::Shared(message.clone());
            match self.drive.enqueue(to, channel, payload, notify, false) {
                Err(SendError::WouldBlock { .. }) => {}
                Err(SendError::NoMemory { .. }) if self.queue_length(to) > 0 => {
                    self.pause_for_memory(to, MEMORY_PAUSE)?;
                }
                done => return done,
            }
        }
    }

    /// A long message leaves from where the caller has it. Copied is what is on its way when nearly all has left: a copy of all would
    /// be made before anything leaves, drive everything else from the caches, and take memory for as long as it travels.
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

    /// Has the borrowed message leave, as far as it may, and takes the rest back.
    fn end_borrowed(&mut self, borrowed: &Borrowed<'_>) -> Result<(), SendError> {
        let left = self.await_left(borrowed);
        if let Ok(None) = self.drive.engine.unsent_bytes(borrowed) {
            return Ok(()); // acknowledged, whatever became of peer or link since
        }
        if left.is_err() && self.drive.engine.cancel(borrowed) {
            return left;
        }
        left.and(self.take_back(borrowed))
    }

    /// Until so much of the borrowed message has left that the rest may wait in the queue.
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
            self.alive(to)?; // one that is never met
        }
        Ok(())
    }

    /// Ends the session with a peer that can neither be sent what was begun, nor have it kept for it.
    pub(super) fn abort(&mut self, peer: NodeId) {
        let mut intake = Keeping {
            taker: None,
            channels: &mut self.channels,
            peers: &mut self.peers,
            borrowed: &Borrowed::NONE,
        };
        self.drive.abort(peer, &mut intake);
    }

    /// Has the engine keep what is not acknowledged of the borrowed message. None is ever left borrowed: who would bring it along?
    fn take_back(&mut self, borrowed: &Borrowed<'_>) -> Result<(), SendError> {
        while !self.drive.engine.retain(borrowed) {
            if self.drive.engine.cancel(borrowed) {
                let bytes = borrowed.message().len();
                return Err(SendError::NoMemory { bytes });
            }
            // What has begun must be ended: there may be memory soon, or all may leave, or its peer die.
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

/// A message that is borrowed by the engine while its caller's call lasts. If a panic ends that (of a policy, of a link, of who takes log
/// lines), it is taken back all the same: nobody would bring it along, and others to the peer would wait behind it for ever.
struct BorrowedSend<'a, 'b, L: Link> {
    core: &'a mut Core<L>,
    borrowed: Borrowed<'b>,
    is_over: bool,
}

impl<L: Link> Drop for BorrowedSend<'_, '_, L> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let engine = &mut self.core.drive.engine;
        if engine.cancel(&self.borrowed) || engine.retain(&self.borrowed) {
            self.core.drive.mark_pending();
        } else {
            self.core.abort(self.borrowed.to()); // there is no memory to keep it
        }
    }
}
