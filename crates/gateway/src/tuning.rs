//! Numbers of the gateway that trade one thing for another: each with its unit, what it trades, and where it comes from.
//!
//! Left out on purpose: bounds of what programs and other hosts may cause, and the size of rings, which is the segments' form.

use std::time::Duration;

/// The numbers of this crate.
pub(crate) struct Tuning {
    /// Bytes of a message. Trades the cost of messages against the delay of other streams.
    pub(crate) piece_bytes: usize,
    /// Most bytes of a stream before the next stream is served. Trades calls against evenness between streams.
    pub(crate) served_bytes_max: usize,
    /// Bytes that a channel holds for a program that does not read, beside the program's ring. Trades memory against waiting senders.
    pub(crate) budget_bytes: usize,
    /// Connections to the mailbox that are let in at a time, so that streams have their turns between them; the kernel reports the others again.
    pub(crate) let_in_max: usize,
    /// Segments without streams that are kept for their next ones. Trades memory against making segments.
    pub(crate) idle_segments_max: usize,
    /// Every how many-th step without a sleep asks the kernel whether programs have gone. Trades system calls against late notice.
    pub(crate) ask_every: u32,
    /// How often the host's addresses are read, and memory of programs that are gone is released.
    pub(crate) read_addresses_every: Duration,
    /// Longest sleep, so that a signal that came just before is noticed.
    pub(crate) sleep: Duration,
    /// Time without users after which a gateway that serves while it is used ends.
    pub(crate) unused: Duration,
}

pub(crate) const TUNING: Tuning = Tuning {
    piece_bytes: 64 << 10,
    served_bytes_max: 256 << 10,
    budget_bytes: 512 << 10,
    let_in_max: 256,
    idle_segments_max: 32,
    ask_every: 32,
    read_addresses_every: Duration::from_secs(5),
    sleep: Duration::from_millis(500),
    unused: Duration::from_secs(10),
};
