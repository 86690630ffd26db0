//! `syscall`: calls by their numbers, which go past the C library's names, but not past its function.
//!
//! Those that `by_name` lists (as docs/sockets.md does) are those of the names. Others are the kernel's: of a carried connection they see what its
//! descriptor has there.
#![allow(unsafe_code)] // C's pointers.

use libc::{c_int, c_long};

use super::{data, descriptors, processes, sockets};
use crate::{exec, real, start, table};

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn syscall(
    call: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    if call == libc::SYS_seccomp {
        exec::let_go_of_all("the program confines itself (seccomp)");
    }
    // SAFETY: the program's own arguments.
    if let Some(result) = unsafe { by_name(call, [a, b, c, d, e, f]) } {
        return result;
    }
    // A child of `vfork` could not leave this function before its parent does: it gets memory of its own.
    #[cfg(target_arch = "x86_64")]
    let call = if call == libc::SYS_vfork {
        libc::SYS_fork
    } else {
        call
    };
    // SAFETY: the program's own arguments; further ones than it has given are not looked at by the kernel.
    let go = || unsafe { real::syscall(call, a, b, c, d, e, f) };
    // SAFETY: the program's own arguments.
    if unsafe { processes::is_fork(call, [a, b, c, d, e, f]) } {
        return start::forking_untold(|| go() as libc::pid_t).into();
    }
    let result = go();
    if call == libc::SYS_io_uring_setup && result >= 0 {
        exec::goes_past("the program uses io_uring");
    }
    result
}

/// The result of the function with that number's name, if it is our business.
///
/// # Safety
/// As of that function.
unsafe fn by_name(call: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    let fd = a as c_int;
    // SAFETY: the program's own arguments, as the kernel would take them.
    unsafe {
        // Our own descriptors must not be closed, nor streams without our knowledge; a message may take some along.
        match call {
            libc::SYS_exit_group => return Some(processes::_exit(fd).into()),
            libc::SYS_close => return Some(descriptors::close(fd).into()),
            libc::SYS_close_range => {
                return Some(descriptors::close_range(a as u32, b as u32, c as c_int).into());
            }
            libc::SYS_dup3 => return Some(descriptors::dup3(fd, b as c_int, c as c_int).into()),
            libc::SYS_dup => return Some(descriptors::dup(fd).into()),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => return Some(descriptors::dup2(fd, b as c_int).into()),
            libc::SYS_sendmsg => return Some(data::sendmsg(fd, b as _, c as c_int) as c_long),
            libc::SYS_execve => return Some(processes::execve(a as _, b as _, c as _).into()),
            libc::SYS_execveat => {
                let result = processes::execveat(fd, b as _, c as _, d as _, e as c_int);
                return Some(result.into());
            }
            _ => {}
        }
        if table::is_plain(fd) {
            return None;
        }
        let bytes = match call {
            libc::SYS_read => data::read(fd, b as _, c),
            libc::SYS_write => data::write(fd, b as _, c),
            libc::SYS_readv => data::readv(fd, b as _, c as c_int),
            libc::SYS_writev => data::writev(fd, b as _, c as c_int),
            // The position comes in two halves, of which the kernel looks at the first here.
            libc::SYS_preadv2 => data::preadv2(fd, b as _, c as c_int, d as _, f as c_int),
            libc::SYS_pwritev2 => data::pwritev2(fd, b as _, c as c_int, d as _, f as c_int),
            libc::SYS_recvfrom => data::recvfrom(fd, b as _, c, d as c_int, e as _, f as _),
            libc::SYS_sendto => data::sendto(fd, b as _, c, d as c_int, e as _, f as _),
            libc::SYS_recvmsg => data::recvmsg(fd, b as _, c as c_int),
            libc::SYS_shutdown => sockets::shutdown(fd, b as c_int) as isize,
            _ => return None,
        };
        Some(bytes as c_long)
    }
}
