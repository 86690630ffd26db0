//! Limits of this machine: the same exchanges without header, acknowledgement or protocol.
//!
//! Each limit takes the two cores it may use and returns results like our own benchmark, so that they can be compared. They share no code with the
//! programs they are compared with; `bulk` and `broadcast` are the exception: the link alone, to show the cost of the engine above it.

pub mod bandwidth;
pub mod broadcast;
pub mod bulk;
pub mod cacheline;
pub mod copy;
pub mod place;
pub mod tcp;
mod timing;
pub mod udp;

/// Empty polls between two readings of a clock or of a flag: an exchange by hand needs no more. That our endpoints read a clock at each poll is part of
/// what they cost.
const POLLS_PER_CHECK: u32 = 4096;

/// Counts polls, and says when a clock or a flag is to be read.
#[derive(Debug, Default)]
pub(crate) struct Checks(u32);

impl Checks {
    /// Whether this poll is one of those.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        self.0 = self.0.wrapping_add(1);
        self.0.is_multiple_of(POLLS_PER_CHECK)
    }
}

/// Binds the calling thread of a limit, if there are two cores to choose from.
pub(crate) fn pin_to(cpus: Option<[usize; 2]>, side: usize) {
    if let Some(cpus) = cpus {
        let _ = crate::machine::pin(cpus[side]); // unpinned figures are worse, not wrong
    }
}

/// Binds the calling thread to the core of that node, if each of `nodes` has one.
pub(crate) fn core_of(node: usize, nodes: usize) {
    let cores = crate::machine::cpus();
    if nodes <= cores.len() {
        let _ = crate::machine::pin(cores[node]); // unpinned figures are worse, not wrong
    }
}

/// Spins if there are two cores; else yields the only one to the other side.
#[inline]
pub(crate) fn relax(cpus: Option<[usize; 2]>) {
    if cpus.is_some() {
        std::hint::spin_loop()
    } else {
        std::thread::yield_now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One poll of so many is a check, also after the count has wrapped.
    #[test]
    fn checks_are_seldom() {
        for first in [0, u32::MAX - 10] {
            let mut checks = Checks(first);
            let due = (0..3 * POLLS_PER_CHECK).filter(|_| checks.is_due());
            assert_eq!(due.count(), 3);
        }
    }
}
