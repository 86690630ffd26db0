//! The table of members as it is now: processes join a running cluster and come back at other addresses.
//!
//! Part of `channel`, which passes in what arrives, and calls `settle` with the means to answer. Node 0 admits: it gives a process that asks an id, and
//! tells all others. Each entry of the table has a version, 0 as when the node opened; of two versions the higher one counts. Nodes that meet tell each
//! other all entries of higher versions, so that one that was away learns what it missed.
//!
//! Invariants: ids are dense from 0; an entry whose address is not known yet has `LinkAddr::Broadcast`, and only in a node that is joining.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tsumuji_link::LinkAddr;
use tsumuji_link::ether::MacAddr;
use tsumuji_proto::{Event, NodeId, Pace};
use tsumuji_wire::{Admission, Join};

use super::control;
use super::outbox::{Outbox, Way};
use crate::error::presentable;
use crate::membership::{Member, Membership};
use crate::peers::Peers;

/// Most processes that wait for an answer; others ask again.
const ASKED_MAX: usize = 64;
/// After it has opened, node 0 admits nobody for this long: meanwhile the others tell it whom it admitted before it was started again.
const LEARNS_FOR: Duration = Duration::from_secs(1);
/// Ids below this may be given.
const IDS: usize = u16::MAX as usize;
/// Longest name of a member, in bytes.
pub(crate) const NAME_BYTES: usize = tsumuji_wire::join::JOIN_TEXT_BYTES;

/// Kinds of control messages: the first byte, beside those of `control` and `statistics`.
const ENTRY: u8 = 5;
const TABLE: u8 = 6;
/// Bytes of an entry before its name.
const ENTRY_BYTES: usize = 28;

/// One line of the table, as nodes tell it each other.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    id: NodeId,
    version: u32,
    addr: LinkAddr,
    name: String,
}

/// A control message about the table.
#[derive(Debug, Clone, PartialEq, Eq)]
enum News {
    Entry(Entry),
    /// All entries were told; there are so many.
    Table(u16),
}

/// A process that asks to become a member.
#[derive(Debug)]
struct Asked {
    from: LinkAddr,
    id: Option<NodeId>,
    nonce: u64,
    name: String,
}

/// See the head of this module.
#[derive(Debug)]
pub(crate) struct Members {
    membership: Arc<Membership>,
    versions: Vec<u32>,
    /// This node answers those that ask.
    admits: bool,
    /// Pace of messages to members.
    pace: Pace,
    /// The id of a member that joined and died is given to another one after this time.
    dead_after: Duration,
    opened: Instant,
    asked: VecDeque<Asked>,
    heard: Vec<(NodeId, News)>,
    /// Peers that were met and not yet told what they may have missed.
    met: Vec<NodeId>,
    /// Those that were admitted, and know no other member before they are told.
    admitted: BTreeSet<NodeId>,
    /// Members with a new address whose session with the old one has not ended yet.
    moved: BTreeSet<NodeId>,
    /// Number of members that there were when this node opened: their ids are theirs.
    first: usize,
    dead_since: BTreeMap<NodeId, Instant>,
    /// Number of members, as the admitting node stated it.
    stated: Option<u16>,
    /// `settle` has something to do.
    is_due: bool,
}

impl Members {
    pub(crate) fn new(
        membership: Arc<Membership>,
        admits: bool,
        (pace, dead_after): (Pace, Duration),
    ) -> Self {
        Self {
            versions: vec![0; membership.members.len()],
            first: membership.members.len(),
            membership,
            admits,
            pace,
            dead_after,
            opened: Instant::now(),
            asked: VecDeque::new(),
            heard: Vec::new(),
            met: Vec::new(),
            admitted: BTreeSet::new(),
            moved: BTreeSet::new(),
            dead_since: BTreeMap::new(),
            stated: None,
            is_due: false,
        }
    }

    pub(crate) fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    pub(crate) fn me(&self) -> NodeId {
        self.membership.me
    }

    pub(crate) fn len(&self) -> usize {
        self.membership.members.len()
    }

    /// Whether all members are known that the admitting node knows.
    pub(crate) fn is_complete(&self) -> bool {
        let known = |member: &Member| member.addr != LinkAddr::Broadcast;
        self.stated.is_some_and(|nodes| self.len() >= nodes.into())
            && self.membership.members.iter().all(known)
    }

    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.is_due
    }

    /// A process without an id asks to become a member.
    #[cold]
    pub(crate) fn ask(&mut self, from: LinkAddr, join: &Join<'_>) {
        if self.asked.len() < ASKED_MAX {
            self.asked.push_back(Asked {
                from,
                id: join.id,
                nonce: join.nonce,
                name: presentable(&String::from_utf8_lossy(join.name)),
            });
            self.is_due = true;
        }
    }

    /// Takes a control message about the table; `false`: it is something else.
    pub(crate) fn hear(&mut self, from: NodeId, bytes: &[u8]) -> bool {
        let Some(news) = News::parse(bytes) else {
            return false;
        };
        self.heard.push((from, news));
        self.is_due = true;
        true
    }

    /// Returns whether the event is the end of a session with a member that is met at another address already.
    #[cold]
    pub(crate) fn note(&mut self, event: &Event) -> bool {
        match event {
            Event::PeerUp { peer, .. } => {
                self.dead_since.remove(peer);
                self.met.push(*peer);
                self.is_due = true;
                false
            }
            Event::PeerDead { peer, .. } => {
                self.dead_since.insert(*peer, Instant::now());
                self.moved.remove(peer)
            }
            _ => false,
        }
    }

    /// Learns, answers and tells; returns how much that was.
    #[cold]
    pub(crate) fn settle(
        &mut self,
        way: &mut impl Way,
        peers: &mut Peers,
        outbox: &mut Outbox,
    ) -> usize {
        self.is_due = false;
        let mut done = 0;
        for (from, news) in std::mem::take(&mut self.heard) {
            done += 1;
            match news {
                News::Table(nodes) => self.stated = Some(nodes),
                News::Entry(entry) => {
                    // What node 0 missed while it was away, others may have missed, too.
                    if self.learn(&entry, way, peers, outbox) && self.admits {
                        self.tell_all(&entry, Some(from), peers, outbox);
                    }
                }
            }
        }
        for asked in std::mem::take(&mut self.asked) {
            done += 1;
            if let Some(answer) = self.admit(&asked, way, peers, outbox) {
                self.admitted.extend(answer.as_ref().ok());
                let admission = Admission {
                    source: self.me(),
                    nonce: asked.nonce,
                    answer: answer.as_ref().copied().map_err(String::as_bytes),
                };
                let mut frame = [0; tsumuji_wire::join::JOIN_HEADER_BYTES + NAME_BYTES];
                if let Some(bytes) = admission.write(&mut frame) {
                    way.send_frame(asked.from, &frame[..bytes]);
                }
            }
        }
        for peer in std::mem::take(&mut self.met) {
            done += 1;
            self.tell_missed(peer, outbox);
        }
        done
    }

    /// A member joins, or has another address or name from now on; tells all others. `false`: it cannot be.
    pub(crate) fn set(
        &mut self,
        member: Member,
        way: &mut impl Way,
        peers: &mut Peers,
        outbox: &mut Outbox,
    ) -> bool {
        let before = self.versions.get(usize::from(member.id.0));
        let entry = Entry {
            id: member.id,
            version: before.map_or(1, |version| version.saturating_add(1)),
            addr: member.addr,
            name: cut(&member.name).to_owned(),
        };
        let is_new = self.learn(&entry, way, peers, outbox);
        if is_new {
            self.tell_all(&entry, None, peers, outbox);
        }
        is_new
    }

    /// Decides about a process that asks. `None`: it is not answered, and will ask again.
    fn admit(
        &mut self,
        asked: &Asked,
        way: &mut impl Way,
        peers: &mut Peers,
        outbox: &mut Outbox,
    ) -> Option<Result<NodeId, String>> {
        let me = self.me();
        if me != NodeId(0) || !self.admits {
            return Some(Err(if me == NodeId(0) {
                "it admits nobody: start it with --admit or TSUMUJI_ADMIT=1".to_owned()
            } else {
                format!("it is {me}: node 0 admits")
            }));
        }
        if self.len() > 1 && self.opened.elapsed() < LEARNS_FOR {
            return None;
        }
        let known = |member: &&Member| {
            member.addr == asked.from || self.membership.way(member) == asked.from
        };
        if let Some(member) = self.membership.members.iter().find(known) {
            // It did not hear the answer, or is a new process in the place of another.
            let id = member.id;
            return Some(match asked.id {
                Some(other) if other != id => Err(format!("{id} has this address")),
                _ if id == me => Err("it has this address itself".to_owned()),
                _ => Ok(id),
            });
        }
        let id = match asked.id {
            Some(id) if id == me || usize::from(id.0) >= self.len() => {
                return Some(Err(format!(
                    "no other process was {id}; there are {}",
                    self.len()
                )));
            }
            Some(id) if peers.is_up(id) => {
                return Some(Err(format!("{id} is not dead, at another address")));
            }
            Some(id) => id,
            None => match self.free_id(peers) {
                Some(id) => id,
                None => return Some(Err(format!("all {IDS} ids are used"))),
            },
        };
        let member = Member {
            id,
            name: asked.name.clone(),
            addr: asked.from,
        };
        tracing::info!(node = id.0, name = %member.name, addr = %member.addr, "joins");
        let is_set = self.set(member, way, peers, outbox);
        Some(if is_set {
            Ok(id)
        } else {
            Err("no member can have this address".to_owned())
        })
    }

    /// The id of a member that joined and has been dead for long, or a new one.
    fn free_id(&self, peers: &Peers) -> Option<NodeId> {
        let is_free = |id: &NodeId| {
            self.versions[usize::from(id.0)] > 0
                && peers.is_dead(*id)
                && (self.dead_since.get(id)).is_some_and(|at| at.elapsed() >= self.dead_after)
        };
        let next = u16::try_from(self.len()).ok()?;
        let fresh = (self.len() < IDS).then_some(NodeId(next));
        let first = u16::try_from(self.first).ok()?;
        (first..next).map(NodeId).find(is_free).or(fresh)
    }

    /// Takes an entry over; `false`: it is not news.
    fn learn(
        &mut self,
        entry: &Entry,
        way: &mut impl Way,
        peers: &mut Peers,
        outbox: &mut Outbox,
    ) -> bool {
        let index = usize::from(entry.id.0);
        if !self.is_plausible(entry) {
            return false;
        }
        let Some(before) = self.membership.members.get(index) else {
            return index == self.len() && index < IDS && {
                self.versions.push(0);
                let membership = Arc::make_mut(&mut self.membership);
                membership.members.push(Member {
                    id: entry.id,
                    name: String::new(),
                    addr: LinkAddr::Broadcast,
                });
                if !membership.hosts.is_empty() {
                    membership.hosts.push(None);
                }
                peers.set_nodes(index + 1);
                outbox.set_nodes(index + 1);
                self.learn(entry, way, peers, outbox)
            };
        };
        let is_unknown = before.addr == LinkAddr::Broadcast;
        let is_nameless = before.name.is_empty() && !entry.name.is_empty();
        if entry.version <= self.versions[index] && !is_unknown {
            if is_nameless {
                // The node that admitted this one, reached at the address that it asked.
                Arc::make_mut(&mut self.membership).members[index].name = entry.name.clone();
            }
            return false;
        }
        let moves = is_unknown || self.membership.way(before) != entry.addr;
        let member = Member {
            id: entry.id,
            name: entry.name.clone(),
            addr: entry.addr,
        };
        self.versions[index] = entry.version;
        if member.id == self.membership.me {
            return true; // its own address it knows better
        }
        let membership = Arc::make_mut(&mut self.membership);
        if moves {
            if !is_unknown && !peers.is_dead(member.id) {
                self.moved.insert(member.id);
            }
            membership.near.remove(&member.id);
            way.meet(&member, member.addr, self.pace);
            if peers.is_lost(member.id) {
                peers.reconnect(member.id);
            }
        }
        membership.members[index] = member;
        true
    }

    /// Whether this node's link may reach the address, and no other member has it.
    fn is_plausible(&self, entry: &Entry) -> bool {
        let me = usize::from(self.me().0);
        let own = self.membership.members.get(me).map(|me| me.addr);
        let mut others = self.membership.members.iter();
        own.is_some_and(|own| are_alike(own, entry.addr))
            && !others.any(|member| member.id != entry.id && member.addr == entry.addr)
    }

    /// Tells a peer what it may have missed: all that changed, and everything if it was admitted.
    fn tell_missed(&self, peer: NodeId, outbox: &mut Outbox) {
        let version = |id: NodeId| self.versions[usize::from(id.0)];
        let joined = self.admitted.contains(&peer);
        for member in &self.membership.members {
            if (joined || version(member.id) > 0) && member.addr != LinkAddr::Broadcast {
                let entry = Entry {
                    id: member.id,
                    version: version(member.id),
                    addr: member.addr,
                    name: cut(&member.name).to_owned(),
                };
                put(News::Entry(entry), peer, outbox);
            }
        }
        if joined {
            put(News::Table(self.len() as u16), peer, outbox);
        }
    }

    /// Tells an entry to all peers that are up, except the one it came from.
    fn tell_all(&self, entry: &Entry, from: Option<NodeId>, peers: &Peers, outbox: &mut Outbox) {
        for member in &self.membership.members {
            if peers.is_up(member.id) && Some(member.id) != from {
                put(News::Entry(entry.clone()), member.id, outbox);
            }
        }
    }
}

/// As much of a name as is told.
pub(crate) fn cut(name: &str) -> &str {
    let mut end = name.len().min(NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

/// Whether both are addresses of one kind of link, and frames can be sent to the second.
fn are_alike(own: LinkAddr, addr: LinkAddr) -> bool {
    match (own, addr) {
        (LinkAddr::Local(_), LinkAddr::Local(_)) => true,
        (LinkAddr::Ether(_), LinkAddr::Ether(mac)) => mac.0[0] & 1 == 0, // of one station
        (LinkAddr::Inet(own), LinkAddr::Inet(addr)) => {
            let ip = addr.ip();
            own.is_ipv4() == addr.is_ipv4()
                && addr.port() != 0
                && !ip.is_unspecified()
                && !ip.is_multicast()
        }
        _ => false,
    }
}

fn put(news: News, to: NodeId, outbox: &mut Outbox) {
    outbox.put_control(to, control::CHANNEL, &news.to_bytes());
}

impl News {
    /// Entry: 0 kind · 1 zero · 2 id · 4 version · 8 kind of address · 9 zero · 10 address (18) · 28 name. Table: 0 kind · 1 zero · 2 number of nodes.
    fn to_bytes(&self) -> Vec<u8> {
        let entry = match self {
            Self::Table(nodes) => {
                let [low, high] = nodes.to_le_bytes();
                return vec![TABLE, 0, low, high];
            }
            Self::Entry(entry) => entry,
        };
        let mut bytes = vec![ENTRY, 0];
        bytes.extend(entry.id.0.to_le_bytes());
        bytes.extend(entry.version.to_le_bytes());
        let (kind, addr) = match entry.addr {
            LinkAddr::Local(index) => (0, index.to_le_bytes().to_vec()),
            LinkAddr::Inet(addr) => {
                let (kind, ip) = match addr.ip() {
                    IpAddr::V4(ip) => (1, ip.octets().to_vec()),
                    IpAddr::V6(ip) => (2, ip.octets().to_vec()),
                };
                (kind, [&ip[..], &addr.port().to_le_bytes()].concat())
            }
            LinkAddr::Ether(mac) => (3, mac.0.to_vec()),
            _ => (u8::MAX, Vec::new()), // no member's
        };
        bytes.extend([kind, 0]);
        bytes.extend(addr);
        bytes.resize(ENTRY_BYTES, 0);
        bytes.extend(entry.name.as_bytes());
        bytes
    }

    /// `None`: it is none, or of a later version.
    fn parse(bytes: &[u8]) -> Option<Self> {
        if let [TABLE, 0, low, high] = *bytes {
            return Some(Self::Table(u16::from_le_bytes([low, high])));
        }
        let (head, name) = bytes.split_first_chunk::<ENTRY_BYTES>()?;
        let [ENTRY, 0, i0, i1, v0, v1, v2, v3, kind, 0, addr @ ..] = *head else {
            return None;
        };
        let port = |at: usize| u16::from_le_bytes([addr[at], addr[at + 1]]);
        let (addr, length) = match kind {
            0 => (LinkAddr::Local(port(0)), 2),
            1 => {
                let ip: [u8; 4] = addr[..4].try_into().ok()?;
                (LinkAddr::Inet(SocketAddr::new(ip.into(), port(4))), 6)
            }
            2 => {
                let ip: [u8; 16] = addr[..16].try_into().ok()?;
                (LinkAddr::Inet(SocketAddr::new(ip.into(), port(16))), 18)
            }
            3 => (LinkAddr::Ether(MacAddr(addr[..6].try_into().ok()?)), 6),
            _ => return None,
        };
        let is_sound =
            name.len() <= NAME_BYTES && head[10 + length..].iter().all(|&byte| byte == 0);
        let name = std::str::from_utf8(name).ok().filter(|_| is_sound)?;
        Some(Self::Entry(Entry {
            id: NodeId(u16::from_le_bytes([i0, i1])),
            version: u32::from_le_bytes([v0, v1, v2, v3]),
            addr,
            name: name.to_owned(),
        }))
    }
}

/// Whether the bytes are news of the table, and read as they would be written: for fuzzing.
pub fn is_understood(bytes: &[u8]) -> bool {
    let news = News::parse(bytes);
    if let Some(news) = &news {
        assert_eq!(news.to_bytes(), bytes, "{news:?}");
    }
    news.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u16, version: u32, addr: &str) -> Entry {
        let inet = addr.parse().map(LinkAddr::Inet);
        Entry {
            id: NodeId(id),
            version,
            addr: inet.unwrap_or_else(|_| match addr.parse() {
                Ok(mac) => LinkAddr::Ether(mac),
                Err(_) => LinkAddr::Local(addr.parse().expect(addr)),
            }),
            name: format!("näme {id}"),
        }
    }

    /// What is told is read back; anything cut or changed in length is refused.
    #[test]
    fn news_read_as_written() {
        for addr in [
            "7",
            "10.0.0.1:7000",
            "[2001:db8::1]:65535",
            "02:00:00:00:00:09",
        ] {
            let news = News::Entry(entry(300, 1 << 30, addr));
            let bytes = news.to_bytes();
            assert!(is_understood(&bytes), "{addr}");
            assert_eq!(News::parse(&bytes), Some(news));
            for cut in 0..ENTRY_BYTES {
                assert_eq!(News::parse(&bytes[..cut]), None);
            }
            let long = [&bytes[..ENTRY_BYTES], &[b'a'; NAME_BYTES + 1]].concat();
            assert_eq!(News::parse(&long), None);
        }
        assert!(is_understood(&News::Table(65_535).to_bytes()));
        for other in [
            &[][..],
            &[ENTRY],
            &[TABLE, 0, 1],
            &[TABLE, 1, 0, 0],
            &[9; 40],
        ] {
            assert_eq!(News::parse(other), None);
        }
    }

    /// Addresses that this node's link cannot send to, and those that another member has, are not taken over.
    #[test]
    fn implausible_entries_are_ignored() {
        let addrs = ["127.0.0.1:1", "127.0.0.1:2"].map(|addr| addr.parse().expect(addr));
        let membership = Arc::new(Membership::inet(NodeId(0), &addrs));
        let options = (Pace::Free, Duration::from_secs(1));
        let members = Members::new(membership, true, options);
        for (addr, id, plausible) in [
            ("10.0.0.1:7000", 2, true),
            ("127.0.0.1:2", 1, true),
            ("127.0.0.1:2", 2, false),
            ("10.0.0.1:0", 2, false),
            ("0.0.0.0:7000", 2, false),
            ("224.0.0.1:7000", 2, false),
            ("[2001:db8::1]:7000", 2, false),
            ("02:00:00:00:00:07", 2, false),
            ("3", 2, false),
        ] {
            assert_eq!(
                members.is_plausible(&entry(id, 1, addr)),
                plausible,
                "{addr}"
            );
        }
        let mac = |first| LinkAddr::Ether(MacAddr([first, 0, 0, 0, 0, 1]));
        assert!(are_alike(mac(2), mac(4)) && !are_alike(mac(2), mac(0xff)));
    }
}
