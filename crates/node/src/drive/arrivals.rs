//! Frames that one poll receives, on their way from the link through the engine to the intake.
//!
//! Made by `drive` for one call of the link.

use tsumuji_link::{Coming, LinkAddr, Receiver};
use tsumuji_proto::{Channel, Datagram, Delivery, Engine, Instant, NodeId, Posted, Sink};

use tsumuji_wire::Join;

use super::{Intake, MESSAGES_PER_POLL, RECEIVE_FRAMES_MIN};
use crate::clock::Clock;
use crate::table::Table;

/// How many frames, `most` at most, the next poll receives, after one that asked for `asked` and got `received` with `messages` in them.
#[inline]
pub(super) fn next_burst(asked: usize, (received, messages): (usize, u64), most: usize) -> usize {
    if messages > MESSAGES_PER_POLL {
        let frames = received as u64 * MESSAGES_PER_POLL / messages;
        (frames as usize).clamp(RECEIVE_FRAMES_MIN, most)
    } else if received >= asked {
        (2 * asked).min(most)
    } else {
        asked
    }
}

/// The link's receiver during one poll.
pub(super) struct Arrivals<'a, I, C> {
    pub(super) engine: &'a mut Engine,
    pub(super) table: &'a Table,
    pub(super) clock: &'a C,
    pub(super) spoofed_source_frames: &'a mut u64,
    pub(super) intake: &'a mut I,
    /// The time, once something arrived.
    pub(super) read: Option<Instant>,
    pub(super) backlog: bool,
}

impl<I: Intake, C: Clock> Arrivals<'_, I, C> {
    /// Lets the engine handle an arrival, and releases the messages consumed at once.
    #[inline(always)] // on every frame's way
    fn handle(&mut self, handle: impl FnOnce(&mut Engine, Instant, &mut Counted<'_, I>)) {
        let now = *self.read.get_or_insert_with(|| self.clock.now());
        let mut sink = Counted {
            intake: &mut *self.intake,
            from: NodeId(0),
            messages: 0,
            bytes: 0,
        };
        handle(self.engine, now, &mut sink);
        let (from, messages, bytes) = (sink.from, sink.messages, sink.bytes);
        if messages > 0 {
            self.engine.release_all(from, messages, bytes);
        }
        self.backlog |= self.engine.has_work();
    }

    /// Handles a frame that comes from no member: an ask to become one, or nothing.
    #[cold]
    fn unknown_peer(&mut self, from: LinkAddr, frame: &[u8]) {
        match Join::parse(frame) {
            Some(join) => self.intake.asked(from, &join),
            None => *self.spoofed_source_frames += 1,
        }
    }

    #[inline]
    fn is_spoofed(&self, from: LinkAddr, frame: &[u8]) -> bool {
        tsumuji_wire::source_of(frame).is_some_and(|source| !self.table.admits(from, source))
    }
}

impl<I: Intake, C: Clock> Receiver for Arrivals<'_, I, C> {
    #[inline]
    fn frame(&mut self, from: LinkAddr, frame: &[u8]) {
        if self.is_spoofed(from, frame) {
            return self.unknown_peer(from, frame);
        }
        self.handle(|engine, now, sink| engine.handle_frame(now, frame, sink));
    }

    #[inline]
    fn placement(&mut self, coming: Option<Coming<'_>>) -> Option<tsumuji_link::Placement<'_>> {
        if let Some(Coming { from, start, bytes }) = coming
            && !self.is_spoofed(from, start)
        {
            self.handle(|engine, now, sink| engine.foresee(now, start, bytes, sink));
        }
        let placement = self.engine.placement()?;
        Some(tsumuji_link::Placement {
            head_bytes: placement.head_bytes,
            body_bytes: placement.body_bytes,
            place: placement.place,
        })
    }

    fn is_expected(&mut self, from: LinkAddr, index: usize, head: &[u8], body: usize) -> bool {
        !self.is_spoofed(from, head) && self.engine.is_expected(index, head, body)
    }

    fn placed(&mut self, _: LinkAddr, head: &[u8], body_bytes: usize) {
        self.handle(|engine, now, sink| engine.handle_placed(now, head, body_bytes, sink));
    }

    fn bodiless(&mut self, from: LinkAddr, head: &[u8], body_bytes: usize) {
        if !self.is_spoofed(from, head) {
            self.handle(|engine, now, _| engine.handle_bodiless(now, head, body_bytes));
        }
    }
}

/// The engine's sink: passes on, and counts messages consumed at once.
struct Counted<'a, I> {
    intake: &'a mut I,
    from: NodeId,
    messages: usize,
    bytes: usize,
}

impl<I: Intake> Sink for Counted<'_, I> {
    #[inline]
    fn message(&mut self, delivery: Delivery<'_>) {
        let (from, bytes) = (delivery.from, delivery.body.bytes().len());
        if self.intake.message(delivery) {
            // All deliveries of one frame have the same source.
            self.from = from;
            self.messages += 1;
            self.bytes += bytes;
        }
    }

    #[inline]
    fn datagram(&mut self, session: u64, datagram: Datagram<'_>) {
        self.intake.datagram(session, datagram);
    }

    fn place(&mut self, from: NodeId, channel: Channel, length_bytes: usize) -> Option<Posted> {
        self.intake.place(from, channel, length_bytes)
    }

    fn put_back(&mut self, posted: Posted) {
        self.intake.put_back_all(vec![posted]);
    }
}
