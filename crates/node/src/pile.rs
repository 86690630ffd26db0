//! When a message may wait a moment for those that follow it, so that one call of the link carries them all.
//!
//! Asked by `drive` for each message that was queued, on links whose calls cost more than what they carry. The first messages of a
//! run leave at once. A program that goes on sending without a turn in between is taken to be in a loop, and its next ones pile up
//! until they fill a call. They leave with the next turn at the latest, or with whatever else is sent. A program that
//! stops in such a loop and computes lets what has piled up wait for its next call, as it does with what found no credit; so
//! guesses become rarer each time one was wrong, and slowly more frequent again.
//!
//! Invariants: `bytes` and `messages` are those of the pile, which all are of `kind`; when `drive` has sent what it could, there is
//! no pile: what is left then waits for credit or for the link.

use tsumuji_proto::{Duration, Instant, Lane, NodeId};

/// Messages of a run that leave at once, at least: more than programs send before they wait for answers.
const EAGER_MIN: u32 = 16;
/// At most, after wrong guesses.
const EAGER_MAX: u32 = 4096;
/// So many times as many messages are spared until it is tried with half as many: few wrong guesses in a program that keeps stopping,
/// and an interrupt in a long loop is soon made good.
const FORGIVEN_AFTER: u32 = 8;
/// A pile is full: with the frames' headers, what UDP's longest datagram holds.
const PILE_BYTES: usize = 56 << 10;
/// And when it has so many messages, fewer than a turn sends.
const PILE_MESSAGES: u32 = 48;
/// In a loop, messages follow each other faster than this on average: a call costs 1 to 5 µs.
const LOOP_GAP: Duration = Duration::from_micros(10);
/// Who lets a pile wait longer than this was not in a loop.
const WAIT_MAX: Duration = Duration::from_micros(20);

/// A run of messages without a turn in between, and what of it waits.
#[derive(Debug)]
pub(crate) struct Pile {
    kind: (NodeId, Lane),
    /// Messages of the run.
    run: u32,
    run_since: Instant,
    bytes: usize,
    messages: u32,
    /// When the last of them came.
    piled_at: Instant,
    /// So many messages of a run leave at once.
    eager: u32,
    /// Messages of loops that left at once, and would have waited after fewer wrong guesses.
    spared: u32,
}

impl Pile {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            kind: (NodeId(0), Lane::ordered(0)),
            run: 0,
            run_since: now,
            bytes: 0,
            messages: 0,
            piled_at: now,
            eager: EAGER_MIN,
            spared: 0,
        }
    }

    /// Something waits for the next turn.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.messages > 0
    }

    /// A turn begins, in which all leaves. `now` counts only where something waits.
    #[inline]
    pub(crate) fn on_turn(&mut self, now: Instant) {
        self.leaves(now);
        self.run = 0;
    }

    /// Messages of the run, for `go_on`.
    pub(crate) fn run(&self) -> u32 {
        self.run
    }

    /// The turns since `run` was asked were no turns of the program's: it is where it was.
    pub(crate) fn go_on(&mut self, run: u32) {
        self.run = run;
    }

    /// All leaves now, whatever the reason.
    #[inline]
    pub(crate) fn leaves(&mut self, now: Instant) {
        if self.messages > 0 {
            self.leave(now);
        }
    }

    /// Are messages of this kind being piled up?
    #[inline]
    pub(crate) fn is_open(&self, now: Instant, kind: (NodeId, Lane)) -> bool {
        self.run >= self.eager && kind == self.kind && self.is_loop(now)
    }

    /// The messages of the run follow each other fast.
    #[inline]
    fn is_loop(&self, now: Instant) -> bool {
        now.since(self.run_since) < LOOP_GAP.times(self.run.into())
    }

    /// A message of so many bytes was queued. `true`: it may wait. `false`: it leaves now, and with it what has waited.
    #[inline]
    pub(crate) fn takes(&mut self, now: Instant, kind: (NodeId, Lane), bytes: usize) -> bool {
        self.follow(now, kind);
        let loops = self.run > EAGER_MIN && self.is_loop(now);
        if !loops || self.run <= self.eager {
            if loops {
                self.spare();
            }
            self.leaves(now);
            return false;
        }
        if self.messages > 0 && now.since(self.piled_at) >= WAIT_MAX {
            self.leave(now);
            return false;
        }
        self.bytes += bytes;
        self.messages += 1;
        self.piled_at = now;
        if self.bytes < PILE_BYTES && self.messages < PILE_MESSAGES {
            return true;
        }
        (self.bytes, self.messages) = (0, 0);
        false
    }

    /// A message leaves at once in any case, and with it what has waited.
    #[inline]
    pub(crate) fn passes(&mut self, now: Instant, kind: (NodeId, Lane)) {
        self.follow(now, kind);
        self.leaves(now);
    }

    /// A message goes on with the run, or begins one.
    #[inline]
    fn follow(&mut self, now: Instant, kind: (NodeId, Lane)) {
        if self.run == 0 || kind != self.kind {
            (self.kind, self.run, self.run_since) = (kind, 0, now);
        }
        self.run += 1;
    }

    fn leave(&mut self, now: Instant) {
        if now.since(self.piled_at) >= WAIT_MAX {
            self.run = 0;
            self.eager = (2 * self.eager).min(EAGER_MAX);
        }
        (self.bytes, self.messages) = (0, 0);
    }

    /// A message of a loop leaves at once, as guesses were wrong before.
    fn spare(&mut self) {
        self.spared += 1;
        if self.spared >= FORGIVEN_AFTER * self.eager {
            self.spared = 0;
            self.eager = (self.eager / 2).max(EAGER_MIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: (NodeId, Lane) = (NodeId(1), Lane::ordered(0));

    /// `count` messages of `bytes`, one a microsecond from `from_us` on: which of them did not wait.
    fn run(pile: &mut Pile, from_us: u64, count: u64, bytes: usize) -> Vec<u64> {
        (0..count)
            .filter(|i| !pile.takes(at(from_us + i), KIND, bytes))
            .collect()
    }

    fn at(us: u64) -> Instant {
        Instant::from_nanos(1000 * us)
    }

    /// The first of a run leave at once, later ones when they fill a call, by bytes or by number.
    #[test]
    fn loops_pile_up() {
        let mut pile = Pile::new(at(0));
        let left = run(&mut pile, 0, 40, 8 << 10);
        let eager: Vec<u64> = (0..16).collect();
        assert_eq!(left[..16], eager);
        assert_eq!(left[16..], [22, 29, 36]);
        assert!(pile.waits());
        pile.on_turn(at(40));
        assert!(!pile.waits());
        let left = run(&mut pile, 41, 16 + 96, 8);
        assert_eq!(left[..16], eager, "a turn ends a run");
        assert_eq!(left[16..], [16 + 47, 16 + 95]);
    }

    /// Nothing waits in a program that sends now and then; nor what goes elsewhere, which takes along what waits.
    #[test]
    fn others_do_not_wait() {
        let mut pile = Pile::new(at(0));
        assert!((0..1000).all(|i| !pile.takes(at(50 * i), KIND, 8)));
        pile.on_turn(at(60_000));
        run(&mut pile, 60_000, 20, 8);
        assert!(pile.waits());
        assert!(!pile.takes(at(60_021), (NodeId(2), Lane::ordered(0)), 8));
        assert!(!pile.waits());
        run(&mut pile, 60_030, 20, 8);
        assert!(!pile.takes(at(60_051), (NodeId(1), Lane::ordered(1)), 8));
        assert!(!pile.waits());
    }

    /// Messages that leave at once in any case are of a run, too, and take along what waits.
    #[test]
    fn runs_go_on() {
        let mut pile = Pile::new(at(0));
        for i in 0..16 {
            assert!(!pile.is_open(at(i), KIND));
            pile.passes(at(i), KIND);
        }
        assert!(pile.is_open(at(16), KIND) && !pile.is_open(at(16), (NodeId(2), KIND.1)));
        assert!(!pile.is_open(at(1000), KIND), "no loop is so slow");
        assert!(pile.takes(at(16), KIND, 8) && pile.waits());
        pile.passes(at(17), KIND);
        assert!(!pile.waits());
    }

    /// A wait of the sender's own ends no run.
    #[test]
    fn runs_outlast_waits_for_the_peer() {
        let mut pile = Pile::new(at(0));
        run(&mut pile, 0, 40, 8);
        let messages = pile.run();
        pile.on_turn(at(40));
        assert!(!pile.waits() && !pile.is_open(at(40), KIND));
        pile.go_on(messages);
        assert!(pile.is_open(at(40), KIND) && pile.takes(at(41), KIND, 8));
    }

    /// Who computes after a loop lets a pile wait once; the next loop as long as that one leaves at once.
    #[test]
    fn wrong_guesses_make_them_rarer() {
        let mut pile = Pile::new(at(0));
        run(&mut pile, 0, 20, 8);
        assert!(pile.waits());
        pile.on_turn(at(1000));
        assert_eq!(run(&mut pile, 1000, 32, 8).len(), 32);
        run(&mut pile, 1032, 1, 8);
        assert!(pile.waits(), "a longer one piles up");
        assert!(
            !pile.takes(at(5000), KIND, 8),
            "who comes late takes all along"
        );
        assert_eq!(run(&mut pile, 5001, 60, 8).len(), 60);
        for turn in 1..20 {
            run(&mut pile, turn * 10_000, 2 * u64::from(EAGER_MAX) + 7, 8);
            pile.on_turn(at(turn * 10_000 + 9_999));
        }
        assert_eq!(pile.eager, EAGER_MAX);
    }

    /// Loops that never stop pile up again, also after many interruptions.
    #[test]
    fn wrong_guesses_are_forgiven() {
        let mut pile = Pile::new(at(0));
        pile.eager = EAGER_MAX;
        for turn in 1..200 {
            run(&mut pile, turn * 10_000, 512, 8 << 10);
            pile.leaves(at(turn * 10_000 + 512));
            pile.on_turn(at(turn * 10_000 + 513));
        }
        assert_eq!(pile.eager, EAGER_MIN);
        pile.eager = 32;
        let wrong = (1000..2000u64).filter(|turn| {
            let before = pile.eager;
            run(&mut pile, turn * 10_000, 20, 8);
            pile.on_turn(at(turn * 10_000 + 9_000));
            pile.eager > before
        });
        assert!(wrong.count() < 20, "of 1000 loops that stopped");
    }
}
