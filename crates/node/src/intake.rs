//! Where a turn's arrivals go: straight to the program's handler, or into the inbox. Peers' state is noted either way, and what
//! is for a library above the endpoint is set aside.
//!
//! Made by `endpoint` for each call into `drive`.

use tsumuji_proto::{Delivery, Event, Loan, Share};

use crate::aside::{ASIDE_CHANNEL, ASIDE_PORT, Shelf};
use crate::drive::Intake;
use crate::handler::Handler;
use crate::inbox::{Inbox, notify};
use crate::peers::Peers;

/// Intake of `poll`: straight to the handler.
pub(crate) struct ToHandler<'a, H> {
    pub(crate) handler: &'a mut H,
    pub(crate) shelf: &'a mut Shelf,
    pub(crate) peers: &'a mut Peers,
}

impl<H: Handler> Intake for ToHandler<'_, H> {
    #[inline]
    fn message(&mut self, delivery: Delivery<'_>) -> bool {
        if delivery.lane.channel() == ASIDE_CHANNEL {
            self.shelf.keep(delivery);
            return false;
        }
        self.handler
            .message(delivery.from, delivery.lane, delivery.body);
        true
    }

    #[inline]
    fn share(&mut self, life: u64, share: Share<'_>) {
        if share.port == ASIDE_PORT {
            self.shelf.keep_share(life, &share);
        } else {
            self.handler.share(share);
        }
    }

    fn event(&mut self, event: &Event) {
        self.peers.note(event);
        notify(self.handler, event);
    }
}

/// Intake of calls without a handler: into the inbox.
pub(crate) struct Kept<'a> {
    pub(crate) inbox: &'a mut Inbox,
    pub(crate) shelf: &'a mut Shelf,
    pub(crate) peers: &'a mut Peers,
    /// The message that is lent to the engine meanwhile.
    pub(crate) lent: &'a Loan<'a>,
}

impl Intake for Kept<'_> {
    #[inline]
    fn message(&mut self, delivery: Delivery<'_>) -> bool {
        if delivery.lane.channel() == ASIDE_CHANNEL {
            self.shelf.keep(delivery);
            return false;
        }
        self.inbox.message(delivery)
    }

    fn share(&mut self, life: u64, share: Share<'_>) {
        if share.port == ASIDE_PORT {
            self.shelf.keep_share(life, &share);
        } else {
            self.inbox.share(life, share);
        }
    }

    fn event(&mut self, event: &Event) {
        self.peers.note(event);
        if !self.peers.takes(event) {
            self.inbox.event(event);
        }
    }

    fn lent(&self) -> &Loan<'_> {
        self.lent
    }

    fn dropped_shares(&self) -> u64 {
        self.inbox.dropped_shares
    }
}
