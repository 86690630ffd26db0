//! Nodes of this host that show themselves: how their sockets are named, found and asked.
//!
//! Used by `tsumuji top`. The kernel's list of sockets (`/proc/net/unix`) is the register: nothing is left behind by processes
//! that were killed. It is one per network namespace, so nodes of another namespace are seen from there only.
//!
//! Names of abstract sockets are anybody's, any bytes, and as many as somebody likes. So a name counts only where the kernel says
//! whose socket it is: it is among the descriptors of the process that it names, or `SO_PEERCRED` tells. Time and number are
//! bounded, and users who have many sockets come last.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tsumuji_proto::NodeId;

/// Of every socket's name.
const PREFIX: &str = "tsumuji-metrics-";
/// Of the kernel's list; a host with half a million sockets has more. Only names of ours are kept of it.
const LIST_BYTES_MAX: u64 = 64 << 20;
/// Nodes of one host that are looked at.
const NODES_MAX: usize = 4096;
/// Of the search for owners, which takes microseconds a socket: more than thousands of nodes need, and `top` stays quick.
const SEARCH_MOST: Duration = Duration::from_secs(1);
/// Between two tries at a door that is crowded.
const CROWD_PAUSE: Duration = Duration::from_millis(1);
/// Of one answer: a node with 4,000 peers writes less.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Of a socket's flags in the kernel's list: it listens.
const ACCEPTS: u32 = 1 << 16;

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

/// All that are there now and can be asked: those of this user, of every user where root asks. Our own
/// first, then those of users who have few.
pub fn local_nodes() -> io::Result<Vec<LocalNode>> {
    let deadline = Instant::now() + SEARCH_MOST;
    let list = std::fs::File::open("/proc/net/unix")?.take(LIST_BYTES_MAX);
    let named = named_in(BufReader::with_capacity(64 << 10, list))?;
    let me = rustix::process::geteuid().as_raw();
    Ok(fair(owned(named, me, deadline), me))
}

/// The sockets that bear each node's name, by their numbers in the kernel. More than one: somebody has written lines of his own.
fn named_in(mut list: impl BufRead) -> io::Result<BTreeMap<LocalNode, Vec<u64>>> {
    let mut named: BTreeMap<LocalNode, Vec<u64>> = BTreeMap::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        if list.read_until(b'\n', &mut line)? == 0 {
            return Ok(named);
        }
        // A name may hold any bytes; those that are no text are not ours.
        let text = std::str::from_utf8(&line).ok();
        if let Some((node, inode)) = text.and_then(listener_of) {
            named.entry(node).or_default().push(inode);
        }
    }
}

/// `Num: RefCount Protocol Flags Type St Inode Path`; abstract names after an `@`.
fn listener_of(line: &str) -> Option<(LocalNode, u64)> {
    let mut fields = line.split_ascii_whitespace();
    let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
    let inode = fields.nth(2)?.parse().ok()?;
    let node = node_of(fields.next()?)?;
    (flags & ACCEPTS != 0 && fields.next().is_none()).then_some((node, inode))
}

/// Those that may be asked by `me`, with their users. Whoever's process holds the socket that it is named after is known without a
/// call; the others are called as long as there is time, those first whose numbers are small, as ours are.
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
    // Of a process that may do more than its user, the kernel shows no descriptors.
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

/// `NODES_MAX` of them: our own first, then those of users who have few.
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

/// What the kernel shows of a process whose nodes may be asked.
struct Process {
    user: u32,
    sockets: HashSet<u64>,
}

impl Process {
    /// `None`: it is not there, or not for us to look at.
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
    /// Named by its socket; whether there is such a node, only asking tells.
    pub fn new(pid: u32, node: NodeId, serial: u64) -> Self {
        Self { pid, node, serial }
    }

    /// Whose socket bears its name.
    fn user(&self) -> io::Result<u32> {
        let stream = connect(&name_of(self.pid, self.node, self.serial))?;
        let peer = rustix::net::sockopt::socket_peercred(stream.as_fd())?;
        Ok(peer.uid.as_raw())
    }

    /// Asks for its metrics and returns them as text. Takes `timeout` at most, whatever the other side does.
    pub fn ask(&self, timeout: Duration) -> io::Result<String> {
        let deadline = Instant::now() + timeout;
        let name = name_of(self.pid, self.node, self.serial);
        // A crowd at its door is turned away; a process that is stopped turns nobody away.
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

    fn named(list: &[u8]) -> Vec<(String, Vec<u64>)> {
        let named = named_in(list).expect("a list in memory");
        let name = |node: &LocalNode| name_of(node.pid, node.node, node.serial);
        let pairs = named
            .iter()
            .map(|(node, inodes)| (name(node), inodes.clone()));
        pairs.collect()
    }

    /// Only our names are taken from the kernel's list, whatever bytes others put there.
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

    /// However many sockets one user names, nodes of ourselves and of users with few are looked at.
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

    /// A name that says another process than its own is not proven by it, and counts only where the socket's user is ours.
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
        // Proven by the process, or else by a call.
        let found = vec![(me, node.clone())];
        assert_eq!(owned(one(&[inode]), me, time()), found);
        assert_eq!(owned(one(&[1, inode]), me, time()), found);
        assert_eq!(owned(one(&[1]), me, late), []);
        let other = LocalNode::new(pid, NodeId(8), node.serial);
        let two = BTreeMap::from([(node.clone(), vec![inode]), (other, vec![inode])]);
        assert_eq!(owned(two, me, time()), found);
        // Another user has no business with it.
        assert_eq!(owned(one(&[inode]), me + 1, time()), []);
    }
}
