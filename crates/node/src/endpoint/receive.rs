//! Taking what arrives: by polling with a handler, or message by message; and the descriptor for somebody else's event loop.
//!
//! Invariant: what the inbox holds is older than anything a turn may bring, so it is handed over first.

use std::time::Duration;

use tsumuji_link::Link;
use tsumuji_proto::Body;

use super::{Core, Endpoint};
use crate::error::{EndpointError, RecvError};
use crate::handler::Handler;
use crate::inbox::Message;
use crate::intake::ToHandler;

/// Bytes taken from the inbox between two turns: peers learn early that there is room again.
const TAKEN_BYTES_PER_TURN: usize = 64 << 10;

/// And after 64 small messages at the latest, as each counts for so many bytes more: a program that works on each for long must answer its
/// peers meanwhile.
const TAKEN_MESSAGE_BYTES: usize = 1 << 10;

impl<L: Link> Endpoint<L> {
    /// One turn of the loop: receive a burst, hand over, mind timers, transmit, flush. Returns how much was done. Never waits.
    #[inline]
    pub fn poll(&mut self, handler: &mut impl Handler) -> Result<usize, EndpointError> {
        self.core.write().poll(handler)
    }

    /// Polls until something was done or `timeout` has passed, idling as the policy says.
    pub fn poll_wait(
        &mut self,
        handler: &mut impl Handler,
        timeout: Duration,
    ) -> Result<usize, EndpointError> {
        let core = &mut *self.core.write();
        if !core.inbox.is_empty() {
            return core.poll(handler);
        }
        let mut intake = ToHandler {
            handler,
            shelf: &mut core.shelf,
            peers: &mut core.peers,
        };
        Ok(usize::from(core.drive.run_until(
            &mut intake,
            timeout,
            |_, _| true,
        )?))
    }

    /// One turn that keeps what arrives for `recv` and later polls: lets a program that is busy acknowledge, and go on sending.
    /// Returns how much was done. Never waits.
    pub fn progress(&mut self) -> Result<usize, EndpointError> {
        self.core.write().progress()
    }

    /// The next message if one is there.
    pub fn try_recv(&mut self) -> Result<Option<Message>, RecvError> {
        self.recv(Duration::ZERO)
    }

    /// The next message; `None`: none came within `timeout`.
    pub fn recv(&mut self, timeout: Duration) -> Result<Option<Message>, RecvError> {
        let core = &mut *self.core.write();
        core.answer_peers()?;
        if core.ready(timeout)?.is_none() {
            return Ok(None);
        }
        let message = core.inbox.pop();
        if let Some(message) = &message {
            core.drive.release(message.from, message.body.len());
            core.taken_bytes += message.body.len() + TAKEN_MESSAGE_BYTES;
        }
        Ok(message)
    }

    /// Waits for a whole message without taking it; its size, or `None` if none came within `timeout`.
    #[inline]
    pub fn ready(&mut self, timeout: Duration) -> Result<Option<usize>, RecvError> {
        self.core.write().ready(timeout)
    }

    /// Gives a message's buffer back, to be used for the next one.
    pub fn recycle(&mut self, message: Message) {
        let core = &mut *self.core.write();
        if let Some(buffer) = core.inbox.recycle(message.body) {
            core.drive.engine.recycle(buffer);
        }
    }
}

impl<L: Link> Core<L> {
    #[inline]
    fn poll(&mut self, handler: &mut impl Handler) -> Result<usize, EndpointError> {
        let before = if self.inbox.is_empty() {
            0
        } else {
            self.hand_over(handler)?
        };
        // What came while the inbox was handed over is older than what this turn brings.
        if !self.inbox.is_empty() {
            return Ok(before + self.progress()?);
        }
        let mut intake = ToHandler {
            handler,
            shelf: &mut self.shelf,
            peers: &mut self.peers,
        };
        Ok(before + self.drive.turn(true, &mut intake)?)
    }

    #[inline]
    fn ready(&mut self, timeout: Duration) -> Result<Option<usize>, RecvError> {
        if let Some(bytes) = self.inbox.next_bytes() {
            return Ok(Some(bytes));
        }
        self.run_until(timeout, |_, kept| kept.inbox.next_bytes().is_some())?;
        Ok(self.inbox.next_bytes())
    }

    /// A turn, if much was taken from the inbox since the last one.
    #[inline]
    fn answer_peers(&mut self) -> Result<(), EndpointError> {
        if self.taken_bytes >= TAKEN_BYTES_PER_TURN {
            self.taken_bytes = 0;
            self.progress()?;
        }
        Ok(())
    }

    /// Hands over what calls without a handler had put by; what comes meanwhile waits for the next call.
    fn hand_over(&mut self, handler: &mut impl Handler) -> Result<usize, EndpointError> {
        let mut count = self.inbox.hand_over_rest(handler);
        for _ in 0..self.inbox.messages() {
            self.answer_peers()?;
            let Some(message) = self.inbox.pop() else {
                break;
            };
            let (from, bytes, mut body) = (message.from, message.body.len(), message.body);
            handler.message(from, message.lane, Body::Whole(&mut body));
            self.drive.engine.recycle(body);
            self.drive.release(from, bytes);
            self.taken_bytes += bytes + TAKEN_MESSAGE_BYTES;
            count += 1;
        }
        Ok(count)
    }
}
