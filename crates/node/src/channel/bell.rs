//! The bell with which other threads reach an endpoint: a flag that the driving thread checks, and descriptors that wake it.
//!
//! Invariant: a thread about to sleep sets its bit and then checks the flag; a ringing thread sets the flag and then checks the bits. All accesses
//! are `SeqCst`, so at least one of the two sees the other.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Bits of the sleepers: the program, in a call or on the endpoint's descriptor,
pub(crate) const PROGRAM: u32 = 1;
/// and the assistant.
pub(crate) const ASSISTANT: u32 = 2;

#[derive(Debug)]
pub(crate) struct Bell {
    rung: AtomicBool,
    sleeps: AtomicU32,
    /// Other threads have handles with which they ring.
    is_minded: AtomicBool,
    /// Descriptors of the program and of the assistant.
    program: Arc<OwnedFd>,
    assistant: Arc<OwnedFd>,
}

impl Bell {
    pub(crate) fn new(program: Arc<OwnedFd>, assistant: Arc<OwnedFd>) -> Self {
        Self {
            rung: AtomicBool::new(false),
            sleeps: AtomicU32::new(0),
            is_minded: AtomicBool::new(false),
            program,
            assistant,
        }
    }

    /// Tells the driving thread that there is something to do.
    pub(crate) fn ring(&self) {
        self.rung.store(true, Ordering::SeqCst);
        if self.sleeps.load(Ordering::SeqCst) == 0 {
            return;
        }
        let sleeps = self.sleeps.swap(0, Ordering::SeqCst);
        for (bit, fd) in [(PROGRAM, &self.program), (ASSISTANT, &self.assistant)] {
            if sleeps & bit != 0 {
                let _ = rustix::io::write(&**fd, &1_u64.to_ne_bytes()); // a full counter is readable already
            }
        }
    }

    /// Other threads may ring from now on.
    pub(crate) fn mind(&self) {
        self.is_minded.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_minded(&self) -> bool {
        self.is_minded.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Relaxed)
    }

    /// Clears the flag. Everything written before the ring is visible afterwards.
    pub(crate) fn hush(&self) {
        self.rung.swap(false, Ordering::SeqCst);
    }

    /// `who` is about to sleep; `false`: it must not, as there is something to do.
    pub(crate) fn sleeps(&self, who: u32) -> bool {
        self.sleeps.fetch_or(who, Ordering::SeqCst);
        if self.rung.load(Ordering::SeqCst) {
            self.rises(who);
            return false;
        }
        true
    }

    /// `who` is awake.
    pub(crate) fn rises(&self, who: u32) {
        self.sleeps.fetch_and(!who, Ordering::SeqCst);
    }

    /// Whether the program sleeps, as far as is known.
    pub(crate) fn is_program_asleep(&self) -> bool {
        self.sleeps.load(Ordering::SeqCst) & PROGRAM != 0
    }

    /// Wakes the program, if it sleeps.
    pub(crate) fn wake_program(&self) {
        if self.is_program_asleep() {
            self.rises(PROGRAM);
            let _ = rustix::io::write(&*self.program, &1_u64.to_ne_bytes()); // a full counter is readable already
        }
    }

    /// The descriptor on which the program sleeps, beside the link's.
    pub(crate) fn program_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Resets the program's descriptor.
    pub(crate) fn drain_program(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.program, &mut count); // an empty counter is no error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

    /// No ring is lost, in any interleaving of sleeping and ringing.
    #[test]
    fn no_ring_is_lost() {
        let fd = || Arc::new(eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd"));
        let bell = Bell::new(fd(), fd());
        let rounds = 20_000;
        let seen = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..rounds {
                    bell.ring();
                    while seen.load(Ordering::Acquire) <= round {
                        std::thread::yield_now();
                    }
                }
            });
            let lost = (0..rounds).find(|_| {
                // The last ring may find the sleeper gone and wake the next sleep, for nothing.
                while !bell.is_rung() {
                    if !bell.sleeps(PROGRAM) {
                        continue;
                    }
                    let mut fds = [PollFd::from_borrowed_fd(bell.program_fd(), PollFlags::IN)];
                    let limit = rustix::event::Timespec {
                        tv_sec: 20,
                        tv_nsec: 0,
                    };
                    if poll(&mut fds, Some(&limit)).expect("poll") == 0 {
                        return true;
                    }
                    bell.rises(PROGRAM);
                    bell.drain_program();
                }
                bell.hush();
                seen.fetch_add(1, Ordering::Release);
                false
            });
            seen.store(rounds, Ordering::Release); // the other thread ends, too
            assert_eq!(lost, None, "a ring woke nobody");
        });
    }
}
