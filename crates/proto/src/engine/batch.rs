//! Batches: frames to one peer, or one broadcast frame, that a link takes by one call.
//!
//! Called by drivers: `next_destination` names the destination, `plan` plans a batch for it, as far as the link has room, and `batch` yields the
//! frames. They count as sent from `plan` on, so the link must take all of them. The batch holds what the engine writes itself (headers,
//! acknowledgements, control); payloads stay in their messages' buffers, valid until the engine is called again.
//!
//! Invariant: frames of a batch leave in the order in which they were planned.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::transmit::{next_data, write_word};
use super::{Engine, peer_of, pop_ready};
use crate::event::Destination;
use crate::message::Borrowed;
use crate::peer::Peer;
use crate::peer::send::Part;
use crate::time::Instant;
use tsumuji_wire::{ACK_HEADER_BYTES, DATA_HEADER_BYTES, Data, Datagram, NodeId};

/// Largest bitmap of an acknowledgement: it covers the whole window of 4096 numbers.
pub(super) const BITMAP_BYTES: usize = 512;
/// Longest frame without data.
const WORD_BYTES_MAX: usize = ACK_HEADER_BYTES + BITMAP_BYTES;
/// Room for what the engine writes in one batch: the headers of as many frames as any link takes by one call, and acknowledgements among them.
const WRITTEN_BYTES: usize = 64 * DATA_HEADER_BYTES + 3 * WORD_BYTES_MAX;

/// What follows the head of a frame.
#[derive(Debug, Clone, Copy)]
enum Body {
    Nothing,
    Part(Part),
    /// The datagram in `Batch::datagram`.
    Datagram,
}

#[derive(Debug, Clone, Copy)]
struct Planned {
    /// Of its head, in `written`.
    start: u16,
    head_bytes: u16,
    body: Body,
}
const _: () = assert!(WRITTEN_BYTES <= u16::MAX as usize);

/// The batch that was planned last.
#[derive(Debug)]
pub(super) struct Batch {
    to: Option<NodeId>,
    written: Box<[u8; WRITTEN_BYTES]>,
    used_bytes: usize,
    frames: Vec<Planned>,
    /// Of all frames, payloads included.
    bytes: usize,
    datagram: Vec<u8>,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            to: None,
            written: Box::new([0; WRITTEN_BYTES]),
            used_bytes: 0,
            frames: Vec::with_capacity(64),
            bytes: 0,
            datagram: Vec::new(),
        }
    }

    fn begin(&mut self, to: Option<NodeId>) {
        (self.to, self.used_bytes, self.bytes) = (to, 0, 0);
        self.frames.clear();
    }

    #[inline(always)] // on the path of every frame
    fn push(&mut self, head: &[u8], body_bytes: usize, body: Body) {
        let start = self.used_bytes;
        self.written[start..start + head.len()].copy_from_slice(head);
        self.frames.push(Planned {
            start: start as u16,
            head_bytes: head.len() as u16,
            body,
        });
        self.used_bytes = start + head.len();
        self.bytes += head.len() + body_bytes;
    }

    /// Adds a data frame, whose payload stays where it is.
    #[inline(always)] // as `push`
    pub(super) fn push_data(&mut self, data: &Data<'_>, part: Part) {
        self.push(&data.head(), data.payload.len(), Body::Part(part));
    }

    /// No other frame fits the batch, whose payload may have `payload_bytes`.
    fn is_full(&self, (most_frames, most_bytes): (usize, usize), payload_bytes: usize) -> bool {
        let next_bytes = WORD_BYTES_MAX.max(DATA_HEADER_BYTES + payload_bytes);
        self.frames.len() >= most_frames
            || self.bytes.saturating_add(next_bytes) > most_bytes
            || self.used_bytes + WORD_BYTES_MAX > WRITTEN_BYTES
    }
}

/// Kind of the next frame to a peer.
enum Next {
    Data,
    /// A frame without data: control, grant, acknowledgement or ask.
    Word,
}

impl Engine {
    /// The link has room for `to`, which `next_destination` just returned. `true`: a datagram goes first, so call `next_destination` again.
    #[inline]
    pub fn offer_room(&mut self, to: Destination) -> bool {
        !self.datagrams.is_empty() && !self.datagrams.is_offered() && self.datagrams.offer_room(to)
    }

    /// Plans a batch for `to`, which `next_destination` just returned: at most `most` frames and bytes, but the first frame may be of any length.
    /// `borrowed`: the message that is borrowed, to whatever peer. Returns the number of frames.
    #[inline]
    pub fn plan(
        &mut self,
        now: Instant,
        to: Destination,
        borrowed: &Borrowed<'_>,
        most: (usize, usize),
    ) -> usize {
        match to {
            _ if self.datagrams.is_offered() => self.plan_datagram(),
            Destination::Peer(id) => self.plan_to_peer(now, id, borrowed, most),
            Destination::Broadcast => self.batch.begin(None),
        }
        let Batch { frames, bytes, .. } = &self.batch;
        self.shared.counters.sent_frames += frames.len() as u64;
        self.shared.counters.sent_bytes += *bytes as u64;
        frames.len()
    }

    /// Head and payload of each frame of the batch; `borrowed` as for `plan`.
    #[inline]
    pub fn batch<'a>(
        &'a self,
        borrowed: &'a Borrowed<'a>,
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let batch = &self.batch;
        let peer = batch.to.and_then(|to| self.peer(to));
        batch.frames.iter().map(move |frame| {
            let (start, bytes) = (usize::from(frame.start), usize::from(frame.head_bytes));
            let head = &batch.written[start..start + bytes];
            let body = match frame.body {
                Body::Part(part) => peer.map_or(&[][..], |peer| peer.send.payload(part, borrowed)),
                Body::Nothing => &[],
                Body::Datagram => &batch.datagram,
            };
            (head, body)
        })
    }

    #[inline]
    fn plan_to_peer(
        &mut self,
        now: Instant,
        id: NodeId,
        borrowed: &Borrowed<'_>,
        most: (usize, usize),
    ) {
        self.batch.begin(Some(id));
        let busy = self.ready.len() > 1;
        while let Some(peer) = peer_of(&mut self.peers, id) {
            let shared = &mut self.shared;
            match next_frame(now, peer) {
                Next::Data => {
                    let Some((data, part, more)) = next_data(now, busy, borrowed, peer, shared)
                    else {
                        break;
                    };
                    self.batch.push_data(&data, part);
                    if let Some(at) = peer.send.frame_deadline() {
                        shared.arm(peer, at);
                    }
                    // Nothing else waits, as `wants_transmit` would find.
                    if !more && !peer.send.is_clocked() && !peer.receive.ack_now {
                        return pop_ready(peer, &mut self.ready, busy);
                    }
                }
                Next::Word => {
                    let mut word = [0; WORD_BYTES_MAX];
                    let most_bytes = WORD_BYTES_MAX.min(peer.link.frame_bytes as usize);
                    let bytes = write_word(now, peer, shared, &mut word[..most_bytes]);
                    if bytes == 0 {
                        break;
                    }
                    self.batch.push(&word[..bytes], 0, Body::Nothing);
                }
            }
            if !peer.wants_transmit(now) || self.batch.is_full(most, peer.send.queue.next_bytes()) {
                break;
            }
        }
        if busy {
            self.ready.rotate_left(1);
        }
    }

    /// Plans the datagram that `next_destination` has chosen.
    #[cold]
    #[inline(never)] // as `next_of_all`
    fn plan_datagram(&mut self) {
        self.batch.begin(None);
        let Some(waiting) = self.datagrams.pop() else {
            return;
        };
        let datagram = Datagram {
            channel_id: waiting.channel_id,
            key: waiting.key,
            epoch: waiting.epoch,
            lap: waiting.lap,
            payload: &waiting.payload,
            ..Datagram::EMPTY
        };
        let head = self.datagram_head(datagram);
        let bytes = waiting.payload.len();
        self.batch.push(&head, bytes, Body::Datagram);
        let before = core::mem::replace(&mut self.batch.datagram, waiting.payload);
        self.shared.pool.put(before);
    }
}

#[inline(always)] // on the path of every frame
fn next_frame(now: Instant, peer: &mut Peer) -> Next {
    if peer.session.has_control() {
        return Next::Word;
    }
    // Data frames tell of no gap, refusal, or change of whether direct messages are taken; under `suci` they carry no acknowledgement.
    let gap = peer.receive.ack_now && peer.wants_ack_alone();
    let pending = peer.ping_pending | peer.receive.grant_pending | peer.send.is_ask_pending();
    if !gap && !pending && (!peer.receive.ack_now || peer.send.is_sendable(now)) {
        Next::Data
    } else {
        Next::Word
    }
}
