//! Rendezvous of the processes of one host: an abstract UNIX packet socket, and its few messages.
//!
//! Used by `keeper` (the launcher's side) and `worker`. A worker says hello with its address; once all have, the launcher sends each the whole table,
//! and the shared-memory descriptor for the link `shm`. A worker that fails reports why. The connection stays open for the worker's life.
//!
//! Any process of the same user may send here: sizes are bounded, nothing panics. Processes of other users (except root) are refused by their
//! credentials from the kernel (`SO_PEERCRED`), before anything is read.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};
use tsumuji_link::LinkAddr;
use tsumuji_link::ether::MacAddr;
use tsumuji_proto::NodeId;

use super::neighbours::Neighbours;
use crate::door::is_trusted;
use crate::membership::{Member, Membership};
use crate::random::random_u64;

/// Protocol version; a worker of another version is refused with a message that says so.
pub(crate) const VERSION: u32 = 6;

/// Processes of one launch, the launcher included: a table of them fits one packet with room to spare.
pub(crate) const MAX_NODES: usize = 1024;

/// Largest packet either side reads: a table of `MAX_NODES` entries of about 90 bytes.
const MAX_PACKET_BYTES: usize = 128 * 1024;

/// Connections waiting to be accepted: every worker may call at once.
const BACKLOG: i32 = MAX_NODES as i32;

/// Message of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum FromWorker {
    /// It runs, and frames reach it at `addr` (`None` for shared memory: there the node's number is its address).
    Hello {
        version: u32,
        node: u16,
        pid: u32,
        addr: Option<Address>,
    },
    /// It cannot go on.
    Failed { node: u16, error: String },
}

/// Message of the launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum FromLauncher {
    /// All have reported: every node in order of its id.
    Table { members: Vec<TableEntry> },
    /// This worker may not join.
    Refused { reason: String },
}

/// One node of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableEntry {
    pub(crate) name: String,
    pub(crate) addr: Option<Address>,
    /// Number of its host: nodes with the same number meet in shared memory. `None`: it shares its host with none, or the launch's link joins all.
    pub(crate) host: Option<u16>,
}

/// Address of a node on a link other than shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Address {
    Inet(SocketAddr),
    Ether([u8; 6]),
}

impl Address {
    /// `None`: peers need no address (shared memory).
    pub(crate) fn of(addr: LinkAddr) -> Option<Self> {
        match addr {
            LinkAddr::Inet(addr) => Some(Self::Inet(addr)),
            LinkAddr::Ether(mac) => Some(Self::Ether(mac.0)),
            _ => None,
        }
    }

    pub(crate) fn link_addr(self) -> LinkAddr {
        match self {
            Self::Inet(addr) => LinkAddr::Inet(addr),
            Self::Ether(bytes) => LinkAddr::Ether(MacAddr(bytes)),
        }
    }
}

/// The members in the table, and those of this host; a node without address is reached over the launch's shared memory.
pub(super) fn membership(me: NodeId, table: Vec<TableEntry>) -> (Membership, Option<Neighbours>) {
    let hosts: Vec<_> = table.iter().map(|entry| entry.host).collect();
    let member = |(id, entry): (u16, TableEntry)| Member {
        id: NodeId(id),
        name: entry.name,
        addr: entry.addr.map_or(LinkAddr::Local(id), Address::link_addr),
    };
    let mut membership = Membership {
        hosts,
        ..Membership::of(me, (0..=u16::MAX).zip(table).map(member).collect())
    };
    let near = Neighbours::take_over(&mut membership);
    (membership, near)
}

/// A name that other processes cannot guess.
pub(crate) fn random_name() -> io::Result<String> {
    Ok(format!(
        "tsumuji-{:016x}{:016x}",
        random_u64()?,
        random_u64()?
    ))
}

/// Opens the launcher's side under `name`.
pub(crate) fn listen(name: &str) -> io::Result<OwnedFd> {
    let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    rustix::net::bind(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Opens a worker's side.
pub(crate) fn connect(name: &str) -> io::Result<OwnedFd> {
    let socket = socket(SocketFlags::CLOEXEC)?;
    rustix::net::connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    if !is_trusted(socket.as_fd()) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the launcher belongs to another user",
        ));
    }
    Ok(socket)
}

fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// Sends one message, and a descriptor with it if given. Never waits.
pub(crate) fn send(
    connection: BorrowedFd<'_>,
    message: &impl Serialize,
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("no room for the descriptor"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(connection, &[IoSlice::new(&bytes)], &mut control, flags)?;
    Ok(())
}

/// Result of reading from a connection.
#[derive(Debug)]
pub(crate) enum Received<M> {
    /// A message, and the descriptor that came with it.
    Message(M, Option<OwnedFd>),
    /// A packet that is too long or not understood.
    Garbage,
    /// No packet waits.
    Nothing,
    /// The other side is gone.
    Closed,
}

/// Reads one packet if there is one. Never waits.
pub(crate) fn receive<M: for<'de> Deserialize<'de>>(
    connection: BorrowedFd<'_>,
) -> io::Result<Received<M>> {
    let mut packet = vec![0_u8; MAX_PACKET_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let result = rustix::net::recvmsg(
        connection,
        &mut [IoSliceMut::new(&mut packet)],
        &mut control,
        flags,
    );
    let header = match result {
        Ok(header) => header,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(Received::Nothing),
        Err(rustix::io::Errno::CONNRESET) => return Ok(Received::Closed),
        Err(error) => return Err(error.into()),
    };
    let mut fd = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            fd = fds.last(); // more than one never fits `space`; each taken here is closed when dropped
        }
    }
    if header.bytes == 0 {
        return Ok(Received::Closed);
    }
    if header
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
    {
        return Ok(Received::Garbage);
    }
    Ok(match serde_json::from_slice(&packet[..header.bytes]) {
        Ok(message) => Received::Message(message, fd),
        Err(_) => Received::Garbage,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door::Door;

    fn pair() -> (OwnedFd, OwnedFd) {
        let name = random_name().expect("random");
        let listener = listen(&name).expect("listen");
        let worker = connect(&name).expect("connect");
        let launcher = Door::new(listener).callers(1).pop().expect("one waits");
        (worker, launcher)
    }

    /// A message and a descriptor arrive as sent, the descriptor naming the same file.
    #[test]
    fn message_and_descriptor_pass() {
        let (worker, launcher) = pair();
        let table = FromLauncher::Table {
            members: vec![TableEntry {
                name: "worker 0".into(),
                addr: None,
                host: None,
            }],
        };
        let (reader, writer) = rustix::pipe::pipe().expect("pipe");
        send(launcher.as_fd(), &table, Some(writer.as_fd())).expect("send");
        let Received::Message(message, Some(fd)) =
            receive::<FromLauncher>(worker.as_fd()).expect("receive")
        else {
            panic!("no message with a descriptor")
        };
        assert_eq!(message, table);
        rustix::io::write(&fd, b"x").expect("write through the passed descriptor");
        let mut byte = [0_u8; 1];
        assert_eq!(rustix::io::read(&reader, &mut byte).expect("read"), 1);
        assert_eq!(&byte, b"x");
    }

    /// Bytes that are no message, and packets that are too long, are rejected as garbage and do no harm.
    #[test]
    fn garbage_is_refused() {
        let (worker, launcher) = pair();
        let long = vec![b'['; MAX_PACKET_BYTES + 1];
        for bytes in [
            &b"{"[..],
            b"null",
            b"\xff\xfe",
            b"{\"kind\":\"hello\",\"node\":99999999}",
            &long,
        ] {
            rustix::net::send(&worker, bytes, SendFlags::empty()).expect("send");
            assert!(
                matches!(
                    receive::<FromWorker>(launcher.as_fd()),
                    Ok(Received::Garbage)
                ),
                "{:?}",
                &bytes[..bytes.len().min(40)]
            );
        }
        // Deep nesting must not exhaust the stack either.
        let deep = vec![b'['; 100_000];
        rustix::net::send(&worker, &deep, SendFlags::empty()).expect("send");
        assert!(matches!(
            receive::<FromWorker>(launcher.as_fd()),
            Ok(Received::Garbage)
        ));
        let hello = FromWorker::Hello {
            version: VERSION,
            node: 3,
            pid: 7,
            addr: None,
        };
        send(worker.as_fd(), &hello, None).expect("send");
        assert!(
            matches!(receive::<FromWorker>(launcher.as_fd()), Ok(Received::Message(m, None)) if m == hello)
        );
        assert!(matches!(
            receive::<FromWorker>(launcher.as_fd()),
            Ok(Received::Nothing)
        ));
        drop(worker);
        assert!(matches!(
            receive::<FromWorker>(launcher.as_fd()),
            Ok(Received::Closed)
        ));
    }

    /// The largest table fits one packet, with long names.
    #[test]
    fn largest_table_fits() {
        let entry = TableEntry {
            name: "a-rather-long-name 1023".into(),
            addr: Some(Address::Inet(
                "[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:65535"
                    .parse()
                    .expect("addr"),
            )),
            host: Some(1023),
        };
        let table = FromLauncher::Table {
            members: vec![entry; MAX_NODES],
        };
        let (worker, launcher) = pair();
        send(launcher.as_fd(), &table, None).expect("send");
        assert!(
            matches!(receive::<FromLauncher>(worker.as_fd()), Ok(Received::Message(m, None)) if m == table)
        );
    }
}
