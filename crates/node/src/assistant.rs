//! The progress assistant: a thread that drives the endpoint while the program is away.
//!
//! Started by `endpoint`; it uses the other side of the `lock` around the endpoint's core. While the program calls, the assistant only checks once a
//! millisecond whether the program still polls, as calls that only send or query do not. After a millisecond without a poll the assistant takes the
//! core and polls until there is nothing to do. Then it sleeps until the link has a frame, a timer expires, or the program has called. While the
//! program waits in a call it drives by itself: the assistant then sleeps until that call ends.
//!
//! Invariants: it never sleeps while it holds the lock; it never sleeps with the link unarmed, except for naps where the link cannot be armed; it
//! polls no more often than there is something to do.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use tsumuji_link::Link;

use crate::channel::bell::{self, Bell};
use crate::clock::{Clock, SystemClock};
use crate::drive::LONGEST_SLEEP;
use crate::endpoint::Core;
use crate::lock::{Other, Owner, Seen};
use crate::sleep;

/// Time without a poll after which the program counts as away. A check interrupts a program on the same core, so there is only one in that time.
const AWAY: Duration = Duration::from_millis(1);

/// A shorter sleep costs more than it saves.
const SHORTEST_SLEEP: Duration = Duration::from_micros(50);

/// Checks of a program that waits in one call, before the assistant sleeps until that call ends: a wake-up at the end of each short wait would cost
/// the program more than the checks.
const POLLS_AT_A_WAIT: u32 = 20;

/// Polls between two checks whether the program wants to enter: it may have to wait for that many.
const POLLS_PER_CHECK: u32 = 4;

/// Sleep while the link cannot take waiting frames or cannot be armed: from least to most, doubled while it does not help.
const NAP_LEAST: Duration = Duration::from_micros(500);
const NAP_MOST: Duration = Duration::from_millis(50);

/// Time left to a program that sleeps on the endpoint's descriptor, as the same frame wakes it.
const GRACE: Duration = Duration::from_millis(1);

/// Handle of the thread.
#[derive(Debug)]
pub(crate) struct Assistant {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Assistant {
    /// `clock`: the clock of the core's stamps; `bell`: rung by other threads.
    pub(crate) fn start(
        other: Other<Core>,
        clock: SystemClock,
        bell: Arc<Bell>,
    ) -> io::Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let run = move || {
            crate::sys::take_short_slices();
            let mut assist = Assist {
                other,
                clock: &clock,
                bell: &bell,
                ends: &told,
                link: None,
                driven_ns: clock.now().as_nanos(),
                nap: NAP_LEAST,
            };
            assist.run();
        };
        let thread = std::thread::Builder::new()
            .name("tsumuji-assist".to_owned())
            .stack_size(STACK_BYTES);
        // Signals are for the program's threads.
        let thread = crate::sys::without_signals(|| thread.spawn(run))?;
        Ok(Self { ends, thread })
    }

    /// Forgets the handle in a child of `fork`, where there is no such thread and its id may be reused.
    pub(crate) fn forget(self) {
        std::mem::forget(self.thread);
    }

    /// Ends the thread, and waits until it has ended.
    pub(crate) fn stop<T>(self, owner: &Owner<T>) {
        self.ends.store(true, Ordering::Release);
        owner.ring();
        let _ = self.thread.join(); // a panic was reported where it happened
    }
}

/// The default of threads: handlers of channels run on it.
const STACK_BYTES: usize = 2 << 20;

/// How the assistant sleeps after it left the core.
#[derive(Debug, Clone, Copy)]
struct Rest {
    /// The link's descriptor wakes it.
    armed: bool,
    /// Longest sleep.
    most: Duration,
    /// The program sleeps on the link, too.
    shared: bool,
    /// The link has failed: polls do nothing until the program has got the error.
    failed: bool,
}

/// State of the thread.
struct Assist<'a> {
    other: Other<Core>,
    clock: &'a SystemClock,
    /// Rung by other threads.
    bell: &'a Bell,
    ends: &'a AtomicBool,
    /// A copy of the link's descriptor, to wait on it without the lock.
    link: Option<OwnedFd>,
    /// When the assistant last drove.
    driven_ns: u64,
    nap: Duration,
}

impl Assist<'_> {
    fn run(&mut self) {
        let (mut seen, mut polls) = (self.other.observe(), 0);
        while !self.ends.load(Ordering::Acquire) {
            let driven_ns = self.other.stamp_ns().max(self.driven_ns);
            let ago = Duration::from_nanos(self.now_ns().saturating_sub(driven_ns));
            if let Some(left) = AWAY.checked_sub(ago).filter(|left| *left >= SHORTEST_SLEEP) {
                wait(&self.other, None, left);
                continue;
            }
            // The program has not polled for a while. If it is inside a call, it drives by itself.
            let now = self.other.observe();
            if !now.is_inside() {
                self.stand_in();
            } else if now == seen && polls >= POLLS_AT_A_WAIT {
                sleep_while(&self.other, now, None, LONGEST_SLEEP);
            } else {
                polls = if now == seen { polls + 1 } else { 0 };
                seen = now;
                wait(&self.other, None, AWAY);
            }
        }
    }

    /// Drives until the program calls.
    fn stand_in(&mut self) {
        self.nap = NAP_LEAST;
        while !self.ends.load(Ordering::Acquire) {
            let seen = self.other.observe();
            let rest = self.drive();
            self.driven_ns = self.now_ns();
            let Some(rest) = rest else { return };
            let link = self.link.as_ref().filter(|_| rest.armed);
            if !self.bell.sleeps(bell::ASSISTANT) && !rest.failed {
                continue;
            }
            let slept = sleep_while(&self.other, seen, link, rest.most);
            self.bell.rises(bell::ASSISTANT);
            let Some(woken) = slept else { return };
            if woken && rest.shared && sleep_while(&self.other, seen, None, GRACE).is_none() {
                return;
            }
        }
    }

    /// Polls until there is nothing to do; `None`: the program is inside, or wants to enter.
    fn drive(&mut self) -> Option<Rest> {
        let mut core = self.other.try_take()?;
        if self.link.is_none() {
            self.link = (core.drive.link.fd()).and_then(|fd| fd.try_clone_to_owned().ok());
        }
        let mut done = 0;
        for poll in 1_u32.. {
            let more = core.progress_by_assistant();
            done += more;
            if more == 0 {
                break;
            }
            if poll.is_multiple_of(POLLS_PER_CHECK) {
                core.tell_program();
                if core.is_awaited() || self.ends.load(Ordering::Acquire) {
                    return None;
                }
            }
        }
        let shared = core.sleeps_on_descriptor();
        let armed = self.link.is_some() && core.arm_for_assistant();
        // These polls may have received what the program sleeps for, or the program's part keeps the link from being armed.
        if done > 0 || !armed {
            core.tell_program();
        }
        let timer = core.drive.until_expiry().into_iter();
        let timer = timer.chain(core.drive.link.unsent_sleep()).min();
        let mut most = timer.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP);
        if !armed || core.drive.has_backlog() {
            self.nap = if done > 0 {
                NAP_LEAST
            } else {
                (2 * self.nap).min(NAP_MOST)
            };
            most = self.nap;
        }
        Some(Rest {
            armed,
            most,
            shared,
            failed: core.drive.failure.is_some(),
        })
    }

    fn now_ns(&self) -> u64 {
        self.clock.now().as_nanos()
    }
}

/// Sleeps until `link` is readable (`true`) or the time has passed (`false`); `None`: the program has called.
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
    (other.observe() == seen).then_some(woken)
}

/// Sleeps until rung, `link` is readable (returns `true`), or the time has passed.
fn wait<T>(other: &Other<T>, link: Option<BorrowedFd<'_>>, most: Duration) -> bool {
    let bell = other.bell();
    let mut fds = [
        PollFd::from_borrowed_fd(bell, PollFlags::IN),
        PollFd::from_borrowed_fd(link.unwrap_or(bell), PollFlags::IN),
    ];
    // An interrupt counts as the end of the time.
    if !matches!(sleep::poll(&mut fds, Some(most)), Ok(true)) {
        return false;
    }
    if !fds[0].revents().is_empty() {
        other.hush();
    }
    link.is_some() && !fds[1].revents().is_empty()
}
