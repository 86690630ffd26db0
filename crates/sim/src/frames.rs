//! Frames in flight: their bytes, shared by the copies of a broadcast, in buffers that are used again.

/// Identifies a frame in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameId(u32);

#[derive(Debug, Default)]
struct Slot {
    bytes: Vec<u8>,
    owners: u32,
}

/// All frames in flight.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Frames {
    /// A frame of `bytes`, with one owner.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> FrameId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.bytes.clear();
        slot.bytes.extend_from_slice(bytes);
        slot.owners = 1;
        FrameId(index)
    }

    /// Adds an owner, which must `drop` the frame too.
    pub(crate) fn share(&mut self, frame: FrameId) -> FrameId {
        self.slots[frame.0 as usize].owners += 1;
        frame
    }

    pub(crate) fn bytes(&self, frame: FrameId) -> &[u8] {
        &self.slots[frame.0 as usize].bytes
    }

    /// Removes an owner.
    pub(crate) fn drop(&mut self, frame: FrameId) {
        let slot = &mut self.slots[frame.0 as usize];
        slot.owners -= 1;
        if slot.owners == 0 {
            self.free.push(frame.0);
        }
    }

    /// Number of frames in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer is free when its last owner has dropped it, and is used again.
    #[test]
    fn buffers_return_with_the_last_owner() {
        let mut frames = Frames::default();
        let first = frames.put(b"first");
        let copy = frames.share(first);
        frames.drop(first);
        assert_eq!(frames.bytes(copy), b"first");
        frames.drop(copy);
        assert_eq!(frames.in_flight(), 0);
        assert_eq!(frames.put(b"second"), first);
        assert_eq!(frames.slots.len(), 1);
    }
}
