//! The rendezvous socket: which connections are accepted, and how many in one round.
//!
//! Owned by `keeper` and `agent`, which poll it. Abstract sockets have no permissions: any user of this host may connect, as often as he likes. The
//! kernel tells the user of each connection, and those of other users are closed before anything is read.
//!
//! Invariant: a round accepts at most `CALLS_PER_ROUND` connections, and after `CROWD` foreign ones pauses for `CROWD_PAUSE`, so that the owner keeps
//! its deadlines whatever others do.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::rendezvous::{self, Caller};

/// Less than a millisecond's work, and enough for all calls of a hundred workers.
const CALLS_PER_ROUND: usize = 256;
/// Number of foreign connections in one round that causes a pause.
const CROWD: usize = 16;
/// One such round per pause costs a tenth of a core; a worker queued behind foreign connections gets in after some tens of milliseconds.
const CROWD_PAUSE: Duration = Duration::from_millis(5);
/// Without descriptors nothing is accepted; some may be free later.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket with a limited rate of foreign connections.
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

    /// What to poll, and the rest of a pause (`None`: there is none).
    pub(super) fn watch(&self) -> (PollFd<'_>, Option<Duration>) {
        let shut = self.opens.saturating_duration_since(Instant::now());
        if shut.is_zero() {
            (PollFd::new(&self.listener, PollFlags::IN), None)
        } else {
            (PollFd::new(&self.listener, PollFlags::empty()), Some(shut))
        }
    }

    /// Accepts connections of this user and root; returns none during a pause.
    pub(super) fn callers(&mut self) -> Vec<OwnedFd> {
        let mut callers = Vec::new();
        if Instant::now() < self.opens {
            return callers;
        }
        let mut unknown = 0;
        for _ in 0..CALLS_PER_ROUND {
            match rendezvous::accept(self.listener.as_fd(), rendezvous::is_trusted) {
                Ok(Caller::Welcome(fd)) => callers.push(fd),
                Ok(Caller::Unknown) => unknown += 1,
                Ok(Caller::Nobody) => break,
                Err(error) => {
                    tracing::debug!(%error, "a call is not accepted yet");
                    self.opens = Instant::now() + ERROR_PAUSE;
                    return callers;
                }
            }
        }
        if unknown >= CROWD {
            self.opens = Instant::now() + CROWD_PAUSE;
        }
        callers
    }
}
