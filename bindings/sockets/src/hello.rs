//! Leaving hellos in mailboxes, and reading them.
//!
//! `handshake` leaves hellos, `listener` reads them. A segment is given only to a process whose mailbox was opened by our user, and taken only from our
//! user (`SO_PEERCRED`).

use std::sync::atomic::Ordering;

use tsumuji_streams::address::UnixName;
pub(crate) use tsumuji_streams::hello::{HELLO_BYTES, Hello};

use crate::explain::{self, Count};
use crate::segment::{self, SegmentRef};
use crate::sys::{self, Errno};

/// A descriptor that is closed if nobody takes it.
#[derive(Debug)]
pub(crate) struct Fd(i32);

impl Fd {
    pub(crate) fn new(fd: i32) -> Self {
        Self(fd)
    }

    pub(crate) fn get(&self) -> i32 {
        self.0
    }

    pub(crate) fn take(self) -> i32 {
        let fd = self.0;
        std::mem::forget(self);
        fd
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        let _ = sys::close(self.0);
    }
}

pub(crate) fn unix_socket() -> sys::Result<Fd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    sys::socket(libc::AF_UNIX, kind, 0).map(Fd)
}

/// A connection to a mailbox of our user.
pub(crate) fn connect_to(name: &UnixName) -> sys::Result<Fd> {
    let fd = unix_socket()?;
    sys::with_address(libc::SYS_connect, fd.get(), name.bytes())?;
    if !is_ours(fd.get()) {
        return Err(Errno(libc::EPERM));
    }
    Ok(fd)
}

/// Whether the process at the other end is of our user.
pub(crate) fn is_ours(fd: i32) -> bool {
    sys::peer_credentials(fd).is_ok_and(|peer| peer.uid == sys::geteuid())
}

/// Leaves a hello over a connection to a mailbox.
pub(crate) fn send_hello(
    mailbox: &Fd,
    hello: &Hello,
    segment: &SegmentRef,
    gateway: Option<i32>,
) -> sys::Result<()> {
    let file = segment.get().fd.load(Ordering::Relaxed) as i32;
    sys::send_with_fds(mailbox.get(), &hello.to_bytes(), file, gateway).map(|_| ())
}

/// What a client, or the gateway for one, has left. Caller: it is of our user.
pub(crate) fn read_hello(fd: i32) -> Option<(Hello, SegmentRef, Option<Fd>)> {
    let mut room = [0; HELLO_BYTES];
    let (bytes, [file, gateway]) = sys::recv_with_fds(fd, &mut room).ok()?;
    let (file, gateway) = (Fd(file?), gateway.map(Fd));
    let Some(hello) = Hello::parse(&room[..bytes]) else {
        explain::count(Count::Refused);
        return None;
    };
    let segment = segment::attach(file).ok()?;
    Some((hello, segment, gateway))
}
