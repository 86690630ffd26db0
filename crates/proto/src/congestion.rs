//! Congestion control: who may send how much, and how losses are repaired. There are two kinds.
//!
//! This is their interface. The sending half implements [`Sending`], one for each peer, and is held by `peer::send`: `Selective` for `credit`,
//! `GoBack` for `suci`. The receiving half is part of `crate::receiving`, one for all peers of an engine: `Credit` (R-20 … R-31) or `Suci` (R-70 …
//! All else (sessions, messages, channels, memory, the order of the queue) is common.
//!
//! Both nodes of a pair run the same kind, as stated in hello.

use crate::counters::Counters;
use crate::message::SendId;
use crate::numbers::NUMBER_WINDOW;
use crate::peer::flight::{AckNews, Part};
use crate::peer::queue::Queue;
use crate::peer::rtt::Rtt;
use crate::peer::send::Agreed;
use crate::pool::Pool;
use crate::time::{Duration, Instant};
use alloc::format;
use core::fmt;
use core::str::FromStr;
use tsumuji_wire::{Ack, flags};

/// Kind of congestion control; hello states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CongestionKind {
    /// The receiver grants credit.
    Credit,
    /// Suci's rules.
    Suci,
}

impl CongestionKind {
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

impl fmt::Display for CongestionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Congestion control: who may send how much, and how losses are repaired. Its text is `credit`, `suci` or `suci:K`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Congestion {
    /// The receiver grants credit for new data and repairs alike; only lost fragments are sent again.
    #[default]
    Credit,
    /// Suci's rules: numbers are cumulative; all after a gap is dropped, and sent again at once or with the receiver's permission.
    Suci {
        /// K: the length of the retransmission queue, in frames, up to which it is sent again without asking. Nodes may differ in it.
        unasked_frames: u16,
    },
}

impl Congestion {
    /// K until the program chooses another: a sixteenth of the usual window, and a block of 16 KiB. A sender with so few frames under way does
    /// not fill the network. In `sim/examples/unasked.rs` a block of 16 KiB gains nothing by a larger K, gathers are as with K = 0 up to 16, and where
    /// nobody asks the switch drops 1.4 to 1.9 times as many frames.
    pub const UNASKED_FRAMES: u16 = 16;

    /// The largest K: as many numbers as may be unacknowledged.
    pub const UNASKED_FRAMES_MOST: u16 = NUMBER_WINDOW as u16;

    /// Suci's rules, with the default K.
    pub const SUCI: Self = Self::Suci {
        unasked_frames: Self::UNASKED_FRAMES,
    };

    /// Suci's rules with K = 0: nothing is sent again without permission.
    pub const SUCI_ASKING: Self = Self::Suci { unasked_frames: 0 };

    /// Both kinds, with their defaults.
    pub const ALL: [Self; 2] = [Self::Credit, Self::SUCI];

    /// Which of the two.
    pub const fn kind(self) -> CongestionKind {
        match self {
            Self::Credit => CongestionKind::Credit,
            Self::Suci { .. } => CongestionKind::Suci,
        }
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Suci { unasked_frames } if *self != Self::SUCI => {
                f.pad(&format!("{}:{unasked_frames}", self.kind()))
            }
            _ => self.kind().fmt(f),
        }
    }
}

/// No congestion control has this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "no such congestion control; there are `credit`, `suci` and `suci:K`, where up to K frames (0 to {most}) are sent again without asking",
    most = Congestion::UNASKED_FRAMES_MOST
)]
pub struct UnknownCongestion;

impl FromStr for Congestion {
    type Err = UnknownCongestion;

    fn from_str(text: &str) -> Result<Self, UnknownCongestion> {
        if let Some(known) = Self::ALL.into_iter().find(|one| one.kind().name() == text) {
            return Ok(known);
        }
        let frames = text.strip_prefix("suci:").and_then(|k| k.parse().ok());
        frames
            .filter(|frames| *frames <= Self::UNASKED_FRAMES_MOST)
            .map(|unasked_frames| Self::Suci { unasked_frames })
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
    fn is_ask_pending(&self) -> bool {
        false
    }
    /// When to call `on_timeout` next.
    fn deadline(&self) -> Option<Instant>;
    /// Whether the program may bring forward what silence would do: something is unanswered for a round trip.
    fn may_repair(&self, now: Instant, rtt: &Rtt) -> bool;
    /// Does what silence demands. `last_heard`: when the last frame of the peer came. `true`: an acknowledgement is to be requested.
    fn on_silence(
        &mut self,
        now: Instant,
        last_heard: Instant,
        lossless: bool,
        ledger: Ledger<'_>,
    ) -> bool;
    /// Handles deadlines that have passed. Arguments and result as of `on_silence`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    /// What is written is read again, K included; the default K is not written.
    #[test]
    fn texts_are_read_as_written() {
        for (text, congestion) in [
            ("credit", Congestion::Credit),
            ("suci", Congestion::SUCI),
            ("suci:0", Congestion::SUCI_ASKING),
            (
                "suci:4096",
                Congestion::Suci {
                    unasked_frames: 4096,
                },
            ),
        ] {
            assert_eq!(text.parse(), Ok(congestion));
            assert_eq!(congestion.to_string(), text);
        }
        assert_eq!("suci:16".parse(), Ok(Congestion::SUCI));
        assert_eq!(format!("{:>8}", Congestion::SUCI_ASKING), "  suci:0");
        for bad in [
            "",
            "reno",
            "suci:",
            "suci:-1",
            "suci:4097",
            "credit:1",
            "suci:x",
        ] {
            assert_eq!(bad.parse::<Congestion>(), Err(UnknownCongestion), "{bad}");
        }
    }
}
