//! Sending messages, waiting for room in the queue, and waiting for acknowledgements.
//!
//! A short message is copied into the engine's queue. A long one is lent to the engine: frames leave from where the caller has
//! it, and only what is left when the call returns is copied.

use std::time::{Duration, Instant};

use tsumuji_link::Link;
use tsumuji_proto::{Engine, Lane, Loan, NodeId, Payload, SendId};

use super::{Core, Endpoint};
use crate::aside::ASIDE_CHANNEL;
use crate::drive::refused;
use crate::error::SendError;
use crate::intake::Kept;

/// Messages of this size and more leave from where the caller has them.
const LENT_BYTES: usize = 32 << 10;

/// So do those of this size and more over links that gather, unless they follow each other in a loop and leave together: their copy can be made while they
/// travel. Of smaller ones it takes less time than lending.
const LENT_ALONE_BYTES: usize = 12 << 10;

/// Of such a message of this size and more `send` waits until nearly all has left; what a shorter one has left waits in the queue.
const AWAITED_BYTES: usize = 256 << 10;

/// Nearly all: but for what fills a link's burst.
const AHEAD_BYTES: usize = 64 << 10;

/// How long to wait for memory for a message, or for the next piece of one that has begun to leave.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

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
    /// Many small messages cost less as a [`batch`](Self::batch).
    #[inline]
    pub fn send(&mut self, to: NodeId, lane: Lane, message: &[u8]) -> Result<(), SendError> {
        let core = &mut *self.core.write();
        core.send_copied(to, lane, message, false, false).map(drop)
    }

    /// As `send`, and says that more messages follow at once: this one may wait for the first that is sent without saying so, for the next
    /// call that polls, or for the assistant.
    #[inline]
    pub fn send_more(&mut self, to: NodeId, lane: Lane, message: &[u8]) -> Result<(), SendError> {
        let core = &mut *self.core.write();
        core.send_copied(to, lane, message, false, true).map(drop)
    }

    /// Sends `message` without copying it into the queue; waits as `send` does.
    pub fn send_owned(
        &mut self,
        to: NodeId,
        lane: Lane,
        message: Vec<u8>,
    ) -> Result<(), SendError> {
        let core = &mut *self.core.write();
        unreserved(lane)?;
        core.peers.tell_losses(to)?;
        core.wait_room(to, message.len(), FOREVER)?; // before the message is given away
        core.drive
            .submit(to, lane, Payload::Owned(message), false, false)
            .map(drop)
    }

    /// Sends a copy of `message`, or says [`SendError::WouldBlock`]: the queue to `to` is full, or there is no memory for the copy before
    /// something in it is acknowledged; `wait_writable` waits for either. [`SendError::NoMemory`]: nothing is in it.
    pub fn try_send(&mut self, to: NodeId, lane: Lane, message: &[u8]) -> Result<(), SendError> {
        let core = &mut *self.core.write();
        unreserved(lane)?;
        core.peers.tell_losses(to)?;
        let payload = Payload::Copied(message);
        match core.drive.submit(to, lane, payload, false, false) {
            Err(SendError::NoMemory { bytes }) => {
                core.is_memory_short = true;
                if core.queue_length(to) > 0 {
                    return Err(SendError::WouldBlock { peer: to });
                }
                Err(SendError::NoMemory { bytes })
            }
            done => done.map(drop),
        }
    }

    /// Like `send`, and names the message so that its acknowledgement can be asked for. One of a *latest* lane is never waited for: it
    /// counts as sent.
    pub fn send_tracked(
        &mut self,
        to: NodeId,
        lane: Lane,
        message: &[u8],
    ) -> Result<SendId, SendError> {
        let core = &mut *self.core.write();
        let id = core.send_copied(to, lane, message, true, false)?;
        // A message that was lent may be acknowledged by now.
        let is_open =
            message.len() < LENT_ALONE_BYTES || !core.drive.engine.is_acknowledged(to, id);
        if is_open && !lane.is_latest() {
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
            core.run_until(timeout, |_, kept| {
                !matches!(kept.peers.is_sent(to, id), Ok(false))
            })?;
        }
        core.peers.is_sent(to, id)
    }

    /// Waits until a message of `bytes` can be queued to `to` without waiting; `false`: not within `timeout`. If a copy found no memory
    /// before, it waits until there is memory for this one, too; without a limit of time (some 136 years) as long as messages to
    /// `to` wait that may leave some: then it says [`SendError::NoMemory`].
    ///
    /// A message larger than the whole queue is taken when nothing else waits.
    pub fn wait_writable(
        &mut self,
        to: NodeId,
        bytes: usize,
        timeout: Duration,
    ) -> Result<bool, SendError> {
        self.core.write().wait_writable(to, bytes, timeout)
    }

    /// Waits until all messages that were sent are acknowledged; `false`: not within `timeout`. [`SendError::MessagesLost`] names a peer
    /// that died before, and how many messages were lost with it; the next call waits for the others.
    pub fn flush(&mut self, timeout: Duration) -> Result<bool, SendError> {
        self.core.write().flush(timeout)
    }

    /// Messages to `to` that are not yet acknowledged.
    pub fn queue_length(&self, to: NodeId) -> usize {
        self.core.read().queue_length(to)
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
        to: NodeId,
        bytes: usize,
        timeout: Duration,
    ) -> Result<bool, SendError> {
        self.peers.tell_losses(to)?;
        if !self.is_memory_short {
            return self.wait_room(to, bytes, timeout);
        }
        let (start, mut left, mut is_last) = (Instant::now(), timeout, false);
        loop {
            if !self.wait_room(to, bytes, left)? {
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
        self.peers.tell_any_losses()?;
        let nodes = self.membership.members.len();
        let all_sent = |engine: &Engine| {
            let peers = (0..=u16::MAX).take(nodes).map(NodeId);
            peers
                .filter_map(|peer| engine.queued(peer))
                .all(|queued| queued.messages == 0)
        };
        if all_sent(&self.drive.engine) {
            return Ok(true);
        }
        self.run_until(timeout, |engine, kept| {
            all_sent(engine) || kept.peers.has_losses()
        })?;
        self.peers.tell_any_losses()?;
        Ok(all_sent(&self.drive.engine))
    }

    pub(super) fn queue_length(&self, to: NodeId) -> usize {
        let queued = self.drive.engine.queued(to);
        queued.map_or(0, |queued| queued.messages)
    }

    /// Until something that waits for `to` is acknowledged and leaves its memory, or for a while: others who free some do not say so.
    fn pause_for_memory(&mut self, to: NodeId, most: Duration) -> Result<(), SendError> {
        let queued = self.queue_length(to);
        self.run_until(most.min(MEMORY_PAUSE), |engine, kept| {
            let now = engine.queued(to);
            now.is_none_or(|now| now.messages < queued) || kept.peers.is_lost(to)
        })?;
        self.alive(to)
    }

    /// Waits until the queue to `to` has room for a message of `bytes`, if there is memory for it.
    fn wait_room(
        &mut self,
        to: NodeId,
        bytes: usize,
        timeout: Duration,
    ) -> Result<bool, SendError> {
        self.known(to)?;
        if self.drive.engine.has_room(to, bytes) || self.peers.is_lost(to) {
            return self.alive(to).map(|()| true);
        }
        let writable = self.run_until(timeout, |engine, kept| {
            engine.has_room(to, bytes) || kept.peers.is_lost(to)
        })?;
        self.alive(to)?;
        // It may have died and be back meanwhile: nothing goes to another process before that is told.
        self.peers.tell_losses(to)?;
        Ok(writable)
    }

    #[inline]
    fn send_copied(
        &mut self,
        to: NodeId,
        lane: Lane,
        message: &[u8],
        notify: bool,
        more: bool,
    ) -> Result<SendId, SendError> {
        unreserved(lane)?;
        self.peers.tell_losses(to)?;
        let bytes = message.len();
        let lends = bytes >= LENT_BYTES || bytes >= LENT_ALONE_BYTES && self.drive.gathers_alone();
        if lends && !lane.is_latest() {
            match self.send_lent(to, lane, message, notify) {
                // Nothing has left: it may wait for memory as other messages of its length do.
                Err(SendError::NoMemory { .. }) if bytes < LENT_BYTES => {}
                done => return done,
            }
        }
        loop {
            match self
                .drive
                .submit(to, lane, Payload::Copied(message), notify, more)
            {
                Err(SendError::NoMemory { .. }) if self.queue_length(to) > 0 => {
                    self.pause_for_memory(to, MEMORY_PAUSE)?;
                }
                Err(SendError::WouldBlock { .. }) => {
                    self.wait_room(to, message.len(), FOREVER)?;
                }
                done => return done,
            }
        }
    }

    /// A long message leaves from where the caller has it. Copied is what is on its way when nearly all has left: a copy of all would
    /// be made before anything leaves, drive everything else from the caches, and take memory for as long as it travels.
    fn send_lent(
        &mut self,
        to: NodeId,
        lane: Lane,
        message: &[u8],
        notify: bool,
    ) -> Result<SendId, SendError> {
        let id = loop {
            match self.drive.submit_lent(to, lane, message.len(), notify) {
                Err(SendError::WouldBlock { .. }) => self.wait_room(to, 0, FOREVER)?,
                done => break done?,
            };
        };
        let mut lent = Lent {
            core: self,
            loan: Loan::new(to, id, message),
            is_over: false,
        };
        let sent = lent.core.end_loan(&lent.loan);
        lent.is_over = true;
        sent.map(|()| id)
    }

    /// Has the lent message leave, as far as it may, and takes the rest back.
    fn end_loan(&mut self, loan: &Loan<'_>) -> Result<(), SendError> {
        let left = self.await_left(loan);
        if let Ok(None) = self.drive.engine.unsent_bytes(loan) {
            return Ok(()); // acknowledged, whatever became of peer or link since
        }
        if left.is_err() && self.drive.engine.withdraw(loan) {
            return left;
        }
        left.and(self.take_back(loan))
    }

    /// Until so much of the lent message has left that the rest may wait in the queue.
    fn await_left(&mut self, loan: &Loan<'_>) -> Result<(), SendError> {
        self.drive.transmit(loan)?;
        let (to, unsent) = (loan.to(), |engine: &Engine| engine.unsent_bytes(loan));
        if loan.message().len() >= AWAITED_BYTES {
            self.run_lent(Duration::ZERO, loan, |_, _| true)?; // what is acknowledged need not be copied
            let waits = |engine: &Engine| matches!(unsent(engine), Ok(Some(AHEAD_BYTES..)));
            if waits(&self.drive.engine) {
                self.run_lent(FOREVER, loan, |engine, kept| {
                    !waits(engine) || kept.peers.is_lost(to)
                })?;
            }
        }
        if unsent(&self.drive.engine).map_err(refused)?.is_some() {
            self.alive(to)?; // one that is never met
        }
        Ok(())
    }

    /// Ends the session with a peer that can neither be sent what was begun, nor have it kept for it.
    fn give_up(&mut self, peer: NodeId) {
        let mut kept = Kept {
            inbox: &mut self.inbox,
            shelf: &mut self.shelf,
            peers: &mut self.peers,
            lent: &Loan::NONE,
        };
        self.drive.give_up(peer, &mut kept);
    }

    /// Has the engine keep what is not acknowledged of the lent message. None is ever left lent: who would bring it along?
    fn take_back(&mut self, loan: &Loan<'_>) -> Result<(), SendError> {
        while !self.drive.engine.keep(loan) {
            if self.drive.engine.withdraw(loan) {
                let bytes = loan.message().len();
                return Err(SendError::NoMemory { bytes });
            }
            // What has begun must be ended: there may be memory soon, or all may leave, or its peer die.
            let waited = self.run_lent(MEMORY_PAUSE, loan, |_, _| false);
            if let Ok(None) = self.drive.engine.unsent_bytes(loan) {
                return Ok(());
            }
            if let Err(error) = waited {
                self.give_up(loan.to());
                return Err(error.into());
            }
            if let Err(gone) = self.drive.engine.unsent_bytes(loan) {
                return Err(refused(gone));
            }
        }
        Ok(())
    }
}

/// A message that is lent to the engine while its caller's call lasts. If a panic ends that (of a policy, of a link, of who takes log
/// lines), it is taken back all the same: nobody would bring it along, and others to the peer would wait behind it for ever.
struct Lent<'a, 'b, L: Link> {
    core: &'a mut Core<L>,
    loan: Loan<'b>,
    is_over: bool,
}

impl<L: Link> Drop for Lent<'_, '_, L> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let engine = &mut self.core.drive.engine;
        if engine.withdraw(&self.loan) || engine.keep(&self.loan) {
            self.core.drive.touched();
        } else {
            self.core.give_up(self.loan.to()); // there is no memory to keep it
        }
    }
}

/// Programs keep off the channel of the libraries between them and the endpoint.
#[inline]
fn unreserved(lane: Lane) -> Result<(), SendError> {
    if lane.channel() == ASIDE_CHANNEL {
        return Err(SendError::ReservedChannel {
            channel: ASIDE_CHANNEL,
        });
    }
    Ok(())
}
