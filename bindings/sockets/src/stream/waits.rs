//! How a call waits for data or for room: looks again for a moment, says that it sleeps, looks once more, sleeps in the kernel.
//!
//! A thread that waits for data sleeps for some milliseconds on a word that the other end changes, which costs less than a byte over TCP, longer each
//! time, and asks the kernel between; then in the real `recv`, so time-outs, interruptions, ends and resets are the kernel's. One thread of an end
//! waits there at a time, the leader: bells are taken by whoever waits, and wake everybody. The others wait for the leader.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use libc::c_int;

use super::kernel::take_bells_now;
use super::{
    ask, end_or, far, has_news, is_before_ring, low_water, ring_bell, take_bells, take_heard_bells,
};
use crate::demotion;
use crate::lock::{may_hold, thread};
use crate::ring::{BELL, FUTEX, Own};
use crate::sys::{self, AGAIN, Errno, Result};
use crate::table::{self, Use};
use crate::tuning::TUNING;

/// Until when a call waits: the socket's time-out counts from the call's first sleep.
#[derive(Debug)]
pub(crate) struct Until {
    option: c_int,
    began_ns: Option<u64>,
    /// Sleeps on the word that nobody has ended.
    silent: usize,
    /// The call has moved a part of its bytes: a signal ends it, whatever handlers want, as one that has a time-out.
    pub(super) has_moved: bool,
}

/// Stands for no time-out where there must be one.
const FOR_EVER_NS: u64 = 1 << 60;

/// What is left of a time-out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left {
    fd: c_int,
    option: c_int,
    /// As `ns`, where part of it has gone. Else the kernel may count it by itself, and is asked only by who must know.
    rest: Option<Option<u64>>,
}

impl Left {
    /// In nanoseconds; `None`: there is no time-out.
    fn ns(&self) -> Option<u64> {
        self.rest
            .unwrap_or_else(|| timeout_ns(self.fd, self.option))
    }

    /// What the kernel's own call would not count, because part of it has gone.
    fn rest_ns(&self) -> Option<u64> {
        self.rest.flatten()
    }
}

impl Until {
    /// By `SO_RCVTIMEO` or `SO_SNDTIMEO`.
    pub(crate) fn new(option: c_int) -> Self {
        Self {
            option,
            began_ns: None,
            silent: 0,
            has_moved: false,
        }
    }

    /// The same for bytes that must go, whatever the program wants.
    pub(crate) fn regardless(option: c_int) -> Self {
        Self {
            began_ns: Some(sys::now_ns()),
            ..Self::new(option)
        }
    }

    /// Whether the other end's word is waited for, not the kernel's: what nobody tells must be seen, and idle connections shall cost nothing.
    fn may_sleep_on_word(&self) -> bool {
        self.silent < TUNING.waits.word_ns.len()
    }

    /// An error: the time is over, or the program does not wait.
    pub(crate) fn left(&mut self, fd: c_int) -> Result<Left> {
        let (now_ns, option) = (sys::now_ns(), self.option);
        let Some(began_ns) = self.began_ns else {
            // The other end can write the word that says whether the program waits.
            if sys::is_nonblocking(fd) {
                return Err(AGAIN);
            }
            self.began_ns = Some(now_ns);
            let rest = self
                .has_moved
                .then(|| Some(timeout_ns(fd, option).unwrap_or(FOR_EVER_NS)));
            return Ok(Left { fd, option, rest });
        };
        let whole = timeout_ns(fd, option).or(self.has_moved.then_some(FOR_EVER_NS));
        let rest = whole.map(|ns| (began_ns + ns).saturating_sub(now_ns));
        match rest {
            Some(0) => Err(AGAIN),
            rest => Ok(Left {
                fd,
                option,
                rest: Some(rest),
            }),
        }
    }
}

/// The descriptor is still the stream's, or the connection's that it was: another thread may have closed it while this one waited, and its number may be
/// another connection's now.
fn still(using: &Use, fd: c_int) -> Result<()> {
    let is_let_go = || using.is_let_go.load(Ordering::Acquire) != 0 && table::is_plain(fd);
    match is_still(using, fd) || is_let_go() {
        true => Ok(()),
        false => Err(Errno(libc::EBADF)),
    }
}

/// The same, for calls that go on with what there is now.
pub(crate) fn is_still(using: &Use, fd: c_int) -> bool {
    table::stream(fd).is_some_and(|now| std::ptr::eq(now.socket(), using.socket()))
}

pub(crate) fn wait_for_data(using: &Use, fd: c_int, until: &mut Until) -> Result<()> {
    let inn = &using.mine().inn;
    let has_ring = !is_before_ring(using) && using.is_carried.load(Ordering::Acquire) != 0;
    let is_behind = has_ring && demotion::is_behind(using);
    // A hint: the end itself is the kernel's word, which may come later. Some other process may hold the descriptor.
    let is_closed = || using.theirs().out.is_closed.load(Ordering::Relaxed) != 0;
    let may_poll = has_ring && !is_behind && !is_closed();
    if may_poll && using.spin.until(|| has_news(using) || is_closed()) {
        return Ok(());
    }
    let left = until.left(fd)?;
    let by_futex = may_poll && using.gateway().is_none() && until.may_sleep_on_word();
    if by_futex && until.silent > 0 {
        ask(using, fd);
    }
    if !is_behind {
        let way = if by_futex { FUTEX } else { BELL };
        inn.is_asleep.fetch_or(way, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let has_changed = if has_ring {
            has_news(using) || by_futex && is_closed()
        } else {
            !is_before_ring(using)
        };
        if has_changed {
            return Ok(());
        }
    }
    if by_futex {
        using.sleeps.fetch_add(1, Ordering::Relaxed);
        in_turn(using, left, || wait_on_word(&inn.is_asleep, left, until))?;
    } else if has_ring && !is_behind {
        using.sleeps.fetch_add(1, Ordering::Relaxed);
        in_turn(using, left, || {
            // Before this thread led, another one may have taken the bell that came since.
            if is_closed() && using.gateway().is_some() {
                ask(using, fd);
            }
            if has_news(using) {
                return Ok(());
            }
            wait_for_bell(using, fd, left)
        })?;
    } else {
        in_turn(using, left, || match using.living_gateway() {
            Some(_) if !is_behind => far::wait(using, fd, libc::POLLIN, left.ns()),
            _ => wait_for_bytes(using, fd, left).or_else(|error| end_or(using, error).map(|_| ())),
        })?;
    }
    still(using, fd)
}

/// Sleeps on the word as a blocking call does, for one that waits for this stream alone, `rest_ns` at most, after `silent` such sleeps that nobody has ended.
/// `is_ready` checks once more before. `None`: it must sleep in the kernel.
pub(crate) fn sleep_on_word(
    using: &Use,
    fd: c_int,
    silent: &mut usize,
    rest_ns: Option<u64>,
    is_ready: impl FnOnce() -> bool,
) -> Option<Result<()>> {
    let may_sleep = *silent < TUNING.waits.word_ns.len()
        && rest_ns != Some(0)
        && using.gateway().is_none()
        && using.is_carried.load(Ordering::Acquire) != 0
        && using.mine().out.back_at.load(Ordering::Relaxed) == 0
        && using.theirs().out.is_closed.load(Ordering::Relaxed) == 0
        && !is_unheard(using)
        && !demotion::is_behind(using);
    if !may_sleep {
        return None;
    }
    let sleep = || {
        if *silent > 0 {
            ask(using, fd);
        }
        let word = &using.mine().inn.is_asleep;
        word.fetch_or(FUTEX, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if is_ready() {
            return Ok(());
        }
        using.sleeps.fetch_add(1, Ordering::Relaxed);
        sleep_until(word, silent, rest_ns)
    };
    let own = &using.mine().own;
    match lead(own, sleep) {
        Ok(outcome) => Some(outcome),
        Err(leader) => {
            depose(own, leader);
            None
        }
    }
}

/// A leader that is gone, or that left its call by a jump, leads no more.
fn depose(own: &Own, leader: u32) {
    if leader == thread() || !may_hold(leader) {
        let _ = own
            .leader
            .compare_exchange(leader, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Sleeps for a while until the other end writes: what the kernel has to say is asked afterwards.
fn wait_on_word(is_asleep: &AtomicU32, left: Left, until: &mut Until) -> Result<()> {
    let outcome = sleep_until(is_asleep, &mut until.silent, left.rest_ns());
    match outcome {
        Err(Errno(libc::EINTR)) => or_restart(left.ns(), outcome),
        _ => outcome,
    }
}

/// Sleeps until the other end takes the word's bit away, but no longer than that sleep may take. An error: a signal.
fn sleep_until(is_asleep: &AtomicU32, silent: &mut usize, rest_ns: Option<u64>) -> Result<()> {
    let value = is_asleep.load(Ordering::SeqCst);
    if value & FUTEX == 0 {
        return Ok(());
    }
    let most_ns = TUNING.waits.word_ns[(*silent).min(TUNING.waits.word_ns.len() - 1)];
    let most_ns = rest_ns.map_or(most_ns, |ns| ns.min(most_ns));
    let Err(error) = sys::futex_wait(is_asleep, value, Some(most_ns)) else {
        return Ok(());
    };
    // Nobody sleeps here any more.
    is_asleep.fetch_and(!FUTEX, Ordering::SeqCst);
    match error {
        Errno(libc::EINTR) => Err(error),
        Errno(libc::ETIMEDOUT) => {
            *silent += 1;
            Ok(())
        }
        // Changed before.
        _ => Ok(()),
    }
}

/// Sleeps until the kernel has bytes or an end, and leaves them there.
fn wait_for_bytes(using: &Use, fd: c_int, left: Left) -> Result<()> {
    if low_water(using, fd) > 1 {
        // The other end may go over meanwhile, and its bells are too short to be heard.
        let most_ns = left.ns().map_or(TUNING.waits.unheard_ns, |ns| {
            ns.min(TUNING.waits.unheard_ns)
        });
        return match poll_for(fd, libc::POLLIN, Some(most_ns)) {
            Err(AGAIN) if left.ns().is_none_or(|ns| ns > most_ns) => Ok(()),
            outcome => or_restart(left.ns(), outcome),
        };
    }
    if let Some(rest_ns) = left.rest_ns() {
        return poll_for(fd, libc::POLLIN, Some(rest_ns));
    }
    let mut room = [0; 1];
    sys::recv(fd, &mut room, libc::MSG_PEEK).map(|_| ())
}

/// Sleeps until the other end or the kernel has news. Caller: the stream's leader.
fn wait_for_bell(using: &Use, fd: c_int, left: Left) -> Result<()> {
    if using.gateway().is_some() {
        return far::wait(using, fd, 0, left.ns());
    }
    let has_pollers = using.in_poll.load(Ordering::SeqCst) != 0;
    if left.rest_ns().is_none() && !has_pollers {
        return take_bells(using, fd, 0).map(|_| ());
    }
    poll_for(fd, libc::POLLIN | libc::POLLRDHUP, left.ns())?;
    take_bells_now(using, fd).map(|_| ())
}

pub(crate) fn wait_for_room(using: &Use, fd: c_int, until: &mut Until) -> Result<()> {
    let end = using.mine();
    let is_ring = end.out.switch_at.load(Ordering::Relaxed) != 0
        && end.out.back_at.load(Ordering::Relaxed) == 0;
    if !is_ring {
        poll_for(fd, libc::POLLOUT, until.left(fd)?.ns())?;
        return still(using, fd);
    }
    let has_room = || using.writer().room().is_ok_and(|room| room > 0);
    let is_gone = || {
        end.own.has_ended.load(Ordering::Relaxed) != 0
            || end.out.is_finished.load(Ordering::SeqCst) != 0
    };
    if using.spin.until(|| has_room() || is_gone()) {
        return Ok(());
    }
    let left = until.left(fd)?;
    let by_futex = until.may_sleep_on_word() && using.gateway().is_none() && !is_unheard(using);
    if by_futex && until.silent > 0 {
        ask(using, fd);
    }
    end.out.wants_room.store(1, Ordering::SeqCst);
    let way = if by_futex { FUTEX } else { BELL };
    end.inn.is_asleep.fetch_or(way, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    if has_room() || is_gone() {
        return Ok(());
    }
    using.sleeps.fetch_add(1, Ordering::Relaxed);
    if by_futex {
        in_turn(using, left, || {
            wait_on_word(&end.inn.is_asleep, left, until)
        })?;
    } else {
        sleep_for_room(using, fd, left)?;
    }
    still(using, fd)
}

/// Whether a bell would be taken for data, or for nothing.
fn is_unheard(using: &Use) -> bool {
    is_before_ring(using)
        || using.mine().own.is_deaf.load(Ordering::Relaxed) != 0
        || using.theirs().out.back_at.load(Ordering::Relaxed) != 0
}

fn sleep_for_room(using: &Use, fd: c_int, left: Left) -> Result<()> {
    let own = &using.mine().own;
    let is_deaf = own.is_deaf.load(Ordering::Relaxed) != 0;
    let most_ns = left
        .ns()
        .map_or(TUNING.waits.room_ns, |ns| ns.min(TUNING.waits.room_ns));
    let sleep = |act: &dyn Fn() -> Result<()>| {
        let outcome = in_turn(using, left, act);
        let is_part = outcome == Err(AGAIN) && left.ns().is_none_or(|ns| ns > most_ns);
        or_restart(left.ns(), if is_part { Ok(()) } else { outcome })
    };
    if using.gateway().is_some() {
        return sleep(&|| far::wait(using, fd, 0, Some(most_ns)));
    }
    if is_unheard(using) {
        // What the kernel holds is data, and would be found at once: look again after a while.
        let slice_ns = left
            .ns()
            .unwrap_or(TUNING.waits.deaf_ns)
            .min(TUNING.waits.deaf_ns);
        or_restart(left.ns(), sys::try_sleep_us(slice_ns.div_ceil(1000)))?;
        if is_deaf {
            // A dead end is known by its answer only.
            let _held = using.hold_sending();
            ring_bell(using, fd);
        }
        ask(using, fd);
        return Ok(());
    }
    let ends = libc::POLLIN | libc::POLLRDHUP;
    let outcome = sleep(&|| poll_for(fd, ends, Some(most_ns)));
    take_heard_bells(using, fd);
    outcome
}

pub(super) fn poll_for(fd: c_int, events: i16, timeout_ns: Option<u64>) -> Result<()> {
    let asked = sys::poll_one(fd, events, timeout_ns);
    let outcome = asked.and_then(|found| if found == 0 { Err(AGAIN) } else { Ok(()) });
    or_restart(timeout_ns, outcome)
}

/// A sleep without a time-out goes on after a signal if its handler wants that; here nobody tells which signal it was.
pub(super) fn or_restart(timeout_ns: Option<u64>, outcome: Result<()>) -> Result<()> {
    let is_signal = outcome == Err(Errno(libc::EINTR));
    if is_signal && timeout_ns.is_none() && sys::do_handlers_restart() {
        return Ok(());
    }
    outcome
}

fn timeout_ns(fd: c_int, name: c_int) -> Option<u64> {
    // A `timeval`.
    let time: [i64; 2] = sys::get_option(fd, libc::SOL_SOCKET, name).ok()?;
    let ns = time[0] as u64 * 1_000_000_000 + time[1] as u64 * 1000;
    (ns != 0).then_some(ns)
}

/// Waits in the kernel by `wait`, if no other thread does; then that one's bells are ours, too, and this one waits until it is back.
fn in_turn(using: &Use, left: Left, wait: impl FnOnce() -> Result<()>) -> Result<()> {
    let own = &using.mine().own;
    let leader = match lead(own, wait) {
        Ok(outcome) => return outcome,
        Err(leader) => leader,
    };
    let leads = own.leads.load(Ordering::SeqCst);
    own.followers.fetch_add(1, Ordering::SeqCst);
    let outcome = match own.leader.load(Ordering::SeqCst) {
        0 => Ok(0),
        _ => {
            let most_ns = left
                .ns()
                .unwrap_or(TUNING.waits.follow_ns)
                .min(TUNING.waits.follow_ns);
            sys::futex_wait(&own.leads, leads, Some(most_ns))
        }
    };
    own.followers.fetch_sub(1, Ordering::SeqCst);
    if outcome == Err(Errno(libc::EINTR)) {
        or_restart(left.ns(), Err(Errno(libc::EINTR)))?;
    }
    depose(own, leader);
    Ok(())
}

/// Takes bells by `take`, without waiting. If another thread waits for them nothing is taken: they may be meant for it, and it sleeps in the kernel.
pub(super) fn at_once(using: &Use, take: impl FnOnce() -> Result<bool>) -> Result<bool> {
    lead(&using.mine().own, take).unwrap_or(Ok(false))
}

/// Runs `act` as the stream's leader, after which its followers look again. An error: another thread leads, this one.
fn lead<R>(own: &Own, act: impl FnOnce() -> R) -> std::result::Result<R, u32> {
    own.leader
        .compare_exchange(0, thread(), Ordering::AcqRel, Ordering::Acquire)?;
    let outcome = act();
    own.leader.store(0, Ordering::SeqCst);
    if own.followers.load(Ordering::SeqCst) != 0 {
        own.leads.fetch_add(1, Ordering::SeqCst);
        sys::futex_wake(&own.leads, u32::MAX);
    }
    Ok(outcome)
}
