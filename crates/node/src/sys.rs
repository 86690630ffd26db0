//! The one door to calls that the compiler cannot check: work between `fork` and `exec` of a worker, noticing a fork,
//! threads without signals, and the length of their slices.
//!
//! Called by `bootstrap::keeper`, `lock` and `assistant`.
#![allow(
    unsafe_code,
    reason = "`Command::pre_exec`, `pthread_atfork` and `pthread_sigmask` are unsafe by nature, and nothing safer does the same"
)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Has the kernel kill the command's process when the thread that spawns it ends.
///
/// The kernel means the *thread*: the caller must keep the spawning thread alive as long as the child shall live.
/// Where the parent died between `fork` and the request, the child refuses to start.
pub(crate) fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    let in_child = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // A parent that died before the line above would never be reported: then somebody else is our parent already.
        if getppid() != Some(parent) {
            return Err(io::Error::from_raw_os_error(
                rustix::io::Errno::SRCH.raw_os_error(),
            ));
        }
        Ok(())
    };
    // SAFETY: between `fork` and `exec` only async-signal-safe work is allowed, because other threads of the parent may
    // have held locks (the allocator's among them) when it forked. `in_child` makes two bare system calls (`prctl`,
    // `getppid`; rustix's Linux backend issues them without libc and without locks), copies one integer captured by
    // value, and builds `io::Error`s from raw codes only, which neither allocates nor locks. It opens no file and touches
    // no memory shared with the parent.
    unsafe {
        command.pre_exec(in_child);
    }
}

/// How often this process is a child of `fork`: what was made before the last one is the parent's.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Runs `start`, so that a thread which it starts takes no signals: they are for the program's own threads.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = std::mem::MaybeUninit::uninit();
    let mut before = std::mem::MaybeUninit::uninit();
    // SAFETY: both sets are written before they are read: `all` by `sigfillset`, `before` by the call that succeeded.
    let blocked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let started = start();
    if blocked {
        // SAFETY: `before` was written by the call above.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
    }
    started
}

/// Asks the kernel (6.12 and later) to let this thread run soon, for short: a share of the core as large as any thread's, in slices of 0.1 ms
/// instead of some milliseconds. So a thread that wakes seldom and does little need not wait until one that computes has had its slice.
/// Where the kernel does not know it, or the thread is scheduled in another way, nothing changes.
pub(crate) fn take_short_slices() {
    const SLICE_NS: u64 = 100_000;
    let size = size_of::<libc::sched_attr>() as u32; // some 48 bytes
    // SAFETY: all of it are integers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: writes at most `size` bytes of `attributes`; 0 is the calling thread.
    let known =
        unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) } == 0;
    if known && attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.size = size;
        attributes.sched_runtime = SLICE_NS;
        // SAFETY: reads `attributes`, whose size stands in it.
        let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// From now on `forks` notices them.
pub(crate) fn mind_forks() {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| {
        // SAFETY: the function is there for good, and touches one atomic number only, as is allowed in a child of a process with
        // threads. Where it is not registered (no memory), children are not noticed.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// A number that differs between a process and its children by `fork`.
#[inline]
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}
