//! What arrived while the program was in a call that takes no handler: messages until `recv` asks, shares and notices until `poll`.
//!
//! Called by `drive` as an [`Intake`], emptied by `endpoint`. Messages are bounded by the engine's budget, because they are
//! released only when taken; shares and notices by the limits below.

use std::collections::{HashMap, VecDeque};

use tsumuji_proto::{Body, Delivery, Event, Lane, NodeId, Share};

use crate::drive::Intake;
use crate::error::SendError;
use crate::handler::Handler;

/// A message taken by `recv`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who sent it.
    pub from: NodeId,
    /// The lane it came by.
    pub lane: Lane,
    /// The message. `Endpoint::recycle` takes the buffer back.
    pub body: Vec<u8>,
}

/// Shares kept, one per source, port and start.
const SHARES_LIMIT: usize = 4096;

/// Their bytes.
const SHARE_BYTES_LIMIT: usize = 8 << 20;

/// Notices (peer up, peer dead, sent) kept for the next handler; of more, the oldest go.
const NOTICES_LIMIT: usize = 16 * 1024;

/// Message buffers kept for reuse, and the capacity beyond which one goes to the engine's pool instead.
const POOL_BUFFERS: usize = 64;
const POOL_BUFFER_BYTES: usize = 64 << 10;

/// See the head of this module.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    messages: VecDeque<Message>,
    shares: HashMap<ShareKey, StoredShare>,
    share_bytes: usize,
    notices: VecDeque<Event>,
    pool: Vec<Vec<u8>>,
    /// Something for a handler came since `take_news` was asked.
    news: bool,
    /// Shares that found no room, ever.
    pub(crate) dropped_shares: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ShareKey {
    source: NodeId,
    port: u16,
    start: u32,
}

#[derive(Debug)]
struct StoredShare {
    incarnation: u32,
    epoch: u32,
    lap: u32,
    payload: Vec<u8>,
}

impl Inbox {
    /// Size of the next message.
    pub(crate) fn next_bytes(&self) -> Option<usize> {
        self.messages.front().map(|message| message.body.len())
    }

    /// The next message; the caller releases its bytes.
    pub(crate) fn pop(&mut self) -> Option<Message> {
        self.messages.pop_front()
    }

    /// Did something come, since this was last asked, that only a handler can take?
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news) && !self.is_empty()
    }

    /// Messages that wait.
    pub(crate) fn messages(&self) -> usize {
        self.messages.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.shares.is_empty() && self.notices.is_empty()
    }

    /// Gives all that is not a message to the handler; returns how many.
    pub(crate) fn hand_over_rest(&mut self, handler: &mut impl Handler) -> usize {
        let count = self.notices.len() + self.shares.len();
        for event in self.notices.drain(..) {
            notify(handler, &event);
        }
        for (key, stored) in self.shares.drain() {
            handler.share(Share {
                source: key.source,
                incarnation: stored.incarnation,
                port: key.port,
                epoch: stored.epoch,
                lap: stored.lap,
                start: key.start,
                payload: &stored.payload,
            });
            if self.pool.len() < POOL_BUFFERS {
                self.pool.push(stored.payload);
            }
        }
        self.share_bytes = 0;
        count
    }

    /// Takes a buffer back for the copies made here; returns it if there are enough, or if it is too large for that.
    pub(crate) fn recycle(&mut self, mut buffer: Vec<u8>) -> Option<Vec<u8>> {
        if buffer.capacity() > POOL_BUFFER_BYTES || self.pool.len() >= POOL_BUFFERS {
            return Some(buffer);
        }
        if buffer.capacity() > 0 {
            buffer.clear();
            self.pool.push(buffer);
        }
        None
    }

    fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = if bytes.is_empty() {
            Vec::new()
        } else {
            self.pool.pop().unwrap_or_default()
        };
        buffer.clear();
        buffer.extend_from_slice(bytes);
        buffer
    }
}

impl Intake for Inbox {
    fn message(&mut self, delivery: Delivery<'_>) -> bool {
        let body = match delivery.body {
            Body::Frame(bytes) => self.copy(bytes),
            Body::Whole(bytes) => std::mem::take(bytes),
        };
        self.messages.push_back(Message {
            from: delivery.from,
            lane: delivery.lane,
            body,
        });
        false
    }

    fn share(&mut self, _: u64, share: Share<'_>) {
        self.news = true;
        let key = ShareKey {
            source: share.source,
            port: share.port,
            start: share.start,
        };
        if let Some(held) = self.shares.get_mut(&key) {
            if is_older(&share, held) {
                return;
            }
            let bytes = self.share_bytes - held.payload.len() + share.payload.len();
            if bytes > SHARE_BYTES_LIMIT {
                self.dropped_shares += 1;
                return;
            }
            self.share_bytes = bytes;
            held.payload.clear();
            held.payload.extend_from_slice(share.payload);
            (held.incarnation, held.epoch, held.lap) = (share.incarnation, share.epoch, share.lap);
            return;
        }
        if self.shares.len() >= SHARES_LIMIT
            || self.share_bytes + share.payload.len() > SHARE_BYTES_LIMIT
        {
            self.dropped_shares += 1;
            return;
        }
        let payload = self.copy(share.payload);
        self.share_bytes += payload.len();
        let stored = StoredShare {
            incarnation: share.incarnation,
            epoch: share.epoch,
            lap: share.lap,
            payload,
        };
        self.shares.insert(key, stored);
    }

    fn event(&mut self, event: &Event) {
        self.news = true;
        if self.notices.len() == NOTICES_LIMIT {
            self.notices.pop_front();
        }
        self.notices.push_back(event.clone());
    }
}

/// Of the same life of its source, and of an earlier epoch or lap (both wrap).
fn is_older(share: &Share<'_>, held: &StoredShare) -> bool {
    let behind = |new: u32, old: u32| (new.wrapping_sub(old)).cast_signed() < 0;
    share.incarnation == held.incarnation
        && (behind(share.epoch, held.epoch)
            || share.epoch == held.epoch && behind(share.lap, held.lap))
}

/// Tells a handler of an event.
pub(crate) fn notify(handler: &mut impl Handler, event: &Event) {
    match event {
        Event::PeerUp { peer, .. } => handler.peer_up(*peer),
        Event::PeerDead {
            peer,
            failed_messages,
        } => handler.peer_dead(*peer, *failed_messages),
        Event::Sent { peer, id } => handler.sent(*peer, *id),
        Event::Flows {
            peer, flows, next, ..
        } => handler.flows(*peer, flows, *next),
        &Event::TooLarge {
            peer,
            id,
            size,
            limit,
        } => handler.refused(peer, id, &SendError::TooLarge { size, limit, peer }),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Seen {
        shares: Vec<(u32, u32, Vec<u8>)>,
        up: usize,
    }

    impl Handler for Seen {
        fn message(&mut self, _: NodeId, _: Lane, _: Body<'_>) {}
        fn share(&mut self, share: Share<'_>) {
            self.shares
                .push((share.start, share.lap, share.payload.to_vec()));
        }
        fn peer_up(&mut self, _: NodeId) {
            self.up += 1;
        }
    }

    fn share(start: u32, lap: u32, payload: &[u8]) -> Share<'_> {
        Share {
            source: NodeId(1),
            incarnation: 9,
            port: 2,
            epoch: 0,
            lap,
            start,
            payload,
        }
    }

    /// Of shares of one place the newest is kept, also when laps wrap; a new life of the source always counts as newer.
    #[test]
    fn newest_share_of_a_place_is_kept() {
        let mut inbox = Inbox::default();
        inbox.share(0, share(0, u32::MAX, b"old"));
        inbox.share(0, share(0, 1, b"new"));
        inbox.share(0, share(0, 0, b"late"));
        inbox.share(0, share(8, 5, b"other"));
        inbox.share(
            0,
            Share {
                incarnation: 10,
                ..share(8, 0, b"restarted")
            },
        );
        let mut seen = Seen::default();
        assert_eq!(inbox.hand_over_rest(&mut seen), 2);
        seen.shares.sort();
        assert_eq!(
            seen.shares,
            [(0, 1, b"new".to_vec()), (8, 0, b"restarted".to_vec())]
        );
        assert!(inbox.is_empty());
    }

    /// Shares that nobody takes stay within their limits and are counted.
    #[test]
    fn shares_are_bounded() {
        let mut inbox = Inbox::default();
        let payload = vec![7; 4096];
        for start in 0..10_000 {
            inbox.share(0, share(start, 0, &payload));
        }
        assert!(inbox.share_bytes <= SHARE_BYTES_LIMIT && inbox.shares.len() <= SHARES_LIMIT);
        assert_eq!(inbox.dropped_shares, 10_000 - inbox.shares.len() as u64);
        inbox.share(0, share(0, 1, &payload));
        assert_eq!(
            inbox.dropped_shares,
            10_000 - inbox.shares.len() as u64,
            "a kept place is still renewed"
        );
    }

    /// Messages come out as they came in, and their buffers are used again.
    #[test]
    fn messages_keep_order_and_reuse_buffers() {
        let mut inbox = Inbox::default();
        for text in [&b"one"[..], b"", b"three"] {
            let body = Body::Frame(text);
            assert!(!inbox.message(Delivery {
                from: NodeId(3),
                life: 0,
                lane: Lane::ordered(0),
                body
            }));
        }
        assert_eq!(inbox.next_bytes(), Some(3));
        let first = inbox.pop().expect("first");
        assert_eq!(first.body, b"one");
        let place = first.body.as_ptr();
        assert!(inbox.recycle(first.body).is_none());
        assert_eq!(inbox.pop().expect("second").body, b"");
        inbox.message(Delivery {
            from: NodeId(3),
            life: 0,
            lane: Lane::ordered(0),
            body: Body::Frame(b"two"),
        });
        assert_eq!(inbox.pop().expect("third").body, b"three");
        let again = inbox.pop().expect("fourth");
        assert_eq!(
            (again.body.as_slice(), again.body.as_ptr()),
            (&b"two"[..], place)
        );
        assert!(
            inbox
                .recycle(Vec::with_capacity(POOL_BUFFER_BYTES + 1))
                .is_some(),
            "large ones are the engine's"
        );
        let returned = (0..2 * POOL_BUFFERS)
            .filter_map(|_| inbox.recycle(Vec::with_capacity(100)))
            .count();
        assert!(
            returned >= POOL_BUFFERS,
            "what is not needed here is the engine's, too"
        );
    }

    /// Notices reach the handler once, and forgotten ones do not pile up.
    #[test]
    fn notices_are_bounded() {
        let mut inbox = Inbox::default();
        for _ in 0..NOTICES_LIMIT + 10 {
            inbox.event(&Event::PeerUp {
                peer: NodeId(1),
                incarnation: 5,
            });
        }
        let mut seen = Seen::default();
        assert_eq!(inbox.hand_over_rest(&mut seen), NOTICES_LIMIT);
        assert_eq!(seen.up, NOTICES_LIMIT);
    }
}
