//! What libraries between the endpoint and the program need to know of the link.

use tsumuji_link::Link;

use super::{Core, Endpoint};
use crate::lock::WriteGuard;

/// The group memory of an endpoint's link, held for as long as this is: nobody else drives meanwhile.
pub struct HeldCast<'a, L: Link>(WriteGuard<'a, Core<L>>);

impl<L: Link> HeldCast<'_, L> {
    /// The memory.
    #[inline]
    pub fn get(&mut self) -> tsumuji_link::shm::Cast<'_> {
        self.0
            .drive
            .link
            .cast()
            .expect("a link that has group memory keeps it")
    }
}

impl<L: Link> Endpoint<L> {
    /// For libraries above the endpoint: memory in which one writes what a group reads, where the link has such.
    #[inline]
    pub fn cast(&mut self) -> Option<HeldCast<'_, L>> {
        let mut core = self.core.write();
        core.drive.link.cast().is_some().then_some(HeldCast(core))
    }

    /// Whether this endpoint, while it waits, polls without giving its core away at once.
    pub fn spins(&self) -> bool {
        self.core.read().drive.spins()
    }

    /// Largest message that travels in one frame, so that its receiver reads it where the link has it.
    pub fn frame_message_bytes(&self) -> usize {
        (self.core.read().drive.caps().frame_bytes).saturating_sub(tsumuji_wire::DATA_HEADER_BYTES)
    }

    /// Largest message that this node takes.
    pub fn message_limit_bytes(&self) -> usize {
        self.core.read().drive.engine.message_limit_bytes()
    }
}
