//! Nodes of this host that publish metrics: how their sockets are named, found and asked.
//!
//! Used by `tsumuji top`. The kernel's list of sockets (`/proc/net/unix`) serves as the register: killed processes leave nothing behind. There is one
//! list per network namespace, so nodes of another namespace are not seen.
//!
//! Any user may create abstract sockets with any names, in any number. So a name counts only if its process is of a user who may be asked, or not seen
//! from here, as in a container; and `ask` has the kernel tell the socket's user. Number and time are bounded: a user who makes thousands of names can
//! keep nodes off the list, or show as nodes that do not answer, but answers for none.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tsumuji_proto::NodeId;

use crate::clock::after;

/// Prefix of every socket's name.
const PREFIX: &str = "tsumuji-metrics-";
/// Limit of the kernel's list in bytes, for over half a million sockets. Only matching names are kept.
const LIST_BYTES_MAX: u64 = 64 << 20;
/// Most nodes of one host that are listed.
const NODES_MAX: usize = 4096;
/// Pause between two attempts to connect to a full queue.
const BUSY_PAUSE: Duration = Duration::from_millis(1);
/// Limit of one answer in bytes: a node with 4,000 peers writes less.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Flag of a listening socket in the kernel's list.
const ACCEPTS: u32 = 1 << 16;

/// The socket's name: process, node, and a serial number that makes it unique.
pub(super) fn name_of(pid: u32, node: NodeId, serial: u64) -> String {
    format!("{PREFIX}{pid}-{}-{serial}", node.0)
}

/// A node of this host that can be asked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalNode {
    /// Id of its process.
    pub pid: u32,
    /// Its node id in its job.
    pub node: NodeId,
    serial: u64,
}

/// All nodes of this host that can be asked, at most 4,096: those of this user, or of every user for root.
pub fn local_nodes() -> io::Result<Vec<LocalNode>> {
    let list = std::fs::File::open("/proc/net/unix")?.take(LIST_BYTES_MAX);
    let named: Vec<LocalNode> = named_in(BufReader::with_capacity(64 << 10, list))?
        .into_iter()
        .collect();
    let me = rustix::process::geteuid().as_raw();
    let (mut ours, mut unseen) = (Vec::new(), Vec::new());
    for nodes in named.chunk_by(|one, next| one.pid == next.pid) {
        match user_of(nodes[0].pid) {
            Some(user) if me == 0 || user == me => ours.extend_from_slice(nodes),
            Some(_) => {}
            None => unseen.extend_from_slice(nodes),
        }
    }
    // Names without a process take nobody's place.
    ours.extend(unseen);
    ours.truncate(NODES_MAX);
    Ok(ours)
}

/// All nodes' names in the kernel's list.
fn named_in(mut list: impl BufRead) -> io::Result<BTreeSet<LocalNode>> {
    let mut named = BTreeSet::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        if list.read_until(b'\n', &mut line)? == 0 {
            return Ok(named);
        }
        // A name may hold any bytes; names that are not UTF-8 are not ours.
        named.extend(std::str::from_utf8(&line).ok().and_then(listener_of));
    }
}

/// Parses a line `Num: RefCount Protocol Flags Type St Inode Path`; abstract names follow an `@`.
fn listener_of(line: &str) -> Option<LocalNode> {
    let mut fields = line.split_ascii_whitespace();
    let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
    let node = node_of(fields.nth(3)?)?;
    (flags & ACCEPTS != 0 && fields.next().is_none()).then_some(node)
}

/// The effective user of a process. Its folder in `/proc` is root's if it has more privileges than its user.
fn user_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
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
    /// A node by the parts of its socket's name; whether it exists is known only after asking.
    pub fn new(pid: u32, node: NodeId, serial: u64) -> Self {
        Self { pid, node, serial }
    }

    /// Asks for its metrics and returns them as text, within `timeout` in any case.
    pub fn ask(&self, timeout: Duration) -> io::Result<String> {
        let deadline = after(timeout);
        let name = name_of(self.pid, self.node, self.serial);
        // A node soon drops waiting connections of other users; a stopped process does not.
        let mut stream = loop {
            match connect(&name) {
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline =>
                {
                    std::thread::sleep(BUSY_PAUSE);
                }
                connected => break connected?,
            }
        };
        let peer = rustix::net::sockopt::socket_peercred(stream.as_fd())?;
        let me = rustix::process::geteuid();
        // Any user may use the name of an abstract socket. Root may ask all nodes.
        if peer.uid != me && !me.is_root() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        stream.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
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

/// Connects without blocking: a stopped process accepts nothing, and with a full queue connecting must fail, not wait.
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

    /// Only matching names are taken from the kernel's list, with any other bytes in it.
    #[test]
    fn nodes_are_found_in_the_list() {
        let list = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 31 @tsumuji-metrics-77-2-0\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 32 @tsumuji-metrics-77-2-0\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 30 @\xff\xfe\n\
            0000000000000000: 00000002 00000000 00010000 0001 01    33 @tsumuji-metrics-9-0-1\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 34 @tsumuji-metrics-9-0\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 35 @tsumuji-metrics-9-99999-1\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 36 @tsumuji-metrics-9-0-1-1\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 37 tsumuji-metrics-9-0-1\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 39 @tsumuji-metrics-9-0-1 x\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 38\n";
        let named = named_in(&list[..]).expect("a list in memory");
        let expected = [
            LocalNode::new(9, NodeId(0), 1),
            LocalNode::new(77, NodeId(2), 0),
        ];
        assert!(named.into_iter().eq(expected));
    }

    /// Users of processes are known; a process that is not there has none.
    #[test]
    fn processes_have_users() {
        let me = rustix::process::geteuid().as_raw();
        assert_eq!(user_of(std::process::id()), Some(me));
        assert_eq!(user_of(0), None);
    }
}
