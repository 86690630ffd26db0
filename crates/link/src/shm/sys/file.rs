//! Operations on the job's file: creation and sealing, locks, holes. `segment` knows its contents.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};

/// Makes an anonymous file of `bytes` bytes that can neither shrink nor grow. Takes memory only where it is written.
pub(crate) fn sealed_memfd(bytes: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("tsumuji", flags | MemfdFlags::NOEXEC_SEAL)
        // Kernels before 6.3 do not know the flag.
        .or_else(|_| rustix::fs::memfd_create("tsumuji", flags))?;
    rustix::fs::ftruncate(&fd, bytes)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Whether a file is sealed against shrinking, and its size.
pub(crate) fn seal_and_size(fd: BorrowedFd<'_>) -> io::Result<(bool, u64)> {
    let sealed =
        rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    Ok((sealed, rustix::fs::fstat(fd)?.st_size as u64))
}

/// A descriptor of the same file with an open file description, hence locks, of its own.
pub(crate) fn reopen(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(rustix::fs::open(
        path,
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

fn lock_of(bytes: Range<u64>) -> libc::flock {
    // SAFETY: all-zero bytes are a valid `flock`.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = bytes.start as _;
    lock.l_len = (bytes.end - bytes.start) as _;
    lock
}

/// Takes the write lock on one byte of the file for this open file description. `false`: another one holds it.
pub(crate) fn try_lock_byte(fd: BorrowedFd<'_>, offset: u64) -> io::Result<bool> {
    let lock = lock_of(offset..offset + 1);
    // SAFETY: the descriptor is open for the call, and `lock` is a live, initialised `flock`.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &lock) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Whether other open file descriptions hold locks on any of these bytes of the file.
pub(crate) fn is_locked(fd: BorrowedFd<'_>, bytes: Range<u64>) -> io::Result<bool> {
    if bytes.is_empty() {
        return Ok(false); // a length of 0 would mean all to the end
    }
    let mut lock = lock_of(bytes);
    // SAFETY: the descriptor is open for the call, and the kernel writes only into `lock`, which is live and ours.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) } == 0 {
        return Ok(i32::from(lock.l_type) != libc::F_UNLCK);
    }
    Err(io::Error::last_os_error())
}

/// The first offset from `offset` on that has memory; `None`: there is none. Moves the descriptor's position.
pub(crate) fn next_data(fd: BorrowedFd<'_>, offset: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(fd, rustix::fs::SeekFrom::Data(offset)) {
        Ok(at) => Ok(Some(at)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads a word of the file without mapping it: a word never written, or released, reads as 0 and takes no memory.
pub(crate) fn read_word(fd: BorrowedFd<'_>, offset: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    let read = rustix::io::pread(fd, &mut bytes, offset)?;
    if read < bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(u64::from_ne_bytes(bytes))
}

/// Releases a range's memory to the kernel; it reads as zero from now on, through every mapping. The size stays.
pub(crate) fn give_back(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(fd, flags, offset, bytes)?)
}

/// Largest file, in bytes, that this process may make.
pub(crate) fn file_size_limit_bytes() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Fsize)
        .current
        .unwrap_or(u64::MAX)
}
