//! Nodes of this host that show themselves: how their sockets are named, found and asked.
//!
//! Used by `tsumuji top`. The kernel's list of sockets (`/proc/net/unix`) is the register: nothing is left behind by processes
//! that were killed. It is one per network namespace, so nodes of another namespace are seen from there only.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tsumuji_proto::NodeId;

/// Of every socket's name.
const PREFIX: &str = "tsumuji-metrics-";
/// Of the kernel's list; a host with half a million sockets has more.
const LIST_BYTES_MAX: u64 = 64 << 20;
/// Nodes of one host that are looked at.
const NODES_MAX: usize = 4096;
/// Of one answer: a node with 4,000 peers writes less.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// The socket's name: process, node, and a number that makes it the only one.
pub(super) fn name_of(pid: u32, node: NodeId, serial: u64) -> String {
    format!("{PREFIX}{pid}-{}-{serial}", node.0)
}

/// The process at the other end is of the same user, or root's.
pub(super) fn is_friend(connection: BorrowedFd<'_>) -> bool {
    rustix::net::sockopt::socket_peercred(connection)
        .is_ok_and(|peer| peer.uid == rustix::process::geteuid() || peer.uid.is_root())
}

/// A node of this host that can be asked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalNode {
    /// Its process.
    pub pid: u32,
    /// Its number in its job.
    pub node: NodeId,
    serial: u64,
}

/// All that are there now, in order of their processes. Of other users, too: those do not answer.
pub fn local_nodes() -> io::Result<Vec<LocalNode>> {
    let mut list = String::new();
    std::fs::File::open("/proc/net/unix")?
        .take(LIST_BYTES_MAX)
        .read_to_string(&mut list)?;
    Ok(nodes_of(&list))
}

/// A socket's name is the last word of its line, abstract ones after an `@`; connections of a listener bear its name, too.
fn nodes_of(list: &str) -> Vec<LocalNode> {
    let names = list.lines().filter_map(|line| line.rsplit(' ').next());
    let mut nodes: Vec<LocalNode> = names.filter_map(node_of).collect();
    nodes.sort();
    nodes.dedup();
    nodes.truncate(NODES_MAX);
    nodes
}

fn node_of(name: &str) -> Option<LocalNode> {
    let mut parts = name.strip_prefix('@')?.strip_prefix(PREFIX)?.split('-');
    let node = LocalNode {
        pid: parts.next()?.parse().ok()?,
        node: NodeId(parts.next()?.parse().ok()?),
        serial: parts.next()?.parse().ok()?,
    };
    parts.next().is_none().then_some(node)
}

impl LocalNode {
    /// Named by its socket; whether there is such a node, only asking tells.
    pub fn new(pid: u32, node: NodeId, serial: u64) -> Self {
        Self { pid, node, serial }
    }

    /// Asks for its metrics and returns them as text. Takes `timeout` at most, whatever the other side does.
    pub fn ask(&self, timeout: Duration) -> io::Result<String> {
        let deadline = Instant::now() + timeout;
        let name = name_of(self.pid, self.node, self.serial);
        let mut stream = connect(&name)?;
        let peer = rustix::net::sockopt::socket_peercred(stream.as_fd())?;
        let me = rustix::process::geteuid();
        // Names of abstract sockets are anybody's. Root may look at everyone's nodes.
        if peer.uid != me && !me.is_root() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        stream.set_write_timeout(Some(timeout))?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut answer = Vec::new();
        let mut chunk = vec![0; 64 << 10];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || answer.len() > ANSWER_BYTES_MAX {
                return Err(io::ErrorKind::TimedOut.into());
            }
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut chunk) {
                Ok(0) => break,
                Ok(bytes) => answer.extend_from_slice(&chunk[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let answer = String::from_utf8(answer).map_err(io::Error::other)?;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.0 200 ") => Ok(body.to_owned()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// A process that is stopped accepts nobody: where its queue is full, connecting must fail, not wait.
fn connect(name: &str) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only our names are taken from the kernel's list, each once.
    #[test]
    fn nodes_are_found_in_the_list() {
        let list = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 31 @tsumuji-metrics-77-2-0\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 32 @tsumuji-metrics-77-2-0\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 33 @tsumuji-metrics-9-0-1\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 34 @tsumuji-metrics-9-0\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 35 @tsumuji-metrics-9-99999-1\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 36 @tsumuji-metrics-9-0-1-1\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 37 tsumuji-metrics-9-0-1\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 38\n";
        let found: Vec<String> = nodes_of(list)
            .iter()
            .map(|node| name_of(node.pid, node.node, node.serial))
            .collect();
        assert_eq!(found, ["tsumuji-metrics-9-0-1", "tsumuji-metrics-77-2-0"]);
    }
}
