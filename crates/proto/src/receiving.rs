//! Receiving half of congestion control: how much each peer may send to this node, and what it is told of that.
//!
//! An engine has one [`Receiving`], and each `Peer` an [`Account`]: both of `credit` (R-20 … R-31) or both of `suci` (R-70 … R-78), fixed when the
//! engine is made, so that they cost a branch only. `engine::credit` and `engine::suci` tell them of each data frame.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use crate::config::Config;
use crate::congestion::Congestion;
use crate::counters::{Counters, Drop};
use crate::credit::{Credit, Grant};
use crate::memory::Memory;
use crate::peer::Peer;
use crate::peer::receive::Receive;
use crate::policy::FlowPolicy;
use crate::rules::Rules;
use crate::suci::{Inbound, Suci};
use crate::time::{Duration, Instant};
use tsumuji_wire::Permit;

#[derive(Debug)]
pub(crate) enum Receiving {
    Credit(Credit),
    Suci(Suci),
}

/// State of one peer. Only `credit` writes a [`Grant`], only `suci` an [`Inbound`].
#[derive(Debug)]
pub(crate) enum Account {
    Credit(Grant),
    Suci(Box<Inbound>),
}

/// Fields of a data frame besides its data: flags, and acknowledgement and credit for the other direction.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    pub(crate) flags: u8,
    pub(crate) ack: u32,
    pub(crate) credit: u32,
    /// How long the acknowledgement was held back.
    pub(crate) delay: Duration,
}

/// All peers, to visit more than one.
pub(crate) struct Members<'a> {
    pub(crate) peers: &'a mut [Option<Box<Peer>>],
    /// The engine's queue of peers with something to write.
    pub(crate) ready: &'a mut VecDeque<u16>,
    pub(crate) memory: &'a Memory,
    pub(crate) counters: &'a mut Counters,
}

impl Members<'_> {
    pub(crate) fn peer(&mut self, id: u16) -> Option<&mut Peer> {
        self.peers.get_mut(usize::from(id))?.as_deref_mut()
    }

    /// Queues the peer if a pending acknowledgement or grant is to be sent to it.
    pub(crate) fn tell(&mut self, id: u16) {
        if let Some(peer) = self.peers[usize::from(id)].as_deref_mut()
            && (peer.receive.ack_now || peer.receive.grant_pending)
            && !peer.queued
        {
            peer.queued = true;
            self.ready.push_back(id);
        }
    }

    /// Calls `visit` for each peer that is up, and queues it if it is to be told something.
    pub(crate) fn each_up(&mut self, mut visit: impl FnMut(&mut Peer)) {
        for id in 0..self.peers.len() {
            if let Some(peer) = self.peers[id].as_deref_mut()
                && peer.is_up()
            {
                visit(peer);
                self.tell(id as u16);
            }
        }
    }
}

impl Receiving {
    pub(crate) fn new(config: &Config) -> Self {
        match config.congestion {
            Congestion::Credit => Self::Credit(Credit::of(config)),
            Congestion::Suci { .. } => Self::Suci(Suci::of(config)),
        }
    }

    pub(crate) fn rules(&self) -> &Rules {
        match self {
            Self::Credit(credit) => &credit.rules,
            Self::Suci(suci) => &suci.rules,
        }
    }

    pub(crate) fn set_policy(&mut self, policy: Option<Box<dyn FlowPolicy>>) {
        match self {
            Self::Credit(credit) => credit.rules.set_policy(policy),
            Self::Suci(suci) => suci.rules.set_policy(policy),
        }
    }

    pub(crate) fn set_window(&mut self, frames: u64) {
        match self {
            Self::Credit(credit) => credit.set_window(frames),
            Self::Suci(suci) => suci.rules.set_window(frames),
        }
    }

    pub(crate) fn set_unscheduled(&mut self, frames: u64) {
        match self {
            Self::Credit(credit) => credit.set_unscheduled(frames),
            Self::Suci(_) => {}
        }
    }

    /// Adds a peer of which nothing is known.
    pub(crate) fn add_peer(&mut self) -> Account {
        match self {
            Self::Credit(credit) => {
                credit.add_peer();
                Account::Credit(Grant::new())
            }
            Self::Suci(suci) => {
                suci.rules.add_peer();
                Account::Suci(Box::new(suci.inbound()))
            }
        }
    }

    /// Lowers promises to peers, after one was added.
    pub(crate) fn restate(&mut self, peers: &mut [Option<Box<Peer>>]) {
        let Self::Credit(credit) = self else {
            return; // under `suci` nothing is promised
        };
        if credit.claimed() > 0 {
            for peer in peers.iter_mut().flatten() {
                credit.restate(peer.account.grant(), peer.session.is_agreeing());
            }
        }
    }

    /// The credit or window that hello and welcome state, with which a session begins.
    pub(crate) fn promise(&mut self, account: &mut Account) -> u64 {
        match self {
            Self::Credit(credit) => credit.promise(account.grant()),
            Self::Suci(suci) => suci.usual_window().min(account.limit()),
        }
    }

    /// Begins a session.
    pub(crate) fn begin(&mut self, peer: &mut Peer) {
        match self {
            Self::Credit(credit) => {
                let grant = peer.account.grant();
                credit.begin(grant);
                peer.receive.set_window(grant.window());
            }
            Self::Suci(_) => {} // `end` has reset it
        }
    }

    /// Ends the session, if there is one.
    pub(crate) fn end(&mut self, now: Instant, peer: &mut Peer) {
        let expected = peer.receive.arrivals.base();
        match self {
            Self::Credit(credit) => credit.end(now, peer.id.0, peer.account.grant()),
            Self::Suci(suci) => suci.reset(peer.id.0, peer.account.inbound_mut(), expected),
        }
    }

    /// What an acknowledgement that leaves now states: the number below which the peer may send, and flags.
    pub(crate) fn state(&mut self, peer: &mut Peer, memory: &Memory) -> (u64, u8) {
        match self {
            Self::Credit(_) => peer.account.grant().state(&mut peer.receive),
            Self::Suci(suci) => suci.state(peer, memory),
        }
    }

    /// Takes an ask for permission to send again. `share_out` must follow.
    pub(crate) fn on_ask(
        &mut self,
        now: Instant,
        peer: &mut Peer,
        ask: &Permit,
    ) -> Result<(), Drop> {
        match self {
            Self::Credit(_) => Err(Drop::Congestion),
            Self::Suci(suci) => suci.on_asked(now, peer, ask),
        }
    }

    /// Grants peers that asked what there is room for.
    pub(crate) fn share_out(&mut self, members: Members<'_>) {
        if let Self::Suci(suci) = self {
            suci.share_out(members);
        }
    }

    /// Whether a message of a peer may begin whose other messages take more than is free.
    #[cold]
    pub(crate) fn is_fair(&self, used_bytes: usize) -> bool {
        match self {
            Self::Credit(credit) => credit.is_fair(used_bytes),
            Self::Suci(_) => true, // it grants round robin
        }
    }

    /// Some peer waits for credit or memory: `feed` is to be called when there is more.
    #[inline]
    pub(crate) fn is_hungry(&self) -> bool {
        match self {
            Self::Credit(credit) => credit.hungry,
            Self::Suci(suci) => suci.hungry,
        }
    }

    /// Grants credit to peers that wait for it, after credit or memory came free.
    #[cold]
    pub(crate) fn feed(&mut self, members: Members<'_>) {
        match self {
            Self::Credit(credit) => credit.feed(members),
            Self::Suci(suci) => suci.feed(members),
        }
    }

    /// Decides the credit of all peers anew, after a window or the policy has changed. `feed` may have to follow.
    #[cold]
    pub(crate) fn regrant(&mut self, members: Members<'_>) {
        match self {
            Self::Credit(credit) => credit.regrant(members),
            Self::Suci(suci) => suci.regrant(members),
        }
    }

    /// Frames that all peers may still send here, as granted or promised.
    pub(crate) fn claimed(&self) -> u64 {
        match self {
            Self::Credit(credit) => credit.claimed(),
            Self::Suci(suci) => suci.outstanding(),
        }
    }
}

impl Account {
    #[inline(always)] // on the path of every frame
    pub(crate) fn grant(&mut self) -> &mut Grant {
        match self {
            Self::Credit(grant) => grant,
            Self::Suci(_) => mixed(),
        }
    }

    pub(crate) fn inbound(&self) -> &Inbound {
        match self {
            Self::Credit(_) => mixed(),
            Self::Suci(inbound) => inbound,
        }
    }

    pub(crate) fn inbound_mut(&mut self) -> &mut Inbound {
        match self {
            Self::Credit(_) => mixed(),
            Self::Suci(inbound) => inbound,
        }
    }

    /// Limits the frames that the peer is granted ahead, in later sessions, too.
    pub(crate) fn set_limit(&mut self, frames: u64) {
        match self {
            Self::Credit(grant) => grant.set_limit(frames),
            Self::Suci(inbound) => inbound.set_limit(frames),
        }
    }

    pub(crate) fn limit(&self) -> u64 {
        match self {
            Self::Credit(grant) => grant.limit(),
            Self::Suci(inbound) => inbound.limit(),
        }
    }

    /// Fields of a data frame that leaves now, with these flags. Under `suci` data frames carry none.
    #[inline(always)] // on the path of every frame
    pub(crate) fn carry(&mut self, now: Instant, flags: u8, receive: &mut Receive) -> Carried {
        match self {
            Self::Credit(grant) => grant.carry(now, flags, receive),
            Self::Suci(_) => Carried::default(),
        }
    }

    /// Content of a grant that leaves now: the peer's round, and how many frames from the expected number on.
    pub(crate) fn permit(&self, expected: u64) -> (u32, u32) {
        match self {
            Self::Credit(_) => (0, 0), // no peer asks
            Self::Suci(inbound) => inbound.permit(expected),
        }
    }

    /// Something is missing that the peer may never send. Under `suci` it is sent again until it arrives.
    pub(crate) fn misses_something(&self, receive: &Receive) -> bool {
        match self {
            Self::Credit(grant) => !grant.has_backlog() && receive.misses_something(),
            Self::Suci(_) => false,
        }
    }

    /// Frames that the peer may still send here, counted as by `Receiving::claimed`.
    pub(crate) fn claim(&self, expected: u64) -> u64 {
        match self {
            Self::Credit(grant) => grant.claim(),
            Self::Suci(inbound) => inbound.outstanding(expected),
        }
    }

    /// How far ahead the peer may send, its window, and whether it has more to send. Under `suci` the first two are equal, and the third is unknown.
    pub(crate) fn incoming(&self, expected: u64) -> (u64, u64, bool) {
        match self {
            Self::Credit(grant) => (grant.outstanding(), grant.window(), grant.has_backlog()),
            Self::Suci(inbound) => (inbound.ahead(expected), inbound.ahead(expected), false),
        }
    }
}

/// An engine and its peers run the same control.
#[cold]
fn mixed() -> ! {
    unreachable!("a peer of the other congestion control")
}
