//! The functions that this library stands before: the next ones of their names, found when first needed.
//!
//! `exports` calls them for everything that is not ours. Where the C library has no such function, the call fails with ENOSYS.
#![allow(unsafe_code)] // Addresses from the dynamic linker become functions.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    FILE, c_char, c_int, c_long, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, mmsghdr,
    msghdr, nfds_t, off_t, pid_t, pollfd, rlimit, sigset_t, size_t, sockaddr, socklen_t, ssize_t,
    timespec, timeval,
};

extern "C" fn missing() -> c_long {
    crate::sys::set_errno(crate::sys::Errno(libc::ENOSYS));
    -1
}

#[cold]
fn find(cell: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    // SAFETY: the name ends in a zero byte.
    let mut address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if address.is_null() {
        address = missing as extern "C" fn() -> c_long as *mut c_void;
    }
    cell.store(address, Ordering::Relaxed);
    address
}

macro_rules! next {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => { $(
        #[inline]
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "as many as the C library's function has")]
        pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
            static CELL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no zero byte"),
            };
            let mut address = CELL.load(Ordering::Relaxed);
            if address.is_null() {
                address = find(&CELL, NAME);
            }
            // SAFETY: the C library's function of that name has that type; `missing` takes no arguments and returns -1 in the same register.
            let function: unsafe extern "C" fn($($type),*) -> $result = unsafe { std::mem::transmute(address) };
            // SAFETY: with the program's own arguments.
            unsafe { function($($argument),*) }
        }
    )* };
}

next! {
    read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t;
    write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t;
    readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t;
    writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t;
    preadv2(fd: c_int, vector: *const iovec, count: c_int, position: off_t, flags: c_int) -> ssize_t;
    pwritev2(fd: c_int, vector: *const iovec, count: c_int, position: off_t, flags: c_int) -> ssize_t;
    recv(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int) -> ssize_t;
    send(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int, address: *mut sockaddr, length: *mut socklen_t) -> ssize_t;
    sendto(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int, address: *const sockaddr, length: socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice(from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, count: size_t, flags: c_uint) -> ssize_t;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    setrlimit(resource: c_uint, limit: *const rlimit) -> c_int;
    prlimit(process: pid_t, resource: c_uint, limit: *const rlimit, old: *mut rlimit) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, copy: c_int) -> c_int;
    dup3(fd: c_int, copy: c_int, flags: c_int) -> c_int;
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select(count: c_int, reads: *mut fd_set, writes: *mut fd_set, others: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(count: c_int, reads: *mut fd_set, writes: *mut fd_set, others: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int;
    epoll_pwait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    _exit(status: c_int) -> c_int;
    fork() -> pid_t;
    _Fork() -> pid_t;
    clone(entry: Option<unsafe extern "C" fn(*mut c_void) -> c_int>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent_id: usize, local: usize, child_id: usize) -> c_int;
    daemon(keeps_folder: c_int, keeps_files: c_int) -> c_int;
    execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    execvpe(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    posix_spawn(child: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    posix_spawnp(child: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, copy: c_int) -> c_int;
    syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long;
    prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int;
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void) -> c_int;
    io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, length: usize) -> c_int;
    io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int;
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fileno(file: *mut FILE) -> c_int;
    vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
}
