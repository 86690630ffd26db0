//! Taking what arrives: by polling with a handler, or message by message; of all channels that nobody opened, or of one that was.
//!
//! Invariant: what waits on a channel is older than anything a turn may bring, so it is handed over first.

use std::time::Duration;

use tsumuji_link::Link;
use tsumuji_proto::{Borrowed, Channel, NodeId};

use super::{Core, Endpoint};
use crate::channel::kept::Return;
use crate::channel::mailbox::{Charge, Stored};
use crate::channel::{Channels, Kept, Message};
use crate::error::{ChannelError, EndpointError, RecvError};
use crate::handler::Handler;
use crate::intake::{Intake, Taker};

/// Bytes taken from mailboxes between two turns: peers learn early that there is room again.
const TAKEN_BYTES_PER_TURN: usize = 64 << 10;

/// And after 64 small messages at the latest, as each counts for so many bytes more: a program that works on each for long must answer its
/// peers meanwhile.
const TAKEN_MESSAGE_BYTES: usize = 1 << 10;

/// No channel's.
const NO_GENERATION: u64 = u64::MAX;

impl<L: Link> Endpoint<L> {
    /// One turn of the loop: receive a burst, hand over, mind timers, transmit, flush. The handler takes what comes on channels that nobody
    /// opened. Returns how much was done. Never waits.
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

    /// As `poll`, with a handler of what comes on a channel that was opened without one; notices are not for it. What comes on others
    /// waits for those who take it.
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

    /// As `poll_wait`, of a channel that was opened without a handler.
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

    /// One turn that keeps what arrives for those who take it later: lets a program that is busy acknowledge, and go on sending.
    /// Returns how much was done. Never waits.
    pub fn progress(&mut self) -> Result<usize, EndpointError> {
        Ok(self.core.write().progress()?)
    }

    /// The next message on channels that nobody opened, if one is there.
    pub fn try_recv(&mut self) -> Result<Option<Message>, RecvError> {
        self.recv(Duration::ZERO)
    }

    /// The next message on channels that nobody opened; `None`: none came within `timeout`, or a [`Waker`](crate::Waker) was used.
    pub fn recv(&mut self, timeout: Duration) -> Result<Option<Message>, RecvError> {
        self.core.write().recv(None, None, timeout)
    }

    /// The next of them from that peer; what others sent stays where it is.
    pub fn recv_from(
        &mut self,
        from: NodeId,
        timeout: Duration,
    ) -> Result<Option<Message>, RecvError> {
        self.core.write().recv(None, Some(from), timeout)
    }

    /// The next message on a channel that was opened without a handler, from that peer or from any.
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

    /// The next message of an opened channel (`None`: of those that nobody opened), from that peer or from any. It goes on counting against
    /// the budget until it is dropped, in whatever thread.
    pub fn recv_kept(
        &mut self,
        channel_id: Option<u16>,
        from: Option<NodeId>,
        timeout: Duration,
    ) -> Result<Option<Kept>, RecvError> {
        let core = &mut *self.core.write();
        core.opened(channel_id)?;
        core.answer_peers()?;
        if core.ready(channel_id, from, timeout)?.is_none() {
            return Ok(None);
        }
        let stored = core.channels.take(channel_id, from);
        let kept = stored.map(|stored| core.channels.keep(stored));
        core.taken_bytes += TAKEN_MESSAGE_BYTES + kept.as_ref().map_or(0, |kept| kept.len());
        Ok(kept)
    }

    /// Waits for a whole message on channels that nobody opened, without taking it; its size, or `None` if none came within `timeout`.
    #[inline]
    pub fn ready(&mut self, timeout: Duration) -> Result<Option<usize>, RecvError> {
        self.core.write().ready(None, None, timeout)
    }

    /// The same of an opened channel (`None`: of those that nobody opened), from that peer or from any.
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

    /// Releases a message of this endpoint's at once, and cheaper than by dropping it.
    pub fn release(&mut self, kept: Kept) {
        let core = &mut *self.core.write();
        let Some(back) = kept.into_return(core.channels.returns()) else {
            return; // another endpoint's
        };
        let Return {
            from, channel_id, ..
        } = back;
        if (core.channels).release((from, channel_id), back.generation, back.charge, back.bytes) {
            core.drive.release(from, back.bytes);
        }
        core.recycle(back.body);
    }

    /// Gives a message's buffer back, to be used for the next one.
    pub fn recycle(&mut self, message: Message) {
        let core = &mut *self.core.write();
        core.recycle(message.body);
    }
}

impl<L: Link> Core<L> {
    /// Whether messages can be taken from that channel.
    pub(super) fn opened(&self, channel_id: Option<u16>) -> Result<(), ChannelError> {
        channel_id.map_or(Ok(()), |channel_id| self.channels.has_mailbox(channel_id))
    }

    #[inline]
    fn poll(
        &mut self,
        channel_id: Option<u16>,
        handler: &mut impl Handler,
    ) -> Result<usize, EndpointError> {
        let before = if self.channels.is_empty(channel_id) {
            0
        } else {
            self.hand_over(channel_id, handler)?
        };
        // What came while the mailbox was handed over is older than what this turn brings.
        if !self.channels.is_empty(channel_id) {
            return Ok(before + self.progress()?);
        }
        let (mut intake, drive) = self.intake(channel_id, handler);
        Ok(before + drive.poll_once(true, &mut intake)?)
    }

    fn poll_wait(
        &mut self,
        channel_id: Option<u16>,
        handler: &mut impl Handler,
        timeout: Duration,
    ) -> Result<usize, EndpointError> {
        if !self.channels.is_empty(channel_id) {
            return self.poll(channel_id, handler);
        }
        // A waker is for the program's waits, not for those of libraries within its calls.
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
    fn intake<'a, H: Handler>(
        &'a mut self,
        channel_id: Option<u16>,
        handler: &'a mut H,
    ) -> (Intake<'a, H>, &'a mut crate::drive::Drive<L>) {
        let taker = match channel_id {
            Some(channel_id) => Taker::Channel(channel_id, handler),
            None => Taker::Program(handler),
        };
        let intake = Intake {
            taker: Some(taker),
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
        let Stored {
            message, charge, ..
        } = stored;
        self.release(
            message.from,
            message.channel.id(),
            charge,
            message.body.len(),
        );
        self.taken_bytes += message.body.len() + TAKEN_MESSAGE_BYTES;
        Ok(Some(message))
    }

    /// The program is done with a message that it took just now.
    fn release(&mut self, from: NodeId, channel_id: u16, charge: Charge, bytes: usize) {
        let generation = self.channels.generation(channel_id);
        if (self.channels).release((from, channel_id), generation, charge, bytes) {
            self.drive.release(from, bytes);
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
        self.await_or_wake(timeout, |channels| {
            channels.next_bytes(channel_id, from).is_some()
        })?;
        Ok(self.channels.next_bytes(channel_id, from))
    }

    /// Waits until that has come, or a waker is used.
    pub(super) fn await_or_wake(
        &mut self,
        timeout: Duration,
        mut has_come: impl FnMut(&mut Channels) -> bool,
    ) -> Result<(), EndpointError> {
        let wakes = !timeout.is_zero();
        if !(wakes && std::mem::take(&mut self.channels.is_woken)) {
            self.run_until(timeout, |_, intake| {
                wakes && intake.channels.is_woken || has_come(intake.channels)
            })?;
            self.channels.is_woken &= !wakes;
        }
        Ok(())
    }

    /// A turn, if much was taken since the last one.
    #[inline]
    fn answer_peers(&mut self) -> Result<(), EndpointError> {
        if self.taken_bytes >= TAKEN_BYTES_PER_TURN {
            self.taken_bytes = 0;
            self.progress()?;
        }
        Ok(())
    }

    /// Hands over what waits; what comes meanwhile waits for the next call.
    fn hand_over(
        &mut self,
        channel_id: Option<u16>,
        handler: &mut impl Handler,
    ) -> Result<usize, EndpointError> {
        // An owner's datagrams follow the messages that say what they are of.
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

    /// Ends what was begun with `Channels::close`: nobody will take these.
    pub(super) fn release_all(&mut self, messages: Vec<Stored>) {
        for Stored {
            message, charge, ..
        } in messages
        {
            let (from, channel_id, bytes) =
                (message.from, message.channel.id(), message.body.len());
            if (self.channels).release((from, channel_id), NO_GENERATION, charge, bytes) {
                self.drive.release(from, bytes);
            }
            self.recycle(message.body);
        }
    }

    /// Gives the handler of a channel that was opened just now what came before. Nothing comes meanwhile: no turn is taken.
    pub(super) fn hand_over_early(&mut self, channel_id: u16) {
        let Some(mut handler) = self.channels.borrow_handler(channel_id) else {
            return;
        };
        while let Some(stored) = self.channels.take(Some(channel_id), None) {
            self.hand_over_one(Some(channel_id), &mut handler, stored);
        }
        self.channels.hand_over_rest(Some(channel_id), &mut handler);
        self.channels.give_back_handler(channel_id, handler);
    }

    fn hand_over_one(
        &mut self,
        channel_id: Option<u16>,
        handler: &mut impl Handler,
        stored: Stored,
    ) {
        let (from, number) = (stored.message.from, stored.message.channel.id());
        let bytes = stored.message.body.len();
        if let Some((charge, body)) = self.channels.hand_over(channel_id, handler, stored) {
            self.drive.engine.recycle(body);
            self.release(from, number, charge, bytes);
        }
        self.taken_bytes += bytes + TAKEN_MESSAGE_BYTES;
    }
}
