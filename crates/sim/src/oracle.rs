//! The judge: checks that exactly the submitted messages are delivered.
//!
//! `net` tells it of every submission, delivery, event, crash and restart; it returns violations as text. It keeps length and checksum of each
//! message under way, never the message.
//!
//! Rules: a message is delivered at most once, unchanged, to the incarnation of the peer it was meant for; messages of an ordered channel in the
//! order submitted; nothing after a message of a later *session*. A session lasts at its sender from one `PeerDead` to the next, and is bound to the
//! incarnation named by `PeerUp`. `PeerUp` and `PeerDead` alternate, and never lead back to an earlier incarnation; `Sent` comes once for each
//! message submitted with `notify`, and for no other. Messages that fail with a session are at least those that were not told to be sent, and all of
//! them are told as lost, but for one that is still borrowed from its caller.
//!
//! Messages are identified by their content, and short ones (all empty ones, say) may be equal. Where the next message of one session equals the next
//! one of a later session between the same incarnations, a delivery may be of either: both count as delivered, and the message may come once more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tsumuji_node::simulated::UNTRACKED;
use tsumuji_proto::{Channel, DeliveryClass, Event, Instant, NodeId, SendId};

/// Delivered checksums remembered to tell a repeated message from an invented one.
const REMEMBERED: usize = 4096;

/// A message on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) bytes: usize,
    pub(crate) checksum: u64,
    pub(crate) submitted: Instant,
    /// `Net::received` is to return the body.
    pub(crate) keep: bool,
}

#[derive(Debug, Default)]
struct Session {
    sender_incarnation: u32,
    /// `Some` from `PeerUp` on.
    receiver_incarnation: Option<u32>,
    ordered: BTreeMap<Channel, VecDeque<Expected>>,
    unordered: BTreeMap<(Channel, u64), VecDeque<Expected>>,
    /// Neither delivered nor failed.
    waiting: usize,
    submitted: usize,
    /// Submitted with `notify`, `Sent` not seen.
    unsent: BTreeSet<SendId>,
    /// Submitted before `PeerUp`, when the peer's limit on message length was not known.
    early: BTreeMap<SendId, (Channel, usize, u64)>,
}

impl Session {
    fn take(&mut self, channel: Channel, bytes: usize, checksum: u64) -> Option<Expected> {
        match channel.class() {
            DeliveryClass::Ordered => {
                let queue = self.ordered.get_mut(&channel)?;
                let first = queue.front()?;
                if first.bytes != bytes || first.checksum != checksum {
                    return None;
                }
                queue.pop_front()
            }
            DeliveryClass::Unordered => {
                let same = self.unordered.get_mut(&(channel, checksum))?;
                let found = same.pop_front();
                if same.is_empty() {
                    self.unordered.remove(&(channel, checksum));
                }
                found
            }
            DeliveryClass::Datagram => None,
        }
    }

    /// Counts a message as failed. False if it is not under way.
    fn abandon(&mut self, channel: Channel, checksum: u64) -> bool {
        if let Some(place) = self.place(channel, checksum) {
            let queue = self.ordered.get_mut(&channel);
            return queue.is_some_and(|queue| queue.remove(place).is_some());
        }
        let Some(same) = self.unordered.get_mut(&(channel, checksum)) else {
            return false;
        };
        same.pop_front().is_some()
    }

    fn place(&self, channel: Channel, checksum: u64) -> Option<usize> {
        self.ordered
            .get(&channel)?
            .iter()
            .position(|expected| expected.checksum == checksum)
    }
}

/// A message that counts as delivered because an equal one of an earlier session was.
#[derive(Debug)]
struct Equal {
    session: usize,
    channel: Channel,
    expected: Expected,
}

/// All messages from one node to another.
#[derive(Debug, Default)]
struct Pair {
    /// The last is the current one.
    sessions: Vec<Session>,
    /// The earliest session that may still deliver.
    reached: usize,
    equals: Vec<Equal>,
    /// The highest id of the incarnation that submitted last.
    last_id: Option<(u32, SendId)>,
}

/// Knows all messages of a run.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    pairs: BTreeMap<(NodeId, NodeId), Pair>,
    incarnations: BTreeMap<NodeId, u32>,
    /// (node, peer) → messages of the session that were told as lost.
    told_lost: BTreeMap<(NodeId, NodeId), usize>,
    /// All incarnations ever, in order of birth.
    births: BTreeMap<(NodeId, u32), usize>,
    /// (node, peer) → the latest incarnation of the peer that was up.
    latest: BTreeMap<(NodeId, NodeId), usize>,
    /// (node, peer) → the incarnation of the peer that is up.
    up: BTreeMap<(NodeId, NodeId), u32>,
    waiting: usize,
    remembered: VecDeque<u64>,
}

impl Oracle {
    /// Begins an incarnation of a node.
    pub(crate) fn born(&mut self, node: NodeId, incarnation: u32) {
        self.incarnations.insert(node, incarnation);
        let order = self.births.len();
        self.births.insert((node, incarnation), order);
    }

    /// Ends a node's process: its submitted messages may or may not arrive.
    pub(crate) fn ended(&mut self, node: NodeId) {
        self.incarnations.remove(&node);
        self.up.retain(|(who, _), _| *who != node);
        self.latest.retain(|(who, _), _| *who != node);
        for (_, pair) in self.pairs.iter_mut().filter(|((from, _), _)| *from == node) {
            self.waiting -= pair.abandon();
        }
    }

    /// Messages neither delivered nor failed.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Messages submitted with `notify` to live peers whose `Sent` has not come.
    pub(crate) fn unsent(&self) -> usize {
        self.pairs
            .values()
            .filter_map(|pair| pair.sessions.last())
            .map(|session| session.unsent.len())
            .sum()
    }

    /// Pairs that have ever exchanged a message.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (NodeId, NodeId)> {
        self.pairs.keys().copied()
    }

    pub(crate) fn is_up(&self, who: NodeId, of: NodeId) -> bool {
        self.up.contains_key(&(who, of))
    }

    /// Whether `who` has the present incarnation of `of` up.
    pub(crate) fn has_met(&self, who: NodeId, of: NodeId) -> bool {
        let incarnation = self.incarnations.get(&of);
        incarnation.is_some() && self.up.get(&(who, of)) == incarnation
    }

    /// Checks a datagram: it may be delivered only while its source's incarnation is up.
    pub(crate) fn shared(&self, from: NodeId, to: NodeId, incarnation: u32) -> Result<(), String> {
        match self.up.get(&(to, from)) {
            Some(&up) if up == incarnation => Ok(()),
            up => Err(format!(
                "{to} was given a share of {from} as {incarnation}, and has it up as {up:?}"
            )),
        }
    }

    /// The pair, in a session of the sender's present incarnation; that incarnation, and the receiver's if it is known.
    fn pair(&mut self, from: NodeId, to: NodeId) -> (&mut Pair, u32, Option<u32>) {
        let sender_incarnation = self.incarnations[&from];
        let receiver_incarnation = self.up.get(&(from, to)).copied();
        let pair = self.pairs.entry((from, to)).or_default();
        let known = pair.sessions.last();
        if known.is_none_or(|session| session.sender_incarnation != sender_incarnation) {
            pair.sessions.push(Session {
                sender_incarnation,
                receiver_incarnation,
                ..Session::default()
            });
        }
        (pair, sender_incarnation, receiver_incarnation)
    }

    fn session(&mut self, from: NodeId, to: NodeId) -> Option<&mut Session> {
        self.pairs.get_mut(&(from, to))?.sessions.last_mut()
    }

    /// Notes a submitted datagram, which may fail with its session.
    pub(crate) fn published(&mut self, from: NodeId, to: NodeId) {
        if let Some(session) = self.pair(from, to).0.sessions.last_mut() {
            session.submitted += 1;
        }
    }

    pub(crate) fn submitted(
        &mut self,
        (from, to): (NodeId, NodeId),
        channel: Channel,
        message: Expected,
        (id, notify): (SendId, bool),
    ) -> Result<(), String> {
        let (pair, sender_incarnation, receiver_incarnation) = self.pair(from, to);
        // Messages in one frame share an id; a message with `notify` has one of its own.
        match pair.last_id {
            _ if id == UNTRACKED => {} // it passed the queue
            Some((incarnation, last)) if incarnation == sender_incarnation && last >= id => {
                if notify {
                    return Err(format!("{from} to {to}: send id {} after {}", id.0, last.0));
                }
            }
            _ => pair.last_id = Some((sender_incarnation, id)),
        }
        let session = pair.sessions.last_mut().ok_or("no session")?;
        match channel.class() {
            DeliveryClass::Ordered => session
                .ordered
                .entry(channel)
                .or_default()
                .push_back(message),
            DeliveryClass::Unordered => {
                session
                    .unordered
                    .entry((channel, message.checksum))
                    .or_default()
                    .push_back(message);
            }
            DeliveryClass::Datagram => return Err(String::from("a datagram came as a message")),
        }
        if notify {
            session.unsent.insert(id);
        }
        if receiver_incarnation.is_none() {
            session
                .early
                .insert(id, (channel, message.bytes, message.checksum));
        }
        session.waiting += 1;
        session.submitted += 1;
        self.waiting += 1;
        Ok(())
    }

    pub(crate) fn delivered(
        &mut self,
        (from, to): (NodeId, NodeId),
        channel: Channel,
        bytes: usize,
        checksum: u64,
    ) -> Result<Expected, String> {
        let what = || {
            format!(
                "{to} was given {bytes} bytes from {from} by channel {:?}",
                channel
            )
        };
        let Some(&incarnation) = self.incarnations.get(&to) else {
            return Err(format!("{}, but is dead", what()));
        };
        let Some(&sender_incarnation) = self.up.get(&(to, from)) else {
            return Err(format!(
                "{}, from which no PeerUp (or PeerDead since) was reported",
                what()
            ));
        };
        let pair = self.pairs.entry((from, to)).or_default();
        let (found, awaited) =
            pair.take((sender_incarnation, incarnation), channel, bytes, checksum);
        self.waiting -= awaited;
        if let Some(expected) = found {
            if self.remembered.len() == REMEMBERED {
                self.remembered.pop_front();
            }
            self.remembered.push_back(checksum);
            return Ok(expected);
        }
        let mut why = String::from("no such message is on its way: damaged or invented");
        for (index, session) in pair.sessions.iter().enumerate() {
            let expected = session.unordered.contains_key(&(channel, checksum));
            if let Some(place) = session.place(channel, checksum).or(expected.then_some(0)) {
                why = format!(
                    "it overtakes {place} others, of session {index} (earliest allowed: {}), incarnation {} to {:?}; \
                     the parties' incarnations are {sender_incarnation} and {incarnation}",
                    pair.reached, session.sender_incarnation, session.receiver_incarnation
                );
            }
        }
        if bytes >= 8 && self.remembered.contains(&checksum) {
            why = String::from("it was delivered before");
        }
        Err(format!("{}: {why}", what()))
    }

    pub(crate) fn happened(&mut self, at: NodeId, event: &Event) -> Result<(), String> {
        match *event {
            Event::PeerUp { peer, incarnation } => {
                let Some(&order) = self.births.get(&(peer, incarnation)) else {
                    return Err(format!(
                        "{at}: {peer} is up as {incarnation}, a incarnation it never had"
                    ));
                };
                if self
                    .latest
                    .insert((at, peer), order)
                    .is_some_and(|latest| latest > order)
                {
                    return Err(format!(
                        "{at}: {peer} is up as {incarnation}, an earlier incarnation than before"
                    ));
                }
                if let Some(before) = self.up.insert((at, peer), incarnation) {
                    return Err(format!(
                        "{at}: {peer} is up as {incarnation}, and was as {before} without PeerDead"
                    ));
                }
                if let Some(session) = self.session(at, peer) {
                    session.receiver_incarnation = Some(incarnation);
                }
                Ok(())
            }
            Event::PeerDead {
                peer,
                failed_messages,
            } => {
                self.up.remove(&(at, peer));
                let Some(pair) = self.pairs.get_mut(&(at, peer)) else {
                    return Ok(());
                };
                let counts = |session: &Session| (session.submitted, session.unsent.len());
                let (submitted, unsent) = pair.sessions.last().map_or((0, 0), counts);
                self.waiting -= pair.abandon();
                pair.sessions.push(Session {
                    sender_incarnation: self.incarnations[&at],
                    ..Session::default()
                });
                if failed_messages > submitted {
                    return Err(format!(
                        "{at}: {failed_messages} messages to {peer} failed, {submitted} were submitted"
                    ));
                }
                if failed_messages < unsent {
                    return Err(format!(
                        "{at}: {failed_messages} messages to {peer} failed, though {unsent} were never told to be sent"
                    ));
                }
                let told = self.told_lost.remove(&(at, peer)).unwrap_or(0);
                // Of one that is still borrowed its call tells what became of it.
                if told + 1 < failed_messages {
                    return Err(format!(
                        "{at}: {failed_messages} messages to {peer} failed, of which {told} were told as lost"
                    ));
                }
                Ok(())
            }
            Event::MessagesLost { peer, messages } => {
                *self.told_lost.entry((at, peer)).or_default() += messages;
                Ok(())
            }
            Event::TooLarge {
                peer,
                id,
                size,
                limit,
            } => {
                if let Some(session) = self.session(at, peer)
                    && let Some((channel, bytes, checksum)) = session.early.remove(&id)
                    && bytes == size
                    && size > limit
                    && session.abandon(channel, checksum)
                {
                    session.waiting -= 1;
                    session.unsent.remove(&id);
                    self.waiting -= 1;
                    return Ok(());
                }
                Err(format!(
                    "{at}: message {} to {peer} was refused as {size} bytes with a limit of {limit}",
                    id.0
                ))
            }
            Event::Sent { peer, id } => {
                let session = self.session(at, peer);
                if session.is_some_and(|session| session.unsent.remove(&id)) {
                    return Ok(());
                }
                Err(format!(
                    "{at}: Sent {} to {peer} comes twice, too late, or was not asked for",
                    id.0
                ))
            }
            _ => Ok(()),
        }
    }
}

impl Pair {
    /// Matches a delivered message between these incarnations: returns the expected message, and how many are no longer waited for.
    fn take(
        &mut self,
        (sender_incarnation, receiver_incarnation): (u32, u32),
        channel: Channel,
        bytes: usize,
        checksum: u64,
    ) -> (Option<Expected>, usize) {
        let (mut found, mut awaited) = (None, 0);
        let is_theirs = |session: &Session| {
            session.receiver_incarnation == Some(receiver_incarnation)
                && session.sender_incarnation == sender_incarnation
        };
        let sessions = self.sessions.iter_mut().enumerate().skip(self.reached);
        for (index, session) in sessions.filter(|(_, session)| is_theirs(session)) {
            let Some(expected) = session.take(channel, bytes, checksum) else {
                continue;
            };
            if session.waiting > 0 {
                session.waiting -= 1;
                awaited += 1;
            }
            if found.is_none() {
                found = Some(expected);
                self.reached = index;
            } else {
                self.equals.push(Equal {
                    session: index,
                    channel,
                    expected,
                });
            }
        }
        self.equals.retain(|equal| equal.session >= self.reached);
        let same = self.equals.iter().position(|equal| {
            let known = equal.expected;
            (equal.channel, known.bytes, known.checksum) == (channel, bytes, checksum)
                && is_theirs(&self.sessions[equal.session])
        });
        match (found, same) {
            (None, Some(at)) => found = Some(self.equals.remove(at).expected),
            // It can only be the message found: no message before it in its channel can still come.
            (Some(_), None) if channel.class() == DeliveryClass::Ordered => {
                (self.equals)
                    .retain(|equal| equal.channel != channel || equal.session > self.reached);
            }
            _ => {}
        }
        (found, awaited)
    }

    /// Stops waiting for the current session's messages; returns their number.
    fn abandon(&mut self) -> usize {
        let Some(session) = self.sessions.last_mut() else {
            return 0;
        };
        session.unsent.clear();
        std::mem::take(&mut session.waiting)
    }
}

#[cfg(test)]
#[path = "oracle/tests.rs"]
mod tests;
