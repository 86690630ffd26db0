//! The kernel, asked directly: system calls that never pass through the C library.
//!
//! Everything below `exports` uses these for its own purposes. The C library's functions would be our own (they are the ones that this library
//! replaces), and they set `errno`, which must be left alone where a call succeeds.
//!
//! Invariant: no function here touches `errno`; errors are numbers.
#![allow(unsafe_code)] // System calls: nothing below them is safe.

mod files;
mod memory;
mod pipes;

use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_void, epoll_event, iovec, pollfd, timespec};

pub(crate) use files::{gives_rights, is_executable, read_file, seek, write_line};
pub(crate) use memory::{
    address_space_limit, file_size_limit, futex_wait, futex_wake, map_private, map_shared,
    open_files_limit, sealed_identity, sealed_memfd, shared_word, unmap,
};
pub(crate) use pipes::{read_pipe_now, write_pipe_now};

/// An `errno`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

pub(crate) type Result<T> = std::result::Result<T, Errno>;

pub(crate) const AGAIN: Errno = Errno(libc::EAGAIN);

/// One system call with up to six words; the result is the kernel's.
///
/// # Safety
/// As that of the call: words that are addresses must be valid for what the kernel does with them.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn raw(number: i64, words: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's convention on this processor; `rcx` and `r11` are overwritten. The words are the caller's promise.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") number as isize => result, in("rdi") words[0], in("rsi") words[1], in("rdx") words[2],
            in("r10") words[3], in("r8") words[4], in("r9") words[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn raw(number: i64, words: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's convention on this processor. The words are the caller's promise.
    unsafe {
        std::arch::asm!("svc 0", in("x8") number, inlateout("x0") words[0] => result, in("x1") words[1], in("x2") words[2], in("x3") words[3],
            in("x4") words[4], in("x5") words[5], options(nostack));
    }
    result
}

/// A system call with up to six words; those that are not given are 0.
///
/// # Safety
/// As `raw`.
#[inline(always)]
pub(crate) unsafe fn call<const WORDS: usize>(number: i64, words: [usize; WORDS]) -> Result<usize> {
    const { assert!(WORDS <= 6) };
    let mut all = [0; 6];
    all[..WORDS].copy_from_slice(&words);
    // SAFETY: as the caller promises.
    let result = unsafe { raw(number, all) };
    if result < 0 {
        Err(Errno(-result as i32))
    } else {
        Ok(result as usize)
    }
}

/// A system call whose words are plain numbers.
#[inline(always)]
fn numbers<const WORDS: usize>(number: i64, words: [usize; WORDS]) -> Result<usize> {
    // SAFETY: used below only for calls that take no addresses.
    unsafe { call(number, words) }
}

fn fd_word(fd: c_int) -> usize {
    fd as isize as usize
}

pub(crate) fn close(fd: c_int) -> Result<usize> {
    numbers(libc::SYS_close, [fd_word(fd)])
}

pub(crate) fn fcntl(fd: c_int, command: c_int, argument: usize) -> Result<usize> {
    // SAFETY: used in this crate with commands that take numbers.
    unsafe { call(libc::SYS_fcntl, [fd_word(fd), command as usize, argument]) }
}

pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_NONBLOCK as usize != 0)
}

pub(crate) fn getpid() -> u32 {
    numbers(libc::SYS_getpid, []).unwrap_or(0) as u32
}

pub(crate) fn gettid() -> u32 {
    numbers(libc::SYS_gettid, []).unwrap_or(0) as u32
}

pub(crate) fn geteuid() -> u32 {
    numbers(libc::SYS_geteuid, []).unwrap_or(u32::MAX as usize) as u32
}

/// Whether a thread of that number exists in this PID namespace.
pub(crate) fn is_thread_alive(tid: u32) -> bool {
    // A number that is none (EINVAL) is of no thread either.
    let asked = numbers(libc::SYS_tkill, [tid as usize]);
    matches!(asked, Ok(_) | Err(Errno(libc::EPERM)))
}

/// Whether this process has a thread of that number.
pub(crate) fn is_own_thread(tid: u32) -> bool {
    numbers(libc::SYS_tgkill, [getpid() as usize, tid as usize]).is_ok()
}

/// The signal that writing to a closed connection raises, for this thread.
pub(crate) fn raise_sigpipe() {
    let (pid, tid) = (getpid() as usize, gettid() as usize);
    let _ = numbers(libc::SYS_tgkill, [pid, tid, libc::SIGPIPE as usize]);
}

/// Whether calls that any of the program's signal handlers interrupts are to go on: all were set with `SA_RESTART`.
pub(crate) fn do_handlers_restart() -> bool {
    // As the kernel has it: handler, flags, restorer, mask.
    let mut action = [0usize; 4];
    (1..=64).all(|signal| {
        let words = [signal, 0, action.as_mut_ptr() as usize, 8];
        // SAFETY: the kernel writes its `sigaction`, of four words, there.
        let asked = unsafe { call(libc::SYS_rt_sigaction, words) };
        let is_handled = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action[0]);
        asked.is_err() || !is_handled || action[1] & libc::SA_RESTART as usize != 0
    })
}

pub(crate) fn sched_yield() {
    let _ = numbers(libc::SYS_sched_yield, []);
}

pub(crate) fn sleep_us(us: u64) {
    let _ = try_sleep_us(us);
}

/// As `sleep_us`; an error if a signal has ended it.
pub(crate) fn try_sleep_us(us: u64) -> Result<()> {
    let time = timespec {
        tv_sec: 0,
        tv_nsec: (us * 1000) as i64,
    };
    // SAFETY: the time lives until the call is over.
    unsafe { call(libc::SYS_nanosleep, [&raw const time as usize]) }.map(|_| ())
}

/// Nanoseconds of the monotonic clock; by the vDSO where there is one.
pub(crate) fn now_ns() -> u64 {
    let mut time = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the place to write to lives. `clock_gettime` is none of the names that this library replaces.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int> {
    let words = [domain as usize, kind as usize, protocol as usize];
    numbers(libc::SYS_socket, words).map(|fd| fd as c_int)
}

pub(crate) fn listen(fd: c_int, backlog: c_int) -> Result<usize> {
    numbers(libc::SYS_listen, [fd_word(fd), backlog as usize])
}

pub(crate) fn shutdown(fd: c_int, how: c_int) -> Result<usize> {
    numbers(libc::SYS_shutdown, [fd_word(fd), how as usize])
}

/// `bind` or `connect` with an address given as bytes.
pub(crate) fn with_address(number: i64, fd: c_int, address: &[u8]) -> Result<usize> {
    // SAFETY: `bind` and `connect` read so many bytes, which live.
    unsafe {
        call(
            number,
            [fd_word(fd), address.as_ptr() as usize, address.len()],
        )
    }
}

/// `getsockname` or `getpeername`: as many bytes of `room` as the address has.
pub(crate) fn name_of(number: i64, fd: c_int, room: &mut [u8; 128]) -> Result<usize> {
    let mut bytes = room.len() as u32;
    let words = [
        fd_word(fd),
        room.as_mut_ptr() as usize,
        &raw mut bytes as usize,
    ];
    // SAFETY: both places live; the kernel writes at most `bytes`.
    unsafe { call(number, words) }?;
    Ok((bytes as usize).min(room.len()))
}

/// `accept4` without an address; close-on-exec.
pub(crate) fn accept(fd: c_int, flags: c_int) -> Result<c_int> {
    let flags = (flags | libc::SOCK_CLOEXEC) as usize;
    numbers(libc::SYS_accept4, [fd_word(fd), 0, 0, flags]).map(|fd| fd as c_int)
}

pub(crate) fn get_option<T: Copy + Default>(fd: c_int, level: c_int, name: c_int) -> Result<T> {
    let mut value = T::default();
    let mut bytes = size_of::<T>() as u32;
    let words = [
        fd_word(fd),
        level as usize,
        name as usize,
        &raw mut value as usize,
        &raw mut bytes as usize,
    ];
    // SAFETY: the kernel writes at most `bytes`; used with integers and structures of integers only, for which all bits are legal.
    unsafe { call(libc::SYS_getsockopt, words) }?;
    Ok(value)
}

pub(crate) fn set_option<T: Copy>(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: &T,
) -> Result<usize> {
    let words = [
        fd_word(fd),
        level as usize,
        name as usize,
        std::ptr::from_ref(value) as usize,
        size_of::<T>(),
    ];
    // SAFETY: the kernel reads the value, which lives.
    unsafe { call(libc::SYS_setsockopt, words) }
}

/// Credentials of the process at the other end of a UNIX socket, as the kernel knows them.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Credentials {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

pub(crate) fn peer_credentials(fd: c_int) -> Result<Credentials> {
    get_option(fd, libc::SOL_SOCKET, libc::SO_PEERCRED)
}

/// Receives into `room`.
pub(crate) fn recv(fd: c_int, room: &mut [u8], flags: c_int) -> Result<usize> {
    let words = [
        fd_word(fd),
        room.as_mut_ptr() as usize,
        room.len(),
        flags as usize,
    ];
    // SAFETY: the kernel writes at most so many bytes into `room`.
    unsafe { call(libc::SYS_recvfrom, words) }
}

/// Sends without a signal.
pub(crate) fn send(fd: c_int, bytes: &[u8], flags: c_int) -> Result<usize> {
    let flags = (flags | libc::MSG_NOSIGNAL) as usize;
    let words = [fd_word(fd), bytes.as_ptr() as usize, bytes.len(), flags];
    // SAFETY: the kernel reads so many bytes, which live.
    unsafe { call(libc::SYS_sendto, words) }
}

/// Lets a socket take only what begins with that word, in the order of networks; the rest is thrown away as it is sent.
pub(crate) fn take_only(fd: c_int, word: u64) -> Result<usize> {
    let load = |k| (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, k);
    let is = |k, otherwise| (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, otherwise, k);
    let end = |k| (libc::BPF_RET | libc::BPF_K, 0, 0, k);
    // A load beyond the end ends it as `end(0)` does.
    let mut filter = [
        load(0),
        is((word >> 32) as u32, 3),
        load(4),
        is(word as u32, 1),
        end(u32::MAX),
        end(0),
    ]
    .map(|(code, jt, jf, k)| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    });
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Sends a datagram, without waiting.
pub(crate) fn send_to(fd: c_int, bytes: &[u8], address: &[u8]) -> Result<usize> {
    let words = [
        fd_word(fd),
        bytes.as_ptr() as usize,
        bytes.len(),
        (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize,
        address.as_ptr() as usize,
        address.len(),
    ];
    // SAFETY: the kernel reads so many bytes of both, which live.
    unsafe { call(libc::SYS_sendto, words) }
}

/// `readv`-like receiving into buffers of the program.
pub(crate) fn recv_vector(fd: c_int, buffers: &[iovec], flags: c_int) -> Result<usize> {
    vector(libc::SYS_recvmsg, fd, buffers, flags)
}

/// `writev`-like sending from buffers of the program.
pub(crate) fn send_vector(fd: c_int, buffers: &[iovec], flags: c_int) -> Result<usize> {
    vector(libc::SYS_sendmsg, fd, buffers, flags)
}

fn vector(number: i64, fd: c_int, buffers: &[iovec], flags: c_int) -> Result<usize> {
    // SAFETY: all zeros are a message without name, buffers and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = buffers.as_ptr().cast_mut();
    message.msg_iovlen = buffers.len() as _;
    let words = [fd_word(fd), &raw mut message as usize, flags as usize];
    // SAFETY: the vector is the program's own (checked by the kernel: EFAULT); the header lives.
    unsafe { call(number, words) }
}

/// `read` and `write` of memory at an address, for pipes and files.
pub(crate) fn transfer(
    number: i64,
    fd: c_int,
    address: *mut u8,
    bytes: usize,
    offset: usize,
) -> Result<usize> {
    // SAFETY: used with ranges of rings that the caller holds locked.
    unsafe { call(number, [fd_word(fd), address as usize, bytes, offset]) }
}

/// A message with one or two file descriptors, to a connected UNIX socket.
pub(crate) fn send_with_fds(
    fd: c_int,
    bytes: &[u8],
    first: c_int,
    second: Option<c_int>,
) -> Result<usize> {
    let count = 1 + usize::from(second.is_some());
    let mut control = FdControl {
        bytes: size_of::<libc::cmsghdr>() + count * size_of::<c_int>(),
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        fds: [first, second.unwrap_or(0)],
    };
    let mut buffer = iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all zeros are a message without name, buffers and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut buffer;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<FdControl>() as _;
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
    // SAFETY: all that the header leads to lives.
    unsafe {
        call(
            libc::SYS_sendmsg,
            [fd_word(fd), &raw const message as usize, flags],
        )
    }
}

/// As `CMSG_*` would lay out two file descriptors, or one.
#[repr(C)]
struct FdControl {
    bytes: usize,
    level: c_int,
    kind: c_int,
    fds: [c_int; 2],
}

/// A message and the file descriptors that came with it: none, one or two.
pub(crate) fn recv_with_fds(fd: c_int, room: &mut [u8]) -> Result<(usize, [Option<c_int>; 2])> {
    let mut control = FdControl {
        bytes: 0,
        level: 0,
        kind: 0,
        fds: [-1; 2],
    };
    let mut buffer = iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    };
    // SAFETY: all zeros are a message without name, buffers and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut buffer;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    // Room for two descriptors only: the kernel closes what else may have been sent.
    message.msg_controllen = size_of::<FdControl>() as _;
    let flags = (libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) as usize;
    // SAFETY: all that the header leads to lives and is as large as it says.
    let bytes = unsafe {
        call(
            libc::SYS_recvmsg,
            [fd_word(fd), &raw mut message as usize, flags],
        )
    }?;
    let is_rights = message.msg_controllen as usize > size_of::<libc::cmsghdr>()
        && control.level == libc::SOL_SOCKET
        && control.kind == libc::SCM_RIGHTS;
    let carried = control.bytes.saturating_sub(size_of::<libc::cmsghdr>()) / size_of::<c_int>();
    let at = |place: usize| (is_rights && place < carried).then_some(control.fds[place]);
    Ok((bytes, [at(0), at(1)]))
}

/// Two connected UNIX stream sockets.
pub(crate) fn socket_pair() -> Result<[c_int; 2]> {
    let mut fds = [-1; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let words = [
        libc::AF_UNIX as usize,
        kind as usize,
        0,
        fds.as_mut_ptr() as usize,
    ];
    // SAFETY: the kernel writes two descriptors there.
    unsafe { call(libc::SYS_socketpair, words) }?;
    Ok(fds)
}

pub(crate) fn to_timespec(ns: u64) -> timespec {
    timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}

/// `ppoll` with an optional time-out and signal mask (of 8 bytes, as the kernel's).
pub(crate) fn poll(
    fds: &mut [pollfd],
    timeout_ns: Option<u64>,
    mask: *const c_void,
) -> Result<usize> {
    let mut time = timeout_ns.map(to_timespec);
    let time_address = time
        .as_mut()
        .map_or(0, |time| std::ptr::from_mut(time) as usize);
    let words = [
        fds.as_mut_ptr() as usize,
        fds.len(),
        time_address,
        mask as usize,
        8,
    ];
    // SAFETY: slice and time live; the mask is NULL or the program's own.
    unsafe { call(libc::SYS_ppoll, words) }
}

/// What `poll` is asked of one descriptor.
pub(crate) fn poll_of(fd: c_int, events: i16) -> pollfd {
    pollfd {
        fd,
        events,
        revents: 0,
    }
}

/// `poll` of one descriptor: its events, or none if the time is over.
pub(crate) fn poll_one(fd: c_int, events: i16, timeout_ns: Option<u64>) -> Result<i16> {
    let mut fds = [poll_of(fd, events)];
    poll(&mut fds, timeout_ns, std::ptr::null())?;
    Ok(fds[0].revents)
}

/// `poll` of one descriptor, without waiting: its events, or none.
pub(crate) fn poll_now(fd: c_int, events: i16) -> i16 {
    poll_one(fd, events, Some(0)).unwrap_or(0)
}

pub(crate) fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    events: u32,
    data: u64,
) -> Result<usize> {
    let mut event = epoll_event { events, u64: data };
    let words = [
        fd_word(epoll),
        operation as usize,
        fd_word(fd),
        &raw mut event as usize,
    ];
    // SAFETY: the event lives.
    unsafe { call(libc::SYS_epoll_ctl, words) }
}

/// `epoll_pwait2`, or `epoll_pwait` where the kernel is older, with a time-out in nanoseconds.
pub(crate) fn epoll_wait(
    epoll: c_int,
    events: &mut [epoll_event],
    timeout_ns: Option<u64>,
    mask: *const c_void,
) -> Result<usize> {
    static IS_OLD: AtomicU32 = AtomicU32::new(0);
    let base = [fd_word(epoll), events.as_mut_ptr() as usize, events.len()];
    let is_whole = timeout_ns.is_none_or(|ns| ns % 1_000_000 == 0);
    if !is_whole && IS_OLD.load(Ordering::Relaxed) == 0 {
        let time = timeout_ns.map(to_timespec);
        let time_address = time
            .as_ref()
            .map_or(0, |time| std::ptr::from_ref(time) as usize);
        let words = [base[0], base[1], base[2], time_address, mask as usize, 8];
        // SAFETY: slice and time live; the mask is NULL or the program's own.
        match unsafe { call(libc::SYS_epoll_pwait2, words) } {
            Err(Errno(libc::ENOSYS)) => IS_OLD.store(1, Ordering::Relaxed),
            result => return result,
        }
    }
    let ms = timeout_ns.map_or(-1, |ns| {
        ns.div_ceil(1_000_000).min(i32::MAX as u64) as isize
    });
    let words = [base[0], base[1], base[2], ms as usize, mask as usize, 8];
    // SAFETY: as above.
    unsafe { call(libc::SYS_epoll_pwait, words) }
}

pub(crate) fn eventfd() -> Result<c_int> {
    let flags = (libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) as usize;
    numbers(libc::SYS_eventfd2, [0, flags]).map(|fd| fd as c_int)
}

/// Wakes whoever polls an eventfd.
pub(crate) fn ring_eventfd(fd: c_int) {
    let _ = transfer(
        libc::SYS_write,
        fd,
        (&raw const ONE).cast_mut().cast(),
        8,
        0,
    );
}

static ONE: u64 = 1;

/// Bytes that `FIONREAD` counts.
pub(crate) fn unread_bytes(fd: c_int) -> usize {
    let mut count: c_int = 0;
    let words = [
        fd_word(fd),
        libc::FIONREAD as usize,
        &raw mut count as usize,
    ];
    // SAFETY: the kernel writes an integer there.
    let result = unsafe { call(libc::SYS_ioctl, words) };
    result.map_or(0, |_| count.max(0) as usize)
}

/// The word that `errno` is for this thread.
pub(crate) fn set_errno(error: Errno) {
    // SAFETY: the C library's address of this thread's `errno` is valid.
    unsafe { *libc::__errno_location() = error.0 };
}

pub(crate) fn errno() -> Errno {
    // SAFETY: as above.
    Errno(unsafe { *libc::__errno_location() })
}

/// A random number; of the clock if the kernel has none.
pub(crate) fn random() -> u64 {
    let mut value = 0u64;
    let words = [&raw mut value as usize, 8];
    // SAFETY: the kernel writes eight bytes there.
    match unsafe { call(libc::SYS_getrandom, words) } {
        Ok(8) => value,
        _ => now_ns(),
    }
}

/// Processors that the calling thread may run on.
pub(crate) fn usable_cores() -> u32 {
    let mut mask = [0u64; 64];
    let words = [0, size_of_val(&mask), mask.as_mut_ptr() as usize];
    // SAFETY: the kernel writes at most so many bytes.
    match unsafe { call(libc::SYS_sched_getaffinity, words) } {
        Ok(_) => mask.iter().map(|word| word.count_ones()).sum(),
        Err(_) => 1,
    }
}
