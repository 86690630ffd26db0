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
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
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

/// The gateway's own mailbox.
#[derive(Debug)]
pub(crate) struct Mailbox {
    socket: OwnedFd,
    /// A descriptor to give up where there is none for a program that connects, so that it can be turned away: else it would wait for an answer, and
    /// the kernel would report it again and again. A socket of its own, for a copy would free no file where the whole system has too many.
    reserve: Option<OwnedFd>,
}

impl Mailbox {
    /// Of that name. An error: another process has it.
    pub(crate) fn open(name: &UnixName) -> Result<Self> {
        let socket = socket()?;
        bind(&socket, &SocketAddrUnix::new_abstract_name(name.name())?)?;
        listen(&socket, BACKLOG)?;
        let reserve = spare();
        Ok(Self { socket, reserve })
    }

    /// The next connection to it, if it is of our user and there is a descriptor for it.
    pub(crate) fn accept(&mut self) -> Result<Option<OwnedFd>> {
        match accept_with(&self.socket, FLAGS) {
            Err(Errno::MFILE | Errno::NFILE) if self.reserve.is_some() => {
                self.reserve = None;
                let turned_away = accept_with(&self.socket, FLAGS).map(drop);
                self.reserve = spare();
                turned_away.map(|()| None)
            }
            accepted => {
                if self.reserve.is_none() {
                    self.reserve = spare();
                }
                Ok(Some(accepted?).filter(is_ours))
            }
        }
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn spare() -> Option<OwnedFd> {
    socket().ok()
}

/// Lets the process have as many descriptors as it may: each stream takes some, and the usual limit is far below the streams that there may be.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // Refused: fewer streams, then.
    let _ = setrlimit(Resource::Nofile, raised);
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::process::Command;

    use rustix::net::recv;
    use tsumuji_streams::address::{self, Address};

    use super::*;

    /// Says that this is the process whose limit may be changed.
    const CHILD: &str = "TSUMUJI_TEST_OF_DESCRIPTORS";
    const CALLERS: usize = 3;

    /// No more descriptors than there are now.
    fn allow_no_more() {
        let lowest = socket().expect("a descriptor").as_raw_fd();
        let limit = Rlimit {
            current: Some(lowest as u64),
            ..getrlimit(Resource::Nofile)
        };
        setrlimit(Resource::Nofile, limit).expect("a lower limit");
    }

    /// Programs that connect to a gateway without free descriptors are turned away at once, and it serves others when it has some.
    #[test]
    fn callers_are_turned_away_without_descriptors() {
        if std::env::var_os(CHILD).is_none() {
            let name = "mailbox::tests::callers_are_turned_away_without_descriptors";
            let output = Command::new(std::env::current_exe().expect("own path"))
                .args(["--exact", name])
                .env(CHILD, "1")
                .output()
                .expect("a process");
            let told = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && told.contains("1 passed"),
                "{told}"
            );
            return;
        }
        let own = Address {
            ip: [0xfd; 16],
            port: std::process::id() as u16,
        };
        let name = address::mailbox(&own);
        let mut mailbox = Mailbox::open(&name).expect("a mailbox");
        let callers = [(); CALLERS].map(|()| reach(&name).expect("a caller"));
        allow_no_more();
        for caller in &callers {
            assert!(matches!(mailbox.accept(), Ok(None)));
            let end = recv(caller, &mut [0; 1][..], RecvFlags::DONTWAIT);
            assert!(matches!(end, Ok((_, 0))), "{end:?}");
        }
        assert_eq!(mailbox.accept().err(), Some(Errno::AGAIN));
        raise_descriptor_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        let _caller = reach(&name).expect("a caller");
        assert!(matches!(mailbox.accept(), Ok(Some(_))));
    }
}
