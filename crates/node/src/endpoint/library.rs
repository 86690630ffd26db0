//! Facts of the link for libraries on top of the endpoint.

use super::Endpoint;
use crate::membership::Member;

impl Endpoint {
    /// Whether this endpoint spins before it yields its core in a wait.
    pub fn spins(&self) -> bool {
        self.core.read().drive.spins()
    }

    /// Whether more processes of `members` run on this host than it has cores.
    pub fn is_oversubscribed(&self, members: &[Member]) -> bool {
        self.membership.is_oversubscribed(members)
    }

    /// Largest message that fits one frame, in bytes; its receiver can read it in the link's buffer.
    pub fn frame_message_bytes(&self) -> usize {
        (self.core.read().drive.caps().frame_bytes).saturating_sub(tsumuji_wire::DATA_HEADER_BYTES)
    }

    /// Largest message that this node receives, in bytes.
    pub fn message_limit_bytes(&self) -> usize {
        self.core.read().drive.engine.message_limit_bytes()
    }
}
