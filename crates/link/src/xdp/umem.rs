//! The UMEM: memory shared with the kernel, cut into chunks, and the allocator that knows the owner of each chunk.
//!
//! ```text
//! | receive chunk 0 | 1 | ... | slot 0: chunk, chunk, chunk | slot 1: ... |
//! ```
//!
//! Receive chunks go round: ours -> fill ring -> receive ring -> ours. A transmit slot is as many neighbouring chunks as the largest frame needs:
//! contiguous memory for the writer of the frame, one descriptor for each chunk that the frame reaches.
//!
//! Invariants: a chunk has one owner, us or the kernel; only chunks of ours are given out, and each change of owner is checked here, so that a
//! descriptor of a chunk that the kernel does not have is counted (`astray`) and ignored; no chunk is lost.
#![allow(unsafe_code)] // Slices of shared memory, each with the proof that the chunk is ours.

use std::{fmt, io};

use super::ring::{CONTINUED, Desc};
use super::sys::Mapping;

/// Bytes that the kernel keeps free before a received frame (`XDP_PACKET_HEADROOM`).
pub(super) const HEADROOM_BYTES: usize = 256;

/// Owner of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Us,
    Kernel,
}

/// A received chunk, ours until it is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    chunk: u32,
    at: usize,
    bytes: usize,
}

/// A transmit slot of ours.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slot(u32);

/// How the memory is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) chunk_bytes: usize,
    pub(super) receive_chunks: u32,
    pub(super) slots: u32,
    pub(super) chunks_per_slot: u32,
}

impl Layout {
    pub(super) fn bytes(&self) -> usize {
        let chunks = self.receive_chunks + self.slots * self.chunks_per_slot;
        chunks as usize * self.chunk_bytes
    }
}

/// Number of chunks of each owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Accounts {
    /// Receive chunks that the kernel has.
    pub(super) receive_at_kernel: u32,
    /// Receive chunks of ours; between two calls of the link none.
    pub(super) receive_ours: u32,
    /// Transmit slots that are free.
    pub(super) slots_free: u32,
    /// Transmit slots with chunks that the kernel has.
    pub(super) slots_at_kernel: u32,
}

/// The memory and its allocator.
pub(super) struct Umem {
    memory: Mapping,
    layout: Layout,
    owners: Box<[Owner]>,
    free_slots: Vec<u32>,
    /// For each slot, its chunks that the kernel has.
    slot_chunks_out: Box<[u8]>,
    /// For each slot that the kernel has, the frames of ours in its Ethernet frame.
    slot_frames: Box<[u32]>,
    /// Impossible descriptors from the kernel.
    astray: u64,
}

impl Umem {
    pub(super) fn new(layout: Layout) -> io::Result<Self> {
        let chunks = layout.receive_chunks + layout.slots * layout.chunks_per_slot;
        Ok(Self {
            memory: Mapping::anonymous(layout.bytes())?,
            layout,
            owners: vec![Owner::Us; chunks as usize].into(),
            free_slots: (0..layout.slots).rev().collect(),
            slot_chunks_out: vec![0; layout.slots as usize].into(),
            slot_frames: vec![0; layout.slots as usize].into(),
            astray: 0,
        })
    }

    pub(super) fn addr(&self) -> u64 {
        self.memory.addr()
    }

    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    pub(super) fn astray(&self) -> u64 {
        self.astray
    }

    /// Gives a receive chunk of ours to the kernel; returns the entry for the fill ring.
    #[inline]
    pub(super) fn give(&mut self, chunk: u32) -> u64 {
        assert!(
            chunk < self.layout.receive_chunks,
            "not a chunk to receive into"
        );
        let owner = &mut self.owners[chunk as usize];
        assert_eq!(*owner, Owner::Us, "a chunk is given once");
        *owner = Owner::Kernel;
        u64::from(chunk) * self.layout.chunk_bytes as u64
    }

    /// Returns a received chunk to the kernel.
    #[inline]
    pub(super) fn give_back(&mut self, received: Received) -> u64 {
        self.give(received.chunk)
    }

    /// Takes the chunk of a receive descriptor. `None`: the descriptor is impossible.
    #[inline]
    pub(super) fn take(&mut self, desc: Desc) -> Option<Received> {
        let chunk_bytes = self.layout.chunk_bytes as u64;
        let chunk = desc.addr / chunk_bytes;
        let inside = desc.addr % chunk_bytes + u64::from(desc.bytes) <= chunk_bytes;
        if chunk >= u64::from(self.layout.receive_chunks)
            || !inside
            || self.owners[chunk as usize] != Owner::Kernel
        {
            self.astray += 1;
            return None;
        }
        self.owners[chunk as usize] = Owner::Us;
        Some(Received {
            chunk: chunk as u32,
            at: desc.addr as usize,
            bytes: desc.bytes as usize,
        })
    }

    /// The content of a received chunk.
    #[inline]
    pub(super) fn received(&self, received: Received) -> &[u8] {
        assert_eq!(self.owners[received.chunk as usize], Owner::Us);
        // SAFETY: the bytes lie in one chunk (checked by `take`) that is ours, and stays so while `self` is borrowed: to pass it
        // on takes `&mut self`. The kernel does not write to chunks that were not given to it.
        unsafe { self.memory.slice(received.at, received.bytes) }
    }

    /// Plays the kernel: writes into a chunk.
    #[cfg(test)]
    pub(super) fn receive_for_test(&mut self, addr: u64, bytes: &[u8]) {
        let chunk = (addr / self.layout.chunk_bytes as u64) as usize;
        assert_eq!(self.owners[chunk], Owner::Kernel);
        // SAFETY: the chunk is the kernel's, which the test plays: nothing of ours refers to it.
        unsafe { self.memory.slice_mut(addr as usize, bytes.len()) }.copy_from_slice(bytes);
    }

    /// Takes a free slot.
    #[inline]
    pub(super) fn take_slot(&mut self) -> Option<Slot> {
        self.free_slots.pop().map(Slot)
    }

    /// How many slots are free.
    #[inline]
    pub(super) fn free_slots(&self) -> usize {
        self.free_slots.len()
    }

    /// The slot's memory.
    #[inline]
    pub(super) fn slot_mut(&mut self, slot: &Slot) -> &mut [u8] {
        let bytes = self.layout.chunks_per_slot as usize * self.layout.chunk_bytes;
        let first = self.first_chunk(slot.0);
        // SAFETY: a `Slot` exists only once, between `take_slot` and `send`, and a slot becomes free only when the
        // kernel has returned its last chunk: all its chunks are ours while `self` is borrowed.
        unsafe {
            self.memory
                .slice_mut(first as usize * self.layout.chunk_bytes, bytes)
        }
    }

    fn first_chunk(&self, slot: u32) -> u32 {
        self.layout.receive_chunks + slot * self.layout.chunks_per_slot
    }

    /// Gives the first `bytes` of a slot, which contain `frames` of ours, to the kernel; calls `push` with each descriptor, in order.
    #[inline]
    pub(super) fn send(
        &mut self,
        slot: Slot,
        bytes: usize,
        frames: u32,
        mut push: impl FnMut(Desc),
    ) {
        let chunk_bytes = self.layout.chunk_bytes;
        let count = bytes.div_ceil(chunk_bytes);
        assert!(
            (1..=self.layout.chunks_per_slot as usize).contains(&count),
            "{bytes} bytes do not fit the slot"
        );
        let first = self.first_chunk(slot.0);
        self.slot_chunks_out[slot.0 as usize] = count as u8;
        self.slot_frames[slot.0 as usize] = frames;
        for index in 0..count {
            let chunk = first as usize + index;
            self.owners[chunk] = Owner::Kernel;
            push(Desc {
                addr: (chunk * chunk_bytes) as u64,
                bytes: (bytes - index * chunk_bytes).min(chunk_bytes) as u32,
                options: if index + 1 < count { CONTINUED } else { 0 },
            });
        }
    }

    /// Takes back the chunk at `addr`, which the kernel sent; the slot is free when all its chunks came back. Returns how many frames of ours then
    /// came back with it.
    #[inline]
    pub(super) fn completed(&mut self, addr: u64) -> Option<u32> {
        let chunk = addr / self.layout.chunk_bytes as u64;
        let transmit = u64::from(self.layout.receive_chunks)..self.owners.len() as u64;
        if !transmit.contains(&chunk) || self.owners[chunk as usize] != Owner::Kernel {
            self.astray += 1;
            return None;
        }
        self.owners[chunk as usize] = Owner::Us;
        let slot = (chunk as u32 - self.layout.receive_chunks) / self.layout.chunks_per_slot;
        let out = &mut self.slot_chunks_out[slot as usize];
        *out -= 1;
        if *out > 0 {
            return None;
        }
        self.free_slots.push(slot);
        Some(self.slot_frames[slot as usize])
    }

    /// Counts the chunks of each owner, from the chunks themselves.
    pub(super) fn accounts(&self) -> Accounts {
        let receive = &self.owners[..self.layout.receive_chunks as usize];
        let receive_ours = receive.iter().filter(|owner| **owner == Owner::Us).count() as u32;
        Accounts {
            receive_at_kernel: self.layout.receive_chunks - receive_ours,
            receive_ours,
            slots_free: self.free_slots.len() as u32,
            slots_at_kernel: self.slot_chunks_out.iter().filter(|out| **out > 0).count() as u32,
        }
    }
}

impl fmt::Debug for Umem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Umem")
            .field("layout", &self.layout)
            .field("accounts", &self.accounts())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeSet, VecDeque};

    const LAYOUT: Layout = Layout {
        chunk_bytes: 2048,
        receive_chunks: 16,
        slots: 5,
        chunks_per_slot: 3,
    };

    fn umem() -> Umem {
        Umem::new(LAYOUT).expect("memory")
    }

    /// No chunk is lost or used twice in any order of traffic, and a slot is free exactly when all its chunks came back.
    #[test]
    fn chunks_are_conserved() {
        let mut umem = umem();
        let mut random = fastrand::Rng::with_seed(1);
        // The kernel's side: chunks to fill, and descriptors to send.
        let mut kernel_fill: VecDeque<u64> = (0..16).map(|chunk| umem.give(chunk)).collect();
        let mut kernel_send: Vec<u64> = Vec::new();
        let mut slots_held: Vec<Slot> = Vec::new();
        let mut ours: Vec<Received> = Vec::new();
        for step in 0..50_000u64 {
            match random.u8(..5) {
                0 if !kernel_fill.is_empty() => {
                    let addr = kernel_fill.pop_front().expect("not empty");
                    let desc = Desc {
                        addr: addr + HEADROOM_BYTES as u64,
                        bytes: random.u32(..1700),
                        options: 0,
                    };
                    let received = umem.take(desc).expect("a chunk of the kernel's");
                    assert_eq!(umem.received(received).len(), desc.bytes as usize);
                    assert!(!ours.contains(&received));
                    ours.push(received);
                }
                1 if !ours.is_empty() => {
                    let received = ours.swap_remove(random.usize(..ours.len()));
                    kernel_fill.push_back(umem.give_back(received));
                }
                2 => match umem.take_slot() {
                    Some(slot) => {
                        assert!(!slots_held.contains(&slot));
                        umem.slot_mut(&slot).fill(step as u8);
                        slots_held.push(slot);
                    }
                    None => assert_eq!(umem.accounts().slots_free, 0),
                },
                3 if !slots_held.is_empty() => {
                    let slot = slots_held.swap_remove(random.usize(..slots_held.len()));
                    let bytes = random.usize(1..=3 * 2048);
                    let mut total = 0;
                    let mut last = CONTINUED;
                    umem.send(slot, bytes, 1 + bytes as u32 % 9, |desc| {
                        assert_eq!(last, CONTINUED, "only the last ends the frame");
                        last = desc.options;
                        total += desc.bytes as usize;
                        kernel_send.push(desc.addr);
                    });
                    assert_eq!((total, last), (bytes, 0));
                }
                _ if !kernel_send.is_empty() => {
                    let addr = kernel_send.swap_remove(random.usize(..kernel_send.len()));
                    umem.completed(addr);
                }
                _ => {}
            }
            let accounts = umem.accounts();
            assert_eq!(accounts.receive_at_kernel as usize, kernel_fill.len());
            assert_eq!(accounts.receive_ours as usize, ours.len());
            let sending: BTreeSet<u64> = kernel_send
                .iter()
                .map(|addr| (addr / 2048 - 16) / 3)
                .collect();
            assert_eq!(accounts.slots_at_kernel as usize, sending.len());
            assert_eq!(
                accounts.slots_free as usize + sending.len() + slots_held.len(),
                5
            );
        }
        assert_eq!(umem.astray(), 0);
    }

    /// Impossible descriptors are counted and have no effect.
    #[test]
    fn senseless_descriptors_are_ignored() {
        let mut umem = umem();
        let given = umem.give(3);
        let before = umem.accounts();
        let desc = |addr, bytes| Desc {
            addr,
            bytes,
            options: 0,
        };
        for wrong in [
            desc(0, 10),
            desc(given + 2000, 100),
            desc(given, u32::MAX),
            desc(16 * 2048, 10),
            desc(u64::MAX, 10),
            desc(1 << 40, 0),
        ] {
            assert_eq!(umem.take(wrong), None, "{wrong:?}");
        }
        for wrong in [0, given, 16 * 2048, u64::MAX, 31 * 2048] {
            assert_eq!(umem.completed(wrong), None);
        }
        assert_eq!(umem.astray(), 11);
        assert_eq!(umem.accounts(), before);
    }

    /// The bytes written into a slot lie where its descriptors point.
    #[test]
    fn descriptors_point_at_the_slot() {
        let mut umem = umem();
        let slot = umem.take_slot().expect("free");
        for (at, byte) in umem.slot_mut(&slot).iter_mut().enumerate() {
            *byte = (at / 7) as u8;
        }
        let base = umem.slot_mut(&slot).as_ptr() as u64 - umem.addr();
        let mut descs = Vec::new();
        umem.send(slot, 5000, 7, |desc| descs.push(desc));
        let parts: Vec<_> = descs
            .iter()
            .map(|desc| (desc.addr - base, desc.bytes))
            .collect();
        assert_eq!(parts, [(0, 2048), (2048, 2048), (4096, 904)]);
        // The slot's frames come back with the last of its chunks.
        let back = descs.iter().map(|desc| umem.completed(desc.addr));
        assert_eq!(back.collect::<Vec<_>>(), [None, None, Some(7)]);
    }
}
