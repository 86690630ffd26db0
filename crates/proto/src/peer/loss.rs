//! Loss detection for one peer: frames that later ones overtook, and probes after silence.
//!
//! Called by `send`. Frames in flight are in `flight`. `engine::timers` handles the deadlines that are stated here.

use super::flight::{Flight, Part};
use super::rtt::Rtt;
use crate::time::{Duration, Instant};
use crate::tuning::TUNING;

/// Loss detection by overtaking.
#[derive(Debug)]
pub(super) struct Overtaken {
    lost_after_frames: u64,
    /// When the next overtaken frame counts as lost, if it has not arrived.
    pub(super) expires_at: Option<Instant>,
}

impl Overtaken {
    pub(super) fn new() -> Self {
        Self {
            lost_after_frames: TUNING.loss.reordering_frames,
            expires_at: None,
        }
    }

    /// Notes that a frame marked as lost has arrived.
    #[cold]
    pub(super) fn on_spurious_loss(&mut self) {
        self.lost_after_frames =
            (self.lost_after_frames * 2).min(TUNING.loss.reordering_frames_max);
    }

    /// Number `newest`, sent at `newest_at`, was acknowledged: marks frames as lost that it overtook by enough, in numbers or in time.
    pub(super) fn detect(
        &mut self,
        now: Instant,
        (newest, newest_at): (u64, Instant),
        flight: &mut Flight,
        rtt: &Rtt,
        lose: impl FnMut(Part),
    ) {
        self.expires_at = None;
        let window = rtt.reordering_window();
        let is_lost = |number, at: Instant| {
            if at > newest_at {
                return Some(false);
            }
            let expires_at = at + window;
            if newest - number >= self.lost_after_frames || now >= expires_at {
                return Some(true);
            }
            self.expires_at = Some(
                self.expires_at
                    .map_or(expires_at, |first| first.min(expires_at)),
            );
            Some(false)
        };
        flight.declare_lost(newest, is_lost, lose);
    }

    /// As `detect`, at a deadline without an acknowledgement.
    pub(super) fn on_timeout(
        &mut self,
        now: Instant,
        flight: &mut Flight,
        rtt: &Rtt,
        lose: impl FnMut(Part),
    ) {
        if self.expires_at.is_none_or(|at| now < at) {
            return;
        }
        self.expires_at = None;
        let window = rtt.reordering_window();
        // Only overtaken frames: the probe finds out about the others.
        let is_lost = |_, at: Instant| (at + window <= now).then_some(true);
        flight.declare_lost(flight.newest_answered(), is_lost, lose);
    }
}

/// Measures how long nothing was sent or answered while something was unanswered or could not leave.
#[derive(Debug)]
pub(super) struct Silence {
    /// When something was last sent or answered, or a probe became due.
    quiet_since: Instant,
    blocked_since: Option<Instant>,
    /// Probes since the last answer.
    backoff: u32,
    /// Silence after which a probe leaves; follows from the round-trip time and `backoff`.
    probe_after: Duration,
}

impl Silence {
    pub(super) fn new() -> Self {
        Self {
            quiet_since: Instant::default(),
            blocked_since: None,
            backoff: 0,
            probe_after: Rtt::new().probe_after(TUNING.acks.delay, 0),
        }
    }

    /// Notes that a frame left.
    #[inline]
    pub(super) fn on_sent(&mut self, now: Instant) {
        self.quiet_since = now;
        self.blocked_since = None;
    }

    /// Notes an acknowledgement of something new.
    #[inline]
    pub(super) fn on_answer(&mut self, now: Instant, rtt: &Rtt) {
        self.quiet_since = now;
        self.backoff = 0;
        self.probe_after = rtt.probe_after(TUNING.acks.delay, 0);
    }

    /// Notes that something waits that may not leave.
    #[inline]
    pub(super) fn on_blocked(&mut self, now: Instant) {
        self.blocked_since.get_or_insert(now);
    }

    /// Notes that what waited may leave, or is gone.
    pub(super) fn on_credit(&mut self) {
        self.blocked_since = None;
    }

    /// Whether the peer was heard since the last probe, but has not answered it.
    pub(super) fn is_evaded(&self, last_heard: Instant) -> bool {
        self.backoff > 0 && last_heard > self.quiet_since
    }

    /// Probes since the last answer.
    pub(super) fn probes(&self) -> u32 {
        self.backoff
    }

    /// Whether the program may bring the next probe forward: a round trip ago or longer something was last sent or answered, so that an answer would
    /// have come. `in_flight` as in `probe_at`.
    pub(super) fn may_repair(&self, now: Instant, rtt: &Rtt, in_flight: bool) -> bool {
        let apart = match self.backoff {
            0 => rtt.smoothed,
            _ => rtt.smoothed.max(TUNING.loss.repairs_apart),
        };
        (in_flight || self.blocked_since.is_some()) && now >= self.quiet_since + apart
    }

    /// Notes that a probe leaves; the next one waits longer.
    pub(super) fn on_probe(&mut self, now: Instant, rtt: &Rtt) {
        self.backoff += 1;
        self.probe_after = rtt.probe_after(TUNING.acks.delay, self.backoff);
        self.quiet_since = now;
        if self.blocked_since.is_some() {
            self.blocked_since = Some(now);
        }
    }

    /// When the next probe is due; `in_flight`: some frame awaits its answer.
    #[inline]
    pub(super) fn probe_at(&self, in_flight: bool) -> Option<Instant> {
        let since = if in_flight {
            Some(self.quiet_since)
        } else {
            self.blocked_since
        };
        since.map(|since| since + self.probe_after)
    }
}
