//! Queue of datagrams of one frame that found no slot in the link: at most 64, the newest of each key, each until its deadline.
//!
//! Invariant: `is_offered` is true if the front of `queue` was returned by `next`, and may be tried now.

use alloc::collections::VecDeque;
use alloc::vec::{Drain, Vec};

use crate::event::Destination;
use crate::pool::Pool;
use crate::time::{Duration, Instant};
use crate::tuning::TUNING;

#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) to: Destination,
    pub(crate) channel_id: u16,
    pub(crate) key: u32,
    pub(crate) epoch: u32,
    pub(crate) lap: u32,
    pub(crate) payload: Vec<u8>,
    pub(crate) deadline: Instant,
}

/// Why a datagram was dropped, and its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// A newer one took its place.
    Superseded(Destination),
    /// Its deadline passed.
    Late(Destination),
}

#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    queue: VecDeque<Waiting>,
    is_offered: bool,
    /// How many consecutive datagrams found no slot.
    refused: usize,
    /// None is tried before this time.
    retry_at: Option<Instant>,
    /// Duration of the latest pause; zero: the next is the shortest.
    pause: Duration,
    /// Datagrams that were dropped and not reported yet.
    dropped: Vec<Dropped>,
}

impl Datagrams {
    /// Queues a datagram. It replaces a waiting one of the same key, or the oldest if the queue is full.
    pub(crate) fn push(&mut self, datagram: Waiting, pool: &mut Pool) {
        self.supersede(datagram.to, (datagram.channel_id, datagram.key), pool);
        if self.queue.len() == TUNING.datagrams.waiting_max
            && let Some(oldest) = self.queue.pop_front()
        {
            self.drop_one(Dropped::Superseded(oldest.to), oldest.payload, pool);
        }
        self.queue.push_back(datagram);
    }

    /// Drops a waiting datagram of that channel and key, because a newer one leaves or is queued.
    pub(crate) fn supersede(&mut self, to: Destination, of: (u16, u32), pool: &mut Pool) {
        let same = |old: &Waiting| old.to == to && (old.channel_id, old.key) == of;
        if let Some(index) = self.queue.iter().position(same)
            && let Some(old) = self.queue.remove(index)
        {
            self.is_offered = false;
            self.drop_one(Dropped::Superseded(to), old.payload, pool);
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Destination of the next datagram, if it may be tried now. Drops late ones.
    pub(crate) fn next(&mut self, now: Instant, pool: &mut Pool) -> Option<Destination> {
        self.is_offered = false;
        if !self.queue.is_empty() && self.refused >= self.queue.len() {
            self.pause =
                (self.pause + self.pause).clamp(TUNING.datagrams.retry, TUNING.datagrams.retry_max);
            (self.refused, self.retry_at) = (0, Some(now + self.pause));
        }
        if self.retry_at.is_some_and(|at| now < at) {
            return None;
        }
        self.retry_at = None;
        while self.queue.front().is_some_and(|next| next.deadline <= now) {
            if let Some(late) = self.queue.pop_front() {
                self.drop_one(Dropped::Late(late.to), late.payload, pool);
            }
        }
        let next = self.queue.front()?;
        self.is_offered = true;
        Some(next.to)
    }

    /// The link has room for `to`, while no datagram is tried: one for `to`, or a broadcast, becomes the next. `false`: there is none.
    #[cold]
    pub(crate) fn offer_room(&mut self, to: Destination) -> bool {
        let takes = |waiting: &Waiting| waiting.to == to || waiting.to == Destination::Broadcast;
        if self.retry_at.is_none() {
            return false;
        }
        let Some(index) = self.queue.iter().position(takes) else {
            return false;
        };
        self.queue.rotate_left(index);
        (self.retry_at, self.refused) = (None, 0);
        true
    }

    /// `next` has returned a datagram that was neither popped nor deferred.
    #[inline]
    pub(crate) fn is_offered(&self) -> bool {
        self.is_offered
    }

    /// Removes the datagram that `next` returned.
    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        if !core::mem::take(&mut self.is_offered) {
            return None;
        }
        (self.refused, self.pause) = (0, Duration::ZERO);
        self.queue.pop_front()
    }

    /// The datagram that `next` returned found no slot: others go first. `false`: it had returned none.
    pub(crate) fn defer(&mut self) -> bool {
        let was_offered = core::mem::take(&mut self.is_offered);
        if was_offered {
            self.refused += 1;
            self.queue.rotate_left(1);
        }
        was_offered
    }

    /// When waiting datagrams are tried again; `None` if none wait, or they may be tried now.
    #[inline]
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Some datagrams wait, and may be tried now.
    pub(crate) fn has_some(&self) -> bool {
        !self.queue.is_empty() && self.retry_at.is_none()
    }

    /// Datagrams that were dropped since the last call.
    pub(crate) fn dropped(&mut self) -> Drain<'_, Dropped> {
        self.dropped.drain(..)
    }

    fn drop_one(&mut self, why: Dropped, payload: Vec<u8>, pool: &mut Pool) {
        pool.put(payload);
        self.dropped.push(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsumuji_wire::NodeId;

    const A: Destination = Destination::Peer(NodeId(1));
    const B: Destination = Destination::Peer(NodeId(2));
    const NEVER: Instant = Instant::from_nanos(u64::MAX);

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn waiting(to: Destination, key: u32, lap: u32, deadline: Instant) -> Waiting {
        Waiting {
            to,
            channel_id: 1,
            key,
            epoch: 0,
            lap,
            payload: Vec::new(),
            deadline,
        }
    }

    /// Of each key to a peer the newest waits, and if there are too many, the newest ones.
    #[test]
    fn the_newest_waits() {
        let (mut all, mut pool) = (Datagrams::default(), Pool::new());
        all.push(waiting(A, 0, 1, NEVER), &mut pool);
        all.push(waiting(B, 0, 2, NEVER), &mut pool);
        all.push(waiting(A, 0, 3, NEVER), &mut pool);
        assert_eq!(all.dropped().as_slice(), [Dropped::Superseded(A)]);
        assert_eq!(all.next(at(0), &mut pool), Some(B));
        assert_eq!(all.pop().map(|next| next.lap), Some(2));
        for key in 1..=TUNING.datagrams.waiting_max as u32 {
            all.push(waiting(B, key, key, NEVER), &mut pool);
        }
        assert_eq!(
            all.dropped().as_slice(),
            [Dropped::Superseded(A)],
            "the oldest"
        );
        assert_eq!(all.next(at(0), &mut pool), Some(B));
        assert_eq!(all.pop().map(|next| next.lap), Some(1));
    }

    /// Late datagrams do not leave; one that found no slot lets others go first, and if none could leave, all wait for a while.
    #[test]
    fn the_late_are_dropped_and_the_stuck_tried_again() {
        let (mut all, mut pool) = (Datagrams::default(), Pool::new());
        all.push(waiting(A, 0, 1, at(10)), &mut pool);
        all.push(waiting(A, 1, 2, NEVER), &mut pool);
        all.push(waiting(B, 0, 3, NEVER), &mut pool);
        assert_eq!(all.next(at(10), &mut pool), Some(A));
        assert_eq!(all.dropped().as_slice(), [Dropped::Late(A)]);
        assert!(all.defer() && !all.defer());
        assert_eq!(all.next(at(10), &mut pool), Some(B));
        assert!(all.defer());
        assert_eq!((all.next(at(10), &mut pool), all.has_some()), (None, false));
        assert!(all.pop().is_none(), "none is offered");
        assert_eq!(all.retry_at(), Some(at(260)));
        assert_eq!(all.next(at(259), &mut pool), None);
        for next in [A, B] {
            assert_eq!(all.next(at(260), &mut pool), Some(next));
            assert!(all.defer());
        }
        assert_eq!(all.next(at(260), &mut pool), None);
        assert_eq!(all.retry_at(), Some(at(760)), "twice as long");
        assert_eq!(all.next(at(760), &mut pool), Some(A));
        assert_eq!(all.pop().map(|next| next.lap), Some(2));
        all.supersede(B, (1, 0), &mut pool);
        assert_eq!(all.next(at(760), &mut pool), None);
        assert_eq!(all.dropped().as_slice(), [Dropped::Superseded(B)]);
    }
}
