//! How many frames may be on their way to this node: what its receive side holds, or less if a switch holds less.
//!
//! Owned by `credit`, which divides `pool_frames` among the peers and reports every frame that arrives while some peer has more to send.
//!
//! Losses alone are no evidence: a bad cable loses frames of a small pool, too. But where a buffer overflows, the wire behind it is busy all the
//! time: a smaller pool brings as many frames a second. If it brings fewer, the losses had another cause. So a pool that loses frames is changed on
//! trial, and the rate decides whether the change stays.
//!
//! Invariant: `least_frames <= pool_frames <= receive_frames`, and `pool_frames` is what the path holds as far as that allows.

use crate::time::{Duration, Instant};
use crate::tuning::TUNING;

const MILLION: u64 = 1_000_000;

/// A change of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// By a quarter: it stays if the rate does not fall.
    Smaller,
    /// By a third: it stays if the rate grows.
    Larger,
}

#[derive(Debug, Clone, Copy)]
struct Trial {
    change: Change,
    /// The pool before the trial.
    from_frames: u64,
    /// Highest rate seen in this trial or those just before, in frames a second.
    best_rate: u64,
}

#[derive(Debug)]
pub(crate) struct Path {
    receive_frames: u64,
    least_frames: u64,
    pool_frames: u64,
    /// What the path is believed to hold, even while the receive side or the program's window is smaller; `u64::MAX`: no limit is known.
    path_frames: u64,
    /// Nothing has been measured yet on a path that may hold less than the receive side.
    is_new: bool,
    /// Frames that arrived since the last measurement.
    seen_frames: u64,
    /// Numbers that were skipped since then, less those that arrived late.
    lost_frames: i64,
    /// The next measurement is made after this many frames.
    measure_after_frames: u64,
    /// Time of the last measurement, moved forward by idle time since then.
    since: Instant,
    /// Since when no peer has anything to send.
    idle_since: Option<Instant>,
    /// Frames that arrive now were granted before the pool was changed: they are not measured.
    settling: bool,
    trial: Option<Trial>,
    /// Measurements until the next trial may begin.
    rest: u32,
}

impl Path {
    /// `receive_frames`: what the receive side holds.
    pub(crate) fn new(receive_frames: u64) -> Self {
        Self {
            receive_frames,
            least_frames: TUNING.path.pool_frames_min.min(receive_frames),
            pool_frames: receive_frames,
            path_frames: u64::MAX,
            is_new: false,
            seen_frames: 0,
            lost_frames: 0,
            measure_after_frames: receive_frames.max(TUNING.path.measured_frames_min),
            since: Instant::default(),
            idle_since: Some(Instant::default()),
            settling: false,
            trial: None,
            rest: 0,
        }
    }

    /// Begins with a small pool: the path may hold less than the receive side.
    pub(crate) fn begin_small(&mut self) {
        self.path_frames = TUNING.path.pool_frames_first;
        self.is_new = true;
        self.resize(TUNING.path.pool_frames_first);
        self.measure_after_frames = self.pool_frames.max(TUNING.path.measured_frames_min);
    }

    /// Sets what the receive side holds, or the program's window. What was measured of the path stays known.
    pub(crate) fn set_receive_frames(&mut self, frames: u64) {
        self.receive_frames = frames;
        self.least_frames = TUNING.path.pool_frames_min.min(frames);
        self.trial = None;
        self.resize(self.path_frames);
    }

    pub(crate) fn set_peers(&mut self, peers: u64) {
        self.least_frames = (TUNING.path.pool_frames_min + peers).min(self.receive_frames);
        let first_frames = if self.is_new {
            peers * TUNING.path.peer_frames_first
        } else {
            0
        };
        self.resize(self.pool_frames.max(first_frames));
    }

    /// Frames that may be granted to all peers together.
    #[inline]
    pub(crate) fn pool_frames(&self) -> u64 {
        self.pool_frames
    }

    /// Notes that some peer has more to send, after none had.
    pub(crate) fn on_busy(&mut self, now: Instant) {
        if let Some(idle_since) = self.idle_since.take() {
            self.since += now.since(idle_since);
        }
    }

    /// Notes that no peer has anything to send.
    pub(crate) fn on_idle(&mut self, now: Instant) {
        self.idle_since = Some(now);
    }

    /// Notes that `frames` numbers were skipped.
    #[inline]
    pub(crate) fn on_gap(&mut self, frames: u64) {
        self.lost_frames = self.lost_frames.wrapping_add_unsigned(frames);
    }

    /// Notes that a skipped number has arrived.
    #[cold]
    pub(crate) fn on_late(&mut self) {
        self.lost_frames = self.lost_frames.saturating_sub(1);
    }

    /// Counts a frame that arrived while some peer has more to send. `true`: the pool was changed.
    #[inline]
    pub(crate) fn on_frame(&mut self, now: Instant) -> bool {
        self.seen_frames += 1;
        self.seen_frames >= self.measure_after_frames && self.measure(now)
    }

    #[cold]
    fn measure(&mut self, now: Instant) -> bool {
        let before = self.pool_frames;
        self.is_new = false;
        if self.settling {
            self.settling = false;
        } else {
            let lost = u64::try_from(self.lost_frames).unwrap_or(0);
            let elapsed = now.since(self.since).max(Duration::from_nanos(1));
            let rate = self.seen_frames * 1_000_000_000 / elapsed.as_nanos();
            self.judge(lost * MILLION / (lost + self.seen_frames), rate);
        }
        self.since = now;
        self.seen_frames = 0;
        self.lost_frames = 0;
        self.measure_after_frames = if self.settling {
            before / 2
        } else {
            self.pool_frames.max(TUNING.path.measured_frames_min)
        };
        self.pool_frames != before
    }

    fn judge(&mut self, loss_ppm: u64, rate: u64) {
        self.rest = self.rest.saturating_sub(1);
        let trial = self.trial.take();
        let best_rate = trial.map_or(rate, |trial| trial.best_rate.max(rate));
        if loss_ppm <= TUNING.path.tolerated_ppm {
            self.resize(self.pool_frames + self.pool_frames / 8 + 1);
        } else if loss_ppm > TUNING.path.gross_ppm {
            self.resize(self.pool_frames / 2);
            self.settling = true;
        } else if let Some(trial) = trial {
            let (change, kept) = match trial.change {
                Change::Smaller => (Change::Smaller, rate * 16 >= trial.best_rate * 15),
                Change::Larger => (Change::Larger, rate * 16 >= trial.best_rate * 17),
            };
            if kept {
                self.resize(self.pool_frames); // known from now on
                self.try_change(change, best_rate);
            } else {
                self.resize(trial.from_frames);
                if change == Change::Smaller {
                    self.try_change(Change::Larger, best_rate);
                } else {
                    self.rest = TUNING.path.rest_measurements;
                }
            }
        } else if self.rest == 0 {
            self.try_change(Change::Smaller, best_rate);
        }
    }

    /// Begins a trial, or a rest if the pool can change no further.
    fn try_change(&mut self, change: Change, best_rate: u64) {
        let from_frames = self.pool_frames;
        let change = match change {
            Change::Smaller if from_frames > self.least_frames => Change::Smaller,
            _ => Change::Larger,
        };
        let known_frames = self.path_frames;
        match change {
            Change::Smaller => self.resize(from_frames * 3 / 4),
            Change::Larger => self.resize(from_frames * 4 / 3),
        }
        self.path_frames = known_frames; // only the trial's result changes it
        if self.pool_frames == from_frames {
            self.rest = TUNING.path.rest_measurements;
            return;
        }
        self.trial = Some(Trial {
            change,
            from_frames,
            best_rate,
        });
        self.settling = true;
    }

    fn resize(&mut self, frames: u64) {
        self.pool_frames = frames.clamp(self.least_frames, self.receive_frames);
        if self.pool_frames < self.receive_frames {
            self.path_frames = self.pool_frames;
        } else {
            self.path_frames = self.path_frames.max(self.pool_frames);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wire that takes 1 µs for a frame, with a round trip of 100 µs: 100 frames fill it.
    struct Wire {
        path: Path,
        now_ns: u64,
        /// Frames that the buffer before the wire holds.
        buffer_frames: u64,
        loss_percent: u64,
        excess: u64,
        chance: u64,
    }

    impl Wire {
        const FULL_FRAMES: u64 = 100;

        fn new(receive_frames: u64, peers: u64) -> Self {
            let mut path = Path::new(receive_frames);
            path.set_peers(peers);
            path.on_busy(Instant::default());
            Self {
                path,
                now_ns: 0,
                buffer_frames: 10_000,
                loss_percent: 0,
                excess: 0,
                chance: 0,
            }
        }

        /// Mean pool over the second half of the frames.
        fn run(&mut self, frames: u64) -> u64 {
            let (mut pools, mut came) = (0, 0);
            for frame in 0..frames {
                let pool = self.path.pool_frames();
                let fit = pool.min(Self::FULL_FRAMES + self.buffer_frames);
                // Losses are evenly spread: of each pool, what does not fit is lost, and a percentage of the rest.
                self.excess += pool - fit;
                self.chance += self.loss_percent;
                if self.excess >= pool || self.chance >= 100 {
                    let by_chance = self.excess < pool;
                    self.excess -= if by_chance { 0 } else { pool };
                    self.chance -= if by_chance { 100 } else { self.loss_percent };
                    self.path.on_gap(1);
                    continue;
                }
                // A pool takes a round trip, or as long as the wire takes for what fits.
                self.now_ns += (Self::FULL_FRAMES * 1000 / fit).max(1000);
                self.path.on_frame(Instant::from_nanos(self.now_ns));
                if frame > frames / 2 {
                    pools += pool;
                    came += 1;
                }
            }
            pools / came
        }
    }

    /// Random loss keeps the wire full, whatever the pool was before; a small buffer shrinks the pool to about what fits.
    #[test]
    fn random_loss_is_no_full_buffer() {
        for loss_percent in [0, 1, 3, 5, 10, 25] {
            let mut wire = Wire::new(256, 1);
            wire.loss_percent = loss_percent;
            let pool = wire.run(50_000);
            assert!(pool >= 90, "{loss_percent} % random loss: pool of {pool}");
        }
        for buffer_frames in [20, 100, 300] {
            for loss_percent in [0, 1, 5] {
                let mut wire = Wire::new(1024, 1);
                (wire.buffer_frames, wire.loss_percent) = (buffer_frames, loss_percent);
                let pool = wire.run(100_000);
                let fit = Wire::FULL_FRAMES + buffer_frames;
                assert!(
                    (90..=fit * 5 / 4).contains(&pool),
                    "{fit} fit, {loss_percent} % random loss: pool of {pool}"
                );
            }
        }
    }

    /// If the program closes the window and opens it again, what was known of the path returns, and no more.
    #[test]
    fn windows_teach_nothing_of_the_path() {
        let mut path = Path::new(5120);
        let windows = |path: &mut Path| {
            [8, 5120, 200, 4, 5120].map(|frames| {
                path.set_receive_frames(frames);
                path.pool_frames()
            })
        };
        assert_eq!(windows(&mut path), [8, 5120, 200, 4, 5120], "nothing known");
        path.begin_small();
        assert_eq!(windows(&mut path), [8, 256, 200, 4, 256]);
        path.resize(5120); // found to hold
        assert_eq!(windows(&mut path), [8, 5120, 200, 4, 5120]);
        path.set_receive_frames(200);
        path.try_change(Change::Smaller, 1);
        assert_eq!(path.pool_frames(), 150);
        assert_eq!(
            windows(&mut path),
            [8, 5120, 200, 4, 5120],
            "a trial is no knowledge"
        );
        path.set_peers(1000);
        assert_eq!(path.pool_frames(), 5120, "enough for many");
        path.set_peers(1);
        path.resize(100); // learned from losses
        assert_eq!(windows(&mut path), [8, 100, 100, 4, 100]);
    }

    /// A new path holds what many peers may send without further permission.
    #[test]
    fn many_peers_begin_with_more() {
        for (peers, pool) in [(1, 256), (31, 256), (100, 800), (1000, 5120)] {
            let mut path = Path::new(5120);
            path.begin_small();
            path.set_peers(peers);
            assert_eq!(path.pool_frames(), pool, "{peers} peers");
        }
    }

    /// Results do not outlive the path that they were measured on: a buffer that shrinks, a pool that was at its least when loss began.
    #[test]
    fn conditions_change() {
        let mut wire = Wire::new(256, 7);
        wire.loss_percent = 10;
        assert!(wire.run(50_000) >= 90);
        wire.buffer_frames = 20;
        assert!(wire.run(50_000) <= 150);
        wire.path.pool_frames = wire.path.least_frames;
        assert!(wire.run(50_000) >= 90, "up from the least");
        wire.loss_percent = 0;
        wire.buffer_frames = 10_000;
        assert!(wire.run(50_000) >= 250, "back to all");
    }

    /// Idle time does not lower the rate: the pool is the same with pauses as without.
    #[test]
    fn pauses_do_not_count() {
        let mut pools = [0; 2];
        for (pool, pauses) in pools.iter_mut().zip([false, true]) {
            let mut wire = Wire::new(256, 1);
            wire.loss_percent = 5;
            for burst in 0..1000 {
                wire.run(50);
                if pauses {
                    wire.path.on_idle(Instant::from_nanos(wire.now_ns));
                    wire.now_ns += burst % 7 * 1_000_000;
                    wire.path.on_busy(Instant::from_nanos(wire.now_ns));
                }
            }
            *pool = wire.path.pool_frames();
        }
        assert_eq!(pools[0], pools[1]);
    }

    /// Frames that overtake each other are not lost.
    #[test]
    fn late_frames_are_not_lost() {
        let mut wire = Wire::new(256, 1);
        for frame in 0..100_000 {
            wire.path.on_gap(1);
            wire.path.on_frame(Instant::from_nanos(frame * 2000));
            wire.path.on_late();
            wire.path.on_frame(Instant::from_nanos(frame * 2000 + 1000));
        }
        assert_eq!(wire.path.pool_frames(), 256);
    }
}
