//! Receiving of datagrams of several frames: on each channel the newest wins.
//!
//! Called by `receive`. Nothing is requested again: a datagram is dropped if memory does not admit it, or if its missing fragments do not come. Its
//! packet numbers are acknowledged all the same, for the sender's accounts.
//!
//! Invariants: no datagram is delivered after a newer one of its stream; at most one of a stream is incomplete, and it is charged to the budget until
//! it is complete, replaced, or got no fragment for `datagrams.patience` of `tuning`.

use alloc::vec::Vec;

use super::channel::{Accepted, Fragment};
use super::places::CHANNELS_MAX;
use super::reassembly::Reassembly;
use crate::memory::Memory;
use crate::pool::Pool;
use crate::time::Instant;
use crate::tuning::TUNING;
use tsumuji_wire::Channel;

#[derive(Debug, Default)]
pub(crate) struct DatagramReceive {
    /// One for each channel that was used in this session.
    streams: Vec<Stream>,
}

#[derive(Debug)]
struct Stream {
    channel: Channel,
    /// Datagrams with lower message numbers are stale.
    next: u64,
    partial: Option<Partial>,
}

/// A datagram that has begun to arrive.
#[derive(Debug)]
struct Partial {
    message: u64,
    reassembly: Reassembly,
    /// When its last fragment arrived.
    last_at: Instant,
}

impl Stream {
    fn drop_partial(&mut self, memory: &mut Memory, pool: &mut Pool) {
        if let Some(partial) = self.partial.take() {
            memory.abandon(partial.reassembly.length_bytes());
            partial.reassembly.finish(pool).give_to(pool);
        }
    }
}

impl DatagramReceive {
    /// Expected number of the channel's next message, from which its low 32 bits are expanded.
    pub(crate) fn next(&mut self, channel: Channel) -> u64 {
        self.stream(channel).next
    }

    /// Whether the channel is in use, or there is room for one more.
    pub(crate) fn has_room(&self, channel: Channel) -> bool {
        self.streams.len() < CHANNELS_MAX
            || self.streams.iter().any(|stream| stream.channel == channel)
    }

    fn stream(&mut self, channel: Channel) -> &mut Stream {
        let index = self
            .streams
            .iter()
            .position(|stream| stream.channel == channel);
        let index = index.unwrap_or_else(|| {
            self.streams.push(Stream {
                channel,
                next: crate::numbers::FIRST_NUMBER,
                partial: None,
            });
            self.streams.len() - 1
        });
        &mut self.streams[index]
    }

    /// Takes a fragment; the result is `Accepted::Nothing` also if it is stale, or memory does not admit it.
    pub(crate) fn accept(
        &mut self,
        now: Instant,
        channel: Channel,
        fragment: &Fragment<'_>,
        memory: &mut Memory,
        pool: &mut Pool,
    ) -> Accepted {
        let stream = self.stream(channel);
        let message = fragment.message;
        if message < stream.next {
            return Accepted::Nothing;
        }
        match &stream.partial {
            Some(partial) if message < partial.message => return Accepted::Nothing,
            Some(partial) if message > partial.message => stream.drop_partial(memory, pool),
            _ => {}
        }
        if stream.partial.is_none() {
            if !memory.reserve(fragment.length, true, false) {
                return Accepted::Nothing;
            }
            let Some(reassembly) = Reassembly::new(pool, fragment.length, fragment.size) else {
                memory.abandon(fragment.length);
                return Accepted::Nothing;
            };
            stream.partial = Some(Partial {
                message,
                reassembly,
                last_at: now,
            });
        }
        let Some(partial) = &mut stream.partial else {
            return Accepted::Nothing;
        };
        let reassembly = &mut partial.reassembly;
        if reassembly.length_bytes() != fragment.length || reassembly.is_beyond(fragment.offset) {
            return Accepted::Beyond;
        }
        partial.last_at = now;
        let payload = fragment.payload.unwrap_or_default(); // datagrams are never placed by a link
        if !reassembly.insert(fragment.offset, payload) || !reassembly.is_whole() {
            return Accepted::Nothing;
        }
        stream.next = message + 1;
        let Some(partial) = stream.partial.take() else {
            return Accepted::Nothing;
        };
        let body = partial.reassembly.finish(pool);
        memory.abandon(body.len()); // the sink takes or copies it at once
        Accepted::Whole(body)
    }

    /// When the next incomplete datagram will have waited too long.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let partials = self
            .streams
            .iter()
            .filter_map(|stream| stream.partial.as_ref());
        partials
            .map(|partial| partial.last_at + TUNING.datagrams.patience)
            .min()
    }

    /// Drops incomplete datagrams that have waited too long.
    pub(crate) fn expire(&mut self, now: Instant, memory: &mut Memory, pool: &mut Pool) {
        for stream in &mut self.streams {
            let stale = |partial: &Partial| partial.last_at + TUNING.datagrams.patience <= now;
            if stream.partial.as_ref().is_some_and(stale) {
                stream.drop_partial(memory, pool);
            }
        }
    }

    /// Ends the session: releases all memory.
    pub(crate) fn clear(&mut self, memory: &mut Memory, pool: &mut Pool) {
        for stream in &mut self.streams {
            stream.drop_partial(memory, pool);
        }
        self.streams.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::FIRST_NUMBER;
    use crate::peer::reassembly::Assembled;

    const CHANNEL: Channel = Channel::datagram(3);
    const NOW: Instant = Instant::from_nanos(0);

    fn fragment(message: u64, offset: usize, length: usize) -> Fragment<'static> {
        Fragment {
            message: FIRST_NUMBER + message,
            offset,
            length,
            weight: length,
            size: 4,
            payload_bytes: length.min(4),
            payload: Some(&[7; 4][..length.min(4)]),
        }
    }

    /// A newer message replaces an incomplete one, and nothing older is taken after it.
    #[test]
    fn newest_wins() {
        let (mut memory, mut pool) = (Memory::new(10_000, 1000), Pool::new());
        let mut datagrams = DatagramReceive::default();
        let mut accept = |message, offset, length| {
            datagrams.accept(
                NOW,
                CHANNEL,
                &fragment(message, offset, length),
                &mut memory,
                &mut pool,
            )
        };
        assert!(matches!(accept(1, 0, 8), Accepted::Nothing));
        assert!(
            matches!(accept(0, 0, 4), Accepted::Nothing),
            "older than one that arrives"
        );
        assert!(matches!(accept(2, 4, 8), Accepted::Nothing));
        assert!(matches!(accept(1, 4, 8), Accepted::Nothing), "replaced");
        assert!(matches!(accept(2, 0, 8), Accepted::Whole(Assembled::Own(body)) if body == [7; 8]));
        assert!(matches!(accept(2, 0, 8), Accepted::Nothing), "came already");
        assert!(matches!(accept(3, 0, 4), Accepted::Whole(Assembled::Own(body)) if body == [7; 4]));
        assert!(matches!(accept(3, 0, 4), Accepted::Nothing), "came already");
        assert!(matches!(accept(4, 4, 8), Accepted::Nothing));
        assert!(
            matches!(accept(4, 0, 9), Accepted::Beyond),
            "another length"
        );
        datagrams.clear(&mut memory, &mut pool);
        assert_eq!(memory.used_bytes(), 0);
    }

    /// An incomplete datagram frees its memory in the end, and with a full budget datagrams are dropped.
    #[test]
    fn incomplete_messages_are_given_up() {
        let (mut memory, mut pool) = (Memory::new(100, 1000), Pool::new());
        let mut datagrams = DatagramReceive::default();
        datagrams.accept(NOW, CHANNEL, &fragment(0, 0, 80), &mut memory, &mut pool);
        assert_eq!(memory.used_bytes(), 144);
        let other = Channel::datagram(4);
        datagrams.accept(NOW, other, &fragment(0, 0, 80), &mut memory, &mut pool);
        assert_eq!(memory.used_bytes(), 144, "nothing is free");
        let deadline = datagrams.deadline().unwrap();
        datagrams.expire(deadline, &mut memory, &mut pool);
        assert_eq!((memory.used_bytes(), datagrams.deadline()), (0, None));
    }
}
