//! State of a handle: the endpoint, the messages that the program borrows, and the state of Suci's calls.

use std::ffi::c_int;
use std::time::Duration;

use tsumuji_node::{
    Channel, Endpoint, Message, NodeId, Post, ReceivedDatagram, Retained, SendError,
};

use crate::board_state::OpenBoard;
use crate::collective_state::CollectiveState;
use crate::failure::Failure;
use crate::ffi::Output;

/// Most messages that a program borrows at a time: a forgotten release is found before memory is exhausted.
const BORROWED_LIMIT: usize = 1 << 16;

/// See the head of this module.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) endpoint: Endpoint,
    pub(crate) suci: Suci,
    /// Collectives, once they were called.
    pub(crate) collective_state: Option<Box<CollectiveState>>,
    /// Boards, by the channel of each.
    pub(crate) boards: std::collections::HashMap<u16, OpenBoard>,
    /// Number of nodes when the endpoint was opened: those of TSUMUJI_WORLD.
    pub(crate) nodes_at_open: usize,
    /// The table of algorithms for collectives; `None`: as the environment says.
    pub(crate) tune: Option<std::path::PathBuf>,
    /// Policies of the program.
    pub(crate) policy: crate::api::Policy,
    /// A call panicked: the state may be inconsistent.
    pub(crate) spoiled: bool,
    /// Posted receives, by number.
    pub(crate) posts: std::collections::HashMap<u64, Post<Output>>,
    /// Borrowed messages, by number.
    borrowed: std::collections::HashMap<u64, Retained>,
    /// Number of borrows so far: no number is given twice.
    borrows: u64,
    /// Made when first asked for, and kept until the handle is closed.
    texts: std::collections::HashMap<(Text, u64), std::ffi::CString>,
    /// How often the table of members has changed: texts that were handed out stay as they are.
    editions: u64,
}

/// A text that is made once and kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Text {
    Link,
    Name(NodeId),
    Address(NodeId),
    Metrics,
}

/// State of Suci's calls.
#[derive(Debug, Default)]
pub(crate) struct Suci {
    pub(crate) ids: Ids,
    /// Receiver of the next write.
    pub(crate) destination: Option<NodeId>,
    /// Sender of the last block read.
    pub(crate) source: Option<NodeId>,
}

/// The program's ids of the members.
#[derive(Debug, Default)]
pub(crate) enum Ids {
    /// Node numbers.
    #[default]
    Plain,
    /// Ids of an address database, ascending: the index is the node's number.
    Listed(Vec<u16>),
}

impl Ids {
    /// The node with that id.
    pub(crate) fn node(&self, id: c_int) -> Result<NodeId, Failure> {
        let id_given = id;
        let id = u16::try_from(id).map_err(|_| Failure::unknown(id_given))?;
        match self {
            Self::Plain => Ok(NodeId(id)),
            Self::Listed(ids) => ids
                .binary_search(&id)
                .map(|place| NodeId(place as u16)) // at most as many as 16-bit ids
                .map_err(|_| Failure::unknown(id_given)),
        }
    }

    /// The id of that node.
    pub(crate) fn id(&self, node: NodeId) -> c_int {
        match self {
            Self::Plain => node.0.into(),
            Self::Listed(ids) => ids.get(usize::from(node.0)).map_or(-1, |id| (*id).into()),
        }
    }
}

/// Which messages a call takes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Source {
    /// `None`: channels that nobody opened.
    pub(crate) channel_id: Option<u16>,
    /// `None`: any peer.
    pub(crate) from: Option<NodeId>,
}

fn none_within(timeout: Duration) -> Failure {
    if timeout.is_zero() {
        Failure::NOT_NOW
    } else {
        Failure::TIMED_OUT
    }
}

impl Node {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self {
            nodes_at_open: endpoint.members().len(),
            endpoint,
            suci: Suci::default(),
            spoiled: false,
            posts: std::collections::HashMap::new(),
            borrowed: std::collections::HashMap::new(),
            borrows: 0,
            collective_state: None,
            boards: std::collections::HashMap::new(),
            tune: None,
            policy: crate::api::Policy::default(),
            texts: std::collections::HashMap::new(),
            editions: 0,
        }
    }

    /// Takes over changes of the table of members; returns whether there are any.
    pub(crate) fn update_members(&mut self) -> bool {
        let changed = self.endpoint.update_members();
        self.editions += u64::from(changed);
        changed
    }

    /// A peer by the number that C gave.
    pub(crate) fn peer(&self, id: c_int) -> Result<NodeId, Failure> {
        let node = u16::try_from(id)
            .map(NodeId)
            .map_err(|_| Failure::unknown(id))?;
        if usize::from(node.0) < self.endpoint.members().len() && node != self.endpoint.me() {
            Ok(node)
        } else {
            Err(Failure::unknown(id))
        }
    }

    /// A node by the number that C gave; it may be this one.
    pub(crate) fn member(&self, id: c_int) -> Result<NodeId, Failure> {
        u16::try_from(id)
            .ok()
            .filter(|id| usize::from(*id) < self.endpoint.members().len())
            .map(NodeId)
            .ok_or_else(|| Failure::unknown(id))
    }

    /// The next message of that source, if it fits `room` bytes; else it stays.
    pub(crate) fn recv_into(
        &mut self,
        source: Source,
        room: usize,
        timeout: Duration,
    ) -> Result<Message, Failure> {
        self.await_message(source, room, timeout)?;
        let message = match source {
            Source {
                channel_id: None,
                from: None,
            } => self.endpoint.try_recv()?,
            Source {
                channel_id: None,
                from: Some(from),
            } => self.endpoint.recv_from(from, Duration::ZERO)?,
            Source {
                channel_id: Some(channel_id),
                from,
            } => self.endpoint.recv_on(channel_id, from, Duration::ZERO)?,
        };
        message.ok_or_else(|| none_within(timeout))
    }

    /// The next datagram of a channel (`None`: of those that nobody opened), if it fits `room` bytes; else it stays.
    pub(crate) fn recv_datagram(
        &mut self,
        channel_id: Option<u16>,
        room: usize,
        timeout: Duration,
    ) -> Result<ReceivedDatagram, Failure> {
        let next = (self.endpoint).recv_datagram_up_to(channel_id, room, timeout)?;
        let next = next.ok_or_else(|| none_within(timeout))?;
        next.map_err(|bytes| Failure::too_large(bytes, room))
    }

    fn await_message(
        &mut self,
        Source { channel_id, from }: Source,
        room: usize,
        timeout: Duration,
    ) -> Result<(), Failure> {
        let bytes = self.endpoint.ready_on(channel_id, from, timeout)?;
        let bytes = bytes.ok_or_else(|| none_within(timeout))?;
        if bytes > room {
            return Err(Failure::too_large(bytes, room));
        }
        Ok(())
    }

    /// Borrows the next message, which is retained here until it is released; returns its name.
    pub(crate) fn borrow(
        &mut self,
        source: Source,
        timeout: Duration,
    ) -> Result<(u64, &Retained), Failure> {
        if self.borrowed.len() >= BORROWED_LIMIT {
            return Err(Failure::invalid(format!(
                "{BORROWED_LIMIT} messages are borrowed; release some"
            )));
        }
        let retained = (self.endpoint).recv_retained(source.channel_id, source.from, timeout)?;
        let message = retained.ok_or_else(|| none_within(timeout))?;
        self.borrows += 1;
        let retained = self.borrowed.entry(self.borrows).or_insert(message);
        Ok((self.borrows, retained))
    }

    /// Releases a borrowed message.
    pub(crate) fn release(&mut self, borrow: u64) -> Result<(), Failure> {
        let message = self.borrowed.remove(&borrow).ok_or_else(|| {
            Failure::invalid("this message is not borrowed; was it released before?")
        })?;
        self.endpoint.release(message);
        Ok(())
    }

    /// One poll, also for collectives; returns how much was done.
    pub(crate) fn progress(&mut self) -> Result<usize, Failure> {
        if self.collective_state.is_some() {
            return CollectiveState::carry_on(self);
        }
        Ok(self.endpoint.progress()?)
    }

    /// A text as a C string, made when first asked for; `None`: there is none.
    pub(crate) fn text(&mut self, text: Text) -> Option<&std::ffi::CStr> {
        use std::collections::hash_map::Entry;
        let made = match self.texts.entry((text, self.editions)) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(place) => {
                let endpoint = &self.endpoint;
                let told = match text {
                    Text::Link => endpoint.link_name().to_owned(),
                    Text::Name(node) => endpoint.name_of(node).to_owned(),
                    Text::Address(node) => {
                        let members = endpoint.members();
                        members
                            .iter()
                            .find(|member| member.id == node)?
                            .addr
                            .to_string()
                    }
                    Text::Metrics => endpoint.metrics_addr()?.to_string(),
                };
                place.insert(std::ffi::CString::new(told.replace('\0', " ")).unwrap_or_default())
            }
        };
        Some(made)
    }

    /// Sends a block to Suci's destination, on one ordered channel, so that blocks arrive in the order written.
    pub(crate) fn write(&mut self, block: &[u8], may_wait: bool) -> Result<(), Failure> {
        let to = self.suci.destination.ok_or_else(|| {
            Failure::invalid("no destination is chosen; call datagram_destination")
        })?;
        if block.is_empty() {
            return Err(Failure::invalid(
                "an empty block cannot be written: datagram_ready says 0 when there is none",
            ));
        }
        let sent = if may_wait {
            self.endpoint.send(to, SUCI_CHANNEL, block)
        } else {
            self.endpoint.try_send(to, SUCI_CHANNEL, block)
        };
        self.again_after_death(to, sent)
    }

    /// Passes an outcome on; if the peer is dead, tries it again for the next call.
    pub(crate) fn again_after_death<T>(
        &mut self,
        to: NodeId,
        outcome: Result<T, SendError>,
    ) -> Result<T, Failure> {
        if let Err(SendError::PeerDead { .. } | SendError::MessagesLost { .. }) = outcome {
            self.endpoint.reconnect(to)?;
        }
        Ok(outcome?)
    }
}

/// Channel of Suci's blocks.
pub(crate) const SUCI_CHANNEL: Channel = Channel::ordered(0);

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids of a database map to nodes in order, both ways; others are unknown.
    #[test]
    fn ids_stand_for_nodes() {
        let ids = Ids::Listed(vec![3, 10, 400]);
        assert_eq!(ids.node(10).expect("known"), NodeId(1));
        assert_eq!(ids.id(NodeId(2)), 400);
        for unknown in [-1, 0, 4, 70_000] {
            assert!(ids.node(unknown).is_err(), "{unknown}");
        }
        assert_eq!(ids.id(NodeId(3)), -1);
        assert_eq!(Ids::Plain.node(7).expect("plain"), NodeId(7));
    }
}
