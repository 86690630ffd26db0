//! The descriptor with which a program has an endpoint in its own event loop, and how the assistant rings it.
//!
//! It is an epoll descriptor over the link's descriptor and an eventfd ("mail"), which is rung for what the assistant received before the program
//! woke up, and by other threads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::EventfdFlags;
use tsumuji_link::{Link, either_of};

use super::Endpoint;
use crate::channel::bell;
use crate::error::EndpointError;

/// The descriptor that `Endpoint::fd` returns.
#[derive(Debug)]
pub(super) struct Descriptor {
    /// `None`: the link has none.
    fd: Option<OwnedFd>,
    mail: Arc<OwnedFd>,
}

impl Descriptor {
    pub(super) fn new(link: &impl Link) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let mail = Arc::new(rustix::event::eventfd(0, flags)?);
        let Some(link) = link.fd() else {
            return Ok(Self { fd: None, mail });
        };
        let fd = Some(either_of([link, mail.as_fd()])?);
        Ok(Self { fd, mail })
    }

    /// The eventfd that assistant and other threads ring.
    pub(super) fn fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.mail)
    }

    pub(super) fn mail(&self) -> Mail {
        Mail {
            fd: self.fd(),
            is_armed: false,
        }
    }
}

/// The bell of a program that sleeps on its descriptor.
#[derive(Debug)]
pub(crate) struct Mail {
    fd: Arc<OwnedFd>,
    /// The program has armed it, and it was not rung since.
    is_armed: bool,
}

impl Mail {
    fn drain(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.fd, &mut count); // an empty counter is no error
    }

    /// Whether the program sleeps on its descriptor, as far as is known.
    pub(super) fn is_armed(&self) -> bool {
        self.is_armed
    }

    pub(super) fn ring(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            let _ = rustix::io::write(&*self.fd, &1_u64.to_ne_bytes()); // a full counter is readable already
        }
    }
}

impl<L: Link> Endpoint<L> {
    /// A descriptor for the program's own event loop: readable when there may be something to poll, once `arm_fd` was called.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.fd.as_ref().map(AsFd::as_fd)
    }

    /// Asks that the next frame make `fd` readable; `false`: there is something to poll or to take now. Poll also after `until_timer`. Notices and
    /// datagrams for a handler, and messages on opened channels, are reported once: take all of them, or leave them and sleep.
    pub fn arm_fd(&mut self) -> Result<bool, EndpointError> {
        let core = &mut *self.core.write();
        core.mail.drain();
        let bell = Arc::clone(core.channels.bell());
        let sleeps = bell.sleeps(bell::PROGRAM)
            && !core.channels.take_news()
            && !core.drive.has_backlog()
            && core.drive.link.arm_fd()?;
        if !sleeps {
            bell.rises(bell::PROGRAM);
        }
        core.mail.is_armed = sleeps;
        Ok(sleeps)
    }

    /// Time after which an event loop must poll again; `None`: when `fd` becomes readable.
    pub fn until_timer(&mut self) -> Option<std::time::Duration> {
        self.core.write().drive.until_timer()
    }
}
