//! Best-effort frames, to one peer or to all. Nothing of them is queued: sent now, or not at all.
//!
//! A program states port, epoch, lap, start and payload, the rest being [`Share::EMPTY`]: the engine says whose it is.

use tsumuji_link::Link;
use tsumuji_proto::{Destination, NodeId, Share};

use super::Endpoint;
use crate::error::EndpointError;

impl<L: Link> Endpoint<L> {
    /// Sends a best-effort frame to all: once on a link with broadcast, else once per peer. Nothing is queued: returns how many
    /// peers it could not be sent to now. Its payload is at most `share_capacity_bytes`; of a larger one nothing is sent.
    pub fn broadcast_share(&mut self, share: Share<'_>) -> Result<usize, EndpointError> {
        let missed = self.gather_share(share)?;
        self.push()?;
        Ok(missed)
    }

    /// Like `broadcast_share`, but frames may wait in the link for `push`: cheaper when several follow each other.
    pub fn gather_share(&mut self, share: Share<'_>) -> Result<usize, EndpointError> {
        if share.payload.len() > self.share_capacity_bytes() {
            return Ok(self.membership.members.len() - 1);
        }
        Ok(self
            .core
            .write()
            .drive
            .share(Destination::Broadcast, share)?)
    }

    /// Sends what `gather_share` gathered.
    pub fn push(&mut self) -> Result<(), EndpointError> {
        Ok(self.core.write().drive.link.flush()?)
    }

    /// Sends a best-effort frame to one peer; `false`: not now (or it is too large, or there is no such peer).
    pub fn send_share(&mut self, to: NodeId, share: Share<'_>) -> Result<bool, EndpointError> {
        let sent = self.gather_share_to(to, share)?;
        self.push()?;
        Ok(sent)
    }

    /// Like `send_share`, but the frame may wait in the link for `push`: cheaper when several follow each other.
    pub fn gather_share_to(&mut self, to: NodeId, share: Share<'_>) -> Result<bool, EndpointError> {
        if to == self.me() || share.payload.len() > self.share_capacity_bytes() {
            return Ok(false);
        }
        let missed = self
            .core
            .write()
            .drive
            .share(Destination::Peer(to), share)?;
        Ok(missed == 0)
    }

    /// Whether one transmit of the link reaches everyone.
    pub fn broadcasts(&self) -> bool {
        self.core.read().drive.caps().broadcast
    }

    /// Largest payload of one best-effort frame on this link.
    pub fn share_capacity_bytes(&self) -> usize {
        self.core.read().drive.engine.share_capacity_bytes()
    }
}
