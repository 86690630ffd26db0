//! The operations, blocking and non-blocking: they check arguments, choose an algorithm, and pass a plan to `collectives`.
//!
//! Every member of the group makes the same calls in the same order. Lengths are in elements; a blocking call returns when this member's part is done
//! and its buffers may be used again.

use tsumuji_node::{Endpoint, Link};
use zerocopy::IntoBytes;

use crate::call::{After, Call, Source, Target, borrowed, bytes_of, need, owned, sum};
use crate::collectives::{Collectives, Request};
use crate::element::{Element, Memory, Op, RawOp};
use crate::error::CollectiveError;
use crate::group::Group;
use crate::ledger::EAGER_BYTES;
use crate::plan::{self, Plan};
use crate::table::{Algorithm, Can, Operation, Question};

/// Native broadcasts have offsets of 32 bits.
const NATIVE_BYTES_MAX: usize = u32::MAX as usize;

/// Most memory that a member takes to combine the parts of a host's members; where it would take more, parts go directly. A table may choose
/// `hosts` for long parts, too.
const COMBINED_BYTES_MAX: usize = 16 << 20;

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
    fn link<L: Link>(&self, endpoint: &Endpoint<L>, group: Group) -> &'static str {
        let is_near = self
            .index(group)
            .is_some_and(|index| self.core.groups[index].is_near);
        self.table.link_of(endpoint.link_name(), is_near)
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
            link: self.link(endpoint, group),
            can: Can {
                broadcast,
                hosts: self.hosts(group).is_some(),
            },
            nodes,
            bytes: bytes as u64,
        })
    }

    /// The algorithm of an operation whose parts all have `len` bytes, on all members.
    fn choose_for_parts<L: Link>(
        &self,
        endpoint: &Endpoint<L>,
        (operation, group): (Operation, Group),
        len: usize,
    ) -> Result<Algorithm, CollectiveError> {
        let size = self.place(group)?.size;
        Ok(match self.choose(endpoint, (operation, group), size, len) {
            Algorithm::Hosts if self.is_too_long_for_hosts((operation, group), len) => {
                Algorithm::Flat
            }
            other => other,
        })
    }

    /// Whether `len` bytes for each member are more than a host's leader combines.
    pub(crate) fn is_too_long_for_hosts(
        &self,
        (operation, group): (Operation, Group),
        len: usize,
    ) -> bool {
        let size = self.place(group).map_or(0, |place| place.size);
        let copies = match (operation, self.hosts(group)) {
            (Operation::AllToAll, Some(hosts)) => 3 * hosts.most(),
            // Where ranks of a host are neighbours, parts are combined in the program's memory.
            (Operation::AllGather, Some(hosts)) if !hosts.are_ordered() => 1,
            (Operation::AllToAll | Operation::Gather | Operation::Scatter, _) => 1,
            _ => 0,
        };
        len.saturating_mul(size).saturating_mul(copies) > COMBINED_BYTES_MAX
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
        let len = size_of_val(receive);
        let algorithm = self.choose_for_parts(endpoint, (Operation::Scatter, group), len)?;
        let lens = vec![len; self.place(group)?.size];
        let (source, target) = borrowed(send, receive);
        let call = self.scatter_call(group, root, algorithm, &lens, source, target)?;
        self.run(endpoint, group, call)
    }

    /// As [`scatter`](Self::scatter), with parts of `counts` elements. Except on the root `counts` is ignored. All members call this form.
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
        let lens = bytes_of::<T>(counts);
        let call = self.scatter_call(group, root, Algorithm::Flat, &lens, source, target)?;
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
        let call = self.scatter_call(group, root, Algorithm::Flat, counts, source, target)?;
        self.launch(endpoint, group, call)
    }

    fn scatter_call<'b>(
        &self,
        group: Group,
        root: usize,
        algorithm: Algorithm,
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
        let plan = match (algorithm, self.hosts(group)) {
            (Algorithm::Hosts, Some(hosts)) => plan::scatter_hosts(hosts, rank, root, own),
            _ => plan::scatter(rank, size, root, lens, own),
        };
        let code = code(Code::Scatter, algorithm);
        Ok(Call::moving(code, plan, input, output))
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
        let len = size_of_val(send);
        let algorithm = self.choose_for_parts(endpoint, (Operation::Gather, group), len)?;
        let lens = vec![len; self.place(group)?.size];
        let (source, target) = borrowed(send, receive);
        let call = self.gather_call(group, root, algorithm, &lens, source, target)?;
        self.run(endpoint, group, call)
    }

    /// As [`gather`](Self::gather), with parts of `counts` elements. Except on the root `counts` is ignored. All members call this form.
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
        let lens = bytes_of::<T>(counts);
        let call = self.gather_call(group, root, Algorithm::Flat, &lens, source, target)?;
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
        let call = self.gather_call(group, root, Algorithm::Flat, counts, source, target)?;
        self.launch(endpoint, group, call)
    }

    fn gather_call<'b>(
        &self,
        group: Group,
        root: usize,
        algorithm: Algorithm,
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
        let plan = match (algorithm, self.hosts(group)) {
            (Algorithm::Hosts, Some(hosts)) => plan::gather_hosts(hosts, rank, root, own),
            _ => plan::gather(rank, size, root, lens, own),
        };
        let code = code(Code::Gather, algorithm);
        Ok(Call::moving(code, plan, input, output))
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
        let hosts = self.hosts(group);
        // Where ranks of a host are neighbours, parts are combined in the program's memory.
        let is_ordered = hosts.is_none_or(plan::Hosts::are_ordered);
        let algorithm = match self.choose(endpoint, (Operation::AllGather, group), size, longest) {
            Algorithm::Hosts if !is_ordered && sum(lens) > COMBINED_BYTES_MAX => Algorithm::Ring,
            other => other,
        };
        let plan = match (algorithm, hosts) {
            (Algorithm::Hosts, Some(hosts)) => {
                plan::all_gather_hosts(hosts, rank, lens, longest > EAGER_BYTES)
            }
            (Algorithm::Flat, _) => plan::all_gather_direct(rank, size, lens),
            _ => plan::all_gather_ring(rank, size, lens),
        };
        let code = code(Code::AllGather, algorithm);
        Ok(Call::moving(code, plan, input, output))
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
            Algorithm::Ring if !op.commutative && self.link(endpoint, group) == "shm" => {
                Algorithm::Tree
            }
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
        let (source, target) = borrowed(send, receive);
        let call = self.equal_all_to_all_call(endpoint, group, source, target)?;
        self.run(endpoint, group, call)
    }

    /// Non-blocking [`all_to_all`](Self::all_to_all).
    pub fn start_all_to_all<S: Memory, M: Memory, L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: Group,
        send: S,
        receive: M,
    ) -> Result<Request<M>, CollectiveError> {
        let (source, target) = owned(send, receive);
        let call = self.equal_all_to_all_call(endpoint, group, source, target)?;
        self.launch(endpoint, group, call)
    }

    fn equal_all_to_all_call<'b, L: Link>(
        &self,
        endpoint: &Endpoint<L>,
        group: Group,
        input: Source<'b>,
        output: Target<'b>,
    ) -> Result<Call<'b>, CollectiveError> {
        let Place { rank, size } = self.place(group)?;
        let bytes = input.bytes().len();
        need("receive, in bytes,", output.bytes().len(), bytes)?;
        need("send, in bytes,", bytes, bytes / size * size)?;
        let len = bytes / size;
        let algorithm = self.choose_for_parts(endpoint, (Operation::AllToAll, group), len)?;
        let plan = match (algorithm, self.hosts(group)) {
            (Algorithm::Hosts, Some(hosts)) => plan::all_to_all_hosts(hosts, rank, len),
            _ => {
                let lens = vec![len; size];
                plan::all_to_all(rank, size, &lens, &lens)
            }
        };
        let code = code(Code::AllToAll, algorithm);
        Ok(Call::moving(code, plan, input, output))
    }

    /// As [`all_to_all`](Self::all_to_all), with parts of `send_counts` and `receive_counts` elements, which must match between each pair. All
    /// members call this form.
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
        let code = code(Code::AllToAll, Algorithm::Flat);
        Ok(Call::moving(code, plan, input, output))
    }
}
