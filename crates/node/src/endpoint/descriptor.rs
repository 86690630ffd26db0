//! The descriptor with which a program has an endpoint in its own event loop, and how the assistant rings it.
//!
//! The link's own descriptor would do where the program alone drives. With an assistant, which may take frames in before the program
//! wakes up to them, it is an epoll descriptor over the link's and one for mail: what the assistant took in meanwhile.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, epoll};
use tsumuji_link::Link;

use super::Endpoint;
use crate::error::EndpointError;
use crate::options::ProgressBy;

/// What `Endpoint::fd` lends.
#[derive(Debug, Default)]
pub(super) struct Descriptor {
    fd: Option<OwnedFd>,
    mail: Option<Arc<OwnedFd>>,
}

impl Descriptor {
    pub(super) fn new(link: &impl Link, progress: ProgressBy) -> io::Result<Self> {
        let Some(link) = link.fd() else {
            return Ok(Self::default());
        };
        if progress == ProgressBy::Program {
            return Ok(Self {
                fd: Some(link.try_clone_to_owned()?),
                mail: None,
            });
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let mail = rustix::event::eventfd(0, flags)?;
        let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, fd) in [(0, link), (1, mail.as_fd())] {
            let data = epoll::EventData::new_u64(number);
            epoll::add(&both, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(Self {
            fd: Some(both),
            mail: Some(Arc::new(mail)),
        })
    }

    /// What the assistant rings.
    pub(super) fn mail(&self) -> Option<Mail> {
        self.mail.as_ref().map(|fd| Mail {
            fd: Arc::clone(fd),
            is_armed: false,
        })
    }
}

/// The bell of a program that sleeps on its descriptor.
#[derive(Debug)]
pub(crate) struct Mail {
    fd: Arc<OwnedFd>,
    /// The program asked for it, and was not rung since.
    is_armed: bool,
}

impl Mail {
    fn arm(&mut self, is_armed: bool) {
        if is_armed {
            let mut count = [0; 8];
            let _ = rustix::io::read(&*self.fd, &mut count); // nothing there is as well
        }
        self.is_armed = is_armed;
    }

    /// The program sleeps on its descriptor, as far as is known.
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
    /// A descriptor for somebody else's event loop: readable when there may be something to poll, once `arm_fd` was called.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.fd.as_ref().map(AsFd::as_fd)
    }

    /// Asks that the next frame make `fd` readable; `false`: there is something to poll or to take now. Poll again also after
    /// `until_timer`. What only a handler can take (notices, shares) is told of once: a program that has none may sleep.
    pub fn arm_fd(&mut self) -> Result<bool, EndpointError> {
        let core = &mut *self.core.write();
        let news = core.inbox.take_news() || core.inbox.next_bytes().is_some();
        let sleeps = !news && !core.drive.has_backlog() && core.drive.link.arm_fd()?;
        if let Some(mail) = &mut core.mail {
            mail.arm(sleeps);
        }
        Ok(sleeps)
    }

    /// How long an event loop may sleep before it must poll again; `None`: until `fd` is readable.
    pub fn until_timer(&mut self) -> Option<std::time::Duration> {
        self.core.write().drive.until_timer()
    }
}
