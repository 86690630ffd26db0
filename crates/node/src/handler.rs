//! What a program gives to `Endpoint::poll`: functions that are called with borrowed frames, on the polling thread.

use crate::error::SendError;
use tsumuji_proto::{Body, Lane, NodeId, RemoteFlow, SendId, Share};

/// Takes what arrives. Called from `Endpoint::poll` and `poll_wait` only, in order of arrival.
pub trait Handler {
    /// A message; counted as consumed when the call returns.
    fn message(&mut self, from: NodeId, lane: Lane, body: Body<'_>);

    /// A best-effort frame.
    fn share(&mut self, share: Share<'_>) {
        let _ = share;
    }

    /// Hello was exchanged with this peer (again, after it was dead or restarted).
    fn peer_up(&mut self, peer: NodeId) {
        let _ = peer;
    }

    /// The peer died, left or restarted; so many messages to it have failed.
    fn peer_dead(&mut self, peer: NodeId, failed_messages: usize) {
        let _ = (peer, failed_messages);
    }

    /// A message sent before the peer had said how much it takes was given up; `why` names the limit.
    fn refused(&mut self, peer: NodeId, id: SendId, why: &SendError) {
        let _ = (peer, id, why);
    }

    /// A node tells of its flows, as `Endpoint::ask_flows` asked; from `next` on there are more.
    fn flows(&mut self, node: NodeId, flows: &[RemoteFlow], next: Option<NodeId>) {
        let _ = (node, flows, next);
    }

    /// A message of `send_tracked` was acknowledged whole.
    fn sent(&mut self, peer: NodeId, id: SendId) {
        let _ = (peer, id);
    }
}
