//! What it costs to wake a sleeping thread: two threads that wake each other in turn.

use std::io;
use std::thread;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};

use crate::machine;
use crate::stats::Rounds;

/// Median time, in microseconds, from a thread's word to another's that sleeps in the kernel to its waking, with each on a core of its own if there
/// are two.
pub fn wake_us(wakes: usize) -> io::Result<f64> {
    let cpus = machine::two_cpus();
    let (ping, pong) = (
        eventfd(0, EventfdFlags::CLOEXEC)?,
        eventfd(0, EventfdFlags::CLOEXEC)?,
    );
    let word = 1_u64.to_ne_bytes();
    thread::scope(|scope| {
        let other = scope.spawn(|| -> io::Result<()> {
            let _pinned = machine::pinned(cpus.map(|[_, other]| other))?;
            for _ in 0..wakes {
                read(&ping, &mut [0; 8])?;
                write(&pong, &word)?;
            }
            Ok(())
        });
        let measured = || -> io::Result<f64> {
            let _pinned = machine::pinned(cpus.map(|[own, _]| own))?;
            let mut halves = Vec::with_capacity(wakes);
            for _ in 0..wakes {
                let start = Instant::now();
                write(&ping, &word)?;
                read(&pong, &mut [0; 8])?;
                halves.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
            }
            Ok(Rounds::of(&halves).median)
        };
        let half = measured();
        match other.join() {
            Ok(ended) => ended.and(half),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wake-up takes some time, and less than a time slice.
    #[test]
    fn waking_takes_time() {
        let us = wake_us(50).expect("woken");
        assert!(us > 0.1 && us < 100_000.0, "{us}");
    }
}
