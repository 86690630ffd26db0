//! Bundling: small messages that wait behind each other leave as one message.
//!
//! Only messages that wait anyway are joined: none is delayed for this. To channels, numbers and acknowledgements a bundle is one message of one
//! fragment; its messages share its id. A tracked message is never joined.

use super::Queue;
use crate::memory::bundle_weight;
use crate::message::SendId;
use crate::pool::Pool;
use tsumuji_wire::{Channel, bundle};

impl Queue {
    /// Sets whether messages are joined. None are before the fragment size is known.
    pub(in crate::peer) fn set_bundling(&mut self, on: bool) {
        self.bundle_bytes = if on {
            self.fragment_bytes.min(bundle::BYTES_MAX)
        } else {
            0
        };
    }

    /// Appends the message to the one queued last, if that is of the same channel and has not begun to leave, and one frame holds both.
    #[inline(never)] // most messages find none to join
    pub(super) fn join(
        &mut self,
        channel: Channel,
        (head, rest): (&[u8], &[u8]),
        pool: &mut Pool,
    ) -> Option<SendId> {
        let length_bytes = head.len() + rest.len();
        let slot = *self.pending[usize::from(channel.priority().get())].back()?;
        let outgoing = &mut self.messages[slot as usize];
        let alone = !outgoing.is_bundle();
        let before_bytes = if alone {
            bundle::PREFIX_BYTES + outgoing.body.len()
        } else {
            outgoing.body.len()
        };
        let bytes = before_bytes + bundle::PREFIX_BYTES + length_bytes;
        let messages = outgoing.messages + 1;
        if bytes > self.bundle_bytes
            || outgoing.channel != channel
            || outgoing.next_fragment > 0
            || outgoing.notify
            || outgoing.borrowing.is_some()
            || messages > bundle::MESSAGES_MAX
            || bundle_weight(bytes, messages) > self.message_limit_bytes
        {
            return None;
        }
        if alone || outgoing.body.capacity() < bytes {
            // The pool's buffers are powers of two, so the body grows in steps.
            let mut larger = pool.take(bytes)?;
            if alone {
                larger.extend_from_slice(&bundle::prefix(outgoing.body.len()));
            }
            larger.extend_from_slice(&outgoing.body);
            pool.put(core::mem::replace(&mut outgoing.body, larger));
        }
        outgoing
            .body
            .extend_from_slice(&bundle::prefix(length_bytes));
        outgoing.body.extend_from_slice(head);
        outgoing.body.extend_from_slice(rest);
        outgoing.length_bytes = bytes;
        outgoing.messages = messages;
        self.queued_messages += 1;
        self.queued_bytes += length_bytes;
        Some(outgoing.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Counters;
    use crate::memory::charge;
    use crate::message::Borrowed;
    use crate::time::Instant;
    use alloc::vec::Vec;

    const CHANNEL: Channel = Channel::ordered(0);

    fn queue(limit_bytes: usize) -> (Queue, Pool) {
        let (mut queue, mut pool) = (Queue::new(0), Pool::new());
        queue.begin(100, limit_bytes, &mut pool, |_, _| {});
        queue.set_bundling(true);
        (queue, pool)
    }

    fn push(
        queue: &mut Queue,
        pool: &mut Pool,
        channel: Channel,
        message: &[u8],
        notify: bool,
    ) -> u64 {
        let half = message.len() / 2;
        let parts = (&message[..half], &message[half..]);
        queue.push_copied(channel, parts, notify, pool).unwrap().0
    }

    /// The messages of the next frame; checks that nothing of it is queued once it is acknowledged.
    fn leave(queue: &mut Queue, pool: &mut Pool) -> Vec<Vec<u8>> {
        assert!(queue.has_choice());
        let part = queue
            .pop(Instant::default(), pool, &mut Counters::default())
            .unwrap();
        let place = queue.place(part, &Borrowed::NONE);
        assert_eq!((place.offset, place.length), (0, place.payload.len()));
        let messages = if place.is_bundle {
            assert!(bundle::count(place.payload).is_some());
            bundle::messages(place.payload).map(Vec::from).collect()
        } else {
            Vec::from([Vec::from(place.payload)])
        };
        let before = (queue.queued_messages, queue.queued_bytes);
        queue.acknowledge(part, pool, &mut |_| ());
        let bytes: usize = messages.iter().map(Vec::len).sum();
        let after = (queue.queued_messages, queue.queued_bytes);
        assert_eq!(
            (before.0 - after.0, before.1 - after.1),
            (messages.len(), bytes)
        );
        messages
    }

    /// Waiting messages share a frame, in order, as far as one holds them; a message that has begun to leave does not.
    #[test]
    fn waiting_messages_join() {
        let (mut queue, mut pool) = queue(10_000);
        assert_eq!(push(&mut queue, &mut pool, CHANNEL, b"first", false), 0);
        assert_eq!(push(&mut queue, &mut pool, CHANNEL, b"", false), 0);
        assert_eq!(push(&mut queue, &mut pool, CHANNEL, &[7; 80], false), 0);
        assert_eq!((queue.queued_messages, queue.queued_bytes), (3, 85));
        assert_eq!(push(&mut queue, &mut pool, CHANNEL, &[8; 90], false), 1);
        assert_eq!(push(&mut queue, &mut pool, CHANNEL, &[9; 150], false), 2);
        assert_eq!(push(&mut queue, &mut pool, CHANNEL, b"last", false), 3);
        let bundled = [&b"first"[..], b"", &[7; 80]];
        assert_eq!(leave(&mut queue, &mut pool), bundled);
        assert_eq!(leave(&mut queue, &mut pool), [[8; 90]]);
        assert!(queue.has_choice());
        queue
            .pop(Instant::default(), &mut pool, &mut Counters::default())
            .unwrap();
        let (joined, alone) = ([&b"last"[..], b"and"], [b"later"]);
        assert_eq!(push(&mut queue, &mut pool, CHANNEL, joined[1], false), 3);
        assert!(queue.has_choice());
        queue
            .pop(Instant::default(), &mut pool, &mut Counters::default())
            .unwrap();
        assert_eq!(leave(&mut queue, &mut pool), joined);
        assert_eq!(push(&mut queue, &mut pool, CHANNEL, alone[0], false), 4);
        assert_eq!(leave(&mut queue, &mut pool), alone);
    }

    /// Messages of other channels, tracked messages, and those that would make too large a bundle for the peer stay alone.
    #[test]
    fn others_stay_alone() {
        let (mut queue, mut pool) = queue(10_000);
        let channels = [CHANNEL, Channel::ordered(1), CHANNEL];
        let names = channels.map(|channel| push(&mut queue, &mut pool, channel, b"message", false));
        assert_eq!(names, [0, 1, 2]);
        assert_eq!(push(&mut queue, &mut pool, CHANNEL, b"tracked", true), 3);
        assert_eq!(push(&mut queue, &mut pool, CHANNEL, b"behind it", false), 4);
        let (mut queue, mut pool) = self::queue(78);
        assert_eq!(bundle_weight(2 + 2 + 10, 2), 74);
        assert_eq!(push(&mut queue, &mut pool, CHANNEL, b"short", false), 0);
        assert_eq!(push(&mut queue, &mut pool, CHANNEL, b"short", false), 0);
        assert_eq!(push(&mut queue, &mut pool, CHANNEL, b"more", false), 1);
        queue.set_bundling(false);
        assert_eq!(push(&mut queue, &mut pool, CHANNEL, b"more", false), 2);
    }

    /// A bundle has no more messages than the peer takes, and is charged as they are together.
    #[test]
    fn bundles_are_bounded() {
        let (mut queue, mut pool) = (Queue::new(0), Pool::new());
        queue.begin(10_000, 1 << 20, &mut pool, |_, _| {});
        queue.set_bundling(true);
        for message in 0..600 {
            let name = push(&mut queue, &mut pool, CHANNEL, &[message as u8], false);
            assert_eq!(name, message / 256);
        }
        let counts: Vec<usize> = (0..3).map(|_| leave(&mut queue, &mut pool).len()).collect();
        assert_eq!(counts, [256, 256, 88]);
        assert_eq!(charge(bundle_weight(3 * 88, 88)), 88 * charge(1));
    }
}
