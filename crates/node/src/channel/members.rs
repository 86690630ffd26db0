//! The table of members as it is now: processes join a running cluster and come back at other addresses.
//!
//! Part of `channel`, which passes in what arrives, and calls `settle` with the means to answer. Node 0 admits: it gives a process that asks an id, and
//! tells all others (`news`). Each entry of the table has a version, 0 as when the node opened; of two versions the higher one counts. Nodes that meet tell each
//! other all entries of higher versions, so that one that was away learns what it missed.
//!
//! Invariants: ids are dense from 0; an entry whose address is not known yet has `LinkAddr::Broadcast`, and only in a node that is joining.

mod news;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tsumuji_link::LinkAddr;
use tsumuji_proto::{Event, NodeId, Pace};
use tsumuji_wire::{Admission, Join, Refusal};

pub use self::news::is_understood;
use self::news::{Entry, News};
pub(crate) use self::news::{NAME_BYTES, cut};
use super::control;
use super::outbox::{Outbox, Way};
use crate::error::presentable;
use crate::membership::{Member, Membership};
use crate::peers::Peers;

/// Most processes that wait for an answer; others ask again.
const ASKED_MAX: usize = 64;
/// After it has met the last of the first members, node 0 admits nobody for this long: meanwhile they tell it whom it admitted before it was started
/// again.
const LEARNS_FOR: Duration = Duration::from_secs(1);
/// Ids below this may be given.
const IDS: usize = u16::MAX as usize;

/// A process that asks to become a member.
#[derive(Debug)]
struct Asked {
    from: LinkAddr,
    id: Option<NodeId>,
    nonce: u64,
    name: String,
}

/// State that a change of the table affects: engine and link, peers, and the messages to be sent.
pub(crate) struct Means<'a, W> {
    pub(crate) way: &'a mut W,
    pub(crate) peers: &'a mut Peers,
    pub(crate) outbox: &'a mut Outbox,
}

/// Why a process is not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refused {
    reason: String,
    /// To ask again is of no use.
    is_final: bool,
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
    /// First members that were not met yet, and did not die: they may know whom this node admitted before it was started again.
    unmet: BTreeSet<NodeId>,
    /// When the last of them was met.
    learned: Instant,
    asked: VecDeque<Asked>,
    heard: Vec<(NodeId, News)>,
    /// Peers that were met and not yet told what they may have missed.
    met: Vec<NodeId>,
    /// Those that were admitted, and know no other member before they are told.
    admitted: BTreeSet<NodeId>,
    /// Members with a new address whose session with the old one has not ended yet.
    moved: BTreeSet<NodeId>,
    /// Number of members when this node opened. A process gets one of these ids only if it asks for it.
    first: usize,
    dead_since: BTreeMap<NodeId, Instant>,
    /// Number of members, as the admitting node stated it.
    stated: Option<u16>,
    /// `settle` has something to do.
    is_pending: bool,
}

impl Members {
    pub(crate) fn new(
        membership: Arc<Membership>,
        admits: bool,
        (pace, dead_after): (Pace, Duration),
    ) -> Self {
        let opened = Instant::now();
        let others = membership.members.iter().map(|member| member.id);
        Self {
            unmet: others.filter(|id| *id != membership.me).collect(),
            opened,
            learned: opened,
            versions: vec![0; membership.members.len()],
            first: membership.members.len(),
            membership,
            admits,
            pace,
            dead_after,
            asked: VecDeque::new(),
            heard: Vec::new(),
            met: Vec::new(),
            admitted: BTreeSet::new(),
            moved: BTreeSet::new(),
            dead_since: BTreeMap::new(),
            stated: None,
            is_pending: false,
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
    pub(crate) fn is_pending(&self) -> bool {
        self.is_pending
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
            self.is_pending = true;
        }
    }

    /// Takes a control message about the table; `false`: it is something else.
    pub(crate) fn hear(&mut self, from: NodeId, bytes: &[u8]) -> bool {
        let Some(news) = News::parse(bytes) else {
            return false;
        };
        self.heard.push((from, news));
        self.is_pending = true;
        true
    }

    /// Returns whether the event is the end of a session with a member that is met at another address already.
    #[cold]
    pub(crate) fn note(&mut self, event: &Event) -> bool {
        match event {
            Event::PeerUp { peer, .. } => {
                self.dead_since.remove(peer);
                if self.unmet.remove(peer) {
                    self.learned = Instant::now();
                }
                self.met.push(*peer);
                self.is_pending = true;
                false
            }
            Event::PeerDead { peer, .. } => {
                self.dead_since.insert(*peer, Instant::now());
                self.unmet.remove(peer);
                self.moved.remove(peer)
            }
            _ => false,
        }
    }

    /// Learns, answers and tells; returns how much that was.
    #[cold]
    pub(crate) fn settle(&mut self, means: &mut Means<'_, impl Way>) -> usize {
        self.is_pending = false;
        let mut done = 0;
        for (from, news) in std::mem::take(&mut self.heard) {
            done += 1;
            match news {
                News::Table(nodes) => self.stated = Some(nodes),
                News::Entry(entry) => {
                    // What node 0 missed while it was away, others may have missed, too.
                    if self.learn(&entry, means) && self.admits {
                        self.tell_all(&entry, Some(from), means);
                    }
                }
            }
        }
        for asked in std::mem::take(&mut self.asked) {
            done += 1;
            let answer = self.admit(&asked, means);
            self.admitted.extend(answer.as_ref().ok());
            let admission = Admission {
                source: self.me(),
                nonce: asked.nonce,
                answer: answer.as_ref().copied().map_err(Refused::told),
            };
            let mut frame = [0; tsumuji_wire::join::JOIN_HEADER_BYTES + NAME_BYTES];
            if let Some(bytes) = admission.write(&mut frame) {
                means.way.send_frame(asked.from, &frame[..bytes]);
            }
        }
        for peer in std::mem::take(&mut self.met) {
            done += 1;
            self.tell_missed(peer, means.outbox);
        }
        done
    }

    /// A member joins, or has another address or name from now on; tells all others. `false`: it cannot be.
    pub(crate) fn set(&mut self, member: Member, means: &mut Means<'_, impl Way>) -> bool {
        let before = self.versions.get(usize::from(member.id.0));
        let entry = Entry {
            id: member.id,
            version: before.map_or(1, |version| version.saturating_add(1)),
            addr: member.addr,
            name: cut(&member.name).to_owned(),
        };
        let is_new = self.learn(&entry, means);
        if is_new {
            self.tell_all(&entry, None, means);
        }
        is_new
    }

    /// Decides about a process that asks.
    fn admit(&mut self, asked: &Asked, means: &mut Means<'_, impl Way>) -> Result<NodeId, Refused> {
        let me = self.me();
        if me != NodeId(0) || !self.admits {
            return Err(Refused::finally(if me == NodeId(0) {
                "it admits nobody: start it with --admit or TSUMUJI_ADMIT=1".to_owned()
            } else {
                format!("it is {me}: node 0 admits")
            }));
        }
        if let Some(reason) = self.learns(asked.id, asked.from) {
            return Err(Refused::for_now(reason));
        }
        let known = |member: &&Member| {
            member.addr == asked.from || self.membership.way(member) == asked.from
        };
        if let Some(member) = self.membership.members.iter().find(known) {
            // The process did not hear the answer, or is a new one at the address of an earlier one.
            let id = member.id;
            return match asked.id {
                Some(other) if other != id => {
                    Err(Refused::for_now(format!("{id} has this address")))
                }
                _ if id == me => Err(Refused::finally("it has this address itself".to_owned())),
                _ => Ok(id),
            };
        }
        if let Some(reason) = self.beyond_reach(asked.from) {
            return Err(Refused::finally(reason.to_owned()));
        }
        let id = match asked.id {
            Some(id) if id == me || usize::from(id.0) >= self.len() => {
                let reason = format!("no other process was {id}; there are {}", self.len());
                // A node that was not met may still know of it.
                let is_final = self.unmet.is_empty();
                return Err(Refused { reason, is_final });
            }
            Some(id) if means.peers.is_up(id) => {
                let reason = format!("{id} is not dead, at another address");
                return Err(Refused::for_now(reason));
            }
            // It may live elsewhere, and not have been heard of yet.
            Some(id) if self.unmet.contains(&id) && self.opened.elapsed() < LEARNS_FOR => {
                let reason = format!("{id} was not met yet, and may live at another address");
                return Err(Refused::for_now(reason));
            }
            Some(id) => id,
            None => match self.free_id(means.peers) {
                Some(id) => id,
                None => {
                    let reason = format!("all {IDS} ids are used");
                    return Err(Refused::for_now(reason));
                }
            },
        };
        let member = Member {
            id,
            name: asked.name.clone(),
            addr: asked.from,
        };
        tracing::info!(node = id.0, name = %member.name, addr = %member.addr, "joins");
        let is_set = self.set(member, means);
        let refused = || Refused::finally("no member can have this address".to_owned());
        is_set.then_some(id).ok_or_else(refused)
    }

    /// Why nobody is admitted yet: others may still tell whom this node admitted before it was started again. A first member that is not heard of for
    /// `dead_after` is not waited for, nor is the one that asks now, which wants `id` or has the address `from`.
    fn learns(&self, id: Option<NodeId>, from: LinkAddr) -> Option<String> {
        let asks = |peer: NodeId| {
            let member = self.membership.members.get(usize::from(peer.0));
            Some(peer) == id || member.is_some_and(|member| member.addr == from)
        };
        let awaited = self.unmet.iter().find(|peer| !asks(**peer));
        match awaited.filter(|_| self.opened.elapsed() < self.dead_after.max(LEARNS_FOR)) {
            Some(peer) => Some(format!(
                "it has not met {peer} yet, which may know whom it admitted before"
            )),
            None => (self.first > 1 && self.learned.elapsed() < LEARNS_FOR)
                .then(|| "it is just being told whom it admitted before".to_owned()),
        }
    }

    /// Why other members would not reach this address, though this node does.
    fn beyond_reach(&self, from: LinkAddr) -> Option<&'static str> {
        let LinkAddr::Inet(from) = from else {
            return None;
        };
        if matches!(from.ip(), IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfe80) {
            return Some("others may not reach its link-local address; give it another by --link");
        }
        let from_loopback = from.ip().is_loopback();
        let is_mixed = self.membership.members.iter().any(|member| {
            matches!(member.addr, LinkAddr::Inet(addr)
                if !addr.ip().is_unspecified() && addr.ip().is_loopback() != from_loopback)
        });
        is_mixed.then_some(if from_loopback {
            "others cannot reach its loopback address; give it another by --link"
        } else {
            "it cannot reach members at loopback addresses"
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
    fn learn(&mut self, entry: &Entry, means: &mut Means<'_, impl Way>) -> bool {
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
                means.peers.set_nodes(index + 1);
                means.outbox.set_nodes(index + 1);
                self.learn(entry, means)
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
            if !is_unknown && !means.peers.is_dead(member.id) {
                self.moved.insert(member.id);
            }
            membership.near.remove(&member.id);
            means.way.meet(&member, member.addr, self.pace);
            if means.peers.is_lost(member.id) {
                means.peers.reconnect(member.id);
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
    fn tell_all<W>(&self, entry: &Entry, from: Option<NodeId>, means: &mut Means<'_, W>) {
        for member in &self.membership.members {
            if means.peers.is_up(member.id) && Some(member.id) != from {
                put(News::Entry(entry.clone()), member.id, means.outbox);
            }
        }
    }
}

impl Refused {
    /// That will not change.
    fn finally(reason: String) -> Self {
        let is_final = true;
        Self { reason, is_final }
    }

    /// The process may ask again.
    fn for_now(reason: String) -> Self {
        let is_final = false;
        Self { reason, is_final }
    }

    fn told(&self) -> Refusal<'_> {
        Refusal {
            reason: self.reason.as_bytes(),
            is_final: self.is_final,
        }
    }
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

#[cfg(test)]
mod tests {
    use tsumuji_link::ether::MacAddr;

    use super::news::tests::entry;
    use super::*;

    /// Node 0 admits nobody before all first members were met, died, or were silent for long; nor in the second in which they tell what they know.
    #[test]
    fn first_members_are_heard_first() {
        let addrs = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"];
        let addrs = addrs.map(|addr| addr.parse().expect(addr));
        let membership = Arc::new(Membership::inet(NodeId(0), &addrs));
        let options = (Pace::Free, Duration::from_secs(20));
        let mut members = Members::new(membership, true, options);
        let long_ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds));
        (members.opened, members.learned) = (
            long_ago(19).expect("the machine is up"),
            long_ago(19).expect("the machine is up"),
        );
        let from = LinkAddr::Local(9);
        let text = |members: &Members| members.learns(None, from).unwrap_or_default();
        assert!(text(&members).contains("not met node 1"));
        members.note(&Event::PeerDead {
            peer: NodeId(1),
            failed_messages: 0,
        });
        assert!(text(&members).contains("not met node 2"));
        let again = members.learns(Some(NodeId(2)), from);
        assert_eq!(again, None, "it is the one that was not met");
        members.note(&Event::PeerUp {
            peer: NodeId(2),
            incarnation: 1,
        });
        assert!(text(&members).contains("just being told"));
        members.learned = members.opened;
        assert_eq!(members.learns(None, from), None);
        members.unmet.insert(NodeId(1));
        members.dead_after = Duration::from_secs(18);
        assert_eq!(members.learns(None, from), None, "it was silent for long");
    }

    /// Loopback addresses and others are not mixed, and a link-local one is admitted by nobody.
    #[test]
    fn addresses_beyond_reach_are_refused() {
        for (member, joins, refused) in [
            ("127.0.0.1:1", "127.0.0.2:7", false),
            ("127.0.0.1:1", "10.0.0.2:7", true),
            ("10.0.0.1:1", "127.0.0.1:7", true),
            ("10.0.0.1:1", "10.0.0.2:7", false),
            ("0.0.0.0:1", "127.0.0.1:7", false),
            ("[2001:db8::1]:1", "[2001:db8::2]:7", false),
            ("[2001:db8::1]:1", "[::1]:7", true),
            ("[2001:db8::1]:1", "[fe80::2]:7", true),
        ] {
            let addrs = [member.parse().expect(member)];
            let membership = Arc::new(Membership::inet(NodeId(0), &addrs));
            let options = (Pace::Free, Duration::from_secs(1));
            let members = Members::new(membership, true, options);
            let joins = LinkAddr::Inet(joins.parse().expect(joins));
            let reason = members.beyond_reach(joins);
            assert_eq!(reason.is_some(), refused, "{member} {joins}: {reason:?}");
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
