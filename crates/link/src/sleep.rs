//! Sleeping on the kernel's descriptors, and a timer that is one: for links and wrappers, in `Link::wait` and behind `Link::fd`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::LinkError;

/// A descriptor that is readable while one of the two is.
pub fn either_of(fds: [BorrowedFd<'_>; 2]) -> io::Result<OwnedFd> {
    let either = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (number, fd) in (0..).zip(fds) {
        let data = epoll::EventData::new_u64(number);
        epoll::add(&either, fd, data, epoll::EventFlags::IN)?;
    }
    Ok(either)
}

/// Sleeps until one of them is ready, or `timeout` has passed, or for a shorter time. `true`: the time has passed.
pub(crate) fn poll(
    fds: &mut [PollFd<'_>],
    timeout: Duration,
    what: &'static str,
) -> Result<bool, LinkError> {
    // A time that the kernel cannot count is without end.
    let timeout = Timespec::try_from(timeout).ok();
    match rustix::event::poll(fds, timeout.as_ref()) {
        Ok(ready) => Ok(ready == 0),
        Err(Errno::INTR) => Ok(false),
        Err(source) => Err(LinkError::Io {
            what,
            source: source.into(),
        }),
    }
}

/// Sleeps until it is readable, or `timeout` has passed, or for a shorter time.
pub(crate) fn sleep_on(fd: &OwnedFd, timeout: Duration) {
    let _ = poll(&mut [PollFd::new(fd, PollFlags::IN)], timeout, "poll");
}

/// A timer with a descriptor that is readable once its time has come.
#[derive(Debug)]
pub(crate) struct Timer(OwnedFd);

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Makes it readable after that time, and not before; `None`: never.
    pub(crate) fn set(&self, after: Option<Duration>, what: &'static str) -> Result<(), LinkError> {
        let after = after.and_then(|after| Timespec::try_from(after).ok());
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: after.unwrap_or_default(),
        };
        match timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once) {
            Ok(_) => Ok(()),
            Err(source) => Err(LinkError::Io {
                what,
                source: source.into(),
            }),
        }
    }
}
