//! `poll`, `select` and `epoll`.
#![allow(unsafe_code)] // C's pointers.

use libc::{
    c_int, c_void, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval,
};

use super::{data, done, number};
use crate::sys::{self, Errno};
use crate::table::{self, Kind};
use crate::{early, epoll, explain, poll as waits, real};

/// Descriptors in one `fd_set`.
const SET_BITS: usize = libc::FD_SETSIZE;

/// # Safety
/// `fds` has `count` entries.
unsafe fn entries<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    if fds.is_null() || count == 0 {
        return &mut [];
    }
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts_mut(fds, count as usize) }
}

fn ns_of_ms(timeout: c_int) -> Option<u64> {
    u64::try_from(timeout).ok().map(|ms| ms * 1_000_000)
}

/// # Safety
/// `time` is NULL or a time.
unsafe fn ns_of(time: *const timespec) -> sys::Result<Option<u64>> {
    // SAFETY: as the caller promises.
    let time = unsafe { time.as_ref() };
    let ns = time.map(|time| data::ns_of(time).ok_or(Errno(libc::EINVAL)));
    ns.transpose()
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the program's own entries.
    let list = unsafe { entries(fds, count) };
    if !waits::is_any_ours(list) {
        // SAFETY: the program's own arguments.
        return unsafe { real::poll(fds, count, timeout) };
    }
    number(waits::poll(list, ns_of_ms(timeout), std::ptr::null()))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    if room / size_of::<pollfd>() < count as usize {
        std::process::abort();
    }
    // SAFETY: the program's own arguments.
    unsafe { poll(fds, count, timeout) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's own entries.
    let list = unsafe { entries(fds, count) };
    if !waits::is_any_ours(list) {
        // SAFETY: the program's own arguments.
        return unsafe { real::ppoll(fds, count, timeout, mask) };
    }
    // SAFETY: the program's own time.
    let ns = unsafe { ns_of(timeout) };
    number(ns.and_then(|ns| waits::poll(list, ns, mask.cast())))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    if room / size_of::<pollfd>() < count as usize {
        std::process::abort();
    }
    // SAFETY: the program's own arguments.
    unsafe { ppoll(fds, count, timeout, mask) }
}

/// The words of a set that `select` looks at: programs with more descriptors than `fd_set` has bits give longer ones.
///
/// # Safety
/// `set` is NULL or has `count` bits, rounded up to words.
unsafe fn words<'a>(set: *mut fd_set, count: usize) -> Option<&'a mut [u64]> {
    if set.is_null() {
        return None;
    }
    // SAFETY: as the caller promises.
    Some(unsafe { std::slice::from_raw_parts_mut(set.cast::<u64>(), count.div_ceil(64)) })
}

/// # Safety
/// As `select`.
unsafe fn is_any_ours(count: c_int, sets: [*mut fd_set; 3]) -> bool {
    if !(0..=SET_BITS as c_int * 64).contains(&count) || !table::has_any() {
        return false;
    }
    sets.into_iter().any(|set| {
        // SAFETY: as the caller promises.
        let words = unsafe { words(set, count as usize) };
        words.is_some_and(|words| {
            (0..count).any(|fd| waits::has(words, fd as usize) && !table::is_plain(fd))
        })
    })
}

/// # Safety
/// As `select`.
unsafe fn select_ours(
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout_ns: Option<u64>,
    mask: *const c_void,
) -> sys::Result<usize> {
    // SAFETY: the program's own sets.
    let mut sets = sets.map(|set| unsafe { words(set, count as usize) });
    waits::select(count as usize, &mut sets, timeout_ns, mask)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn select(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    others: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the program's own arguments, here and below.
    unsafe {
        if !is_any_ours(count, [reads, writes, others]) {
            return real::select(count, reads, writes, others, timeout);
        }
        let time = timeout.as_mut();
        if time
            .as_ref()
            .is_some_and(|time| time.tv_sec < 0 || time.tv_usec < 0)
        {
            return done(Err(Errno(libc::EINVAL)));
        }
        let ns = time.as_ref().map(|time| {
            (time.tv_sec.max(0) as u64) * 1_000_000_000 + (time.tv_usec.max(0) as u64) * 1000
        });
        let began = sys::now_ns();
        let result = select_ours(count, [reads, writes, others], ns, std::ptr::null());
        if let (Some(time), Some(ns)) = (time, ns) {
            // As Linux does: what is left of the time.
            let left = ns.saturating_sub(sys::now_ns().saturating_sub(began));
            time.tv_sec = (left / 1_000_000_000) as i64;
            time.tv_usec = (left % 1_000_000_000 / 1000) as i64;
        }
        number(result)
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pselect(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    others: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's own arguments, here and below.
    unsafe {
        if !is_any_ours(count, [reads, writes, others]) {
            return real::pselect(count, reads, writes, others, timeout, mask);
        }
        let ns = ns_of(timeout);
        number(ns.and_then(|ns| select_ours(count, [reads, writes, others], ns, mask.cast())))
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: numbers only.
    let fd = unsafe { real::epoll_create(size) };
    if fd >= 0 {
        epoll::add(fd);
    }
    fd
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: numbers only.
    let fd = unsafe { real::epoll_create1(flags) };
    if fd >= 0 {
        epoll::add(fd);
    }
    fd
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let is_plain = table::is_plain(fd);
    if !is_plain && let Some(using) = table::stream(fd) {
        // SAFETY: the program's own event.
        let given = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
        return match table::kind(epoll) {
            Kind::Epoll(epoll) => done(epoll::control(epoll, operation, fd, &using, given)),
            _ => {
                // An instance that we have not seen being made knows TCP only.
                crate::demotion::fall_back(&using, fd, "its epoll instance is not ours");
                // SAFETY: the program's own arguments.
                unsafe { real::epoll_ctl(epoll, operation, fd, event) }
            }
        };
    }
    if !is_plain
        && let (Kind::Epoll(outer), Kind::Epoll(inner)) = (table::kind(epoll), table::kind(fd))
    {
        // SAFETY: the program's own event.
        let given = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
        return done(epoll::control_nested(outer, operation, (fd, inner), given));
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { real::epoll_ctl(epoll, operation, fd, event) };
    if result == 0 && (operation == libc::EPOLL_CTL_ADD || !is_plain) && !explain::is_off() {
        let epoll = match table::kind(epoll) {
            Kind::Epoll(epoll) => Some(epoll),
            _ => None,
        };
        let is_read = operation != libc::EPOLL_CTL_DEL && !event.is_null();
        // SAFETY: the program's own event, which the kernel has read.
        let given = is_read.then(|| unsafe { event.read_unaligned() });
        early::note(epoll, operation, fd, given);
    }
    result
}

/// The instance, if it has anything of ours in it.
fn watching(fd: c_int) -> Option<&'static epoll::Epoll> {
    match table::kind(fd) {
        Kind::Epoll(epoll) if epoll.is_watching() => Some(epoll),
        _ => None,
    }
}

/// # Safety
/// As `epoll_wait`.
unsafe fn wait(
    epoll: &'static epoll::Epoll,
    events: *mut epoll_event,
    count: c_int,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
) -> c_int {
    if count <= 0 || events.is_null() {
        return done(Err(Errno(libc::EINVAL)));
    }
    // SAFETY: the program's own room for `count` events.
    let events = unsafe { std::slice::from_raw_parts_mut(events, count as usize) };
    number(epoll.wait(events, timeout_ns, mask.cast()))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { epoll_pwait(epoll, events, count, timeout, std::ptr::null()) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's own arguments, here and below.
    unsafe {
        match watching(epoll) {
            Some(epoll) => wait(epoll, events, count, ns_of_ms(timeout), mask),
            None if mask.is_null() => {
                plainly(epoll, events, count, ns_of_ms(timeout), mask, || {
                    real::epoll_wait(epoll, events, count, timeout)
                })
            }
            None => plainly(epoll, events, count, ns_of_ms(timeout), mask, || {
                real::epoll_pwait(epoll, events, count, timeout, mask)
            }),
        }
    }
}

/// A stream may be put into the instance by another thread meanwhile: then what the kernel reports may be ours.
///
/// # Safety
/// As `epoll_wait`; `waits` is the kernel's.
unsafe fn plainly(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
    waits: impl FnOnce() -> c_int,
) -> c_int {
    let began_ns = sys::now_ns();
    let found = match table::kind(epoll) {
        Kind::Epoll(epoll) if timeout_ns != Some(0) => epoll.slept(waits),
        _ => waits(),
    };
    match watching(epoll) {
        Some(epoll) if found > 0 => {
            // SAFETY: the kernel has just written so many.
            let list = unsafe { std::slice::from_raw_parts_mut(events, found as usize) };
            let kept = epoll.sort_out(list);
            if kept > 0 {
                return kept as c_int;
            }
            let gone_ns = sys::now_ns().saturating_sub(began_ns);
            let left_ns = timeout_ns.map(|ns| ns.saturating_sub(gone_ns));
            // SAFETY: as the caller promises.
            unsafe { wait(epoll, events, count, left_ns, mask) }
        }
        _ => found,
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's own arguments, here and below.
    unsafe {
        match (watching(epoll), ns_of(timeout)) {
            (Some(epoll), Ok(ns)) => wait(epoll, events, count, ns, mask),
            (Some(_), Err(error)) => done(Err(error)),
            (None, ns) => plainly(epoll, events, count, ns.unwrap_or(None), mask, || {
                real::epoll_pwait2(epoll, events, count, timeout, mask)
            }),
        }
    }
}
