//! What the engine does otherwise under `suci`: its frames' ways in and out.
//!
//! Called by `receive`, `transmit` and `mod` where the two congestion controls part. What a peer is told is decided here from
//! the books in `crate::suci` and the memory that is free.

use super::receive::{deliver, find, notify_writable, take_ack};
use super::{Engine, Shared, enqueue_after_frame};
use crate::counters::Drop;
use crate::message::{Loan, Sink};
use crate::peer::Peer;
use crate::peer::outgoing::fragment_bytes;
use crate::peer::receive::{Refusal, Taken};
use crate::peer::send::AckNews;
use crate::policy::{Room, Sender};
use crate::suci::{Answer, Suci};
use crate::time::{Duration, Instant};
use tsumuji_wire::{Ack, Data, NodeId, Permit, flags};

/// Of those that wait for permission, so many are looked at when a frame has come: each comes soon, and a frame costs little.
const CALLS_PER_FRAME: usize = 4;

/// The same when one asks, or memory came free.
const CALLS_PER_ASK: usize = 64;

impl Engine {
    pub(super) fn handle_data_suci(
        &mut self,
        now: Instant,
        data: &Data<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), Drop> {
        let (peer, shared) = find(
            &mut self.peers,
            &mut self.shared,
            now,
            data.source,
            data.destination,
            Some(data.session),
        )?;
        shared.suci.now = now;
        let Some(inbound) = peer.inbound.as_deref_mut() else {
            return Err(Drop::Congestion);
        };
        let size = fragment_bytes(data.length as usize, peer.send.fragment_bytes());
        let expected = peer.receive.arrivals.base();
        if peer.receive.may_place(data) {
            shared.pool.posted = sink.place(data.source, data.lane, data.length as usize);
        }
        let taken = peer
            .receive
            .take_next(now, data, size, &mut shared.memory, &mut shared.pool);
        if let Some(posted) = shared.pool.posted.take() {
            sink.put_back(posted);
        }
        if let Taken::Refused(refusal @ (Refusal::Window | Refusal::Malformed)) = taken {
            return Err(refusal.into()); // it changes nothing, and is no sign of life
        }
        peer.last_heard = now;
        let result = match taken {
            Taken::Refused(refusal) => {
                match refusal {
                    // R1 to R3: what came before is acknowledged again.
                    Refusal::Duplicate => peer.receive.ack_now = true,
                    Refusal::Gap | Refusal::Memory => {
                        let refused = matches!(refusal, Refusal::Memory);
                        if inbound.miss(refused) {
                            shared.counters.nacks += 1;
                            peer.receive.ack_now = true;
                        }
                    }
                    Refusal::Window | Refusal::Malformed => {}
                }
                Err(refusal.into())
            }
            taken => {
                peer.receive.ack_now = true;
                shared.suci.on_taken(inbound, expected);
                peer.receive.grant.served += 1;
                peer.receive.grant.urgency = (
                    data.lane.priority().get(),
                    peer.receive.remaining.bytes as u64,
                );
                deliver(peer, shared, data, taken, sink);
                Ok(())
            }
        };
        let wants_more = peer
            .inbound
            .as_deref()
            .is_some_and(|inbound| shared.suci.wants_more(inbound, expected));
        if wants_more {
            grant(peer, shared);
        }
        enqueue_after_frame(peer, shared, &mut self.ready, now);
        if self.shared.suci.has_room() {
            self.share_out(CALLS_PER_FRAME);
        }
        result
    }

    pub(super) fn handle_ack_suci(&mut self, now: Instant, ack: &Ack<'_>) -> Result<(), Drop> {
        let (peer, shared) = find(
            &mut self.peers,
            &mut self.shared,
            now,
            ack.source,
            ack.destination,
            Some(ack.session),
        )?;
        let delay = Duration::from_micros(u64::from(ack.ack_delay_us)).min(Duration::from_secs(1));
        take_ack(now, &cumulative(ack.ack, delay), peer, shared)?;
        if let Some(control) = peer.send.suci() {
            control.on_window(ack.ack, ack.credit);
            if ack.flags & flags::REFUSED != 0 {
                control.on_refusal();
            }
            if ack.flags & flags::NACK != 0 {
                control.on_nack(ack.ack);
            }
        }
        peer.window_bytes = (ack.window_kib as usize).saturating_mul(1024);
        if ack.flags & flags::ACK_NOW != 0 {
            peer.receive.ack_now = true;
        }
        notify_writable(peer, shared);
        enqueue_after_frame(peer, shared, &mut self.ready, now);
        Ok(())
    }

    /// A peer asks whether it may send again what was lost, or how large the window is.
    pub(super) fn handle_ask(&mut self, now: Instant, ask: &Permit) -> Result<(), Drop> {
        let (peer, shared) = find(
            &mut self.peers,
            &mut self.shared,
            now,
            ask.source,
            ask.destination,
            Some(ask.session),
        )?;
        shared.suci.now = now;
        let expected = peer.receive.arrivals.base();
        let Some(inbound) = peer.inbound.as_deref_mut() else {
            return Err(Drop::Congestion);
        };
        let answer = shared.suci.on_ask(ask.source.0, inbound, expected, ask);
        if answer.is_some() {
            peer.last_heard = now;
        }
        match answer {
            None => return Err(Drop::Malformed),
            Some(Answer::Nothing) => return Err(Drop::Duplicate),
            Some(Answer::Ack) => peer.receive.ack_now = true,
            Some(Answer::Grant) => peer.grant_due = true,
        }
        enqueue_after_frame(peer, shared, &mut self.ready, now);
        if self.shared.suci.is_sweep_due() {
            self.void_overdue();
        }
        self.share_out(CALLS_PER_ASK);
        Ok(())
    }

    pub(super) fn handle_grant(&mut self, now: Instant, grant: &Permit) -> Result<(), Drop> {
        let (peer, shared) = find(
            &mut self.peers,
            &mut self.shared,
            now,
            grant.source,
            grant.destination,
            Some(grant.session),
        )?;
        if peer.inbound.is_none() {
            return Err(Drop::Congestion);
        }
        take_ack(now, &cumulative(grant.number, Duration::ZERO), peer, shared)?;
        peer.send
            .on_grant(now, grant.round, grant.number, grant.frames);
        notify_writable(peer, shared);
        enqueue_after_frame(peer, shared, &mut self.ready, now);
        Ok(())
    }

    /// Grants what may be to the next `calls` of those that wait.
    fn share_out(&mut self, calls: usize) {
        for _ in 0..calls.min(self.shared.suci.waiting.len()) {
            let Some(id) = self.shared.suci.call() else {
                return;
            };
            if let Some(peer) = self
                .peers
                .get_mut(usize::from(id))
                .and_then(Option::as_deref_mut)
            {
                if let Some(inbound) = peer.inbound.as_deref_mut() {
                    Suci::answer_call(inbound);
                }
                grant(peer, &mut self.shared);
                if peer.grant_due && !peer.queued {
                    peer.queued = true;
                    self.ready.push_back(id);
                }
            }
        }
    }

    /// Grants that were lost, or whose frames were, are taken off the books: others wait for their part of the ring.
    #[cold]
    fn void_overdue(&mut self) {
        let suci = &mut self.shared.suci;
        let mut index = 0;
        while let Some(id) = suci.holder(index) {
            let peer = self.peers[usize::from(id)].as_deref_mut();
            let stays = peer.is_some_and(|peer| {
                let expected = peer.receive.arrivals.base();
                let inbound = peer.inbound.as_deref_mut();
                inbound.is_some_and(|inbound| suci.check_holder(index, inbound, expected))
            });
            index += usize::from(stays);
        }
    }

    /// A policy's order of those who wait for memory or permission: the lowest rank first.
    #[cold]
    fn sort_by_rank(&mut self) {
        let Self { peers, shared, .. } = self;
        let mut short = core::mem::take(&mut shared.suci.short);
        let mut waiting = core::mem::take(&mut shared.suci.waiting);
        for queue in [&mut short, &mut waiting] {
            queue.make_contiguous().sort_by_cached_key(|&id| {
                let peer = peers.get(usize::from(id)).and_then(Option::as_deref);
                peer.map_or(0, |peer| rank(peer, shared))
            });
        }
        (shared.suci.short, shared.suci.waiting) = (short, waiting);
    }

    /// Whoever may send further than it was told learns of it: the program has changed its windows, or its policy its mind.
    #[cold]
    pub(super) fn regrant_suci(&mut self) {
        for index in 0..self.peers.len() {
            let Some(peer) = self.peers[index].as_deref_mut() else {
                continue;
            };
            if !peer.is_up() {
                continue;
            }
            let window = window(peer, &mut self.shared);
            let expected = peer.receive.arrivals.base();
            let told = peer.inbound.as_deref().map_or(0, |inbound| inbound.told);
            if window.frames > told.saturating_sub(expected) {
                peer.receive.ack_now = true;
                let id = peer.id.0;
                self.enqueue_ack(id);
            }
        }
        self.feed_suci();
    }

    /// Memory came free: who waits for it is granted what it was refused, and who was told of a small window learns of more.
    #[cold]
    pub(super) fn feed_suci(&mut self) {
        self.shared.credit.hungry = false;
        if self.shared.credit.has_policy() {
            self.sort_by_rank();
        }
        self.share_out(CALLS_PER_ASK);
        for _ in 0..self.shared.suci.short.len() {
            let Some(id) = self.shared.suci.short.pop_front() else {
                return;
            };
            let Some(peer) = self
                .peers
                .get_mut(usize::from(id))
                .and_then(Option::as_deref_mut)
            else {
                continue;
            };
            let window = window(peer, &mut self.shared);
            let told = peer.receive.arrivals.base();
            let Some(inbound) = peer.inbound.as_deref_mut() else {
                continue;
            };
            let left = inbound.told.saturating_sub(told);
            let full = self.shared.memory.is_idle() && window.frames > left;
            if full || window.frames >= left + (window.wanted / 8).max(1) {
                inbound.short = false;
                peer.receive.ack_now = true;
                self.enqueue_ack(id);
            } else {
                self.shared.suci.short.push_back(id);
                self.shared.credit.hungry = true;
            }
        }
    }

    /// A frame of ours alone to a peer under `suci`.
    pub(super) fn write_word_suci(&mut self, id: NodeId, slot: &mut [u8]) -> usize {
        let Some(peer) = self.peers[usize::from(id.0)].as_deref_mut() else {
            return 0;
        };
        if peer.grant_due {
            self.write_grant(id, slot)
        } else if peer.receive.ack_now || peer.ping_due {
            self.write_ack_suci(id, slot)
        } else {
            self.write_ask(id, slot)
        }
    }

    /// A frame of data to a peer under `suci`; `false`: there is none.
    #[inline(never)] // or the other congestion control's would be out of line
    pub(super) fn plan_data_suci(&mut self, now: Instant, id: NodeId, loan: &Loan<'_>) -> bool {
        let me = self.shared.config.me;
        let Some(peer) = self.peers[usize::from(id.0)].as_deref_mut() else {
            return false;
        };
        let session = peer.session.outgoing;
        let Shared { pool, counters, .. } = &mut self.shared;
        let Some(next) = peer.send.next_fragment(now, loan, pool, counters) else {
            return false;
        };
        // An acknowledgement carries no data, and data carries no acknowledgement.
        let data = Data {
            source: me,
            destination: id,
            flags: 0,
            session,
            number: next.number as u32,
            ack: 0,
            credit: 0,
            message: next.message as u32,
            offset: next.offset as u32,
            length: next.length as u32,
            floor_delta: u16::MAX,
            lane: next.lane,
            ack_delay: 0,
            payload: next.payload,
        };
        self.batch.push_data(&data, next.part);
        if let Some(at) = peer.send.deadline() {
            self.shared.arm(peer, at);
        }
        true
    }

    fn write_ack_suci(&mut self, id: NodeId, slot: &mut [u8]) -> usize {
        let me = self.shared.config.me;
        let free_kib = self.shared.memory.free_bytes() / 1024;
        let Some(peer) = self.peers[usize::from(id.0)].as_deref_mut() else {
            return 0;
        };
        let Window { frames, wanted } = window(peer, &mut self.shared);
        let expected = peer.receive.arrivals.base();
        let mut bits = 0;
        if core::mem::take(&mut peer.ping_due) {
            bits |= flags::ACK_NOW;
        }
        if let Some(inbound) = peer.inbound.as_deref_mut() {
            if core::mem::take(&mut inbound.nack_due) {
                bits |= flags::NACK;
                if inbound.refused {
                    bits |= flags::REFUSED;
                }
            }
            inbound.told = expected + frames;
            // An ask for permission is answered by a grant, not by this.
            inbound.probes &= inbound.wants(expected);
            if frames < wanted {
                self.shared.credit.hungry = true;
                if !inbound.short {
                    inbound.short = true;
                    self.shared.suci.short.push_back(id.0);
                }
            }
        }
        let ack = Ack {
            source: me,
            destination: id,
            flags: bits,
            session: peer.session.outgoing,
            ack: expected as u32,
            credit: (expected + frames) as u32,
            window_kib: u32::try_from(free_kib).unwrap_or(u32::MAX),
            ack_delay_us: 0,
            bitmap: &[],
        };
        peer.receive.on_ack_sent();
        ack.write(slot).unwrap_or(0)
    }

    fn write_ask(&mut self, id: NodeId, slot: &mut [u8]) -> usize {
        let me = self.shared.config.me;
        let Some(peer) = self.peers[usize::from(id.0)].as_deref_mut() else {
            return 0;
        };
        let session = peer.session.outgoing;
        let Some(control) = peer.send.suci() else {
            return 0;
        };
        let ask = control.take_ask();
        let permit = Permit {
            source: me,
            destination: id,
            session,
            round: ask.round,
            number: ask.number as u32,
            frames: ask.frames as u32,
        };
        self.shared.counters.asks += 1;
        if let Some(at) = peer.send.deadline() {
            self.shared.arm(peer, at);
        }
        permit.write_ask(slot).unwrap_or(0)
    }

    fn write_grant(&mut self, id: NodeId, slot: &mut [u8]) -> usize {
        let me = self.shared.config.me;
        let Some(peer) = self.peers[usize::from(id.0)].as_deref_mut() else {
            return 0;
        };
        peer.grant_due = false;
        let expected = peer.receive.arrivals.base();
        let Some(inbound) = peer.inbound.as_deref() else {
            return 0;
        };
        let (round, frames) = inbound.permit(expected);
        let permit = Permit {
            source: me,
            destination: id,
            session: peer.session.outgoing,
            round,
            number: expected as u32,
            frames,
        };
        self.shared.counters.grants += 1;
        permit.write_grant(slot).unwrap_or(0)
    }
}

fn cumulative(ack: u32, delay: Duration) -> AckNews<'static> {
    AckNews {
        ack,
        bitmap: &[],
        delay,
    }
}

/// Grants a peer that waits what may be sent again now.
fn grant(peer: &mut Peer, shared: &mut Shared) {
    let usual = shared.suci.part();
    let part = match wish(peer, shared, usual, true) {
        0 if peer
            .inbound
            .as_deref()
            .is_some_and(|inbound| inbound.probes) =>
        {
            1
        }
        part => part,
    };
    let memory = memory_frames(peer, shared);
    let expected = peer.receive.arrivals.base();
    let Some(inbound) = peer.inbound.as_deref_mut() else {
        return;
    };
    // What memory refused would be refused again.
    let refused = inbound.refused && !shared.memory.admits_more();
    let window = if refused { 0 } else { memory };
    let frames = shared
        .suci
        .grant(peer.id.0, inbound, expected, window, part);
    shared.counters.granted_frames += frames;
    peer.grant_due |= frames > 0;
    shared.credit.hungry |= window == 0;
}

/// How far ahead one peer may send new frames.
struct Window {
    /// As far as memory reaches.
    frames: u64,
    /// As far as that goes if memory suffices: what the receive ring takes in a turn, or what the program says.
    wanted: u64,
}

/// The window that is stated to the peer now.
fn window(peer: &Peer, shared: &mut Shared) -> Window {
    let usual = shared.suci.ring_frames.min(shared.credit.window());
    let probes = peer
        .inbound
        .as_deref()
        .is_some_and(|inbound| inbound.probes);
    let wanted = match wish(peer, shared, usual, false) {
        0 if probes => 1,
        wanted => wanted.min(peer.receive.grant.limit),
    };
    Window {
        frames: memory_frames(peer, shared).min(wanted),
        wanted,
    }
}

/// Frames that the budget's free part takes. What is set aside for a message that arrives counts as free for it. Where nothing is free and
/// nothing will be, the one that a lane waits for is admitted all the same.
fn memory_frames(peer: &Peer, shared: &Shared) -> u64 {
    let size = peer.send.fragment_bytes();
    let free = shared.memory.free_bytes().div_ceil(size);
    let reserved = peer.receive.remaining.frames;
    let least = usize::from(shared.memory.admits_more());
    ((free + reserved).max(least) as u64).min(shared.suci.ring_frames)
}

/// What the program's policy says of the peer, where it has one: how many frames it may send again now (`repairs`), or how far
/// ahead it may send new ones.
fn wish(peer: &Peer, shared: &mut Shared, usual: u64, repairs: bool) -> u64 {
    if !shared.credit.has_policy() {
        return usual;
    }
    let (room, sender) = views(peer, shared, usual, repairs);
    shared
        .credit
        .wish(&room, &sender)
        .min(shared.suci.ring_frames)
}

/// The policy's order among those who wait for memory.
fn rank(peer: &Peer, shared: &mut Shared) -> u64 {
    let (room, sender) = views(peer, shared, shared.suci.ring_frames, false);
    shared.credit.rank(&room, &sender)
}

#[cold]
fn views(peer: &Peer, shared: &Shared, usual: u64, repairs: bool) -> (Room, Sender) {
    let suci = &shared.suci;
    let window_frames = suci.ring_frames.min(shared.credit.window());
    let room = Room {
        now: suci.now,
        window_frames,
        pool_frames: window_frames,
        claimed_frames: suci.outstanding(),
        free_bytes: shared.memory.free_bytes(),
        peers: shared.credit.peers(),
        active_peers: suci.waiting.len(),
    };
    let (grant, expected) = (&peer.receive.grant, peer.receive.arrivals.base());
    let inbound = peer.inbound.as_deref();
    let told = inbound.map_or(0, |inbound| inbound.told.saturating_sub(expected));
    let granted = inbound.map_or(0, |inbound| inbound.outstanding(expected));
    let wants = inbound.is_some_and(|inbound| inbound.wants(expected));
    let sender = Sender {
        peer: peer.id,
        active: wants || peer.receive.remaining.frames > 0,
        busy: false, // nobody says so under `suci`
        repairs,
        priority: grant.urgency.0,
        remaining_bytes: peer.receive.remaining.bytes as u64,
        memory_bytes: grant.used_bytes,
        served_frames: grant.served,
        outstanding_frames: if repairs { granted } else { told },
        usual_frames: usual,
    };
    (room, sender)
}
