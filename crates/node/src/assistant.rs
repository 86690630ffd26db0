//! The progress assistant: a thread that drives the endpoint while the program is away.
//!
//! Started by `endpoint`; it takes the other side of the `lock` around the endpoint's core. While the program calls, the assistant
//! only looks twice a millisecond whether it still does. When the program has been out for a whole such span, the assistant takes the
//! core, has turns until there is nothing to do, and sleeps until the link has a frame, a timer of the engine is due, or the
//! program was there. While the program waits in a call of its own it drives by itself: the assistant then sleeps until it leaves.
//!
//! Invariants: it never sleeps while it holds the lock; it never sleeps with the link unarmed, but for `NAP` where the link cannot be
//! armed; it polls no more often than there is something to do.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use tsumuji_link::Link;

use crate::endpoint::Core;
use crate::lock::{Other, Owner, Seen};

/// Between two looks whether the program still calls: one that was in during the last span is found to be away after two of them at
/// the latest, so after a millisecond.
const WATCH: Duration = Duration::from_micros(500);

/// So many looks at a program that waits in one call, until the assistant sleeps until that call ends: a wake-up at the end of each short
/// wait would cost the program more than the looks do.
const LOOKS_AT_A_WAIT: u32 = 20;

/// Turns between two questions whether the program wants to come in: it may have to wait for so many.
const TURNS: u32 = 4;

/// Where frames wait that the link cannot take now, or it cannot be armed.
const NAP: Duration = Duration::from_micros(500);

/// The longest sleep, as in `drive`: a missed wake-up (a peer killed in the middle of one) heals.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// Of a program that sleeps on the endpoint's descriptor: it wakes up to the same frame, and is left the time to take it.
const GRACE: Duration = Duration::from_millis(1);

/// The thread, as its endpoint holds it.
#[derive(Debug)]
pub(crate) struct Assistant {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Assistant {
    pub(crate) fn start<L: Link + Send + 'static>(other: Other<Core<L>>) -> io::Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let thread = std::thread::Builder::new()
            .name("tsumuji-assist".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || assist(other, &told))?;
        Ok(Self { ends, thread })
    }

    /// Ends the thread, and waits until it has ended.
    pub(crate) fn stop<T>(self, owner: &Owner<T>) {
        self.ends.store(true, Ordering::Release);
        owner.ring();
        let _ = self.thread.join(); // if it panicked, the panic was told where it happened
    }
}

/// A turn needs less than what a thread has by default.
const STACK_BYTES: usize = 512 << 10;

/// What the assistant found when it had the core.
#[derive(Debug, Clone, Copy)]
struct Rest {
    /// The link wakes us.
    armed: bool,
    /// No longer than this.
    most: Duration,
    /// The program sleeps on the link, too.
    shared: bool,
}

fn assist<L: Link>(mut other: Other<Core<L>>, ends: &AtomicBool) {
    // Of the link's descriptor there is a copy, so that no lock is held while it is waited on.
    let mut link = None;
    let mut seen = other.look();
    let mut looks = 0;
    while !ends.load(Ordering::Acquire) {
        wait(&other, None, WATCH);
        other.hush();
        let now = other.look();
        if now != seen {
            (seen, looks) = (now, 0);
        } else if now.is_inside() {
            looks += 1;
            if looks >= LOOKS_AT_A_WAIT {
                sleep_while(&other, now, None, LONGEST_SLEEP);
            }
        } else {
            stand_in(&mut other, seen, &mut link, ends);
            seen = other.look();
        }
    }
}

/// Drives until the program was there.
fn stand_in<L: Link>(
    other: &mut Other<Core<L>>,
    seen: Seen,
    link: &mut Option<OwnedFd>,
    ends: &AtomicBool,
) {
    while !ends.load(Ordering::Acquire) {
        let Some(rest) = drive(other, link) else {
            return;
        };
        if other.look() != seen {
            return;
        }
        let link = link.as_ref().filter(|_| rest.armed);
        let Some(woken) = sleep_while(other, seen, link, rest.most) else {
            return;
        };
        if woken && rest.shared && sleep_while(other, seen, None, GRACE).is_none() {
            return;
        }
    }
}

/// Turns until there is nothing to do; `None`: the program is in, or wants to be, or the link has failed (the program's next call
/// says so).
fn drive<L: Link>(other: &mut Other<Core<L>>, link: &mut Option<OwnedFd>) -> Option<Rest> {
    let mut core = other.try_take()?;
    if link.is_none() {
        *link = (core.drive.link.fd()).and_then(|fd| fd.try_clone_to_owned().ok());
    }
    loop {
        for turn in 0.. {
            if turn % TURNS == 0 && core.is_awaited() {
                core.tell_program();
                return None;
            }
            if core.progress().ok()? == 0 {
                break;
            }
        }
        core.tell_program();
        let shared = core.sleeps_on_descriptor();
        let backlog = core.drive.has_backlog();
        if link.is_some() && !backlog && core.drive.link.arm_fd().ok()? {
            // What became due meanwhile is due at once.
            let timer = core.drive.until_timer().unwrap_or(LONGEST_SLEEP);
            return Some(Rest {
                armed: true,
                most: timer.min(LONGEST_SLEEP),
                shared,
            });
        }
        if backlog || link.is_none() || core.progress().ok()? == 0 {
            return Some(Rest {
                armed: false,
                most: NAP,
                shared,
            });
        }
    }
}

/// Sleeps until `link` is readable or the time has passed, which is told, or until the program was there: `None`.
fn sleep_while<T>(
    other: &Other<T>,
    seen: Seen,
    link: Option<&OwnedFd>,
    most: Duration,
) -> Option<bool> {
    if !other.doze(seen) {
        return None;
    }
    let woken = wait(other, link.map(std::os::fd::AsFd::as_fd), most);
    other.rise();
    other.hush();
    (other.look() == seen).then_some(woken)
}

/// Sleeps until rung, or `link` is readable (which is told), or the time has passed.
fn wait<T>(other: &Other<T>, link: Option<BorrowedFd<'_>>, most: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: most.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: most.subsec_nanos().into(),
    };
    let bell = other.bell();
    let mut fds = [
        PollFd::from_borrowed_fd(bell, PollFlags::IN),
        PollFd::from_borrowed_fd(link.unwrap_or(bell), PollFlags::IN),
    ];
    let _ = rustix::event::poll(&mut fds, Some(&timeout)); // interrupted: it is as if the time had passed
    link.is_some() && !fds[1].revents().is_empty()
}
