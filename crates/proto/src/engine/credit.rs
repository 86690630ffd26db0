//! Incoming data frames under `credit`: each carries acknowledgement and credit for the other direction, and any number within the
//! window is taken.
//!
//! Called by `receive` and `placement`; `engine::suci` does the same under the other congestion control.

use super::direct::tell_again;
use super::receive::{ACK_DELAY_UNIT, deliver, notify_writable};
use super::{Engine, Shared, enqueue_after_frame};
use crate::counters::Drop;
use crate::event::Event;
use crate::message::Sink;
use crate::peer::Peer;
use crate::peer::direct::Talk;
use crate::peer::outgoing::fragment_bytes;
use crate::peer::receive::Taken;
use crate::peer::send::AckNews;
use crate::receiving::Receiving;
use crate::time::Instant;
use tsumuji_wire::Data;

impl Engine {
    /// Handles a numbered data frame. `PLACED`: see `Receive::take`.
    #[inline]
    pub(super) fn handle_data<const PLACED: bool>(
        &mut self,
        now: Instant,
        data: &Data<'_>,
        payload_bytes: usize,
        sink: &mut impl Sink,
    ) -> Result<(), Drop> {
        let place_bytes = self.place.map(|place| place.body_bytes());
        let (peer, shared, ready) =
            self.find(now, (data.source, data.destination), Some(data.session))?;
        // A placed payload lies among fragments of the size of its place.
        let size = match place_bytes {
            Some(bytes) if PLACED => bytes,
            _ => fragment_bytes(data.length as usize, peer.send.queue.fragment_bytes),
        };
        let delay = ACK_DELAY_UNIT.times(u64::from(data.ack_delay));
        let news = AckNews {
            ack: data.ack,
            bitmap: &[],
            delay,
        };
        // A frame that contradicts what was sent, or what came, is dropped whole, before it changes anything.
        if peer.send.is_unsent(&news) {
            return Err(Drop::Malformed);
        }
        if peer.direct.is(Talk::UNHEARD) {
            tell_again(peer);
        }
        let used_bytes = peer.receive.used_bytes();
        let fair = shared.memory.has_as_much(used_bytes) || shared.receiving.is_fair(used_bytes);
        let memory = &mut shared.memory;
        let in_order = if PLACED {
            None
        } else {
            peer.receive.take_in_order(data, size, fair, memory)
        };
        let weight = match in_order {
            Some(_) => payload_bytes,
            None => {
                let granted = peer.account.grant().end();
                (peer.receive).check(data, (payload_bytes, size), granted, memory)?
            }
        };
        let Shared {
            pool,
            counters,
            events,
            ..
        } = shared;
        let from = data.source;
        let done = |id| events.push_back(Event::Sent { peer: from, id });
        peer.last_heard = now;
        peer.send.on_credit(data.credit);
        peer.send.on_ack(now, &news, pool, counters, done);
        let result = if let Some(number) = in_order {
            settle(now, data, number, Taken::Frame, peer, shared, sink)
        } else {
            let sizes = (payload_bytes, size, weight);
            take_other::<PLACED>(now, data, sizes, fair, (peer, shared), sink)
        };
        notify_writable(peer, shared);
        enqueue_after_frame(peer, shared, ready, now);
        self.feed_hungry();
        result
    }
}

/// Takes a frame that `Receive::take_in_order` did not take.
#[inline(never)]
fn take_other<const PLACED: bool>(
    now: Instant,
    data: &Data<'_>,
    sizes: (usize, usize, usize),
    fair: bool,
    (peer, shared): (&mut Peer, &mut Shared),
    sink: &mut impl Sink,
) -> Result<(), Drop> {
    let Shared { memory, pool, .. } = &mut *shared;
    if !PLACED && peer.receive.may_place(data) {
        pool.posted = sink.place(data.source, data.channel, data.length as usize);
    }
    let (number, taken) = peer
        .receive
        .take::<PLACED>(now, data, sizes, fair, memory, pool);
    if let Some(posted) = pool.posted.take() {
        sink.put_back(posted);
    }
    settle(now, data, number, taken, peer, shared, sink)
}

/// Acknowledges or refuses the frame, and delivers what it completed.
#[inline(always)] // most frames have the same outcome, which is then known at compile time
fn settle(
    now: Instant,
    data: &Data<'_>,
    number: u64,
    taken: Taken,
    peer: &mut Peer,
    shared: &mut Shared,
    sink: &mut impl Sink,
) -> Result<(), Drop> {
    let refusal = taken.refusal();
    if refusal.is_none() {
        deliver(peer, shared, data, taken, sink);
        peer.receive.await_ack(now);
    }
    if let Receiving::Credit(credit) = &mut shared.receiving {
        credit.on_data(now, peer, (data, number), refusal, &shared.memory);
    }
    refusal.map_or(Ok(()), Err)
}
