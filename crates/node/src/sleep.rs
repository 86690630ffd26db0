//! Sleeping on the kernel's descriptors.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, Timespec};
use rustix::io::Errno;

/// Sleeps until one of them is ready, or `most` has passed (`None`: without end), or for a shorter time. Returns whether one is ready.
pub(crate) fn poll(fds: &mut [PollFd<'_>], most: Option<Duration>) -> io::Result<bool> {
    // A time that the kernel cannot count is without end.
    let timeout = most.and_then(|most| Timespec::try_from(most).ok());
    match rustix::event::poll(fds, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
