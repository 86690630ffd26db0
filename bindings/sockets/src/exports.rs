//! What programs call, by the C library's names.
//!
//! Each function asks `table` whether the descriptor is ours; if not, it calls the next function of its name (`real`). `data` moves bytes, `sockets` makes
//! and describes connections, `waiting` is `poll` and its like, `descriptors` copies and closes, `processes` forks and executes, `files` and `printing` are stdio, `numbers` is `syscall`;
//! `names` has the macros by which most of them are written.
//!
//! Safety of all of them: as the C library's function of the same name asks. A panic ends the process: these functions cannot unwind.
//!
//! Functions with `...` in C are written with a fixed number of arguments, which is how they arrive on this platform (System V x86-64, AArch64 Linux):
//! integers in registers, in order, whether the list is open or not, and then on the stack.

#[macro_use]
mod names;

mod data;
mod descriptors;
mod files;
mod numbers;
mod printing;
mod processes;
mod sockets;
mod waiting;

use libc::{c_int, ssize_t};

use crate::sys::{self, Result};

/// A count, or -1 and `errno`.
fn size(result: Result<usize>) -> ssize_t {
    match result {
        Ok(count) => count as ssize_t,
        Err(error) => {
            sys::set_errno(error);
            -1
        }
    }
}

/// As `size`, for functions that return an `int`.
fn number(result: Result<usize>) -> c_int {
    size(result) as c_int
}

/// 0, or -1 and `errno`.
fn done(result: Result<()>) -> c_int {
    number(result.map(|()| 0))
}
