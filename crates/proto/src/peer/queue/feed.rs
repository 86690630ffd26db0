//! Messages that come to the queue while their fragments leave: one at a time.
//!
//! Called by `send`. Such a message is fed piece by piece; or it is lent: it stays where the program has it, and whoever writes
//! frames brings it along, until the queue is to keep what is not acknowledged. What was fed or kept lies in the message's `stream`.

use super::{Lent, Queue};
use crate::message::SendId;
use crate::peer::stream::AHEAD_BYTES;
use crate::pool::Pool;
use tsumuji_wire::Lane;

impl Queue {
    /// A message of `length_bytes` that `feed` will bring; `None` while another one is being fed.
    pub(in crate::peer) fn push_stream(
        &mut self,
        lane: Lane,
        length_bytes: usize,
        notify: bool,
    ) -> Option<SendId> {
        if self.feeding.is_some() {
            return None;
        }
        let mut stream = self.spare_stream.take().unwrap_or_default();
        stream.begin(self.fragment_bytes);
        let slot = self.free_slot();
        self.messages[slot as usize].stream = Some(stream);
        self.feeding = Some(slot);
        Some(self.enlist(slot, lane, length_bytes, false, notify))
    }

    /// The message that `push_stream` just gave a place is lent until `keep`.
    pub(in crate::peer) fn lend(&mut self) {
        let Some(slot) = self.feeding else {
            return;
        };
        let outgoing = &mut self.messages[slot as usize];
        if let Some(stream) = &mut outgoing.stream {
            stream.set_lent(true);
            outgoing.fed = outgoing.fragments;
            self.lent = Lent::Yes;
            self.choice = None;
        }
    }

    pub(in crate::peer) fn lent(&self) -> Lent {
        self.lent
    }

    /// What of the lent message has not left.
    pub(in crate::peer) fn unsent_bytes(&self) -> usize {
        self.feeding.map_or(0, |slot| {
            let outgoing = &self.messages[slot as usize];
            let left = outgoing.next_fragment as usize * self.fragment_bytes;
            outgoing.length_bytes.saturating_sub(left)
        })
    }

    /// Copies what is not acknowledged of `message`, which was lent and no longer is. `false`: there is no memory.
    pub(in crate::peer) fn keep(&mut self, message: &[u8], pool: &mut Pool) -> bool {
        let (Lent::Yes, Some(slot)) = (self.lent, self.feeding) else {
            self.lent = Lent::No;
            return true;
        };
        let outgoing = &mut self.messages[slot as usize];
        let Some(stream) = &mut outgoing.stream else {
            return true;
        };
        let kept_bytes = if outgoing.next_fragment == 0 {
            // It may leave in fragments of another size, if it waits for a session.
            let Some(mut body) = pool.take(message.len()) else {
                return false;
            };
            body.extend_from_slice(message);
            pool.put(core::mem::replace(&mut outgoing.body, body));
            stream.set_lent(false);
            self.spare_stream = outgoing.stream.take();
            message.len()
        } else {
            let size = self.fragment_bytes;
            let Some(bytes) =
                stream.keep(message, size, outgoing.fragments, &outgoing.bitmap, pool)
            else {
                return false;
            };
            bytes
        };
        self.queued_bytes += kept_bytes;
        (self.feeding, self.lent) = (None, Lent::No);
        true
    }

    /// Forgets the message that is lent; `false`: some of it has left, or none is lent.
    pub(in crate::peer) fn withdraw(&mut self) -> bool {
        let (Lent::Yes, Some(slot)) = (self.lent, self.feeding) else {
            return false;
        };
        let outgoing = &mut self.messages[slot as usize];
        if outgoing.next_fragment > 0 {
            return false;
        }
        outgoing.live = false;
        if let Some(mut stream) = outgoing.stream.take() {
            stream.set_lent(false);
            self.spare_stream = Some(stream);
        }
        let priority = usize::from(outgoing.lane.priority().get());
        self.pending[priority].retain(|&pending| pending != slot);
        if self.pending[priority].is_empty() {
            self.pending_mask &= !(1 << priority);
        }
        self.backlog -= 1;
        self.queued_messages -= 1;
        self.free.push(slot);
        (self.feeding, self.lent, self.choice) = (None, Lent::No, None);
        true
    }

    /// A message is not yet fed to its end.
    pub(in crate::peer) fn is_feeding(&self) -> bool {
        self.feeding.is_some()
    }

    /// A message is being fed and has less than [`AHEAD_BYTES`] waiting to leave.
    pub(in crate::peer) fn is_hungry(&self) -> bool {
        self.feeding.is_some_and(|slot| {
            let outgoing = &self.messages[slot as usize];
            let ahead = (outgoing.fed - outgoing.next_fragment) as usize;
            ahead * self.fragment_bytes < AHEAD_BYTES
        })
    }

    /// Takes as much of `rest`, the part of the message that was not taken yet, as may wait. `None`: no message is being fed,
    /// or it has another length.
    pub(in crate::peer) fn feed(&mut self, rest: &[u8], pool: &mut Pool) -> Option<usize> {
        let slot = self.feeding.filter(|_| self.lent == Lent::No)?;
        let fragment_bytes = self.fragment_bytes;
        let mut taken = 0;
        while self.is_hungry() {
            let outgoing = &mut self.messages[slot as usize];
            let stream = outgoing.stream.as_deref_mut()?;
            let before = stream.fed_bytes();
            if outgoing.length_bytes - before != rest.len() - taken {
                return None;
            }
            let fragments = stream.feed(&rest[taken..], fragment_bytes, pool);
            taken += stream.fed_bytes() - before;
            outgoing.fed += fragments;
            if outgoing.fed == outgoing.fragments {
                self.feeding = None;
            }
            if fragments == 0 {
                break;
            }
        }
        self.queued_bytes += taken;
        self.choice = None;
        Some(taken)
    }
}
