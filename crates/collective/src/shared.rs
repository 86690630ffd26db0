//! Broadcast through memory that all members see: the root writes once, each member reads it there (`Endpoint::cast`).
//!
//! Part of an `operation`, carried on by `core`; and, for a short one that nothing stands in the way of, the whole of it
//! ([`Collectives::broadcast_at_once`]). The root is done when all of it is written, which may be before others read it.
//!
//! What one member casts to one group comes in the order in which it was cast. Members call the operations of a group in one
//! order, so what comes first is always for the first open broadcast from that root, and bears its sequence number, code and
//! length; else somebody made another call.
//!
//! Invariants: broadcasts of one root in one group write, and read, in order of their sequence numbers; nothing is cast before
//! all members have attached, for who attaches later starts behind it; the number under which a group casts is of its members'
//! lives, so a restarted member takes nothing that was meant for its predecessor.

use tsumuji_link::shm::{CastGroup, Found};
use tsumuji_node::{Endpoint, Link, LinkAddr, NodeId};

use crate::api::broadcast_code;
use crate::collectives::Collectives;
use crate::error::CollectiveError;
use crate::group::{Group, GroupState, Hash, Members, is_before};
use crate::operation::{Failure, Operation};
use crate::table::Algorithm;

/// Written or read in one turn: a fraction of any `dead_after`, for peers must be heard and answered.
const BYTES_PER_TURN: usize = 8 << 20;

/// Broadcasts between two turns of the endpoint, which answers its peers: fewer where they are seldom (`is_turn_due`).
const AT_ONCE_PER_TURN: u32 = 64;

/// Looks for what is not there yet before others get their turn, where a core is ours: some times what a cache line takes.
const LOOKS: u32 = 200;

/// A group's members as they cast.
#[derive(Debug, Default)]
pub(crate) struct Casts {
    /// The group's name among those who cast; 0: not all have attached yet.
    number: u64,
    /// Indices of all members in the job, by rank; empty: the link lends no memory.
    nodes: Vec<u16>,
    /// Of the other members.
    others: Vec<u16>,
    /// Of all, when the number was made.
    lives: Vec<u64>,
    /// Root and sequence number of broadcasts that are not done here, in order.
    open: Vec<(usize, u32)>,
    /// A member died, or another one says so: the number may be of a life that others never knew.
    doubted: bool,
    /// Broadcasts of that many bytes are shared.
    pub(crate) at_once_bytes: Option<usize>,
}

impl Casts {
    pub(crate) fn of<L: Link>(endpoint: &Endpoint<L>, members: &[NodeId]) -> Self {
        let index = |node: &NodeId| match endpoint.members()[usize::from(node.0)].addr {
            LinkAddr::Local(index) => Some(index),
            _ => None,
        };
        let nodes: Vec<u16> = members.iter().map_while(index).collect();
        if nodes.len() != members.len() {
            return Self::default();
        }
        let me = endpoint.me();
        let others = members.iter().zip(&nodes).filter(|(node, _)| **node != me);
        Self {
            others: others.map(|(_, index)| *index).collect(),
            nodes,
            ..Self::default()
        }
    }

    /// A broadcast from `root` begins here.
    pub(crate) fn begin(&mut self, root: usize, sequence: u32) {
        self.open.push((root, sequence));
    }

    fn end(&mut self, root: usize, sequence: u32) {
        self.open.retain(|open| *open != (root, sequence));
    }

    /// The operation ends here and now, well or not.
    pub(crate) fn leave(&mut self, operation: &Operation<'_>) {
        if let Some(shared) = &operation.shared {
            self.end(shared.root, operation.sequence);
        }
    }

    fn is_next(&self, root: usize, sequence: u32) -> bool {
        let next = self.open.iter().find(|open| open.0 == root);
        next.is_some_and(|open| open.1 == sequence)
    }

    /// The group failed from this operation on.
    pub(crate) fn fail(&mut self, first: u32) {
        self.doubted = true;
        self.open
            .retain(|(_, sequence)| is_before(*sequence, first));
        self.at_once_bytes = None;
    }

    /// What the failed group's members have not read may go.
    pub(crate) fn abandon<L: Link>(&self, endpoint: &mut Endpoint<L>) {
        if let Some(mut held) = endpoint.cast().filter(|_| self.number != 0) {
            let mut cast = held.get();
            cast.abandon(self.number);
        }
    }

    /// A member is gone.
    pub(crate) fn forget<L: Link>(&mut self, rank: usize, endpoint: &mut Endpoint<L>) {
        self.doubted = true;
        self.at_once_bytes = None;
        if let (Some(life), Some(mut held)) = (self.lives.get(rank), endpoint.cast()) {
            let mut cast = held.get();
            cast.forget(self.nodes[rank], *life);
        }
    }

    /// The group's number, if all have attached.
    fn number<L: Link>(&mut self, key: u64, endpoint: &mut Endpoint<L>) -> Option<u64> {
        if self.number != 0 {
            return Some(self.number);
        }
        let mut held = endpoint.cast()?;
        let cast = held.get();
        self.lives.clear();
        self.lives
            .extend(self.nodes.iter().map(|node| cast.life_of(*node)));
        if self.lives.contains(&0) {
            return None;
        }
        let mut hash = Hash::new(key);
        for life in &self.lives {
            hash.add(*life);
        }
        self.number = hash.0 | 1;
        Some(self.number)
    }
}

/// One broadcast on one member.
#[derive(Debug)]
pub(crate) struct Shared {
    root: usize,
    is_root: bool,
    len: usize,
    /// Bytes written or read.
    progress: usize,
    /// There was nothing to read, or no room, when it last looked.
    starved: bool,
    done: bool,
}

impl Shared {
    pub(crate) fn new(group: &Members, root: usize, len: usize) -> Self {
        Self {
            root,
            is_root: group.rank == root,
            len,
            progress: 0,
            starved: false,
            done: false,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    /// Can it not end without member `rank`?
    pub(crate) fn needs(&self, rank: usize) -> bool {
        // What a root wrote before it died or left is still there.
        self.starved && !self.done && (self.is_root || rank == self.root)
    }
}

/// Writes or reads what can be now.
pub(crate) fn advance<L: Link>(
    operation: &mut Operation<'_>,
    state: &mut GroupState,
    endpoint: &mut Endpoint<L>,
) {
    let at = (operation.sequence, operation.algorithm());
    let Some(shared) = &mut operation.shared else {
        return;
    };
    if shared.done || !state.casts.is_next(shared.root, at.0) {
        return;
    }
    let lost = state.dead.first();
    let lost = lost.map(|&rank| Failure::Dead(state.members.nodes[rank]));
    if shared.is_root && lost.is_some() {
        operation.failure = lost;
        return;
    }
    let looks = if endpoint.spins() { LOOKS } else { 1 };
    let Some(number) = state.casts.number(state.members.key, endpoint) else {
        (shared.starved, operation.failure) = (true, lost);
        if let Some(mut held) = endpoint.cast() {
            let mut cast = held.get();
            cast.watch_attach();
        }
        return;
    };
    let Some(mut held) = endpoint.cast() else {
        return; // it was there when the operation was chosen
    };
    let mut cast = held.get();
    let node = state.casts.nodes[shared.root];
    if (state.casts.doubted || lost.is_some()) && !shared.is_root && !cast.is_bound(node, number) {
        // Who restarted may have been seen here before its death was, or when the number was made: then others cast under another one.
        operation.failure = state.loss();
        if operation.failure.is_some() {
            return;
        }
    }
    let most = shared.len.min(shared.progress + BYTES_PER_TURN);
    let mut looked = 0;
    shared.starved = false;
    while !shared.done && (shared.progress < most || shared.len == 0) {
        let start = shared.progress;
        if shared.is_root {
            let end = shared.len.min(start + cast.piece_bytes());
            let group = CastGroup {
                number,
                others: &state.casts.others,
            };
            let bytes = &operation.output.bytes()[start..end];
            let single = state.casts.others.is_empty();
            if !single && !cast.write(group, at, shared.len as u64, bytes) {
                looked += 1;
                if looked < looks {
                    std::hint::spin_loop();
                    continue;
                }
                shared.starved = true;
                return cast.watch_room(number);
            }
            shared.progress = end;
        } else {
            let piece = match cast.look(node, number) {
                Found::Nothing => {
                    looked += 1;
                    if looked < looks {
                        std::hint::spin_loop();
                        continue;
                    }
                    shared.starved = true;
                    return cast.watch_for(node, number);
                }
                Found::Piece(piece)
                    if (piece.sequence, piece.code, piece.total)
                        == (at.0, at.1, shared.len as u64)
                        && piece.bytes <= shared.len - start
                        && (piece.bytes > 0 || shared.len == 0) =>
                {
                    piece
                }
                Found::Piece(_) | Found::Garbage => {
                    let root = state.members.nodes[shared.root];
                    operation.failure = Some(Failure::Mismatch(root));
                    return;
                }
            };
            let target = &mut operation.output.bytes_mut()[start..start + piece.bytes];
            if !cast.take(node, number, &piece, target) {
                shared.starved = true;
                return cast.watch_for(node, number); // withdrawn: the root gave up, and will say why
            }
            shared.progress += piece.bytes;
        }
        looked = 0;
        shared.done = shared.progress == shared.len;
    }
    if shared.done {
        state.casts.end(shared.root, at.0);
    } else {
        operation.busy = true;
    }
}

/// Looks whether a member has cast something that shows that it does not do what we do: for one who waits in vain.
pub(crate) fn suspect<L: Link>(
    operation: &mut Operation<'_>,
    groups: &mut [GroupState],
    endpoint: &mut Endpoint<L>,
) {
    let state = &mut groups[operation.group];
    if operation.failure.is_some() || operation.is_done() {
        return;
    }
    if state.casts.number == 0 && !state.dead.is_empty() {
        return; // the number that others cast under is not to be known any more
    }
    // Others may have cast though we never did.
    let Some(number) = state.casts.number(state.members.key, endpoint) else {
        return;
    };
    let Some(mut held) = endpoint.cast() else {
        return;
    };
    let mut cast = held.get();
    for (rank, &node) in state.casts.nodes.iter().enumerate() {
        if rank == state.members.rank {
            continue;
        }
        let Found::Piece(piece) = cast.look(node, number) else {
            continue;
        };
        let is_open = state.casts.open.contains(&(rank, piece.sequence));
        if !is_open && !is_before(operation.sequence, piece.sequence) {
            operation.failure = Some(Failure::Mismatch(state.members.nodes[rank]));
            return;
        }
    }
}

impl Collectives {
    /// Does a short broadcast that needs nothing but a record written or read. `false`: it was not begun, and goes the usual way.
    /// Peers are answered now and then, also if all broadcasts go the usual way and never wait.
    #[inline]
    pub(crate) fn broadcast_at_once<L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        root: usize,
        data: &mut [u8],
    ) -> Result<bool, CollectiveError> {
        if !self.core.shares {
            return Ok(false);
        }
        let Some(index) = self.index(group) else {
            return Ok(false);
        };
        self.at_once = self.at_once.wrapping_add(1);
        if self.at_once.is_multiple_of(AT_ONCE_PER_TURN) || self.is_turn_due() {
            self.progress(endpoint)?;
        }
        if self.core.groups[index].casts.at_once_bytes != Some(data.len())
            || !self.is_quiet()
            || self.core.has_early()
        {
            return Ok(false);
        }
        if endpoint.deaths_in_all() != self.core.deaths {
            return Ok(false);
        }
        let spins = endpoint.spins();
        let state = &mut self.core.groups[index];
        let casts = &state.casts;
        // The memory of lengths is gone with a failure or a death.
        if casts.at_once_bytes.is_none() || casts.number == 0 || !casts.open.is_empty() {
            return Ok(false);
        }
        let (sequence, code) = (state.sequence, broadcast_code(Algorithm::Shared));
        let Some(mut held) = endpoint.cast() else {
            return Ok(false);
        };
        let mut cast = held.get();
        let total = data.len() as u64;
        let done = if root == state.members.rank {
            let group = CastGroup {
                number: casts.number,
                others: &casts.others,
            };
            data.len() <= cast.piece_bytes() && cast.write(group, (sequence, code), total, data)
        } else {
            let Some(&node) = casts.nodes.get(root) else {
                return Ok(false);
            };
            let mut looks = if spins { LOOKS } else { 1 };
            loop {
                match cast.look(node, casts.number) {
                    Found::Piece(piece) => {
                        break (piece.sequence, piece.code, piece.total) == (sequence, code, total)
                            && piece.bytes == data.len()
                            && cast.take(node, casts.number, &piece, data);
                    }
                    Found::Nothing if looks > 1 => {
                        looks -= 1;
                        std::hint::spin_loop();
                    }
                    Found::Nothing | Found::Garbage => break false,
                }
            }
        };
        if done {
            state.sequence = sequence.wrapping_add(1);
            self.core.wires.counters.operations += 1;
        }
        Ok(done)
    }

    /// Broadcasts of so many bytes are shared in this group.
    pub(crate) fn remember_shared(&mut self, group: Group, bytes: usize) {
        if let Some(index) = self.index(group) {
            let state = &mut self.core.groups[index];
            let sound = state.failed.is_none() && state.dead.is_empty();
            state.casts.at_once_bytes = sound.then_some(bytes);
        }
    }
}
