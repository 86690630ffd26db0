//! Pipes, without waiting: for locks' holders. The program may have set them to wait, and others hold the same descriptions, which must not be changed.

use libc::{c_int, iovec};

use super::{Errno, Result, call, fd_word, map_private, transfer, unmap};
use crate::tuning::TUNING;

/// Writes what there is room for; `AGAIN` if there is none.
pub(crate) fn write_pipe_now(pipe: c_int, address: *mut u8, bytes: usize) -> Result<usize> {
    match at_once(libc::SYS_pwritev2, pipe, address, bytes) {
        Err(error) if is_unable(error) => write_copy(pipe, address, bytes),
        outcome => outcome,
    }
}

/// Reads what there is; `AGAIN` if there is nothing. It may wait for other readers' sake where the kernel cannot do without.
pub(crate) fn read_pipe_now(pipe: c_int, address: *mut u8, bytes: usize) -> Result<usize> {
    match at_once(libc::SYS_preadv2, pipe, address, bytes) {
        Err(error) if is_unable(error) => transfer(libc::SYS_read, pipe, address, bytes, 0),
        outcome => outcome,
    }
}

/// Linux before 6.4, and named pipes, have no `RWF_NOWAIT`.
fn is_unable(error: Errno) -> bool {
    [libc::EOPNOTSUPP, libc::ENOSYS].contains(&error.0)
}

fn at_once(number: i64, pipe: c_int, address: *mut u8, bytes: usize) -> Result<usize> {
    // No position: both halves of -1.
    let words = [usize::MAX, usize::MAX, libc::RWF_NOWAIT as usize];
    // SAFETY: a read or a write of a range of a ring that the caller holds locked, or of memory of the caller's.
    unsafe { with_vector(number, pipe, (address, bytes), words) }
}

/// Makes a call that takes a vector of buffers, here of one, and then these words; what it does not take it does not look at.
///
/// # Safety
/// The call may read or write the range as its number says.
unsafe fn with_vector(
    number: i64,
    pipe: c_int,
    (address, bytes): (*mut u8, usize),
    [first, second, third]: [usize; 3],
) -> Result<usize> {
    let buffer = iovec {
        iov_base: address.cast(),
        iov_len: bytes,
    };
    let vector = &raw const buffer as usize;
    let words = [fd_word(pipe), vector, 1, first, second, third];
    // SAFETY: the vector lives for the call; its range is as the caller promises.
    unsafe { call(number, words) }
}

/// Gives the pipe the pages of a copy. It keeps them as they are, so they are never written again.
#[cold]
fn write_copy(pipe: c_int, address: *const u8, bytes: usize) -> Result<usize> {
    let bytes = bytes.min(TUNING.copies.pipe_bytes);
    let copy = map_private(TUNING.copies.pipe_bytes)?;
    // SAFETY: the caller's range has so many bytes, and so has the new mapping.
    unsafe { std::ptr::copy_nonoverlapping(address, copy, bytes) };
    let words = [libc::SPLICE_F_NONBLOCK as usize, 0, 0];
    // SAFETY: the mapping is nobody else's, and the kernel counts the pages that the pipe keeps.
    unsafe {
        let outcome = with_vector(libc::SYS_vmsplice, pipe, (copy, bytes), words);
        unmap(copy, TUNING.copies.pipe_bytes);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, pipe};
    use std::os::fd::AsRawFd;

    use super::super::AGAIN;
    use super::*;

    /// A full pipe is not waited for, by either way, and what was written is read, also after the memory it came from has changed.
    #[test]
    fn full_pipes_are_not_waited_for() {
        type Write = fn(c_int, *mut u8, usize) -> Result<usize>;
        for write in [write_pipe_now as Write, |pipe, place, bytes| {
            write_copy(pipe, place, bytes)
        }] {
            let (mut reader, writer) = pipe().expect("a pipe");
            let mut bytes: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
            let expected = bytes.clone();
            let mut written = 0;
            let error = loop {
                let (place, left) = (&mut bytes[written..], 100_000 - written);
                match write(writer.as_raw_fd(), place.as_mut_ptr(), left) {
                    Ok(more) => written += more,
                    Err(error) => break error,
                }
            };
            assert_eq!(error, AGAIN);
            assert!(0 < written && written < bytes.len(), "{written}");
            bytes.fill(255);
            drop(writer);
            let mut read = Vec::new();
            reader.read_to_end(&mut read).expect("what was written");
            assert!(read == expected[..written], "{} bytes", read.len());
        }
    }

    /// An empty pipe is not waited for where the kernel can do so; the end is seen.
    #[test]
    fn empty_pipes_are_not_waited_for() {
        let (reader, writer) = pipe().expect("a pipe");
        let mut room = [0; 8];
        let mut read = || read_pipe_now(reader.as_raw_fd(), room.as_mut_ptr(), 8);
        let mut byte = [7];
        let fd = writer.as_raw_fd();
        if at_once(libc::SYS_pwritev2, fd, byte.as_mut_ptr(), 1).is_err_and(is_unable) {
            return;
        }
        assert_eq!(read(), Ok(1));
        assert_eq!(read(), Err(AGAIN));
        drop(writer);
        assert_eq!(read(), Ok(0));
        assert_eq!(room[0], 7);
    }
}
