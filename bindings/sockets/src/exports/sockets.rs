//! `listen`, `accept`, `connect`, `shutdown`, options and `ioctl`.
#![allow(unsafe_code)] // C's pointers.

use std::sync::atomic::Ordering;

use libc::{c_int, c_uint, c_ulong, c_void, pid_t, rlimit, sockaddr, socklen_t};

use super::done;
use crate::address::Address;
use crate::ring::BY_BELLS;
use crate::sys::{self, Errno};
use crate::table::{self, Kind, Use};
use crate::{close, demotion, exec, handshake, listener, lock, real, segment, stream};

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: the program's own arguments.
    listener::listen(fd, || unsafe { real::listen(fd, backlog) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let Kind::Listener(listener) = table::kind(fd) else {
        // SAFETY: the program's own arguments.
        return unsafe { real::accept4(fd, address, length, flags) };
    };
    let mut room = [0u8; 128];
    let mut bytes = room.len() as socklen_t;
    // SAFETY: the place lives and is as long as said.
    let accepted = unsafe { real::accept4(fd, room.as_mut_ptr().cast(), &raw mut bytes, flags) };
    if accepted < 0 {
        return accepted;
    }
    if !address.is_null() && !length.is_null() {
        // SAFETY: the program's own place, as long as it says.
        unsafe {
            let fits = (*length).min(bytes) as usize;
            std::ptr::copy_nonoverlapping(room.as_ptr(), address.cast::<u8>(), fits);
            *length = bytes;
        }
    }
    // A number that was closed behind our back.
    table::clear(accepted);
    if let Some(client) = Address::parse(&room[..(bytes as usize).min(room.len())]) {
        listener.claim(accepted, client, flags & libc::SOCK_NONBLOCK != 0);
    }
    accepted
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn accept(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { accept4(fd, address, length, 0) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn connect(
    fd: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> c_int {
    // SAFETY: the program's own arguments.
    let connects = || unsafe { real::connect(fd, address, length) };
    if address.is_null() || !(16..=128).contains(&length) {
        return connects();
    }
    // SAFETY: the program's own address, as long as it says.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length as usize) };
    if let Some(using) = table::stream(fd) {
        let result = connects();
        if result == 0 && bytes[..2] == (libc::AF_UNSPEC as u16).to_ne_bytes() {
            close::disconnected(&using);
        }
        return result;
    }
    handshake::connect(fd, bytes, connects)
}

/// What the program believes of an option that the kernel's connection has differently.
fn believed(
    using: &Use,
    level: c_int,
    name: c_int,
) -> Option<&'static std::sync::atomic::AtomicI32> {
    if using.is_carried.load(Ordering::Acquire) == 0 {
        return None;
    }
    let own = &using.mine().own;
    if level == libc::IPPROTO_TCP && using.mine().out.back_at.load(Ordering::Acquire) != 0 {
        return None;
    }
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => Some(&own.no_delay),
        (libc::IPPROTO_TCP, libc::TCP_CORK) => Some(&own.cork),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => Some(&own.low_water),
        _ => None,
    }
}

/// Each message tells what is left unread, by control data of the same number.
pub(super) const TCP_INQ: c_int = 36;

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let Some(using) = table::stream(fd) else {
        // SAFETY: the program's own arguments.
        return unsafe { real::getsockopt(fd, level, name, value, length) };
    };
    if let Some(word) = believed(&using, level, name)
        && !value.is_null()
        && !length.is_null()
    {
        let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        // SAFETY: the program's own place, as long as it says.
        unsafe {
            let fits = bytes.len().min(*length as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast::<u8>(), fits);
            *length = fits as socklen_t;
        }
        return 0;
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { real::getsockopt(fd, level, name, value, length) };
    if result == 0 && (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
        if using.is_carried.load(Ordering::Acquire) != 0 {
            // Learns whether the other end has only left bells unread.
            stream::ask(&using, fd);
        }
        let own = &using.mine().own;
        let error = own.error.swap(0, Ordering::AcqRel);
        let is_by_bells = own.has_ended.load(Ordering::Acquire) & BY_BELLS != 0;
        let value = value.cast::<c_int>();
        // SAFETY: the kernel has just written an integer there.
        unsafe {
            if error != 0 && value.read_unaligned() == 0 {
                value.write_unaligned(error as c_int);
            } else if is_by_bells && value.read_unaligned() == libc::ECONNRESET {
                value.write_unaligned(0);
            }
        }
    }
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let is_low_water = (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    if is_low_water {
        stream::HAS_LOW_WATER.store(true, Ordering::Relaxed);
    }
    let Some(using) = table::stream(fd) else {
        // SAFETY: the program's own arguments.
        return unsafe { real::setsockopt(fd, level, name, value, length) };
    };
    let is_tls = (level, name) == (libc::IPPROTO_TCP, libc::TCP_ULP);
    if is_tls || (level, name) == (libc::SOL_SOCKET, libc::SO_ZEROCOPY) {
        demotion::fall_back(&using, fd, "an option that only TCP has");
    }
    stream::is_carried(&using, fd);
    if let Some(word) = believed(&using, level, name)
        && !value.is_null()
        && length as usize >= size_of::<c_int>()
    {
        // SAFETY: the program's own value, of at least that length.
        let value = unsafe { value.cast::<c_int>().read_unaligned() };
        let is_switch = level == libc::IPPROTO_TCP;
        word.store(
            if is_switch {
                c_int::from(value != 0)
            } else {
                value.max(1)
            },
            Ordering::Relaxed,
        );
        // The kernel has the mark again, too, where data comes by TCP again.
        if !is_low_water || using.mine().out.back_at.load(Ordering::Acquire) == 0 {
            return 0;
        }
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { real::setsockopt(fd, level, name, value, length) };
    if result == 0 && (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER) {
        note_linger(&using, fd);
    }
    if result == 0 && (level, name) == (libc::IPPROTO_TCP, TCP_INQ) {
        let wants = sys::get_option(fd, level, name).unwrap_or(0);
        using.wants_unread.store(wants, Ordering::Relaxed);
    }
    result
}

/// A connection that lingers for no time ends by a reset: the other end shall know that it is meant.
fn note_linger(using: &Use, fd: c_int) {
    let linger: [c_int; 2] =
        sys::get_option(fd, libc::SOL_SOCKET, libc::SO_LINGER).unwrap_or([0, 0]);
    let is_reset = linger[0] != 0 && linger[1] == 0;
    let word = &using.mine().out.ends_by_reset;
    word.store(u32::from(is_reset), Ordering::SeqCst);
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    let Some(using) = table::stream(fd) else {
        // SAFETY: the program's own arguments.
        return unsafe { real::ioctl(fd, request, argument) };
    };
    const SIOCOUTQNSD: c_ulong = 0x894b;
    let answer = match request {
        libc::FIONREAD => Some(stream::unread_bytes(&using, fd)),
        libc::TIOCOUTQ | SIOCOUTQNSD if stream::is_carried(&using, fd) => {
            Some(stream::unsent_bytes(&using))
        }
        _ => None,
    };
    if let Some(bytes) = answer {
        if argument == 0 {
            return done(Err(Errno(libc::EFAULT)));
        }
        // SAFETY: the program's own place for an integer.
        unsafe { (argument as *mut c_int).write_unaligned(bytes.min(i32::MAX as u64) as c_int) };
        return 0;
    }
    const SIOCATMARK: c_ulong = 0x8905;
    if request == SIOCATMARK {
        demotion::skip_bells(&using, fd);
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { real::ioctl(fd, request, argument) };
    if result == 0 && request == libc::FIONBIO {
        note_flags(fd);
    }
    if result == 0 && request == libc::FIOASYNC {
        demotion::fall_back(&using, fd, "signals for its events are asked for");
    }
    result
}

/// The descriptor's flags were changed.
pub(super) fn note_flags(fd: c_int) {
    if let Some(using) = table::stream(fd) {
        let is_nonblocking = sys::is_nonblocking(fd);
        let own = &using.mine().own;
        own.is_nonblocking
            .store(u32::from(is_nonblocking), Ordering::Relaxed);
    }
}

of_streams! {
    fn shutdown(fd: c_int, how: c_int) -> c_int = |using| done(close::shut_down(&using, fd, how));
}

/// Idle segments would take most of a narrow address space.
fn limits(process: pid_t, resource: c_uint, limit: *const rlimit) {
    let is_own = process == 0 || process as u32 == lock::thread_group();
    if resource == libc::RLIMIT_AS && is_own && !limit.is_null() {
        segment::let_go_of_idle();
    }
}

also_named! {
    fn setrlimit64(resource: c_uint, limit: *const rlimit) -> c_int = setrlimit;
    fn prlimit64(process: pid_t, resource: c_uint, limit: *const rlimit, old: *mut rlimit) -> c_int = prlimit;
}

prepared! {
    fn setrlimit(resource: c_uint, limit: *const rlimit) -> c_int = limits(0, resource, limit);
    fn prlimit(process: pid_t, resource: c_uint, limit: *const rlimit, old: *mut rlimit) -> c_int = limits(process, resource, limit);
    /// A program that confines itself to some system calls has not counted ours among them.
    fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int = if option == libc::PR_SET_SECCOMP {
        exec::let_go_of_all("the program confines itself (seccomp)");
    };
}

followed! {
    /// liburing calls the kernel by itself; this is how programs that use it begin.
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void) = exec::goes_past("the program uses io_uring");
    fn io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, length: usize) = exec::goes_past("the program uses io_uring");
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) = exec::goes_past("the program uses io_uring");
    fn io_uring_setup(entries: c_uint, parameters: *mut c_void) = exec::goes_past("the program uses io_uring");
}
