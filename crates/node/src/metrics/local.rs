//! Nodes of this host that publish metrics: how their sockets are named, found and asked.
//!
//! Used by `tsumuji top`. The kernel's list of sockets (`/proc/net/unix`) serves as the register: killed processes leave nothing behind. There is one
//! list per network namespace, so nodes of another namespace are not seen.
//!
//! Any user may create abstract sockets with any names, in any number. So a name counts only if the kernel confirms the socket's user: the socket is
//! among the descriptors of the process in its name, or `SO_PEERCRED` tells. Time and number are bounded, and users with many sockets come last.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
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
/// Time limit of the search for owners, which takes microseconds a socket: enough for thousands of nodes, and `top` stays quick.
const SEARCH_MOST: Duration = Duration::from_secs(1);
/// Pause between two attempts to connect to a full queue.
const CROWD_PAUSE: Duration = Duration::from_millis(1);
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

/// All nodes of this host that can be asked: those of this user, or of every user for root. Nodes of this user come first, then those of users with
/// few nodes.
pub fn local_nodes() -> io::Result<Vec<LocalNode>> {
    let deadline = Instant::now() + SEARCH_MOST;
    let list = std::fs::File::open("/proc/net/unix")?.take(LIST_BYTES_MAX);
    let named = named_in(BufReader::with_capacity(64 << 10, list))?;
    let me = rustix::process::geteuid().as_raw();
    Ok(fair(owned(named, me, deadline), me))
}

/// Inode numbers of the sockets with each node's name. More than one: a forged name.
fn named_in(mut list: impl BufRead) -> io::Result<BTreeMap<LocalNode, Vec<u64>>> {
    let mut named: BTreeMap<LocalNode, Vec<u64>> = BTreeMap::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        if list.read_until(b'\n', &mut line)? == 0 {
            return Ok(named);
        }
        // A name may hold any bytes; names that are not UTF-8 are not ours.
        let text = std::str::from_utf8(&line).ok();
        if let Some((node, inode)) = text.and_then(listener_of) {
            named.entry(node).or_default().push(inode);
        }
    }
}

/// Parses a line `Num: RefCount Protocol Flags Type St Inode Path`; abstract names follow an `@`.
fn listener_of(line: &str) -> Option<(LocalNode, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
    let inode = fields.nth(2)?.parse().ok()?;
    let node = node_of(fields.next()?)?;
    (flags & ACCEPTS != 0 && fields.next().is_none()).then_some((node, inode))
}

/// Nodes that `me` may ask, with their users. If the named process holds the socket, its user is known without connecting; the others are connected
/// to while there is time, low serial numbers first, as ours are.
fn owned(
    named: BTreeMap<LocalNode, Vec<u64>>,
    me: u32,
    deadline: Instant,
) -> Vec<(u32, LocalNode)> {
    let welcome = |user: u32| me == 0 || user == me;
    let mut owners: HashMap<u64, usize> = HashMap::new();
    for inode in named.values().flatten() {
        *owners.entry(*inode).or_default() += 1;
    }
    let mut found = Vec::new();
    let mut unproven = Vec::new();
    let mut process: Option<(u32, Option<Process>)> = None;
    for (node, inodes) in named {
        if process.as_ref().is_none_or(|(pid, _)| *pid != node.pid) {
            let there = Process::read(node.pid, welcome, deadline);
            process = Some((node.pid, there));
        }
        let there = process.as_ref().and_then(|(_, there)| there.as_ref());
        let proof = there.filter(|there| {
            let alone = inodes.len() == 1 && owners[&inodes[0]] == 1;
            alone && there.sockets.contains(&inodes[0])
        });
        match proof {
            Some(there) => found.push((there.user, node)),
            None => unproven.push(node),
        }
    }
    // The kernel shows no descriptors of a process with more privileges than its user.
    unproven.sort_by_key(|node| node.serial);
    for node in unproven {
        if Instant::now() >= deadline {
            break;
        }
        if let Ok(user) = node.user()
            && welcome(user)
        {
            found.push((user, node));
        }
    }
    found
}

/// At most `NODES_MAX` nodes: our own first, then those of users with few.
fn fair(found: Vec<(u32, LocalNode)>, me: u32) -> Vec<LocalNode> {
    let mut by_user: BTreeMap<u32, Vec<LocalNode>> = BTreeMap::new();
    for (user, node) in found {
        by_user.entry(user).or_default().push(node);
    }
    let mut users: Vec<(u32, Vec<LocalNode>)> = by_user.into_iter().collect();
    users.sort_by_key(|(user, nodes)| (*user != me, nodes.len()));
    let nodes = users.into_iter().flat_map(|(_, nodes)| nodes);
    nodes.take(NODES_MAX).collect()
}

/// Data of a process whose nodes may be asked.
struct Process {
    user: u32,
    sockets: HashSet<u64>,
}

impl Process {
    /// `None`: the process does not exist, or may not be inspected.
    fn read(pid: u32, welcome: impl Fn(u32) -> bool, deadline: Instant) -> Option<Self> {
        let folder = format!("/proc/{pid}");
        let user = std::fs::metadata(&folder).ok()?.uid();
        if !welcome(user) {
            return None;
        }
        let descriptors = std::fs::read_dir(folder + "/fd").ok()?;
        let sockets = descriptors
            .take_while(|_| Instant::now() < deadline)
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            .filter_map(|link| {
                let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
                inode.parse().ok()
            });
        Some(Self {
            user,
            sockets: sockets.collect(),
        })
    }
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

    /// User of the socket with its name.
    fn user(&self) -> io::Result<u32> {
        let stream = connect(&name_of(self.pid, self.node, self.serial))?;
        let peer = rustix::net::sockopt::socket_peercred(stream.as_fd())?;
        Ok(peer.uid.as_raw())
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
                    std::thread::sleep(CROWD_PAUSE);
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

    fn named(list: &[u8]) -> Vec<(String, Vec<u64>)> {
        let named = named_in(list).expect("a list in memory");
        let name = |node: &LocalNode| name_of(node.pid, node.node, node.serial);
        let pairs = named
            .iter()
            .map(|(node, inodes)| (name(node), inodes.clone()));
        pairs.collect()
    }

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
        let expected = [
            ("tsumuji-metrics-9-0-1".to_owned(), vec![33]),
            ("tsumuji-metrics-77-2-0".to_owned(), vec![31]),
        ];
        assert_eq!(named(list), expected);
    }

    /// However many sockets one user names, nodes of this user and of users with few are listed.
    #[test]
    fn a_crowd_leaves_room() {
        let many =
            (0..3 * NODES_MAX as u64).map(|serial| (7, LocalNode::new(1, NodeId(0), serial)));
        let few = (0..8).map(|node| (5 + node % 2 * 4, LocalNode::new(2, NodeId(node as u16), 0)));
        let found: Vec<(u32, LocalNode)> = many.chain(few).collect();
        let kept = fair(found, 9);
        assert_eq!(kept.len(), NODES_MAX);
        let users = [1, 3, 5, 7, 0, 2, 4, 6].map(|node| LocalNode::new(2, NodeId(node), 0));
        assert_eq!(kept[..8], users);
    }

    /// A name with another process than its own is not proven by that, and counts only if the socket's user is ours.
    #[test]
    fn names_are_proven() {
        use std::os::linux::net::SocketAddrExt;
        let me = rustix::process::geteuid().as_raw();
        let pid = std::process::id();
        let node = LocalNode::new(pid, NodeId(7), u64::from(pid) << 20);
        let name = name_of(node.pid, node.node, node.serial);
        let addr = std::os::unix::net::SocketAddr::from_abstract_name(name).expect("a name");
        let socket = std::os::unix::net::UnixListener::bind_addr(&addr).expect("bind");
        let inode = rustix::fs::fstat(&socket).expect("stat").st_ino;
        let late = Instant::now();
        let time = || Instant::now() + SEARCH_MOST;
        let one = |inodes: &[u64]| BTreeMap::from([(node.clone(), inodes.to_vec())]);
        // Proven by the process, or else by connecting.
        let found = vec![(me, node.clone())];
        assert_eq!(owned(one(&[inode]), me, time()), found);
        assert_eq!(owned(one(&[1, inode]), me, time()), found);
        assert_eq!(owned(one(&[1]), me, late), []);
        let other = LocalNode::new(pid, NodeId(8), node.serial);
        let two = BTreeMap::from([(node.clone(), vec![inode]), (other, vec![inode])]);
        assert_eq!(owned(two, me, time()), found);
        // Another user may not ask it.
        assert_eq!(owned(one(&[inode]), me + 1, time()), []);
    }
}
