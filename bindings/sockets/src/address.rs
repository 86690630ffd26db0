//! Addresses of TCP connections, as the kernel tells them.

pub(crate) use tsumuji_streams::address::{Address, Pair, gateway, mailbox};

use crate::sys::{self, Result};

/// The socket's own address.
pub(crate) fn own(fd: i32) -> Result<Address> {
    named(libc::SYS_getsockname, fd)
}

pub(crate) fn peer(fd: i32) -> Result<Address> {
    named(libc::SYS_getpeername, fd)
}

fn named(number: i64, fd: i32) -> Result<Address> {
    let mut room = [0; 128];
    let bytes = sys::name_of(number, fd, &mut room)?;
    Address::parse(&room[..bytes]).ok_or(sys::Errno(libc::EAFNOSUPPORT))
}
