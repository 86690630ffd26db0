//! The descriptor with which a program has an endpoint in its own event loop, and how the assistant rings it.
//!
//! It is an epoll descriptor over the link's descriptor and an eventfd ("mail"), which is rung for what the assistant received before the program
//! woke up, and by other threads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use tsumuji_link::{Link, either_of};

use super::Endpoint;
use crate::channel::bell;
use crate::error::EndpointError;

/// The descriptor that `Endpoint::fd` returns: over the link's, and `mail`. `None`: the link has none.
pub(super) fn over(link: &impl Link, mail: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let Some(link) = link.fd() else {
        return Ok(None);
    };
    Ok(Some(either_of([link, mail])?))
}

impl Endpoint {
    /// A descriptor for the program's own event loop: readable when there may be something to poll, once `arm_fd` was called.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }

    /// Asks that the next frame make `fd` readable; `false`: there is something to poll or to take now. Poll also after `until_timer`. Notices and
    /// datagrams for a handler, and messages on opened channels, are reported once: take all of them, or leave them and sleep.
    pub fn arm_fd(&mut self) -> Result<bool, EndpointError> {
        let core = &mut *self.core.write();
        let bell = Arc::clone(core.channels.bell());
        bell.drain_program();
        let sleeps = bell.sleeps(bell::PROGRAM)
            && !core.channels.take_news()
            && !core.drive.has_backlog()
            && core.drive.link.arm_fd()?;
        if !sleeps {
            bell.rises(bell::PROGRAM);
        }
        Ok(sleeps)
    }

    /// Time after which an event loop must poll again; `None`: when `fd` becomes readable.
    pub fn until_timer(&mut self) -> Option<std::time::Duration> {
        self.core.write().drive.until_timer()
    }
}
