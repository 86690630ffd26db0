//! Listeners of other hosts whose connections are short: what an offer takes, the round trip between the gateways above all, is more than it gives.
//!
//! Each connection that ends is judged. After a few short ones in a row the next go by TCP, for a time that grows while further ones are short; the
//! first after it is offered again. A longer one makes all be forgotten.

use std::sync::atomic::Ordering;

use crate::address::{Address, Pair};
use crate::lock::Locked;
use crate::ring::CLIENT;
use crate::sys;
use crate::table::Use;
use crate::tuning::TUNING;

/// Listeners that are remembered.
const MEMORY: usize = 16;

/// What is known of a listener.
#[derive(Debug, Clone, Copy)]
struct Known {
    target: Address,
    /// In a row; 0: nothing is known.
    shorts: u32,
    until_ns: u64,
}

struct Memory([Known; MEMORY]);

static MEMORIES: Locked<Memory> = Locked::new(Memory::EMPTY);

impl Memory {
    const EMPTY: Self = Self(
        [Known {
            target: Address {
                ip: [0; 16],
                port: 0,
            },
            shorts: 0,
            until_ns: 0,
        }; MEMORY],
    );

    fn pauses(&self, target: &Address, now_ns: u64) -> bool {
        let known = self
            .0
            .iter()
            .find(|one| one.shorts > 0 && one.target == *target);
        known.is_some_and(|one| now_ns < one.until_ns)
    }

    fn note(&mut self, target: Address, is_short: bool, now_ns: u64) {
        let at = self
            .0
            .iter()
            .position(|one| one.shorts > 0 && one.target == target);
        let known = match (at, is_short) {
            (Some(at), _) => &mut self.0[at],
            (None, false) => return,
            // A free entry, or one that another listener loses.
            (None, true) => {
                let free = self.0.iter().position(|one| one.shorts == 0);
                &mut self.0[free.unwrap_or(now_ns as usize / 64 % MEMORY)]
            }
        };
        let before = if known.target == target {
            known.shorts
        } else {
            0
        };
        let shorts = if is_short {
            before.saturating_add(1)
        } else {
            0
        };
        let until_ns = match shorts.checked_sub(TUNING.brief.in_a_row) {
            Some(more) => now_ns + (TUNING.brief.pause_ns << more.min(TUNING.brief.doublings_max)),
            None => 0,
        };
        *known = Known {
            target,
            shorts,
            until_ns,
        };
    }
}

/// Whether the next connection to that listener goes by TCP.
pub(crate) fn is_expected(target: &Address) -> bool {
    MEMORIES.with(|memory| memory.pauses(target, sys::now_ns()))
}

/// A connection ends here. Before its bytes are counted elsewhere.
pub(crate) fn judge(using: &Use) {
    if using.gateway().is_none() || using.side() != CLIENT {
        return;
    }
    let Some(Pair { server, .. }) = Pair::load(&using.slot().pair) else {
        return;
    };
    let own = &using.mine().own;
    let bytes = [&using.sent, &using.received, &own.tcp_sent, &own.tcp_taken];
    let bytes = bytes.map(|bytes| bytes.load(Ordering::Relaxed));
    let now_ns = sys::now_ns();
    let lived_ns = now_ns.saturating_sub(using.began_ns.load(Ordering::Relaxed));
    let is_short =
        bytes.iter().sum::<u64>() < TUNING.brief.bytes && lived_ns < TUNING.brief.lifetime_ns;
    MEMORIES.with(|memory| memory.note(server, is_short, now_ns));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(port: u16) -> Address {
        Address { ip: [7; 16], port }
    }

    /// Short connections in a row make the next go by TCP, each further for longer, up to a bound; a long one ends that.
    #[test]
    fn short_ones_pause() {
        let mut memory = Memory::EMPTY;
        let (one, other) = (listener(1), listener(2));
        for _ in 1..TUNING.brief.in_a_row {
            memory.note(one, true, 0);
            assert!(!memory.pauses(&one, 0));
        }
        let mut before_ns = 0;
        for more in 0..9 {
            memory.note(one, true, 0);
            let pause_ns = TUNING.brief.pause_ns << more.min(TUNING.brief.doublings_max);
            assert!(memory.pauses(&one, pause_ns - 1) && !memory.pauses(&one, pause_ns));
            assert!(pause_ns >= before_ns);
            before_ns = pause_ns;
        }
        assert!(!memory.pauses(&other, 0));
        memory.note(one, false, 0);
        assert!(!memory.pauses(&one, 0));
        memory.note(one, true, 0);
        assert!(!memory.pauses(&one, 0), "counted from the beginning");
    }

    /// More listeners than are remembered displace each other, and none gets another's count.
    #[test]
    fn memory_is_bounded() {
        let mut memory = Memory::EMPTY;
        for round in 0..u64::from(TUNING.brief.in_a_row) {
            for port in 1..=100 {
                memory.note(listener(port), true, 64 * (round * 100 + u64::from(port)));
            }
        }
        let known = memory.0.iter().filter(|one| one.shorts > 0);
        assert_eq!(known.count(), MEMORY);
        memory.note(listener(999), true, 0);
        assert!(!memory.pauses(&listener(999), 0));
    }
}
