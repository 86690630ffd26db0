//! Unchecked calls: work between `fork` and `exec` of a worker, noticing a fork, threads without signals, and the length of
//! their time slices, and inherited descriptors. The only module of this crate with such calls beside `bootstrap::foreign::pmix_sys`.
//!
//! Used by `bootstrap::keeper`, `lock` and `assistant`.
#![allow(
    unsafe_code,
    reason = "`Command::pre_exec`, `pthread_atfork` and `pthread_sigmask` are unsafe by nature, and nothing safer does the same"
)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Has the kernel kill the command's process when the thread that spawns it ends, and run it on `core` only, if one is given.
///
/// The kernel refers to the *thread*: the caller must keep the spawning thread alive as long as the child shall live. If the parent dies between
/// `fork` and the request, the child does not start.
pub(crate) fn die_with_parent(command: &mut Command, core: Option<usize>) {
    let parent = getpid();
    let cores = core.map(|core| {
        let mut cores = CpuSet::new();
        cores.set(core);
        cores
    });
    let in_child = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the parent died before the line above, no signal comes; then this process already has another parent.
        if getppid() != Some(parent) {
            return Err(io::Error::from_raw_os_error(
                rustix::io::Errno::SRCH.raw_os_error(),
            ));
        }
        if let Some(cores) = &cores {
            sched_setaffinity(None, cores)?;
        }
        Ok(())
    };
    // SAFETY: between `fork` and `exec` only async-signal-safe work is allowed, because other threads of the parent may
    // have held locks (the allocator's among them) when it forked. `in_child` makes three bare system calls (`prctl`,
    // `getppid`, `sched_setaffinity`; rustix's Linux backend issues them without libc and without locks), reads an integer
    // and a set of bits captured by value, and builds `io::Error`s from raw codes only, which neither allocates nor locks. It
    // opens no file and touches no memory shared with the parent.
    unsafe {
        command.pre_exec(in_child);
    }
}

/// Number of `fork`s from the first process to this one: endpoints made under a lower number belong to a parent.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Runs `start`, so that a thread which it starts receives no signals: they are for the program's own threads.
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

/// Asks the kernel (6.12 and later) for short time slices of this thread: 0.1 ms instead of some milliseconds, with the same share of the core. A
/// thread that wakes seldom and does little then need not wait until a computing one has used its slice. Has no effect on older kernels, or under
/// another scheduling policy.
pub(crate) fn take_short_slices() {
    const SLICE_NS: u64 = 100_000;
    let size = size_of::<libc::sched_attr>() as u32; // some 48 bytes
    // SAFETY: all fields are integers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: writes at most `size` bytes of `attributes`; 0 is the calling thread.
    let known =
        unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) } == 0;
    if known && attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.size = size;
        attributes.sched_runtime = SLICE_NS;
        // SAFETY: reads `attributes`, which contains its size.
        let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// A copy of a descriptor that this process was started with, by its number; it is not passed on to children.
pub(crate) fn inherited(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: the kernel checks the number, and makes a new descriptor.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `copy` was made by the call above, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Begins to count forks for `forks`.
pub(crate) fn mind_forks() {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| {
        // SAFETY: the function exists for the life of the process, and touches one atomic number only, as is allowed in a child of a process with
        // threads. If it cannot be registered (no memory), forks are not noticed.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// A number that differs between a process and its children by `fork`.
#[inline]
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}
