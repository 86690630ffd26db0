//! The receiving half of an operation's transfers: bytes in messages, and bytes read in the sender's memory.

use tsumuji_link::shm::ProcessMemory;
use tsumuji_node::NodeId;
use zerocopy::FromBytes;

use super::{Failure, Operation};
use crate::group::Members;
use crate::header::Kind;
use crate::ledger::{Ledger, Reads};
use crate::plan::{Action, Place, Step};
use crate::tuning::TUNING;

impl Operation<'_> {
    /// The sender tells the address of a transfer. `None`: this is not expected.
    pub(super) fn told_where(
        &mut self,
        number: usize,
        step: &Step,
        address: u64,
        payload: &[u8],
        from: NodeId,
        ledger: &mut Ledger,
    ) -> Option<()> {
        let state = &mut self.states[number];
        // That its memory cannot be read may be found only after several transfers were opened.
        if !state.open || state.direct || state.progress > 0 || !ledger.is_near(from) {
            return None;
        }
        let words = <[u64; 3]>::read_from_bytes(payload).ok()?;
        let peer = &mut ledger.peers[usize::from(from.0)];
        if matches!(peer.reads, Reads::Unknown) {
            peer.reads = ProcessMemory::of(words).map_or(Reads::No, Reads::Yes);
        }
        if matches!(peer.reads, Reads::Yes(_)) {
            (state.direct, state.address) = (true, address);
        } else {
            ledger.control(from, self.header(Kind::Taken, step, 0));
        }
        Some(())
    }

    /// Reads the next part in the sender's memory, and tells the sender at the end.
    pub(super) fn read(&mut self, number: usize, step: Step, from: NodeId, ledger: &mut Ledger) {
        let state = self.states[number];
        let reads = ledger.peers[usize::from(from.0)].reads;
        let read_at = |address, target: &mut [u8]| match reads {
            Reads::Yes(memory) => memory.read(address, target),
            Reads::Unknown | Reads::No => false,
        };
        let end = step
            .place
            .len
            .min(state.progress + TUNING.long.read_per_poll_bytes / self.unit * self.unit);
        let place = Place {
            start: step.place.start + state.progress,
            len: end - state.progress,
            ..step.place
        };
        let address = state.address.wrapping_add(state.progress as u64);
        let mut folded = state.progress > 0;
        let read = match (step.action, &self.fold) {
            (Action::Fold { incoming_left }, Some(fold)) => {
                let fold = std::sync::Arc::clone(fold);
                let mut block = std::mem::take(&mut ledger.block);
                block.resize((TUNING.long.fold_bytes / self.unit).max(1) * self.unit, 0);
                let (mut at, target) = (address, self.slice_mut(place));
                let read = target.chunks_mut(block.len()).all(|held| {
                    let block = &mut block[..held.len()];
                    let read = read_at(at, block);
                    if read {
                        fold(held, block, incoming_left);
                        folded = true;
                        at = at.wrapping_add(held.len() as u64);
                    }
                    read
                });
                ledger.block = block;
                read
            }
            _ => read_at(address, self.slice_mut(place)),
        };
        if !read {
            let state = &mut self.states[number];
            if matches!(step.action, Action::Fold { .. }) && folded {
                // The sender's memory is gone, so the sender has failed, of which we will be told. Nothing was confirmed.
                state.told = true;
            } else {
                (state.direct, state.progress) = (false, 0);
                ledger.control(from, self.header(Kind::Taken, &step, 0));
            }
            return;
        }
        self.states[number].progress = end;
        if end < step.place.len {
            self.busy = true;
        } else {
            self.states[number].told = true;
            ledger.control(from, self.header(Kind::Taken, &step, step.place.len));
        }
    }

    /// Takes the next bytes of a transfer; `None`: they are not the next.
    pub(super) fn receive(
        &mut self,
        number: usize,
        step: Step,
        offset: u64,
        payload: &[u8],
    ) -> Option<()> {
        let progress = self.states[number].progress;
        let end = progress + payload.len();
        let fits = offset == progress as u64
            && end <= step.place.len
            && (!payload.is_empty() || step.place.len == 0)
            && payload.len().is_multiple_of(self.unit)
            && !self.states[number].direct
            && self.may_begin(&step);
        if !fits {
            return None;
        }
        let place = Place {
            buffer: step.place.buffer,
            start: step.place.start + progress,
            len: payload.len(),
        };
        match (step.action, &self.fold) {
            (Action::Fold { incoming_left }, Some(fold)) => {
                let fold = std::sync::Arc::clone(fold);
                fold(self.slice_mut(place), payload, incoming_left);
            }
            _ => self.slice_mut(place).copy_from_slice(payload),
        }
        self.states[number].progress = end;
        if end == step.place.len {
            self.finish(number);
        }
        Some(())
    }

    /// Takes early messages whose steps may begin now; returns whether there were any.
    pub(super) fn take_early(&mut self, group: &Members, ledger: &mut Ledger) -> bool {
        let (mut took, mut index) = (false, 0);
        while index < self.early.len() {
            let (from, tag) = (self.early[index].from, self.early[index].header.tag);
            let rank = group.rank_of(from);
            let number = rank.and_then(|rank| self.find(rank, tag, false));
            let Some(number) = number.filter(|number| self.may_begin(&self.steps[*number])) else {
                index += 1;
                continue;
            };
            let arrival = self.early.remove(index);
            let (step, offset) = (self.steps[number], arrival.header.offset);
            if self
                .receive(number, step, offset, &arrival.payload)
                .is_none()
            {
                self.failure = Some(Failure::Mismatch(arrival.from));
            }
            arrival.pay(ledger);
            took = true;
            if self.states[number].done {
                index = 0; // messages that waited for this step may lie before: start over
            }
        }
        took
    }
}
