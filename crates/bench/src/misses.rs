//! Misses of the nearest data cache, read from the processor's counters (`perf_event_open`) where the machine has them.
//!
//! Used by `sum32`. Virtual machines often have no such counters; then [`Misses::open`] says so.

use std::io;
use std::sync::{Mutex, PoisonError};

use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Event};
use perf_event::{Builder, Counter};

/// Counts reads that missed the nearest data cache, outside the kernel: of the thread that opens it, and of threads and processes that are started later
/// by any that is counted.
#[derive(Debug)]
pub struct Misses(Mutex<Counter>);

impl Misses {
    /// Begins to count. Fails where the machine has no such counter, or the system does not let this user read it.
    pub fn open() -> io::Result<Self> {
        Self::of(Cache {
            which: CacheId::L1D,
            operation: CacheOp::READ,
            result: CacheResult::MISS,
        })
    }

    fn of(event: impl Event) -> io::Result<Self> {
        let mut counter = Builder::new(event).inherit(true).build()?;
        counter.enable()?;
        Ok(Self(Mutex::new(counter)))
    }

    /// Misses so far; `None`: the counter cannot be read any more.
    pub fn count(&self) -> Option<u64> {
        let mut counter = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counter.read().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_event::events::Software;

    /// Threads that are started later are counted, too; here their time, which every machine can count.
    #[test]
    fn later_threads_are_counted() {
        let Ok(counter) = Misses::of(Software::TASK_CLOCK) else {
            return eprintln!("skipped: this system lets nobody count (perf_event_paranoid)");
        };
        let before = counter.count().unwrap();
        let work = || (0..1_000_000_u64).map(std::hint::black_box).sum::<u64>();
        assert!(std::thread::spawn(work).join().unwrap() > 0);
        let counted_ns = counter.count().unwrap() - before;
        assert!(counted_ns >= 100_000, "{counted_ns}"); // 0.1 ns an addition
    }
}
