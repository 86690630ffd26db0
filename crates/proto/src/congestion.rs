//! Congestion control: who may send how much, and what becomes of what was lost. Two are shipped.
//!
//! This is the seam. Sending half: whatever implements [`Sending`], one for each peer, held by `peer::send`: `Selective` for
//! `credit`, `GoBack` for `suci`. Receiving half: one of `crate::receiving`, for all peers of an engine: `Granting` for `credit`
//! (R-20 … R-31), `Permitting` for `suci` (R-70 … R-78). Everything else (lives, messages, channels, memory, order of what waits) is common.
//!
//! Both nodes of a pair run the same one: hello says which.

use crate::counters::Counters;
use crate::message::SendId;
use crate::peer::flight::{AckNews, Part};
use crate::peer::queue::Queue;
use crate::peer::rtt::Rtt;
use crate::peer::send::Agreed;
use crate::pool::Pool;
use crate::time::{Duration, Instant};
use core::fmt;
use core::str::FromStr;
use tsumuji_wire::{Ack, flags};

/// Who may send how much, and what becomes of what was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Congestion {
    /// The receiver hands out credit for new data and repairs alike; only what was lost is sent again.
    #[default]
    Credit,
    /// Suci's rules: cumulative numbers, all after a gap is dropped and sent again, and only with the receiver's permission.
    Suci,
}

impl Congestion {
    /// All there are.
    pub const ALL: [Self; 2] = [Self::Credit, Self::Suci];

    /// As it stands in options, variables and figures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Credit => "credit",
            Self::Suci => "suci",
        }
    }

    /// As hello states it.
    pub(crate) const fn flags(self) -> u8 {
        match self {
            Self::Credit => 0,
            Self::Suci => flags::SUCI,
        }
    }

    /// What a hello with these flags states.
    pub(crate) const fn of_flags(bits: u8) -> Self {
        if bits & flags::SUCI == 0 {
            Self::Credit
        } else {
            Self::Suci
        }
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No congestion control has this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no such congestion control; there are `credit` and `suci`")]
pub struct UnknownCongestion;

impl FromStr for Congestion {
    type Err = UnknownCongestion;

    fn from_str(name: &str) -> Result<Self, UnknownCongestion> {
        Self::ALL
            .into_iter()
            .find(|congestion| congestion.name() == name)
            .ok_or(UnknownCongestion)
    }
}

/// A fragment that leaves.
pub(crate) struct Departure {
    pub(crate) part: Part,
    pub(crate) number: u64,
    /// Lowest number still unanswered; 0 where the receiver is not to know.
    pub(crate) floor: u64,
    /// It asks for an answer at once.
    pub(crate) probe: bool,
    /// Others wait to be sent, or sent again.
    pub(crate) more: bool,
}

/// The sending half towards one peer: what of the queue may leave, and what answers and silence mean for what has left.
pub(crate) trait Sending {
    /// A session begins.
    fn begin(&mut self, agreed: &Agreed);
    /// Something may leave now.
    fn may_leave(&mut self, now: Instant, queue: &mut Queue) -> bool;
    /// The fragment that leaves; called only after `may_leave` said yes.
    fn depart(
        &mut self,
        now: Instant,
        queue: &mut Queue,
        pool: &mut Pool,
        counters: &mut Counters,
    ) -> Option<Departure>;
    /// Does an acknowledgement speak of numbers never sent?
    fn is_unsent(&self, news: &AckNews<'_>) -> bool;
    /// Takes one of which `is_unsent` said no. `done` is told each message that is now acknowledged whole and asked for it.
    fn on_ack(
        &mut self,
        now: Instant,
        news: &AckNews<'_>,
        ledger: Ledger<'_>,
        done: impl FnMut(SendId),
    );
    /// What an acknowledgement says beside the numbers that came: how far the peer lets us send, and what it refused.
    fn on_terms(&mut self, now: Instant, ack: &Ack<'_>, rtt: &Rtt, queue: &mut Queue);
    /// Does nobody have so much credit to give?
    fn is_absurd(&self, _credit_low: u32) -> bool {
        false
    }
    /// Permission is to be asked for, in a frame of its own.
    fn is_ask_due(&self) -> bool {
        false
    }
    /// When `on_timeout` wants to be called.
    fn deadline(&self) -> Option<Instant>;
    /// Looks at the deadlines that have passed. `last_heard`: when the last frame of the peer came. `true`: it is to be asked for
    /// an acknowledgement.
    fn on_timeout(
        &mut self,
        now: Instant,
        last_heard: Instant,
        lossless: bool,
        ledger: Ledger<'_>,
    ) -> bool;
    /// A message of which nothing new was acknowledged for so long, though it was sent again and again.
    fn stalled(&self, now: Instant, after: Duration, queue: &Queue) -> Option<SendId>;
    /// Nothing was heard of the peer for long: what was sent meanwhile could have no answer.
    fn note_silence(&mut self, now: Instant, queue: &mut Queue);
    /// Frames sent and neither acknowledged nor known to be lost.
    fn in_flight(&self) -> usize;
    /// New frames that may be sent before the peer must say more.
    fn credit_left(&self) -> u64;
}

/// What an answer or silence changes beside what is in flight.
pub(crate) struct Ledger<'a> {
    pub(crate) rtt: &'a mut Rtt,
    pub(crate) queue: &'a mut Queue,
    pub(crate) pool: &'a mut Pool,
    pub(crate) counters: &'a mut Counters,
}
