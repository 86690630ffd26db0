//! UNIX sockets: the gateway's own mailbox, those of listeners, and the descriptors that travel with hellos.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, Result};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, send, sendmsg, socket_with, socketpair,
};
use tsumuji_streams::address::UnixName;
use tsumuji_streams::hello::{HELLO_BYTES, Hello};

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
/// Hellos that may wait; the kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// Descriptors with a hello.
const FDS: usize = 2;

fn socket() -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
}

/// A mailbox of that name. An error: another process has it.
pub(crate) fn open(name: &UnixName) -> Result<OwnedFd> {
    let mailbox = socket()?;
    bind(&mailbox, &SocketAddrUnix::new_abstract_name(name.name())?)?;
    listen(&mailbox, BACKLOG)?;
    Ok(mailbox)
}

/// A connection to a mailbox of our user.
pub(crate) fn reach(name: &UnixName) -> Result<OwnedFd> {
    let there = socket()?;
    connect(&there, &SocketAddrUnix::new_abstract_name(name.name())?)?;
    if is_ours(&there) {
        Ok(there)
    } else {
        Err(Errno::PERM)
    }
}

/// Whether the process at the other end is of our user.
fn is_ours(there: &OwnedFd) -> bool {
    socket_peercred(there).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// The next connection to our mailbox, if it is of our user.
pub(crate) fn accept(mailbox: &OwnedFd) -> Result<Option<OwnedFd>> {
    let client = accept_with(mailbox, FLAGS)?;
    Ok(Some(client).filter(is_ours))
}

/// Two ends of which each wakes the other.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)
}

/// Leaves a hello, with the segment's file and the program's end of a pair.
pub(crate) fn leave(mailbox: &OwnedFd, hello: &Hello, fds: [BorrowedFd<'_>; FDS]) -> Result<()> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(
        mailbox,
        &[IoSlice::new(&hello.to_bytes())],
        &mut control,
        SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// A hello with both descriptors. `None`: something else.
pub(crate) fn read(client: BorrowedFd<'_>) -> Result<Option<(Hello, OwnedFd, OwnedFd)>> {
    let mut bytes = [0; HELLO_BYTES];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(
        client,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        flags,
    )?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            fds.extend(more);
        }
    }
    let (file, wake) = (fds.pop(), fds.pop());
    // In the order in which they were sent.
    let (Some(wake), Some(file)) = (file, wake) else {
        return Ok(None);
    };
    Ok(Hello::parse(&bytes[..got.bytes.min(HELLO_BYTES)]).map(|hello| (hello, file, wake)))
}

/// One byte to the process at the other end. If there is no room for it, it has others to read; if it is gone, that is noticed elsewhere.
pub(crate) fn say(there: impl AsFd, byte: u8) {
    let _ = send(there, &[byte], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Wakes the process at the other end.
pub(crate) fn wake(there: impl AsFd) {
    say(there, 0);
}

/// Takes what has come. False: the other end is gone.
pub(crate) fn drain(there: impl AsFd) -> bool {
    let mut room = [0; 256];
    loop {
        match rustix::net::recv(there.as_fd(), &mut room[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return false,
            Ok((_, bytes)) if bytes < room.len() => return true,
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return true,
            Err(_) => return false,
        }
    }
}
