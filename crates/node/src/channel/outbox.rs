//! Messages of handlers and other threads: the driving thread gives them to the engine at the end of its poll.
//!
//! Invariants: messages of one peer and channel reach the engine in the order given; those of one channel do not block others; a message that the
//! engine will never take is reported to the caller of `settle`, once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tsumuji_link::LinkAddr;
use tsumuji_proto::{Channel, Engine, Flow, NodeId, Pace, Payload, SubmitError};

use super::bell::Bell;
use crate::error::SendError;
use crate::membership::Member;
use crate::sys;

/// Weight of a message beside its bytes.
const MESSAGE_BYTES: usize = 64;

/// Longer messages are given to the engine with their buffer, shorter ones are copied and the buffer is used again.
const GIVEN_BYTES: usize = 4 << 10;

/// Buffers kept for reuse.
const BUFFERS: usize = 64;

/// A message to be sent.
#[derive(Debug)]
pub(crate) struct Letter {
    to: NodeId,
    channel: Channel,
    body: Vec<u8>,
    whose: Whose,
}

/// Where messages leave to: an engine, or a driver with engine and link.
pub trait Way {
    fn engine(&mut self) -> &mut Engine;

    /// Flow to a peer as the program would be told.
    fn flow(&self, peer: NodeId) -> Option<Flow>;

    fn submit(
        &mut self,
        to: NodeId,
        channel: Channel,
        payload: Payload<'_>,
    ) -> Result<(), SubmitError>;

    /// Begins hello with a member at this address: a new one, or one that has moved.
    fn meet(&mut self, member: &Member, addr: LinkAddr, pace: Pace);

    /// Sends a frame to an address that may be no member's; it may be lost.
    fn send_frame(&mut self, to: LinkAddr, frame: &[u8]);
}

/// A thread that waits for room checks so often whether it is to end.
const ROOM_POLL: Duration = Duration::from_millis(10);

/// The bound that a letter counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Handlers,
    Threads,
    /// No bound: there are few control messages.
    Endpoints,
}

/// Weights of waiting letters of one kind, by peer and channel, so that one channel does not block others.
#[derive(Debug, Default)]
struct Weights(BTreeMap<(NodeId, u16), usize>);

/// Entries of weight zero are kept up to so many, so that a reply allocates nothing.
const REMEMBERED: usize = 256;

impl Weights {
    /// Whether there is room for one more; a letter above the limit is taken when no other waits there.
    fn admits(&self, key: (NodeId, u16), weight: usize, limit: usize) -> bool {
        let waiting = self.0.get(&key).copied().unwrap_or(0);
        waiting == 0 || waiting + weight <= limit
    }

    fn add(&mut self, key: (NodeId, u16), weight: usize) {
        *self.0.entry(key).or_default() += weight;
    }

    fn remove(&mut self, key: (NodeId, u16), weight: usize) {
        let Some(waiting) = self.0.get_mut(&key) else {
            return;
        };
        *waiting -= weight;
        if *waiting == 0 && self.0.len() > REMEMBERED {
            self.0.remove(&key);
        }
    }
}

impl Letter {
    /// A message of a thread that does not drive the endpoint.
    pub(crate) fn of_thread(to: NodeId, channel: Channel, body: Vec<u8>) -> Self {
        Self {
            to,
            channel,
            body,
            whose: Whose::Threads,
        }
    }

    fn weight(&self) -> usize {
        self.body.len() + MESSAGE_BYTES
    }

    fn key(&self) -> (NodeId, u16) {
        (self.to, self.channel.id())
    }
}

/// Letters on their way to the engine.
#[derive(Debug)]
pub(crate) struct Outbox {
    fresh: VecDeque<Letter>,
    /// Letters that were refused so far, and those behind them.
    held: BTreeMap<(NodeId, u16), VecDeque<Letter>>,
    /// Keys of `held` to be tried again.
    again: BTreeSet<(NodeId, u16)>,
    /// Weights of handlers' letters.
    weights: Weights,
    /// Peers and channels for which a handler was refused.
    refused: BTreeSet<(NodeId, u16)>,
    buffers: Vec<Vec<u8>>,
    remote: Arc<Remote>,
}

/// The part of an outbox that other threads use.
#[derive(Debug)]
pub(crate) struct Remote {
    bell: Arc<Bell>,
    me: NodeId,
    nodes: AtomicUsize,
    /// Limit in bytes for one peer and channel, for handlers and for threads each.
    limit_bytes: usize,
    /// Forks of this process when the endpoint was opened.
    forks: u32,
    state: Mutex<RemoteState>,
    room: Condvar,
}

#[derive(Debug, Default)]
struct RemoteState {
    letters: VecDeque<Letter>,
    /// Weights of threads' letters here and in the outbox.
    weights: Weights,
    /// The endpoint was closed.
    is_closed: bool,
    /// Number of threads that wait for room.
    awaited: u32,
    /// A waker was used: the program's next wait ends.
    wakes: bool,
}

impl Remote {
    /// Checks that `to` is another member and `channel` no datagram channel.
    fn takes(&self, to: NodeId, channel: Channel) -> Result<(), SendError> {
        if to == self.me || usize::from(to.0) >= self.nodes.load(Ordering::Relaxed) {
            return Err(SendError::UnknownPeer { peer: to });
        }
        if channel.is_datagram() {
            return Err(SendError::Refused(SubmitError::DatagramChannel));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, RemoteState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a thread's letter. While there is no room it waits for the times that `patience` gives; `None`: no longer.
    fn add<'a>(
        &'a self,
        mut state: MutexGuard<'a, RemoteState>,
        letter: Letter,
        patience: impl Fn() -> Option<Duration>,
    ) -> Result<MutexGuard<'a, RemoteState>, SendError> {
        let (weight, key) = (letter.weight(), letter.key());
        loop {
            if state.is_closed {
                return Err(SendError::Closed);
            }
            if state.weights.admits(key, weight, self.limit_bytes) {
                break;
            }
            let span = patience().ok_or(SendError::WouldBlock { peer: letter.to })?;
            state.awaited += 1;
            let waited = self.room.wait_timeout(state, span);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.awaited -= 1;
        }
        state.weights.add(key, weight);
        state.letters.push_back(letter);
        Ok(state)
    }
}

impl Outbox {
    /// The outbox of `me` among `nodes` members.
    pub(crate) fn new((me, nodes): (NodeId, usize), limit_bytes: usize, bell: Arc<Bell>) -> Self {
        Self {
            fresh: VecDeque::new(),
            held: BTreeMap::new(),
            again: BTreeSet::new(),
            weights: Weights::default(),
            refused: BTreeSet::new(),
            buffers: Vec::new(),
            remote: Arc::new(Remote {
                bell,
                me,
                nodes: AtomicUsize::new(nodes),
                limit_bytes,
                forks: sys::forks(),
                state: Mutex::default(),
                room: Condvar::new(),
            }),
        }
    }

    pub(crate) fn remote(&self) -> Arc<Remote> {
        Arc::clone(&self.remote)
    }

    /// There are so many members now.
    pub(crate) fn set_nodes(&self, nodes: usize) {
        self.remote.nodes.store(nodes, Ordering::Relaxed);
    }

    /// Whether `settle` has something to do.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        !self.fresh.is_empty() || !self.again.is_empty()
    }

    /// Whether no letter waits, here or with other threads.
    pub(crate) fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.held.is_empty() && self.remote.lock().letters.is_empty()
    }

    /// Waiting messages to a peer.
    pub(crate) fn messages_to(&self, to: NodeId) -> usize {
        let held = self.held.range((to, 0)..=(to, u16::MAX));
        let to_it = |letters: &VecDeque<Letter>| letters.iter().filter(|it| it.to == to).count();
        held.map(|(_, letters)| letters.len()).sum::<usize>()
            + to_it(&self.fresh)
            + to_it(&self.remote.lock().letters)
    }

    /// Control messages of the endpoint to a peer whose queue is full.
    pub(crate) fn controls_to(&self, to: NodeId) -> usize {
        (self.held.get(&(to, Channel::CONTROL_ID))).map_or(0, VecDeque::len)
    }

    /// Queues a message of a handler.
    pub(crate) fn put(
        &mut self,
        to: NodeId,
        channel: Channel,
        message: &[u8],
    ) -> Result<(), SendError> {
        self.remote.takes(to, channel)?;
        let (weight, key) = (message.len() + MESSAGE_BYTES, (to, channel.id()));
        if !self.weights.admits(key, weight, self.remote.limit_bytes) {
            self.refused.insert(key);
            return Err(SendError::WouldBlock { peer: to });
        }
        let mut body = self.buffers.pop().unwrap_or_default();
        body.extend_from_slice(message);
        self.weights.add(key, weight);
        self.fresh.push_back(Letter {
            to,
            channel,
            body,
            whose: Whose::Handlers,
        });
        Ok(())
    }

    /// A peer and channel for which a handler was refused, and where no letter waits any more.
    pub(crate) fn take_writable(&mut self) -> Option<(NodeId, u16)> {
        let weights = &self.weights.0;
        let free = |key: &&(NodeId, u16)| weights.get(key).is_none_or(|waiting| *waiting == 0);
        let key = self.refused.iter().find(free).copied()?;
        self.refused.remove(&key);
        Some(key)
    }

    /// Queues a control message of the endpoint.
    pub(crate) fn put_control(&mut self, to: NodeId, channel: Channel, message: &[u8]) {
        self.fresh.push_back(Letter {
            to,
            channel,
            body: message.to_vec(),
            whose: Whose::Endpoints,
        });
    }

    /// Waiting letters to this peer are tried again.
    pub(crate) fn try_again(&mut self, peer: NodeId) {
        let keys = self.held.range((peer, 0)..=(peer, u16::MAX));
        self.again.extend(keys.map(|(key, _)| *key));
    }

    /// Takes over letters of other threads; returns `true` if a waker was used.
    pub(crate) fn collect(&mut self) -> bool {
        self.take_over();
        std::mem::take(&mut self.remote.lock().wakes)
    }

    /// Takes over letters of other threads: those of handlers come behind them.
    pub(crate) fn take_over(&mut self) {
        self.fresh.append(&mut self.remote.lock().letters);
    }

    /// Gives the engine the letters that it takes now, except for channels that the peer has stopped; returns how many. Calls `lost` for each letter
    /// that the engine will never take.
    pub(crate) fn settle(
        &mut self,
        way: &mut impl Way,
        is_stopped: impl Fn(NodeId, u16) -> bool,
        mut lost: impl FnMut(NodeId, Channel),
    ) -> usize {
        let mut sent = 0;
        for key in std::mem::take(&mut self.again) {
            let Some(mut letters) = self.held.remove(&key) else {
                continue;
            };
            while let Some(letter) = letters.pop_front() {
                if let Err(letter) = self.submit(letter, way, &is_stopped, &mut lost) {
                    letters.push_front(letter);
                    break;
                }
                sent += 1;
            }
            if !letters.is_empty() {
                self.held.insert(key, letters);
            }
        }
        while let Some(letter) = self.fresh.pop_front() {
            let key = letter.key();
            if let Some(letters) = self.held.get_mut(&key) {
                letters.push_back(letter);
                continue;
            }
            match self.submit(letter, way, &is_stopped, &mut lost) {
                Ok(()) => sent += 1,
                Err(letter) => self.held.entry(key).or_default().push_back(letter),
            }
        }
        sent
    }

    /// Submits a letter; returns it if it must wait.
    fn submit(
        &mut self,
        mut letter: Letter,
        way: &mut impl Way,
        is_stopped: &impl Fn(NodeId, u16) -> bool,
        lost: &mut impl FnMut(NodeId, Channel),
    ) -> Result<(), Letter> {
        let (to, channel, weight) = (letter.to, letter.channel, letter.weight());
        if is_stopped(to, channel.id()) {
            return Err(letter);
        }
        let is_given =
            letter.body.len() > GIVEN_BYTES && way.engine().has_room(to, letter.body.len());
        let payload = if is_given {
            Payload::Shared(std::mem::take(&mut letter.body).into())
        } else {
            Payload::Copied(&letter.body, &[])
        };
        match way.submit(to, channel, payload) {
            Ok(()) => {}
            Err(SubmitError::QueueFull { .. }) if !is_given => return Err(letter),
            Err(SubmitError::NoMemory { .. }) if !is_given => {
                // The engine can use the letter's own memory.
                let body = Payload::Shared(std::mem::take(&mut letter.body).into());
                if way.submit(to, channel, body).is_err() {
                    lost(to, channel);
                }
            }
            Err(_) => lost(to, channel),
        }
        self.forget(&letter, weight);
        if letter.body.capacity() <= GIVEN_BYTES && self.buffers.len() < BUFFERS {
            letter.body.clear();
            self.buffers.push(letter.body);
        }
        Ok(())
    }

    fn forget(&mut self, letter: &Letter, weight: usize) {
        match letter.whose {
            Whose::Handlers => self.weights.remove(letter.key(), weight),
            Whose::Threads => {
                let mut remote = self.remote.lock();
                remote.weights.remove(letter.key(), weight);
                if remote.awaited > 0 {
                    self.remote.room.notify_all();
                }
            }
            Whose::Endpoints => {}
        }
    }

    /// The session has ended: drops the letters to the peer and calls `lost` for each.
    pub(crate) fn abort(&mut self, peer: NodeId, mut lost: impl FnMut(NodeId, Channel)) {
        let keys = self.held.range((peer, 0)..=(peer, u16::MAX));
        let keys: Vec<(NodeId, u16)> = keys.map(|(key, _)| *key).collect();
        for key in keys {
            self.again.remove(&key);
            for letter in self.held.remove(&key).unwrap_or_default() {
                lost(letter.to, letter.channel);
                let weight = letter.weight();
                self.forget(&letter, weight);
            }
        }
    }

    /// Takes no more letters of other threads. Letters that are there stay.
    pub(crate) fn close(&self) {
        self.remote.lock().is_closed = true;
        self.remote.room.notify_all();
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.close();
        self.remote.lock().letters.clear();
    }
}

/// Sends messages of an endpoint from any thread; cloned as often as wanted.
///
/// A message leaves when the endpoint is driven next: by its program's calls, or by the progress assistant, which is woken. Messages of one thread to
/// one peer and channel arrive in the order sent. Losses are reported to the endpoint, like those of its own messages.
#[derive(Debug, Clone)]
pub struct MessageSender {
    pub(super) remote: Arc<Remote>,
}

impl MessageSender {
    /// Checks what can be known of a message before it is sent.
    pub(crate) fn check(&self, to: NodeId, channel: Channel) -> Result<(), SendError> {
        if channel.is_library() {
            let channel_id = channel.id();
            return Err(SendError::ReservedChannel { channel_id });
        }
        self.remote.takes(to, channel)
    }

    /// Has the endpoint settle, as when a message was sent.
    pub(crate) fn ring(&self) {
        self.remote.bell.ring();
    }

    /// Sends checked messages in order; waits for room until `is_over`. Those that the endpoint takes no more are dropped.
    pub(crate) fn send_together(&self, letters: &mut Vec<Letter>, is_over: impl Fn() -> bool) {
        let patience = || {
            self.remote.bell.ring(); // what was given so far is to leave
            (!is_over()).then_some(ROOM_POLL)
        };
        let mut state = self.remote.lock();
        for letter in letters.drain(..) {
            state = match self.remote.add(state, letter, patience) {
                Ok(state) => state,
                Err(_) => return,
            };
        }
        drop(state);
        self.remote.bell.ring();
    }

    /// Sends `message`. If threads' messages of `Options::send_queue_bytes` wait for that peer and channel, it waits for room up to `timeout`, and
    /// then returns [`SendError::WouldBlock`]. Do not call it in handlers or the driving thread: only driving makes room. [`SendError::Closed`]: the
    /// endpoint was closed, or this is a child of `fork`.
    pub fn send(
        &self,
        to: NodeId,
        channel: Channel,
        message: Vec<u8>,
        timeout: Duration,
    ) -> Result<(), SendError> {
        if self.remote.forks != sys::forks() {
            return Err(SendError::Closed);
        }
        self.check(to, channel)?;
        let until = Instant::now().checked_add(timeout);
        let patience = || {
            let left = until.map_or(timeout, |until| {
                until.saturating_duration_since(Instant::now())
            });
            (!left.is_zero()).then_some(left)
        };
        let letter = Letter::of_thread(to, channel, message);
        drop(self.remote.add(self.remote.lock(), letter, patience)?);
        self.remote.bell.ring();
        Ok(())
    }
}

/// Ends an endpoint's wait from any thread; cloned as often as wanted.
#[derive(Debug, Clone)]
pub struct Waker {
    pub(super) remote: Arc<Remote>,
}

impl Waker {
    /// Ends the endpoint's present wait for an arrival (`recv`, `ready`, `poll_wait` and the like) as if its time had passed; if there is none, the
    /// next one.
    pub fn wake(&self) {
        if self.remote.forks != sys::forks() {
            return;
        }
        self.remote.lock().wakes = true;
        self.remote.bell.ring();
    }
}
