//! The operations, blocking and non-blocking: they check arguments, choose an algorithm, and pass a plan to `collectives`.
//!
//! Every member of the group makes the same calls in the same order. Lengths are in elements; a blocking call returns when this member's part is done
//! and its buffers may be used again.

use std::sync::Arc;

use tsumuji_node::{Endpoint, Link};
use zerocopy::IntoBytes;

use crate::call::{After, Call, Source, Target};
use crate::collectives::{Collectives, Request};
use crate::element::{Element, Memory, Op, RawOp};
use crate::error::CollectiveError;
use crate::group::Group;
use crate::ledger::EAGER_BYTES;
use crate::plan::{self, Plan};
use crate::table::{Algorithm, Can, Operation, Question};

/// Native broadcasts have offsets of 32 bits.
const NATIVE_BYTES_MAX: usize = u32::MAX as usize;

/// Operation and algorithm as other members see them: the operation in the upper four bits, the algorithm in the lower.
#[derive(Clone, Copy)]
enum Code {
    Barrier = 0x10,
    Broadcast = 0x20,
    Scatter = 0x30,
    Gather = 0x40,
    AllGather = 0x50,
    Reduce = 0x60,
    AllReduce = 0x70,
    AllToAll = 0x80,
}

fn code(code: Code, algorithm: Algorithm) -> u8 {
    code as u8 | algorithm as u8
}

/// Code of a broadcast.
pub(crate) fn broadcast_code(algorithm: Algorithm) -> u8 {
    code(Code::Broadcast, algorithm)
}

/// This member's rank, and the size of the group.
#[derive(Clone, Copy)]
struct Place {
    rank: usize,
    size: usize,
}

fn need(what: &'static str, given: usize, expected: usize) -> Result<(), CollectiveError> {
    if given == expected {
        return Ok(());
    }
    Err(CollectiveError::Length {
        what,
        given,
        expected,
    })
}

fn bytes_of<T>(counts: &[usize]) -> Vec<usize> {
    counts
        .iter()
        .map(|count| count.saturating_mul(size_of::<T>()))
        .collect()
}

fn sum(counts: &[usize]) -> usize {
    counts
        .iter()
        .fold(0, |sum, count| sum.saturating_add(*count))
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

    fn choose<L: Link>(
        &self,
        endpoint: &Endpoint<L>,
        (operation, group): (Operation, Group),
        nodes: usize,
        bytes: usize,
    ) -> Algorithm {
        let broadcast = endpoint.broadcasts() && bytes > 0 && bytes <= NATIVE_BYTES_MAX;
        self.table.choose(Question {
            operation,
            link: endpoint.link_name(),
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
    pub fn barrier<L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
    ) -> Result<(), CollectiveError> {
        let call = self.barrier_call(group, Target::None)?;
        self.run(endpoint, group, call)
    }

    /// Non-blocking [`barrier`](Self::barrier); the request's memory is empty.
    pub fn start_barrier<L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
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
        let code = code(Code::Barrier, algorithm);
        Ok(Call::moving(code, plan, Source::None, output))
    }

    /// Copies the root's `data` to all members; it has the same length on all.
    pub fn broadcast<T: Element, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        root: usize,
        data: &mut [T],
    ) -> Result<(), CollectiveError> {
        let output = Target::Slice(data.as_mut_bytes());
        let call = self.broadcast_call(endpoint, group, root, output)?;
        self.run(endpoint, group, call)
    }

    /// Non-blocking [`broadcast`](Self::broadcast).
    pub fn start_broadcast<M: Memory, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        root: usize,
        data: M,
    ) -> Result<Request<M>, CollectiveError> {
        let call = self.broadcast_call(endpoint, group, root, Target::Owned(Box::new(data)))?;
        self.launch(endpoint, group, call)
    }

    fn broadcast_call<'b, L: Link>(
        &self,
        endpoint: &Endpoint<L>,
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
        let code = broadcast_code(algorithm);
        Ok(Call {
            after: After::of(algorithm, root),
            ..Call::moving(code, plan, Source::None, output)
        })
    }

    /// Each member receives its part of the root's `send` in `receive`; all parts have the same length. Except on the root `send` is ignored and may
    /// be empty.
    pub fn scatter<T: Element, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        root: usize,
        send: &[T],
        receive: &mut [T],
    ) -> Result<(), CollectiveError> {
        let counts = vec![receive.len(); self.place(group)?.size];
        self.scatter_v(endpoint, group, root, send, &counts, receive)
    }

    /// As [`scatter`](Self::scatter), with parts of `counts` elements. Except on the root `counts` is ignored.
    pub fn scatter_v<T: Element, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        root: usize,
        send: &[T],
        counts: &[usize],
        receive: &mut [T],
    ) -> Result<(), CollectiveError> {
        let (source, target) = borrowed(send, receive);
        let call = self.scatter_call(group, root, &bytes_of::<T>(counts), source, target)?;
        self.run(endpoint, group, call)
    }

    /// Non-blocking [`scatter_v`](Self::scatter_v), with counts in bytes.
    #[allow(clippy::too_many_arguments)] // the operation needs them
    pub fn start_scatter_v<S: Memory, M: Memory, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        root: usize,
        send: S,
        counts: &[usize],
        receive: M,
    ) -> Result<Request<M>, CollectiveError> {
        let (source, target) = owned(send, receive);
        let call = self.scatter_call(group, root, counts, source, target)?;
        self.launch(endpoint, group, call)
    }

    fn scatter_call<'b>(
        &self,
        group: Group,
        root: usize,
        lens: &[usize],
        input: Source<'b>,
        output: Target<'b>,
    ) -> Result<Call<'b>, CollectiveError> {
        let Place { rank, size } = self.rooted(group, root)?;
        let own = output.bytes().len();
        if rank == root {
            need("counts", lens.len(), size)?;
            need("send, in bytes,", input.bytes().len(), sum(lens))?;
            need("receive, in bytes,", own, lens[root])?;
        }
        let plan = plan::scatter(rank, size, root, lens, own);
        Ok(Call::moving(
            code(Code::Scatter, Algorithm::Flat),
            plan,
            input,
            output,
        ))
    }

    /// The root receives each member's `send`, one behind the other in order of ranks; all have the same length. Except on the root `receive` is not
    /// used and may be empty.
    pub fn gather<T: Element, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        root: usize,
        send: &[T],
        receive: &mut [T],
    ) -> Result<(), CollectiveError> {
        let counts = vec![send.len(); self.place(group)?.size];
        self.gather_v(endpoint, group, root, send, receive, &counts)
    }

    /// As [`gather`](Self::gather), with parts of `counts` elements. Except on the root `counts` is ignored.
    pub fn gather_v<T: Element, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        root: usize,
        send: &[T],
        receive: &mut [T],
        counts: &[usize],
    ) -> Result<(), CollectiveError> {
        let (source, target) = borrowed(send, receive);
        let call = self.gather_call(group, root, &bytes_of::<T>(counts), source, target)?;
        self.run(endpoint, group, call)
    }

    /// Non-blocking [`gather_v`](Self::gather_v), with counts in bytes.
    #[allow(clippy::too_many_arguments)] // the operation needs them
    pub fn start_gather_v<S: Memory, M: Memory, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        root: usize,
        send: S,
        receive: M,
        counts: &[usize],
    ) -> Result<Request<M>, CollectiveError> {
        let (source, target) = owned(send, receive);
        let call = self.gather_call(group, root, counts, source, target)?;
        self.launch(endpoint, group, call)
    }

    fn gather_call<'b>(
        &self,
        group: Group,
        root: usize,
        lens: &[usize],
        input: Source<'b>,
        output: Target<'b>,
    ) -> Result<Call<'b>, CollectiveError> {
        let Place { rank, size } = self.rooted(group, root)?;
        let own = input.bytes().len();
        if rank == root {
            need("counts", lens.len(), size)?;
            need("receive, in bytes,", output.bytes().len(), sum(lens))?;
            need("send, in bytes,", own, lens[root])?;
        }
        let plan = plan::gather(rank, size, root, lens, own);
        Ok(Call::moving(
            code(Code::Gather, Algorithm::Flat),
            plan,
            input,
            output,
        ))
    }

    /// Every member receives each member's `send`, one behind the other in order of ranks; all have the same length.
    pub fn all_gather<T: Element, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        send: &[T],
        receive: &mut [T],
    ) -> Result<(), CollectiveError> {
        let counts = vec![send.len(); self.place(group)?.size];
        self.all_gather_v(endpoint, group, send, receive, &counts)
    }

    /// As [`all_gather`](Self::all_gather), with parts of `counts` elements, the same counts on all.
    pub fn all_gather_v<T: Element, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        send: &[T],
        receive: &mut [T],
        counts: &[usize],
    ) -> Result<(), CollectiveError> {
        let (source, target) = borrowed(send, receive);
        let lens = bytes_of::<T>(counts);
        let call = self.all_gather_call(endpoint, group, &lens, source, target)?;
        self.run(endpoint, group, call)
    }

    /// Non-blocking [`all_gather_v`](Self::all_gather_v), with counts in bytes.
    pub fn start_all_gather_v<S: Memory, M: Memory, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        send: S,
        receive: M,
        counts: &[usize],
    ) -> Result<Request<M>, CollectiveError> {
        let (source, target) = owned(send, receive);
        let call = self.all_gather_call(endpoint, group, counts, source, target)?;
        self.launch(endpoint, group, call)
    }

    fn all_gather_call<'b, L: Link>(
        &self,
        endpoint: &Endpoint<L>,
        group: Group,
        lens: &[usize],
        input: Source<'b>,
        output: Target<'b>,
    ) -> Result<Call<'b>, CollectiveError> {
        let Place { rank, size } = self.place(group)?;
        need("counts", lens.len(), size)?;
        need("send, in bytes,", input.bytes().len(), lens[rank])?;
        need("receive, in bytes,", output.bytes().len(), sum(lens))?;
        let longest = lens.iter().copied().max().unwrap_or(0);
        let algorithm = self.choose(endpoint, (Operation::AllGather, group), size, longest);
        let plan = match algorithm {
            Algorithm::Flat => plan::all_gather_direct(rank, size, lens),
            _ => plan::all_gather_ring(rank, size, lens),
        };
        Ok(Call::moving(
            code(Code::AllGather, algorithm),
            plan,
            input,
            output,
        ))
    }

    /// The root receives the result of `op` over all members' `send`, element by element. Except on the root `receive` is not used and may be empty.
    ///
    /// Sizes and table fix the order of folding, so that a program run twice gives the same bits.
    pub fn reduce<T: Element, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
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

    /// Non-blocking [`reduce`](Self::reduce). The memories contain elements `T`.
    pub fn start_reduce<T: Element, S: Memory, M: Memory, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        root: usize,
        send: S,
        receive: M,
        op: &Op<T>,
    ) -> Result<Request<M>, CollectiveError> {
        self.start_reduce_raw(endpoint, group, root, send, receive, &op.into())
    }

    /// As [`start_reduce`](Self::start_reduce), for elements without a Rust type.
    pub fn start_reduce_raw<S: Memory, M: Memory, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        root: usize,
        send: S,
        receive: M,
        op: &RawOp,
    ) -> Result<Request<M>, CollectiveError> {
        let call = self.reduce_call(endpoint, group, root, owned(send, receive), op)?;
        self.launch(endpoint, group, call)
    }

    fn reduce_call<'b, L: Link>(
        &self,
        endpoint: &Endpoint<L>,
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
            (Algorithm::Chain, _) => plan::reduce_chain(rank, size, root, len, op.commutative),
            _ => plan::reduce_tree(rank, size, root, len, op.commutative),
        };
        let code = code(Code::Reduce, algorithm);
        Ok(Call::moving(code, plan, input, output).folding(op))
    }

    /// Replaces `data` on every member by the result of `op` over all members' `data`, element by element; with the same bits on all.
    pub fn all_reduce<T: Element, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        data: &mut [T],
        op: &Op<T>,
    ) -> Result<(), CollectiveError> {
        let target = Target::Slice(data.as_mut_bytes());
        let call = self.all_reduce_call(endpoint, group, target, &op.into())?;
        self.run(endpoint, group, call)
    }

    /// Non-blocking [`all_reduce`](Self::all_reduce). The memory contains elements `T`.
    pub fn start_all_reduce<T: Element, M: Memory, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        data: M,
        op: &Op<T>,
    ) -> Result<Request<M>, CollectiveError> {
        self.start_all_reduce_raw(endpoint, group, data, &op.into())
    }

    /// As [`start_all_reduce`](Self::start_all_reduce), for elements without a Rust type.
    pub fn start_all_reduce_raw<M: Memory, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        data: M,
        op: &RawOp,
    ) -> Result<Request<M>, CollectiveError> {
        let call = self.all_reduce_call(endpoint, group, Target::Owned(Box::new(data)), op)?;
        self.launch(endpoint, group, call)
    }

    fn all_reduce_call<'b, L: Link>(
        &self,
        endpoint: &Endpoint<L>,
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
            Algorithm::Ring if !op.commutative && endpoint.link_name() == "shm" => Algorithm::Tree,
            Algorithm::Ring if !op.commutative => Algorithm::Chain,
            other => other,
        };
        let plan = match (algorithm, hosts) {
            (Algorithm::Hosts, Some(hosts)) => {
                let doubling = len <= self.core.ledger.eager_bytes;
                plan::all_reduce_hosts(hosts, rank, len, unit, doubling)
            }
            (Algorithm::Doubling, _) => plan::all_reduce_doubling(rank, size, len),
            (Algorithm::Halving, _) => plan::all_reduce_halving(rank, size, len, unit),
            (Algorithm::Ring, _) => plan::all_reduce_ring(rank, size, len, unit),
            (Algorithm::Native, _) => plan::reduce_in_place(rank, size, len, len > EAGER_BYTES),
            (other, _) => plan::all_reduce_tree(rank, size, len, other == Algorithm::Chain),
        };
        let code = code(Code::AllReduce, algorithm);
        Ok(Call {
            after: After::of(algorithm, 0),
            ..Call::moving(code, plan, Source::None, output).folding(op)
        })
    }

    /// Member i receives part i of every member's `send`, one behind the other in order of ranks; all parts have the same length.
    pub fn all_to_all<T: Element, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        send: &[T],
        receive: &mut [T],
    ) -> Result<(), CollectiveError> {
        let size = self.place(group)?.size;
        need("receive", receive.len(), send.len())?;
        need("send", send.len(), send.len() / size * size)?;
        let counts = vec![send.len() / size; size];
        self.all_to_all_v(endpoint, group, send, &counts, receive, &counts)
    }

    /// As [`all_to_all`](Self::all_to_all), with parts of `send_counts` and `receive_counts` elements, which must match between each pair.
    pub fn all_to_all_v<T: Element, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        send: &[T],
        send_counts: &[usize],
        receive: &mut [T],
        receive_counts: &[usize],
    ) -> Result<(), CollectiveError> {
        let (source, target) = borrowed(send, receive);
        let lens = (bytes_of::<T>(send_counts), bytes_of::<T>(receive_counts));
        let call = self.all_to_all_call(group, (&lens.0, &lens.1), source, target)?;
        self.run(endpoint, group, call)
    }

    /// Non-blocking [`all_to_all_v`](Self::all_to_all_v), with counts in bytes.
    #[allow(clippy::too_many_arguments)] // the operation needs them
    pub fn start_all_to_all_v<S: Memory, M: Memory, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        send: S,
        send_counts: &[usize],
        receive: M,
        receive_counts: &[usize],
    ) -> Result<Request<M>, CollectiveError> {
        let (source, target) = owned(send, receive);
        let call = self.all_to_all_call(group, (send_counts, receive_counts), source, target)?;
        self.launch(endpoint, group, call)
    }

    fn all_to_all_call<'b>(
        &self,
        group: Group,
        (goes, comes): (&[usize], &[usize]),
        input: Source<'b>,
        output: Target<'b>,
    ) -> Result<Call<'b>, CollectiveError> {
        let Place { rank, size } = self.place(group)?;
        need("send_counts", goes.len(), size)?;
        need("receive_counts", comes.len(), size)?;
        need("send, in bytes,", input.bytes().len(), sum(goes))?;
        need("receive, in bytes,", output.bytes().len(), sum(comes))?;
        need("its own part, in bytes,", comes[rank], goes[rank])?;
        let plan = plan::all_to_all(rank, size, goes, comes);
        Ok(Call::moving(
            code(Code::AllToAll, Algorithm::Flat),
            plan,
            input,
            output,
        ))
    }
}

impl<'b> Call<'b> {
    /// A call that only moves bytes.
    fn moving(algorithm: u8, plan: Plan, input: Source<'b>, output: Target<'b>) -> Self {
        Self {
            algorithm,
            input,
            output,
            plan,
            unit: 1,
            fold: None,
            after: After::Nothing,
        }
    }

    /// A call that folds elements with `op`.
    fn folding(self, op: &RawOp) -> Self {
        Self {
            unit: op.unit,
            fold: Some(Arc::clone(&op.fold)),
            ..self
        }
    }
}

fn borrowed<'b, T: Element>(send: &'b [T], receive: &'b mut [T]) -> (Source<'b>, Target<'b>) {
    (
        Source::Slice(send.as_bytes()),
        Target::Slice(receive.as_mut_bytes()),
    )
}

fn owned(send: impl Memory, receive: impl Memory) -> (Source<'static>, Target<'static>) {
    (
        Source::Owned(Box::new(send)),
        Target::Owned(Box::new(receive)),
    )
}
