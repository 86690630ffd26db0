//! Numbers of learning that trade one thing for another: each with its unit, what it trades, and where it comes from.
//!
//! Left out on purpose: tolerances of the methods, which follow from rounding, and bounds of data and messages.

use std::time::Duration;

/// The numbers of this crate.
pub(crate) struct Tuning {
    /// Steps of SGD in one process between two questions whether the user wants to stop: some milliseconds.
    pub(crate) steps_per_poll: u64,
    /// Rows that are scored at a time: all of them, not scaled, would take as much memory as the data.
    pub(crate) scored_rows: usize,
    pub(crate) sgd: Sgd,
    pub(crate) gossip: Gossip,
    pub(crate) worker: Worker,
    pub(crate) beside: Beside,
    pub(crate) judge: Judge,
    pub(crate) tcp: Tcp,
}

/// Stochastic gradient descent, where the user does not say.
pub(crate) struct Sgd {
    /// Steps that an epoch has at least, where there are rows enough. Trades steps against rows of a step.
    pub(crate) steps_min: usize,
    /// Rows of a step at most.
    pub(crate) batch_max: usize,
    /// Rows that are taken one after the other, so that the processor fetches them ahead.
    pub(crate) stretch_rows: usize,
    /// Fewest stretches of an epoch, so that few rows come in a random order, too.
    pub(crate) stretches_min: usize,
    /// Rows by which the common direction is sought. Trades time before the first step against a poor rate.
    pub(crate) sought_rows: usize,
    /// How often they are gone through for that.
    pub(crate) sought_times: usize,
}

/// Exchanges between workers.
pub(crate) struct Gossip {
    /// Most workers that `Average::Auto` lets tell all others; the example `simulated_gossip` compares both ways.
    pub(crate) table_workers_max: usize,
    /// Exchanges of a version without a pause. If these are not enough, somebody may be cut off.
    pub(crate) free_pushes: u32,
    /// Values of rows that are computed with between two polls, at most: long against a poll.
    pub(crate) work_values: usize,
    /// Polls between two exchanges of SGD, where the user states no period: an exchange takes some microseconds.
    pub(crate) polls_per_period: usize,
    /// Fewest steps of such a period: the longer a row, the longer the parameters that are exchanged.
    pub(crate) period_steps_min: usize,
    /// Most periods after which an answer is taken for lost; at most an epoch. A period shorter than the work between two polls counts as long as that
    /// work.
    pub(crate) patience_periods: u64,
}

/// A worker's waits and messages.
pub(crate) struct Worker {
    /// Most polls between two steps: so many take all frames of the largest receive buffers.
    pub(crate) polls_per_step_max: usize,
    /// Longest wait for messages, which end it.
    pub(crate) wait: Duration,
    /// Longest wait while messages of our own wait for room, or sockets are polled. Trades processor time against their delay.
    pub(crate) contended: Duration,
    /// Wait for a statistic before it is asked for again: long compared with a round trip. Each time it doubles, for who makes it may take long.
    pub(crate) repeat: Duration,
    /// The longest such wait: the delay that the loss of a late statistic costs.
    pub(crate) repeat_max: Duration,
    /// A worker that has waited for the others for so long, and for what may come over a slow link, tells the judge.
    pub(crate) silence: Duration,
    /// Messages that wait for room; more stay with the thread that makes them.
    pub(crate) waiting_max: usize,
    /// How long to wait for the acknowledgement of the last messages.
    pub(crate) flush_within: Duration,
}

/// Queues between a worker's threads.
pub(crate) struct Beside {
    /// Messages that wait in one direction. A datagram that finds no place is lost, as by a full link.
    pub(crate) messages: usize,
    /// Bytes of arrived messages that wait, beside one message of any length.
    pub(crate) bytes: usize,
    /// Messages taken between two steps: so many as the polling thread takes frames. Whoever sends faster than that holds up no steps.
    pub(crate) messages_per_step: usize,
}

/// The judge's waits and messages.
pub(crate) struct Judge {
    /// Bytes of rows in one message: large enough to be cheap, small against any budget.
    pub(crate) chunk_bytes: usize,
    /// Longest wait for an answer, which ends it: each wait takes some 50 µs of a core that a worker needs.
    pub(crate) wait: Duration,
    /// Time between two checks whether a worker's process is alive.
    pub(crate) check_every: Duration,
    /// After a worker fell silent: how long its cause is asked for, once all else is done.
    pub(crate) cause_within: Duration,
    /// How long the last orders may take to be acknowledged.
    pub(crate) flush_within: Duration,
}

/// Exchanges by sockets of TCP.
pub(crate) struct Tcp {
    /// Bytes that wait for one socket before parameters are dropped. Statistics of two versions always find room.
    pub(crate) queue_bytes: usize,
    /// Frames of the present length that always find room.
    pub(crate) queue_frames: usize,
    /// Bytes of one read. Trades memory against system calls.
    pub(crate) read_bytes: usize,
}

pub(crate) const TUNING: Tuning = Tuning {
    steps_per_poll: 256,
    scored_rows: 1024,
    sgd: Sgd {
        steps_min: 256,
        batch_max: 32,
        stretch_rows: 256,
        stretches_min: 64,
        sought_rows: 2048,
        sought_times: 20,
    },
    gossip: Gossip {
        table_workers_max: 128,
        free_pushes: 512,
        work_values: 1 << 15,
        polls_per_period: 2,
        period_steps_min: 32,
        patience_periods: 64,
    },
    worker: Worker {
        polls_per_step_max: 64,
        wait: Duration::from_millis(5),
        contended: Duration::from_micros(200),
        repeat: Duration::from_millis(2),
        repeat_max: Duration::from_millis(64),
        silence: Duration::from_secs(30),
        waiting_max: 64,
        flush_within: Duration::from_secs(1),
    },
    beside: Beside {
        messages: 256,
        bytes: 4 << 20,
        messages_per_step: 64,
    },
    judge: Judge {
        chunk_bytes: 256 << 10,
        wait: Duration::from_millis(20),
        check_every: Duration::from_millis(20),
        cause_within: Duration::from_secs(1),
        flush_within: Duration::from_millis(500),
    },
    tcp: Tcp {
        queue_bytes: 1 << 20,
        queue_frames: 4,
        read_bytes: 64 << 10,
    },
};
