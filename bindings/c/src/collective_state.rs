//! Collectives of a handle: made when first called; groups and requests are named by numbers.
//!
//! Used by `api::collectives`. Operations read and write the program's own memory (`ffi::Output`, `ffi::Input`) until they are over.
//!
//! Invariant: once the link has failed, no operation is advanced: the program was told, and its memory may be gone.

use std::collections::HashMap;
use std::ffi::c_int;

use tsumuji_collective::{CollectiveCounters, CollectiveError, Collectives, Group, Request, Table};
use tsumuji_node::{Endpoint, NodeId};

use crate::failure::Failure;
use crate::ffi::Output;
use crate::node::Node;

/// See the head of this module.
#[derive(Debug)]
pub(crate) struct CollectiveState {
    /// `None`: the link failed.
    collectives: Option<Collectives>,
    /// Groups by the program's number; 0 is all nodes that there were when the handle was opened.
    groups: Vec<Group>,
    requests: HashMap<u64, Pending>,
    /// Requests made so far; 0 is never a request.
    made: u64,
}

/// An operation under way.
#[derive(Debug)]
pub(crate) enum Pending {
    /// An operation without a result.
    Barrier(Request<Vec<u8>>),
    /// An operation that fills the program's memory.
    Filled(Request<Output>),
}

/// Arguments of a function that begins an operation.
pub(crate) struct Call<'a> {
    pub(crate) collectives: &'a mut Collectives,
    pub(crate) endpoint: &'a mut Endpoint,
    pub(crate) group: Group,
    /// Members of the group.
    pub(crate) size: usize,
    /// This node's rank.
    pub(crate) rank: usize,
}

const LINK_FAILED: &str = "the link failed during a collective operation; close the handle";

impl CollectiveState {
    fn of(node: &mut Node) -> Result<(&mut Self, &mut Endpoint), Failure> {
        if node.collective_state.is_none() {
            let table = match &node.tune {
                Some(path) => Table::read(path),
                None => Table::in_force(node.endpoint.link_name()),
            };
            let table = table.map_err(|error| Failure::open(error.to_string(), libc::EINVAL))?;
            let world = (0..=u16::MAX).take(node.nodes_at_open).map(NodeId);
            let world: Vec<NodeId> = world.collect();
            let collectives = Collectives::with_world(&mut node.endpoint, table, &world)
                .map_err(|error| Failure::open(error.to_string(), libc::EINVAL))?;
            node.collective_state = Some(Box::new(Self {
                groups: vec![collectives.world()],
                collectives: Some(collectives),
                requests: HashMap::new(),
                made: 0,
            }));
        }
        match &mut node.collective_state {
            Some(collective_state) => Ok((collective_state, &mut node.endpoint)),
            None => Err(Failure::PANICKED), // it was made above
        }
    }

    fn collectives(&mut self) -> Result<&mut Collectives, Failure> {
        self.collectives
            .as_mut()
            .ok_or_else(|| Failure::link(LINK_FAILED))
    }

    fn group(&self, group: c_int) -> Result<Group, Failure> {
        usize::try_from(group)
            .ok()
            .and_then(|place| self.groups.get(place))
            .copied()
            .ok_or_else(|| Failure::invalid(format!("there is no group {group}")))
    }

    /// Passes an outcome on. After a failure of the link no operation may access the program's memory again.
    fn judged<T>(&mut self, outcome: Result<T, CollectiveError>) -> Result<T, Failure> {
        if let Err(CollectiveError::Endpoint(_) | CollectiveError::Send(_)) = outcome {
            self.collectives = None;
            self.requests.clear();
        }
        Ok(outcome?)
    }

    /// Makes a group of these nodes; returns its number.
    pub(crate) fn make_group(node: &mut Node, nodes: &[c_int], tag: u32) -> Result<c_int, Failure> {
        let members: Result<Vec<NodeId>, Failure> =
            nodes.iter().map(|id| node.member(*id)).collect();
        let members = members?;
        let (collective_state, endpoint) = Self::of(node)?;
        let made = collective_state
            .collectives()?
            .group(endpoint, &members, tag);
        let group = made.map_err(|error| Failure::invalid(error.to_string()))?;
        collective_state.groups.push(group);
        Ok(collective_state.groups.len() as c_int - 1) // the crate bounds groups far below that
    }

    pub(crate) fn close_group(node: &mut Node, group: c_int) -> Result<(), Failure> {
        let (collective_state, _) = Self::of(node)?;
        let group = collective_state.group(group)?;
        let closed = collective_state.collectives()?.close_group(group);
        closed.map_err(|error| Failure::invalid(error.to_string()))
    }

    /// This node's rank in a group, and the group's size.
    pub(crate) fn place(node: &mut Node, group: c_int) -> Result<(usize, usize), Failure> {
        let (collective_state, _) = Self::of(node)?;
        let group = collective_state.group(group)?;
        let collectives = collective_state.collectives()?;
        match (collectives.rank(group), collectives.size(group)) {
            (Some(rank), Some(size)) => Ok((rank, size)),
            _ => Err(CollectiveError::NoSuchGroup.into()),
        }
    }

    pub(crate) fn forbid_direct_reads(node: &mut Node) -> Result<(), Failure> {
        let (collective_state, _) = Self::of(node)?;
        collective_state.collectives()?.forbid_direct_reads();
        Ok(())
    }

    pub(crate) fn counters(node: &mut Node) -> Result<CollectiveCounters, Failure> {
        let (collective_state, _) = Self::of(node)?;
        Ok(collective_state.collectives()?.counters())
    }

    /// Begins an operation; returns its request's number.
    pub(crate) fn start(
        node: &mut Node,
        group: c_int,
        begin: impl FnOnce(Call<'_>) -> Result<Result<Pending, CollectiveError>, Failure>,
    ) -> Result<u64, Failure> {
        let (rank, size) = Self::place(node, group)?;
        let (collective_state, endpoint) = Self::of(node)?;
        let group = collective_state.group(group)?;
        let collectives = collective_state.collectives()?;
        let begun = begin(Call {
            collectives,
            endpoint,
            group,
            size,
            rank,
        })?;
        let request = collective_state.judged(begun)?;
        collective_state.made += 1;
        collective_state
            .requests
            .insert(collective_state.made, request);
        Ok(collective_state.made)
    }

    /// Whether the operation is over. Advances all operations.
    pub(crate) fn test(node: &mut Node, request: u64) -> Result<bool, Failure> {
        let (collective_state, endpoint) = Self::of(node)?;
        collective_state.collectives()?;
        let (Some(collectives), Some(request)) = (
            &mut collective_state.collectives,
            collective_state.requests.get(&request),
        ) else {
            return Err(CollectiveError::NoSuchRequest.into());
        };
        let outcome = match request {
            Pending::Barrier(request) => collectives.test(endpoint, request),
            Pending::Filled(request) => collectives.test(endpoint, request),
        };
        collective_state.judged(outcome)
    }

    /// Waits for the operation's end, and removes its request.
    pub(crate) fn wait(node: &mut Node, request: u64) -> Result<(), Failure> {
        let (collective_state, endpoint) = Self::of(node)?;
        collective_state.collectives()?;
        let (Some(collectives), Some(request)) = (
            &mut collective_state.collectives,
            collective_state.requests.remove(&request),
        ) else {
            return Err(CollectiveError::NoSuchRequest.into());
        };
        let outcome = match request {
            Pending::Barrier(request) => collectives.wait(endpoint, request).map(drop),
            Pending::Filled(request) => collectives.wait(endpoint, request).map(drop),
        };
        collective_state.judged(outcome)
    }

    /// Advances all operations without waiting.
    pub(crate) fn carry_on(node: &mut Node) -> Result<usize, Failure> {
        let (collective_state, endpoint) = Self::of(node)?;
        let outcome = collective_state.collectives()?.progress(endpoint);
        collective_state.judged(outcome)
    }
}
