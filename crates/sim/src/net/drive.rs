//! The loop of a real driver, in virtual time: receive, hand over, timeouts, events, transmit.

use super::Net;
use super::program::datagram_seed;
use crate::host::{Arrived, Pace, Received};
use crate::machine::Machine;
use crate::oracle::Expected;
use crate::payload::{checksum, fill};
use crate::timeline::Happening;
use crate::wires::wire_bytes;
use tsumuji_link::checked::{self, CHECK_BYTES};
use tsumuji_proto::{Destination, Duration, Event, Loan, NodeId};
use tsumuji_wire::bundle;

/// Frames that a processor without cost takes from its ring in one turn.
const RECEIVE_BURST: usize = 32;

/// An engine that sends more in one turn does not stop by itself.
const FRAMES_PER_TURN: usize = 1_000_000;

/// Times in a row that a destination is deferred before the driver does something else.
const DEFERS_PER_TURN: usize = 8;

/// How long it then does.
const DEFER_PAUSE: Duration = Duration::from_micros(1);

/// Timeouts at one moment after which an engine counts as spinning.
const TIMEOUTS_PER_MOMENT: u32 = 1_000;

impl<E: Machine> Net<E> {
    /// Lets the next event happen; false if there is none.
    pub(super) fn step(&mut self) -> bool {
        let Some(what) = self.medium.timeline.next() else {
            return false;
        };
        match what {
            Happening::AtSwitch { from, to, frame } => {
                self.switch.forward(&mut self.medium, from, to, frame)
            }
            Happening::AtNode { to, frame } => {
                let now = self.now();
                let host = &mut self.hosts[usize::from(to.0)];
                if host.ring.len() >= host.ring_frames && host.frame_ns == 0 {
                    // A processor without cost never lets its ring overflow, even if all comes in one moment.
                    self.receive(to);
                }
                let host = &mut self.hosts[usize::from(to.0)];
                if host.engine.is_none() {
                    self.medium.traffic.nobody += 1;
                    self.medium.frames.drop(frame);
                } else if host.ring.len() >= host.ring_frames {
                    host.receive_full += 1;
                    self.medium.traffic.receive_full += 1;
                    self.medium.frames.drop(frame);
                } else {
                    host.ring.push_back(frame);
                    host.ring_peak = host.ring_peak.max(host.ring.len());
                    if !host.receive_planned {
                        host.receive_planned = true;
                        let at = now.max(host.busy_until);
                        self.medium
                            .timeline
                            .plan(at, Happening::Receive { node: to });
                    }
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

    /// A new life begins; peers are the caller's business.
    pub(super) fn start(&mut self, node: NodeId) {
        let life = (self.life_rng.bits() as u32).max(1);
        let host = self.host_mut(node);
        host.config.me = node;
        host.config.incarnation = life;
        host.engine = Some(E::new(host.config.clone()));
        self.oracle.born(node, life);
    }

    /// As a real driver does it: all members are added before the first frame leaves.
    pub(super) fn add_peer(&mut self, node: NodeId, peer: NodeId) {
        let now = self.now();
        let host = self.host_mut(node);
        host.peers.insert(peer);
        if let Some(engine) = host.engine.as_mut() {
            engine.add_peer(now, peer);
        }
        self.plan_transmit(node, now);
    }

    fn receive(&mut self, node: NodeId) {
        let now = self.now();
        let host = &mut self.hosts[usize::from(node.0)];
        host.receive_planned = false;
        if host.engine.is_none() || host.paused {
            return;
        }
        if now < host.busy_until {
            host.receive_planned = true;
            return self
                .medium
                .timeline
                .plan(host.busy_until, Happening::Receive { node });
        }
        let burst = if host.frame_ns == 0 { RECEIVE_BURST } else { 1 };
        for _ in 0..burst {
            let host = &mut self.hosts[usize::from(node.0)];
            let (Some(engine), Some(frame)) = (host.engine.as_mut(), host.ring.pop_front()) else {
                break;
            };
            self.medium.traffic.handled_frames += 1;
            self.inbox.now = now;
            let bytes = self.medium.frames.lend(frame);
            if !self.checked {
                engine.handle_frame(now, &bytes, &mut self.inbox);
            } else if let Ok(sound) = checked::open(&bytes) {
                engine.handle_frame(now, sound, &mut self.inbox);
            } else {
                self.medium.traffic.refused += 1;
            }
            self.medium.frames.give_back(frame, bytes);
            self.hand_over(node);
        }
        let host = &mut self.hosts[usize::from(node.0)];
        host.busy_until = now + Duration::from_nanos(host.frame_ns);
        if !host.ring.is_empty() && !host.receive_planned {
            host.receive_planned = true;
            self.medium
                .timeline
                .plan(host.busy_until, Happening::Receive { node });
        }
        self.pump(node);
    }

    /// Gives the program what the engine has delivered, after the events that belong before.
    fn hand_over(&mut self, node: NodeId) {
        self.take_events(node);
        if self.inbox.messages.is_empty() && self.inbox.datagrams.is_empty() {
            return;
        }
        let mut messages = std::mem::take(&mut self.inbox.messages);
        for message in messages.drain(..) {
            self.deliver(node, message);
        }
        self.inbox.messages = messages;
        let mut datagrams = std::mem::take(&mut self.inbox.datagrams);
        for datagram in datagrams.drain(..) {
            let stamp = datagram.stamp;
            let verdict = self.oracle.shared(stamp.source, node, stamp.incarnation);
            if !self.forgiving.contains(&(stamp.source, node)) {
                self.judge(verdict);
            }
            let seed = datagram_seed(
                stamp.source,
                stamp.incarnation,
                stamp.channel,
                stamp.epoch,
                stamp.lap,
                stamp.key,
            );
            let mut content = vec![0; stamp.bytes];
            fill(seed, &mut content);
            if checksum(&content) != datagram.checksum {
                let forgiven = self.forgiving.contains(&(stamp.source, node));
                self.check(forgiven, || {
                    format!("{node} was given a damaged or invented datagram: {stamp:?}")
                });
                self.forgiven += 1;
                continue;
            }
            self.note([
                u64::from(node.0),
                u64::from(stamp.source.0),
                u64::from(stamp.lap),
                datagram.checksum,
            ]);
            self.host_mut(node).datagrams.push(stamp);
        }
        self.inbox.datagrams = datagrams;
    }

    fn deliver(&mut self, node: NodeId, message: Arrived) {
        let now = self.now();
        let Arrived {
            from,
            lane,
            bytes,
            checksum,
            whole,
        } = message;
        self.note([
            now.as_nanos() ^ u64::from(node.0) << 48,
            u64::from(from.0),
            u64::from(lane.number()),
            checksum,
        ]);
        let verdict = self.oracle.delivered((from, node), lane, bytes, checksum);
        let expected = if self.forgiving.contains(&(from, node)) && verdict.is_err() {
            self.forgiven += 1;
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
            lane,
            bytes,
        });
        host.received_bytes += bytes as u64;
        match (whole, host.engine.as_mut()) {
            (Some(body), _) if expected.keep => host.bodies.push(body),
            (Some(body), Some(engine)) => engine.recycle(body),
            _ => {}
        }
        host.held.push_back((from, bytes));
        host.held_bytes += bytes;
        host.held_peak = host.held_peak.max(host.held_bytes);
        host.largest = host.largest.max(bytes);
        // the budget, the message that filled it, and one that an ordered lane waited for.
        let largest = host.largest.max(bundle::BYTES_MAX);
        let (held, bound) = (host.held_bytes, host.config.budget_bytes + 2 * largest);
        self.check(held <= bound, || {
            format!("{node} holds {held} delivered bytes; R-30 allows {bound}")
        });
        self.take_held(node);
    }

    /// The program takes what its pace allows.
    pub(super) fn take_held(&mut self, node: NodeId) {
        let now = self.now();
        let host = &mut self.hosts[usize::from(node.0)];
        match host.pace {
            Pace::Stopped => {}
            Pace::Prompt => {
                let Some(engine) = host.engine.as_mut() else {
                    return;
                };
                for (from, bytes) in host.held.drain(..) {
                    host.held_bytes -= bytes;
                    engine.release(from, bytes);
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
        if let (Some(engine), Some((from, bytes))) = (host.engine.as_mut(), host.held.pop_front()) {
            host.held_bytes -= bytes;
            engine.release(from, bytes);
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

    /// Events of the engine: judged, noted, and answered as a program would. False if there was none.
    fn take_events(&mut self, node: NodeId) -> bool {
        let now = self.now();
        let mut any = false;
        while let Some(event) = self
            .host_mut(node)
            .engine
            .as_mut()
            .and_then(Machine::poll_event)
        {
            any = true;
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
            if verdict.is_err() && self.forgiving.contains(&(node, peer)) {
                self.forgiven += 1;
            } else {
                self.judge(verdict);
            }
            self.answer(node, &event);
            self.note([now.as_nanos(), u64::from(node.0), kind, u64::from(peer.0)]);
            self.host_mut(node).events.push((now, event));
        }
        any
    }

    /// What every simulated program does about an event.
    fn answer(&mut self, node: NodeId, event: &Event) {
        match *event {
            Event::PeerDead { peer, .. } => self.give_up(node, peer),
            Event::Writable { peer } => self.offer(node, peer),
            _ => {}
        }
    }

    /// One turn of the driver without receiving: timeouts that are due, events, and all frames that the card takes.
    pub(super) fn pump(&mut self, node: NodeId) {
        let now = self.now();
        let host = &mut self.hosts[usize::from(node.0)];
        let Some(engine) = host.engine.as_mut() else {
            return;
        };
        if host.paused {
            return;
        }
        if engine.poll_timeout().is_some_and(|at| at <= now) {
            engine.handle_timeout(now);
        }
        self.take_events(node);
        let mut defers = 0;
        for turn in 0.. {
            self.check(turn < FRAMES_PER_TURN, || {
                format!("{node} does not stop sending")
            });
            let host = &mut self.hosts[usize::from(node.0)];
            let Some(engine) = host.engine.as_mut() else {
                return;
            };
            let Some(to) = engine.next_destination(now) else {
                // A program's answer to an event may be more to send.
                if self.take_events(node) || self.take_back(node) {
                    continue;
                }
                break;
            };
            if self.medium.rng.chance(self.defer_ppm) {
                engine.defer(to);
                defers += 1;
                if defers == DEFERS_PER_TURN {
                    self.plan_transmit(node, now + DEFER_PAUSE);
                    break;
                }
                continue;
            }
            if let Err(room_at) = host.transmit_room(now) {
                self.plan_transmit(node, room_at);
                break;
            }
            self.transmit(node, to);
        }
        self.take_events(node);
        let host = &mut self.hosts[usize::from(node.0)];
        let due = host
            .engine
            .as_ref()
            .and_then(Machine::poll_timeout)
            .map(|at| at.max(now));
        if let Some(due) = due.filter(|due| host.timeout_at.is_none_or(|planned| planned > *due)) {
            host.timeout_at = Some(due);
            self.medium.timeline.plan(due, Happening::Timeout { node });
        }
    }

    fn plan_transmit(&mut self, node: NodeId, at: tsumuji_proto::Instant) {
        let host = &mut self.hosts[usize::from(node.0)];
        if !host.transmit_planned {
            host.transmit_planned = true;
            self.medium.timeline.plan(at, Happening::Transmit { node });
        }
    }

    fn transmit(&mut self, node: NodeId, to: Destination) {
        let now = self.now();
        let host = &mut self.hosts[usize::from(node.0)];
        let Some(engine) = host.engine.as_mut() else {
            return;
        };
        let limit = host.config.frame_bytes;
        let head_bytes = if self.checked { CHECK_BYTES } else { 0 };
        self.slot.resize(head_bytes + limit, 0);
        // What a slot held before must not matter: the last frame is still in it.
        let lending = match to {
            Destination::Peer(peer) => host.lending.get_key_value(&peer),
            Destination::Broadcast => None,
        };
        let loan = lending.map_or(Loan::NONE, |(&peer, lending)| {
            Loan::new(peer, lending.id, &lending.body)
        });
        let length = engine.write_frame(now, to, &loan, &mut self.slot[head_bytes..]);
        if self.checked {
            checked::close(&mut self.slot, length);
        }
        let wire_length = head_bytes + length;
        let departure = host.card.send(now, wire_bytes(wire_length));
        host.departures.push_back(departure);
        self.check(length > 0 && length <= limit, || {
            format!("{node} wrote a frame of {length} bytes to {to:?}")
        });
        if let Destination::Peer(peer) = to
            && !self.forgiving.contains(&(node, peer))
            && let Some(host) = self.hosts.get(usize::from(peer.0))
        {
            let most = host.config.frame_bytes;
            self.check(length <= most, || {
                format!("{node} wrote {length} bytes to {peer}, whose link carries {most}")
            });
        }
        let frame = self.medium.frames.put(&self.slot[..wire_length]);
        self.medium.traffic.sent_frames += 1;
        self.medium.traffic.sent_bytes += wire_length as u64;
        let address = match to {
            Destination::Peer(peer) => u64::from(peer.0),
            Destination::Broadcast => u64::MAX,
        };
        let sum = checksum(&self.slot[..wire_length]);
        self.note([now.as_nanos(), u64::from(node.0), address, sum]);
        if departure <= now {
            self.switch.forward(&mut self.medium, node, to, frame);
        } else {
            self.medium.timeline.plan(
                departure,
                Happening::AtSwitch {
                    from: node,
                    to,
                    frame,
                },
            );
        }
    }
}
