//! `read`, `write`, `recv`, `send` and all that moves bytes.
#![allow(unsafe_code)] // C's pointers.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::atomic::Ordering;

use libc::{
    c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t,
    timespec,
};

use super::sockets::TCP_INQ;
use super::{number, size};
use crate::stream::{self, Found, Source, Until};
use crate::sys::{self, Errno, Result};
use crate::table::{self, Use};
use crate::tuning::TUNING;
use crate::{exec, real};

/// `writev` and its like refuse more.
const IOV_MAX: usize = 1024;
/// Most bytes of one call, as the kernel limits it.
const MOST_BYTES: usize = 0x7fff_f000;

fn one(buffer: *const c_void, count: size_t) -> [iovec; 1] {
    [iovec {
        iov_base: buffer.cast_mut(),
        // As the kernel limits it.
        iov_len: count.min(MOST_BYTES),
    }]
}

/// The entries as the kernel takes them: lengths that no memory has are refused, and no call moves more than [`MOST_BYTES`].
///
/// # Safety
/// `vector` has `count` entries.
unsafe fn vector<'a>(
    vector: *const iovec,
    count: usize,
    too_many: c_int,
) -> Result<Cow<'a, [iovec]>> {
    if count > IOV_MAX {
        return Err(Errno(too_many));
    }
    if count == 0 {
        return Ok(Cow::Borrowed(&[]));
    }
    if vector.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: as the caller promises.
    let buffers = unsafe { std::slice::from_raw_parts(vector, count) };
    if buffers.iter().any(|one| one.iov_len > isize::MAX as usize) {
        return Err(Errno(libc::EINVAL));
    }
    let total = (buffers.iter()).fold(0usize, |sum, one| sum.saturating_add(one.iov_len));
    if total <= MOST_BYTES {
        return Ok(Cow::Borrowed(buffers));
    }
    let mut left = MOST_BYTES;
    let cut = buffers.iter().map(|one| {
        let iov_len = one.iov_len.min(left);
        left -= iov_len;
        iovec { iov_len, ..*one }
    });
    Ok(Cow::Owned(cut.collect()))
}

fn receive(using: &Use, fd: c_int, buffers: &[iovec], flags: c_int) -> Result<usize> {
    if buffers.iter().any(|buffer| buffer.iov_len > 0) {
        return stream::receive(using, fd, buffers, flags);
    }
    // The kernel waits for data all the same.
    let mut byte = 0u8;
    let room = one((&raw mut byte).cast(), 1);
    let flags = flags & !libc::MSG_WAITALL | libc::MSG_PEEK;
    stream::receive(using, fd, &room, flags).map(|_| 0)
}

/// As `read` does, which asks nobody for no bytes.
fn read_into(using: &Use, fd: c_int, buffers: &[iovec], flags: c_int) -> Result<usize> {
    if buffers.iter().all(|buffer| buffer.iov_len == 0) {
        return Ok(0);
    }
    stream::receive(using, fd, buffers, flags)
}

/// # Safety
/// `buffers` has `count` entries.
unsafe fn read_all(
    using: &Use,
    fd: c_int,
    (buffers, count): (*const iovec, c_int),
    flags: Result<c_int>,
) -> ssize_t {
    // SAFETY: as the caller promises; a negative count is refused as too large.
    let buffers = unsafe { vector(buffers, count as usize, libc::EINVAL) };
    size(buffers.and_then(|buffers| read_into(using, fd, &buffers, flags?)))
}

/// # Safety
/// `buffers` has `count` entries.
unsafe fn send_all(
    using: &Use,
    fd: c_int,
    (buffers, count): (*const iovec, c_int),
    flags: Result<c_int>,
) -> ssize_t {
    // SAFETY: as the caller promises; a negative count is refused as too large.
    let buffers = unsafe { vector(buffers, count as usize, libc::EINVAL) };
    size(buffers.and_then(|buffers| stream::send(using, fd, &buffers, flags?)))
}

of_streams! {
    fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t = |using| size(read_into(&using, fd, &one(buffer, count), 0));
    fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t = |using| size(stream::send(&using, fd, &one(buffer, count), 0));
    fn recv(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int) -> ssize_t = |using| size(receive(&using, fd, &one(buffer, count), flags));
    fn send(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int) -> ssize_t = |using| {
        size(stream::send(&using, fd, &one(buffer, count), flags))
    };
    fn recvfrom(fd: c_int, buffer: *mut c_void, count: size_t, flags: c_int, address: *mut sockaddr, length: *mut socklen_t) -> ssize_t = |using| {
        let result = receive(&using, fd, &one(buffer, count), flags);
        if result.is_ok() && !address.is_null() && !length.is_null() {
            // A connected stream names no sender.
            // SAFETY: the program's own place for a length.
            unsafe { *length = 0 };
        }
        size(result)
    };
    fn sendto(fd: c_int, buffer: *const c_void, count: size_t, flags: c_int, address: *const sockaddr, length: socklen_t) -> ssize_t = |using| {
        size(stream::send(&using, fd, &one(buffer, count), flags))
    };
    fn readv(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t = |using| {
        // SAFETY: the program's own vector.
        unsafe { read_all(&using, fd, (buffers, count), Ok(0)) }
    };
    fn writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t = |using| {
        // SAFETY: the program's own vector.
        unsafe { send_all(&using, fd, (buffers, count), Ok(0)) }
    };
    /// Position -1 is that of the descriptor, which a socket does not have; any other is refused for it.
    fn preadv2(fd: c_int, buffers: *const iovec, count: c_int, position: off_t, flags: c_int) -> ssize_t = |using if (position == -1)| {
        // SAFETY: the program's own vector.
        unsafe { read_all(&using, fd, (buffers, count), without_position(flags)) }
    };
    fn pwritev2(fd: c_int, buffers: *const iovec, count: c_int, position: off_t, flags: c_int) -> ssize_t = |using if (position == -1)| {
        // SAFETY: the program's own vector.
        unsafe { send_all(&using, fd, (buffers, count), without_position(flags)) }
    };
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t = |using| {
        // SAFETY: the program's own arguments.
        unsafe {
            if flags & libc::MSG_ERRQUEUE != 0 {
                real::recvmsg(fd, message, flags)
            } else {
                size(receive_message(&using, fd, message, flags))
            }
        }
    };
}

checked! {
    fn __read_chk(fd: c_int, buffer: *mut c_void, count: size_t, room) -> ssize_t = read;
    fn __recv_chk(fd: c_int, buffer: *mut c_void, count: size_t, room, flags: c_int) -> ssize_t = recv;
    fn __recvfrom_chk(fd: c_int, buffer: *mut c_void, count: size_t, room, flags: c_int, address: *mut sockaddr, length: *mut socklen_t) -> ssize_t = recvfrom;
}

also_named! {
    fn preadv64v2(fd: c_int, buffers: *const iovec, count: c_int, position: off_t, flags: c_int) -> ssize_t = preadv2;
    fn pwritev64v2(fd: c_int, buffers: *const iovec, count: c_int, position: off_t, flags: c_int) -> ssize_t = pwritev2;
    fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t = sendfile;
}

/// Flags of `recv` and `send` for those of `preadv2` and `pwritev2`.
fn without_position(flags: c_int) -> Result<c_int> {
    let known =
        libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_NOWAIT | libc::RWF_APPEND;
    match flags {
        flags if flags & !known != 0 => Err(Errno(libc::EOPNOTSUPP)),
        flags if flags & libc::RWF_NOWAIT != 0 => Ok(libc::MSG_DONTWAIT),
        _ => Ok(0),
    }
}

/// # Safety
/// As `recvmsg`.
unsafe fn receive_message(
    using: &Use,
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> Result<usize> {
    // SAFETY: the program's own message.
    let message = unsafe { message.as_mut() }.ok_or(Errno(libc::EFAULT))?;
    // SAFETY: the program's own vector.
    let buffers = unsafe { vector(message.msg_iov, message.msg_iovlen, libc::EMSGSIZE) };
    let count = buffers.and_then(|buffers| receive(using, fd, &buffers, flags))?;
    message.msg_namelen = 0;
    message.msg_flags = 0;
    let unread = (using.wants_unread.load(Ordering::Relaxed) != 0).then(|| {
        // An end counts as a byte, which is worth another look.
        let unread = stream::unread_bytes(using, fd) + u64::from(stream::is_over(using));
        unread.min(i32::MAX as u64) as c_int
    });
    // SAFETY: the program's own message.
    unsafe { tell_unread(message, unread) };
    Ok(count)
}

/// Writes what is left unread into the message's control data, or none.
///
/// # Safety
/// The message's control data are as long as it says.
unsafe fn tell_unread(message: &mut msghdr, unread: Option<c_int>) {
    // SAFETY: numbers.
    let [bytes, space] = unsafe {
        let value = size_of::<c_int>() as c_uint;
        [libc::CMSG_LEN(value), libc::CMSG_SPACE(value)].map(|bytes| bytes as usize)
    };
    // SAFETY: the C library's own look at the control data.
    let header = unsafe { libc::CMSG_FIRSTHDR(message).as_mut() };
    if let Some(header) = header
        && let Some(unread) = unread
        && message.msg_controllen >= bytes
    {
        header.cmsg_level = libc::IPPROTO_TCP;
        header.cmsg_type = TCP_INQ;
        header.cmsg_len = bytes;
        // SAFETY: within the control data, which have so many bytes.
        unsafe {
            libc::CMSG_DATA(header)
                .cast::<c_int>()
                .write_unaligned(unread)
        };
        message.msg_controllen = space.min(message.msg_controllen);
    } else {
        if unread.is_some() {
            message.msg_flags = libc::MSG_CTRUNC;
        }
        message.msg_controllen = 0;
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    let Some(using) = table::stream(fd) else {
        // SAFETY: the program's own message, as `sendmsg` reads it.
        unsafe {
            pass_on(message);
            return real::sendmsg(fd, message, flags);
        }
    };
    // SAFETY: the program's own message.
    let Some(message) = (unsafe { message.as_ref() }) else {
        return size(Err(Errno(libc::EFAULT)));
    };
    // SAFETY: the program's own vector.
    let buffers = unsafe { vector(message.msg_iov, message.msg_iovlen, libc::EMSGSIZE) };
    size(buffers.and_then(|buffers| stream::send(&using, fd, &buffers, flags)))
}

/// Streams among the descriptors that a message takes to another process go back to TCP.
///
/// # Safety
/// The message's control data, if it is one, are as long as it says.
unsafe fn pass_on(message: *const msghdr) {
    // SAFETY: NULL, or the program's own message.
    let message = unsafe { message.as_ref() }.filter(|message| message.msg_controllen > 0);
    let Some(message) = message.filter(|_| table::has_any()) else {
        return;
    };
    // SAFETY: the C library's own walk through the control data.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: not NULL, so within the control data.
    while let Some(found) = unsafe { header.as_ref() } {
        if found.cmsg_level == libc::SOL_SOCKET && found.cmsg_type == libc::SCM_RIGHTS {
            let bytes = found.cmsg_len.saturating_sub(size_of::<libc::cmsghdr>());
            // SAFETY: the data of that header.
            let fds = unsafe { libc::CMSG_DATA(header) }.cast::<c_int>();
            // SAFETY: within the data.
            let all =
                (0..bytes / size_of::<c_int>()).map(|at| unsafe { fds.add(at).read_unaligned() });
            exec::pass_on(all, "its descriptor is passed to another process");
        }
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
}

/// `None`: it is no legal time.
pub(super) fn ns_of(time: &timespec) -> Option<u64> {
    let is_legal = time.tv_sec >= 0 && (0..1_000_000_000).contains(&time.tv_nsec);
    is_legal.then(|| {
        (time.tv_sec as u64)
            .saturating_mul(1_000_000_000)
            .saturating_add(time.tv_nsec as u64)
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let Some(using) = table::stream(fd) else {
        // SAFETY: the program's own arguments.
        return unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    };
    // SAFETY: the program's own time.
    let timeout = unsafe { timeout.as_mut() };
    let until_ns = match timeout.as_deref().map(ns_of) {
        None => None,
        Some(Some(ns)) => Some(sys::now_ns().saturating_add(ns)),
        Some(None) => return number(Err(Errno(libc::EINVAL))),
    };
    let mut later = flags & !libc::MSG_WAITFORONE;
    let mut received = 0;
    while received < count as usize {
        // SAFETY: the program's own messages, `count` of them.
        let result = unsafe {
            let message = messages.add(received);
            let result = receive_message(&using, fd, &raw mut (*message).msg_hdr, later);
            if let Ok(bytes) = result {
                (*message).msg_len = bytes as c_uint;
            }
            result
        };
        match result {
            Ok(bytes) => {
                received += 1;
                if flags & libc::MSG_WAITFORONE != 0 {
                    later |= libc::MSG_DONTWAIT;
                }
                // As the kernel does: the time counts between messages.
                if bytes == 0 || until_ns.is_some_and(|until_ns| sys::now_ns() >= until_ns) {
                    break;
                }
            }
            Err(error) if received > 0 => {
                stream::put_back(&using, Err(error));
                break;
            }
            Err(error) => return number(Err(error)),
        }
    }
    if let (Some(timeout), Some(until_ns)) = (timeout, until_ns) {
        *timeout = sys::to_timespec(until_ns.saturating_sub(sys::now_ns()));
    }
    received as c_int
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let Some(using) = table::stream(fd) else {
        // SAFETY: the program's own arguments; the kernel looks at no more messages either.
        unsafe {
            for at in 0..(count as usize).min(IOV_MAX) * usize::from(!messages.is_null()) {
                pass_on(&raw const (*messages.add(at)).msg_hdr);
            }
            return real::sendmmsg(fd, messages, count, flags);
        }
    };
    let mut sent = 0;
    while sent < count as usize {
        // SAFETY: the program's own messages, `count` of them.
        let result = unsafe {
            let message = messages.add(sent);
            let header = &(*message).msg_hdr;
            let result = vector(header.msg_iov, header.msg_iovlen, libc::EMSGSIZE)
                .and_then(|buffers| stream::send(&using, fd, &buffers, flags));
            if let Ok(bytes) = result {
                (*message).msg_len = bytes as c_uint;
            }
            result
        };
        match result {
            Ok(_) => sent += 1,
            Err(_) if sent > 0 => break,
            Err(error) => return number(Err(error)),
        }
    }
    sent as c_int
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn sendfile(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    let Some(using) = table::stream(out) else {
        // SAFETY: the program's own arguments.
        return unsafe { real::sendfile(out, from, offset, count) };
    };
    // SAFETY: the program's own place for an offset.
    let given = unsafe { offset.as_mut() };
    size(send_file(&using, out, from, given, count))
}

fn send_file(
    using: &Use,
    out: c_int,
    from: c_int,
    offset: Option<&mut off_t>,
    count: usize,
) -> Result<usize> {
    // Without an offset the file's own position counts; what cannot seek has none.
    let position = match &offset {
        Some(offset) => **offset as usize,
        None => match sys::seek(from, 0, libc::SEEK_CUR) {
            Err(Errno(libc::ESPIPE)) => return Err(Errno(libc::EINVAL)),
            position => position?,
        },
    };
    let is_patient = using.mine().own.is_nonblocking.load(Ordering::Relaxed) == 0;
    let mut sent = 0;
    let mut until = Until::new(libc::SO_SNDTIMEO);
    let outcome = loop {
        if sent >= count {
            break Ok(());
        }
        let most = (count - sent).min(TUNING.copies.file_bytes);
        let fill = |place: *mut u8, bytes: usize| {
            sys::transfer(libc::SYS_pread64, from, place, bytes, position + sent)
        };
        match stream::send_from(using, out, most, Source::File, fill) {
            Ok(0) => break Ok(()),
            Ok(bytes) => sent += bytes,
            Err(sys::AGAIN) if is_patient => {
                if let Err(error) = stream::wait_for_room(using, out, &mut until) {
                    break Err(error);
                }
            }
            Err(error) => break Err(error),
        }
    };
    match offset {
        Some(offset) => *offset += sent as off_t,
        None => {
            let _ = sys::seek(from, position + sent, libc::SEEK_SET);
        }
    }
    match outcome {
        Err(error) if sent == 0 => {
            if error == Errno(libc::EPIPE) {
                sys::raise_sigpipe();
            }
            Err(error)
        }
        _ => Ok(sent),
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    if count == 0 {
        return 0;
    }
    let is_impatient = flags & libc::SPLICE_F_NONBLOCK != 0;
    let has_offset = [from_offset, to_offset].map(|offset| !offset.is_null());
    if let Some(using) = table::stream(from) {
        let checked = check_splice(to, has_offset[1], has_offset[0]);
        return size(checked.and_then(|()| splice_out(&using, from, to, count, is_impatient)));
    }
    if let Some(using) = table::stream(to) {
        let checked = check_splice(from, has_offset[0], has_offset[1]);
        let result = checked.and_then(|()| splice_in(&using, to, from, count, is_impatient));
        if result == Err(Errno(libc::EPIPE)) {
            sys::raise_sigpipe();
        }
        return size(result);
    }
    // SAFETY: the program's own arguments.
    unsafe { real::splice(from, from_offset, to, to_offset, count, flags) }
}

/// What the kernel asks of a socket and what is not to be one.
fn check_splice(pipe: c_int, has_pipe_offset: bool, has_offset: bool) -> Result<()> {
    sys::fcntl(pipe, libc::F_GETFD, 0)?;
    if sys::fcntl(pipe, libc::F_GETPIPE_SZ, 0).is_err() {
        return Err(Errno(libc::EINVAL));
    }
    if has_pipe_offset {
        return Err(Errno(libc::ESPIPE));
    }
    if has_offset {
        return Err(Errno(libc::EINVAL));
    }
    Ok(())
}

/// Waits for `events` of a pipe, or for its other end's end; what there is of them.
fn wait_for_pipe(pipe: c_int, events: i16, is_impatient: bool) -> Result<i16> {
    loop {
        match sys::poll_one(pipe, events, is_impatient.then_some(0)) {
            Ok(0) => return Err(sys::AGAIN),
            Err(Errno(libc::EINTR)) if sys::do_handlers_restart() => {}
            outcome => return outcome,
        }
    }
}

fn splice_out(
    using: &Use,
    fd: c_int,
    pipe: c_int,
    count: usize,
    is_impatient: bool,
) -> Result<usize> {
    let is_patient = using.mine().own.is_nonblocking.load(Ordering::Relaxed) == 0;
    let is_impatient = is_impatient || sys::is_nonblocking(pipe);
    let mut until = Until::new(libc::SO_RCVTIMEO);
    let most = count.min(TUNING.copies.file_bytes);
    // Another writer may fill the pipe before us. The stream is locked meanwhile, so that is waited for outside.
    let is_full = Cell::new(false);
    let drain = |place: *mut u8, bytes: usize| {
        let taken = sys::write_pipe_now(pipe, place, bytes);
        is_full.set(taken == Err(sys::AGAIN));
        taken
    };
    loop {
        wait_for_pipe(pipe, libc::POLLOUT, is_impatient)?;
        match stream::receive_into(using, fd, most, drain) {
            Ok(Found::Bytes(bytes)) => return Ok(bytes),
            Ok(Found::End) => return Ok(0),
            Ok(Found::Tcp) => {}
            Err(sys::AGAIN) if is_full.take() => {}
            Err(sys::AGAIN) if is_patient => stream::wait_for_data(using, fd, &mut until)?,
            Err(error) => return Err(error),
        }
    }
}

fn splice_in(
    using: &Use,
    fd: c_int,
    pipe: c_int,
    count: usize,
    is_impatient: bool,
) -> Result<usize> {
    let is_patient = using.mine().own.is_nonblocking.load(Ordering::Relaxed) == 0;
    let mut until = Until::new(libc::SO_SNDTIMEO);
    // Another reader may empty the pipe before us.
    let is_empty = Cell::new(false);
    loop {
        if wait_for_pipe(pipe, libc::POLLIN, is_impatient)? & libc::POLLIN == 0 {
            return Ok(0);
        }
        let most = count.min(TUNING.copies.file_bytes);
        let fill = |place: *mut u8, bytes: usize| {
            let given = sys::read_pipe_now(pipe, place, bytes);
            is_empty.set(given == Err(sys::AGAIN));
            given
        };
        match stream::send_from(using, fd, most, Source::Pipe, fill) {
            Err(sys::AGAIN) if is_empty.take() => {}
            Err(sys::AGAIN) if is_patient => stream::wait_for_room(using, fd, &mut until)?,
            outcome => return outcome,
        }
    }
}
