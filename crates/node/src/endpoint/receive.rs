//! Receiving: by polling with a handler, or message by message, from one opened channel or from all that nobody opened.
//!
//! Invariant: messages that wait on a channel are older than any a poll may bring, so they are delivered first.

use std::time::Duration;

use tsumuji_proto::{Borrowed, Channel, NodeId};

use super::{Core, Endpoint};
use crate::any_link::AnyLink;
use crate::channel::mailbox::Stored;
use crate::channel::retained::Charged;
use crate::channel::{Channels, Message, Retained};
use crate::error::{ChannelError, EndpointError, RecvError};
use crate::handler::Handler;
use crate::intake::Intake;

/// Bytes taken from mailboxes between two polls, so that peers soon learn that there is room again.
const TAKEN_BYTES_PER_POLL: usize = 64 << 10;

/// Each message counts as this many bytes more, so that a program that works long on each message polls after 64 of them at the latest.
const TAKEN_MESSAGE_BYTES: usize = 1 << 10;

/// Generation of no channel.
const NO_GENERATION: u64 = u64::MAX;

impl Endpoint {
    /// One poll: receives a burst, delivers, handles timers, transmits, flushes. The handler gets what arrives on channels that nobody opened.
    /// Returns how much was done. Never waits.
    #[inline]
    pub fn poll(&mut self, handler: &mut impl Handler) -> Result<usize, EndpointError> {
        self.core.write().poll(None, handler)
    }

    /// Polls until something was done or `timeout` has passed, idling as the policy says.
    pub fn poll_wait(
        &mut self,
        handler: &mut impl Handler,
        timeout: Duration,
    ) -> Result<usize, EndpointError> {
        self.core.write().poll_wait(None, handler, timeout)
    }

    /// As `poll`, with a handler for a channel that was opened without one. It gets no notices; messages of other channels wait for their receivers.
    #[inline]
    pub fn poll_on(
        &mut self,
        channel_id: u16,
        handler: &mut impl Handler,
    ) -> Result<usize, EndpointError> {
        let core = &mut *self.core.write();
        core.opened(Some(channel_id))?;
        core.poll(Some(channel_id), handler)
    }

    /// As `poll_wait`, for a channel that was opened without a handler.
    pub fn poll_on_wait(
        &mut self,
        channel_id: u16,
        handler: &mut impl Handler,
        timeout: Duration,
    ) -> Result<usize, EndpointError> {
        let core = &mut *self.core.write();
        core.opened(Some(channel_id))?;
        core.poll_wait(Some(channel_id), handler, timeout)
    }

    /// One poll that queues what arrives for later calls: lets a busy program acknowledge, and go on sending. Returns how much was done. Never waits.
    pub fn progress(&mut self) -> Result<usize, EndpointError> {
        Ok(self.core.write().progress()?)
    }

    /// Takes the next message on channels that nobody opened, if one has arrived.
    pub fn try_recv(&mut self) -> Result<Option<Message>, RecvError> {
        self.recv(Duration::ZERO)
    }

    /// Takes the next message on channels that nobody opened; `None`: none came within `timeout`, or a [`Waker`](crate::Waker) was used.
    pub fn recv(&mut self, timeout: Duration) -> Result<Option<Message>, RecvError> {
        self.core.write().recv(None, None, timeout)
    }

    /// As `recv`, from that peer only; messages of others stay queued.
    pub fn recv_from(
        &mut self,
        from: NodeId,
        timeout: Duration,
    ) -> Result<Option<Message>, RecvError> {
        self.core.write().recv(None, Some(from), timeout)
    }

    /// Takes the next message on a channel that was opened without a handler, from one peer or (`None`) from any. Error: [`RecvError::PeerDead`], as in
    /// all receives from one peer, if that peer is dead and has left no message; one that is up again is waited for.
    pub fn recv_on(
        &mut self,
        channel_id: u16,
        from: Option<NodeId>,
        timeout: Duration,
    ) -> Result<Option<Message>, RecvError> {
        let core = &mut *self.core.write();
        core.opened(Some(channel_id))?;
        core.recv(Some(channel_id), from, timeout)
    }

    /// Takes the next message of an opened channel (`None`: of channels that nobody opened), from one peer or from any. It counts against the budget
    /// until it is dropped, in any thread.
    pub fn recv_retained(
        &mut self,
        channel_id: Option<u16>,
        from: Option<NodeId>,
        timeout: Duration,
    ) -> Result<Option<Retained>, RecvError> {
        let core = &mut *self.core.write();
        core.opened(channel_id)?;
        core.answer_peers()?;
        if core.ready(channel_id, from, timeout)?.is_none() {
            return Ok(None);
        }
        let stored = core.channels.take(channel_id, from);
        let retained = stored.map(|stored| core.channels.retain(stored));
        core.taken_bytes +=
            TAKEN_MESSAGE_BYTES + retained.as_ref().map_or(0, |retained| retained.len());
        Ok(retained)
    }

    /// Waits for a whole message on channels that nobody opened, without taking it; returns its size, or `None` after `timeout`.
    #[inline]
    pub fn ready(&mut self, timeout: Duration) -> Result<Option<usize>, RecvError> {
        self.core.write().ready(None, None, timeout)
    }

    /// As `ready`, for an opened channel (`None`: for those that nobody opened), from one peer or from any.
    pub fn ready_on(
        &mut self,
        channel_id: Option<u16>,
        from: Option<NodeId>,
        timeout: Duration,
    ) -> Result<Option<usize>, RecvError> {
        let core = &mut *self.core.write();
        core.opened(channel_id)?;
        core.ready(channel_id, from, timeout)
    }

    /// Releases a message of this endpoint at once, cheaper than by dropping it.
    pub fn release(&mut self, retained: Retained) {
        let core = &mut *self.core.write();
        let Some((charged, body)) = retained.into_return(core.channels.returns()) else {
            return; // another endpoint's
        };
        core.release(&charged);
        core.recycle(body);
    }

    /// Gives a message's buffer back for reuse.
    pub fn recycle(&mut self, message: Message) {
        let core = &mut *self.core.write();
        core.recycle(message.body);
    }
}

impl Core {
    /// Whether messages can be taken from that channel.
    pub(super) fn opened(&self, channel_id: Option<u16>) -> Result<(), ChannelError> {
        channel_id.map_or(Ok(()), |channel_id| self.channels.has_mailbox(channel_id))
    }

    #[inline]
    fn poll(
        &mut self,
        channel_id: Option<u16>,
        handler: &mut dyn Handler,
    ) -> Result<usize, EndpointError> {
        let before = if self.channels.is_empty(channel_id) {
            0
        } else {
            self.hand_over(channel_id, handler)?
        };
        // Messages that came during the delivery are older than those that this poll brings.
        if !self.channels.is_empty(channel_id) {
            return Ok(before + self.progress()?);
        }
        let (mut intake, drive) = self.intake(channel_id, handler);
        Ok(before + drive.poll_once(true, &mut intake)?)
    }

    fn poll_wait(
        &mut self,
        channel_id: Option<u16>,
        handler: &mut dyn Handler,
        timeout: Duration,
    ) -> Result<usize, EndpointError> {
        if !self.channels.is_empty(channel_id) {
            return self.poll(channel_id, handler);
        }
        // A waker ends the program's waits, not those of libraries within its calls.
        let wakes = !timeout.is_zero() && channel_id.is_none_or(|it| it < Channel::LIBRARY_IDS);
        if wakes && std::mem::take(&mut self.channels.is_woken) {
            return Ok(0);
        }
        let (mut intake, drive) = self.intake(channel_id, handler);
        let done = drive.run_until(&mut intake, timeout, |_, _| true)?;
        if wakes {
            self.channels.is_woken = false;
        }
        Ok(usize::from(done))
    }

    #[inline]
    fn intake<'a>(
        &'a mut self,
        channel_id: Option<u16>,
        handler: &'a mut (dyn Handler + 'a),
    ) -> (Intake<'a>, &'a mut crate::drive::Drive<AnyLink>) {
        let intake = Intake {
            taker: Some((channel_id, handler)),
            channels: &mut self.channels,
            peers: &mut self.peers,
            borrowed: &Borrowed::NONE,
        };
        (intake, &mut self.drive)
    }

    fn recv(
        &mut self,
        channel_id: Option<u16>,
        from: Option<NodeId>,
        timeout: Duration,
    ) -> Result<Option<Message>, RecvError> {
        self.answer_peers()?;
        if self.ready(channel_id, from, timeout)?.is_none() {
            return Ok(None);
        }
        let Some(stored) = self.channels.take(channel_id, from) else {
            return Ok(None);
        };
        let charged = self.channels.charged(&stored);
        self.release(&charged);
        self.taken_bytes += charged.bytes + TAKEN_MESSAGE_BYTES;
        Ok(Some(stored.message))
    }

    /// The program is done with a message.
    fn release(&mut self, charged: &Charged) {
        if self.channels.release(charged) {
            self.drive.release(charged.from, charged.bytes);
        }
    }

    fn recycle(&mut self, body: Vec<u8>) {
        if let Some(buffer) = self.channels.recycle(body) {
            self.drive.engine.recycle(buffer);
        }
    }

    #[inline]
    fn ready(
        &mut self,
        channel_id: Option<u16>,
        from: Option<NodeId>,
        timeout: Duration,
    ) -> Result<Option<usize>, RecvError> {
        if let Some(bytes) = self.channels.next_bytes(channel_id, from) {
            return Ok(Some(bytes));
        }
        self.await_or_wake(timeout, from, |channels| {
            channels.next_bytes(channel_id, from).is_some()
        })?;
        let next = self.channels.next_bytes(channel_id, from);
        if next.is_none() {
            self.may_send(from)?;
        }
        Ok(next)
    }

    /// Waits until `has_come`, a waker is used, or that peer is dead.
    pub(super) fn await_or_wake(
        &mut self,
        timeout: Duration,
        from: Option<NodeId>,
        mut has_come: impl FnMut(&mut Channels) -> bool,
    ) -> Result<(), EndpointError> {
        // For a peer that is dead already the link is polled without waiting: the peer may be up again.
        let is_dead = from.is_some_and(|from| self.peers.is_dead(from));
        let timeout = if is_dead { Duration::ZERO } else { timeout };
        let wakes = !timeout.is_zero();
        if !(wakes && std::mem::take(&mut self.channels.is_woken)) {
            self.run_until(timeout, |_, intake| {
                let is_dead = from.is_some_and(|from| intake.peers.is_dead(from));
                wakes && intake.channels.is_woken || is_dead || has_come(intake.channels)
            })?;
            self.channels.is_woken &= !wakes;
        }
        let is_dead = from.is_some_and(|from| self.peers.is_dead(from));
        if is_dead && !has_come(&mut self.channels) {
            self.progress()?; // what the peer sent last may lie behind the news of its death
        }
        Ok(())
    }

    /// Refuses to wait for a peer that is dead.
    pub(super) fn may_send(&self, from: Option<NodeId>) -> Result<(), EndpointError> {
        match from.filter(|from| self.peers.is_dead(*from)) {
            Some(peer) => Err(EndpointError::PeerDead { peer }),
            None => Ok(()),
        }
    }

    /// Polls, if much was taken since the last time.
    #[inline]
    fn answer_peers(&mut self) -> Result<(), EndpointError> {
        if self.taken_bytes >= TAKEN_BYTES_PER_POLL {
            self.taken_bytes = 0;
            self.progress()?;
        }
        Ok(())
    }

    /// Delivers waiting messages; those that come meanwhile wait for the next call.
    fn hand_over(
        &mut self,
        channel_id: Option<u16>,
        handler: &mut dyn Handler,
    ) -> Result<usize, EndpointError> {
        // A channel's datagrams follow the messages that they refer to.
        let mut count = match channel_id {
            None => self.channels.hand_over_rest(None, handler),
            Some(_) => 0,
        };
        for _ in 0..self.channels.messages(channel_id) {
            self.answer_peers()?;
            let Some(stored) = self.channels.take(channel_id, None) else {
                break;
            };
            self.hand_over_one(channel_id, handler, stored);
            count += 1;
        }
        if channel_id.is_some() {
            count += self.channels.hand_over_rest(channel_id, handler);
        }
        Ok(count)
    }

    /// Drops the messages that `Channels::close` returned.
    pub(super) fn release_all(&mut self, messages: Vec<Stored>) {
        for stored in messages {
            let charged = Charged {
                generation: NO_GENERATION,
                ..self.channels.charged(&stored)
            };
            self.release(&charged);
            self.recycle(stored.message.body);
        }
    }

    /// Delivers earlier messages to the handler of a channel that was opened just now. Nothing arrives meanwhile, as it does not poll.
    pub(super) fn hand_over_early(&mut self, channel_id: u16) {
        let Some(mut handler) = self.channels.borrow_handler(channel_id) else {
            return;
        };
        while let Some(stored) = self.channels.take(Some(channel_id), None) {
            self.hand_over_one(Some(channel_id), &mut *handler, stored);
        }
        self.channels
            .hand_over_rest(Some(channel_id), &mut *handler);
        self.channels.give_back_handler(channel_id, handler);
    }

    fn hand_over_one(
        &mut self,
        channel_id: Option<u16>,
        handler: &mut dyn Handler,
        stored: Stored,
    ) {
        let charged = self.channels.charged(&stored);
        if let Some(body) = self.channels.hand_over(channel_id, handler, stored) {
            self.drive.engine.recycle(body);
            self.release(&charged);
        }
        self.taken_bytes += charged.bytes + TAKEN_MESSAGE_BYTES;
    }
}
