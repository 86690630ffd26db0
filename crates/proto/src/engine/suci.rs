//! Incoming data frames under `suci`: only the expected number is taken, and each frame is answered by an acknowledgement of its own (R1 to R4 of the
//! paper; ).
//!
//! Called by `receive`; `engine::credit` does the same under the other congestion control.

use super::receive::deliver;
use super::{Engine, Shared, enqueue_after_frame};
use crate::counters::Drop;
use crate::message::Sink;
use crate::peer::outgoing::fragment_bytes;
use crate::receiving::Receiving;
use crate::time::Instant;
use tsumuji_wire::Data;

impl Engine {
    pub(super) fn handle_data_suci(
        &mut self,
        now: Instant,
        data: &Data<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), Drop> {
        let (peer, shared, ready) =
            self.find(now, (data.source, data.destination), Some(data.session))?;
        let size = fragment_bytes(data.length as usize, peer.send.queue.fragment_bytes);
        let expected = peer.receive.arrivals.base();
        let Shared { memory, pool, .. } = &mut *shared;
        if peer.receive.may_place(data) {
            pool.posted = sink.place(data.source, data.channel, data.length as usize);
        }
        let taken = peer.receive.take_next(now, data, size, memory, pool);
        if let Some(posted) = pool.posted.take() {
            sink.put_back(posted);
        }
        let refusal = taken.refusal();
        if let Some(refusal @ (Drop::Window | Drop::Malformed)) = refusal {
            return Err(refusal); // it changes nothing, and is no sign of life
        }
        peer.last_heard = now;
        deliver(peer, shared, data, taken, sink);
        let Shared {
            receiving,
            memory,
            counters,
            ..
        } = &mut *shared;
        if let Receiving::Suci(suci) = receiving {
            suci.on_data(now, peer, (data, expected), refusal, memory, counters);
        }
        enqueue_after_frame(peer, shared, ready, now);
        if let (Receiving::Suci(suci), mut members) = self.members() {
            suci.share_room(&mut members);
        }
        refusal.map_or(Ok(()), Err)
    }
}
