//! The door of the rendezvous: who may come in, and how many calls a turn takes.
//!
//! Owned by `keeper` and `agent`, which poll its socket. Abstract sockets have no permissions: anybody of this host may call, as
//! often as he likes. The kernel says whose a call is, and others' are closed before anything is read.
//!
//! Invariant: a turn takes `CALLS_PER_TURN` calls at most, and after a crowd the door is shut for `CROWD_PAUSE`, so that what the
//! owner does between turns is done in time whatever others do.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::rendezvous::{self, Caller};

/// Less than a millisecond's work, and all calls of a hundred workers.
const CALLS_PER_TURN: usize = 256;
/// So many calls of strangers in one turn are a crowd.
const CROWD: usize = 16;
/// A turn of strangers each pause costs a tenth of a core; a worker that stands in their queue comes in after some tens of milliseconds.
const CROWD_PAUSE: Duration = Duration::from_millis(5);

/// A socket that listens.
#[derive(Debug)]
pub(super) struct Door {
    listener: OwnedFd,
    opens: Instant,
}

impl Door {
    pub(super) fn new(listener: OwnedFd) -> Self {
        Self {
            listener,
            opens: Instant::now(),
        }
    }

    /// What to poll, and until when at most (`None`: it is open).
    pub(super) fn watch(&self) -> (PollFd<'_>, Option<Duration>) {
        let shut = self.opens.saturating_duration_since(Instant::now());
        if shut.is_zero() {
            (PollFd::new(&self.listener, PollFlags::IN), None)
        } else {
            (PollFd::new(&self.listener, PollFlags::empty()), Some(shut))
        }
    }

    /// Lets those in that may; empty while it is shut.
    pub(super) fn callers(&mut self) -> io::Result<Vec<OwnedFd>> {
        let mut callers = Vec::new();
        if Instant::now() < self.opens {
            return Ok(callers);
        }
        let mut strangers = 0;
        for _ in 0..CALLS_PER_TURN {
            match rendezvous::accept(self.listener.as_fd())? {
                Caller::Welcome(fd) => callers.push(fd),
                Caller::Stranger => strangers += 1,
                Caller::Nobody => break,
            }
        }
        if strangers >= CROWD {
            self.opens = Instant::now() + CROWD_PAUSE;
        }
        Ok(callers)
    }
}
