//! The net under test with a stand-in engine without reliability, so that every fault shows.

use std::collections::{BTreeMap, VecDeque};

use super::*;
use crate::card::Card;
use crate::process::config;
use crate::wires::Damage;
use crate::{Pace, goodput, judged};
use tsumuji_link::{Frame, Link, LinkAddr, each};
use tsumuji_node::simulated::{Clock, Program, SendError};
use tsumuji_proto::{
    Body, Channel, Config, Datagram, Delivery, Destination, Event, Flow, Payload, SendId,
    SubmitError,
};

const CHANNEL: Channel = Channel::ordered(0);
const HEAD_BYTES: usize = 8;
const HELLO: u8 = 1;
const DATA: u8 = 2;
const SHARE: u8 = 3;

/// Sends one frame a message and one hello a millisecond until answered, nothing else.
struct Stub {
    config: Config,
    card: Card,
    peers: BTreeMap<NodeId, u32>,
    ended_sessions: BTreeMap<NodeId, u64>,
    hello: Vec<NodeId>,
    hello_at: Option<Instant>,
    queue: VecDeque<(Destination, Vec<u8>)>,
    events: VecDeque<Event>,
    submitted: u64,
    released: usize,
    sent: Vec<(NodeId, SendId)>,
}

/// A channel in a byte, for ids below 16.
fn byte_of(channel: Channel) -> u8 {
    ((channel.number() >> 12) as u8 & 0xf0) | channel.id() as u8 & 0x0f
}

fn channel_of(byte: u8) -> Channel {
    let number = u32::from(byte & 0xf0) << 12 | u32::from(byte & 0x0f);
    Channel::from_number(number).expect("a channel in a byte")
}

impl Stub {
    fn queue(&mut self, to: Destination, kind: u8, channel: u8, payload: &[u8]) {
        let mut frame = vec![
            kind,
            self.config.me.0 as u8,
            (self.config.me.0 >> 8) as u8,
            channel,
        ];
        frame.extend_from_slice(&self.config.incarnation.to_le_bytes());
        frame.extend_from_slice(payload);
        self.queue.push_back((to, frame));
    }

    fn handle_frame(&mut self, now: Instant, frame: &[u8], program: &mut impl Program) {
        let Some((head, payload)) = frame.split_first_chunk::<HEAD_BYTES>() else {
            return;
        };
        let from = NodeId(u16::from_le_bytes([head[1], head[2]]));
        let incarnation = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let session = self.ended_sessions.get(&from).copied().unwrap_or(0);
        match head[0] {
            HELLO => {
                self.hello.retain(|peer| *peer != from);
                let before = self.peers.insert(from, incarnation);
                if before != Some(incarnation) {
                    if before.is_some() {
                        *self.ended_sessions.entry(from).or_default() += 1;
                        self.events.push_back(Event::PeerDead {
                            peer: from,
                            failed_messages: 0,
                        });
                    }
                    self.events.push_back(Event::PeerUp {
                        peer: from,
                        incarnation,
                    });
                    self.hello.push(from);
                    self.hello_at = Some(now);
                }
            }
            DATA => {
                let is_taken = program.message(Delivery {
                    from,
                    session,
                    channel: channel_of(head[3]),
                    body: Body::Frame(payload),
                });
                self.released += if is_taken { payload.len() } else { 0 };
            }
            SHARE => program.datagram(
                session,
                Datagram {
                    source: from,
                    incarnation,
                    channel_id: 1,
                    epoch: 2,
                    lap: u32::from(head[3]),
                    key: 0,
                    payload,
                },
            ),
            _ => {}
        }
    }
}

impl Process for Stub {
    type Engine = Self;

    fn new(config: Config, card: Card) -> Self {
        Self {
            config,
            card,
            peers: BTreeMap::new(),
            ended_sessions: BTreeMap::new(),
            hello: Vec::new(),
            hello_at: None,
            queue: VecDeque::new(),
            events: VecDeque::new(),
            submitted: 0,
            released: 0,
            sent: Vec::new(),
        }
    }
    fn engine(&self) -> &Self {
        self
    }
    fn engine_mut(&mut self) -> &mut Self {
        self
    }
    fn add_peer(&mut self, now: Instant, peer: NodeId) {
        self.hello.push(peer);
        self.hello_at = Some(now);
    }
    fn reconnect_peer(&mut self, now: Instant, peer: NodeId) {
        self.add_peer(now, peer);
    }
    fn submit(
        &mut self,
        to: NodeId,
        channel: Channel,
        payload: Payload<'_>,
        notify: bool,
    ) -> Result<SendId, SubmitError> {
        if self.queue.len() > 100 {
            return Err(SubmitError::QueueFull { peer: to });
        }
        let bytes = match payload {
            Payload::Copied(head, rest) => [head, rest].concat(),
            Payload::Shared(bytes) => bytes.to_vec(),
        };
        self.queue(Destination::Peer(to), DATA, byte_of(channel), &bytes);
        self.submitted += 1;
        let id = SendId(self.submitted);
        if notify {
            self.sent.push((to, id));
        }
        Ok(id)
    }
    fn datagram(
        &mut self,
        to: Destination,
        datagram: Datagram<'_>,
        _: Option<Duration>,
    ) -> Result<usize, SendError> {
        self.queue(to, SHARE, datagram.lap as u8, datagram.payload);
        Ok(0)
    }
    fn poll_once(&mut self, program: &mut impl Program) {
        let now = self.card.now();
        let mut arrived = Vec::new();
        let mut take = each(|_, frame| arrived.push(frame.to_vec()));
        self.card.receive(usize::MAX, &mut take).expect("a card");
        for frame in arrived {
            self.handle_frame(now, &frame, program);
        }
        if self.hello_at.is_some_and(|at| at <= now) {
            for peer in std::mem::take(&mut self.hello) {
                self.queue(Destination::Peer(peer), HELLO, 0, &[]);
                if !self.peers.contains_key(&peer) {
                    self.hello.push(peer);
                }
            }
            self.hello_at = (!self.hello.is_empty()).then_some(now + Duration::from_millis(1));
        }
        while let Some((to, frame)) = self.queue.front() {
            let addr = match to {
                Destination::Peer(peer) => Card::addr(*peer),
                Destination::Broadcast => LinkAddr::Broadcast,
            };
            if self.card.capacity(addr).expect("a card").frames == 0 {
                break;
            }
            let is_sent = self.card.send_one(addr, Frame::whole(frame));
            assert!(is_sent.expect("a card"), "as its capacity says");
            let many = self.queue.len() > 51;
            if let (Some((Destination::Peer(peer), _)), false) = (self.queue.pop_front(), many) {
                self.events.push_back(Event::Writable { peer });
            }
        }
        for event in self.events.drain(..) {
            program.event(&event);
        }
        while let Some((peer, id)) = self.sent.pop() {
            program.event(&Event::Sent { peer, id });
        }
    }
    fn deadline(&self) -> Option<Instant> {
        self.hello_at
    }
    fn has_backlog(&self) -> bool {
        !self.queue.is_empty()
    }
    fn flow(&self, peer: NodeId) -> Option<Flow> {
        let queued_messages = self
            .queue
            .iter()
            .filter(|(to, _)| *to == Destination::Peer(peer))
            .count();
        Some(Flow {
            queued_messages,
            ..Flow::default()
        })
    }
    fn release(&mut self, _: NodeId, bytes: usize) {
        self.released += bytes;
    }
    fn recycle(&mut self, _: Vec<u8>) {}
    fn close(&mut self, _: Instant) {}
}

fn net(seed: u64) -> Net<Stub> {
    Net::with_process(Seed(seed)).patience(Duration::from_millis(100))
}

/// Two nodes whose hellos have all arrived.
fn settled_pair(net: &mut Net<Stub>) -> (NodeId, NodeId) {
    let pair = net.pair(config());
    net.run_for(Duration::from_millis(2));
    pair
}

/// On a net without faults even the stand-in delivers all, and payloads arrive unchanged.
#[test]
fn calm_net_delivers_all() {
    let mut net = net(1);
    let (a, b) = settled_pair(&mut net);
    let message = net.random_payload(1000);
    net.send(a, b, CHANNEL, &message);
    net.stream(b, a, CHANNEL, 700, 500);
    net.stream(a, b, CHANNEL, 3, 500);
    net.run_until_idle();
    assert_eq!(net.received(b), [message]);
    assert_eq!(
        (net.deliveries(a).len(), net.deliveries(b).len()),
        (500, 501)
    );
    assert_eq!(net.delivered_bytes(a), 350_000);
    assert_eq!(net.engine(a).unwrap().released, 350_000);
}

/// A lost message keeps the run from ending, and patience ends it.
#[test]
#[should_panic(expected = "stuck")]
fn loss_is_noticed() {
    let mut net = net(2);
    let (a, b) = settled_pair(&mut net);
    net.conditions().loss_ppm = 100_000;
    net.stream(a, b, Channel::unordered(0), 500, 100);
    net.run_until_idle();
}

/// A repeated message is reported as such.
#[test]
#[should_panic(expected = "delivered before")]
fn duplication_is_noticed() {
    let mut net = net(3);
    let (a, b) = settled_pair(&mut net);
    net.conditions().duplicate_ppm = 100_000;
    net.stream(a, b, CHANNEL, 500, 100);
    net.run_until_idle();
}

/// A message that overtakes another is reported as such.
#[test]
#[should_panic(expected = "overtakes")]
fn reordering_is_noticed() {
    let mut net = net(4);
    let (a, b) = settled_pair(&mut net);
    net.conditions().reorder_ppm = 100_000;
    net.stream(a, b, CHANNEL, 500, 100);
    net.run_until_idle();
}

/// A flipped bit in a payload is reported as such.
#[test]
#[should_panic(expected = "damaged or invented")]
fn damage_is_noticed() {
    let mut net = net(5);
    let (a, b) = settled_pair(&mut net);
    net.conditions().damage_ppm = 100_000;
    net.conditions().damage = &[Damage::Flipped];
    net.stream(a, b, CHANNEL, 500, 100);
    net.run_until_idle();
}

/// Frames take the time of two ports and the delay, and the port is never faster than its rate.
#[test]
fn rate_is_kept() {
    let mut net = net(6).rate_mbit(1_000);
    let (a, b) = settled_pair(&mut net);
    let start = net.now();
    net.stream(a, b, CHANNEL, 1_492, 1_000);
    net.run_until(|net| net.deliveries(b).len() == 1_000);
    // 1001 frame times of 12.304 µs (the last one passes two ports), and the path's 10 µs.
    assert_eq!(net.now().since(start).as_nanos(), 1_001 * 12_304 + 10_000);
    let datagram = goodput(
        net.delivered_bytes(b),
        net.now().since(start),
        1_000_000_000,
    );
    assert!((0.95..0.98).contains(&datagram), "{datagram}");
}

/// Two nodes that send to one at full rate overflow the port's buffer by the excess, and not before it is full.
#[test]
fn switch_buffer_is_finite() {
    let mut net = net(7).rate_mbit(1_000).switch_buffer(1538 * 10);
    let nodes = net.mesh(3, &config());
    net.run_until_up();
    net.stream(nodes[1], nodes[0], CHANNEL, 1_492, 100);
    net.stream(nodes[2], nodes[0], CHANNEL, 1_492, 100);
    net.run_for(Duration::from_millis(10));
    // In the time of 100 arrivals from each, 100 leave, and 10 wait: 90 of 200 find no room.
    let dropped = net.traffic().switch_full;
    assert!((88..=91).contains(&dropped), "{dropped}");
}

/// A processor slower than the wire lets its ring overflow, and the drops are counted there.
#[test]
fn receive_ring_is_finite() {
    let mut net = net(8).rate_mbit(1_000);
    let (a, b) = settled_pair(&mut net);
    net.set_frame_cost(b, Duration::from_nanos(2 * 12_304));
    net.set_ring(b, 16);
    net.stream(a, b, Channel::unordered(0), 1_492, 100);
    net.run_for(Duration::from_millis(10));
    let (dropped, handled) = (net.receive_full(b), net.deliveries(b).len() as u64);
    assert_eq!(dropped + handled, 100);
    assert!(
        (33..=35).contains(&dropped),
        "{dropped}: half of 100 arrive too early, 16 of them fit"
    );
    assert_eq!(net.ring_peak(b), 16);
}

/// A partition keeps frames from the other side only, and only until it is healed.
#[test]
fn partition_cuts_and_heals() {
    let mut net = net(9);
    let nodes = net.mesh(3, &config());
    net.run_until_up();
    net.partition(&nodes[2..]);
    net.stream(nodes[0], nodes[1], CHANNEL, 100, 5);
    net.stream(nodes[0], nodes[2], CHANNEL, 100, 7);
    net.run_for(Duration::from_millis(1));
    assert_eq!(
        (
            net.deliveries(nodes[1]).len(),
            net.deliveries(nodes[2]).len()
        ),
        (5, 0)
    );
    assert_eq!(net.traffic().partitioned, 7);
    net.heal();
    net.publish(nodes[0], Destination::Broadcast, (1, 2), 3, 0, 64)
        .unwrap();
    net.run_for(Duration::from_millis(1));
    assert_eq!(
        net.datagrams(nodes[2]).len() + net.datagrams(nodes[1]).len(),
        2,
        "a broadcast reaches all again"
    );
    assert_eq!(net.datagrams(nodes[2])[0].lap, 3);
}

/// What a program takes is not kept and comes once; datagrams that it gives come with their contents.
#[test]
fn arrivals_are_taken() {
    let mut net = net(11);
    let (a, b) = settled_pair(&mut net);
    assert!(!net.take_arrivals(b).events.is_empty());
    assert!(net.events(b).is_empty());
    net.send(a, b, CHANNEL, b"message");
    let datagram = Datagram {
        channel_id: 1,
        epoch: 2,
        lap: 3,
        payload: b"content",
        ..Datagram::EMPTY
    };
    net.publish_given(a, Destination::Broadcast, datagram)
        .unwrap();
    net.run_for(Duration::from_millis(1));
    let taken = net.take_arrivals(b);
    assert_eq!(taken.bodies, [b"message"]);
    assert_eq!(taken.payloads, [b"content"]);
    assert_eq!((taken.deliveries.len(), taken.datagrams.len()), (1, 1));
    let stamp = taken.datagrams[0];
    assert_eq!((stamp.source, stamp.lap, stamp.bytes), (a, 3, 7));
    assert!(net.deliveries(b).is_empty() && net.received(b).is_empty());
    assert!(net.datagrams(b).is_empty());
    let rest = net.take_arrivals(b);
    assert!(rest.bodies.is_empty() && rest.payloads.is_empty());
}

/// Waiting for peers ends when the program wants that.
#[test]
fn waiting_for_peers_can_be_stopped() {
    let mut net = net(12);
    let nodes = net.mesh(3, &config());
    let mut asked = 0;
    let are_up = net.run_until_up_unless(|| {
        asked += 1;
        asked == 2
    });
    assert!(!are_up && asked == 2 && !net.is_up(nodes[0], nodes[2]));
    assert!(net.run_until_up_unless(|| false));
    assert!(net.is_up(nodes[0], nodes[2]) && net.is_up(nodes[2], nodes[1]));
}

/// In a program a violation is returned, in a line that names the seed and whose fault it is; so is another panic.
#[test]
fn violations_are_returned_to_programs() {
    let lost = judged(13, || {
        let mut net = net(13).in_program();
        let (a, b) = settled_pair(&mut net);
        net.conditions().loss_ppm = 100_000;
        net.stream(a, b, Channel::unordered(0), 500, 100);
        net.run_until_idle();
    });
    let lost = lost.unwrap_err().to_string();
    assert!(
        lost.contains("stuck") && lost.contains("virtual time"),
        "{lost}"
    );
    let broken = judged::<()>(14, || panic!("a broken\n  engine"));
    let broken = broken.unwrap_err().to_string();
    assert!(broken.ends_with(": a broken; engine"), "{broken}");
    for (seed, text) in [(13, &lost), (14, &broken)] {
        assert!(text.contains(&format!("seed {seed} ")), "{text}");
        assert!(text.contains("a fault of tsumuji's"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    assert_eq!(judged(15, || 5), Ok(5));
}

/// A message for a dead process is not delivered, and the judge notices one that reaches the next incarnation.
#[test]
#[should_panic(expected = "parties' incarnations")]
fn former_session_is_noticed() {
    let mut net = net(10).delay_us(500..501);
    let (a, b) = settled_pair(&mut net);
    net.crash(b);
    net.stream(a, b, CHANNEL, 100, 1);
    net.run_for(Duration::from_millis(1));
    assert_eq!((net.traffic().nobody, net.waiting()), (1, 1));
    net.restart(b);
    net.run_until(|net| net.is_up(b, a));
    // The stand-in ignores incarnations: this frame was meant for the first.
    let mut frame = vec![DATA, a.0 as u8, 0, byte_of(CHANNEL), 0, 0, 0, 0];
    let mut body = vec![0; 100];
    crate::payload::fill(seed_of_first_message(&net), &mut body);
    frame.extend_from_slice(&body);
    net.inject(b, &frame);
    net.run_for(Duration::from_millis(1));
}

fn seed_of_first_message(net: &Net<Stub>) -> u64 {
    net.seed().rng(2).bits()
}

/// A stopped process takes no frames; when it continues it finds as many as its ring holds.
#[test]
fn pause_fills_the_ring() {
    let mut net = net(11);
    let (a, b) = settled_pair(&mut net);
    net.set_ring(b, 4);
    net.pause(b);
    net.stream(a, b, Channel::unordered(0), 100, 10);
    net.run_for(Duration::from_millis(1));
    assert_eq!((net.deliveries(b).len(), net.receive_full(b)), (0, 6));
    net.resume(b);
    net.run_for(Duration::from_millis(1));
    assert_eq!(net.deliveries(b).len(), 4);
}

/// A slow program takes messages at its pace; the waiting ones are known.
#[test]
fn slow_program_holds_messages() {
    let mut net = net(12);
    let (a, b) = settled_pair(&mut net);
    net.set_pace(b, Pace::BytesPerSecond(1_000_000));
    net.stream(a, b, CHANNEL, 1_000, 10);
    net.run_for(Duration::from_micros(4_500));
    assert_eq!((net.held(b), net.held_peak(b)), (6_000, 10_000));
    net.set_pace(b, Pace::Prompt);
    assert_eq!(net.held(b), 0);
    assert_eq!(net.engine(b).unwrap().released, 10_000);
}

/// The same seed gives the same run, another seed another.
#[test]
fn seed_fixes_the_run() {
    let run = |seed| {
        let mut net = net(seed).delay_us(5..50).defer_percent(20);
        let (a, b) = settled_pair(&mut net);
        net.conditions().loss_ppm = 100_000;
        net.stream(a, b, Channel::unordered(3), 300, 100);
        net.inject_garbage(b, 10, Duration::from_millis(1));
        net.run_for(Duration::from_millis(2));
        (net.trace(), net.traffic())
    };
    assert_eq!(run(13), run(13));
    assert_ne!(run(13).0, run(14).0);
}
