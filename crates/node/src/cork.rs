//! Batches: messages that wait for each other, to share frames and calls of the link.
//!
//! `drive` asks here for each message it queues. Only the program begins a batch: without one each message leaves at once, as far as window and link
//! permit. A part of a batch that fills a call of the link leaves before its end.

/// Bytes that fill a call: with headers they fit UDP's longest datagram.
const CALL_BYTES: usize = 56 << 10;

/// Messages that fill a call; fewer than one poll sends.
const CALL_MESSAGES: u32 = 48;

/// A message of this size and more gains nothing by sharing a frame.
const ALONE_BYTES: usize = 4 << 10;

/// The batch under way, and its waiting messages.
#[derive(Debug, Default)]
pub(crate) struct Cork {
    /// Batches nest.
    depth: u32,
    bytes: usize,
    messages: u32,
}

impl Cork {
    pub(crate) fn begin(&mut self) {
        self.depth += 1;
    }

    /// Ends a batch. Returns `true` if waiting messages must leave now. An end without a beginning has no effect.
    pub(crate) fn end(&mut self) -> bool {
        self.depth = self.depth.saturating_sub(1);
        self.depth == 0 && self.messages > 0
    }

    pub(crate) fn is_in(&self) -> bool {
        self.depth > 0
    }

    /// Whether a message of so many bytes need not wait for others.
    #[inline]
    pub(crate) fn passes(&self, bytes: usize) -> bool {
        self.depth == 0 || bytes >= ALONE_BYTES
    }

    /// Counts a queued message. Returns `true` if it waits; `false`: it leaves now with all that wait.
    #[inline]
    pub(crate) fn holds(&mut self, bytes: usize, more: bool) -> bool {
        if self.depth == 0 && !more {
            return false;
        }
        self.bytes += bytes;
        self.messages += 1;
        self.bytes < CALL_BYTES && self.messages < CALL_MESSAGES
    }

    /// Everything that waits leaves now.
    #[inline]
    pub(crate) fn leaves(&mut self) {
        (self.bytes, self.messages) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a batch nothing waits; in one messages wait until they fill a call, by bytes or by number.
    #[test]
    fn batches_wait_until_they_fill_a_call() {
        let mut cork = Cork::default();
        let left = |cork: &mut Cork, count: usize, bytes: usize| {
            let leaves = |cork: &mut Cork| {
                let leaves = !cork.holds(bytes, false);
                if leaves {
                    cork.leaves();
                }
                leaves
            };
            (0..count).filter(|_| leaves(cork)).count()
        };
        assert_eq!(left(&mut cork, 100, 8), 100);
        cork.begin();
        assert_eq!(left(&mut cork, 100, 8), 2);
        assert_eq!(left(&mut cork, 15, 8 << 10), 2);
        assert!(!cork.passes(8) && cork.passes(8 << 10));
        assert!(cork.end(), "some wait");
        cork.leaves();
        assert!(!cork.end() && !cork.is_in());
        assert_eq!(left(&mut cork, 1, 8), 1);
    }

    /// The outermost of nested batches counts.
    #[test]
    fn batches_nest() {
        let mut cork = Cork::default();
        cork.begin();
        cork.begin();
        assert!(cork.holds(8, false));
        assert!(!cork.end() && cork.holds(8, false));
        assert!(cork.end());
    }

    /// A message that is followed by more waits for them without a batch.
    #[test]
    fn more_waits_for_what_follows() {
        let mut cork = Cork::default();
        assert!(cork.holds(8, true));
        assert!(!cork.holds(8, false));
    }
}
