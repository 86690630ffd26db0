//! Addresses of peers, and the rule that a frame must come from the address of its source.
//!
//! Called by `drive` for every frame, in both directions.

use tsumuji_link::LinkAddr;
use tsumuji_proto::NodeId;

/// Addresses by node id.
#[derive(Debug)]
pub(crate) struct Table {
    me: NodeId,
    addrs: Vec<LinkAddr>,
}

impl Table {
    /// A table without peers.
    pub(crate) fn empty(me: NodeId) -> Self {
        Self {
            me,
            addrs: Vec::new(),
        }
    }

    /// Sets the address of `peer`.
    pub(crate) fn add(&mut self, peer: NodeId, addr: LinkAddr) {
        let index = usize::from(peer.0);
        if self.addrs.len() <= index {
            // No frame has the source address `Broadcast`, so unknown nodes are not admitted.
            self.addrs.resize(index + 1, LinkAddr::Broadcast);
        }
        self.addrs[index] = addr;
    }

    /// One more than the highest id.
    pub(crate) fn nodes(&self) -> u16 {
        self.addrs.len() as u16
    }

    /// Whether it is another node, and its address is known.
    pub(crate) fn is_peer(&self, node: NodeId) -> bool {
        node != self.me && self.addr(node).is_some()
    }

    /// All nodes except this one whose address is known.
    pub(crate) fn peers(&self) -> impl Iterator<Item = NodeId> {
        let ids = (0..self.nodes()).map(NodeId);
        ids.filter(|node| self.is_peer(*node))
    }

    /// The address of `peer`, if it is a member.
    #[inline]
    pub(crate) fn addr(&self, peer: NodeId) -> Option<LinkAddr> {
        let addr = self.addrs.get(usize::from(peer.0)).copied()?;
        (addr != LinkAddr::Broadcast).then_some(addr)
    }

    /// Whether a frame from `from` may have the source id `source`.
    #[inline]
    pub(crate) fn admits(&self, from: LinkAddr, source: NodeId) -> bool {
        match (from, self.addrs.get(usize::from(source.0))) {
            // The hot cases first: an index or an address that is exactly the member's.
            (LinkAddr::Local(index), Some(LinkAddr::Local(known))) => {
                index == *known && source != self.me
            }
            (LinkAddr::Inet(addr), Some(LinkAddr::Inet(known))) => {
                addr == *known && source != self.me
            }
            (LinkAddr::Ether(mac), Some(LinkAddr::Ether(known))) => {
                mac == *known && source != self.me
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::Membership;

    fn table_of(membership: &Membership) -> Table {
        let mut table = Table::empty(membership.me);
        for member in &membership.members {
            table.add(member.id, member.addr);
        }
        table
    }

    /// A frame is admitted only with the id of the member whose address it came from.
    #[test]
    fn ids_are_bound_to_addresses() {
        let local = table_of(&Membership::local(NodeId(0), 3));
        assert!(local.admits(LinkAddr::Local(2), NodeId(2)));
        for (from, source) in [(2, 1), (0, 0), (3, 3), (7, 2)] {
            assert!(
                !local.admits(LinkAddr::Local(from), NodeId(source)),
                "{from} as {source}"
            );
        }
        let addr = |text: &str| text.parse::<std::net::SocketAddr>().expect("addr");
        let members = [addr("10.0.0.1:7000"), addr("10.0.0.2:7000")];
        let inet = table_of(&Membership::inet(NodeId(0), &members));
        assert!(inet.admits(LinkAddr::Inet(members[1]), NodeId(1)));
        assert!(!inet.admits(LinkAddr::Inet(addr("10.0.0.2:7001")), NodeId(1)));
        assert!(!inet.admits(LinkAddr::Inet(members[1]), NodeId(0)));
        assert!(!inet.admits(LinkAddr::Local(1), NodeId(1)));
        assert!(!inet.admits(LinkAddr::Broadcast, NodeId(1)));
        let mac = |last| LinkAddr::Ether(tsumuji_link::ether::MacAddr([2, 0, 0, 0, 0, last]));
        let mut stations = Membership::local(NodeId(0), 3);
        for (last, member) in (1..).zip(&mut stations.members) {
            member.addr = mac(last);
        }
        let ether = table_of(&stations);
        assert!(ether.admits(mac(2), NodeId(1)));
        assert!(!ether.admits(mac(3), NodeId(1)));
        assert!(!ether.admits(mac(1), NodeId(0)));
    }

    /// A node is no peer of itself.
    #[test]
    fn peers_are_all_others() {
        let table = table_of(&Membership::local(NodeId(1), 3));
        assert_eq!(table.peers().collect::<Vec<_>>(), [NodeId(0), NodeId(2)]);
    }
}
