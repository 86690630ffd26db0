//! Datagrams: best-effort messages, to one peer or to all.

use std::time::Duration;

use tsumuji_proto::{Channel, Datagram, Destination};

use super::Endpoint;
use crate::channel::ReceivedDatagram;
use crate::error::{RecvError, SendError};

impl Endpoint {
    /// Sends a datagram to one peer or to all: best effort, without waiting and without retransmission.
    ///
    /// The program sets `channel_id`, `key`, `epoch`, `lap` and `payload`, the rest is as in [`Datagram::EMPTY`]: the engine fills in the source. In
    /// a [`batch`](Endpoint::batch) it leaves with the batch, else at once. If the link has no room now, or the receiver grants no credit (see below)
    /// or was not met yet, it waits until a newer one of its channel and key replaces it, or until `deadline` from now, when it is dropped. With
    /// [`NOW_OR_NEVER`](crate::NOW_OR_NEVER) it is sent now or dropped. Dropped datagrams are counted in [`Flow`](crate::Flow).
    ///
    /// Up to [`datagram_capacity_bytes`](Endpoint::datagram_capacity_bytes) a datagram is one frame, and one frame is enough for all peers where the
    /// link [broadcasts](Endpoint::broadcasts); it uses no credit. A longer one is sent to each peer separately, in several frames within the peer's
    /// window and before all messages; once begun it is not replaced, and it is lost if one of its frames is lost.
    ///
    /// At the receiver it is given to the handler. While there is none, the newest of each key waits for a handler or for
    /// [`recv_datagram`](Endpoint::recv_datagram). Datagrams of one frame may arrive twice or in another order: `epoch` and `lap` tell which is
    /// newer.
    ///
    /// Returns the number of peers for which it was dropped at once.
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

    /// Takes the next datagram of an opened channel (`None`: of channels that nobody opened); only the newest of each source, channel and key is
    /// kept. `None`: none arrived within `timeout`, or a [`Waker`](crate::Waker) was used.
    pub fn recv_datagram(
        &mut self,
        channel_id: Option<u16>,
        timeout: Duration,
    ) -> Result<Option<ReceivedDatagram>, RecvError> {
        let taken = self.recv_datagram_up_to(channel_id, usize::MAX, timeout)?;
        Ok(taken.and_then(Result::ok))
    }

    /// As [`recv_datagram`](Endpoint::recv_datagram), for a program with a buffer of `bytes`: `Err` is the length of the next datagram, if it is
    /// longer; that datagram stays.
    pub fn recv_datagram_up_to(
        &mut self,
        channel_id: Option<u16>,
        bytes: usize,
        timeout: Duration,
    ) -> Result<Option<Result<ReceivedDatagram, usize>>, RecvError> {
        let core = &mut *self.core.write();
        core.opened(channel_id)?;
        if core.channels.next_datagram(channel_id).is_none() {
            core.await_or_wake(timeout, None, |channels| {
                channels.next_datagram(channel_id).is_some()
            })?;
        }
        let next = core.channels.next_datagram(channel_id);
        if let Some(longer) = next.filter(|next| *next > bytes) {
            return Ok(Some(Err(longer)));
        }
        Ok(core.channels.take_datagram(channel_id).map(Ok))
    }

    /// Whether one transmission of the link reaches all peers.
    pub fn broadcasts(&self) -> bool {
        self.core.read().drive.caps().broadcast
    }

    /// Largest payload of a one-frame datagram, for this link and every peer met so far; it may become less.
    pub fn datagram_capacity_bytes(&self) -> usize {
        self.core.read().drive.engine.datagram_capacity_bytes()
    }
}
