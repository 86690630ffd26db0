//! Files: their beginnings, their rights, lines to them.

use std::ffi::CStr;

use libc::c_int;

use super::{Result, call, close, fd_word, file_size_limit, geteuid, numbers, transfer};

/// Reads the beginning of a file; 0 if it cannot be read.
pub(crate) fn read_file(path: *const libc::c_char, room: &mut [u8]) -> usize {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let words = [libc::AT_FDCWD as isize as usize, path as usize, flags];
    // SAFETY: the kernel checks the path (EFAULT).
    let Ok(fd) = (unsafe { call(libc::SYS_openat, words) }) else {
        return 0;
    };
    let bytes = transfer(
        libc::SYS_read,
        fd as c_int,
        room.as_mut_ptr(),
        room.len(),
        0,
    );
    let _ = close(fd as c_int);
    bytes.unwrap_or(0)
}

/// Mode, owner and group of a file.
fn mode_of(path: &CStr) -> Result<(u32, u32, u32)> {
    // SAFETY: all zeros are a legal `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let words = [
        libc::AT_FDCWD as isize as usize,
        path.as_ptr() as usize,
        &raw mut stat as usize,
    ];
    // SAFETY: the kernel writes a `stat` there.
    unsafe { call(libc::SYS_newfstatat, words) }?;
    Ok((stat.st_mode, stat.st_uid, stat.st_gid))
}

/// Whether this process may execute a file.
pub(crate) fn is_executable(path: &CStr) -> bool {
    let words = [
        libc::AT_FDCWD as isize as usize,
        path.as_ptr() as usize,
        libc::X_OK as usize,
    ];
    // SAFETY: the path ends in a zero byte.
    let may = unsafe { call(libc::SYS_faccessat, words) }.is_ok();
    may && mode_of(path).is_ok_and(|(mode, ..)| mode & libc::S_IFMT == libc::S_IFREG)
}

/// Whether a file that is executed gives rights that the process does not have: then the dynamic linker preloads nothing.
pub(crate) fn gives_rights(path: &CStr) -> bool {
    let words = [
        path.as_ptr() as usize,
        c"security.capability".as_ptr() as usize,
    ];
    // SAFETY: both texts end in zero bytes; no value is asked for, only its length.
    let has_capabilities =
        geteuid() != 0 && unsafe { call(libc::SYS_getxattr, words) }.is_ok_and(|bytes| bytes > 0);
    let group = numbers(libc::SYS_getegid, []).unwrap_or(0) as u32;
    let changes_user = mode_of(path).is_ok_and(|(mode, owner, of_group)| {
        mode & libc::S_ISUID != 0 && owner != geteuid()
            || mode & libc::S_ISGID != 0 && of_group != group
    });
    has_capabilities || changes_user
}

/// Less than this may not be enough for what is explained.
const LINES_BYTES: u64 = 1 << 30;

/// Writes a line to a descriptor of our own; what does not fit is lost.
pub(crate) fn write_line(fd: c_int, text: &str) {
    if file_size_limit() < LINES_BYTES {
        // The descriptor may be a file's, and the kernel would end the process by a signal.
        return;
    }
    let _ = transfer(libc::SYS_write, fd, text.as_ptr().cast_mut(), text.len(), 0);
}

pub(crate) fn seek(fd: c_int, offset: usize, whence: c_int) -> Result<usize> {
    numbers(libc::SYS_lseek, [fd_word(fd), offset, whence as usize])
}
