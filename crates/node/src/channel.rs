//! Channels and who takes what arrives on them: their owners' handlers, or mailboxes.
//!
//! A program that opens none has one mailbox for all. An opened channel has its own, or a handler that whoever drives calls, and a
//! budget of its own: what waits there does not count against the endpoint's, so that a channel that nobody reads holds up no other. Beyond
//! half of the budget peers are told to stop sending on that channel, and to go on when little is left (`control`). What was on the way
//! may exceed it: by no more than peers have queued. A peer that sends on all the same is charged to the endpoint's budget, as if
//! nobody had opened the channel.
//!
//! Filled by `intake`, emptied by `endpoint`. Below lie `owned` (one channel), `mailbox` (what waits), `books` (who is charged), `kept` (what a program keeps),
//! `outbox` (what handlers and other threads want sent), `bell` (how those threads wake the endpoint), `control`, and `statistics` (what nodes
//! tell each other of their flows).
//!
//! Invariants: on one channel nothing overtakes what waits in its mailbox; a message is charged to one budget from its arrival until it
//! is released; a peer is told of each channel in turn to stop and to go on.

pub(crate) mod bell;
pub(crate) mod books;
mod control;
pub(crate) mod kept;
pub(crate) mod mailbox;
pub(crate) mod outbox;
mod owned;
mod owners;
mod posts;
mod statistics;
#[cfg(test)]
mod tests;
mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tsumuji_proto::{Body, Datagram, Delivery, Event, Lane, NodeId, Posted};

use self::bell::Bell;
use self::books::{Books, Overdrafts};
pub use self::kept::Kept;
use self::kept::Returns;
use self::mailbox::{Buffers, Charge, Keeps, Stored};
pub use self::mailbox::{Message, ReceivedDatagram};
use self::outbox::Outbox;
pub(crate) use self::outbox::Way;
pub use self::outbox::{MessageSender, Waker};
use self::owned::{Channel, early};
pub use self::owned::{ChannelOptions, ChannelState};
pub use self::posts::Arrived;
use self::posts::Posts;
pub(crate) use self::statistics::Answer;
pub use self::statistics::RemoteFlow;
use self::statistics::Statistics;
use crate::handler::{Context, Handler, Nobody, notify};
use crate::peers::Peers;
use crate::random::random_u64;

/// Notices (peer up, peer dead, sent) kept for the next handler; of more, the oldest go.
const NOTICES_LIMIT: usize = 16 * 1024;

/// So many send queues (as this endpoint's) a peer may overdraw budgets by: one for what it had queued when it was told to stop, and one for
/// another channel.
const OVERDRAWN_QUEUES: usize = 2;

/// What deliveries need beside their channel.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) outbox: Outbox,
    returns: Arc<Returns>,
    buffers: Buffers,
    overdrafts: Overdrafts,
}

/// Something that only a handler is told.
#[derive(Debug)]
enum Notice {
    Event(Event),
    Writable(NodeId, u16),
    Flows(NodeId, Answer),
}

/// See the head of this module.
#[derive(Debug)]
pub(crate) struct Channels {
    main: Channel,
    opened: BTreeMap<u16, Channel>,
    pub(crate) tools: Tools,
    pub(crate) posts: Posts,
    bell: Arc<Bell>,
    notices: VecDeque<Notice>,
    /// Something for a handler came since `take_news` was asked.
    news: bool,
    /// Channels on which peers want nothing for now, and which of their lives said so.
    stops: BTreeMap<(NodeId, u16), u64>,
    /// Where a `try_send` was refused.
    wants: BTreeSet<(NodeId, u16)>,
    /// Another thread wants the program's wait to end.
    pub(crate) is_woken: bool,
    /// Of channels opened so far.
    generation: u64,
    pub(crate) statistics: Statistics,
    pub(crate) dropped: Dropped,
}

/// What found no room, ever.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Dropped {
    pub(crate) datagrams: u64,
}

impl Tools {
    fn context<'a>(&'a mut self, books: &'a mut Books) -> Context<'a> {
        Context {
            outbox: &mut self.outbox,
            returns: &self.returns,
            buffers: &mut self.buffers,
            books,
            overdrafts: &mut self.overdrafts,
            sender_life: 0,
            charged: None,
            is_kept: false,
            source: (NodeId(0), Lane::ordered(0)),
            bytes: 0,
        }
    }
}

impl Channels {
    pub(crate) fn new(who: (NodeId, usize), queue_bytes: usize, bell: Arc<Bell>) -> Self {
        Self {
            main: Channel::new(Books::new(0, 0, 0), Keeps::Newest),
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
            dropped: Dropped::default(),
        }
    }

    /// Whether messages on that channel are not the program's at large.
    #[inline]
    fn is_owned(&self, number: u16) -> bool {
        number >= Lane::LIBRARY_CHANNELS
            || !self.opened.is_empty() && self.opened.contains_key(&number)
    }

    /// Where messages on that channel wait; `None`: on all that nobody opened.
    fn of(&mut self, number: Option<u16>) -> Option<&mut Channel> {
        chosen(number, &mut self.main, &mut self.opened)
    }

    /// Handlers of channels.
    fn owners(&mut self) -> impl Iterator<Item = &mut Box<dyn Handler + Send>> {
        let channels = self.opened.values_mut();
        channels.filter_map(|channel| channel.handler.as_mut())
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

    /// Takes it; the caller releases it.
    pub(crate) fn take(&mut self, number: Option<u16>, from: Option<NodeId>) -> Option<Stored> {
        self.of(number)?.mailbox.pop(from)
    }

    /// A buffer waits: what is for it may have come before.
    pub(crate) fn fill(&mut self, post: u64) {
        let Some((number, from)) = self.posts.free(post) else {
            return;
        };
        let Some(channel) = self.opened.get_mut(&number) else {
            return;
        };
        let Some(Message { from, lane, body }) = channel.mailbox.next(from) else {
            return;
        };
        let from = *from;
        if self.posts.copy(post, (from, *lane), body)
            && let Some(stored) = channel.mailbox.pop(Some(from))
        {
            drop(self.keep(stored)); // released in the next turn
        }
    }

    /// Buffers were lent to messages that will not come: they are for what came meanwhile, in the order in which they were posted.
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

    /// Nothing waits there for a handler.
    #[inline]
    pub(crate) fn is_empty(&self, number: Option<u16>) -> bool {
        match number {
            Some(number) => self.opened.get(&number).is_none_or(Channel::is_empty),
            None => self.main.is_empty() && self.notices.is_empty(),
        }
    }

    /// Length of the next datagram of that channel, if one waits.
    pub(crate) fn next_datagram(&mut self, number: Option<u16>) -> Option<usize> {
        chosen(number, &mut self.main, &mut self.opened)?
            .stash
            .next_bytes()
    }

    pub(crate) fn take_datagram(&mut self, number: Option<u16>) -> Option<ReceivedDatagram> {
        chosen(number, &mut self.main, &mut self.opened)?
            .stash
            .pop()
    }

    pub(crate) fn messages(&self, number: Option<u16>) -> usize {
        match number {
            Some(number) => {
                (self.opened.get(&number)).map_or(0, |channel| channel.mailbox.messages())
            }
            None => self.main.mailbox.messages(),
        }
    }

    /// Did something come, since this was last asked, for a handler or an opened channel, or does a message wait that nobody's channel keeps?
    pub(crate) fn take_news(&mut self) -> bool {
        let mut open = self.opened.values().filter(|channel| channel.is_open);
        let news = std::mem::take(&mut self.news)
            && !(self.is_empty(None) && open.all(Channel::is_empty) && self.posts.is_idle());
        let woken = std::mem::take(&mut self.is_woken);
        news || woken || !self.main.mailbox.is_empty() || self.is_due()
    }

    /// Releases a message that was taken. `true`: the endpoint's budget was charged for it.
    pub(crate) fn release(
        &mut self,
        (from, channel): (NodeId, u16),
        generation: u64,
        charge: Charge,
        bytes: usize,
    ) -> bool {
        let Self {
            main,
            opened,
            tools,
            ..
        } = self;
        let known = (opened.get_mut(&channel)).filter(|known| known.books.generation == generation);
        if let Some(known) = known {
            (tools.overdrafts).release(Some(&mut known.books), from, charge, bytes);
            known.lift_backpressure(&mut tools.outbox);
        } else {
            let is_main = generation == main.books.generation;
            let books = is_main.then_some(&mut main.books);
            tools.overdrafts.release(books, from, charge, bytes);
        }
        charge == Charge::Endpoint
    }

    /// Of the channel whose message was taken just now.
    pub(crate) fn generation(&self, channel: u16) -> u64 {
        (self.opened.get(&channel)).map_or(0, |channel| channel.books.generation)
    }

    /// As something to keep.
    pub(crate) fn keep(&self, stored: Stored) -> Kept {
        let generation = self.generation(stored.message.lane.channel());
        let bytes = stored.message.body.len();
        Kept::new(
            stored.message,
            (stored.charge, bytes),
            generation,
            &self.tools.returns,
        )
    }

    /// Gives notices (of all channels that nobody opened) and datagrams to the handler; returns how many.
    pub(crate) fn hand_over_rest(
        &mut self,
        number: Option<u16>,
        handler: &mut impl Handler,
    ) -> usize {
        let mut count = 0;
        if number.is_none() {
            count += self.notices.len();
            for notice in self.notices.drain(..) {
                match notice {
                    Notice::Event(event) => notify(handler, &event),
                    Notice::Writable(peer, channel) => handler.writable(peer, channel),
                    Notice::Flows(node, (flows, next)) => handler.flows(node, &flows, next),
                }
            }
        }
        let Self {
            main,
            opened,
            tools,
            ..
        } = self;
        let channel = chosen(number, main, opened);
        let Some(Channel { books, stash, .. }) =
            channel.filter(|channel| !channel.stash.is_empty())
        else {
            return count;
        };
        let mut buffers = std::mem::take(&mut tools.buffers);
        count += stash.hand_over(handler, &mut tools.context(books), &mut buffers);
        tools.buffers = buffers;
        count
    }

    /// Gives a message that was taken to the handler; `Some`: it is to be released.
    pub(crate) fn hand_over(
        &mut self,
        number: Option<u16>,
        handler: &mut impl Handler,
        stored: Stored,
    ) -> Option<(Charge, Vec<u8>)> {
        let Self {
            main,
            opened,
            tools,
            ..
        } = self;
        let channel = chosen(number, main, opened)?;
        let Message {
            from,
            lane,
            mut body,
        } = stored.message;
        let delivery = Delivery {
            from,
            life: stored.life,
            lane,
            body: Body::Whole(&mut body),
        };
        let charged = Some(stored.charge);
        let delivered = Channel::deliver(&mut channel.books, tools, handler, charged, delivery);
        (!delivered.is_kept).then_some((stored.charge, body))
    }

    /// A message arrived, for nobody who was given with the call. `true`: the endpoint's budget is not charged for it.
    pub(crate) fn message(&mut self, mut delivery: Delivery<'_>) -> bool {
        let (number, from, life) = (delivery.lane.channel(), delivery.from, delivery.life);
        if number == Lane::CONTROL_CHANNEL {
            if delivery.lane == control::LANE {
                self.control(from, life, delivery.body.bytes());
            }
            return true;
        }
        if !self.posts.is_idle() && self.posts.take(&mut delivery) {
            self.news = true;
            return true;
        }
        let Self {
            main,
            opened,
            tools,
            ..
        } = self;
        let channel = owner_of(number, main, opened);
        if let Some(mut handler) = channel.handler.take() {
            let consumed = Self::give(channel, tools, &mut *handler, delivery);
            channel.handler = Some(handler);
            return consumed;
        }
        self.news |= channel.is_open;
        let charge = channel.store(tools, delivery);
        channel.press(&mut tools.outbox, from, life);
        charge != Charge::Endpoint
    }

    /// Straight to a handler, with nothing that waits before it.
    #[inline]
    fn give(
        channel: &mut Channel,
        tools: &mut Tools,
        handler: &mut (impl Handler + ?Sized),
        delivery: Delivery<'_>,
    ) -> bool {
        let (from, life) = (delivery.from, delivery.life);
        let delivered = Channel::deliver(&mut channel.books, tools, handler, None, delivery);
        if !delivered.is_kept {
            return true;
        }
        channel.press(&mut tools.outbox, from, life);
        delivered.charge != Some(Charge::Endpoint)
    }

    /// A message arrived while the program polls all that nobody opened.
    #[inline]
    pub(crate) fn message_to_program(
        &mut self,
        handler: &mut impl Handler,
        delivery: Delivery<'_>,
    ) -> bool {
        if self.is_owned(delivery.lane.channel()) {
            return self.message(delivery);
        }
        Self::give(&mut self.main, &mut self.tools, handler, delivery)
    }

    /// A message arrived while somebody polls that channel.
    #[inline]
    pub(crate) fn message_to(
        &mut self,
        number: u16,
        handler: &mut impl Handler,
        mut delivery: Delivery<'_>,
    ) -> bool {
        if delivery.lane.channel() != number {
            return self.message(delivery);
        }
        if !self.posts.is_idle() && self.posts.take(&mut delivery) {
            return true;
        }
        match self.opened.get_mut(&number) {
            Some(channel) => Self::give(channel, &mut self.tools, handler, delivery),
            None => self.message(delivery),
        }
    }

    /// A datagram arrived, for nobody who was given with the call.
    pub(crate) fn datagram(&mut self, life: u64, datagram: Datagram<'_>) {
        let number = datagram.channel;
        if number == Lane::CONTROL_CHANNEL {
            self.dropped.datagrams += 1;
            return;
        }
        let Self {
            main,
            opened,
            tools,
            ..
        } = self;
        let channel = owner_of(number, main, opened);
        if let Some(handler) = &mut channel.handler {
            let mut context = tools.context(&mut channel.books);
            context.is_of(life, &datagram);
            handler.datagram(&mut context, datagram);
            return;
        }
        if !channel.stash.keep(life, &datagram, &mut tools.buffers) {
            self.dropped.datagrams += 1;
        }
        self.news = true;
    }

    /// The same while the program polls all that nobody opened, or one channel.
    #[inline]
    pub(crate) fn datagram_to(
        &mut self,
        number: Option<u16>,
        handler: &mut impl Handler,
        life: u64,
        datagram: Datagram<'_>,
    ) {
        let Self {
            main,
            opened,
            tools,
            ..
        } = self;
        let is_owned =
            datagram.channel >= Lane::LIBRARY_CHANNELS || opened.contains_key(&datagram.channel);
        let channel = match number {
            None if !is_owned => main,
            Some(number) if number == datagram.channel && is_owned => {
                opened.entry(number).or_insert_with(|| early(number))
            }
            _ => return self.datagram(life, datagram),
        };
        let mut context = tools.context(&mut channel.books);
        context.is_of(life, &datagram);
        handler.datagram(&mut context, datagram);
    }

    /// Something happened. `program`: the handler of a program that polls, who is told at once.
    pub(crate) fn event(
        &mut self,
        event: &Event,
        peers: &mut Peers,
        program: Option<&mut impl Handler>,
    ) {
        peers.note(event);
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

    /// There is something for `settle`.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.bell.is_rung() || self.tools.outbox.is_due() || self.statistics.is_due()
    }

    /// Does what handlers and other threads have asked for; returns how much that was.
    #[cold]
    pub(crate) fn settle(&mut self, way: &mut impl Way, peers: &mut Peers) -> usize {
        let mut done = 0;
        if self.bell.is_rung() {
            self.bell.hush();
            if self.tools.outbox.collect() {
                self.is_woken = true;
                done += 1;
            }
            for back in self.tools.returns.collect() {
                if self.release(
                    (back.from, back.channel),
                    back.generation,
                    back.charge,
                    back.bytes,
                ) {
                    way.engine().release(back.from, back.bytes);
                }
                if let Some(body) = self.tools.buffers.give(back.body) {
                    way.engine().recycle(body);
                }
                done += 1;
            }
        }
        while let Some((to, request)) = self.statistics.next_request() {
            done += self.answer(to, request, way, peers);
        }
        let Self { tools, stops, .. } = self;
        let is_stopped = |peer, channel| !stops.is_empty() && stops.contains_key(&(peer, channel));
        done += (tools.outbox).settle(way, is_stopped, |to, lane| lose(peers, to, lane));
        while let Some((peer, channel)) = self.tools.outbox.take_writable() {
            self.wants.insert((peer, channel));
            self.tell_writable(peer, None::<&mut Nobody>);
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

    /// For other threads to send by.
    pub(crate) fn sender(&self) -> MessageSender {
        MessageSender {
            remote: self.tools.outbox.remote(),
        }
    }

    /// For other threads to end a wait by.
    pub(crate) fn waker(&self) -> Waker {
        Waker {
            remote: self.tools.outbox.remote(),
        }
    }
}

/// That channel, if it is there; `None`: all that nobody opened.
#[inline]
fn chosen<'a>(
    number: Option<u16>,
    main: &'a mut Channel,
    opened: &'a mut BTreeMap<u16, Channel>,
) -> Option<&'a mut Channel> {
    match number {
        Some(number) => opened.get_mut(&number),
        None => Some(main),
    }
}

/// Where what comes on a channel waits, or is handed over.
#[inline]
fn owner_of<'a>(
    number: u16,
    main: &'a mut Channel,
    opened: &'a mut BTreeMap<u16, Channel>,
) -> &'a mut Channel {
    if number >= Lane::LIBRARY_CHANNELS {
        opened.entry(number).or_insert_with(|| early(number))
    } else if opened.is_empty() {
        main
    } else {
        opened.get_mut(&number).unwrap_or(main)
    }
}

/// What handlers and threads wanted sent, and will never be: told as what the program sent is.
fn lose(peers: &mut Peers, to: NodeId, lane: Lane) {
    if !lane.is_library() {
        peers.lose(to, 1);
    }
}
