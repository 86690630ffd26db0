//! Operations that move parts of members' memories: scatter, gather, all-gather and all-to-all.

use tsumuji_node::Endpoint;

use super::{Code, Place, called, called_at};
use crate::call::{Call, Source, Target, borrowed, bytes_of, need, owned, sum};
use crate::collectives::{Collectives, Request};
use crate::element::{Element, Memory};
use crate::error::CollectiveError;
use crate::group::Group;
use crate::plan;
use crate::table::{Algorithm, Operation};
use crate::tuning::TUNING;

impl Collectives {
    /// Each member receives its part of the root's `send` in `receive`; all parts have the same length. Except on the root `send` is ignored and may
    /// be empty.
    pub fn scatter<T: Element>(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        root: usize,
        send: &[T],
        receive: &mut [T],
    ) -> Result<(), CollectiveError> {
        let lens = vec![size_of_val(receive); self.place(group)?.size];
        let call =
            self.rooted_call((Code::Scatter, group), root, &lens, borrowed(send, receive))?;
        self.run(endpoint, group, call)
    }

    /// As [`scatter`](Self::scatter), with parts of `counts` elements. Except on the root `counts` is ignored. All members call this form.
    pub fn scatter_v<T: Element>(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        root: usize,
        send: &[T],
        counts: &[usize],
        receive: &mut [T],
    ) -> Result<(), CollectiveError> {
        let lens = bytes_of::<T>(counts);
        let call =
            self.rooted_call((Code::Scatter, group), root, &lens, borrowed(send, receive))?;
        self.run(endpoint, group, call)
    }

    /// Non-blocking [`scatter_v`](Self::scatter_v), with counts in bytes.
    #[allow(clippy::too_many_arguments)] // the operation needs them
    pub fn start_scatter_v<S: Memory, M: Memory>(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        root: usize,
        send: S,
        counts: &[usize],
        receive: M,
    ) -> Result<Request<M>, CollectiveError> {
        let call = self.rooted_call((Code::Scatter, group), root, counts, owned(send, receive))?;
        self.launch(endpoint, group, call)
    }

    /// The root receives each member's `send`, one behind the other in order of ranks; all have the same length. Except on the root `receive` is not
    /// used and may be empty.
    pub fn gather<T: Element>(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        root: usize,
        send: &[T],
        receive: &mut [T],
    ) -> Result<(), CollectiveError> {
        let lens = vec![size_of_val(send); self.place(group)?.size];
        let call = self.rooted_call((Code::Gather, group), root, &lens, borrowed(send, receive))?;
        self.run(endpoint, group, call)
    }

    /// As [`gather`](Self::gather), with parts of `counts` elements. Except on the root `counts` is ignored. All members call this form.
    pub fn gather_v<T: Element>(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        root: usize,
        send: &[T],
        receive: &mut [T],
        counts: &[usize],
    ) -> Result<(), CollectiveError> {
        let lens = bytes_of::<T>(counts);
        let call = self.rooted_call((Code::Gather, group), root, &lens, borrowed(send, receive))?;
        self.run(endpoint, group, call)
    }

    /// Non-blocking [`gather_v`](Self::gather_v), with counts in bytes.
    #[allow(clippy::too_many_arguments)] // the operation needs them
    pub fn start_gather_v<S: Memory, M: Memory>(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        root: usize,
        send: S,
        receive: M,
        counts: &[usize],
    ) -> Result<Request<M>, CollectiveError> {
        let call = self.rooted_call((Code::Gather, group), root, counts, owned(send, receive))?;
        self.launch(endpoint, group, call)
    }

    /// A gather or scatter. On the root `lens` are those of all parts.
    fn rooted_call<'b>(
        &self,
        (code, group): (Code, Group),
        root: usize,
        lens: &[usize],
        (input, output): (Source<'b>, Target<'b>),
    ) -> Result<Call<'b>, CollectiveError> {
        let Place { rank, size } = self.rooted(group, root)?;
        let (sent, received) = (input.bytes().len(), output.bytes().len());
        let gathers = code == Code::Gather;
        let own = if gathers { sent } else { received };
        if rank == root {
            need("counts", lens.len(), size)?;
            let (all, part) = (sum(lens), lens[root]);
            let (sends, receives) = if gathers { (part, all) } else { (all, part) };
            need("send, in bytes,", sent, sends)?;
            need("receive, in bytes,", received, receives)?;
        }
        let plan = plan::rooted(gathers, (rank, size, root), lens, own);
        let called = called_at(code, Algorithm::Flat, root);
        Ok(Call::moving(called, plan, input, output))
    }

    /// Every member receives each member's `send`, one behind the other in order of ranks; all have the same length.
    pub fn all_gather<T: Element>(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        send: &[T],
        receive: &mut [T],
    ) -> Result<(), CollectiveError> {
        let counts = vec![send.len(); self.place(group)?.size];
        self.all_gather_v(endpoint, group, send, receive, &counts)
    }

    /// As [`all_gather`](Self::all_gather), with parts of `counts` elements, the same counts on all.
    pub fn all_gather_v<T: Element>(
        &mut self,
        endpoint: &mut Endpoint,
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
    pub fn start_all_gather_v<S: Memory, M: Memory>(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        send: S,
        receive: M,
        counts: &[usize],
    ) -> Result<Request<M>, CollectiveError> {
        let (source, target) = owned(send, receive);
        let call = self.all_gather_call(endpoint, group, counts, source, target)?;
        self.launch(endpoint, group, call)
    }

    fn all_gather_call<'b>(
        &self,
        endpoint: &Endpoint,
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
        let differ = lens.iter().any(|len| *len != longest);
        let algorithm = match self.choose(endpoint, (Operation::AllGather, group), size, longest) {
            Algorithm::Hosts if differ && longest <= TUNING.eager.bytes => Algorithm::Flat,
            Algorithm::Hosts
                if differ || !is_ordered && sum(lens) > TUNING.long.combined_bytes_max =>
            {
                Algorithm::Ring
            }
            other => other,
        };
        let plan = match (algorithm, hosts) {
            (Algorithm::Hosts, Some(hosts)) => {
                plan::all_gather_hosts(hosts, rank, lens, longest > TUNING.eager.bytes)
            }
            (Algorithm::Flat, _) => plan::all_gather_direct(rank, size, lens),
            _ => plan::all_gather_ring(rank, size, lens),
        };
        let called = called(Code::AllGather, algorithm);
        Ok(Call::moving(called, plan, input, output))
    }

    /// Member i receives part i of every member's `send`, one behind the other in order of ranks; all parts have the same length.
    pub fn all_to_all<T: Element>(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        send: &[T],
        receive: &mut [T],
    ) -> Result<(), CollectiveError> {
        let size = self.place(group)?.size;
        need("receive", receive.len(), send.len())?;
        need("send", send.len(), send.len() / size * size)?;
        let (source, target) = borrowed(send, receive);
        let lens = vec![source.bytes().len() / size; size];
        let call = self.all_to_all_call(group, (&lens, &lens), source, target)?;
        self.run(endpoint, group, call)
    }

    /// Non-blocking [`all_to_all`](Self::all_to_all).
    pub fn start_all_to_all<S: Memory, M: Memory>(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        send: S,
        receive: M,
    ) -> Result<Request<M>, CollectiveError> {
        let (source, target) = owned(send, receive);
        let size = self.place(group)?.size;
        let lens = vec![source.bytes().len() / size; size];
        let call = self.all_to_all_call(group, (&lens, &lens), source, target)?;
        self.launch(endpoint, group, call)
    }

    /// As [`all_to_all`](Self::all_to_all), with parts of `send_counts` and `receive_counts` elements, which must match between each pair. All
    /// members call this form.
    pub fn all_to_all_v<T: Element>(
        &mut self,
        endpoint: &mut Endpoint,
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
    pub fn start_all_to_all_v<S: Memory, M: Memory>(
        &mut self,
        endpoint: &mut Endpoint,
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
        let called = called(Code::AllToAll, Algorithm::Flat);
        Ok(Call::moving(called, plan, input, output))
    }
}
