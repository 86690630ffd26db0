//! `exec`, `posix_spawn`, `vfork`, `daemon`.
#![allow(unsafe_code)] // C's pointers.

use std::ffi::{CStr, c_char, c_int, c_void};

use libc::pid_t;

use crate::exec::{self, Prepared};
use crate::{close, real};

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// # Safety
/// As `execve`; `call` is given the environment to use.
unsafe fn execute(
    path: &CStr,
    environment: *const *const c_char,
    call: impl FnOnce(*const *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the program's own environment.
    let prepared: Option<Prepared> = unsafe { exec::prepare(path, environment) };
    let Some(prepared) = prepared else {
        return call(environment);
    };
    let result = call(prepared.environment.as_ptr());
    prepared.undo();
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: the program's own arguments, here and below.
    unsafe {
        if path.is_null() {
            return real::execve(path, arguments, environment);
        }
        execute(CStr::from_ptr(path), environment, |environment| {
            real::execve(path, arguments, environment)
        })
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn execv(
    path: *const c_char,
    arguments: *const *const c_char,
) -> c_int {
    // SAFETY: the program's own arguments and environment.
    unsafe { execve(path, arguments, environ) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn execvpe(
    name: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: the program's own arguments, here and below.
    unsafe {
        if name.is_null() || !crate::table::has_any() {
            return real::execvpe(name, arguments, environment);
        }
        let path = exec::find(CStr::from_ptr(name));
        execute(&path, environment, |environment| {
            real::execvpe(name, arguments, environment)
        })
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn execvp(
    name: *const c_char,
    arguments: *const *const c_char,
) -> c_int {
    // SAFETY: the program's own arguments and environment.
    unsafe { execvpe(name, arguments, environ) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn fexecve(
    fd: c_int,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    let path = std::ffi::CString::new(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    // SAFETY: the program's own arguments, here and below.
    unsafe {
        execute(&path, environment, |environment| {
            real::fexecve(fd, arguments, environment)
        })
    }
}

/// How `posix_spawn` gives a socket to a child as its standard input or output. The C library executes the child past us.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn posix_spawn_file_actions_adddup2(
    actions: *mut c_void,
    fd: c_int,
    copy: c_int,
) -> c_int {
    exec::pass_on(fd, "a spawned program inherits it");
    // SAFETY: the program's own arguments.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, copy) }
}

/// A child that shares the memory of its parent would change the parent's table: it gets its own, as the standard permits.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn vfork() -> pid_t {
    // SAFETY: no arguments.
    unsafe { real::fork() }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn daemon(keeps_folder: c_int, keeps_files: c_int) -> c_int {
    // SAFETY: numbers.
    let result = unsafe { real::daemon(keeps_folder, keeps_files) };
    if result == 0 && keeps_files == 0 {
        // The C library has put /dev/null there, past us.
        for fd in 0..3 {
            let _ = close::before(fd);
        }
    }
    result
}
