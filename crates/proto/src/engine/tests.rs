//! Engines joined by a small seeded wire in virtual time. The large scenarios are in `sim`.

use super::*;
use crate::congestion::Congestion;
use crate::counters::Drop;
use crate::event::Destination;
use crate::memory::charge;
use crate::message::{Body, Borrowed, Delivery, Payload, SendId, Sink, SubmitError};
use crate::numbers::FIRST_NUMBER;
use crate::posted::{Posted, ReceiveBuffer};
use crate::time::Duration;
use alloc::vec;
use tsumuji_wire::{Channel, Datagram};

const WIRE_DELAY: Duration = Duration::from_micros(5);

#[derive(Default)]
pub(super) struct Mailbox {
    pub(super) messages: Vec<(NodeId, Channel, Vec<u8>)>,
    /// Session of the last message.
    pub(super) session: u64,
    /// Lap, session of the source, and payload.
    pub(super) datagrams: Vec<(u32, u64, Vec<u8>)>,
    /// Posted buffers for messages to come, by number; and messages that arrived in some.
    pub(super) posts: Vec<(u64, Box<dyn ReceiveBuffer>)>,
    pub(super) filled: Vec<(u64, Vec<u8>)>,
}

impl Sink for Mailbox {
    fn message(&mut self, delivery: Delivery<'_>) {
        let bytes = match delivery.body {
            Body::Frame(bytes) => bytes.to_vec(),
            Body::Whole(bytes) => core::mem::take(bytes),
            Body::Posted(posted) => {
                let posted = posted.take().unwrap();
                let message = posted.message().to_vec();
                self.filled.push((posted.number, message.clone()));
                message
            }
        };
        self.session = delivery.session;
        self.messages.push((delivery.from, delivery.channel, bytes));
    }
    fn datagram(&mut self, session: u64, datagram: Datagram<'_>) {
        self.datagrams
            .push((datagram.lap, session, datagram.payload.to_vec()));
    }
    fn place(&mut self, _: NodeId, _: Channel, length_bytes: usize) -> Option<Posted> {
        let (number, buffer) = self.posts.pop()?;
        match Posted::new(number, length_bytes, buffer) {
            Ok(posted) => Some(posted),
            Err(buffer) => {
                self.posts.push((number, buffer));
                None
            }
        }
    }
    fn put_back(&mut self, posted: Posted) {
        self.posts.push((posted.number, posted.buffer));
    }
}

pub(super) struct Node {
    pub(super) engine: Engine,
    pub(super) mailbox: Mailbox,
    pub(super) events: Vec<Event>,
    /// The message that is borrowed.
    pub(super) borrowed: Option<(NodeId, SendId, Vec<u8>)>,
    /// Releases each message at once.
    pub(super) consumes: bool,
    pub(super) cut_off: bool,
}

impl Node {
    /// Submits a message that is borrowed from then on.
    pub(super) fn borrow(&mut self, to: u16, channel: Channel, message: Vec<u8>, notify: bool) {
        let to = NodeId(to);
        let submitted = self
            .engine
            .submit_borrowed(to, channel, message.len(), notify);
        self.borrowed = Some((to, submitted.unwrap(), message));
    }

    pub(super) fn unsent_bytes(&self) -> Result<Option<usize>, SubmitError> {
        self.engine.unsent_bytes(&in_hand(&self.borrowed))
    }

    /// Ends the borrowing; the engine retains a copy.
    pub(super) fn retain(&mut self) -> bool {
        let kept = self.engine.retain(&in_hand(&self.borrowed));
        self.borrowed = self.borrowed.take().filter(|_| !kept);
        kept
    }
}

fn in_hand(borrowed: &Option<(NodeId, SendId, Vec<u8>)>) -> Borrowed<'_> {
    let borrowed = borrowed.as_ref();
    borrowed.map_or(Borrowed::NONE, |(to, id, message)| {
        Borrowed::new(*to, *id, message)
    })
}

/// Nodes and the frames between them.
pub(super) struct Wire {
    pub(super) now: Instant,
    pub(super) nodes: Vec<Node>,
    flying: Vec<(Instant, u64, usize, Vec<u8>)>,
    order: u64,
    pub(super) random: u64,
    pub(super) loss_percent: u64,
    pub(super) jitter_us: u64,
    pub(super) duplicate_percent: u64,
    /// Frames for which this is true never arrive.
    pub(super) loses: Option<fn(&[u8]) -> bool>,
    /// Long messages leave in batches, and are placed by the receiving link.
    pub(super) scatters: bool,
    /// Messages are copied into the queue, so that waiting ones leave in bundles.
    pub(super) copies: bool,
    /// Frames that were placed.
    pub(super) placed: u64,
    frames: u64,
}

pub(super) fn config(me: u16, incarnation: u32) -> Config {
    Config {
        me: NodeId(me),
        incarnation,
        frame_bytes: 1472,
        receive_frames: 256,
        lossless: false,
        ring_bytes: 0,
        congestion: Congestion::Credit,
        budget_bytes: 1 << 20,
        message_limit_bytes: 64 << 20,
        send_queue_bytes: 8 << 20,
        keep_alive: Duration::from_millis(100),
        dead_after: Duration::from_secs(1),
    }
}

/// Whether the frame is a message by reference: its payload is behind a head that states a payload length of 0.
fn is_reference(frame: &[u8]) -> bool {
    use tsumuji_wire::{DATA_HEADER_BYTES, flags, parse_data_head};
    let body_bytes = frame.len().saturating_sub(DATA_HEADER_BYTES);
    body_bytes > usize::from(u16::MAX) / 4
        && tsumuji_wire::parse(frame).is_err()
        && parse_data_head(frame, body_bytes).is_ok_and(|data| data.flags & flags::DIRECT != 0)
}

impl Wire {
    pub(super) fn new(count: u16) -> Self {
        Self::under(count, Congestion::Credit)
    }

    pub(super) fn under(count: u16, congestion: Congestion) -> Self {
        let mut wire = Self {
            now: Instant::from_nanos(0),
            nodes: Vec::new(),
            flying: Vec::new(),
            order: 0,
            random: 7,
            loss_percent: 0,
            jitter_us: 0,
            duplicate_percent: 0,
            loses: None,
            scatters: false,
            copies: false,
            placed: 0,
            frames: 0,
        };
        for me in 0..count {
            wire.nodes.push(Self::node(
                me,
                100 + u32::from(me),
                count,
                wire.now,
                congestion,
            ));
        }
        wire
    }

    pub(super) fn node(
        me: u16,
        incarnation: u32,
        count: u16,
        now: Instant,
        congestion: Congestion,
    ) -> Node {
        let mut engine = Engine::new(Config {
            congestion,
            ..config(me, incarnation)
        });
        for peer in 0..count {
            engine.add_peer(now, NodeId(peer));
        }
        Node {
            engine,
            mailbox: Mailbox::default(),
            events: Vec::new(),
            borrowed: None,
            consumes: true,
            cut_off: false,
        }
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.random = self
            .random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.random >> 33) % 100 < percent
    }

    pub(super) fn launch(&mut self, to: usize, frame: Vec<u8>) {
        self.frames += 1;
        if self.loses.is_some_and(|loses| loses(&frame)) {
            return;
        }
        let copies = 1 + usize::from(self.chance(self.duplicate_percent));
        for _ in 0..copies {
            if self.chance(self.loss_percent) {
                continue;
            }
            self.chance(50);
            let jitter = Duration::from_nanos((self.random >> 20) % (self.jitter_us * 1000 + 1));
            self.order += 1;
            self.flying.push((
                self.now + WIRE_DELAY + jitter,
                self.order,
                to,
                frame.clone(),
            ));
        }
    }

    /// Sends all frames that the engines have to write, and collects their events.
    pub(super) fn pump(&mut self) {
        for from in 0..self.nodes.len() {
            while let Some(to) = self.nodes[from].engine.next_destination(self.now) {
                let Node {
                    engine, borrowed, ..
                } = &mut self.nodes[from];
                let borrowed = in_hand(borrowed);
                let most = if self.scatters {
                    (5, 1472 * 5)
                } else {
                    (1, 1472)
                };
                let planned = engine.plan(self.now, to, &borrowed, most);
                let frames: Vec<Vec<u8>> = engine
                    .batch(&borrowed)
                    .map(|(a, b)| [a, b].concat())
                    .collect();
                assert_eq!(frames.len(), planned);
                assert!(planned <= most.0);
                assert!(frames.iter().map(Vec::len).sum::<usize>() <= most.1);
                if self.nodes[from].cut_off {
                    continue;
                }
                for frame in frames {
                    match to {
                        Destination::Peer(peer) => self.launch(usize::from(peer.0), frame),
                        Destination::Broadcast => {
                            (0..self.nodes.len())
                                .filter(|&to| to != from)
                                .for_each(|to| self.launch(to, frame.clone()));
                        }
                    }
                }
            }
            let node = &mut self.nodes[from];
            while let Some(event) = node.engine.poll_event() {
                node.events.push(event);
            }
        }
    }

    /// Receives as a link that scatters does; messages by reference are received one by one.
    fn receive_scattered(node: &mut Node, now: Instant, frames: &[Vec<u8>]) -> u64 {
        let runs = frames.chunk_by(|one, next| ![one, next].iter().any(|it| is_reference(it)));
        runs.map(|run| Self::receive_run(node, now, run)).sum()
    }

    /// Puts payloads into the place, and passes frames whose payloads do not belong there as usual.
    fn receive_run(node: &mut Node, now: Instant, frames: &[Vec<u8>]) -> u64 {
        let mut count = 0;
        if let Some(first) = frames.first() {
            (node.engine).foresee(now, first, first.len(), &mut node.mailbox);
        }
        if let Some(placement) = node.engine.placement() {
            let (head_bytes, body_bytes) = (placement.head_bytes, placement.body_bytes);
            for (place, frame) in placement.place.chunks_mut(body_bytes).zip(frames) {
                let body = frame.get(head_bytes..).unwrap_or_default();
                let bytes = body.len().min(place.len());
                place[..bytes].copy_from_slice(&body[..bytes]);
                count += 1;
            }
            let expected = |(index, frame): (usize, &Vec<u8>)| {
                let (head, body) = frame.split_at(head_bytes.min(frame.len()));
                node.engine.is_expected(index, head, body.len())
            };
            if frames[..count].iter().enumerate().all(expected) {
                for frame in &frames[..count] {
                    let (head, body) = frame.split_at(head_bytes);
                    node.engine
                        .handle_placed(now, head, body.len(), &mut node.mailbox);
                }
            } else {
                count = 0;
            }
        }
        for frame in &frames[count..] {
            node.engine.handle_frame(now, frame, &mut node.mailbox);
        }
        count as u64
    }

    /// Runs until `until`, or until `done` returns true.
    pub(super) fn run(&mut self, until: Duration, mut done: impl FnMut(&Self) -> bool) {
        let end = self.now + until;
        loop {
            self.pump();
            if done(self) {
                return;
            }
            let arrival = self.flying.iter().map(|frame| frame.0).min();
            let timer = self
                .nodes
                .iter()
                .filter_map(|node| node.engine.poll_timeout())
                .min();
            let Some(next) = arrival.into_iter().chain(timer).min() else {
                return;
            };
            if next > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(next);
            self.flying.sort_unstable_by_key(|frame| (frame.0, frame.1));
            let count = self.flying.partition_point(|frame| frame.0 <= self.now);
            let arrived = self.flying.drain(..count).collect::<Vec<_>>();
            let together = if self.scatters { 5 } else { 1 };
            for frames in arrived
                .chunk_by(|one, next| one.2 == next.2)
                .flat_map(|frames| frames.chunks(together))
            {
                let node = &mut self.nodes[frames[0].2];
                if node.cut_off {
                    continue;
                }
                let before = node.mailbox.messages.len();
                if self.scatters {
                    let frames: Vec<_> = frames.iter().map(|frame| frame.3.clone()).collect();
                    self.placed += Self::receive_scattered(node, self.now, &frames);
                } else {
                    let frame = &frames[0].3;
                    node.engine.handle_frame(self.now, frame, &mut node.mailbox);
                }
                if node.consumes {
                    for (from, _, body) in &node.mailbox.messages[before..] {
                        node.engine.release(*from, body.len());
                    }
                }
            }
            for node in &mut self.nodes {
                node.engine.handle_timeout(self.now);
            }
        }
    }

    pub(super) fn send(&mut self, from: usize, to: u16, channel: Channel, body: Vec<u8>) {
        let payload = if self.copies {
            Payload::Copied(&body, &[])
        } else {
            Payload::Shared(body.clone().into())
        };
        self.nodes[from]
            .engine
            .submit(NodeId(to), channel, payload, false)
            .unwrap();
    }

    pub(super) fn queued(&self, from: usize, to: u16) -> usize {
        self.nodes[from]
            .engine
            .flow(NodeId(to))
            .unwrap()
            .queued_messages
    }
}

/// The next frame to `to`.
pub(super) fn next_frame(engine: &mut Engine, now: Instant, to: Destination) -> Vec<u8> {
    engine.plan(now, to, &Borrowed::NONE, (1, usize::MAX));
    let mut frames = engine.batch(&Borrowed::NONE);
    frames
        .next()
        .map(|(head, body)| [head, body].concat())
        .unwrap()
}

pub(super) fn body(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|i| (i * 31 + i / 251 + seed) as u8)
        .collect()
}

pub(super) const MINUTE: Duration = Duration::from_secs(60);

/// Messages submitted before hello arrive in order once the peer answers, and all is acknowledged.
#[test]
fn ordered_messages_arrive_in_order() {
    let mut wire = Wire::new(2);
    let sent: Vec<_> = (0..500).map(|i| body(i, i * 7 % 4000)).collect();
    for message in &sent {
        wire.send(0, 1, Channel::ordered(0), message.clone());
    }
    wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
    let got: Vec<_> = wire.nodes[1]
        .mailbox
        .messages
        .iter()
        .map(|message| message.2.clone())
        .collect();
    assert_eq!(got, sent);
    assert_eq!(wire.queued(0, 1), 0);
    assert_eq!(wire.nodes[0].engine.counters().retransmitted_frames, 0);
}

/// Loss, duplication and reordering delay messages but never lose, repeat or reorder them.
#[test]
fn every_channel_survives_a_bad_wire() {
    for seed in 0..20 {
        let congestion = Congestion::ALL[seed as usize % 2];
        let mut wire = Wire::under(2, congestion);
        (
            wire.random,
            wire.loss_percent,
            wire.jitter_us,
            wire.duplicate_percent,
        ) = (seed, 30, 50, 10);
        let channels = [
            Channel::ordered(0),
            Channel::ordered(1),
            Channel::unordered(0),
        ];
        wire.copies = seed % 4 >= 2;
        wire.run(MINUTE, |wire| {
            wire.nodes[0].engine.is_up(NodeId(1)) && wire.nodes[1].engine.is_up(NodeId(0))
        });
        for i in 0..150 {
            wire.send(0, 1, channels[i / 10 % 3], body(i, i * i % 9000));
            wire.send(1, 0, channels[i / 10 % 3], body(i, i * i % 300));
        }
        wire.run(MINUTE, |wire| wire.queued(0, 1) + wire.queued(1, 0) == 0);
        for (node, span) in [(1, 9000), (0, 300)] {
            for (channel_index, channel) in channels.into_iter().enumerate() {
                let expected: Vec<_> = (0..150)
                    .filter(|i| i / 10 % 3 == channel_index)
                    .map(|i| body(i, i * i % span))
                    .collect();
                let messages = wire.nodes[node]
                    .mailbox
                    .messages
                    .iter()
                    .filter(|message| message.1 == channel);
                let mut got: Vec<_> = messages.map(|message| message.2.clone()).collect();
                let mut expected = expected;
                if channel == Channel::unordered(0) {
                    got.sort();
                    expected.sort();
                }
                assert!(got == expected, "seed {seed} {channel:?}");
            }
        }
    }
}

/// A small urgent message passes a large one that is under way.
#[test]
fn urgent_passes_bulk() {
    let mut wire = Wire::new(2);
    wire.run(Duration::from_millis(10), |wire| {
        wire.nodes[0].engine.is_up(NodeId(1))
    });
    let bulk = Channel::new(
        tsumuji_wire::DeliveryClass::Ordered,
        tsumuji_wire::Priority::BULK,
        0,
    );
    let urgent = Channel::new(
        tsumuji_wire::DeliveryClass::Ordered,
        tsumuji_wire::Priority::URGENT,
        0,
    );
    wire.send(0, 1, bulk, body(0, 7_900_000));
    wire.run(Duration::from_micros(40), |_| false);
    wire.send(0, 1, urgent, body(1, 100));
    wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
    let order: Vec<_> = wire.nodes[1]
        .mailbox
        .messages
        .iter()
        .map(|message| message.2.len())
        .collect();
    assert_eq!(order, [100, 7_900_000]);
}

/// A program that takes nothing closes the window without a drop; taking opens it again.
#[test]
fn budget_stalls_and_resumes() {
    let mut wire = Wire::new(2);
    wire.nodes[1].consumes = false;
    for i in 0..40 {
        wire.send(0, 1, Channel::ordered(0), body(i, 100_000));
    }
    wire.run(Duration::from_secs(5), |_| false);
    let held = wire.nodes[1].mailbox.messages.len();
    assert!(
        (8..=11).contains(&held),
        "{held} of 100 kB in a budget of 1 MiB"
    );
    let mut released = 0;
    while wire.queued(0, 1) > 0 {
        let messages = &wire.nodes[1].mailbox.messages;
        assert!(released < messages.len(), "stalled at {released}");
        let bytes = messages[released].2.len();
        wire.nodes[1].engine.release(NodeId(0), bytes);
        released += 1;
        wire.run(Duration::from_secs(2), |wire| {
            wire.nodes[1].mailbox.messages.len() > released + 7
        });
    }
    assert_eq!(wire.nodes[1].mailbox.messages.len(), 40);
}

/// A message larger than the budget is admitted alone.
#[test]
fn message_above_budget_arrives() {
    let mut wire = Wire::new(2);
    wire.send(0, 1, Channel::ordered(0), body(3, 5 << 20));
    wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
    assert_eq!(wire.nodes[1].mailbox.messages[0].2, body(3, 5 << 20));
}

/// Messages that are cut into fragments shorter than agreed can be completed when nothing else is free: the memory reserved for them is counted in
/// their own fragments.
#[test]
fn begun_messages_are_finished_fragment_by_fragment() {
    const MESSAGES: u64 = 100;
    let mut wire = Wire::new(2);
    wire.run(Duration::from_millis(10), |_| false);
    let now = wire.now;
    let Node {
        engine, mailbox, ..
    } = &mut wire.nodes[1];
    let peer = engine.peers[0].as_deref().unwrap();
    let (session, first) = (peer.session.incoming, peer.receive.arrivals.base());
    let size = peer.send.queue.fragment_bytes / 2 + 1;
    // The last message is admitted with the last free byte, so that grants are scarce from the beginning, and nothing is free in the end.
    let budget_bytes = MESSAGES as usize * charge(2 * size) - 1;
    engine.shared.memory.set_budget(budget_bytes);
    let mut frame = vec![0; 1472];
    for index in 0..MESSAGES {
        let data = tsumuji_wire::Data {
            source: NodeId(0),
            destination: NodeId(1),
            flags: tsumuji_wire::flags::MORE,
            session,
            number: (first + index) as u32,
            ack: FIRST_NUMBER as u32,
            credit: FIRST_NUMBER as u32,
            message: (FIRST_NUMBER + index) as u32,
            offset: 0,
            length: 2 * size as u32,
            floor_delta: index as u16,
            channel: Channel::unordered(0),
            ack_delay: 0,
            payload: &vec![1; size],
        };
        let bytes = data.write(&mut frame).unwrap();
        engine.handle_frame(now, &frame[..bytes], mailbox);
    }
    assert_eq!(engine.shared.memory.free_bytes(), 0);
    let receive = &engine.peers[0].as_deref().unwrap().receive;
    assert_eq!(receive.remaining.frames as u64, MESSAGES);
    let granted = engine.flow(NodeId(0)).unwrap().granted_frames as u64;
    assert!(
        granted >= MESSAGES,
        "{granted} of {MESSAGES} fragments may come"
    );
}

/// A peer that closes is dead at once.
#[test]
fn close_is_told() {
    let mut wire = Wire::new(2);
    wire.run(Duration::from_millis(10), |_| false);
    let now = wire.now;
    wire.nodes[0].engine.close(now);
    wire.run(Duration::from_millis(1), |_| false);
    assert!(wire.nodes[1].events.contains(&Event::PeerDead {
        peer: NodeId(0),
        failed_messages: 0
    }));
}

/// A request and its answer cost one frame each: acknowledgements ride along.
#[test]
fn ping_pong_needs_no_frames_of_its_own() {
    let mut wire = Wire::new(2);
    wire.run(Duration::from_millis(5), |_| false);
    let before = wire.frames;
    for i in 0..100 {
        wire.send(0, 1, Channel::ordered(0), body(i, 8));
        wire.run(MINUTE, |wire| wire.nodes[1].mailbox.messages.len() == i + 1);
        wire.send(1, 0, Channel::ordered(0), body(i, 8));
        wire.run(MINUTE, |wire| wire.nodes[0].mailbox.messages.len() == i + 1);
    }
    assert_eq!(wire.frames - before, 200);
}

/// The program is told when a refused submit has room again, and, with `notify`, when a message is acknowledged.
#[test]
fn queue_full_and_writable() {
    let mut wire = Wire::new(2);
    let engine = &mut wire.nodes[0].engine;
    let id = engine
        .submit(
            NodeId(1),
            Channel::ordered(0),
            Payload::Shared(vec![0; 7 << 20].into()),
            true,
        )
        .unwrap();
    let full = engine.submit(
        NodeId(1),
        Channel::ordered(0),
        Payload::Shared(vec![0; 2 << 20].into()),
        false,
    );
    assert_eq!(full, Err(SubmitError::QueueFull { peer: NodeId(1) }));
    wire.run(MINUTE, |wire| wire.queued(0, 1) == 0);
    wire.pump();
    assert!(wire.nodes[0].events.contains(&Event::Sent {
        peer: NodeId(1),
        id
    }));
    assert!(
        wire.nodes[0]
            .events
            .contains(&Event::Writable { peer: NodeId(1) })
    );
}

/// Frames for other nodes, from unknown peers and of other sessions are counted and change nothing.
#[test]
fn stray_frames_are_counted() {
    let mut wire = Wire::new(2);
    wire.run(Duration::from_millis(5), |_| false);
    let node = &mut wire.nodes[0];
    let mut slot = [0; 64];
    for (source, destination, reason) in [
        (1, 9, Drop::Misdirected),
        (9, 0, Drop::UnknownPeer),
        (1, 0, Drop::Session),
    ] {
        let frame = tsumuji_wire::Ack {
            source: NodeId(source),
            destination: NodeId(destination),
            flags: 0,
            session: 1,
            ack: 1,
            credit: 0,
            window_kib: 0,
            ack_delay_us: 0,
            bitmap: &[],
        };
        let bytes = frame.write_close(&mut slot).unwrap();
        let before = node.engine.counters().drops.get(reason);
        node.engine
            .handle_frame(wire.now, &slot[..bytes], &mut node.mailbox);
        assert_eq!(
            node.engine.counters().drops.get(reason),
            before + 1,
            "{reason:?}"
        );
    }
    assert!(node.engine.is_up(NodeId(1)));
}
