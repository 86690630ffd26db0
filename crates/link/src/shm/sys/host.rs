//! Other system calls: reading another process's memory, and a cheap clock.

use std::io;

/// Copies the bytes at two addresses of process `pid` into their targets, one after the other, from one address space; returns how many bytes were
/// copied. The kernel refuses processes that this one may not trace, and addresses that the other does not have.
pub(crate) fn read_process(pid: u32, pieces: [(u64, &mut [u8]); 2]) -> io::Result<usize> {
    let Ok(pid) = libc::pid_t::try_from(pid) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let remote = pieces.each_ref().map(|(address, target)| libc::iovec {
        iov_base: std::ptr::without_provenance_mut(*address as usize), // we build for 64-bit targets
        iov_len: target.len(),
    });
    let local = pieces.map(|(_, target)| libc::iovec {
        iov_base: target.as_mut_ptr().cast(),
        iov_len: target.len(),
    });
    // SAFETY: `local` are exactly the exclusively borrowed targets, of which any bytes are valid, and which outlive the call; the remote
    // ranges are only read, by the kernel, which checks them against the other process's address space and answers EFAULT otherwise. Both
    // rows of vectors live through the call, and each has 2.
    let read = unsafe { libc::process_vm_readv(pid, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// Bytes of a page of memory. Asks the C library, as `coarse_ms` does.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: asks for a number, and touches no memory of ours.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(1).max(1) // it is never unknown
}

/// Milliseconds of a clock that is read in a few nanoseconds and advances in steps of some milliseconds.
///
/// Asks the C library: `rustix` looks up the vDSO by itself, and fails where a memory checker hides it.
#[inline]
pub fn coarse_ms() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes only into `now`, which is live and ours. It does not fail: every kernel has the clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
}
