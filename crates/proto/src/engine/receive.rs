//! Handling of incoming frames: each is parsed, matched to a peer and a session, and passed to the half that it concerns.

use super::direct::{self, tell_again};
use super::placement::Guess;
use super::{Engine, FRAME_BYTES_MIN, Shared, enqueue_after_frame, peer_of};
use crate::congestion::CongestionKind;
use crate::counters::Drop;
use crate::event::Event;
use crate::message::{Body, Delivery, Sink};
use crate::peer::Peer;
use crate::peer::direct::Talk;
use crate::peer::reassembly::Assembled;
use crate::peer::receive::Taken;
use crate::peer::send::{AckNews, Agreed};
use crate::peer::session::{Identity, Phase};
use crate::receiving::Receiving;
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use tsumuji_wire::{
    ACK_HEADER_BYTES, Ack, Channel, Control, DATA_HEADER_BYTES, Data, Datagram, Frame, Hello,
    NodeId, Permit, bundle, flags,
};

/// Unit in which a data frame states how long its acknowledgement was held back.
pub(super) const ACK_DELAY_UNIT: Duration = Duration::from_micros(4);

impl Engine {
    /// Handles a frame of any content. Messages that it completes go to `sink` before this returns; a frame that is not used is counted.
    #[inline]
    pub fn handle_frame(&mut self, now: Instant, frame: &[u8], sink: &mut impl Sink) {
        self.shared.counters.received_frames += 1;
        self.shared.counters.received_bytes += frame.len() as u64;
        // A value of several kinds would have to lie in memory: so the most frequent kind is parsed by itself.
        let used = match &tsumuji_wire::parse_data(frame) {
            Some(data) if data.flags & flags::DIRECT != 0 => {
                self.handle_direct::<false>(now, data, data.payload.len(), sink)
            }
            Some(data) if matches!(self.shared.receiving, Receiving::Credit(_)) => {
                self.handle_data::<false>(now, data, data.payload.len(), sink)
            }
            _ => self.handle_other(now, frame, sink),
        };
        if let Err(reason) = used {
            self.shared.counters.drops.count(reason);
        }
    }

    /// Handles every frame that the fast path does not.
    #[inline(never)]
    fn handle_other(
        &mut self,
        now: Instant,
        frame: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), Drop> {
        match tsumuji_wire::parse(frame) {
            Ok(Frame::Datagram(datagram)) => match self.peer(datagram.source) {
                Some(peer) if peer.is_up() && is_incarnation(peer, datagram.incarnation) => {
                    sink.datagram(peer.ended_sessions, datagram);
                    Ok(())
                }
                Some(_) => Err(Drop::Session),
                None => Err(Drop::UnknownPeer),
            },
            Ok(Frame::Data(data)) => self.handle_data_suci(now, &data, sink),
            Ok(Frame::Ack(ack)) => self.handle_ack(now, &ack),
            Ok(seldom) => self.handle_seldom(now, &seldom),
            Err(reason) => Err(Drop::from(reason)),
        }
    }

    /// Handles the kinds of frames that are rare in steady traffic, out of line.
    #[cold]
    #[inline(never)]
    fn handle_seldom(&mut self, now: Instant, frame: &Frame<'_>) -> Result<(), Drop> {
        match frame {
            // Handled by the callers.
            Frame::Data(_) | Frame::Datagram(_) | Frame::Ack(_) => Ok(()),
            Frame::Hello(hello) => self.handle_hello(now, hello),
            Frame::Welcome(welcome) => self.handle_welcome(now, welcome),
            Frame::Reset(reset) => self.handle_reset(now, reset),
            Frame::Close(close) => self.handle_close(now, close),
            Frame::Ask(ask) => self.handle_ask(now, ask),
            Frame::Grant(grant) => self.handle_grant(now, grant),
        }
    }

    /// The peer that sent a frame, and the state to handle it, if the frame is for this node and of the session that it names.
    #[inline(always)] // as Queue::acknowledge
    pub(super) fn find(
        &mut self,
        now: Instant,
        (source, destination): (NodeId, NodeId),
        session: Option<u32>,
    ) -> Result<(&mut Peer, &mut Shared, &mut VecDeque<u16>), Drop> {
        let (shared, ready) = (&mut self.shared, &mut self.ready);
        if destination != shared.config.me {
            return Err(Drop::Misdirected);
        }
        let peer = peer_of(&mut self.peers, source).ok_or(Drop::UnknownPeer)?;
        if let Some(session) = session {
            check_session(now, peer, shared, session)?;
        }
        Ok((peer, shared, ready))
    }

    fn handle_ack(&mut self, now: Instant, ack: &Ack<'_>) -> Result<(), Drop> {
        let (peer, shared, ready) =
            self.find(now, (ack.source, ack.destination), Some(ack.session))?;
        if peer.send.is_absurd(ack.credit) {
            return Err(Drop::Malformed); // R-92; the credit field of a data frame is too small for this
        }
        let delay = Duration::from_micros(u64::from(ack.ack_delay_us)).min(Duration::from_secs(1));
        let news = AckNews {
            ack: ack.ack,
            bitmap: ack.bitmap,
            delay,
        };
        take_ack(now, &news, peer, shared)?;
        if peer.direct.is(Talk::UNHEARD) {
            tell_again(peer);
        }
        let permits = ack.flags & flags::TAKES_DIRECT != 0 && peer.link.has_ring;
        peer.direct.set(Talk::PERMITTED, permits);
        peer.window_kib = Some(ack.window_kib);
        peer.send.on_terms(now, ack);
        if ack.flags & flags::ACK_NOW != 0 {
            peer.receive.ack_now = true;
            peer.direct.set(Talk::WORD_PENDING, true); // the window is asked for, too
        }
        notify_writable(peer, shared);
        enqueue_after_frame(peer, shared, ready, now);
        Ok(())
    }

    /// The peer asks for permission to send again what was lost, or for the window.
    fn handle_ask(&mut self, now: Instant, ask: &Permit) -> Result<(), Drop> {
        let (peer, shared, ready) =
            self.find(now, (ask.source, ask.destination), Some(ask.session))?;
        shared.receiving.on_ask(now, peer, ask)?;
        enqueue_after_frame(peer, shared, ready, now);
        let (receiving, members) = self.members();
        receiving.share_out(members);
        Ok(())
    }

    fn handle_grant(&mut self, now: Instant, grant: &Permit) -> Result<(), Drop> {
        let (peer, shared, ready) =
            self.find(now, (grant.source, grant.destination), Some(grant.session))?;
        if peer.send.suci().is_none() {
            return Err(Drop::Congestion);
        }
        let news = AckNews {
            ack: grant.number,
            bitmap: &[],
            delay: Duration::ZERO,
        };
        take_ack(now, &news, peer, shared)?;
        peer.send.on_grant(now, grant);
        notify_writable(peer, shared);
        enqueue_after_frame(peer, shared, ready, now);
        Ok(())
    }

    fn handle_hello(&mut self, now: Instant, hello: &Hello) -> Result<(), Drop> {
        let closed = self.closed;
        let (peer, shared, _) = self.find(now, (hello.source, hello.destination), None)?;
        if closed {
            return Err(Drop::Session);
        }
        if CongestionKind::of_flags(hello.flags) != shared.config.congestion.kind() {
            // The peer is to learn why no session begins; it is not asked for anything.
            peer.session.welcome_pending = Some(hello.nonce);
            self.enqueue(hello.source, now);
            return Err(Drop::Congestion);
        }
        peer.session.on_hello(now, hello);
        self.enqueue(hello.source, now);
        Ok(())
    }

    fn handle_welcome(&mut self, now: Instant, welcome: &Hello) -> Result<(), Drop> {
        let (peer, shared, _) = self.find(now, (welcome.source, welcome.destination), None)?;
        let stated_bytes = shared.stated_frame_bytes(peer.id, &peer.link);
        let frame_bytes = stated_bytes.min(welcome.frame_bytes as usize);
        if !peer.session.is_answer(welcome) {
            return Err(Drop::Session);
        }
        check_congestion(peer, shared, welcome)?;
        if frame_bytes < FRAME_BYTES_MIN {
            return Err(Drop::Malformed);
        }
        let identity = Identity {
            incarnation: welcome.incarnation,
            pairing: welcome.pairing,
        };
        if peer.is_up() && peer.session.remote == Some(identity) {
            peer.session.settle(welcome.nonce, identity);
            self.enqueue(welcome.source, now);
            return Ok(());
        }
        if peer.is_up() {
            // The same process has ended the session by itself, and states how many direct messages it took.
            let known = peer.session.remote;
            let is_same = known.is_some_and(|known| known.incarnation == identity.incarnation);
            fail_session(now, peer, is_same.then_some(welcome.taken), shared);
        }
        peer.session
            .establish(shared.config.me, shared.config.incarnation, welcome);
        direct::begin(peer, shared);
        shared.receiving.begin(peer);
        peer.told_other_congestion = false;
        peer.last_heard = now;
        peer.last_ping = now;
        shared.events.push_back(Event::PeerUp {
            peer: welcome.source,
            incarnation: welcome.incarnation,
        });
        let limit = welcome.message_limit as usize;
        (peer.message_limit_bytes, peer.frame_bytes) = (limit, frame_bytes);
        shared.least_frame_bytes = shared.least_frame_bytes.min(frame_bytes);
        let agreed = Agreed {
            fragment_bytes: frame_bytes - DATA_HEADER_BYTES,
            message_limit_bytes: limit,
            told_frames: 8 * (frame_bytes - ACK_HEADER_BYTES),
            credit_frames: u64::from(welcome.credit),
        };
        peer.receive.begin(agreed.fragment_bytes);
        let (events, from) = (&mut shared.events, welcome.source);
        peer.send.begin(&agreed, &mut shared.pool, |id, size| {
            events.push_back(Event::TooLarge {
                peer: from,
                id,
                size,
                limit,
            });
        });
        notify_writable(peer, shared);
        self.enqueue(from, now);
        Ok(())
    }

    fn handle_reset(&mut self, now: Instant, reset: &Control) -> Result<(), Drop> {
        let (peer, _, _) = self.find(now, (reset.source, reset.destination), None)?;
        if !peer.is_up() || reset.session != peer.session.outgoing {
            return Err(Drop::Session);
        }
        peer.session.on_reset();
        self.enqueue(reset.source, now);
        Ok(())
    }

    fn handle_close(&mut self, now: Instant, close: &Ack<'_>) -> Result<(), Drop> {
        let (peer, shared, _) = self.find(now, (close.source, close.destination), None)?;
        let me = (shared.config.me, shared.config.incarnation);
        if peer.session.is_pending(me, close.source, close.session) {
            peer.session.forget_pending();
            end_session(now, peer, None, shared);
            return Ok(());
        }
        check_session(now, peer, shared, close.session)?;
        // Messages that have arrived are not lost. If the acknowledgement names unsent numbers it is ignored, and the session ends all the same.
        let news = AckNews {
            ack: close.ack,
            bitmap: close.bitmap,
            delay: Duration::default(),
        };
        let said = take_ack(now, &news, peer, shared);
        end_session(now, peer, Some(close.ack_delay_us), shared);
        said
    }
}

/// Takes an acknowledgement of numbers that we sent (R-15, S2). One that names unsent numbers changes nothing, and is no sign of life: a peer that
/// sends nothing else times out.
fn take_ack(
    now: Instant,
    news: &AckNews<'_>,
    peer: &mut Peer,
    shared: &mut Shared,
) -> Result<(), Drop> {
    if peer.send.is_unsent(news) {
        return Err(Drop::Malformed);
    }
    let Shared {
        pool,
        counters,
        events,
        ..
    } = shared;
    let from = peer.id;
    let done = |id| events.push_back(Event::Sent { peer: from, id });
    peer.send.on_ack(now, news, pool, counters, done);
    peer.last_heard = now;
    Ok(())
}

/// Refuses a welcome from a peer with another congestion control, and tells the program once. A hello is not checked here: anybody may forge
/// one.
fn check_congestion(peer: &mut Peer, shared: &mut Shared, hello: &Hello) -> Result<(), Drop> {
    let theirs = CongestionKind::of_flags(hello.flags);
    if theirs == shared.config.congestion.kind() {
        return Ok(());
    }
    if !core::mem::replace(&mut peer.told_other_congestion, true) {
        let peer = peer.id;
        shared
            .events
            .push_back(Event::OtherCongestion { peer, theirs });
    }
    Err(Drop::Congestion)
}

fn is_incarnation(peer: &Peer, incarnation: u32) -> bool {
    peer.session
        .remote
        .is_some_and(|identity| identity.incarnation == incarnation)
}

/// Checks that a frame belongs to the present session; if not, a reset may become pending.
#[inline(always)] // as Queue::acknowledge
fn check_session(
    now: Instant,
    peer: &mut Peer,
    shared: &mut Shared,
    session: u32,
) -> Result<(), Drop> {
    if peer.is_up() && session == peer.session.incoming {
        return Ok(());
    }
    peer.session.answer_unknown(now, session);
    if peer.session.reset_pending.is_some() {
        // Written at the next timer: an answer to a frame of an old session is not urgent.
        shared.arm(peer, now);
    }
    Err(Drop::Session)
}

#[inline(always)] // as Queue::acknowledge
pub(super) fn deliver(
    peer: &mut Peer,
    shared: &mut Shared,
    data: &Data<'_>,
    taken: Taken,
    sink: &mut impl Sink,
) {
    let (from, session, channel) = (data.source, peer.ended_sessions, data.channel);
    match taken {
        Taken::Frame => {
            // The message was the next of its channel, and no later one waits.
            let body = Body::Frame(data.payload);
            shared.counters.delivered_messages += 1;
            return sink.message(Delivery {
                from,
                session,
                channel,
                body,
            });
        }
        Taken::Bundle => return unbundle(shared, (from, session, channel), data.payload, sink),
        Taken::Whole(body) if channel.is_datagram() => {
            return hand_over_datagram(peer, shared, channel, body, sink);
        }
        Taken::Whole(body) => {
            let is_bundle = data.is_bundle();
            hand_over(shared, (from, session, channel), body, is_bundle, sink);
        }
        Taken::Nothing => {
            shared.guess = Some(Guess {
                from,
                channel,
                message_low: data.message,
                is_direct: false,
            });
            if channel.is_datagram()
                && let Some(at) = peer.receive.datagrams.deadline()
            {
                shared.arm(peer, at);
            }
            return;
        }
        Taken::Refused(_) => return,
    }
    let receive = peer.receive.channel(channel);
    while let Some(waiting) = receive.pop_ready(&mut shared.memory) {
        let is_bundle = waiting.is_bundle();
        hand_over(
            shared,
            (from, session, channel),
            waiting.body,
            is_bundle,
            sink,
        );
    }
}

/// Delivers the messages of a bundle.
#[inline(never)]
fn unbundle(
    shared: &mut Shared,
    (from, session, channel): (NodeId, u64, Channel),
    payload: &[u8],
    sink: &mut impl Sink,
) {
    for message in bundle::messages(payload) {
        shared.counters.delivered_messages += 1;
        sink.message(Delivery {
            from,
            session,
            channel,
            body: Body::Frame(message),
        });
    }
}

/// Delivers an assembled message, or a bundle's messages; a buffer that `sink` leaves returns to the pool.
pub(super) fn hand_over(
    shared: &mut Shared,
    (from, session, channel): (NodeId, u64, Channel),
    body: Assembled,
    is_bundle: bool,
    sink: &mut impl Sink,
) {
    let (mut own, mut posted) = match body {
        Assembled::Own(own) => (own, None),
        Assembled::Posted(posted) => (Vec::new(), Some(*posted)),
    };
    if is_bundle {
        unbundle(shared, (from, session, channel), &own, sink);
        return shared.pool.put(own);
    }
    shared.counters.delivered_messages += 1;
    let body = if posted.is_some() {
        Body::Posted(&mut posted)
    } else {
        Body::Whole(&mut own)
    };
    sink.message(Delivery {
        from,
        session,
        channel,
        body,
    });
    if let Some(posted) = posted {
        sink.put_back(posted);
    }
    shared.pool.put(own);
}

/// Delivers a datagram of several frames; drops a malformed one.
#[cold]
fn hand_over_datagram(
    peer: &Peer,
    shared: &mut Shared,
    channel: Channel,
    body: Assembled,
    sink: &mut impl Sink,
) {
    let Assembled::Own(body) = body else {
        return; // datagrams never arrive in posted buffers
    };
    let incarnation = (peer.session.remote).map_or(0, |identity| identity.incarnation);
    let of = (peer.id, incarnation);
    match Datagram::of_message(of, channel.id(), &body) {
        Some(datagram) => sink.datagram(peer.ended_sessions, datagram),
        None => shared.counters.drops.count(Drop::Malformed),
    }
    shared.pool.put(body);
}

/// Tells the program that it may submit again, if a submit was refused and half of the queue is free by now.
#[inline]
pub(super) fn notify_writable(peer: &mut Peer, shared: &mut Shared) {
    if peer.wants_writable
        && peer.send.queue.has_room(
            shared.config.send_queue_bytes / 2,
            shared.config.send_queue_bytes,
        )
    {
        peer.wants_writable = false;
        shared.events.push_back(Event::Writable { peer: peer.id });
    }
}

/// Ends the session: this node abandons the peer, or the peer closed. `taken`: how many direct messages the peer says it took.
pub(super) fn end_session(now: Instant, peer: &mut Peer, taken: Option<u32>, shared: &mut Shared) {
    if peer.session.phase != Phase::Dead {
        fail_session(now, peer, taken, shared);
        peer.session.die(now);
        // Only with the new pairing: within one pairing the stated size does not change.
        shared.narrow.retain(|(narrow, _)| *narrow != peer.id);
    }
}

/// Ends the session: frees the peer's memory here, and fails the messages that it has not acknowledged.
fn fail_session(now: Instant, peer: &mut Peer, taken: Option<u32>, shared: &mut Shared) {
    shared.receiving.end(now, peer);
    let mut failed = peer.send.fail(&mut shared.pool);
    let untaken = direct::end(peer, taken, shared);
    (failed.messages, failed.lost) = (failed.messages + untaken, failed.lost + untaken);
    peer.receive.clear(&mut shared.memory, &mut shared.pool);
    peer.wants_writable = false;
    peer.ping_pending = false;
    peer.window_kib = None;
    peer.message_limit_bytes = u32::MAX as usize;
    peer.ended_sessions += 1;
    if failed.lost > 0 {
        shared.events.push_back(Event::MessagesLost {
            peer: peer.id,
            messages: failed.lost,
        });
    }
    shared.events.push_back(Event::PeerDead {
        peer: peer.id,
        failed_messages: failed.messages,
    });
}
