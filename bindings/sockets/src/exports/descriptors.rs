//! `close`, `dup`, `fcntl`.
#![allow(unsafe_code)] // C's functions.

use libc::{c_int, c_uint};

use super::done;
use super::sockets::note_flags;
use crate::sys::{self, Errno};
use crate::table::{self, Kind};
use crate::{close as closing, demotion, real};

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn close(fd: c_int) -> c_int {
    if !table::is_plain(fd)
        && let Err(error) = closing::before(fd)
    {
        return done(Err(error));
    }
    // SAFETY: a number.
    unsafe { real::close(fd) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if first > last {
        return done(Err(Errno(libc::EINVAL)));
    }
    const CLOSE_RANGE_CLOEXEC: c_int = 4;
    if flags & CLOSE_RANGE_CLOEXEC != 0 {
        // SAFETY: numbers.
        return unsafe { real::close_range(first, last, flags) };
    }
    // Around our own descriptors.
    let mut from = first;
    let mine: Vec<c_int> = table::in_range(first, last).collect();
    for fd in mine {
        if matches!(table::kind(fd), Kind::Own) {
            if fd as c_uint > from {
                // SAFETY: numbers.
                let result = unsafe { real::close_range(from, fd as c_uint - 1, flags) };
                if result != 0 {
                    return result;
                }
            }
            from = fd as c_uint + 1;
        } else {
            let _ = closing::before(fd);
        }
    }
    if from > last {
        return 0;
    }
    // SAFETY: numbers.
    unsafe { real::close_range(from, last, flags) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: numbers.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: a number.
    copied(fd, unsafe { real::dup(fd) })
}

fn copied(fd: c_int, copy: c_int) -> c_int {
    if copy >= 0 {
        table::clear(copy);
        closing::copied(fd, copy);
    }
    copy
}

/// What `copy` was is closed by the kernel without `close`. Our own descriptors move out of the way.
fn make_way(fd: c_int, copy: c_int, flags: c_int) {
    if table::is_plain(copy) || !is_replaced(fd, copy, flags) {
        return;
    }
    if matches!(table::kind(copy), Kind::Own) {
        table::move_own(copy);
    } else {
        let _ = closing::before(copy);
    }
}

/// Whether the kernel will put a copy at `copy`, which is open: it refuses nothing else.
fn is_replaced(fd: c_int, copy: c_int, flags: c_int) -> bool {
    fd != copy
        && flags & !libc::O_CLOEXEC == 0
        && (copy as u64) < sys::open_files_limit()
        && sys::fcntl(fd, libc::F_GETFD, 0).is_ok()
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn dup2(fd: c_int, copy: c_int) -> c_int {
    make_way(fd, copy, 0);
    // SAFETY: numbers.
    let result = unsafe { real::dup2(fd, copy) };
    if fd == copy {
        return result;
    }
    copied(fd, result)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn dup3(fd: c_int, copy: c_int, flags: c_int) -> c_int {
    make_way(fd, copy, flags);
    // SAFETY: numbers.
    copied(fd, unsafe { real::dup3(fd, copy, flags) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the program's own arguments.
    let result = unsafe { real::fcntl(fd, command, argument) };
    if result < 0 {
        return result;
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, result),
        _ if table::is_plain(fd) => result,
        libc::F_SETFL => {
            note_flags(fd);
            if argument as c_int & libc::O_ASYNC != 0
                && let Some(using) = table::stream(fd)
            {
                demotion::fall_back(&using, fd, "signals for its events are asked for");
            }
            result
        }
        _ => result,
    }
}

also_named! {
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int = fcntl;
}
