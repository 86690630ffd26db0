//! Memory that processes share, and sleep on words in it.

use std::sync::atomic::AtomicU32;

use libc::c_int;

use super::{Errno, Result, call, close, fcntl, fd_word, numbers, to_timespec};

/// An anonymous file of `bytes`, which can neither shrink nor grow.
pub(crate) fn sealed_memfd(bytes: usize) -> Result<c_int> {
    if file_size_limit() < bytes as u64 {
        // Beyond the limit the kernel would end the process by a signal.
        return Err(Errno(libc::EFBIG));
    }
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name ends in a zero byte.
    let fd = unsafe {
        call(
            libc::SYS_memfd_create,
            [c"tsumuji-sockets".as_ptr() as usize, flags as usize],
        )
    }? as c_int;
    let sized = numbers(libc::SYS_ftruncate, [fd_word(fd), bytes])
        .and_then(|_| fcntl(fd, libc::F_ADD_SEALS, SEALS as usize));
    if let Err(error) = sized {
        let _ = close(fd);
        return Err(error);
    }
    Ok(fd)
}

/// RLIMIT_FSIZE, which holds for memory files, too.
pub(crate) fn file_size_limit() -> u64 {
    limit(libc::RLIMIT_FSIZE as usize)
}

/// RLIMIT_NOFILE.
pub(crate) fn open_files_limit() -> u64 {
    limit(libc::RLIMIT_NOFILE as usize)
}

/// RLIMIT_AS.
pub(crate) fn address_space_limit() -> u64 {
    limit(libc::RLIMIT_AS as usize)
}

fn limit(what: usize) -> u64 {
    let mut limit = [0u64; 2];
    let words = [0, what, 0, limit.as_mut_ptr() as usize];
    // SAFETY: the kernel writes two words there.
    match unsafe { call(libc::SYS_prlimit64, words) } {
        Ok(_) => limit[0],
        Err(_) => u64::MAX,
    }
}

const SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Device, inode and size of a file that has our seals; anything else is an error.
pub(crate) fn sealed_identity(fd: c_int) -> Result<(u64, u64, usize)> {
    let seals = fcntl(fd, libc::F_GET_SEALS, 0)?;
    if seals & SEALS as usize != SEALS as usize {
        return Err(Errno(libc::EPERM));
    }
    // SAFETY: all zeros are a legal `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes a `stat` there.
    unsafe { call(libc::SYS_fstat, [fd_word(fd), &raw mut stat as usize]) }?;
    Ok((stat.st_dev, stat.st_ino, stat.st_size as usize))
}

/// Shared memory of a file, or, with `fd` -1, zeros shared with children. It is neither locked nor there before it is used, also where the program has asked
/// for that (`mlockall`).
pub(crate) fn map_shared(fd: c_int, bytes: usize) -> Result<*mut u8> {
    let sharing = libc::MAP_SHARED | if fd < 0 { libc::MAP_ANONYMOUS } else { 0 };
    // What cannot be accessed is not filled.
    let address = map(fd, bytes, libc::PROT_NONE, sharing)?;
    let unlocked = numbers(libc::SYS_munlock, [address as usize, bytes]);
    let accessible = unlocked.and_then(|_| {
        numbers(
            libc::SYS_mprotect,
            [address as usize, bytes, ACCESS as usize],
        )
    });
    if let Err(error) = accessible {
        // SAFETY: nothing refers to it yet.
        unsafe { unmap(address, bytes) };
        return Err(error);
    }
    Ok(address)
}

/// Zeros of this process, of which only those that are used take memory.
pub(crate) fn map_private(bytes: usize) -> Result<*mut u8> {
    map(
        -1,
        bytes,
        ACCESS,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    )
}

const ACCESS: c_int = libc::PROT_READ | libc::PROT_WRITE;

fn map(fd: c_int, bytes: usize, access: c_int, flags: c_int) -> Result<*mut u8> {
    // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
    unsafe {
        call(
            libc::SYS_mmap,
            [0, bytes, access as usize, flags as usize, fd_word(fd)],
        )
    }
    .map(|address| address as *mut u8)
}

/// # Safety
/// Nothing refers to the mapping any more.
pub(crate) unsafe fn unmap(address: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises.
    let _ = unsafe { call(libc::SYS_munmap, [address as usize, bytes]) };
}

/// Sleeps while `word` is `value`, across processes; without `timeout_ns` until woken.
pub(crate) fn futex_wait(word: &AtomicU32, value: u32, timeout_ns: Option<u64>) -> Result<usize> {
    let time = timeout_ns.map(to_timespec);
    let time_address = time
        .as_ref()
        .map_or(0, |time| std::ptr::from_ref(time) as usize);
    // SAFETY: word and time live.
    unsafe {
        call(
            libc::SYS_futex,
            [
                word.as_ptr() as usize,
                libc::FUTEX_WAIT as usize,
                value as usize,
                time_address,
            ],
        )
    }
}

pub(crate) fn futex_wake(word: &AtomicU32, count: u32) {
    // SAFETY: the word lives.
    let _ = unsafe {
        call(
            libc::SYS_futex,
            [
                word.as_ptr() as usize,
                libc::FUTEX_WAKE as usize,
                count as usize,
            ],
        )
    };
}

/// A word that forked processes share with this one, made for ever.
pub(crate) fn shared_word() -> Option<&'static AtomicU32> {
    let address = map_shared(-1, 4096).ok()?;
    // SAFETY: a page's start, which is never unmapped and only used as this atomic.
    Some(unsafe { &*address.cast::<AtomicU32>() })
}
