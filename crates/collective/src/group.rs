//! Groups: their members, their keys, and whether they can still be used.

use std::collections::HashMap;

use tsumuji_node::NodeId;

use crate::operation::Failure;
use crate::plan::Hosts;

/// Names a group of a [`Collectives`](crate::Collectives).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Group {
    pub(crate) index: u32,
    pub(crate) owner: u32,
}

/// Members of a group.
#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) index: usize,
    /// The same on all members, and different for other groups.
    pub(crate) key: u64,
    /// Nodes by rank.
    pub(crate) nodes: Vec<NodeId>,
    /// Rank of this node.
    pub(crate) rank: usize,
    /// Members by host, where several but not all share one.
    pub(crate) hosts: Option<Hosts>,
    ranks: HashMap<NodeId, usize>,
}

/// State of a group.
#[derive(Debug)]
pub(crate) struct GroupState {
    pub(crate) members: Members,
    /// All members are known to be on one host.
    pub(crate) is_near: bool,
    /// Sequence number of the next operation.
    pub(crate) sequence: u32,
    /// First operation that failed, and why.
    pub(crate) failed: Option<(u32, Failure)>,
    /// Number of each member's session with this node in which it is in the group, by rank: at the group's making, or the last before.
    pub(crate) sessions: Vec<u64>,
    /// Ranks of members that have died since.
    pub(crate) dead: Vec<usize>,
    pub(crate) closed: bool,
    /// It was abandoned with its operations: members that still call on it are told nothing.
    pub(crate) abandoned: bool,
}

impl Members {
    pub(crate) fn new(
        index: usize,
        key: u64,
        nodes: Vec<NodeId>,
        rank: usize,
        hosts: Option<Hosts>,
    ) -> Self {
        let ranks = nodes.iter().copied().zip(0..).collect();
        Self {
            index,
            key,
            nodes,
            rank,
            hosts,
            ranks,
        }
    }

    pub(crate) fn rank_of(&self, node: NodeId) -> Option<usize> {
        // Most groups are the whole cluster, in order.
        let same = usize::from(node.0);
        if self.nodes.get(same) == Some(&node) {
            return Some(same);
        }
        self.ranks.get(&node).copied()
    }

    pub(crate) fn size(&self) -> usize {
        self.nodes.len()
    }
}

impl GroupState {
    /// The rank of a node in that session: a member that died and is back does not belong to this group.
    pub(crate) fn rank_of_session(&self, node: NodeId, session: u64) -> Option<usize> {
        let rank = self.members.rank_of(node)?;
        (self.sessions[rank] == session).then_some(rank)
    }

    /// The failure of operation `sequence`, if it is one of those that failed.
    pub(crate) fn failure_of(&self, sequence: u32) -> Option<Failure> {
        self.failed
            .filter(|(first, _)| !is_before(sequence, *first))
            .map(|(_, failure)| failure)
    }
}

/// Whether `a` comes before `b`; sequence numbers wrap around.
pub(crate) fn is_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

/// The key of a group of these members, computed alike by all.
pub(crate) fn key_of(nodes: &[NodeId], tag: u32) -> u64 {
    let mut hash = Hash::new(u64::from(tag));
    for node in nodes {
        hash.add(u64::from(node.0));
    }
    hash.add(nodes.len() as u64);
    hash.0
}

/// Hashes numbers into 64 bits, the same on all machines. Protects against accidents, not against attackers.
pub(crate) struct Hash(pub(crate) u64);

impl Hash {
    pub(crate) fn new(seed: u64) -> Self {
        let mut hash = Self(0x9e37_79b9_7f4a_7c15); // the golden ratio's fraction
        hash.add(seed);
        hash
    }

    pub(crate) fn add(&mut self, value: u64) {
        // The finishing steps of a 64-bit generator (Steele and others 2014, table 1): every bit reaches every other.
        let mut mixed = self.0 ^ value.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = mixed ^ (mixed >> 31);
    }
}
