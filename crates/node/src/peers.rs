//! State of peers between polls: up or dead, losses to report, and tracked messages.
//!
//! Fed with the engine's events by `endpoint`.

use std::collections::VecDeque;

use tsumuji_proto::{CongestionKind, Event, NodeId, SendId};

use crate::error::SendError;

/// Tracked messages that failed with their peer and are remembered; older ones read as acknowledged, like unknown ones.
const FAILED_LIMIT: usize = 4096;

/// By node id.
#[derive(Debug)]
pub(crate) struct Peers {
    peers: Vec<Peer>,
    /// Sum over all peers.
    ended_sessions: u64,
    /// Some peer has a loss that was not reported yet.
    has_losses: bool,
}

#[derive(Debug, Default)]
struct Peer {
    up: bool,
    dead: bool,
    /// The peer runs this congestion control and this node another one: they do not meet.
    other: Option<CongestionKind>,
    /// Number of sessions that ended.
    ended_sessions: u64,
    /// Messages that failed with the peer and were not reported yet.
    lost_messages: usize,
    /// The newest message that was larger than the peer takes: length and limit.
    lost_large: Option<(usize, usize)>,
    /// The newest id of a tracked message.
    given: Option<SendId>,
    /// Tracked and not yet acknowledged, in order of submission.
    open: VecDeque<SendId>,
    /// Tracked, and lost when the peer died.
    failed: VecDeque<SendId>,
    /// Tracked, and larger than the peer takes: id, length, limit.
    too_large: VecDeque<(SendId, usize, usize)>,
}

impl Peers {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            peers: std::iter::repeat_with(Peer::default).take(nodes).collect(),
            ended_sessions: 0,
            has_losses: false,
        }
    }

    /// There are so many members now.
    pub(crate) fn set_nodes(&mut self, nodes: usize) {
        self.peers.resize_with(nodes, Peer::default);
    }

    /// Whether there is such a node. Ids of nodes are consecutive from 0.
    pub(crate) fn knows(&self, peer: NodeId) -> bool {
        self.get(peer).is_some()
    }

    fn get(&self, peer: NodeId) -> Option<&Peer> {
        self.peers.get(usize::from(peer.0))
    }

    pub(crate) fn is_up(&self, peer: NodeId) -> bool {
        self.get(peer).is_some_and(|peer| peer.up)
    }

    pub(crate) fn is_dead(&self, peer: NodeId) -> bool {
        self.get(peer).is_some_and(|peer| peer.dead)
    }

    /// Number of ended sessions with `peer`.
    pub(crate) fn ended_sessions(&self, peer: NodeId) -> u64 {
        self.get(peer).map_or(0, |peer| peer.ended_sessions)
    }

    /// Number of ended sessions with all peers.
    pub(crate) fn all_ended_sessions(&self) -> u64 {
        self.ended_sessions
    }

    pub(crate) fn other_congestion(&self, peer: NodeId) -> Option<CongestionKind> {
        self.get(peer)?.other
    }

    /// Whether an accepted message was lost and the program was not told yet.
    #[inline]
    pub(crate) fn has_losses(&self) -> bool {
        self.has_losses
    }

    /// Reports losses on the way to this peer, once.
    #[inline]
    pub(crate) fn tell_losses(&mut self, peer: NodeId) -> Result<(), SendError> {
        if self.has_losses {
            return self.tell_losses_to(peer);
        }
        Ok(())
    }

    #[cold]
    fn tell_losses_to(&mut self, peer: NodeId) -> Result<(), SendError> {
        let told = match self.peers.get_mut(usize::from(peer.0)) {
            Some(state) => state.tell_losses(peer),
            None => Ok(()),
        };
        self.has_losses =
            (self.peers.iter()).any(|peer| peer.lost_messages > 0 || peer.lost_large.is_some());
        told
    }

    /// Reports losses of the first peer that has any.
    pub(crate) fn tell_any_losses(&mut self) -> Result<(), SendError> {
        for peer in (0..=u16::MAX).take(self.peers.len()).map(NodeId) {
            self.tell_losses(peer)?;
        }
        Ok(())
    }

    /// Whether the peer is dead, or never to be met: no call waits for it.
    pub(crate) fn is_lost(&self, peer: NodeId) -> bool {
        self.get(peer)
            .is_some_and(|peer| peer.dead || peer.other.is_some())
    }

    pub(crate) fn reconnect(&mut self, peer: NodeId) {
        if let Some(peer) = self.peers.get_mut(usize::from(peer.0)) {
            (peer.up, peer.dead, peer.other) = (false, false, None);
        }
    }

    /// Counts accepted messages that will never arrive.
    pub(crate) fn lose(&mut self, to: NodeId, messages: usize) {
        if let Some(peer) = self.peers.get_mut(usize::from(to.0)) {
            peer.lost_messages += messages;
            self.has_losses = true;
        }
    }

    /// The program got this id of a message, which may be acknowledged by now.
    pub(crate) fn track(&mut self, peer: NodeId, id: SendId, is_open: bool) {
        if let Some(peer) = self.peers.get_mut(usize::from(peer.0)) {
            peer.given = peer.given.max(Some(id));
            if is_open {
                peer.open.push_back(id);
            }
        }
    }

    /// Whether a tracked message is acknowledged. Ids above all that were given are refused; one below that is of a message that was not tracked reads
    /// as acknowledged.
    pub(crate) fn is_sent(&self, to: NodeId, id: SendId) -> Result<bool, SendError> {
        let peer = self.get(to).ok_or(SendError::UnknownPeer { peer: to })?;
        if Some(id) > peer.given {
            return Err(SendError::NoSuchMessage { peer: to });
        }
        if peer.failed.contains(&id) {
            return Err(SendError::PeerDead { peer: to });
        }
        if let Some(&(_, size, limit)) = peer.too_large.iter().find(|large| large.0 == id) {
            let peer = to;
            return Err(SendError::TooLarge { size, limit, peer });
        }
        Ok(!peer.open.contains(&id))
    }

    pub(crate) fn note(&mut self, event: &Event) {
        let (Event::PeerUp { peer: id, .. }
        | Event::PeerDead { peer: id, .. }
        | Event::MessagesLost { peer: id, .. }
        | Event::Stalled { peer: id, .. }
        | Event::TooLarge { peer: id, .. }
        | Event::OtherCongestion { peer: id, .. }
        | Event::Sent { peer: id, .. }) = event
        else {
            return;
        };
        let Some(peer) = self.peers.get_mut(usize::from(id.0)) else {
            return;
        };
        match event {
            Event::PeerUp { .. } => (peer.up, peer.dead, peer.other) = (true, false, None),
            Event::OtherCongestion { peer: id, theirs } => {
                tracing::warn!(peer = id.0, %theirs, "runs another congestion control and is not met");
                peer.other = Some(*theirs);
            }
            Event::Stalled { peer: id, message } => {
                let what = if message.is_some() {
                    "is heard, but does not acknowledge a message that was sent again and again: do large frames reach it (MTU)?"
                } else {
                    "takes a message for delivered that did not arrive whole"
                };
                tracing::warn!(peer = id.0, "{what} The session ends.");
            }
            Event::MessagesLost { messages, .. } => {
                peer.lost_messages += messages;
                self.has_losses = true;
            }
            Event::PeerDead { .. } => {
                (peer.up, peer.dead) = (false, true);
                peer.ended_sessions += 1;
                self.ended_sessions += 1;
                peer.failed.append(&mut peer.open);
                while peer.failed.len() > FAILED_LIMIT {
                    peer.failed.pop_front(); // they are counted in `lost_messages`
                }
            }
            Event::TooLarge {
                id, size, limit, ..
            } => {
                if let Some(place) = peer.open.iter().position(|open| open == id) {
                    peer.open.remove(place);
                    peer.too_large.push_back((*id, *size, *limit));
                    while peer.too_large.len() > FAILED_LIMIT {
                        peer.too_large.pop_front();
                    }
                } else {
                    // Of several the newest is reported with its length, the others are counted.
                    peer.lost_messages += usize::from(peer.lost_large.is_some());
                    peer.lost_large = Some((*size, *limit));
                    self.has_losses = true;
                }
            }
            // Nearly always the oldest: acknowledged in the order sent.
            Event::Sent { id, .. } => {
                if let Some(place) = peer.open.iter().position(|open| open == id) {
                    peer.open.remove(place);
                }
            }
            _ => {}
        }
    }
}

impl Peer {
    fn tell_losses(&mut self, peer: NodeId) -> Result<(), SendError> {
        if let Some((size, limit)) = self.lost_large.take() {
            return Err(SendError::TooLarge { size, limit, peer });
        }
        match std::mem::take(&mut self.lost_messages) {
            0 => Ok(()),
            messages => Err(SendError::MessagesLost { peer, messages }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: NodeId = NodeId(1);

    /// A message queued before hello and larger than the peer takes is an error that names the limit.
    #[test]
    fn too_large_names_the_limit() {
        let mut peers = Peers::new(2);
        peers.track(PEER, SendId(1), true);
        peers.note(&Event::TooLarge {
            peer: PEER,
            id: SendId(1),
            size: 9,
            limit: 8,
        });
        assert!(matches!(
            peers.is_sent(PEER, SendId(1)),
            Err(SendError::TooLarge {
                size: 9,
                limit: 8,
                peer: PEER
            })
        ));
    }

    /// A tracked message is open until its event, and failed if its peer dies first; a reconnected peer starts afresh.
    #[test]
    fn tracked_messages_end_one_way_or_the_other() {
        let mut peers = Peers::new(2);
        peers.note(&Event::PeerUp {
            peer: PEER,
            incarnation: 1,
        });
        assert!(peers.is_up(PEER) && !peers.is_dead(PEER));
        peers.track(PEER, SendId(1), true);
        peers.track(PEER, SendId(2), true);
        assert!(!peers.is_sent(PEER, SendId(2)).expect("open"));
        peers.note(&Event::Sent {
            peer: PEER,
            id: SendId(2),
        });
        assert!(peers.is_sent(PEER, SendId(2)).expect("acknowledged"));
        peers.note(&Event::PeerDead {
            peer: PEER,
            failed_messages: 1,
        });
        assert!(matches!(
            peers.is_sent(PEER, SendId(1)),
            Err(SendError::PeerDead { peer: PEER })
        ));
        assert!(peers.is_sent(PEER, SendId(2)).expect("stays acknowledged"));
        peers.track(PEER, SendId(4), false);
        assert!(peers.is_sent(PEER, SendId(4)).expect("was acknowledged"));
        assert!(matches!(
            peers.is_sent(PEER, SendId(5)),
            Err(SendError::NoSuchMessage { peer: PEER })
        ));
        assert!(peers.is_dead(PEER) && !peers.is_up(PEER));
        peers.note(&Event::PeerUp {
            peer: PEER,
            incarnation: 2,
        });
        assert!(peers.is_up(PEER) && !peers.is_dead(PEER));
        peers.note(&Event::OtherCongestion {
            peer: PEER,
            theirs: CongestionKind::Suci,
        });
        assert!(peers.is_lost(PEER) && !peers.is_dead(PEER));
        peers.reconnect(PEER);
        assert!(!peers.is_lost(PEER));
        assert!(matches!(
            peers.is_sent(NodeId(9), SendId(0)),
            Err(SendError::UnknownPeer { .. })
        ));
    }
}
