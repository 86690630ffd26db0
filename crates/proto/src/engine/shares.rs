//! Best-effort frames that the program gives: queued in a small queue, or written into a link's slot at once.

use super::Engine;
use crate::config::Config;
use crate::event::Destination;
use crate::message::SubmitError;
use crate::shares::QueuedShare;
use tsumuji_wire::{MAX_PAYLOAD_BYTES, SHARE_HEADER_BYTES, Share};

impl Engine {
    /// Queues a best-effort frame; the newest wins when the small queue is full.
    pub fn submit_share(&mut self, to: Destination, share: Share<'_>) -> Result<(), SubmitError> {
        let to_peer = match to {
            Destination::Peer(peer) => peer,
            Destination::Broadcast => self.shared.config.me,
        };
        if let Destination::Peer(peer) = to
            && self.peer(peer).is_none()
        {
            return Err(SubmitError::UnknownPeer { peer });
        }
        let limit = self.share_capacity_bytes();
        let size = share.payload.len();
        if size > limit {
            let peer = to_peer;
            return Err(SubmitError::TooLarge { size, limit, peer });
        }
        let body = self.shared.pool.take(size);
        let mut body = body.ok_or(SubmitError::NoMemory { size })?;
        body.extend_from_slice(share.payload);
        self.shares.push(
            QueuedShare {
                to,
                port: share.port,
                epoch: share.epoch,
                lap: share.lap,
                start: share.start,
                payload: body,
            },
            &mut self.shared.pool,
        );
        Ok(())
    }

    /// Writes a best-effort frame straight into a link's slot: nothing is queued. `None`: the slot is too small.
    #[inline]
    pub fn write_share(&mut self, slot: &mut [u8], share: Share<'_>) -> Option<usize> {
        let Config {
            me: source,
            incarnation,
            ..
        } = self.shared.config;
        let share = Share {
            source,
            incarnation,
            ..share
        };
        let bytes = share.write(slot)?;
        self.shared.counters.sent_frames += 1;
        self.shared.counters.sent_bytes += bytes as u64;
        Some(bytes)
    }

    /// Largest payload of one best-effort frame.
    pub fn share_capacity_bytes(&self) -> usize {
        (self.shared.config.frame_bytes - SHARE_HEADER_BYTES).min(MAX_PAYLOAD_BYTES)
    }
}
