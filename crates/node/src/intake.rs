//! Where arriving messages go: to the handler that the program polls with, or to their channels.
//!
//! Made by `endpoint` for each call into `drive`.

use tsumuji_link::LinkAddr;
use tsumuji_proto::{Borrowed, Channel, Datagram, Delivery, Event, NodeId, Posted};
use tsumuji_wire::Join;

use crate::channel::{Channels, Taker, Way};
use crate::drive;
use crate::handler::Handler;
use crate::peers::Peers;

/// Where arriving messages go during one call into the driver.
pub(crate) struct Intake<'a> {
    /// `None`: everything goes to its channel.
    pub(crate) taker: Option<Taker<'a>>,
    pub(crate) channels: &'a mut Channels,
    pub(crate) peers: &'a mut Peers,
    /// The message that the engine borrows during the call.
    pub(crate) borrowed: &'a Borrowed<'a>,
}

impl drive::Intake for Intake<'_> {
    #[inline]
    fn message(&mut self, delivery: Delivery<'_>) -> bool {
        self.channels.message(&mut self.taker, delivery)
    }

    #[inline]
    fn datagram(&mut self, session: u64, datagram: Datagram<'_>) {
        self.channels.datagram(&mut self.taker, session, datagram);
    }

    fn place(&mut self, from: NodeId, channel: Channel, length_bytes: usize) -> Option<Posted> {
        self.channels.posts.place(from, channel, length_bytes)
    }

    fn asked(&mut self, from: LinkAddr, join: &Join<'_>) {
        self.channels.members.ask(from, join);
    }

    fn put_back_all(&mut self, posted: Vec<Posted>) {
        self.channels.put_back_all(posted);
    }

    fn event(&mut self, event: &Event) {
        let program: Option<&mut dyn Handler> = match &mut self.taker {
            Some((None, handler)) => Some(&mut **handler),
            _ => None,
        };
        self.channels.event(event, self.peers, program);
    }

    fn lost(&mut self, peer: NodeId, messages: usize) {
        self.peers.lose(peer, messages);
    }

    fn borrowed(&self) -> &Borrowed<'_> {
        self.borrowed
    }

    fn dropped_datagrams(&self) -> u64 {
        self.channels.dropped_datagrams
    }

    #[inline]
    fn is_pending(&self) -> bool {
        self.channels.is_pending()
    }

    fn settle(&mut self, way: &mut impl Way) -> usize {
        self.channels.settle(way, self.peers)
    }
}
