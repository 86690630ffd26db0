//! What is in flight to one peer, by packet number, and what acknowledgements say of it.
//!
//! Called by `send` for each frame that leaves and each acknowledgement that comes; `loss` marks what is lost here.
//!
//! Invariants: `sent[i]` tells of packet number `base + i`, and `sent[0]` is unanswered; `in_flight` counts what is
//! neither answered nor lost. What a number carried is in flight at most once, but for copies whose loss turned out to
//! be spurious.

use alloc::collections::VecDeque;

use crate::message::SendId;
use crate::numbers::{FIRST_NUMBER, NUMBER_WINDOW, expand};
use crate::time::{Duration, Instant};

/// A lost number is still awaited while fewer were sent since: as the acknowledgement's bitmap tells of that many even in
/// frames of 64 bytes, those that follow do not go unanswered.
const LOST_KEPT_FRAMES: u64 = 256;

/// A fragment of a message: what a frame carries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Slot and fragment in one word: a struct of two words travels in registers. One of three is written in parts and read as a
    /// whole, for which the processor waits until the writes are done.
    place: u64,
    /// The message in that slot is meant only if it still has this name.
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

    /// In `Queue::messages`.
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

/// What an acknowledgement says, in whatever frame it came.
#[derive(Debug)]
pub(crate) struct AckNews<'a> {
    /// Every number below has arrived or is no longer awaited; low 32 bits.
    pub(crate) ack: u32,
    /// Bit i: number `ack + i` has arrived.
    pub(crate) bitmap: &'a [u8],
    /// How long the peer held it back.
    pub(crate) delay: Duration,
}

/// What an acknowledgement told.
pub(super) enum Answer {
    /// Nothing new.
    Old,
    /// Of all that it tells of for the first time, the largest number and when that was sent.
    New { number: u64, at: Instant },
}

#[derive(Debug)]
pub(super) struct Flight {
    sent: VecDeque<Sent>,
    base: u64,
    next: u64,
    in_flight: usize,
    /// So many may be unanswered: all that an acknowledgement can tell of.
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

    /// An acknowledgement tells of so many numbers.
    pub(super) fn set_window(&mut self, frames: usize) {
        self.window = frames.min(NUMBER_WINDOW as usize);
    }

    /// Lowest number still unanswered.
    #[inline]
    pub(super) fn base(&self) -> u64 {
        self.base
    }

    /// The number that the next frame will have.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    #[inline]
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Numbers that are awaited, and those behind the first of them.
    pub(super) fn unanswered(&self) -> usize {
        self.sent.len()
    }

    /// Nothing is unanswered.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// As many are unanswered as may be.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.sent.len() >= self.window
    }

    /// A frame leaves; returns its number.
    #[inline]
    pub(super) fn depart(&mut self, now: Instant, part: Part) -> u64 {
        let number = self.next;
        self.next += 1;
        if self.sent.is_empty() {
            self.base = number;
        }
        self.sent.push_back(Sent {
            part,
            at: now,
            state: State::InFlight,
        });
        self.in_flight += 1;
        number
    }

    /// All numbers below `ack_low` have arrived or are no longer awaited. `arrived` is told each frame that is now known to have
    /// arrived, as it was before.
    #[inline]
    pub(super) fn acknowledge(&mut self, ack_low: u32, mut arrived: impl FnMut(&Sent)) -> Answer {
        let ack = expand(ack_low, self.base);
        let mut answer = Answer::Old;
        while self.base < ack {
            let Some(sent) = self.sent.pop_front() else {
                break;
            };
            if sent.state != State::Resolved {
                self.in_flight -= usize::from(sent.state == State::InFlight);
                arrived(&sent);
                let (number, at) = (self.base, sent.at);
                answer = Answer::New { number, at };
            }
            self.base += 1;
        }
        answer
    }

    /// Does it speak of numbers never sent?
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

    /// As `acknowledge`, of the numbers from `ack_low` on that `bitmap` marks; `answer` is what that said before. Apart from it, as
    /// most acknowledgements ride on data and bear no bitmap.
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

    /// Gives up those frames in flight among the numbers below `end` for which `is_lost`, asked for number and time of
    /// sending, says so; `lose` is told what they carried. Stops where it answers `None`.
    pub(super) fn give_up(
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

    /// The largest number that is known to have arrived while others before it have not; else the lowest unanswered.
    pub(super) fn newest_answered(&self) -> u64 {
        let answered = |sent: &Sent| sent.state == State::Resolved;
        self.base + self.sent.iter().rposition(answered).unwrap_or(0) as u64
    }

    /// Lost numbers are answered too: their repairs have numbers of their own. They are kept a little longer, to learn of those
    /// that were merely late: until `patience` has passed since they were sent, or enough others were sent.
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

    /// Each arrival is told once, whether by the cumulative acknowledgement, the bitmap, or both.
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
        for crowded in [false, true] {
            let mut flight = flight(10);
            flight.give_up(
                FIRST_NUMBER + 3,
                |number, _| Some(number != FIRST_NUMBER + 1),
                |_| (),
            );
            assert_eq!(flight.in_flight(), 8);
            flight.advance(Instant::from_nanos(999), patience);
            assert_eq!(flight.base(), FIRST_NUMBER);
            if crowded {
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
