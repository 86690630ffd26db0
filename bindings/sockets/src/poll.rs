//! `poll`, `select` and their like over descriptors of which some are carried streams.
//!
//! `exports` calls `poll` and `select` where at least one descriptor is ours. What is ready in shared memory is reported at once, with what the kernel says
//! of the other descriptors. If nothing is ready: look again for a moment, say that we sleep, look once more, sleep in the kernel.

use std::cell::Cell;
use std::iter::Peekable;
use std::slice::Iter;
use std::sync::atomic::{Ordering, fence};

use libc::{c_int, c_void, pollfd};

use crate::epoll::{Armed, Epoll};
use crate::idle::Spin;
use crate::ring::{BELL, ENDED};
use crate::sys::{self, Result};
use crate::table::{self, Kind, Use};
use crate::tuning::TUNING;
use crate::{ready, stream};

enum Ours {
    Stream(Use),
    Epoll(&'static Epoll),
}

/// Whether `poll` has any business with these.
pub(crate) fn is_any_ours(fds: &[pollfd]) -> bool {
    fds.iter()
        .any(|one| one.fd >= 0 && !table::is_plain(one.fd))
}

/// As `ppoll`, with the time-out in nanoseconds.
pub(crate) fn poll(
    fds: &mut [pollfd],
    timeout_ns: Option<u64>,
    mask: *const c_void,
) -> Result<usize> {
    let mut ours: Vec<(usize, Ours)> = Vec::new();
    for (at, one) in fds.iter().enumerate() {
        match table::kind(one.fd) {
            Kind::Stream(using) => ours.push((at, Ours::Stream(using))),
            Kind::Epoll(epoll) if epoll.is_watching() => ours.push((at, Ours::Epoll(epoll))),
            _ => {}
        }
    }
    if ours.is_empty() {
        return sys::poll(fds, timeout_ns, mask);
    }
    let until = timeout_ns.map(|ns| sys::now_ns().saturating_add(ns));
    let left = || until.map(|until| until.saturating_sub(sys::now_ns()));
    let mut is_first = true;
    let (mut silent, mut fruitless) = (0, 0);
    loop {
        let has_gone = |(at, one): &(usize, Ours)| matches!(one, Ours::Stream(using) if !stream::is_still(using, fds[*at].fd));
        if !is_first && ours.iter().any(has_gone) {
            // Another thread has closed it; the number may be another file's by now.
            return poll(fds, left(), mask);
        }
        let found = poll_ours(fds, &ours);
        if found > 0 {
            return Ok(found + others(fds, &ours));
        }
        if timeout_ns == Some(0) {
            ask_kernel(fds, &ours);
            let others = others(fds, &ours);
            return Ok(poll_ours(fds, &ours) + others);
        }
        // Once in a call: news may be of another kind than is waited for.
        let may_spin = std::mem::replace(&mut is_first, false);
        let has_come = |spin: &Spin| spin.until_within(left(), || has_news(fds, &ours));
        if may_spin && spin_of(&ours).is_some_and(has_come) {
            continue;
        }
        if let ([_], [(_, Ours::Stream(using))]) = (&*fds, &*ours)
            && mask.is_null()
        {
            let (fd, is_ready) = (fds[0].fd, || poll_ours(fds, &ours) > 0);
            if let Some(slept) = stream::sleep_on_word(using, fd, &mut silent, left(), is_ready) {
                slept?;
                continue;
            }
        }
        let asleep = Asleep::new(fds, &ours);
        if has_news(fds, &ours) && poll_ours(fds, &ours) > 0 {
            continue;
        }
        let outcome = sleep(fds, &asleep, left(), mask);
        drop(asleep);
        let in_kernel = outcome?;
        let total = poll_ours(fds, &ours) + in_kernel.0;
        if total > 0 {
            return Ok(total);
        }
        if in_kernel.1 || left() == Some(0) {
            for one in fds.iter_mut() {
                one.revents = 0;
            }
            return Ok(0);
        }
        // The kernel may say again and again what the program does not want to know.
        fruitless += 1;
        if fruitless > TUNING.waits.fruitless_max {
            sys::sleep_us(TUNING.waits.fruitless_nap_us);
        }
    }
}

/// Where experience is counted: the first stream's.
fn spin_of(ours: &[(usize, Ours)]) -> Option<&Spin> {
    ours.iter().find_map(|(_, one)| match one {
        Ours::Stream(using) if using.is_carried.load(Ordering::Relaxed) != 0 => Some(&using.spin),
        _ => None,
    })
}

/// Writes down what ours are ready for; how many.
fn poll_ours(fds: &mut [pollfd], ours: &[(usize, Ours)]) -> usize {
    let mut found = 0;
    for (at, one) in ours {
        let entry = &mut fds[*at];
        let wanted = entry.events as u16 as u32;
        let events = match one {
            Ours::Stream(using) => ready::of(using, entry.fd, ready::wants_room(wanted)),
            Ours::Epoll(epoll) if epoll.has_pending() => ready::IN,
            Ours::Epoll(_) => sys::poll_now(entry.fd, libc::POLLIN) as u16 as u32,
        };
        entry.revents = (events & (wanted | ready::ERR | ready::HUP)) as i16;
        found += usize::from(entry.revents != 0);
    }
    found
}

/// Asks the kernel about the others, without waiting; how many are ready.
fn others(fds: &mut [pollfd], ours: &[(usize, Ours)]) -> usize {
    if ours.len() == fds.len() {
        return 0;
    }
    let mut copy: Vec<pollfd> = fds.to_vec();
    for (at, _) in ours {
        copy[*at].fd = -1;
    }
    for one in &mut copy {
        one.revents = 0;
    }
    let count = sys::poll(&mut copy, Some(0), std::ptr::null()).unwrap_or(0);
    let mut next = ours.iter().peekable();
    for (at, one) in fds.iter_mut().enumerate() {
        if next_of(&mut next, at).is_none() {
            one.revents = copy[at].revents;
        }
    }
    count
}

/// What of ours is at that place; asked in order.
fn next_of<'a>(next: &mut Peekable<Iter<'a, (usize, Ours)>>, at: usize) -> Option<&'a Ours> {
    next.next_if(|(place, _)| *place == at).map(|(_, one)| one)
}

/// A cheap check whether a poll of ours is worth it.
fn has_news(fds: &[pollfd], ours: &[(usize, Ours)]) -> bool {
    ours.iter().any(|(at, one)| match one {
        // Both ends may have agreed since the last poll, and the bell that told of it may have been taken.
        Ours::Stream(using) if using.is_carried.load(Ordering::Acquire) == 0 => {
            stream::is_carried(using, fds[*at].fd)
        }
        Ours::Stream(using) => {
            let wants_room = fds[*at].events & (libc::POLLOUT | libc::POLLWRNORM) != 0;
            let wants_data = fds[*at].events & !(libc::POLLOUT | libc::POLLWRNORM) != 0;
            wants_data && stream::has_news(using)
                || using.theirs().out.is_closed.load(Ordering::Relaxed) != 0
                || wants_room
                    && using
                        .writer()
                        .room()
                        .is_ok_and(|room| room >= TUNING.copies.room_bytes)
        }
        Ours::Epoll(epoll) => epoll.has_pending(),
    })
}

/// Says that this thread sleeps, while it lives.
struct Asleep<'a> {
    ours: &'a [(usize, Ours)],
    /// It is about to sleep in the kernel, or does.
    is_counted: Cell<bool>,
    _epolls: Vec<Armed>,
}

impl<'a> Asleep<'a> {
    fn new(fds: &[pollfd], ours: &'a [(usize, Ours)]) -> Self {
        let mut epolls = Vec::new();
        for (at, one) in ours {
            match one {
                Ours::Stream(using) => {
                    using.pollers.fetch_add(1, Ordering::SeqCst);
                    if is_shared(using, ours) {
                        using.has_pollers.store(1, Ordering::SeqCst);
                    }
                    stream::take_heard_bells(using, fds[*at].fd);
                }
                Ours::Epoll(epoll) => epolls.push(epoll.arm()),
            }
        }
        // After all have been looked at: others wait for those that count themselves.
        for (_, one) in ours {
            if let Ours::Stream(using) = one {
                using.in_poll.fetch_add(1, Ordering::SeqCst);
                using.mine().inn.is_asleep.fetch_or(BELL, Ordering::SeqCst);
            }
        }
        fence(Ordering::SeqCst);
        Self {
            ours,
            is_counted: Cell::new(true),
            _epolls: epolls,
        }
    }

    /// The kernel's sleep is over: bells may be taken.
    fn woke(&self) {
        if !self.is_counted.replace(false) {
            return;
        }
        for (_, one) in self.ours {
            if let Ours::Stream(using) = one {
                // A child, in which nobody sleeps, may have been forked by a signal's handler.
                let one_less = |count: u32| count.checked_sub(1);
                let _ = (using.in_poll).fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
            }
        }
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.woke();
        for (_, one) in self.ours {
            if let Ours::Stream(using) = one
                && using.pollers.fetch_sub(1, Ordering::SeqCst) > 1
            {
                // The next news shall wake the others.
                using.mine().inn.is_asleep.fetch_or(BELL, Ordering::SeqCst);
            }
        }
        fence(Ordering::SeqCst);
    }
}

/// Whether other threads sleep for a stream, too. One call may name it several times.
fn is_shared(using: &Use, ours: &[(usize, Ours)]) -> bool {
    let pollers = using.pollers.load(Ordering::SeqCst) as usize;
    let is_it = |one: &Ours| matches!(one, Ours::Stream(other) if std::ptr::eq(other.socket(), using.socket()));
    pollers > 1 && pollers > ours.iter().filter(|(_, one)| is_it(one)).count()
}

/// After a call that does not wait: ends and bells are in the kernel only.
fn ask_kernel(fds: &[pollfd], ours: &[(usize, Ours)]) {
    for (at, one) in ours {
        if let Ours::Stream(using) = one {
            let empty = using.empty_calls.fetch_add(1, Ordering::Relaxed);
            if empty.is_multiple_of(TUNING.kernel.poll_ask_every)
                && using.is_carried.load(Ordering::Relaxed) != 0
            {
                stream::ask(using, fds[*at].fd);
            }
        }
    }
}

/// Sleeps in the kernel; how many of the others are ready, and whether the time is over.
fn sleep(
    fds: &mut [pollfd],
    asleep: &Asleep<'_>,
    left: Option<u64>,
    mask: *const c_void,
) -> Result<(usize, bool)> {
    let ours = asleep.ours;
    let mut copy: Vec<pollfd> = fds.to_vec();
    for one in &mut copy {
        one.revents = 0;
    }
    let (mut must_slice, mut waits_for_room) = (false, false);
    let mut of_gateways = Vec::new();
    for (at, one) in ours {
        let Ours::Stream(using) = one else {
            copy[*at].events |= libc::POLLIN;
            continue;
        };
        if let Some(gateway) = using.living_gateway() {
            copy.push(sys::poll_of(gateway, libc::POLLIN));
            of_gateways.push(using);
        }
        if using.is_carried.load(Ordering::Acquire) == 0 {
            continue;
        }
        // Another thread may shut down sending, of which the kernel knows nothing.
        waits_for_room |= ready::wants_room(fds[*at].events as u16 as u32);
        // An end that has been seen would be reported again and again.
        let has_ended = using.mine().own.has_ended.load(Ordering::Relaxed) & ENDED != 0;
        copy[*at].events = if has_ended {
            0
        } else {
            libc::POLLIN | libc::POLLRDHUP
        };
        // Another thread may take the bell that was meant for us, and a stream that goes by TCP again has room there.
        let own = &using.mine().own;
        // One that holds unread data of TCP cannot report a bell.
        let is_held_up = stream::is_before_ring(using)
            && fds[*at].events & (libc::POLLIN | libc::POLLRDNORM) == 0;
        if is_held_up {
            copy[*at].events = libc::POLLRDHUP;
        }
        must_slice |= own.leader.load(Ordering::Relaxed) != 0
            || using.mine().out.back_at.load(Ordering::Relaxed) != 0
            || using.has_pollers.load(Ordering::Relaxed) != 0
            || is_held_up && using.gateway().is_none();
        if using.gateway().is_some() {
            let is_by_tcp = stream::is_before_ring(using) && !is_held_up;
            copy[*at].events = stream::end_events(using) | if is_by_tcp { libc::POLLIN } else { 0 };
        }
    }
    let slice_ns = if must_slice {
        TUNING.waits.poll_ns
    } else if waits_for_room {
        TUNING.waits.room_ns
    } else {
        u64::MAX
    };
    let is_sliced = slice_ns < left.unwrap_or(u64::MAX);
    let most = if is_sliced { Some(slice_ns) } else { left };
    let count = sys::poll(&mut copy, most, mask);
    asleep.woke();
    let count = count?;
    for (using, gateway) in of_gateways.iter().zip(&copy[fds.len()..]) {
        if gateway.revents != 0 {
            using.has_kernel_news.store(1, Ordering::Relaxed);
            stream::take_heard_bells(using, -1);
            if gateway.revents & libc::POLLHUP != 0 {
                // It has ended, and is not waited for again.
                stream::is_new_end(using);
            }
        }
    }
    let mut others = 0;
    let mut next = ours.iter().peekable();
    for (at, one) in fds.iter_mut().enumerate() {
        match next_of(&mut next, at) {
            None => {
                one.revents = copy[at].revents;
                others += usize::from(one.revents != 0);
            }
            Some(Ours::Stream(using)) if copy[at].revents != 0 => {
                using.has_kernel_news.store(1, Ordering::Relaxed);
                stream::take_heard_bells(using, one.fd);
            }
            Some(_) => {}
        }
    }
    Ok((others, count == 0 && !is_sliced))
}

/// As `pselect`: sets are bits of descriptors below `count`; those that are ready stay.
pub(crate) fn select(
    count: usize,
    sets: &mut [Option<&mut [u64]>; 3],
    timeout_ns: Option<u64>,
    mask: *const c_void,
) -> Result<usize> {
    const WANTED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
    // What `select` takes for readable, writable and exceptional.
    const MEANT: [i16; 3] = [
        libc::POLLIN | libc::POLLRDNORM | libc::POLLHUP | libc::POLLERR,
        libc::POLLOUT | libc::POLLWRNORM | libc::POLLERR,
        libc::POLLPRI,
    ];
    let mut fds: Vec<pollfd> = Vec::new();
    for fd in 0..count {
        let mut events = 0;
        for (set, wanted) in sets.iter().zip(WANTED) {
            if set.as_ref().is_some_and(|set| has(set, fd)) {
                events |= wanted;
            }
        }
        if events != 0 {
            fds.push(sys::poll_of(fd as c_int, events));
        }
    }
    poll(&mut fds, timeout_ns, mask)?;
    if fds.iter().any(|one| one.revents & libc::POLLNVAL != 0) {
        return Err(sys::Errno(libc::EBADF));
    }
    let mut total = 0;
    for ((set, wanted), meant) in sets.iter_mut().zip(WANTED).zip(MEANT) {
        let Some(set) = set else { continue };
        for one in &fds {
            let is_ready = one.events & wanted != 0 && one.revents & meant != 0;
            total += usize::from(is_ready);
            put(set, one.fd as usize, is_ready);
        }
    }
    Ok(total)
}

pub(crate) fn has(set: &[u64], fd: usize) -> bool {
    set.get(fd / 64)
        .is_some_and(|word| word >> (fd % 64) & 1 != 0)
}

fn put(set: &mut [u64], fd: usize, is_ready: bool) {
    if let Some(word) = set.get_mut(fd / 64) {
        let bit = 1 << (fd % 64);
        *word = if is_ready { *word | bit } else { *word & !bit };
    }
}
