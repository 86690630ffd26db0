//! A listening socket: which connections are accepted, and how many in one round.
//!
//! Owned by the launcher's and the agent's threads, by a host's memory server, and by `metrics::serve`, which poll it. Abstract sockets have no
//! permissions: any user of this host may connect, as often as he likes. The kernel tells the user of each connection, and those of other users are
//! closed before anything is read.
//!
//! Invariant: a round accepts at most `CALLS_PER_ROUND` connections, and after `UNKNOWN_MOST` foreign ones pauses for `UNKNOWN_PAUSE`, so that the owner keeps
//! its deadlines whatever others do.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::SocketFlags;

/// Less than a millisecond's work, and enough for all calls of a hundred workers.
pub(crate) const CALLS_PER_ROUND: usize = 256;
/// Number of foreign connections in one round that causes a pause.
const UNKNOWN_MOST: usize = 16;
/// One such round per pause costs a tenth of a core; a worker queued behind foreign connections gets in after some tens of milliseconds.
const UNKNOWN_PAUSE: Duration = Duration::from_millis(5);
/// Without descriptors nothing is accepted; some may be free later.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket with a limited rate of connections.
#[derive(Debug)]
pub(crate) struct Door {
    listener: OwnedFd,
    /// For every user; else for this one and root.
    is_public: bool,
    opens: Instant,
}

/// Result of accepting a connection.
#[derive(Debug)]
enum Caller {
    Welcome(OwnedFd),
    /// Another user's connection, or one that was closed already.
    Unknown,
    Nobody,
}

impl Door {
    /// For this user and root.
    pub(crate) fn new(listener: impl Into<OwnedFd>) -> Self {
        Self {
            listener: listener.into(),
            is_public: false,
            opens: Instant::now(),
        }
    }

    /// For every user.
    pub(crate) fn public(listener: impl Into<OwnedFd>) -> Self {
        Self {
            is_public: true,
            ..Self::new(listener)
        }
    }

    /// What to poll, and the rest of a pause (`None`: there is none).
    pub(crate) fn watch(&self) -> (PollFd<'_>, Option<Duration>) {
        let shut = self.opens.saturating_duration_since(Instant::now());
        if shut.is_zero() {
            (PollFd::new(&self.listener, PollFlags::IN), None)
        } else {
            (PollFd::new(&self.listener, PollFlags::empty()), Some(shut))
        }
    }

    /// Accepts welcome connections; returns none during a pause. After `most` of them it pauses, too.
    pub(crate) fn callers(&mut self, most: usize) -> Vec<OwnedFd> {
        let mut callers = Vec::new();
        if Instant::now() < self.opens {
            return callers;
        }
        let mut unknown = 0;
        for _ in 0..CALLS_PER_ROUND {
            match self.accept() {
                Ok(Caller::Welcome(fd)) => callers.push(fd),
                Ok(Caller::Unknown) => unknown += 1,
                Ok(Caller::Nobody) => break,
                Err(error) => {
                    tracing::debug!(%error, "a call is not accepted yet");
                    self.opens = Instant::now() + ERROR_PAUSE;
                    return callers;
                }
            }
            if callers.len() == most {
                break;
            }
        }
        if unknown >= UNKNOWN_MOST || callers.len() == most {
            self.opens = Instant::now() + UNKNOWN_PAUSE;
        }
        callers
    }

    /// Takes one waiting connection, if there is one; closes it unless it is welcome.
    fn accept(&self) -> io::Result<Caller> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.listener, flags) {
            Ok(fd) if self.is_public || is_trusted(fd.as_fd()) => Ok(Caller::Welcome(fd)),
            Ok(_) | Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {
                Ok(Caller::Unknown)
            }
            Err(rustix::io::Errno::AGAIN) => Ok(Caller::Nobody),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether the process at the other end belongs to this user, or root.
pub(crate) fn is_trusted(connection: BorrowedFd<'_>) -> bool {
    rustix::net::sockopt::socket_peercred(connection)
        .is_ok_and(|peer| peer.uid == rustix::process::geteuid() || peer.uid.is_root())
}
