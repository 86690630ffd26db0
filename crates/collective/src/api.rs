//! The operations, blocking and non-blocking: they check arguments, choose an algorithm, and pass a plan to `collectives`.
//!
//! Every member of the group makes the same calls in the same order. Lengths are in elements; a blocking call returns when this member's part is done
//! and its buffers may be used again. Operations that move parts of memories are in `parts`.

mod parts;

use tsumuji_node::Endpoint;
use zerocopy::IntoBytes;

use crate::call::{Call, Source, Target, borrowed, need, owned};
use crate::collectives::{Collectives, Request};
use crate::element::{Element, Memory, Op, RawOp};
use crate::error::CollectiveError;
use crate::group::Group;
use crate::header::Called;
use crate::plan::{self, Plan};
use crate::table::{Algorithm, Can, Operation, Question};

/// Native broadcasts have offsets of 32 bits.
const NATIVE_BYTES_MAX: usize = u32::MAX as usize;

/// Operation and algorithm as other members see them: the operation in the upper four bits, the algorithm in the lower. Roots, and what reductions fold
/// by, are added to that as a digest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Code {
    Barrier = 0x10,
    Broadcast = 0x20,
    Scatter = 0x30,
    Gather = 0x40,
    AllGather = 0x50,
    Reduce = 0x60,
    AllReduce = 0x70,
    AllToAll = 0x80,
    /// By hosts, of vectors that leaders halve: their halves may be as long as another member's whole vector.
    HalvedAllReduce = 0x90,
}

fn called(code: Code, algorithm: Algorithm) -> Called {
    Called::new(code as u8 | algorithm as u8)
}

/// An operation with a root.
fn called_at(code: Code, algorithm: Algorithm, root: usize) -> Called {
    called(code, algorithm).with(root as u64)
}

/// This member's rank, and the size of the group.
#[derive(Clone, Copy)]
struct Place {
    rank: usize,
    size: usize,
}

impl Collectives {
    /// The group's members by host, where several but not all share one.
    fn hosts(&self, group: Group) -> Option<&plan::Hosts> {
        self.members(group)?.hosts.as_ref()
    }

    fn place(&self, group: Group) -> Result<Place, CollectiveError> {
        let members = self.members(group).ok_or(CollectiveError::NoSuchGroup)?;
        Ok(Place {
            rank: members.rank,
            size: members.size(),
        })
    }

    fn rooted(&self, group: Group, root: usize) -> Result<Place, CollectiveError> {
        let place = self.place(group)?;
        if root >= place.size {
            return Err(CollectiveError::NoSuchRank {
                rank: root,
                size: place.size,
            });
        }
        Ok(place)
    }

    /// The link by which the table is asked.
    fn link(&self, endpoint: &Endpoint, group: Group) -> &'static str {
        let is_near = self
            .index(group)
            .is_some_and(|index| self.core.groups[index].is_near);
        self.table.link_of(endpoint.link_name(), is_near)
    }

    fn choose(
        &self,
        endpoint: &Endpoint,
        (operation, group): (Operation, Group),
        nodes: usize,
        bytes: usize,
    ) -> Algorithm {
        let broadcast = endpoint.broadcasts() && bytes > 0 && bytes <= NATIVE_BYTES_MAX;
        self.table.choose(Question {
            operation,
            link: self.link(endpoint, group),
            can: Can {
                broadcast,
                hosts: self.hosts(group).is_some(),
            },
            nodes,
            bytes: bytes as u64,
        })
    }

    // The rest comes in groups: the blocking and non-blocking forms of an operation, then what they share.

    /// Returns when every member has called it.
    pub fn barrier(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
    ) -> Result<(), CollectiveError> {
        let call = self.barrier_call(group, Target::None)?;
        self.run(endpoint, group, call)
    }

    /// Non-blocking [`barrier`](Self::barrier); the request's memory is empty.
    pub fn start_barrier(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
    ) -> Result<Request<Vec<u8>>, CollectiveError> {
        let call = self.barrier_call(group, Target::Owned(Box::new(Vec::<u8>::new())))?;
        self.launch(endpoint, group, call)
    }

    fn barrier_call<'b>(
        &self,
        group: Group,
        output: Target<'b>,
    ) -> Result<Call<'b>, CollectiveError> {
        let Place { rank, size } = self.place(group)?;
        let (algorithm, plan) = match self.hosts(group) {
            Some(hosts) => (Algorithm::Hosts, plan::barrier_hosts(hosts, rank)),
            None => (Algorithm::Doubling, plan::barrier(rank, size)),
        };
        let called = called(Code::Barrier, algorithm);
        Ok(Call::moving(called, plan, Source::None, output))
    }

    /// Copies the root's `data` to all members; it has the same length on all.
    pub fn broadcast<T: Element>(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        root: usize,
        data: &mut [T],
    ) -> Result<(), CollectiveError> {
        let output = Target::Slice(data.as_mut_bytes());
        let call = self.broadcast_call(endpoint, group, root, output)?;
        self.run(endpoint, group, call)
    }

    /// Non-blocking [`broadcast`](Self::broadcast).
    pub fn start_broadcast<M: Memory>(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        root: usize,
        data: M,
    ) -> Result<Request<M>, CollectiveError> {
        let call = self.broadcast_call(endpoint, group, root, Target::Owned(Box::new(data)))?;
        self.launch(endpoint, group, call)
    }

    fn broadcast_call<'b>(
        &self,
        endpoint: &Endpoint,
        group: Group,
        root: usize,
        output: Target<'b>,
    ) -> Result<Call<'b>, CollectiveError> {
        let Place { rank, size } = self.rooted(group, root)?;
        let len = output.bytes().len();
        let algorithm = self.choose(endpoint, (Operation::Broadcast, group), size, len);
        let plan = match (algorithm, self.hosts(group)) {
            (Algorithm::Native, _) => Plan::default(),
            (Algorithm::Hosts, Some(hosts)) => plan::broadcast_hosts(hosts, rank, root, len),
            (Algorithm::Flat, _) => plan::broadcast_flat(rank, size, root, len),
            (Algorithm::Chain, _) => plan::broadcast_chain(rank, size, root, len),
            _ => plan::broadcast_tree(rank, size, root, len),
        };
        let called = called_at(Code::Broadcast, algorithm, root);
        Ok(Call {
            native_root: (algorithm == Algorithm::Native).then_some(root),
            ..Call::moving(called, plan, Source::None, output)
        })
    }

    /// The root receives the result of `op` over all members' `send`, element by element. Except on the root `receive` is not used and may be empty.
    ///
    /// Sizes and table fix the order of folding, so that a program run twice gives the same bits.
    pub fn reduce<T: Element>(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        root: usize,
        send: &[T],
        receive: &mut [T],
        op: &Op<T>,
    ) -> Result<(), CollectiveError> {
        let (source, target) = borrowed(send, receive);
        let call = self.reduce_call(endpoint, group, root, (source, target), &op.into())?;
        self.run(endpoint, group, call)
    }

    /// Non-blocking [`reduce`](Self::reduce), of elements whose type only `op` knows.
    pub fn start_reduce_raw<S: Memory, M: Memory>(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        root: usize,
        send: S,
        receive: M,
        op: &RawOp,
    ) -> Result<Request<M>, CollectiveError> {
        let call = self.reduce_call(endpoint, group, root, owned(send, receive), op)?;
        self.launch(endpoint, group, call)
    }

    fn reduce_call<'b>(
        &self,
        endpoint: &Endpoint,
        group: Group,
        root: usize,
        (input, output): (Source<'b>, Target<'b>),
        op: &RawOp,
    ) -> Result<Call<'b>, CollectiveError> {
        let Place { rank, size } = self.rooted(group, root)?;
        let (len, unit) = (input.bytes().len(), op.unit);
        need("send, in bytes,", len, len / unit * unit)?;
        if rank == root {
            need("receive", output.bytes().len() / unit, len / unit)?;
        }
        let algorithm = match self.choose(endpoint, (Operation::Reduce, group), size, len) {
            Algorithm::Hosts if !op.commutative => Algorithm::Tree,
            other => other,
        };
        let plan = match (algorithm, self.hosts(group)) {
            (Algorithm::Hosts, Some(hosts)) => plan::reduce_hosts(hosts, rank, root, len),
            (other, _) => {
                let chain = other == Algorithm::Chain;
                plan::reduce_tree(rank, size, root, len, op.commutative, chain)
            }
        };
        let called = called_at(Code::Reduce, algorithm, root);
        Ok(Call::moving(called, plan, input, output).folding(op))
    }

    /// Replaces `data` on every member by the result of `op` over all members' `data`, element by element; with the same bits on all.
    pub fn all_reduce<T: Element>(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        data: &mut [T],
        op: &Op<T>,
    ) -> Result<(), CollectiveError> {
        let target = Target::Slice(data.as_mut_bytes());
        let call = self.all_reduce_call(endpoint, group, target, &op.into())?;
        self.run(endpoint, group, call)
    }

    /// Non-blocking [`all_reduce`](Self::all_reduce). The memory contains elements `T`.
    pub fn start_all_reduce<T: Element, M: Memory>(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        data: M,
        op: &Op<T>,
    ) -> Result<Request<M>, CollectiveError> {
        self.start_all_reduce_raw(endpoint, group, data, &op.into())
    }

    /// As [`start_all_reduce`](Self::start_all_reduce), for elements without a Rust type.
    pub fn start_all_reduce_raw<M: Memory>(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        data: M,
        op: &RawOp,
    ) -> Result<Request<M>, CollectiveError> {
        let call = self.all_reduce_call(endpoint, group, Target::Owned(Box::new(data)), op)?;
        self.launch(endpoint, group, call)
    }

    fn all_reduce_call<'b>(
        &self,
        endpoint: &Endpoint,
        group: Group,
        output: Target<'b>,
        op: &RawOp,
    ) -> Result<Call<'b>, CollectiveError> {
        let Place { rank, size } = self.place(group)?;
        let (len, unit) = (output.bytes().len(), op.unit);
        need("data, in bytes,", len, len / unit * unit)?;
        let chosen = self.choose(endpoint, (Operation::AllReduce, group), size, len);
        let algorithm = match chosen {
            // Partners fold into the memory that they send, so doubling is only for messages that leave, and are kept, without waiting.
            Algorithm::Doubling if len > self.core.ledger.eager_bytes => Algorithm::Halving,
            other => other,
        };
        let hosts = self.hosts(group);
        let is_ordered = hosts.is_none_or(plan::Hosts::are_ordered);
        let algorithm = match algorithm {
            Algorithm::Hosts if !op.commutative && !is_ordered => Algorithm::Tree,
            Algorithm::Ring if !op.commutative && self.link(endpoint, group) == "shm" => {
                Algorithm::Tree
            }
            Algorithm::Ring if !op.commutative => Algorithm::Chain,
            other => other,
        };
        let doubling = len <= self.core.ledger.eager_bytes;
        let operation = if algorithm == Algorithm::Hosts && !doubling {
            Code::HalvedAllReduce
        } else {
            Code::AllReduce
        };
        let plan = match (algorithm, hosts) {
            (Algorithm::Hosts, Some(hosts)) => {
                plan::all_reduce_hosts(hosts, rank, len, unit, doubling)
            }
            (Algorithm::Doubling, _) => plan::all_reduce_doubling(rank, size, len),
            (Algorithm::Halving, _) => plan::all_reduce_halving(rank, size, len, unit),
            (Algorithm::Ring, _) => plan::all_reduce_ring(rank, size, len, unit),
            (other, _) => plan::all_reduce_tree(rank, size, len, other == Algorithm::Chain),
        };
        let called = called(operation, algorithm);
        Ok(Call::moving(called, plan, Source::None, output).folding(op))
    }
}
