//! The processes of a cluster and their addresses.
//!
//! Invariant: `members[i].id` is `NodeId(i)`, and ids are at most `u16::MAX`; `Membership::check` is called by every endpoint.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZero;

use tsumuji_link::LinkAddr;
use tsumuji_proto::NodeId;

use crate::error::OpenError;

/// One process of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its id, which is its index in the table.
    pub id: NodeId,
    /// Its name in messages to people: `worker 2`, a host's name.
    pub name: String,
    /// Its address. Frames with its id are accepted from there only. `LinkAddr::Broadcast`: not known yet (see `Endpoint::join`).
    pub addr: LinkAddr,
}

/// All processes of the cluster, and which of them is this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// This process.
    pub me: NodeId,
    /// All processes, including this one, in order of ids from 0.
    pub members: Vec<Member>,
    /// Number of each process's host, where several share one; empty: no two are known to. Processes of one host have the same number.
    pub hosts: Vec<Option<u16>>,
    /// Processes of this host that this one reaches past the network, and their addresses there.
    pub near: BTreeMap<NodeId, LinkAddr>,
}

/// Numbers of the hosts with these names, of each process in order of ids: the id of the first process there. `None`: no other process shares its host.
pub(crate) fn shared_hosts<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Vec<Option<u16>> {
    let mut known = HashMap::new();
    for (id, name) in (0..=u16::MAX).zip(names.clone()) {
        let (_, processes) = known.entry(name).or_insert((id, 0_u32));
        *processes += 1;
    }
    let shared = |name| {
        let found = known.get(name).filter(|(_, processes)| *processes > 1);
        found.map(|(first, _)| *first)
    };
    names.map(shared).collect()
}

impl Membership {
    /// These processes, of which no two are known to share a host.
    pub fn of(me: NodeId, members: Vec<Member>) -> Self {
        Self {
            me,
            members,
            hosts: Vec::new(),
            near: BTreeMap::new(),
        }
    }

    /// `nodes` processes over shared memory, named by their numbers.
    pub fn local(me: NodeId, nodes: u16) -> Self {
        let member = |id| Member {
            id: NodeId(id),
            name: NodeId(id).to_string(),
            addr: LinkAddr::Local(id),
        };
        Self::of(me, (0..nodes).map(member).collect())
    }

    /// One process per address, named by their numbers.
    pub fn inet(me: NodeId, addrs: &[std::net::SocketAddr]) -> Self {
        let member = |(id, addr): (u16, &std::net::SocketAddr)| Member {
            id: NodeId(id),
            name: NodeId(id).to_string(),
            addr: LinkAddr::Inet(*addr),
        };
        Self::of(me, (0..=u16::MAX).zip(addrs).map(member).collect())
    }

    /// The address at which this process reaches a member, or is reached by it.
    pub(crate) fn way(&self, member: &Member) -> LinkAddr {
        self.near.get(&member.id).copied().unwrap_or(member.addr)
    }

    /// Whether this host has fewer cores than processes of `members`, as far as addresses tell: then waiting processes must yield their cores.
    pub(crate) fn is_oversubscribed(&self, members: &[Member]) -> bool {
        let mine = self.members.get(usize::from(self.me.0)).map(|me| me.addr);
        let is_here = |member: &&Member| match (mine, self.way(member)) {
            (_, LinkAddr::Local(_)) => true,
            (Some(LinkAddr::Inet(mine)), LinkAddr::Inet(addr)) => {
                addr.ip() == mine.ip() || addr.ip().is_loopback()
            }
            _ => false,
        };
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        members.iter().filter(is_here).count() > cores
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        if usize::from(self.me.0) >= self.members.len() {
            return Err(OpenError::NotAMember);
        }
        if let Some((place, _)) = (0_usize..)
            .zip(&self.members)
            .find(|(place, member)| usize::from(member.id.0) != *place)
        {
            return Err(OpenError::OutOfOrder(place));
        }
        let mut seen = HashMap::new();
        let known = |member: &&Member| member.addr != LinkAddr::Broadcast;
        for member in self.members.iter().filter(known) {
            if let Some(other) = seen.insert(member.addr, member.id) {
                return Err(OpenError::SameAddress {
                    first: other,
                    second: member.id,
                    addr: member.addr,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes of other hosts need none of our cores; those of this host do.
    #[test]
    fn processes_of_this_host_are_counted() {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get) as u16;
        let asked = |membership: Membership, members: u16| {
            membership.is_oversubscribed(&membership.members[..usize::from(members)])
        };
        let local = || Membership::local(NodeId(0), cores + 2);
        assert!(asked(local(), cores + 1) && !asked(local(), cores));
        let there = |id| {
            std::net::SocketAddr::from(([10, 0, 0, if id < cores { 1 } else { 2 }], 7000 + id))
        };
        let addrs: Vec<_> = (0..cores + 2).map(there).collect();
        assert!(!asked(Membership::inet(NodeId(0), &addrs), cores + 2));
    }

    /// Hosts are numbered by their first process; one that has its host for itself has no number.
    #[test]
    fn shared_hosts_are_numbered() {
        let names = ["a", "b", "a", "c", "b", "a"];
        let numbers = [Some(0), Some(1), Some(0), None, Some(1), Some(0)];
        assert_eq!(shared_hosts(names.into_iter()), numbers);
        assert!(shared_hosts(std::iter::empty()).is_empty());
    }

    /// Tables with gaps, without this node, or with shared addresses are refused, each for its own reason.
    #[test]
    fn unsound_tables_are_refused() {
        assert!(Membership::local(NodeId(1), 2).check().is_ok());
        assert!(matches!(
            Membership::local(NodeId(2), 2).check(),
            Err(OpenError::NotAMember)
        ));
        let mut gap = Membership::local(NodeId(0), 3);
        gap.members.remove(1);
        assert!(matches!(gap.check(), Err(OpenError::OutOfOrder(1))));
        let addr = "127.0.0.1:7000".parse().expect("addr");
        let twice = Membership::inet(NodeId(0), &[addr, addr]);
        assert!(matches!(
            twice.check(),
            Err(OpenError::SameAddress {
                second: NodeId(1),
                ..
            })
        ));
    }
}
