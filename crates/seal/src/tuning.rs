//! Numbers of the seal that trade one thing for another: each with its unit, what it trades, and where it comes from.
//!
//! Where a rule of docs/protocol.md states the number, the rule is named: it is to be changed there, too. Left out on purpose: lifetimes of keys and
//! sessions, and bounds of what others may cause. Security decides those, and they stand where they are used.

use std::time::Duration;

/// The numbers of this crate.
pub(crate) struct Tuning {
    /// Multiplications on the curve in one burst, each some 50 µs: frames of sessions wait at most for these.
    pub(crate) handshakes_per_burst: u32,
    /// First gap before an unanswered frame is repeated: a few round trips of a busy host. Doubles with each repetition.
    pub(crate) repeat_gap: Duration,
    /// The longest such gap. Trades frames to peers that are not there against the time until one that comes late is met.
    pub(crate) repeat_gap_max: Duration,
    /// Repetitions: about three seconds in all.
    pub(crate) repeat_times: u32,
    /// Time between two attempts to renew a session, of about three seconds each.
    pub(crate) renew_gap: Duration,
    /// Time between two questions for a peer's broadcast key. Trades frames against broadcasts that cannot be opened.
    pub(crate) group_question_gap: Duration,
    /// Time after which a peer that did not get our broadcast key is told again. Trades frames against broadcasts that it cannot open.
    pub(crate) retell_gap: Duration,
    /// Peers are checked no more often than this.
    pub(crate) upkeep_gap: Duration,
    /// Calls between two readings of the clock for sessions that age, which takes minutes. A program that sleeps reads it each time.
    pub(crate) calls_per_check: u32,
}

pub(crate) const TUNING: Tuning = Tuning {
    handshakes_per_burst: 8,
    repeat_gap: Duration::from_millis(2),
    repeat_gap_max: Duration::from_millis(500),
    repeat_times: 13,
    renew_gap: Duration::from_secs(10),
    group_question_gap: Duration::from_millis(5),
    retell_gap: Duration::from_millis(20),
    upkeep_gap: Duration::from_millis(1),
    calls_per_check: 1024,
};
