//! Members that a node exchanges frames with: those known from the beginning, and those that join or move later.

use tsumuji_link::{LinkAddr, MayHaveRings, Rings};
use tsumuji_proto::{Pace, PeerLink};

use super::Drive;
use crate::clock::Clock;
use crate::membership::Member;
use crate::metrics::NEVER;

impl<L: MayHaveRings, C: Clock> Drive<L, C> {
    /// Begins hello with a member at this address. One that had another address before is no longer heard from there, and its session ends.
    pub(crate) fn meet_member(&mut self, member: &Member, addr: LinkAddr, pace: Pace) {
        let way = way_to(&self.link, addr, self.tuning.frame_bytes);
        let now = self.refresh_now();
        let is_known = self.table.is_peer(member.id);
        self.table.add(member.id, addr);
        if is_known {
            self.engine.move_peer(now, member.id, way);
        } else {
            self.engine.add_peer_over(now, member.id, way);
        }
        self.engine.set_pace(now, member.id, pace);
        if way.is_watched && self.liveness_at == NEVER {
            self.watch_liveness();
        }
        if let Some(publisher) = &self.publisher {
            publisher.show(member);
        }
        self.mark_pending();
    }
}

/// Properties of the way to a peer's address, with frames of `most_bytes` at most between hosts.
fn way_to(link: &impl MayHaveRings, addr: LinkAddr, most_bytes: usize) -> PeerLink {
    let caps = link.caps_to(addr);
    let rings = link.rings().filter(|_| matches!(addr, LinkAddr::Local(_)));
    let frame_bytes = match rings {
        Some(_) => caps.frame_bytes,
        None => caps.frame_bytes.min(most_bytes),
    };
    PeerLink {
        frame_bytes: u32::try_from(frame_bytes).unwrap_or(u32::MAX),
        lossless: caps.lossless,
        has_ring: rings.is_some(),
        is_watched: rings.is_some_and(|rings| rings.process_at(addr).is_some()),
    }
}
