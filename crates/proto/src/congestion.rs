//! Congestion control: who may send how much, and how losses are repaired. There are two kinds.
//!
//! This is their interface. The sending half implements [`Sending`], one for each peer, and is held by `peer::send`: `Selective` for `credit`,
//! `GoBack` for `suci`. The receiving half is part of `crate::receiving`, one for all peers of an engine: `Credit` (R-20 … R-31) or `Suci` (R-70 …
//! All else (sessions, messages, channels, memory, the order of the queue) is common.
//!
//! Both nodes of a pair run the same kind, as stated in hello.

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

/// Kind of congestion control: who may send how much, and how losses are repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Congestion {
    /// The receiver grants credit for new data and repairs alike; only lost fragments are sent again.
    #[default]
    Credit,
    /// Suci's rules: numbers are cumulative; all after a gap is dropped, and sent again only with the receiver's permission.
    Suci,
}

impl Congestion {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Credit, Self::Suci];

    /// Name in options, variables and figures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Credit => "credit",
            Self::Suci => "suci",
        }
    }

    /// Flags of hello and welcome that state it.
    pub(crate) const fn flags(self) -> u8 {
        match self {
            Self::Credit => 0,
            Self::Suci => flags::SUCI,
        }
    }

    /// The kind that a hello with these flags states.
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

/// A fragment that leaves now.
pub(crate) struct Departure {
    pub(crate) part: Part,
    pub(crate) number: u64,
    /// Lowest number still unanswered; 0 if it is not told to the receiver.
    pub(crate) floor: u64,
    /// It requests an acknowledgement at once.
    pub(crate) probe: bool,
    /// Other fragments wait to be sent, or sent again.
    pub(crate) more: bool,
}

/// The sending half towards one peer: what of the queue may leave, and what answers and silence mean for frames that left.
pub(crate) trait Sending {
    /// Begins a session.
    fn begin(&mut self, agreed: &Agreed);
    /// Whether something may leave now.
    fn may_leave(&mut self, now: Instant, queue: &mut Queue) -> bool;
    /// The fragment that leaves; to be called only after `may_leave` returned true.
    fn depart(
        &mut self,
        now: Instant,
        queue: &mut Queue,
        pool: &mut Pool,
        counters: &mut Counters,
    ) -> Option<Departure>;
    /// Whether an acknowledgement names numbers that were never sent.
    fn is_unsent(&self, news: &AckNews<'_>) -> bool;
    /// Takes an acknowledgement for which `is_unsent` is false. Tells `done` each tracked message that is now acknowledged whole.
    fn on_ack(
        &mut self,
        now: Instant,
        news: &AckNews<'_>,
        ledger: Ledger<'_>,
        done: impl FnMut(SendId),
    );
    /// Takes what an ack frame states besides arrivals: credit or window, and whether memory refused frames.
    fn on_terms(&mut self, now: Instant, ack: &Ack<'_>, rtt: &Rtt, queue: &mut Queue);
    /// Whether the credit is more than any honest peer grants.
    fn is_absurd(&self, _credit_low: u32) -> bool {
        false
    }
    /// An ask is to be sent, in a frame of its own.
    fn is_ask_due(&self) -> bool {
        false
    }
    /// When to call `on_timeout` next.
    fn deadline(&self) -> Option<Instant>;
    /// Handles deadlines that have passed. `last_heard`: when the last frame of the peer came. `true`: an acknowledgement is to be requested.
    fn on_timeout(
        &mut self,
        now: Instant,
        last_heard: Instant,
        lossless: bool,
        ledger: Ledger<'_>,
    ) -> bool;
    /// The message, if any, that was sent again and again for `after` without a new acknowledgement of it.
    fn stalled(&self, now: Instant, after: Duration, queue: &Queue) -> Option<SendId>;
    /// Notes that the peer was not heard for long: what was sent meanwhile could not be answered.
    fn note_silence(&mut self, now: Instant, queue: &mut Queue);
    /// Frames sent and neither acknowledged nor declared lost.
    fn in_flight(&self) -> usize;
    /// New frames that may be sent before the peer must grant more.
    fn credit_left(&self) -> u64;
}

/// State of a peer that acknowledgements and time-outs change, besides the frames in flight.
pub(crate) struct Ledger<'a> {
    pub(crate) rtt: &'a mut Rtt,
    pub(crate) queue: &'a mut Queue,
    pub(crate) pool: &'a mut Pool,
    pub(crate) counters: &'a mut Counters,
}
