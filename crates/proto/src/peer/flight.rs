//! Frames in flight to one peer, by packet number, and what acknowledgements say of them.
//!
//! Called by `send` for each frame that leaves and each acknowledgement that comes; `loss` decides which frames are marked as lost here.
//!
//! Invariants: `sent[i]` is packet number `base + i`, and `sent[0]` is unanswered; `in_flight` counts frames that are neither answered nor lost. A
//! part is in flight at most once, except copies whose loss turned out to be spurious.

use alloc::collections::VecDeque;

use crate::message::SendId;
use crate::numbers::{FIRST_NUMBER, NUMBER_WINDOW, expand};
use crate::time::{Duration, Instant};

/// A lost number stays unanswered while fewer numbers than this were used from it on: even in frames of 64 bytes a bitmap covers that many, so the
/// following numbers can be answered.
const LOST_KEPT_FRAMES: u64 = 256;

/// A fragment of a message: the content of a data frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Slot and fragment in one integer, so that a part is two words and travels in registers. A struct of three words would be written in parts and
    /// read as a whole, which stalls the processor.
    place: u64,
    /// The part is valid only while the message in that slot has this id.
    pub(super) id: SendId,
}

impl Part {
    #[inline]
    pub(super) fn new(slot: u32, fragment: u32, id: SendId) -> Self {
        Self {
            place: u64::from(slot) << 32 | u64::from(fragment),
            id,
        }
    }

    /// Index in `Queue::messages`.
    #[inline]
    pub(super) fn slot(self) -> u32 {
        (self.place >> 32) as u32
    }

    #[inline]
    pub(super) fn fragment(self) -> u32 {
        self.place as u32
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    InFlight,
    Lost,
    Resolved,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) part: Part,
    pub(super) at: Instant,
    pub(super) state: State,
}

/// Content of an acknowledgement, in whatever frame it came.
#[derive(Debug)]
pub(crate) struct AckNews<'a> {
    /// All numbers below have arrived or are no longer awaited; low 32 bits.
    pub(crate) ack: u32,
    /// Bit i: number `ack + i` has arrived.
    pub(crate) bitmap: &'a [u8],
    /// How long the peer held the acknowledgement back.
    pub(crate) delay: Duration,
}

/// What was new in an acknowledgement.
pub(super) enum Answer {
    /// Nothing new.
    Old,
    /// The largest number that was answered for the first time, and when it was sent.
    New { number: u64, at: Instant },
}

#[derive(Debug)]
pub(super) struct Flight {
    sent: VecDeque<Sent>,
    base: u64,
    next: u64,
    in_flight: usize,
    /// Most numbers that may be unanswered: as many as an acknowledgement can cover.
    window: usize,
}

impl Flight {
    pub(super) fn new() -> Self {
        Self {
            sent: VecDeque::new(),
            base: FIRST_NUMBER,
            next: FIRST_NUMBER,
            in_flight: 0,
            window: NUMBER_WINDOW as usize,
        }
    }

    /// Sets how many numbers an acknowledgement can cover.
    pub(super) fn set_window(&mut self, frames: usize) {
        self.window = frames.min(NUMBER_WINDOW as usize);
    }

    /// Lowest number still unanswered.
    #[inline]
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// Number of the next frame.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    #[inline]
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Length of the range from the lowest unanswered number on.
    pub(super) fn unanswered(&self) -> usize {
        self.sent.len()
    }

    /// Nothing is unanswered.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// No further number may be used before one is answered.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.sent.len() >= self.window
    }

    /// Records a frame that leaves; returns its number.
    #[inline]
    pub(super) fn depart(&mut self, now: Instant, part: Part) -> u64 {
        let number = self.next;
        debug_assert_eq!(self.base + self.sent.len() as u64, number);
        self.next += 1;
        self.sent.push_back(Sent {
            part,
            at: now,
            state: State::InFlight,
        });
        self.in_flight += 1;
        number
    }

    /// Takes an acknowledgement of all numbers below `ack_low`. Calls `arrived` for each frame that is now known to have arrived, with its state
    /// before.
    #[inline]
    pub(super) fn acknowledge(&mut self, ack_low: u32, mut arrived: impl FnMut(&Sent)) -> Answer {
        let ack = expand(ack_low, self.base);
        let mut answer = Answer::Old;
        while self.base < ack
            && let Some(sent) = self.sent.pop_front()
        {
            let number = self.base;
            self.base += 1;
            if sent.state != State::Resolved {
                self.in_flight -= usize::from(sent.state == State::InFlight);
                answer = Answer::New {
                    number,
                    at: sent.at,
                };
                arrived(&sent);
            }
        }
        answer
    }

    /// Whether the acknowledgement names numbers that were never sent.
    #[inline]
    pub(super) fn is_unsent(&self, news: &AckNews<'_>) -> bool {
        let ack = expand(news.ack, self.base);
        ack > self.next || !news.bitmap.is_empty() && self.marks_unsent(ack, news)
    }

    #[cold]
    fn marks_unsent(&self, ack: u64, news: &AckNews<'_>) -> bool {
        let last = (news.bitmap.iter().enumerate().rev()).find(|(_, byte)| **byte != 0);
        last.is_some_and(|(index, byte)| {
            ack + index as u64 * 8 + u64::from(byte.ilog2()) >= self.next
        })
    }

    /// As `acknowledge`, for the numbers from `ack_low` on that `bitmap` marks; `answer` is the result of `acknowledge`. Separate, because most
    /// acknowledgements ride on data and have no bitmap.
    #[cold]
    pub(super) fn acknowledge_marked(
        &mut self,
        ack_low: u32,
        bitmap: &[u8],
        mut answer: Answer,
        mut arrived: impl FnMut(&Sent),
    ) -> Answer {
        let ack = expand(ack_low, self.base);
        for (index, byte) in bitmap.iter().enumerate() {
            let mut byte = *byte;
            while byte != 0 {
                let number = ack + index as u64 * 8 + u64::from(byte.trailing_zeros());
                byte &= byte - 1;
                let Some(index) = number.checked_sub(self.base) else {
                    continue;
                };
                let Some(sent) = self.sent.get_mut(index as usize) else {
                    break;
                };
                if sent.state != State::Resolved {
                    self.in_flight -= usize::from(sent.state == State::InFlight);
                    arrived(sent);
                    sent.state = State::Resolved;
                    let at = sent.at;
                    answer = Answer::New { number, at };
                }
            }
        }
        answer
    }

    /// Marks frames in flight below number `end` as lost if `is_lost`, called with number and time of sending, says so; calls `lose` with their
    /// parts. Stops where `is_lost` returns `None`.
    pub(super) fn declare_lost(
        &mut self,
        end: u64,
        mut is_lost: impl FnMut(u64, Instant) -> Option<bool>,
        mut lose: impl FnMut(Part),
    ) {
        let span = end.saturating_sub(self.base).min(self.sent.len() as u64);
        for (number, sent) in (self.base..).zip(self.sent.iter_mut().take(span as usize)) {
            if sent.state != State::InFlight {
                continue;
            }
            match is_lost(number, sent.at) {
                None => break,
                Some(false) => {}
                Some(true) => {
                    sent.state = State::Lost;
                    self.in_flight -= 1;
                    lose(sent.part);
                }
            }
        }
    }

    /// The largest number that was answered while a lower one is not; else the lowest unanswered one.
    pub(super) fn newest_answered(&self) -> u64 {
        let answered = |sent: &Sent| sent.state == State::Resolved;
        self.base + self.sent.iter().rposition(answered).unwrap_or(0) as u64
    }

    /// Drops answered and lost numbers from the front. A lost one, whose repair has another number, is kept a little longer to notice that it was
    /// only late: until `patience` has passed since it was sent, or enough later numbers were used.
    #[inline]
    pub(super) fn advance(&mut self, now: Instant, patience: impl FnOnce() -> Duration) {
        match self.sent.front() {
            None => {}
            Some(sent) if sent.state == State::InFlight => {}
            Some(_) => self.drop_answered(now, patience()),
        }
    }

    #[cold]
    fn drop_answered(&mut self, now: Instant, patience: Duration) {
        while let Some(sent) = self.sent.front() {
            let awaited = match sent.state {
                State::InFlight => true,
                State::Lost => sent.at + patience > now && self.next - self.base < LOST_KEPT_FRAMES,
                State::Resolved => false,
            };
            if awaited {
                break;
            }
            self.sent.pop_front();
            self.base += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn flight(frames: u32) -> Flight {
        let mut flight = Flight::new();
        for fragment in 0..frames {
            let part = Part::new(0, fragment, SendId(0));
            flight.depart(Instant::from_nanos(u64::from(fragment)), part);
        }
        flight
    }

    fn news(ack: u64, bitmap: &[u8]) -> AckNews<'_> {
        AckNews {
            ack: (FIRST_NUMBER + ack) as u32,
            bitmap,
            delay: Duration::ZERO,
        }
    }

    /// Each arrival is reported once, whether by the cumulative acknowledgement, the bitmap, or both.
    #[test]
    fn arrivals_are_told_once() {
        let mut flight = flight(20);
        let mut told = Vec::new();
        for news in [
            news(2, &[0b1000]),
            news(2, &[0b1010]),
            news(1, &[0]),
            news(5, &[]),
        ] {
            let answer = flight.acknowledge(news.ack, |sent| told.push(sent.part.fragment()));
            flight.acknowledge_marked(news.ack, news.bitmap, answer, |sent| {
                told.push(sent.part.fragment());
            });
        }
        assert_eq!(told, [0, 1, 5, 3, 2, 4]);
        assert_eq!((flight.in_flight(), flight.base()), (14, FIRST_NUMBER + 5));
        for (said, unsent) in [
            (news(20, &[]), false),
            (news(21, &[]), true),
            (news(5, &[0, 0b100_0000, 0]), false),
            (news(5, &[0, 0b1000_0000, 0]), true),
        ] {
            assert_eq!(flight.is_unsent(&said), unsent, "{said:?}");
        }
    }

    /// A lost number is awaited until its patience ends or many more were sent; then the floor passes it.
    #[test]
    fn lost_numbers_hold_the_floor_for_a_while() {
        let patience = || Duration::from_nanos(1000);
        for has_followers in [false, true] {
            let mut flight = flight(10);
            flight.declare_lost(
                FIRST_NUMBER + 3,
                |number, _| Some(number != FIRST_NUMBER + 1),
                |_| (),
            );
            assert_eq!(flight.in_flight(), 8);
            flight.advance(Instant::from_nanos(999), patience);
            assert_eq!(flight.base(), FIRST_NUMBER);
            if has_followers {
                for _ in 0..LOST_KEPT_FRAMES {
                    let part = flight.sent[0].part;
                    flight.depart(Instant::from_nanos(999), part);
                }
                flight.advance(Instant::from_nanos(999), patience);
            } else {
                flight.advance(Instant::from_nanos(1000), patience);
            }
            assert_eq!(flight.base(), FIRST_NUMBER + 1, "up to what is in flight");
        }
    }
}
