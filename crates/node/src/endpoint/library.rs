//! What libraries between the endpoint and the program need to know of the link.

use tsumuji_link::Link;

use super::Endpoint;
use crate::membership::Member;

impl<L: Link> Endpoint<L> {
    /// Whether this endpoint, while it waits, polls without giving its core away at once.
    pub fn spins(&self) -> bool {
        self.core.read().drive.spins()
    }

    /// Whether more processes of `members` run on this host than it has cores.
    pub fn is_oversubscribed(&self, members: &[Member]) -> bool {
        self.membership.is_oversubscribed(members)
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
