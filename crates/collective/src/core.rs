//! State that all operations of a node share: groups, early messages, and failures.
//!
//! Owned by `collectives`, which passes it to the endpoint in the handler of messages ([`Dispatcher`]).
//!
//! Invariants: a message goes to the one operation of its group and sequence number, or is kept until that is called here, or is dropped and counted;
//! bytes for an operation that is done here fail its group, and questions about one are answered; kept messages are bounded for each peer; a failure is
//! sent to every member once, and again if an earlier operation turns out to be the first that it concerns.

use std::collections::HashMap;

use tsumuji_node::{
    Channel, ChannelOptions, Context, Datagram, Delivery, Endpoint, Handler, NodeId,
};

use crate::error::CollectiveError;
use crate::group::{GroupState, Hash, is_before};
use crate::header::{Header, Kind, VERSION};
use crate::ledger::Ledger;
use crate::operation::{Arrival, Failure, Handled, Operation};

/// The endpoint's channel for all messages of this crate, in every class and priority, and its datagrams.
pub const CHANNEL: u16 = Channel::LIBRARY_IDS;

/// Budget of the channel, for messages that arrive before this node calls the operation: peers' windows are far below it.
const BUDGET_BYTES: usize = 64 << 20;

/// Limit of failures kept for groups that are not made here yet.
const EARLY_NEWS: usize = 1024;

/// How [`CHANNEL`] is opened. A program that opens it before it makes its [`Collectives`](crate::Collectives) keeps what arrives until then.
pub fn channel_options() -> ChannelOptions {
    ChannelOptions {
        budget_bytes: BUDGET_BYTES,
        all_datagrams: true,
    }
}

/// A failure that a member reported for a group not known here yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct News {
    from: NodeId,
    session: u64,
    failed: (u32, Failure),
}

/// Everything but the operations themselves.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) me: NodeId,
    pub(crate) ledger: Ledger,
    pub(crate) groups: Vec<GroupState>,
    /// Group of each key, open and closed.
    pub(crate) by_key: HashMap<u64, usize>,
    early: HashMap<(u64, u32), Vec<Arrival>>,
    early_news: HashMap<u64, News>,
    /// Hash of our table of algorithms, and of the version of headers.
    pub(crate) table: u64,
    /// Peers whose table is another one.
    pub(crate) other_tables: Vec<NodeId>,
    /// The endpoint's count of ended sessions, when they were last handled.
    pub(crate) ended_sessions: u64,
}

impl Core {
    pub(crate) fn new(endpoint: &mut Endpoint, table: u64) -> Self {
        let me = endpoint.me();
        let mut hash = Hash::new(VERSION);
        hash.add(table);
        let table = hash.0;
        let _ = endpoint.open(CHANNEL, channel_options()); // it may be open already
        let mut ledger = Ledger::new(endpoint);
        for member in endpoint.members() {
            if member.id != me {
                ledger.control(member.id, Header::told(Kind::Table, table));
            }
        }
        Self {
            me,
            ledger,
            groups: Vec::new(),
            by_key: HashMap::new(),
            early: HashMap::new(),
            early_news: HashMap::new(),
            table,
            other_tables: Vec::new(),
            ended_sessions: 0,
        }
    }

    /// Adds a group that was made here just now.
    pub(crate) fn add_group(&mut self, mut group: GroupState) {
        let news = self.early_news.remove(&group.members.key);
        let of_a_member = |news: &News| group.rank_of_session(news.from, news.session).is_some();
        group.failed = news.filter(of_a_member).map(|news| news.failed);
        self.by_key.insert(group.members.key, group.members.index);
        self.groups.push(group);
    }

    /// Compares a member's table with ours. Tables of ended sessions do not matter.
    fn compare_table(&mut self, from: NodeId, session: u64, table: u64) {
        if table != self.table
            && session == self.ledger.session(from)
            && !self.other_tables.contains(&from)
        {
            self.other_tables.push(from);
        }
    }

    /// Gives `operation`, which begins now, the messages that arrived for it before.
    pub(crate) fn replay(&mut self, operation: &mut Operation<'_>) {
        let Some(arrivals) = self.early.remove(&(operation.key, operation.sequence)) else {
            return;
        };
        for arrival in arrivals {
            arrival.leave(&mut self.ledger);
            // The group was not known when the message arrived.
            let group = &self.groups[operation.group];
            let rank = group.rank_of_session(arrival.from, arrival.session);
            let Some(rank) = rank.filter(|_| arrival.is_useful(&self.ledger)) else {
                arrival.pay(&mut self.ledger);
                continue;
            };
            let from = (arrival.from, rank);
            let handled =
                operation.handle(from, &arrival.header, &arrival.payload, &mut self.ledger);
            match handled {
                Handled::Early => operation.keep(arrival),
                Handled::Done => arrival.pay(&mut self.ledger),
            }
        }
    }

    /// Keeps a message for an operation not yet called here.
    fn keep(&mut self, from: (NodeId, u64), header: Header, payload: &[u8]) {
        // Questions of a broadcast come again, and answers are of questions of this node.
        if matches!(header.kind, Kind::Missing | Kind::Over) {
            return;
        }
        if self.ledger.keeps(from, header.kind, payload.len()) {
            let kept = self.early.entry((header.key, header.sequence));
            let arrival = Arrival::new(from, header, payload);
            kept.or_default().push(arrival);
        }
    }

    /// Drops messages kept for operations of `key` from `first` on.
    pub(crate) fn purge(&mut self, key: u64, first: u32) {
        let (ledger, early) = (&mut self.ledger, &mut self.early);
        early.retain(|&(of, sequence), arrivals| {
            if of != key || is_before(sequence, first) {
                return true;
            }
            for arrival in arrivals {
                arrival.leave(ledger);
                arrival.pay(ledger);
            }
            false
        });
    }

    /// Marks the group as failed from operation `first` on, and tells all members. `false`: that was known.
    pub(crate) fn fail(&mut self, group: usize, first: u32, failure: Failure) -> bool {
        let state = &mut self.groups[group];
        if state
            .failed
            .is_some_and(|(known, _)| !is_before(first, known))
        {
            return false;
        }
        state.failed = Some((first, failure));
        let key = state.members.key;
        for (rank, &to) in state.members.nodes.iter().enumerate() {
            let sessions = state.sessions[rank] == self.ledger.session(to);
            if rank != state.members.rank && sessions && !state.dead.contains(&rank) {
                self.ledger.control(to, abort(key, first, failure));
            }
        }
        self.purge(key, first);
        true
    }

    /// After a group was closed here: members that have called on it already are told.
    pub(crate) fn refuse_kept(&mut self, group: usize) {
        let state = &self.groups[group];
        let (key, next) = (state.members.key, state.sequence);
        let mut kept = (self.early.iter()).filter(|((of, _), _)| *of == key);
        let waits = kept.any(|(_, arrivals)| {
            let mut arrivals = arrivals.iter();
            arrivals.any(|it| state.rank_of_session(it.from, it.session).is_some())
        });
        if waits {
            self.fail(group, next, Failure::Mismatch(self.me));
        }
        self.purge(key, next);
    }

    /// A message came for an operation that is over here, or that will never be called: tells its sender, or fails the group, where somebody might wait
    /// for ever.
    fn answer_late(&mut self, group: usize, (from, session): (NodeId, u64), header: &Header) {
        let state = &self.groups[group];
        let is_present = self.ledger.session(from) == session;
        if state.abandoned || header.kind == Kind::Over {
            return;
        }
        if state.rank_of_session(from, session).is_none() {
            // A member that was restarted and calls on a group of its last incarnation.
            if is_present {
                let failure = Failure::Dead(from);
                self.ledger
                    .answer(from, abort(header.key, header.sequence, failure));
            }
            return;
        }
        if state.failure_of(header.sequence).is_some() {
            return; // all were told
        }
        if !is_before(header.sequence, state.sequence) {
            if state.closed {
                let (next, failure) = (state.sequence, Failure::Mismatch(self.me));
                self.fail(group, next, failure);
            }
        } else if matches!(header.kind, Kind::Eager | Kind::Piece | Kind::Reached) {
            // An operation that is done here lacks no bytes, and no report. A member that waits for these may hear of it from nobody else, as their sender
            // may be done, too.
            self.fail(group, header.sequence, Failure::Mismatch(from));
        } else if header.kind.asks() && is_present {
            // The operation may have ended between question and answer; then what was asked for comes before the answer.
            let answer = Header {
                kind: Kind::Over,
                offset: header.kind as u64,
                ..*header
            };
            self.ledger.answer(from, answer);
        }
    }

    fn news(&mut self, (from, session): (NodeId, u64), header: &Header) {
        let Ok(culprit) = u16::try_from(header.offset).map(NodeId) else {
            self.ledger.counters.malformed += 1;
            return;
        };
        let failure = match header.tag {
            1 => Failure::Dead(culprit),
            2 => Failure::Mismatch(culprit),
            3 => Failure::OtherTable(culprit),
            4 => Failure::OtherControl(culprit),
            _ => {
                self.ledger.counters.malformed += 1;
                return;
            }
        };
        if let Some(&group) = self.by_key.get(&header.key) {
            if self.groups[group].rank_of_session(from, session).is_none() {
                self.ledger.counters.late += 1;
                return;
            }
            self.fail(group, header.sequence, failure);
        } else if self.early_news.len() < EARLY_NEWS {
            let failed = (header.sequence, failure);
            let news = News {
                from,
                session,
                failed,
            };
            let known = self.early_news.entry(header.key).or_insert(news);
            if is_before(header.sequence, known.failed.0) {
                *known = news;
            }
        }
    }

    /// Handles sessions with members that have ended since the last call.
    pub(crate) fn mind_ended_sessions(&mut self, endpoint: &mut Endpoint) {
        let ended_sessions = endpoint.all_ended_sessions();
        if ended_sessions == self.ended_sessions {
            return;
        }
        self.ended_sessions = ended_sessions;
        for state in &mut self.groups {
            for (rank, &node) in state.members.nodes.iter().enumerate() {
                if endpoint.ended_sessions(node) != state.sessions[rank]
                    && !state.dead.contains(&rank)
                {
                    state.dead.push(rank);
                }
            }
        }
        for member in endpoint.members() {
            let session = endpoint.ended_sessions(member.id);
            self.ledger.meet(member.id, session);
            // A message of the next session may have shown it before.
            if session > self.ledger.session(member.id) {
                self.reap(member.id, session);
            }
        }
    }

    /// Ends the session with a peer. Messages of that session stay, as an operation may need nothing else of the peer; kept messages of earlier
    /// sessions are dropped, so that never more than those of two sessions are kept.
    fn reap(&mut self, peer: NodeId, next_session: u64) {
        let last = self.ledger.session(peer);
        for arrivals in self.early.values_mut() {
            arrivals.retain(|arrival| arrival.from != peer || arrival.session == last);
        }
        self.early.retain(|_, arrivals| !arrivals.is_empty());
        self.early_news.retain(|_, news| news.from != peer);
        self.other_tables.retain(|&other| other != peer);
        self.ledger.forget(peer, next_session);
    }

    /// Sets the failure of an operation that can no longer end.
    pub(crate) fn judge(&self, operation: &mut Operation<'_>) {
        let state = &self.groups[operation.group];
        if operation.failure.is_some() || operation.is_done() {
            return;
        }
        operation.failure = state.failure_of(operation.sequence).or_else(|| {
            let needed = |rank: &&usize| operation.needs(**rank, state.members.nodes[**rank]);
            let dead = state.dead.iter().find(needed);
            dead.map(|&rank| Failure::Dead(state.members.nodes[rank]))
        });
        if operation.failure.is_none() && !self.other_tables.is_empty() {
            let other = self
                .other_tables
                .iter()
                .find(|other| state.members.rank_of(**other).is_some());
            operation.failure = other.map(|&member| Failure::OtherTable(member));
        }
    }

    /// Advances an operation.
    pub(crate) fn advance(
        &mut self,
        operation: &mut Operation<'_>,
        endpoint: &mut Endpoint,
    ) -> Result<(), CollectiveError> {
        if operation.is_done() || operation.failure.is_some() {
            return Ok(());
        }
        let state = &mut self.groups[operation.group];
        operation.advance(endpoint, &state.members, &state.dead, &mut self.ledger)?;
        self.judge(operation);
        Ok(())
    }

    /// Has an operation ask about transfers that wait; or fail, where they wait for one that is never met.
    pub(crate) fn ask(
        &mut self,
        operation: &mut Operation<'_>,
        is_never_met: impl Fn(NodeId) -> bool,
    ) {
        if operation.failure.is_some() || operation.is_done() {
            return;
        }
        let state = &self.groups[operation.group];
        let mut members = (0..).zip(&state.members.nodes);
        let never_met =
            members.find(|(rank, node)| operation.needs(*rank, **node) && is_never_met(**node));
        match never_met {
            Some((_, &node)) => operation.failure = Some(Failure::OtherControl(node)),
            None => operation.ask(&state.members, &state.dead, &mut self.ledger),
        }
    }
}

/// The message that tells a member that its group failed from operation `first` on.
fn abort(key: u64, first: u32, failure: Failure) -> Header {
    let (reason, culprit) = match failure {
        Failure::Dead(member) => (1, member),
        Failure::Mismatch(member) => (2, member),
        Failure::OtherTable(member) => (3, member),
        Failure::OtherControl(member) => (4, member),
    };
    Header {
        tag: reason,
        sequence: first,
        key,
        ..Header::told(Kind::Abort, u64::from(culprit.0))
    }
}

/// Handler of arriving messages, with the operations that wait for them: those under way and the one of a blocking call.
pub(crate) struct Dispatcher<'a, 'b> {
    pub(crate) core: &'a mut Core,
    pub(crate) under_way: &'a mut Vec<Operation<'static>>,
    pub(crate) current: Option<&'a mut Operation<'b>>,
}

impl Handler for Dispatcher<'_, '_> {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        self.take(delivery);
    }

    fn datagram(&mut self, context: &mut Context<'_>, datagram: Datagram<'_>) {
        self.take_datagram(context.session(), datagram);
    }
}

impl Dispatcher<'_, '_> {
    fn take(&mut self, delivery: Delivery<'_>) {
        let core = &mut *self.core;
        let (from, session) = (delivery.from, delivery.session);
        core.ledger.meet(from, session);
        if session > core.ledger.session(from) {
            core.reap(from, session); // it died and came back within the present poll
        }
        let Some((header, payload)) = Header::split(delivery.body.bytes()) else {
            core.ledger.counters.malformed += 1;
            return;
        };
        match header.kind {
            Kind::Credit => return core.ledger.paid((from, session), header.offset),
            Kind::Table => {
                core.compare_table(from, session, header.offset);
                return;
            }
            Kind::Abort => return core.news((from, session), &header),
            _ => {}
        }
        let known = core.by_key.get(&header.key).copied();
        let eager = header.kind == Kind::Eager;
        if let Some(group) = known {
            let state = &core.groups[group];
            let Some(rank) = state.members.rank_of(from) else {
                core.ledger.counters.malformed += 1;
                return;
            };
            let names = |operation: &Operation<'_>| {
                operation.group == group && operation.sequence == header.sequence
            };
            // From another session than the member's in the group, or from one that no answer can reach.
            let of_others = state.sessions[rank] != session
                || header.kind.wants_answer() && core.ledger.session(from) != session;
            let over = state.closed
                || is_before(header.sequence, state.sequence)
                || state.failure_of(header.sequence).is_some();
            let at = (from, rank);
            if !of_others && let Some(current) = self.current.as_deref_mut().filter(|it| names(it))
            {
                return current.handle_or_keep(at, session, header, payload, &mut core.ledger);
            }
            if !of_others && let Some(other) = self.under_way.iter_mut().find(|it| names(it)) {
                return other.handle_or_keep(at, session, header, payload, &mut core.ledger);
            }
            if of_others || over {
                core.ledger.counters.late += 1;
                if eager {
                    core.ledger.pay((from, session), payload.len());
                }
                core.answer_late(group, (from, session), &header);
                return;
            }
        }
        core.keep((from, session), header, payload);
    }

    fn take_datagram(&mut self, session: u64, piece: Datagram<'_>) {
        // Frames have only half of the group's key: a frame of another group with the same half has another sequence number or root, or an offset
        // that is not missing.
        let groups = &self.core.groups;
        let names = |operation: &Operation<'_>| {
            operation.key as u32 == piece.epoch
                && operation.sequence == piece.lap
                && groups[operation.group]
                    .rank_of_session(piece.source, session)
                    .is_some()
        };
        if let Some(current) = self.current.as_deref_mut().filter(|it| names(it)) {
            current.piece_came(&groups[current.group].members, &piece);
        } else if let Some(other) = self.under_way.iter_mut().find(|it| names(it)) {
            other.piece_came(&groups[other.group].members, &piece);
        }
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
