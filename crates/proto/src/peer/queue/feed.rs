//! Messages that are fed to the queue while their fragments leave: one at a time.
//!
//! Called by `send`. What was fed and not acknowledged lies in the message's `stream`.

use alloc::vec::Vec;

use super::Queue;
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
        let (slot, id) =
            self.push_outgoing(lane, Vec::new(), Some(stream), length_bytes, 0, notify);
        self.feeding = Some(slot);
        Some(id)
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
        let slot = self.feeding?;
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
