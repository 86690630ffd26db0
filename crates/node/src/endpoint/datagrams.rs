//! Datagrams: best-effort messages, to one peer or to all.

use std::time::Duration;

use tsumuji_link::Link;
use tsumuji_proto::{Channel, Datagram, Destination};

use super::Endpoint;
use crate::channel::ReceivedDatagram;
use crate::error::{RecvError, SendError};

/// The deadline of a datagram that leaves now or not at all: for values that are soon sent anew, or asked for again.
pub const NOW_OR_NEVER: Option<Duration> = Some(Duration::ZERO);

impl<L: Link> Endpoint<L> {
    /// Sends a datagram to one peer or to all: best effort, never waited for, never sent again when it is lost.
    ///
    /// The program states `channel_id`, `key`, `epoch`, `lap` and `payload`, the rest being [`Datagram::EMPTY`]: the engine says whose it is.
    /// Within a [`batch`](Endpoint::batch) it leaves with what else the batch holds, else at once. Where the link has no room for it now
    /// (or the receiver grants none, see below, or was not met yet), it waits: until a newer one of its channel and key is sent, which takes its place, or until
    /// `deadline` from now has passed, and then it is dropped. With [`NOW_OR_NEVER`] it leaves now or not at all. What was dropped is counted
    /// in [`Flow`](crate::Flow).
    ///
    /// Up to [`datagram_capacity_bytes`](Endpoint::datagram_capacity_bytes) a datagram is one frame, and one frame is enough for all peers
    /// where the link [broadcasts](Endpoint::broadcasts); it uses no credit. A longer one goes to each peer by itself, in several frames that
    /// the peer's window permits, before all messages; one that has begun to leave is not replaced, and is worthless if a frame of it is lost.
    ///
    /// A receiver's handler is given it; of what comes while there is none, the newest of each key waits for one, or for
    /// [`recv_datagram`](Endpoint::recv_datagram). Datagrams of one frame may come repeated or
    /// in another order than they were sent: `epoch` and `lap` say which is newer.
    ///
    /// Returns for how many peers it neither left nor waits.
    pub fn datagram(
        &mut self,
        to: Destination,
        datagram: Datagram<'_>,
        deadline: Option<Duration>,
    ) -> Result<usize, SendError> {
        let core = &mut *self.core.write();
        let channel_id = datagram.channel_id;
        if channel_id >= Channel::LIBRARY_IDS && !core.channels.is_open(channel_id) {
            return Err(SendError::ReservedChannel { channel_id });
        }
        if let Destination::Peer(peer) = to {
            core.known(peer)?;
        }
        core.drive.datagram(to, datagram, deadline)
    }

    /// The next datagram of an opened channel (`None`: of those that nobody opened): of each source, channel and key only the newest is kept.
    /// `None`: none came within `timeout`, or a [`Waker`](crate::Waker) was used.
    pub fn recv_datagram(
        &mut self,
        channel_id: Option<u16>,
        timeout: Duration,
    ) -> Result<Option<ReceivedDatagram>, RecvError> {
        let taken = self.recv_datagram_up_to(channel_id, usize::MAX, timeout)?;
        Ok(taken.and_then(Result::ok))
    }

    /// As [`recv_datagram`](Endpoint::recv_datagram), for a program that has a place for so many bytes: `Err` is the length of the next one,
    /// which is longer, and stays.
    pub fn recv_datagram_up_to(
        &mut self,
        channel_id: Option<u16>,
        bytes: usize,
        timeout: Duration,
    ) -> Result<Option<Result<ReceivedDatagram, usize>>, RecvError> {
        let core = &mut *self.core.write();
        core.opened(channel_id)?;
        if core.channels.next_datagram(channel_id).is_none() {
            core.await_or_wake(timeout, |channels| {
                channels.next_datagram(channel_id).is_some()
            })?;
        }
        let next = core.channels.next_datagram(channel_id);
        if let Some(longer) = next.filter(|next| *next > bytes) {
            return Ok(Some(Err(longer)));
        }
        Ok(core.channels.take_datagram(channel_id).map(Ok))
    }

    /// Whether one transmit of the link reaches everyone.
    pub fn broadcasts(&self) -> bool {
        self.core.read().drive.caps().broadcast
    }

    /// Largest payload of a datagram that is one frame: on this link, and for every peer that was met so far; it may become less.
    pub fn datagram_capacity_bytes(&self) -> usize {
        self.core.read().drive.engine.datagram_capacity_bytes()
    }
}
