//! The lower limit of any message through shared memory: one cache line that two cores pass to each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::timing::{Timing, in_all};
use super::{pin_to, relax};
use crate::ops::Sample;

/// Two lines, because processors fetch neighbours in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Half-round-trip of a counter in one cache line between two cores.
pub fn pingpong(cpus: Option<[usize; 2]>, iterations: u64) -> Sample {
    // Odd: the question; even: its answer.
    let line = Arc::new(Line::default());
    let last = 2 * in_all(iterations);
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
            let (mut timing, mut answer) = (Timing::new(iterations, None), 0);
            while timing.begins() {
                answer += 2;
                line.0.store(answer - 1, Ordering::Release);
                while line.0.load(Ordering::Acquire) != answer {
                    relax(cpus);
                }
                timing.ends();
            }
            timing.sample()
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
            assert!(pingpong(cpus, 200).half_rtt_us.unwrap().min > 0.0);
        }
    }
}
