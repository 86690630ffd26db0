//! Taking what arrives: by polling with a handler, or message by message; and the descriptor for somebody else's event loop.
//!
//! Invariant: what the inbox holds is older than anything a turn may bring, so it is handed over first.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use tsumuji_link::Link;
use tsumuji_proto::{Body, Loan};

use super::Endpoint;
use crate::error::{EndpointError, RecvError};
use crate::handler::Handler;
use crate::inbox::Message;
use crate::intake::{Kept, ToHandler};

/// Bytes taken from the inbox between two turns: peers learn early that there is room again.
const TAKEN_BYTES_PER_TURN: usize = 64 << 10;

/// And after 64 small messages at the latest, as each counts for so many bytes more: a program that works on each for long must answer its
/// peers meanwhile.
const TAKEN_MESSAGE_BYTES: usize = 1 << 10;

impl<L: Link> Endpoint<L> {
    /// One turn of the loop: receive a burst, hand over, mind timers, transmit, flush. Returns how much was done. Never waits.
    #[inline]
    pub fn poll(&mut self, handler: &mut impl Handler) -> Result<usize, EndpointError> {
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

    /// Polls until something was done or `timeout` has passed, idling as the policy says.
    pub fn poll_wait(
        &mut self,
        handler: &mut impl Handler,
        timeout: Duration,
    ) -> Result<usize, EndpointError> {
        if !self.inbox.is_empty() {
            return self.poll(handler);
        }
        let mut intake = ToHandler {
            handler,
            shelf: &mut self.shelf,
            peers: &mut self.peers,
        };
        Ok(usize::from(self.drive.run_until(
            &mut intake,
            timeout,
            |_, _| true,
        )?))
    }

    /// One turn that keeps what arrives for `recv` and later polls: lets a program that is busy acknowledge, and go on sending.
    /// Returns how much was done. Never waits.
    pub fn progress(&mut self) -> Result<usize, EndpointError> {
        let mut kept = Kept {
            inbox: &mut self.inbox,
            shelf: &mut self.shelf,
            peers: &mut self.peers,
            lent: &Loan::NONE,
        };
        Ok(self.drive.turn(true, &mut kept)?)
    }

    /// The next message if one is there.
    pub fn try_recv(&mut self) -> Result<Option<Message>, RecvError> {
        self.recv(Duration::ZERO)
    }

    /// The next message; `None`: none came within `timeout`.
    pub fn recv(&mut self, timeout: Duration) -> Result<Option<Message>, RecvError> {
        self.answer_peers()?;
        if self.ready(timeout)?.is_none() {
            return Ok(None);
        }
        let message = self.inbox.pop();
        if let Some(message) = &message {
            self.drive.release(message.from, message.body.len());
            self.taken_bytes += message.body.len() + TAKEN_MESSAGE_BYTES;
        }
        Ok(message)
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

    /// Waits for a whole message without taking it; its size, or `None` if none came within `timeout`.
    #[inline]
    pub fn ready(&mut self, timeout: Duration) -> Result<Option<usize>, RecvError> {
        if let Some(bytes) = self.inbox.next_bytes() {
            return Ok(Some(bytes));
        }
        self.run_until(timeout, |_, kept| kept.inbox.next_bytes().is_some())?;
        Ok(self.inbox.next_bytes())
    }

    /// Gives a message's buffer back, to be used for the next one.
    pub fn recycle(&mut self, message: Message) {
        if let Some(buffer) = self.inbox.recycle(message.body) {
            self.drive.engine.recycle(buffer);
        }
    }

    /// A descriptor for somebody else's event loop: readable when there may be something to poll, once `arm_fd` was called.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.drive.link.fd()
    }

    /// Asks that the next frame make `fd` readable; `false`: there is something to poll or to take now. Poll again also after
    /// `until_timer`. What only a handler can take (notices, shares) is told of once: a program that has none may sleep.
    pub fn arm_fd(&mut self) -> Result<bool, EndpointError> {
        let news = self.inbox.take_news() || self.inbox.next_bytes().is_some();
        Ok(!news && !self.drive.has_backlog() && self.drive.link.arm_fd()?)
    }

    /// How long an event loop may sleep before it must poll again; `None`: until `fd` is readable.
    pub fn until_timer(&mut self) -> Option<Duration> {
        self.drive.until_timer()
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
