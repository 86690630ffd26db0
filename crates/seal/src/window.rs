//! Replay window: the counters of one sealing key that were seen. Each is accepted once.
//!
//! Called by `session` and `group` for each frame: `is_new` before its tag is checked, which is cheap, `accept` after.
//!
//! Invariant: a counter for which `accept` was called is never new again, nor is any that lies `WINDOW_FRAMES` or more
//! below the highest accepted.

/// How far a frame may be overtaken: links reorder by a few bursts, `impair` by a queue of 1024 frames.
pub(crate) const WINDOW_FRAMES: u64 = 2048;

const WORDS: usize = (WINDOW_FRAMES / 64) as usize;

#[derive(Debug)]
pub(crate) struct Window {
    /// One above the highest accepted.
    next: u64,
    /// Bit `counter % WINDOW_FRAMES`: accepted. Only those of the last `WINDOW_FRAMES` below `next` mean anything.
    seen: [u64; WORDS],
}

impl Window {
    /// Accepts counters from `first` on.
    pub(crate) fn starting_at(first: u64) -> Self {
        Self {
            next: first,
            seen: [u64::MAX; WORDS],
        }
    }

    #[inline]
    pub(crate) fn is_new(&self, counter: u64) -> bool {
        if counter >= self.next {
            // The last counter of all would leave no `next`.
            return counter != u64::MAX;
        }
        self.next - counter <= WINDOW_FRAMES && !self.is_marked(counter)
    }

    /// Marks a counter that is new and whose frame's tag was right.
    #[inline]
    pub(crate) fn accept(&mut self, counter: u64) {
        if counter >= self.next {
            // Skipped counters may still come.
            if counter - self.next >= WINDOW_FRAMES {
                self.seen = [0; WORDS];
            } else {
                for skipped in self.next..counter {
                    self.seen[word(skipped)] &= !bit(skipped);
                }
            }
            self.next = counter + 1;
        }
        self.seen[word(counter)] |= bit(counter);
    }

    fn is_marked(&self, counter: u64) -> bool {
        self.seen[word(counter)] & bit(counter) != 0
    }
}

fn word(counter: u64) -> usize {
    (counter % WINDOW_FRAMES / 64) as usize
}

fn bit(counter: u64) -> u64 {
    1 << (counter % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Compared with a plain set of all counters seen: new exactly if unseen, not too old, and not below the start.
    #[test]
    fn agrees_with_a_set() {
        let mut dice = fastrand::Rng::with_seed(5);
        for start in [0, 7, 2047, 1 << 40] {
            let mut window = Window::starting_at(start);
            let (mut seen, mut next) = (HashSet::new(), start);
            for _ in 0..50_000 {
                let step = [2, 40, 2100, 5000][dice.usize(..4)];
                let counter = match dice.u64(..3) {
                    0 => next + dice.u64(..step),
                    _ => next.saturating_sub(dice.u64(..step)),
                };
                let new =
                    counter >= start && !seen.contains(&counter) && counter + WINDOW_FRAMES >= next;
                assert_eq!(window.is_new(counter), new, "{counter}, next {next}");
                if new && dice.u64(..4) > 0 {
                    window.accept(counter);
                    seen.insert(counter);
                    next = next.max(counter + 1);
                }
            }
        }
    }

    /// The last counter is refused, and does not overflow.
    #[test]
    fn last_counter_is_refused() {
        let mut window = Window::starting_at(0);
        assert!(!window.is_new(u64::MAX));
        window.accept(u64::MAX - 1);
        assert!(!window.is_new(u64::MAX) && !window.is_new(0));
        assert!(window.is_new(u64::MAX - 2));
    }
}
