//! The lower limit of any message through shared memory: one cache line that two cores pass to each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::{pin_to, relax};
use crate::stats::{HalfRtt, RoundTrips};

/// Two lines, because processors fetch neighbours in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Half-round-trip of a counter in one cache line between two cores.
pub fn pingpong(cpus: Option<[usize; 2]>, iterations: u64) -> HalfRtt {
    // Odd: the question; even: its answer.
    let line = Arc::new(Line::default());
    let last = 2 * iterations;
    std::thread::scope(|scope| {
        let echo = Arc::clone(&line);
        scope.spawn(move || {
            pin_to(cpus, 1);
            for answer in (2..=last).step_by(2) {
                while echo.0.load(Ordering::Acquire) != answer - 1 {
                    relax(cpus);
                }
                echo.0.store(answer, Ordering::Release);
            }
        });
        let asker = scope.spawn(move || {
            pin_to(cpus, 0);
            let mut trips = RoundTrips::default();
            let mut before = Instant::now();
            for answer in (2..=last).step_by(2) {
                line.0.store(answer - 1, Ordering::Release);
                while line.0.load(Ordering::Acquire) != answer {
                    relax(cpus);
                }
                trips.record_since(&mut before, answer / 2 - 1, iterations);
            }
            trips.half()
        });
        asker.join().expect("the asking thread does not panic")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both sides see every change, pinned or not.
    #[test]
    fn takes_all_turns() {
        for cpus in [None, crate::machine::two_cpus()] {
            assert!(pingpong(cpus, 200).min > 0.0);
        }
    }
}
