//! Channels and where their messages go: to a handler or a mailbox.
//!
//! A program that opens no channel has one mailbox for all. An opened channel has its own, or a handler that the driving thread calls, and its own
//! budget: its waiting messages do not count against the endpoint's, so an unread channel does not block others. Beyond half of the budget peers are
//! told to stop sending on that channel, and later to go on (`control`). Messages on their way may exceed the budget by no more than peers have
//! queued. A peer that keeps sending is charged to the endpoint's budget, as if nobody had opened the channel.
//!
//! Filled by `intake`, emptied by `endpoint`. Submodules: `owned` (one channel), `mailbox` (waiting messages), `ledger` (charges), `retained`
//! (messages that a program keeps), `outbox` (messages of handlers and other threads), `bell` (how those threads wake the endpoint), and what
//! endpoints tell each other by themselves: `control`, `statistics` (flows of other nodes) and `members` (who joins).
//!
//! Invariants: on one channel no message overtakes those in its mailbox; a message is charged to one budget from its arrival until it is released;
//! for each channel a peer is told alternately to stop and to go on.

pub(crate) mod bell;
mod control;
pub(crate) mod ledger;
pub(crate) mod mailbox;
pub(crate) mod members;
pub(crate) mod outbox;
mod owned;
mod owners;
mod posts;
pub(crate) mod retained;
mod statistics;
mod stops;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tsumuji_proto::{Body, Channel, Datagram, Delivery, Event, NodeId, Posted};

use self::bell::Bell;
use self::ledger::{Ledger, Overdrafts};
use self::mailbox::{Buffers, Charge, Keeps, Stored};
pub use self::mailbox::{Message, ReceivedDatagram};
pub(crate) use self::members::{Means, Members};
use self::outbox::Outbox;
pub(crate) use self::outbox::{Letter, Way};
pub use self::outbox::{MessageSender, Waker};
pub use self::owned::{ChannelOptions, ChannelState};
use self::owned::{OpenChannel, early};
pub use self::posts::Arrived;
use self::posts::Posts;
pub use self::retained::Retained;
use self::retained::{Charged, Returns};
pub(crate) use self::statistics::Answer;
pub use self::statistics::RemoteFlow;
use self::statistics::Statistics;
use crate::handler::{Context, Handler, notify};
use crate::peers::Peers;
use crate::random::random_u64;

/// Notices (peer up, peer dead, sent) kept for the next handler; beyond that the oldest are dropped.
const NOTICES_LIMIT: usize = 16 * 1024;

/// A peer may overdraw budgets by that many send queues of this endpoint's size: one for messages queued when it was told to stop, one for another
/// channel.
const OVERDRAWN_QUEUES: usize = 2;

/// State of all channels that deliveries use.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) outbox: Outbox,
    returns: Arc<Returns>,
    buffers: Buffers,
    overdrafts: Overdrafts,
}

/// The handler that the program polls with, and the channel that it polls; `None`: all that nobody opened.
pub(crate) type Taker<'a> = (Option<u16>, &'a mut (dyn Handler + 'a));

/// An event that only a handler is told.
#[derive(Debug)]
enum Notice {
    Event(Event),
    Writable(NodeId, u16),
    Flows(NodeId, Answer),
}

/// See the head of this module.
#[derive(Debug)]
pub(crate) struct Channels {
    main: OpenChannel,
    opened: BTreeMap<u16, OpenChannel>,
    pub(crate) tools: Tools,
    pub(crate) posts: Posts,
    bell: Arc<Bell>,
    notices: VecDeque<Notice>,
    /// Something for a handler arrived since `take_news` was called.
    news: bool,
    /// Channels that peers have stopped, and the number of the session in which they did.
    stops: BTreeMap<(NodeId, u16), u64>,
    /// Peers and channels for which a `try_send` was refused.
    wants: BTreeSet<(NodeId, u16)>,
    /// A waker was used: the program's wait is to end.
    pub(crate) is_woken: bool,
    /// Number of channels opened so far.
    generation: u64,
    pub(crate) statistics: Statistics,
    pub(crate) members: Members,
    /// Datagrams that were dropped for lack of room.
    pub(crate) dropped_datagrams: u64,
}

impl Tools {
    fn context<'a>(&'a mut self, ledger: &'a mut Ledger) -> Context<'a> {
        Context {
            outbox: &mut self.outbox,
            returns: &self.returns,
            buffers: &mut self.buffers,
            ledger,
            overdrafts: &mut self.overdrafts,
            sender_session: 0,
            charged: None,
            is_kept: false,
            source: (NodeId(0), Channel::ordered(0)),
            bytes: 0,
        }
    }
}

impl Channels {
    pub(crate) fn new(members: Members, queue_bytes: usize, bell: Arc<Bell>) -> Self {
        let who = (members.me(), members.len());
        Self {
            main: OpenChannel::new(Ledger::new(0, 0, 0), Keeps::Newest),
            opened: BTreeMap::new(),
            tools: Tools {
                outbox: Outbox::new(who, queue_bytes, Arc::clone(&bell)),
                returns: Arc::new(Returns::new(Arc::clone(&bell))),
                buffers: Buffers::default(),
                overdrafts: Overdrafts::new(OVERDRAWN_QUEUES * queue_bytes),
            },
            posts: Posts::default(),
            bell,
            notices: VecDeque::new(),
            news: false,
            stops: BTreeMap::new(),
            wants: BTreeSet::new(),
            is_woken: false,
            generation: 0,
            statistics: Statistics::beginning_at(random_u64().map_or(0, |number| number as u32)),
            members,
            dropped_datagrams: 0,
        }
    }

    /// Whether messages on that channel are kept apart from the program's main mailbox.
    #[inline]
    fn is_owned(&self, number: u16) -> bool {
        number >= Channel::LIBRARY_IDS
            || !self.opened.is_empty() && self.opened.contains_key(&number)
    }

    /// The channel of that number; `None`: the one for all that nobody opened.
    fn of(&mut self, number: Option<u16>) -> Option<&mut OpenChannel> {
        chosen(number, &mut self.main, &mut self.opened)
    }

    /// Handlers of channels.
    fn owners(&mut self) -> impl Iterator<Item = &mut Box<dyn Handler + Send>> {
        let channels = self.opened.values_mut();
        channels.filter_map(|entry| entry.handler.as_mut())
    }

    /// The length of the next message there.
    #[inline]
    pub(crate) fn next_bytes(
        &mut self,
        number: Option<u16>,
        from: Option<NodeId>,
    ) -> Option<usize> {
        let next = self.of(number)?.mailbox.next(from)?;
        Some(next.body.len())
    }

    /// Takes that message; the caller releases it.
    pub(crate) fn take(&mut self, number: Option<u16>, from: Option<NodeId>) -> Option<Stored> {
        self.of(number)?.mailbox.pop(from)
    }

    /// Fills a posted buffer with a message that arrived before, if there is one.
    pub(crate) fn fill(&mut self, post: u64) {
        let Some((number, from)) = self.posts.free(post) else {
            return;
        };
        let Some(entry) = self.opened.get_mut(&number) else {
            return;
        };
        let Some(Message {
            from,
            channel,
            body,
        }) = entry.mailbox.next(from)
        else {
            return;
        };
        let from = *from;
        if self.posts.copy(post, (from, *channel), body)
            && let Some(stored) = entry.mailbox.pop(Some(from))
        {
            drop(self.retain(stored)); // released in the next poll
        }
    }

    /// Takes buffers back whose messages will not arrive in them, and fills them with waiting messages in the order of their posts.
    pub(crate) fn put_back_all(&mut self, posted: Vec<Posted>) {
        let mut numbers: Vec<u64> = posted.iter().map(|posted| posted.number).collect();
        numbers.sort_unstable();
        for posted in posted {
            self.posts.put_back(posted);
        }
        for number in numbers {
            self.fill(number);
        }
    }

    /// Whether nothing waits there for a handler.
    #[inline]
    pub(crate) fn is_empty(&self, number: Option<u16>) -> bool {
        match number {
            Some(number) => self.opened.get(&number).is_none_or(OpenChannel::is_empty),
            None => self.main.is_empty() && self.notices.is_empty(),
        }
    }

    /// Length of the next datagram of that channel, if one waits.
    pub(crate) fn next_datagram(&mut self, number: Option<u16>) -> Option<usize> {
        self.of(number)?.stash.next_bytes()
    }

    pub(crate) fn take_datagram(&mut self, number: Option<u16>) -> Option<ReceivedDatagram> {
        self.of(number)?.stash.pop()
    }

    pub(crate) fn messages(&mut self, number: Option<u16>) -> usize {
        self.of(number).map_or(0, |entry| entry.mailbox.messages())
    }

    /// Whether something arrived for a handler or an opened channel since the last call, or a message waits on channels that nobody opened.
    pub(crate) fn take_news(&mut self) -> bool {
        let mut open = self.opened.values().filter(|entry| entry.is_open);
        let news = std::mem::take(&mut self.news)
            && !(self.is_empty(None) && open.all(OpenChannel::is_empty) && self.posts.is_idle());
        let woken = std::mem::take(&mut self.is_woken);
        news || woken || !self.main.mailbox.is_empty() || self.is_pending()
    }

    /// Releases a message that was taken. Returns `true` if it was charged to the endpoint's budget.
    pub(crate) fn release(&mut self, charged: &Charged) -> bool {
        let &Charged {
            from,
            channel,
            charge,
            bytes,
            generation,
        } = charged;
        let (main, tools) = (&mut self.main, &mut self.tools);
        let known = self.opened.get_mut(&channel.id());
        if let Some(known) = known.filter(|known| known.ledger.generation == generation) {
            (tools.overdrafts).release(Some(&mut known.ledger), from, charge, bytes);
            known.lift_backpressure(&mut tools.outbox);
        } else {
            let is_main = generation == main.ledger.generation;
            let ledger = is_main.then_some(&mut main.ledger);
            tools.overdrafts.release(ledger, from, charge, bytes);
        }
        charge == Charge::Endpoint
    }

    /// What is charged for a message that was taken just now.
    pub(crate) fn charged(&self, stored: &Stored) -> Charged {
        let Message {
            from,
            channel,
            body,
        } = &stored.message;
        let entry = self.opened.get(&channel.id());
        Charged {
            from: *from,
            channel: *channel,
            charge: stored.charge,
            bytes: body.len(),
            generation: entry.map_or(0, |entry| entry.ledger.generation),
        }
    }

    /// Turns a stored message into a kept one.
    pub(crate) fn retain(&self, stored: Stored) -> Retained {
        let charged = self.charged(&stored);
        Retained::new(charged, stored.message.body, &self.tools.returns)
    }

    /// Gives notices (of all channels that nobody opened) and datagrams to the handler; returns how many.
    pub(crate) fn hand_over_rest(
        &mut self,
        number: Option<u16>,
        handler: &mut dyn Handler,
    ) -> usize {
        let mut count = 0;
        if number.is_none() {
            count += self.notices.len();
            for notice in self.notices.drain(..) {
                match notice {
                    Notice::Event(event) => notify(handler, &event),
                    Notice::Writable(peer, channel_id) => handler.writable(peer, channel_id),
                    Notice::Flows(node, (flows, next)) => handler.flows(node, &flows, next),
                }
            }
        }
        let tools = &mut self.tools;
        let entry = chosen(number, &mut self.main, &mut self.opened);
        let Some(OpenChannel { ledger, stash, .. }) = entry.filter(|entry| !entry.stash.is_empty())
        else {
            return count;
        };
        let mut buffers = std::mem::take(&mut tools.buffers);
        count += stash.hand_over(handler, &mut tools.context(ledger), &mut buffers);
        tools.buffers = buffers;
        count
    }

    /// Delivers a message that was taken to the handler; returns its buffer if the caller must release it.
    pub(crate) fn hand_over(
        &mut self,
        number: Option<u16>,
        handler: &mut dyn Handler,
        stored: Stored,
    ) -> Option<Vec<u8>> {
        let entry = chosen(number, &mut self.main, &mut self.opened)?;
        let Message {
            from,
            channel,
            mut body,
        } = stored.message;
        let delivery = Delivery {
            from,
            session: stored.session,
            channel,
            body: Body::Whole(&mut body),
        };
        let charged = Some(stored.charge);
        let delivered = OpenChannel::deliver(
            &mut entry.ledger,
            &mut self.tools,
            handler,
            charged,
            delivery,
        );
        (!delivered.is_kept).then_some(body)
    }

    /// Handles a message. Returns `true` if the endpoint's budget is not charged for it.
    #[inline]
    pub(crate) fn message(
        &mut self,
        taker: &mut Option<Taker<'_>>,
        mut delivery: Delivery<'_>,
    ) -> bool {
        let (number, from, session) = (delivery.channel.id(), delivery.from, delivery.session);
        if number == Channel::CONTROL_ID {
            if delivery.channel == control::CHANNEL {
                self.control(from, session, delivery.body.bytes());
            }
            return true;
        }
        let taker = self.taker_of(number, taker);
        if !self.posts.is_idle() && self.posts.take(&mut delivery) {
            self.news |= taker.is_none();
            return true;
        }
        let tools = &mut self.tools;
        let entry = match taker {
            Some((None, _)) => &mut self.main,
            _ => owner_of(number, &mut self.main, &mut self.opened),
        };
        if let Some((_, handler)) = taker {
            return Self::give(entry, tools, *handler, delivery);
        }
        if let Some(mut handler) = entry.handler.take() {
            let consumed = Self::give(entry, tools, &mut *handler, delivery);
            entry.handler = Some(handler);
            return consumed;
        }
        self.news |= entry.is_open;
        let charge = entry.store(tools, delivery);
        entry.press(&mut tools.outbox, from, session);
        charge != Charge::Endpoint
    }

    /// The handler of the call, if it takes what comes on that channel.
    #[inline]
    fn taker_of<'t, 'a>(
        &self,
        number: u16,
        taker: &'t mut Option<Taker<'a>>,
    ) -> Option<&'t mut Taker<'a>> {
        taker.as_mut().filter(|(polled, _)| match polled {
            Some(polled) => *polled == number,
            None => !self.is_owned(number),
        })
    }

    /// Delivers a message to a handler; nothing waits before it.
    #[inline]
    fn give(
        entry: &mut OpenChannel,
        tools: &mut Tools,
        handler: &mut dyn Handler,
        delivery: Delivery<'_>,
    ) -> bool {
        let (from, session) = (delivery.from, delivery.session);
        let delivered = OpenChannel::deliver(&mut entry.ledger, tools, handler, None, delivery);
        if !delivered.is_kept {
            return true;
        }
        entry.press(&mut tools.outbox, from, session);
        delivered.charge != Some(Charge::Endpoint)
    }

    /// Handles a datagram.
    #[inline]
    pub(crate) fn datagram(
        &mut self,
        taker: &mut Option<Taker<'_>>,
        session: u64,
        datagram: Datagram<'_>,
    ) {
        let number = datagram.channel_id;
        if number == Channel::CONTROL_ID {
            self.dropped_datagrams += 1;
            return;
        }
        let taker = self.taker_of(number, taker);
        let tools = &mut self.tools;
        let entry = match taker {
            Some((None, _)) => &mut self.main,
            _ => owner_of(number, &mut self.main, &mut self.opened),
        };
        let handler: Option<&mut dyn Handler> = match (taker, &mut entry.handler) {
            (Some((_, handler)), _) => Some(&mut **handler),
            (None, Some(handler)) => Some(&mut **handler),
            (None, None) => None,
        };
        if let Some(handler) = handler {
            let mut context = tools.context(&mut entry.ledger);
            context.is_of(session, &datagram);
            handler.datagram(&mut context, datagram);
            return;
        }
        if !entry.stash.keep(session, &datagram, &mut tools.buffers) {
            self.dropped_datagrams += 1;
        }
        self.news = true;
    }

    /// Handles an event. `program`: the handler that the program polls with, which is told at once.
    pub(crate) fn event(
        &mut self,
        event: &Event,
        peers: &mut Peers,
        program: Option<&mut dyn Handler>,
    ) {
        peers.note(event);
        if self.members.note(event)
            && let Event::PeerDead { peer, .. } = event
        {
            peers.reconnect(*peer);
        }
        match event {
            Event::PeerDead {
                peer,
                failed_messages,
            } => {
                self.forget(*peer, peers);
                self.owners()
                    .for_each(|handler| handler.peer_dead(*peer, *failed_messages));
            }
            Event::PeerUp { peer, .. } => {
                self.tools.outbox.try_again(*peer);
                self.owners().for_each(|handler| handler.peer_up(*peer));
            }
            Event::Writable { peer } => {
                self.tools.outbox.try_again(*peer);
                return self.tell_writable(*peer, program);
            }
            _ => {}
        }
        match program {
            Some(handler) => notify(handler, event),
            None => self.put_notice(Notice::Event(event.clone())),
        }
    }

    fn put_notice(&mut self, notice: Notice) {
        self.news = true;
        if self.notices.len() == NOTICES_LIMIT {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }

    /// Whether `settle` has something to do.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.bell.is_rung()
            || self.tools.outbox.is_pending()
            || self.statistics.is_pending()
            || self.members.is_pending()
    }

    /// Sends and releases what handlers and other threads have asked for; returns how much that was.
    #[cold]
    pub(crate) fn settle(&mut self, way: &mut impl Way, peers: &mut Peers) -> usize {
        let mut done = 0;
        if self.bell.is_rung() {
            self.bell.hush();
            self.repeat_panics();
            if self.tools.outbox.collect() {
                self.is_woken = true;
                done += 1;
            }
            for (charged, body) in self.tools.returns.collect() {
                if self.release(&charged) {
                    way.engine().release(charged.from, charged.bytes);
                }
                if let Some(body) = self.tools.buffers.give(body) {
                    way.engine().recycle(body);
                }
                done += 1;
            }
        }
        if self.members.is_pending() {
            let (way, peers) = (&mut *way, &mut *peers);
            let outbox = &mut self.tools.outbox;
            done += self.members.settle(&mut Means { way, peers, outbox });
        }
        while let Some((to, request)) = self.statistics.next_request() {
            done += self.answer(to, request, way, peers);
        }
        let Self { tools, stops, .. } = self;
        let is_stopped =
            |peer, channel_id| !stops.is_empty() && stops.contains_key(&(peer, channel_id));
        done += (tools.outbox).settle(way, is_stopped, |to, channel| lose(peers, to, channel));
        while let Some((peer, channel_id)) = self.tools.outbox.take_writable() {
            self.wants.insert((peer, channel_id));
            self.tell_writable(peer, None);
        }
        done
    }

    /// Takes a buffer back; returns it if it is the engine's.
    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) -> Option<Vec<u8>> {
        self.tools.buffers.give(buffer)
    }

    pub(crate) fn returns(&self) -> &Arc<Returns> {
        &self.tools.returns
    }

    pub(crate) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// A handle with which other threads send.
    pub(crate) fn sender(&self) -> MessageSender {
        MessageSender {
            remote: self.tools.outbox.remote(),
        }
    }

    /// A handle with which other threads end a wait.
    pub(crate) fn waker(&self) -> Waker {
        Waker {
            remote: self.tools.outbox.remote(),
        }
    }
}

/// That channel, if it exists; `None`: the one for all that nobody opened.
#[inline]
fn chosen<'a>(
    number: Option<u16>,
    main: &'a mut OpenChannel,
    opened: &'a mut BTreeMap<u16, OpenChannel>,
) -> Option<&'a mut OpenChannel> {
    match number {
        Some(number) => opened.get_mut(&number),
        None => Some(main),
    }
}

/// The channel that keeps or delivers messages of that id.
#[inline]
fn owner_of<'a>(
    number: u16,
    main: &'a mut OpenChannel,
    opened: &'a mut BTreeMap<u16, OpenChannel>,
) -> &'a mut OpenChannel {
    if number >= Channel::LIBRARY_IDS {
        opened.entry(number).or_insert_with(|| early(number))
    } else if opened.is_empty() {
        main
    } else {
        opened.get_mut(&number).unwrap_or(main)
    }
}

/// Counts a message of a handler or thread that will never be sent as lost, like one of the program.
fn lose(peers: &mut Peers, to: NodeId, channel: Channel) {
    if !channel.is_library() {
        peers.lose(to, 1);
    }
}
