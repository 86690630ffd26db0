//! Moves events to processes and their frames away. The loop that drives an engine is production's (`Process::poll_once`); this module decides when it is
//! polled, and passes on the results.

use super::Net;
use super::program::datagram_seed;
use crate::card::{Card, Refusal, Sent};
use crate::host::{
    Arrived, ArrivedDatagram, Borrowing, Item, Mailbox, Pace, Received, ReceivedDatagram,
};
use crate::oracle::Expected;
use crate::payload::{checksum, fill};
use crate::process::Process;
use crate::timeline::Happening;
use tsumuji_link::checked::CHECK_BYTES;
use tsumuji_proto::{Borrowed, Destination, Duration, Event, NodeId};
use tsumuji_wire::bundle;

/// Frames that a processor without cost takes from its ring in one poll.
const RECEIVE_BURST: usize = 32;

/// A process polled so often at one call does not come to rest by itself.
const POLLS_MAX: usize = 100_000;

/// How long a process does something else when the card has refused a frame at random.
const DEFER_PAUSE: Duration = Duration::from_micros(1);

/// Timeouts at one moment after which an engine counts as spinning.
const TIMEOUTS_PER_MOMENT: u32 = 1_000;

impl<P: Process> Net<P> {
    /// Runs the next event; false if there is none.
    pub(super) fn step(&mut self) -> bool {
        let Some(what) = self.medium.timeline.next() else {
            return false;
        };
        match what {
            Happening::AtSwitch { from, to, frame } => {
                self.switch.forward(&mut self.medium, from, to, frame)
            }
            Happening::AtNode { from, to, frame } => {
                let now = self.now();
                let host = &mut self.hosts[usize::from(to.0)];
                if host.card.waiting() >= host.ring_frames && host.frame_ns == 0 {
                    // A processor without cost never lets its ring overflow, even if all comes in one moment.
                    self.receive(to);
                }
                let host = &mut self.hosts[usize::from(to.0)];
                if host.process.is_none() {
                    self.medium.traffic.nobody += 1;
                } else if host.card.waiting() >= host.ring_frames {
                    host.receive_full += 1;
                    self.medium.traffic.receive_full += 1;
                } else {
                    host.card.put(Card::addr(from), frame);
                    host.ring_peak = host.ring_peak.max(host.card.waiting());
                    let at = now.max(host.busy_until);
                    self.plan_receive(to, at);
                }
            }
            Happening::Receive { node } => self.receive(node),
            Happening::Transmit { node } => {
                self.host_mut(node).transmit_planned = false;
                self.pump(node);
            }
            Happening::Timeout { node } => self.timeout(node),
            Happening::Consume { node } => self.consume(node),
        }
        true
    }

    /// Begins a new incarnation; the caller adds its peers.
    pub(super) fn start(&mut self, node: NodeId) {
        let incarnation = (self.incarnation_rng.bits() as u32).max(1);
        let host = self.host_mut(node);
        host.card.begin_process();
        host.config.incarnation = incarnation;
        host.process = Some(P::new(host.config.clone(), host.card.clone()));
        self.oracle.born(node, incarnation);
    }

    /// Adds a peer before the first frame leaves, as a real driver does.
    pub(super) fn add_peer(&mut self, node: NodeId, peer: NodeId) {
        let now = self.now();
        let host = self.host_mut(node);
        host.peers.insert(peer);
        host.card.begin(now, 0);
        if let Some(process) = host.process.as_mut() {
            process.add_peer(now, peer);
        }
        self.plan_transmit(node, now);
    }

    fn receive(&mut self, node: NodeId) {
        let now = self.now();
        let host = &mut self.hosts[usize::from(node.0)];
        host.receive_planned = false;
        if host.process.is_none() || host.paused {
            return;
        }
        let busy_until = host.busy_until;
        if now < busy_until {
            return self.plan_receive(node, busy_until);
        }
        let burst = if host.frame_ns == 0 { RECEIVE_BURST } else { 1 };
        self.poll_process(node, burst);
        let host = &mut self.hosts[usize::from(node.0)];
        let busy_until = now + Duration::from_nanos(host.frame_ns);
        host.busy_until = busy_until;
        if host.card.waiting() > 0 {
            self.plan_receive(node, busy_until);
        }
    }

    fn plan_receive(&mut self, node: NodeId, at: tsumuji_proto::Instant) {
        let host = &mut self.hosts[usize::from(node.0)];
        if !std::mem::replace(&mut host.receive_planned, true) {
            self.medium.timeline.plan(at, Happening::Receive { node });
        }
    }

    /// Polls without receiving: expired timeouts, events, and all frames that the card takes.
    pub(super) fn pump(&mut self, node: NodeId) {
        self.poll_process(node, 0);
    }

    /// Polls until the process has nothing more to do now; the first poll takes up to `burst` frames.
    fn poll_process(&mut self, node: NodeId, burst: usize) {
        let now = self.now();
        let mut burst = burst;
        for poll in 0.. {
            self.check(poll < POLLS_MAX, || format!("{node} does not come to rest"));
            let host = &mut self.hosts[usize::from(node.0)];
            let Some(process) = host.process.as_mut().filter(|_| !host.paused) else {
                return;
            };
            let refused = process.refused_frames();
            host.card.begin(now, burst);
            let borrowing = host.borrowing.as_ref();
            let mut mailbox = Mailbox {
                now,
                copies: self.copies,
                is_prompt: host.pace == Pace::Prompt,
                borrowed: borrowing.map_or(Borrowed::NONE, Borrowing::borrowed),
                given: &self.given,
                items: std::mem::take(&mut self.items),
                events: std::mem::take(&mut self.events),
            };
            process.poll_once(&mut mailbox);
            let Mailbox { items, events, .. } = mailbox;
            (self.items, self.events) = (items, events);
            self.medium.traffic.refused += process.refused_frames() - refused;
            let has_backlog = process.has_backlog();
            let (sent, refusal) = host.card.take_sent();
            self.send_out(node, sent);
            let is_idle = self.items.is_empty() && self.events.is_empty();
            self.hand_over(node);
            burst = 0;
            // A program may answer an event with more to send.
            if !is_idle || self.take_back(node) {
                continue;
            }
            match refusal.filter(|_| has_backlog) {
                Some(Refusal::Until(room_at)) => self.plan_transmit(node, room_at),
                Some(Refusal::Deferred) => self.plan_transmit(node, now + DEFER_PAUSE),
                None if has_backlog => continue,
                None => {}
            }
            break;
        }
        let host = &mut self.hosts[usize::from(node.0)];
        let deadline = host.process.as_ref().and_then(P::deadline);
        let deadline = deadline.map(|at| at.max(now));
        if let Some(at) = deadline.filter(|at| host.timeout_at.is_none_or(|planned| planned > *at))
        {
            host.timeout_at = Some(at);
            self.medium.timeline.plan(at, Happening::Timeout { node });
        }
    }

    /// Delivers the messages of a poll to the program, each after the events that belong before it, and then the other events.
    fn hand_over(&mut self, node: NodeId) {
        let mut items = std::mem::take(&mut self.items);
        for item in items.drain(..) {
            let (source, session) = item.source();
            while self.ended_sessions(node, source) < session && self.take_event(node) {}
            let is_up =
                |event: &Event| matches!(event, Event::PeerUp { peer, .. } if *peer == source);
            while !self.oracle.is_up(node, source)
                && self.events.iter().any(is_up)
                && self.take_event(node)
            {}
            match item {
                Item::Message(_, message) => self.deliver(node, message),
                Item::Datagram(_, datagram) => self.deliver_datagram(node, datagram),
            }
        }
        self.items = items;
        while self.take_event(node) {}
    }

    fn ended_sessions(&self, node: NodeId, peer: NodeId) -> u64 {
        self.host(node)
            .ended_sessions
            .get(&peer)
            .copied()
            .unwrap_or(0)
    }

    fn deliver_datagram(&mut self, node: NodeId, datagram: ArrivedDatagram) {
        let stamp = datagram.stamp;
        let verdict = self.oracle.shared(stamp.source, node, stamp.incarnation);
        if !self.forgiving.contains(&(stamp.source, node)) {
            self.judge(verdict);
        }
        if datagram.given.is_none() && datagram.checksum != made_checksum(&stamp) {
            let forgiven = self.forgiving.contains(&(stamp.source, node));
            self.check(forgiven, || {
                format!("{node} was given a damaged or invented datagram: {stamp:?}")
            });
            return;
        }
        self.note([
            u64::from(node.0),
            u64::from(stamp.source.0),
            u64::from(stamp.lap),
            datagram.checksum,
        ]);
        let host = self.host_mut(node);
        host.datagrams.push(stamp);
        host.payloads.extend(datagram.given);
    }

    fn deliver(&mut self, node: NodeId, message: Arrived) {
        let now = self.now();
        let Arrived {
            from,
            channel,
            bytes,
            checksum,
            whole,
            is_taken,
        } = message;
        self.note([
            now.as_nanos() ^ u64::from(node.0) << 48,
            u64::from(from.0),
            u64::from(channel.number()),
            checksum,
        ]);
        let verdict = self
            .oracle
            .delivered((from, node), channel, bytes, checksum);
        let expected = if self.forgiving.contains(&(from, node)) && verdict.is_err() {
            Expected {
                bytes,
                checksum,
                submitted: now,
                keep: false,
            }
        } else {
            self.judge(verdict)
        };
        let host = &mut self.hosts[usize::from(node.0)];
        host.received.push(Received {
            at: now,
            submitted: expected.submitted,
            from,
            channel,
            bytes,
        });
        host.received_bytes += bytes as u64;
        match (whole, host.process.as_mut()) {
            (Some(body), _) if expected.keep => host.bodies.push(body),
            (Some(body), Some(process)) => process.recycle(body),
            _ => {}
        }
        let held = host.held_bytes + bytes;
        host.held_peak = host.held_peak.max(held);
        host.largest = host.largest.max(bytes);
        if !is_taken {
            host.held.push_back((from, bytes));
            host.held_bytes = held;
        }
        // the budget, the message that filled it, and one that an ordered channel waited for.
        let largest = host.largest.max(bundle::BYTES_MAX);
        let bound = host.config.budget_bytes + 2 * largest;
        self.check(held <= bound, || {
            format!("{node} holds {held} delivered bytes; R-30 allows {bound}")
        });
        self.take_held(node);
    }

    /// Lets the program take as many held messages as its pace allows.
    pub(super) fn take_held(&mut self, node: NodeId) {
        let now = self.now();
        let host = &mut self.hosts[usize::from(node.0)];
        match host.pace {
            Pace::Stopped => {}
            Pace::Prompt => {
                let Some(process) = host.process.as_mut() else {
                    return;
                };
                for (from, bytes) in host.held.drain(..) {
                    host.held_bytes -= bytes;
                    process.release(from, bytes);
                }
            }
            Pace::BytesPerSecond(rate) => {
                let Some((_, bytes)) = host.held.front() else {
                    return;
                };
                if !host.consume_planned {
                    host.consume_planned = true;
                    let span_ns = *bytes as u128 * 1_000_000_000 / u128::from(rate.max(1));
                    let at = now + Duration::from_nanos(span_ns as u64);
                    self.medium.timeline.plan(at, Happening::Consume { node });
                }
            }
        }
    }

    fn consume(&mut self, node: NodeId) {
        let host = &mut self.hosts[usize::from(node.0)];
        // The pace may have changed, or the process ended, since this was planned.
        let planned = std::mem::take(&mut host.consume_planned);
        if !planned || !matches!(host.pace, Pace::BytesPerSecond(_)) {
            return;
        }
        if let (Some(process), Some((from, bytes))) = (host.process.as_mut(), host.held.pop_front())
        {
            host.held_bytes -= bytes;
            process.release(from, bytes);
        }
        self.take_held(node);
        self.pump(node);
    }

    fn timeout(&mut self, node: NodeId) {
        let now = self.now();
        let host = self.host_mut(node);
        if host.timeout_at != Some(now) {
            return;
        }
        host.timeout_at = None;
        host.timeouts_now = if host.timed_out_at == now {
            host.timeouts_now + 1
        } else {
            0
        };
        host.timed_out_at = now;
        let spins = host.timeouts_now > TIMEOUTS_PER_MOMENT;
        self.check(!spins, || {
            format!("{node}: poll_timeout stays in the past after handle_timeout")
        });
        self.pump(node);
    }

    /// Takes one event of the engine: the judge checks it, it is recorded, and answered as a program would. False if there is none.
    fn take_event(&mut self, node: NodeId) -> bool {
        let now = self.now();
        let Some(event) = self.events.pop_front() else {
            return false;
        };
        let (kind, peer) = match event {
            Event::PeerUp { peer, incarnation } => (u64::from(incarnation) << 8 | 1, peer),
            Event::PeerDead {
                peer,
                failed_messages,
            } => ((failed_messages as u64) << 8 | 2, peer),
            Event::Sent { peer, id } => (id.0 << 8 | 3, peer),
            Event::Writable { peer } => (4, peer),
            Event::TooLarge { peer, id, .. } => (id.0 << 8 | 5, peer),
            _ => (0, node),
        };
        let verdict = self.oracle.happened(node, &event);
        if verdict.is_ok() || !self.forgiving.contains(&(node, peer)) {
            self.judge(verdict);
        }
        self.answer(node, &event);
        self.note([now.as_nanos(), u64::from(node.0), kind, u64::from(peer.0)]);
        self.host_mut(node).events.push((now, event));
        true
    }

    /// Does what every simulated program does about an event.
    fn answer(&mut self, node: NodeId, event: &Event) {
        match *event {
            Event::PeerDead { peer, .. } => {
                *self.host_mut(node).ended_sessions.entry(peer).or_default() += 1;
                self.abort(node, peer);
            }
            Event::Writable { peer } => self.offer(node, peer),
            _ => {}
        }
    }

    fn plan_transmit(&mut self, node: NodeId, at: tsumuji_proto::Instant) {
        let host = &mut self.hosts[usize::from(node.0)];
        if !std::mem::replace(&mut host.transmit_planned, true) {
            self.medium.timeline.plan(at, Happening::Transmit { node });
        }
    }

    /// Sends the frames of a process to the switch, each when its last bit has left the card.
    fn send_out(&mut self, node: NodeId, sent: Vec<Sent>) {
        let now = self.now();
        for Sent {
            to,
            departure,
            bytes,
        } in sent
        {
            if let Destination::Peer(peer) = to
                && !self.forgiving.contains(&(node, peer))
                && let Some(host) = self.hosts.get(usize::from(peer.0))
                && host.config.ring_bytes == 0
            {
                let check_bytes = if self.checked { CHECK_BYTES } else { 0 };
                let (length, most) = (bytes.len(), host.config.frame_bytes + check_bytes);
                self.check(length <= most, || {
                    format!("{node} wrote {length} bytes to {peer}, whose link carries {most}")
                });
            }
            self.medium.traffic.sent_frames += 1;
            self.medium.traffic.sent_bytes += bytes.len() as u64;
            let address = match to {
                Destination::Peer(peer) => u64::from(peer.0),
                Destination::Broadcast => u64::MAX,
            };
            self.note([now.as_nanos(), u64::from(node.0), address, checksum(&bytes)]);
            let frame = bytes.into();
            if departure <= now {
                self.switch.forward(&mut self.medium, node, to, frame);
            } else {
                let from = node;
                let what = Happening::AtSwitch { from, to, frame };
                self.medium.timeline.plan(departure, what);
            }
        }
    }
}

/// Checksum of the content that `Net::publish` makes for a datagram.
fn made_checksum(stamp: &ReceivedDatagram) -> u64 {
    let seed = datagram_seed(
        stamp.source,
        stamp.incarnation,
        stamp.channel_id,
        stamp.epoch,
        stamp.lap,
        stamp.key,
    );
    let mut content = vec![0; stamp.bytes];
    fill(seed, &mut content);
    checksum(&content)
}
