//! Pacing: how fast frames leave to one peer, if the program limits it.
//!
//! Owned by `send`, which asks before each frame, and reports each frame that left and each answer. A peer that is not paced has no pacer.
//!
//! Under [`Pace::Drain`] the receiver's drain rate is estimated as `window` frames in a round-trip time. If a sender keeps the wire and the receiver
//! busy, its round trips are longer than the shortest by just the time that its frames wait. So the window grows by one frame a round trip while less
//! than one frame waits, and shrinks while more than two do. Many senders to one receiver then fill its ring with about two frames each, whatever
//! they are granted.
//!
//! Invariants: at least one frame may always be in flight; no frame leaves before `next_at`, and of frames that were late at most one is made up for.

use super::rtt::Rtt;
use crate::time::{Duration, Instant};
use crate::tuning::TUNING;

/// Limit on how fast frames leave to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Pace {
    /// As fast as credit and link allow.
    #[default]
    Free,
    /// As fast as the receiver has lately answered, at even intervals, so that few frames wait there.
    Drain,
    /// At most this many bytes a second, headers included; at least 1.
    BytesPerSecond(u64),
}

/// Unit of windows: a window counts in sixteenths of a frame.
const FRAME: u64 = 16;
/// Largest window: as many numbers as may be unanswered.
const WINDOW_MAX: u64 = crate::numbers::NUMBER_WINDOW * FRAME;
/// Approximate size of a frame's header and of what a link adds.
const HEADER_BYTES: u64 = 64;

#[derive(Debug)]
pub(crate) struct Pacer {
    pub(crate) pace: Pace,
    /// Sixteenths of frames that may be in flight.
    window: u64,
    /// No frame leaves before this time.
    next_at: Instant,
    /// The next frame was held back.
    held: bool,
    /// Frames that this pacer held back.
    pub(crate) held_frames: u64,
    /// When to check again, if the next frame is held back by time.
    held_until: Option<Instant>,
    /// Shortest round trips of the present period and of the one before.
    shortest: [Duration; 2],
    period_end: Instant,
    /// Shortest sample of the present round.
    sample: Duration,
    round_end: Instant,
    /// Shortest sample of the round before.
    round_trip: Duration,
    /// The window was full in this round: otherwise nothing indicates that it is too small.
    filled: bool,
    /// Sixteenths of frames that left since an immediate answer was last requested.
    unasked: u64,
    /// Frames that had been sent again when this round began.
    repaired: u64,
}

/// No sample.
const NONE: Duration = Duration::from_nanos(u64::MAX);

impl Pacer {
    pub(crate) fn new(pace: Pace) -> Self {
        Self {
            pace,
            window: FRAME,
            next_at: Instant::default(),
            held: false,
            held_frames: 0,
            held_until: None,
            shortest: [NONE; 2],
            period_end: Instant::default(),
            sample: NONE,
            round_end: Instant::default(),
            round_trip: Duration::ZERO,
            filled: false,
            unasked: 0,
            repaired: 0,
        }
    }

    /// Whether no frame may leave now. If so, check again when something is answered, or at `deadline`.
    pub(crate) fn holds(&mut self, now: Instant, in_flight: usize) -> bool {
        self.held_until = None;
        let in_flight = in_flight as u64 * FRAME;
        self.filled |= in_flight + FRAME >= self.window;
        if self.pace == Pace::Drain && in_flight >= self.window {
            self.held = true;
            return true;
        }
        if now < self.next_at {
            (self.held, self.held_until) = (true, Some(self.next_at));
            return true;
        }
        false
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.held_until
    }

    /// Handles the deadline.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        if self.held_until.is_some_and(|at| at <= now) {
            self.held_until = None;
        }
    }

    /// Notes a frame that leaves; `in_flight` counts it. `true`: an immediate answer is to be requested. This is so a few times in each window,
    /// because acknowledgements that are held back would hide how long frames wait.
    pub(crate) fn on_sent(&mut self, now: Instant, payload_bytes: usize, in_flight: usize) -> bool {
        let interval = match self.pace {
            Pace::Free => Duration::ZERO,
            Pace::Drain => Duration::from_nanos(self.round_trip.as_nanos() * FRAME / self.window),
            Pace::BytesPerSecond(rate) => {
                let bytes = payload_bytes as u64 + HEADER_BYTES;
                Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate.max(1))
            }
        };
        self.held_frames += u64::from(core::mem::take(&mut self.held));
        // One frame that was due and did not leave may follow at once, but not all that might have left meanwhile.
        let late = now.since(self.next_at).min(interval);
        self.next_at = now + Duration::from_nanos(interval.as_nanos() - late.as_nanos());
        self.unasked += FRAME;
        let asks = self.unasked * TUNING.pace.asks_per_window >= self.window
            || in_flight as u64 * FRAME >= self.window;
        if asks {
            self.unasked = 0;
        }
        asks && self.pace == Pace::Drain
    }

    /// Takes an answer of the peer; `repaired`: frames that were sent again, in all sessions.
    pub(crate) fn on_answer(&mut self, now: Instant, rtt: &Rtt, repaired: u64) {
        self.sample = self.sample.min(rtt.latest);
        if now < self.round_end {
            return;
        }
        let sample = core::mem::replace(&mut self.sample, NONE);
        (self.round_end, self.round_trip) = (now + sample, sample);
        if now >= self.period_end {
            self.period_end = now + TUNING.pace.shortest_kept;
            self.shortest = [sample, self.shortest[0]];
        }
        self.shortest[0] = self.shortest[0].min(sample);
        if core::mem::replace(&mut self.repaired, repaired) != repaired {
            self.window = (self.window / 2).max(FRAME);
            return;
        }
        let shortest = self.shortest[0].min(self.shortest[1]);
        let waited = sample.as_nanos().saturating_sub(shortest.as_nanos());
        // Little's law: of `window` frames in flight, the waiting fraction equals the waiting fraction of the round trip.
        let waiting =
            u128::from(self.window) * u128::from(waited) / u128::from(sample.as_nanos().max(1));
        if waiting < u128::from(FRAME) {
            if core::mem::take(&mut self.filled) {
                self.window = (self.window + FRAME).min(WINDOW_MAX);
            }
        } else if waiting > u128::from(2 * FRAME) {
            self.window = (self.window - FRAME).max(FRAME);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rtt(micros: u64) -> Rtt {
        let mut rtt = Rtt::new();
        rtt.latest = Duration::from_micros(micros);
        rtt
    }

    /// A rate is kept, idle time is not made up for, and a held frame states when it may leave.
    #[test]
    fn a_rate_is_kept() {
        let mut pacer = Pacer::new(Pace::BytesPerSecond(1_000_000));
        let mut now = Instant::from_nanos(5_000_000_000);
        let mut sent = 0;
        let end = now + Duration::from_millis(100);
        while now < end {
            if pacer.holds(now, 1_000) {
                now = pacer.deadline().expect("when");
            } else {
                pacer.on_sent(now, 936, 1);
                sent += 1;
            }
        }
        assert!((100..=102).contains(&sent), "{sent} kB in 100 ms");
        assert!(!pacer.holds(end, 0) && pacer.deadline().is_none());
    }

    /// The window grows until one frame waits, and shrinks when the path holds less or a frame was lost.
    #[test]
    fn the_window_follows_the_queue() {
        // 10 frames fill a wire that takes 1 µs for each.
        let mut pacer = Pacer::new(Pace::Drain);
        let mut now = Instant::from_nanos(1_000_000);
        for _ in 0..100 {
            let micros = (pacer.window / FRAME).max(10);
            now += Duration::from_micros(micros);
            assert!(pacer.holds(now, (pacer.window / FRAME) as usize));
            pacer.on_answer(now, &rtt(micros), 0);
        }
        assert!(
            (11..=13).contains(&(pacer.window / FRAME)),
            "{}",
            pacer.window / FRAME
        );
        let full = pacer.window;
        now += Duration::from_millis(1);
        pacer.on_answer(now, &rtt(10), 1);
        assert_eq!(pacer.window, full / 2, "a loss");
        for _ in 0..100 {
            now += Duration::from_millis(1);
            pacer.on_answer(now, &rtt(500), 1);
        }
        assert!(pacer.window <= 3 * FRAME, "others fill the queue");
        assert!(!pacer.holds(now, 0) && pacer.holds(now, 3));
    }
}
