//! A node's groups and operations: makes groups; begins, advances and ends operations.
//!
//! `api` defines each operation; this is what they have in common. There is one `Collectives` for an endpoint, which is passed to every call.
//!
//! Invariant: every call advances all operations, so members may wait for requests in any order.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tsumuji_link::shm::coarse_ms;
use tsumuji_node::{Endpoint, NodeId};

use crate::call::Call;
use crate::core::{CHANNEL, Core, Dispatcher};
use crate::element::Memory;
use crate::error::{CollectiveError, GroupError};
use crate::group::{Group, GroupState, Members, key_of};
use crate::header::HEADER_BYTES;
use crate::ledger::{CollectiveCounters, PIECE_BYTES_LEAST};
use crate::operation::Operation;
use crate::plan::Hosts;
use crate::table::{Can, Table};
use crate::tuning::TUNING;

/// Most operations under way at once.
pub const OPERATIONS_MAX: usize = 256;

/// Most groups made by a `Collectives`; keys of closed ones are remembered, so that late messages are not taken for those of others.
pub const GROUPS_MAX: usize = 64 << 10;

/// Number of the next `Collectives`: tells apart groups and requests of several in one process.
static OWNERS: AtomicU32 = AtomicU32::new(0);

/// Collective operations of one endpoint. See the crate's head.
pub struct Collectives {
    pub(crate) core: Core,
    under_way: Vec<Operation<'static>>,
    pub(crate) table: Table,
    owner: u32,
    next_id: u64,
    /// When the endpoint was last polled, by `coarse_ms`.
    polled_ms: u64,
    /// When operations ask next about transfers that wait.
    ask_at_ms: u64,
}

impl std::fmt::Debug for Collectives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collectives")
            .field("core", &self.core)
            .field("under_way", &self.under_way.len())
            .finish_non_exhaustive()
    }
}

/// A non-blocking operation. `M` is the memory that it fills, returned by [`Collectives::wait`].
///
/// If it is dropped, the operation goes on until it is done, and its result is lost.
#[derive(Debug)]
#[must_use = "the operation's result comes from `Collectives::wait`"]
pub struct Request<M> {
    id: u64,
    owner: u32,
    _alive: Arc<()>,
    memory: PhantomData<fn() -> M>,
}

impl Collectives {
    /// Makes collectives for `endpoint`, with the table of algorithms of the profile in force ([`Table::in_force`]), or the built-in one.
    pub fn new(endpoint: &mut Endpoint) -> Result<Self, crate::TableError> {
        let table = Table::in_force(endpoint.link_name())?;
        Ok(Self::with_table(endpoint, table))
    }

    /// As [`new`](Self::new), with the caller's table. All members must use the same.
    pub fn with_table(endpoint: &mut Endpoint, table: Table) -> Self {
        let mut collectives = Self::without_groups(endpoint, table);
        let all: Vec<NodeId> = endpoint.members().iter().map(|member| member.id).collect();
        // It cannot fail: this node is a member, and it is the first group.
        let world = collectives.group(endpoint, &all, 0);
        debug_assert!(world.is_ok());
        collectives
    }

    /// As [`with_table`](Self::with_table), with a [`world`](Self::world) of these members only: for a program that takes new members in before it makes
    /// this.
    pub fn with_world(
        endpoint: &mut Endpoint,
        table: Table,
        members: &[NodeId],
    ) -> Result<Self, GroupError> {
        let mut collectives = Self::without_groups(endpoint, table);
        collectives.group(endpoint, members, 0)?;
        Ok(collectives)
    }

    fn without_groups(endpoint: &mut Endpoint, table: Table) -> Self {
        Self {
            core: Core::new(endpoint, table.hash()),
            under_way: Vec::new(),
            table,
            owner: OWNERS.fetch_add(1, Ordering::Relaxed),
            next_id: 0,
            polled_ms: coarse_ms(),
            ask_at_ms: 0,
        }
    }

    /// The group of all members that the cluster had when this was made, ranks being node numbers. It never grows.
    pub fn world(&self) -> Group {
        Group {
            index: 0,
            owner: self.owner,
        }
    }

    /// Makes a group of these members, whose ranks are their places in `members`. All of them make the same call; other nodes none.
    ///
    /// Groups of the same members are told apart by `tag`. Nothing is sent. A node that was dead or restarted is a member like any other once it is
    /// up again, but of new groups only.
    pub fn group(
        &mut self,
        endpoint: &Endpoint,
        members: &[NodeId],
        tag: u32,
    ) -> Result<Group, GroupError> {
        let me = self.core.me;
        let Some(rank) = members.iter().position(|member| *member == me) else {
            return Err(GroupError::NotAMember { me });
        };
        let nodes = endpoint.members().len();
        let mut seen = vec![false; nodes];
        for &member in members {
            match seen.get_mut(usize::from(member.0)) {
                None => return Err(GroupError::UnknownMember { member }),
                Some(true) => return Err(GroupError::Twice { member }),
                Some(seen) => *seen = true,
            }
            let session = endpoint.ended_sessions(member);
            self.core.ledger.meet(member, session);
        }
        let key = key_of(members, tag);
        if self.core.by_key.contains_key(&key) {
            return Err(GroupError::Exists { tag });
        }
        let index = self.core.groups.len();
        if index >= GROUPS_MAX {
            return Err(GroupError::TooMany { limit: GROUPS_MAX });
        }
        let state = GroupState {
            sequence: 0,
            failed: None,
            sessions: members
                .iter()
                // Messages of a dead member's last session for the group may have arrived before the group was made.
                .map(|member| {
                    let over = u64::from(endpoint.is_dead(*member));
                    endpoint.ended_sessions(*member).saturating_sub(over)
                })
                .collect(),
            dead: (0..members.len())
                .filter(|rank| endpoint.is_dead(members[*rank]))
                .collect(),
            closed: false,
            abandoned: false,
            is_near: {
                let host = endpoint.host_of(me);
                let mut hosts = members.iter().map(|member| endpoint.host_of(*member));
                host.is_some() && hosts.all(|other| other == host)
            },
            members: {
                let hosts = members.iter().map(|member| endpoint.host_of(*member));
                Members::new(index, key, members.to_vec(), rank, Hosts::of(hosts))
            },
        };
        self.core.add_group(state);
        Ok(Group {
            index: index as u32, // below GROUPS_MAX
            owner: self.owner,
        })
    }

    /// Ends the use of a group. Its members and tag cannot be used for another one. Members that call on it nevertheless get
    /// [`Mismatch`](CollectiveError::Mismatch) with this node's name, as soon as this node makes a call of this crate.
    pub fn close_group(&mut self, group: Group) -> Result<(), GroupError> {
        let index = self.index(group).ok_or(GroupError::NoSuchGroup)?;
        if self
            .under_way
            .iter()
            .any(|operation| operation.group == index)
        {
            return Err(GroupError::Busy);
        }
        self.core.groups[index].closed = true;
        self.core.refuse_kept(index);
        Ok(())
    }

    /// Abandons a group with its operations, at this node only: their results are lost, their requests are no more, and what members still send for
    /// them is dropped. For members that all learn by other means that the group is over: one that does not waits for this node for ever.
    pub fn abandon_group(&mut self, group: Group) -> Result<(), GroupError> {
        let index = self.index(group).ok_or(GroupError::NoSuchGroup)?;
        let mut place = 0;
        while let Some(operation) = self.under_way.get_mut(place) {
            if operation.group == index {
                operation.drop_early(&mut self.core.ledger);
                self.under_way.swap_remove(place);
            } else {
                place += 1;
            }
        }
        let state = &mut self.core.groups[index];
        (state.closed, state.abandoned) = (true, true);
        let (key, next) = (state.members.key, state.sequence);
        self.core.purge(key, next);
        Ok(())
    }

    /// This node's rank in `group`; `None`: no such group.
    pub fn rank(&self, group: Group) -> Option<usize> {
        self.members(group).map(|members| members.rank)
    }

    /// Number of members of `group`; `None`: no such group.
    pub fn size(&self, group: Group) -> Option<usize> {
        self.members(group).map(Members::size)
    }

    /// Has long transfers from processes of this host go through the link from now on, instead of being read in the sender's memory.
    pub fn forbid_direct_reads(&mut self) {
        self.core.ledger.forbids_reads = true;
    }

    /// Has long transfers of at least so many bytes to this process, from processes of this host, be read in their senders' memory. Without that, all
    /// are where the kernel takes less time for it than two copies do, otherwise those of at least 1 MiB.
    pub fn read_directly_from(&mut self, bytes: usize) {
        self.core.ledger.direct_bytes = bytes;
    }

    /// Counters since the start.
    pub fn counters(&self) -> CollectiveCounters {
        self.core.ledger.counters
    }

    /// Capabilities of the link of `endpoint`.
    pub(crate) fn can(&self, endpoint: &Endpoint) -> Can {
        Can {
            broadcast: endpoint.broadcasts(),
            hosts: Hosts::of(
                endpoint
                    .members()
                    .iter()
                    .map(|member| endpoint.host_of(member.id)),
            )
            .is_some(),
        }
    }

    /// Replaces the table; returns the old one.
    pub(crate) fn exchange_table(&mut self, table: Table) -> Table {
        std::mem::replace(&mut self.table, table)
    }

    pub(crate) fn index(&self, group: Group) -> Option<usize> {
        let index = group.index as usize;
        let open = group.owner == self.owner
            && self
                .core
                .groups
                .get(index)
                .is_some_and(|state| !state.closed);
        open.then_some(index)
    }

    pub(crate) fn members(&self, group: Group) -> Option<&Members> {
        self.index(group)
            .map(|index| &self.core.groups[index].members)
    }

    /// Advances all operations, without waiting. To be called now and then by a program that does something else, and before it waits for the
    /// endpoint's descriptor. Returns how much the endpoint did.
    pub fn progress(&mut self, endpoint: &mut Endpoint) -> Result<usize, CollectiveError> {
        let mut dispatcher = Dispatcher {
            core: &mut self.core,
            under_way: &mut self.under_way,
            current: None,
        };
        let done = endpoint.poll_on(CHANNEL, &mut dispatcher)?;
        self.polled_ms = coarse_ms();
        self.ask_if_time(endpoint, None);
        self.advance(endpoint, None)?;
        Ok(done)
    }

    /// Whether the endpoint was not polled for so long that it must be now.
    #[inline]
    pub(crate) fn needs_poll(&self) -> bool {
        coarse_ms().saturating_sub(self.polled_ms) >= TUNING.polling.poll_every_ms
    }

    /// Advances all operations, and polls the endpoint if it was not polled for long.
    fn advance_or_poll(&mut self, endpoint: &mut Endpoint) -> Result<(), CollectiveError> {
        if self.needs_poll() {
            return self.progress(endpoint).map(drop);
        }
        self.advance(endpoint, None)
    }

    /// Does everything that is possible without further messages.
    fn advance(
        &mut self,
        endpoint: &mut Endpoint,
        mut current: Option<&mut Operation<'_>>,
    ) -> Result<(), CollectiveError> {
        self.hear_out(endpoint, current.as_deref_mut())?;
        let endpoint = &mut *endpoint.batch();
        self.core.mind_ended_sessions(endpoint);
        for operation in &mut self.under_way {
            self.core.advance(operation, endpoint)?;
        }
        if let Some(current) = current.as_deref_mut() {
            self.core.advance(current, endpoint)?;
        }
        self.spread_failures(current);
        self.core.ledger.flush(endpoint)?;
        self.sweep();
        Ok(())
    }

    /// After members have died, receives what they sent before.
    fn hear_out(
        &mut self,
        endpoint: &mut Endpoint,
        mut current: Option<&mut Operation<'_>>,
    ) -> Result<(), CollectiveError> {
        let mut known = self.core.ended_sessions;
        loop {
            let ended_sessions = endpoint.all_ended_sessions();
            if ended_sessions == known {
                return Ok(());
            }
            known = ended_sessions;
            let mut dispatcher = Dispatcher {
                core: &mut self.core,
                under_way: &mut self.under_way,
                current: current.as_deref_mut(),
            };
            endpoint.poll_on(CHANNEL, &mut dispatcher)?;
        }
    }

    /// An operation's failure fails its group, and the group's failure the later operations.
    fn spread_failures(&mut self, mut current: Option<&mut Operation<'_>>) {
        let core = &mut self.core;
        let failed = |operation: &Operation<'_>| {
            let failure = operation.failure?;
            Some((operation.group, operation.sequence, failure))
        };
        let mut again = true;
        while again {
            again = false;
            for (group, first, failure) in self.under_way.iter().filter_map(failed) {
                again |= core.fail(group, first, failure);
            }
            if let Some((group, first, failure)) = current.as_deref().and_then(failed) {
                again |= core.fail(group, first, failure);
            }
            if again {
                for operation in &mut self.under_way {
                    core.judge(operation);
                }
                if let Some(current) = current.as_deref_mut() {
                    core.judge(current);
                }
            }
        }
        for operation in &mut self.under_way {
            if operation.failure.is_some() {
                operation.drop_early(&mut core.ledger);
            }
        }
        if let Some(current) = current
            && current.failure.is_some()
        {
            current.drop_early(&mut core.ledger);
        }
    }

    /// Drops operations that are over and whose requests no longer exist.
    fn sweep(&mut self) {
        let mut index = 0;
        while index < self.under_way.len() {
            let operation = &self.under_way[index];
            let over = operation.is_done() || operation.failure.is_some();
            if over && operation.request.strong_count() == 0 {
                self.under_way.swap_remove(index);
            } else {
                index += 1;
            }
        }
    }

    /// Begins `call` with the next sequence number of its group.
    fn begin<'b>(
        &mut self,
        group: Group,
        call: Call<'b>,
    ) -> Result<Operation<'b>, CollectiveError> {
        let index = self.index(group).ok_or(CollectiveError::NoSuchGroup)?;
        // So that all pieces but the last of a transfer are long, and hold an element.
        let limit = self.core.ledger.message_limit_bytes;
        let least = HEADER_BYTES + call.unit.max(2 * PIECE_BYTES_LEAST);
        if limit < least {
            return Err(CollectiveError::MessageLimit { limit, least });
        }
        let state = &mut self.core.groups[index];
        let sequence = state.sequence;
        if let Some(failure) = state.failure_of(sequence) {
            return Err(failure.into());
        }
        state.sequence = sequence.wrapping_add(1);
        self.next_id += 1;
        self.core.ledger.counters.operations += 1;
        let mut operation = Operation::new(call, &state.members, self.next_id, sequence);
        self.core.replay(&mut operation);
        Ok(operation)
    }

    /// Begins `call` and advances it until it is done.
    pub(crate) fn run(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        call: Call<'_>,
    ) -> Result<(), CollectiveError> {
        let mut operation = self.begin(group, call)?;
        self.finish(endpoint, &mut operation)
    }

    fn finish(
        &mut self,
        endpoint: &mut Endpoint,
        operation: &mut Operation<'_>,
    ) -> Result<(), CollectiveError> {
        loop {
            self.advance(endpoint, Some(&mut *operation))?;
            // Messages about a failure must leave, too: other members wait for them.
            if self.core.ledger.outbox.is_empty() {
                if let Some(failure) = operation.failure {
                    return Err(failure.into());
                }
                if operation.is_done() {
                    if self.needs_poll() {
                        self.progress(endpoint)?;
                    }
                    return Ok(());
                }
            }
            self.await_something(endpoint, Some(&mut *operation), TUNING.polling.check_every)?;
        }
    }

    /// Begins `call` and advances it as far as possible without waiting.
    pub(crate) fn launch<M>(
        &mut self,
        endpoint: &mut Endpoint,
        group: Group,
        call: Call<'static>,
    ) -> Result<Request<M>, CollectiveError> {
        if self.under_way.len() >= OPERATIONS_MAX {
            return Err(CollectiveError::TooMany {
                limit: OPERATIONS_MAX,
            });
        }
        let mut operation = self.begin(group, call)?;
        let alive = Arc::new(());
        operation.request = Arc::downgrade(&alive);
        let request = Request {
            id: operation.id,
            owner: self.owner,
            _alive: alive,
            memory: PhantomData,
        };
        self.under_way.push(operation);
        self.advance_or_poll(endpoint)?;
        Ok(request)
    }

    fn find<M>(&self, request: &Request<M>) -> Result<usize, CollectiveError> {
        let found = self
            .under_way
            .iter()
            .position(|operation| operation.id == request.id);
        found
            .filter(|_| request.owner == self.owner)
            .ok_or(CollectiveError::NoSuchRequest)
    }

    fn is_over(&self, index: usize) -> bool {
        let operation = &self.under_way[index];
        operation.failure.is_some() || operation.is_done() && self.core.ledger.outbox.is_empty()
    }

    /// Whether the operation is over, well or not. Advances all operations, and never waits.
    pub fn test<M>(
        &mut self,
        endpoint: &mut Endpoint,
        request: &Request<M>,
    ) -> Result<bool, CollectiveError> {
        if !self.is_over(self.find(request)?) {
            self.progress(endpoint)?;
        }
        Ok(self.is_over(self.find(request)?))
    }

    /// As [`test`](Self::test), but waits up to `timeout` for the operation to be over.
    pub fn test_for<M>(
        &mut self,
        endpoint: &mut Endpoint,
        request: &Request<M>,
        timeout: Duration,
    ) -> Result<bool, CollectiveError> {
        self.find(request)?;
        self.advance_or_poll(endpoint)?;
        let mut since = None;
        while !self.is_over(self.find(request)?) {
            let waited = since.get_or_insert_with(Instant::now).elapsed();
            let left = timeout.saturating_sub(waited);
            if left.is_zero() {
                return Ok(false);
            }
            self.await_something(endpoint, None, left.min(TUNING.polling.check_every))?;
            self.advance(endpoint, None)?;
        }
        Ok(true)
    }

    /// Waits until the operation is over, and returns the memory that it filled.
    pub fn wait<M: Memory>(
        &mut self,
        endpoint: &mut Endpoint,
        request: Request<M>,
    ) -> Result<M, CollectiveError> {
        self.test_for(endpoint, &request, Duration::MAX)?;
        let index = self.find(&request)?;
        let operation = self.under_way.swap_remove(index);
        if let Some(failure) = operation.failure {
            return Err(failure.into());
        }
        let memory: Option<Box<dyn Any>> = operation.into_output();
        // A request has the type of the memory that its operation was given.
        let memory = memory.and_then(|memory| memory.downcast::<M>().ok());
        memory
            .map(|memory| *memory)
            .ok_or(CollectiveError::NoSuchRequest)
    }

    /// Waits for all requests; returns their memories in the order given. The first error is returned when all are over.
    pub fn wait_all<M: Memory>(
        &mut self,
        endpoint: &mut Endpoint,
        requests: Vec<Request<M>>,
    ) -> Result<Vec<M>, CollectiveError> {
        let waited: Vec<_> = requests
            .into_iter()
            .map(|request| self.wait(endpoint, request))
            .collect();
        waited.into_iter().collect()
    }

    fn await_something(
        &mut self,
        endpoint: &mut Endpoint,
        mut current: Option<&mut Operation<'_>>,
        most: Duration,
    ) -> Result<(), CollectiveError> {
        let own = current.as_deref().and_then(Operation::timer);
        let timers = self.under_way.iter().filter_map(Operation::timer);
        let wait = timers.chain(own).min().map_or(most, |timer| {
            timer.saturating_duration_since(Instant::now()).min(most)
        });
        let mut dispatcher = Dispatcher {
            core: &mut self.core,
            under_way: &mut self.under_way,
            current: current.as_deref_mut(),
        };
        endpoint.poll_on_wait(CHANNEL, &mut dispatcher, wait)?;
        self.polled_ms = coarse_ms();
        self.ask_if_time(endpoint, current);
        Ok(())
    }

    /// Has all operations ask about transfers that wait, at most once in `polling.ask_every_ms` of `tuning`. Questions leave by the next `advance`.
    fn ask_if_time(&mut self, endpoint: &Endpoint, current: Option<&mut Operation<'_>>) {
        if self.polled_ms < self.ask_at_ms {
            return;
        }
        self.ask_at_ms = self.polled_ms + TUNING.polling.ask_every_ms;
        let is_never_met = |node| endpoint.other_congestion(node).is_some();
        for operation in &mut self.under_way {
            self.core.ask(operation, is_never_met);
        }
        if let Some(current) = current {
            self.core.ask(current, is_never_met);
        }
    }
}
