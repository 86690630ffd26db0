//! The program's end of a stream, as the gateway sees it: a slot of shared memory and a socket to wake each other by.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tsumuji_streams::news;
use tsumuji_streams::ring::{self, Broken, GENERATION_SHIFT, Ring, Slot};

use crate::mailbox;
use crate::segment::Segment;

#[derive(Debug, Clone)]
pub(crate) struct End {
    pub(crate) segment: Arc<Segment>,
    pub(crate) slot: usize,
    /// The gateway's side: `CLIENT` where it offers a connection to a server, `SERVER` where it takes one from a client.
    pub(crate) side: usize,
    pub(crate) generation: u64,
    pub(crate) wake: Arc<OwnedFd>,
}

impl End {
    pub(crate) fn slot(&self) -> &Slot {
        self.segment.memory().slot(self.slot)
    }

    /// What the gateway writes.
    pub(crate) fn mine(&self) -> &ring::End {
        &self.slot().ends[self.side]
    }

    /// What the program writes.
    pub(crate) fn program(&self) -> &ring::End {
        &self.slot().ends[1 - self.side]
    }

    pub(crate) fn reader(&self) -> Ring {
        self.segment.memory().reader(self.slot, self.side)
    }

    fn writer(&self) -> Ring {
        self.segment.memory().writer(self.slot, self.side)
    }

    /// The bits of the slot's state; `None`: the slot is another connection's by now.
    pub(crate) fn state(&self) -> Option<u64> {
        let state = self.slot().state.load(Ordering::Acquire);
        (state >> GENERATION_SHIFT == self.generation).then_some(state)
    }

    /// Sets a bit of the state, unless the slot is another connection's or `unless` is set. True: it is set.
    pub(crate) fn set(&self, bit: u64, unless: u64) -> bool {
        let word = &self.slot().state;
        while let Some(state) = self.state() {
            if state & unless != 0 {
                return false;
            }
            let set =
                word.compare_exchange(state, state | bit, Ordering::AcqRel, Ordering::Acquire);
            if set.is_ok() {
                return true;
            }
        }
        false
    }

    /// Marks news for the program. True: it sleeps.
    pub(crate) fn mark(&self) -> bool {
        news::mark(self.segment.memory(), self.slot, 1 - self.side).is_any()
    }

    /// Tells the program of news, and wakes it if it sleeps.
    pub(crate) fn tell(&self) {
        if self.mark() {
            self.wake();
        }
    }

    /// Wakes it in any case.
    pub(crate) fn wake(&self) {
        mailbox::wake(&*self.wake);
    }

    /// Nothing more is to be expected from here.
    pub(crate) fn hang_up(&self) {
        let _ = rustix::net::shutdown(&*self.wake, rustix::net::Shutdown::Both); // it may have ended
    }

    /// Writes what there is room for, and tells the program.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<usize, Broken> {
        let written = self.writer().write_bytes(bytes)?;
        if written > 0 {
            self.tell();
        }
        Ok(written)
    }

    /// Position at which the gateway's ring ends, plus one.
    pub(crate) fn end_of_ring(&self) -> u64 {
        let tail = self.mine().out.tail.load(Ordering::Relaxed);
        tail.wrapping_add(1).max(1)
    }

    /// Of a program that is gone: it has closed the connection by a reset, or was killed with data unread.
    pub(crate) fn was_reset(&self) -> bool {
        let out = &self.program().out;
        let has_ended = [&out.is_closed, &out.is_finished]
            .iter()
            .any(|word| word.load(Ordering::Acquire) != 0);
        let has_unread = || self.writer().unread().is_ok_and(|unread| unread > 0);
        out.ends_by_reset.load(Ordering::Acquire) != 0
            || !has_ended && out.back_at.load(Ordering::Acquire) == 0 && has_unread()
    }

    /// Whether the program has shut down both directions: what is sent to it breaks the connection.
    pub(crate) fn is_shut(&self) -> bool {
        let ring::End { out, own, .. } = self.program();
        out.is_finished.load(Ordering::Acquire) != 0 && own.is_deaf.load(Ordering::Acquire) != 0
    }

    /// Asks to be told of room. True: there is some already.
    pub(crate) fn wants_room(&self) -> Result<bool, Broken> {
        self.mine().out.wants_room.store(1, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        Ok(self.writer().room()? > 0)
    }

    /// Bytes were taken from the program's ring: it is told if it waits for room.
    pub(crate) fn has_taken(&self) -> Result<(), Broken> {
        let wants_room = &self.program().out.wants_room;
        std::sync::atomic::fence(Ordering::SeqCst);
        if wants_room.load(Ordering::Relaxed) != 0
            && self.reader().room()? >= ring::RING_BYTES / 4
            && wants_room.swap(0, Ordering::AcqRel) != 0
        {
            self.tell();
        }
        Ok(())
    }
}
