//! The beginning and the end of a process, and forks.
//!
//! The dynamic linker calls `begin` and `finish`. A program's functions may run before: everything works without `begin`, which `ensure` makes up for.
#![allow(unsafe_code)] // Registers functions with the dynamic linker and the C library.

use std::cell::Cell;
use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::pid_t;

use crate::explain;
use crate::table::{Socket, Use};
use crate::{
    address, arena, close, early, epoll, exec, hello, idle, listener, lock, segment, sys, table,
};

/// `off`: nothing is carried. `shm`, the default: what stays on the host. `gateway`: also what its gateway carries to others. `far`, for tests:
/// what gateways carry, also if it stays on the host.
const LINK: &CStr = c"TSUMUJI_SOCKETS_LINK";
/// `text` or `json`: lines to standard error.
const EXPLAIN: &CStr = c"TSUMUJI_SOCKETS_EXPLAIN";
/// Longest time of looking again before a sleep.
const SPIN: &CStr = c"TSUMUJI_SOCKETS_SPIN_US";

static HAS_GATEWAY: AtomicU32 = AtomicU32::new(0);
static HAS_LEFT: AtomicU32 = AtomicU32::new(0);
static HAS_BEGUN: AtomicU32 = AtomicU32::new(0);
static PORTS: AtomicU32 = AtomicU32::new(0);

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = ensure_c;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;

#[cfg(not(test))]
extern "C" fn ensure_c() {
    ensure();
}

#[cfg(not(test))]
extern "C" fn finish() {
    leave_all();
    explain::end();
}

/// The process ends. The kernel closes its descriptors next; what is counted in shared memory would stay. A signal handler may end it: nothing is
/// allocated here.
pub(crate) fn leave_all() {
    // A child that shares the memory of its parent has nothing to count.
    let is_own = sys::getpid() == lock::thread_group();
    if is_own && HAS_LEFT.swap(1, Ordering::AcqRel) == 0 {
        table::for_each_open(leave);
    }
}

/// A process less has the stream open.
fn leave(using: &Use) {
    let end = using.mine();
    if end.own.leave() {
        if end.out.back_at.load(Ordering::Acquire) == 0
            && let Some(fd) = using.any_fd()
        {
            close::resets_unread(using, fd);
        }
        // The other end asks the kernel from now on.
        end.out.is_closed.store(1, Ordering::SeqCst);
        crate::stream::mark(using);
        crate::stream::wake_gateway(using);
        end.own.left();
    }
}

/// A variable of the environment.
pub(crate) fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: the name ends in a zero byte.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: NULL, or a text that the C library keeps; used at once.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes())
}

/// Reads the environment, once.
#[inline]
pub(crate) fn ensure() {
    if HAS_BEGUN.load(Ordering::Acquire) == 0 && HAS_BEGUN.swap(1, Ordering::AcqRel) == 0 {
        begin();
    }
}

#[cold]
fn begin() {
    // Before a child that shares the memory could be the first to ask.
    lock::thread_group();
    match variable(LINK) {
        None | Some(b"shm") => {}
        Some(b"gateway") => HAS_GATEWAY.store(1, Ordering::Relaxed),
        Some(b"far") => HAS_GATEWAY.store(2, Ordering::Relaxed),
        Some(_) => explain::turn_off(),
    }
    match variable(EXPLAIN) {
        Some(b"json") => explain::begin(true),
        Some(_) => explain::begin(false),
        None => {}
    }
    if let Some(us) = variable(SPIN)
        .and_then(|text| std::str::from_utf8(text).ok())
        .and_then(|text| text.parse().ok())
    {
        idle::set_limit_us(us);
    }
    // SAFETY: the three functions live as long as the process: a preloaded library is not unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    exec::inherit();
}

thread_local! {
    /// Streams that were counted for a child, while `forking` runs. Nothing is to be done for it at a thread's end, of which the C library would have to be
    /// told: a signal handler may fork.
    static COUNTED: Cell<Option<ManuallyDrop<Vec<Use>>>> = const { Cell::new(None) };
}

/// Forks by `fork`, whose handlers are not told whether there is a child: if there is none, nothing is counted for it.
pub(crate) fn forking(fork: impl FnOnce() -> pid_t) -> pid_t {
    let parent = lock::thread_group();
    let none = Some(ManuallyDrop::new(Vec::new()));
    // A signal handler may fork within: what was counted outside of it is put back.
    let outside = COUNTED.try_with(|counted| counted.replace(none)).ok();
    let result = fork();
    let counted = COUNTED.try_with(|counted| counted.replace(outside.flatten()));
    let counted = counted.ok().flatten();
    let counted = counted.map(ManuallyDrop::into_inner);
    if result < 0 && lock::thread_group() == parent {
        let error = sys::errno();
        counted.iter().flatten().for_each(leave);
        sys::set_errno(error);
    }
    result
}

/// As `forking`, for calls of which the C library tells the handlers nothing. A signal handler may make them, and its child has the C library's locks as
/// they were: nothing is allocated here.
pub(crate) fn forking_untold(fork: impl FnOnce() -> pid_t) -> pid_t {
    freeze();
    let count = |socket: &'static Socket| &socket.mine().own.processes;
    table::for_each_frozen(|socket| {
        count(socket).fetch_add(1, Ordering::AcqRel);
    });
    let parent = lock::thread_group();
    let result = fork();
    if result == 0 {
        begin_child(0);
        return result;
    }
    if result < 0 && lock::thread_group() == parent {
        // This process has them open, so that none was the last.
        table::for_each_frozen(|socket| {
            count(socket).fetch_sub(1, Ordering::AcqRel);
        });
    }
    in_parent();
    result
}

/// Other threads do not exist in the child: none shall be within a list. In the order in which locks are taken elsewhere.
fn freeze() {
    early::freeze();
    epoll::freeze();
    arena::freeze();
    table::freeze();
    listener::freeze();
    segment::freeze();
}

extern "C" fn before_fork() {
    freeze();
    let mut counted = COUNTED.try_with(Cell::take).ok().flatten();
    table::for_each_frozen(|socket| {
        let using = table::using(socket);
        using.mine().own.processes.fetch_add(1, Ordering::AcqRel);
        if let Some(counted) = &mut counted {
            counted.push(using);
        }
    });
    let _ = COUNTED.try_with(|place| place.set(counted));
}

fn thaw() {
    segment::thaw();
    listener::thaw();
    table::thaw();
    arena::thaw();
    epoll::thaw();
    early::thaw();
}

extern "C" fn in_parent() {
    thaw();
    lock::note_fork();
    listener::share_listeners();
}

extern "C" fn in_child() {
    // `before_fork` has noted one of each.
    begin_child(1);
}

/// In a child whose thread has so many uses of each stream.
pub(crate) fn begin_child(own_uses: u32) {
    thaw();
    HAS_LEFT.store(0, Ordering::Relaxed);
    lock::note_fork();
    lock::forget_thread();
    listener::share_listeners();
    // Another thread was about to connect, which is not here.
    let _ = HELD.compare_exchange(BEING_MADE, NOT_HELD, Ordering::AcqRel, Ordering::Relaxed);
    table::after_fork(own_uses);
    epoll::after_fork();
}

/// Whether connections to other hosts may go through the gateway.
pub(crate) fn has_gateway() -> bool {
    HAS_GATEWAY.load(Ordering::Relaxed) != 0
}

/// Whether connections within the host go through gateways, too.
pub(crate) fn is_all_far() -> bool {
    HAS_GATEWAY.load(Ordering::Relaxed) == 2
}

/// The connection by which this process holds the gateway, or one of these.
static HELD: AtomicI32 = AtomicI32::new(NOT_HELD);
const NOT_HELD: i32 = -1;
const BEING_MADE: i32 = -2;

/// A process that listens holds the gateway, which may end when nobody uses it; and the next one, if that is lost.
pub(crate) fn hold_gateway() {
    let held = HELD.load(Ordering::Acquire);
    let is_there = || sys::poll_now(held, libc::POLLRDHUP) == 0;
    if !has_gateway()
        || held == BEING_MADE
        || held >= 0 && is_there()
        || (HELD.compare_exchange(held, BEING_MADE, Ordering::AcqRel, Ordering::Relaxed)).is_err()
    {
        return;
    }
    if held >= 0 {
        table::close_own(held);
    }
    let made = hello::connect_to(&address::gateway(sys::geteuid()));
    let fd = made.map_or(NOT_HELD, |made| table::keep_own(made.take()));
    HELD.store(fd, Ordering::Release);
}

/// A descriptor of ours has another number.
pub(crate) fn own_moved(from: i32, to: i32) {
    let _ = HELD.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
}

/// The ports among which the kernel chooses.
pub(crate) fn port_range() -> (u16, u16) {
    let known = PORTS.load(Ordering::Relaxed);
    if known != 0 {
        return ((known >> 16) as u16, known as u16);
    }
    let mut room = [0; 64];
    let path = c"/proc/sys/net/ipv4/ip_local_port_range";
    let bytes = sys::read_file(path.as_ptr(), &mut room);
    let text = std::str::from_utf8(&room[..bytes]).unwrap_or("");
    let mut words = text
        .split_ascii_whitespace()
        .filter_map(|word| word.parse::<u16>().ok());
    let range = match (words.next(), words.next()) {
        (Some(low), Some(high)) if 0 < low && low <= high => (low, high),
        _ => (32768, 60999),
    };
    PORTS.store(
        u32::from(range.0) << 16 | u32::from(range.1),
        Ordering::Relaxed,
    );
    range
}
