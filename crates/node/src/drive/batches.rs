//! From the engine's batch to one call of the link.

use tsumuji_link::{BATCH_FRAMES_MAX, Frame, Frames, Link, LinkAddr, LinkError};
use tsumuji_proto::{Borrowed, Destination, Engine, Instant};

use crate::table::Table;

/// Sends pending frames to `to`, as far as the link has room; returns how many.
#[inline]
pub(super) fn send_batch<L: Link>(
    link: &mut L,
    engine: &mut Engine,
    addr: LinkAddr,
    now: Instant,
    to: Destination,
    borrowed: &Borrowed<'_>,
) -> Result<usize, LinkError> {
    let room = link.capacity(addr)?;
    if room.frames == 0 {
        return Ok(0);
    }
    if engine.offer_room(to) {
        return Ok(1); // a waiting datagram takes the slot
    }
    let most_frames = room.frames.min(BATCH_FRAMES_MAX);
    let planned = engine.plan(now, to, borrowed, (most_frames, room.bytes));
    if planned == 0 {
        return Ok(1); // nothing is pending any more
    }
    link.send(addr, &frames_of(engine, borrowed))
}

#[inline]
fn frames_of<'a>(engine: &'a Engine, borrowed: &'a Borrowed<'a>) -> Frames<'a> {
    let batch = engine.batch(borrowed);
    batch.map(|(head, body)| Frame { head, body }).collect()
}

/// Sends one frame to every peer, if the link has no broadcast: best effort, a peer without room misses it.
#[cold]
pub(super) fn fan_out<L: Link>(
    link: &mut L,
    table: &Table,
    engine: &mut Engine,
    now: Instant,
    to: Destination,
) -> Result<usize, LinkError> {
    if to != Destination::Broadcast {
        return Ok(0); // the engine knows no peer that is not in the table
    }
    engine.plan(now, to, &Borrowed::NONE, (1, usize::MAX));
    let frames = frames_of(engine, &Borrowed::NONE);
    for addr in table.peers().filter_map(|peer| table.addr(peer)) {
        link.send(addr, &frames)?;
    }
    Ok(1)
}
