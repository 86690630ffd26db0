//! Datagrams of the program: given to the link at once, past the engine's queues; without room they wait in the engine.

use std::time::Duration;

use tsumuji_link::{Frame, Link, LinkAddr, LinkError, MayHaveRings};
use tsumuji_proto::{Borrowed, Datagram, Destination, Instant, NodeId};

use super::{Drive, refused};
use crate::clock::{Clock, from_std};
use crate::error::SendError;

/// Deadline of a datagram that is sent now or dropped: for values that are soon sent anew, or asked for again.
pub const NOW_OR_NEVER: Option<Duration> = Some(Duration::ZERO);
/// Least time that a datagram of several frames has to leave: at its deadline it is dropped.
const LEAST: tsumuji_proto::Duration = tsumuji_proto::Duration::from_micros(1);

impl<L: MayHaveRings, C: Clock> Drive<L, C> {
    /// Sends a datagram, at once or with the batch; returns the number of peers for which it was dropped at once.
    pub(crate) fn datagram(
        &mut self,
        to: Destination,
        datagram: Datagram<'_>,
        deadline: Option<Duration>,
    ) -> Result<usize, SendError> {
        let is_long = datagram.payload.len() > self.engine.datagram_capacity_bytes();
        let missed = if is_long {
            let deadline = deadline.map(|after| self.refresh_now() + from_std(after).max(LEAST));
            (self.engine.submit_datagram(to, datagram, deadline)).map_err(refused)?
        } else {
            self.write_datagram(to, datagram, deadline)?
        };
        if self.cork.holds(datagram.payload.len(), false) {
            (self.gathered, self.backlog) = (true, true);
        } else if is_long || self.cork.is_in() {
            self.gathered = true;
            self.refresh_now();
            self.transmit(&Borrowed::NONE)?;
        } else {
            self.link.flush()?;
        }
        Ok(missed)
    }

    fn write_datagram(
        &mut self,
        to: Destination,
        datagram: Datagram<'_>,
        deadline: Option<Duration>,
    ) -> Result<usize, SendError> {
        match to {
            Destination::Broadcast if self.caps.broadcast => {
                if self.write_once(LinkAddr::Broadcast, to, datagram)? {
                    return Ok(0);
                }
                let peers = self.table.peers().count();
                let waits = self.await_slot(to, datagram, deadline)?;
                Ok(if waits { 0 } else { peers })
            }
            Destination::Broadcast => {
                let mut missed = 0;
                for peer in (0..self.table.nodes()).map(NodeId) {
                    if !self.table.is_peer(peer) {
                        continue;
                    }
                    missed += self.write_to(peer, datagram, deadline)?;
                }
                Ok(missed)
            }
            Destination::Peer(peer) => self.write_to(peer, datagram, deadline),
        }
    }

    fn write_to(
        &mut self,
        peer: NodeId,
        datagram: Datagram<'_>,
        deadline: Option<Duration>,
    ) -> Result<usize, SendError> {
        let to = Destination::Peer(peer);
        let Some(addr) = self.table.addr(peer) else {
            return Err(SendError::UnknownPeer { peer });
        };
        // Before hello the peer would refuse it.
        let left = self.engine.is_up(peer) && self.write_once(addr, to, datagram)?;
        Ok(usize::from(
            !left && !self.await_slot(to, datagram, deadline)?,
        ))
    }

    /// Returns `false` if there is no slot now.
    fn write_once(
        &mut self,
        addr: LinkAddr,
        to: Destination,
        datagram: Datagram<'_>,
    ) -> Result<bool, LinkError> {
        let head = self.engine.datagram_head(datagram);
        let frame = Frame {
            head: &head,
            body: datagram.payload,
        };
        let left = self.link.send_one(addr, frame)?;
        if left {
            self.engine.datagram_left(to, datagram);
        }
        Ok(left)
    }

    /// Leaves a datagram to the engine until there is a slot; `false`: its deadline does not let it wait.
    #[cold]
    fn await_slot(
        &mut self,
        to: Destination,
        datagram: Datagram<'_>,
        deadline: Option<Duration>,
    ) -> Result<bool, SendError> {
        if deadline == NOW_OR_NEVER {
            return Ok(false);
        }
        let deadline: Option<Instant> = deadline.map(|after| self.refresh_now() + from_std(after));
        (self.engine.submit_datagram(to, datagram, deadline)).map_err(refused)?;
        self.backlog = true;
        Ok(true)
    }
}
