//! Where a turn's arrivals go: to the handler that the program polls with, as far as they are for it, and else to their channels.
//!
//! Made by `endpoint` for each call into `drive`.

use tsumuji_proto::{Borrowed, Channel, Datagram, Delivery, Event, NodeId, Posted};

use crate::channel::{Channels, Dropped, Way};
use crate::drive;
use crate::handler::{Handler, Nobody};
use crate::peers::Peers;

/// Whom the call brings along.
pub(crate) enum Taker<'a, H> {
    /// Who takes what comes on channels that nobody opened.
    Program(&'a mut H),
    /// Who takes what comes on that one.
    Channel(u16, &'a mut H),
}

/// What becomes of what arrives.
pub(crate) struct Intake<'a, H> {
    /// `None`: all is put by.
    pub(crate) taker: Option<Taker<'a, H>>,
    pub(crate) channels: &'a mut Channels,
    pub(crate) peers: &'a mut Peers,
    /// The message that the engine borrows meanwhile.
    pub(crate) borrowed: &'a Borrowed<'a>,
}

/// Of calls that bring nobody along.
pub(crate) type Keeping<'a> = Intake<'a, Nobody>;

impl<H: Handler> drive::Intake for Intake<'_, H> {
    #[inline]
    fn message(&mut self, delivery: Delivery<'_>) -> bool {
        match &mut self.taker {
            Some(Taker::Program(handler)) => self.channels.message_to_program(*handler, delivery),
            Some(Taker::Channel(number, handler)) => {
                self.channels.message_to(*number, *handler, delivery)
            }
            None => self.channels.message(delivery),
        }
    }

    #[inline]
    fn datagram(&mut self, session: u64, datagram: Datagram<'_>) {
        match &mut self.taker {
            Some(Taker::Program(handler)) => {
                self.channels.datagram_to(None, *handler, session, datagram)
            }
            Some(Taker::Channel(number, handler)) => {
                self.channels
                    .datagram_to(Some(*number), *handler, session, datagram);
            }
            None => self.channels.datagram(session, datagram),
        }
    }

    fn place(&mut self, from: NodeId, channel: Channel, length_bytes: usize) -> Option<Posted> {
        self.channels.posts.place(from, channel, length_bytes)
    }

    fn put_back_all(&mut self, posted: Vec<Posted>) {
        self.channels.put_back_all(posted);
    }

    fn event(&mut self, event: &Event) {
        let program = match &mut self.taker {
            Some(Taker::Program(handler)) => Some(&mut **handler),
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

    fn dropped(&self) -> Dropped {
        self.channels.dropped
    }

    #[inline]
    fn is_due(&self) -> bool {
        self.channels.is_due()
    }

    fn settle(&mut self, way: &mut impl Way) -> usize {
        self.channels.settle(way, self.peers)
    }
}
