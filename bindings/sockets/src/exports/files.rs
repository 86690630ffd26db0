//! Streams of stdio over carried sockets: `fdopen`.
//!
//! The C library reads and writes its `FILE`s past us, so one that is opened over a carried stream gets functions of ours (`fopencookie`).
#![allow(unsafe_code)] // C's pointers.

use std::ffi::{c_char, c_int, c_void};

use libc::{FILE, off64_t, size_t, ssize_t};

use super::{data, descriptors};
use crate::lock::Locked;
use crate::{close as close_ours, handshake, real, sys, table};

#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

/// Files of ours and their descriptors: `fileno` of the C library knows none.
static FILES: Locked<Vec<(usize, c_int)>> = Locked::new(Vec::new());

fn fd_of(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

unsafe extern "C" fn read(cookie: *mut c_void, buffer: *mut c_char, count: size_t) -> ssize_t {
    // SAFETY: the C library's own buffer.
    unsafe { data::read(fd_of(cookie), buffer.cast(), count) }
}

unsafe extern "C" fn write(cookie: *mut c_void, buffer: *const c_char, count: size_t) -> ssize_t {
    // SAFETY: the C library's own buffer.
    let written = unsafe { data::write(fd_of(cookie), buffer.cast(), count) };
    // As `fopencookie` wants it.
    written.max(0)
}

unsafe extern "C" fn seek(_: *mut c_void, _: *mut off64_t, _: c_int) -> c_int {
    sys::set_errno(sys::Errno(libc::ESPIPE));
    -1
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    FILES.with(|files| files.retain(|file| file.1 != fd_of(cookie)));
    // SAFETY: a number.
    unsafe { descriptors::close(fd_of(cookie)) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    let is_ours = table::stream(fd).is_some_and(|using| {
        let is_plain = handshake::cancel(&using);
        if is_plain {
            // The C library closes it past us.
            close_ours::let_go(&using);
        }
        !is_plain
    });
    if !is_ours {
        // SAFETY: the program's own arguments.
        return unsafe { real::fdopen(fd, mode) };
    }
    let functions = Functions {
        read,
        write,
        seek,
        close,
    };
    // SAFETY: the functions live as long as the library; the cookie is a number.
    let file = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !file.is_null() {
        FILES.with(|files| files.push((file as usize, fd)));
    }
    file
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn fileno(file: *mut FILE) -> c_int {
    let known = FILES.with(|files| {
        files
            .iter()
            .find(|known| known.0 == file as usize)
            .map(|known| known.1)
    });
    match known {
        Some(fd) => fd,
        // SAFETY: the program's own file.
        None => unsafe { real::fileno(file) },
    }
}

also_named! {
    fn fileno_unlocked(file: *mut FILE) -> c_int = fileno;
}
