//! Numbers of collective operations that trade one thing for another: each with its unit, what it trades, and where it comes from.
//!
//! Which algorithm is used for which length stands in `table`, and `tune` measures it. Left out on purpose: the form of messages, and bounds of what a
//! member may cause.

use std::time::Duration;

/// The numbers of this crate.
pub(crate) struct Tuning {
    pub(crate) eager: Eager,
    pub(crate) long: Long,
    pub(crate) native: Native,
    pub(crate) polling: Polling,
    pub(crate) measuring: Measuring,
}

/// Transfers that are sent without waiting for their receiver.
pub(crate) struct Eager {
    /// Bytes of the longest such transfer, on links with cheap frames or direct reads: a longer one is received in place, which is worth the message
    /// that opens it.
    pub(crate) bytes: usize,
    /// The same over shared memory, as one frame: a longer transfer is read directly, which costs a question and a confirmation.
    pub(crate) on_host_bytes: usize,
    /// The same between hosts, where a message costs as much as copying that many bytes.
    pub(crate) between_hosts_bytes: usize,
    /// Number of such transfers on their way to one member before credit must have returned. Trades memory against waiting senders.
    pub(crate) transfers: usize,
    /// Bytes of credit of all peers together, so that a node's memory does not grow with the cluster, as long as each peer has enough to go on while
    /// credit returns.
    pub(crate) total_bytes: usize,
    /// Most bytes of credit of one peer. Trades memory against waiting senders.
    pub(crate) window_bytes_max: usize,
}

/// Long transfers.
pub(crate) struct Long {
    /// Bytes of the shortest transfers that are read directly where the kernel takes longer for that than two copies: in longer ones the copies would
    /// leave the caches.
    pub(crate) slow_direct_bytes: usize,
    /// Bytes queued in the engine to one peer, beyond which the rest of a long transfer waits here: more would leave the caches.
    pub(crate) feed_bytes: usize,
    /// If frames have at least so many bytes, pieces of a long transfer are one frame, so that they are read in the link's buffer.
    pub(crate) frame_bytes: usize,
    /// Otherwise pieces have about so many bytes: enough to be forwarded while more arrives.
    pub(crate) piece_bytes: usize,
    /// Bytes of the longest pieces over links that gather and scatter long messages, of transfers that are not forwarded. A message is scattered into
    /// place only after its first frames.
    pub(crate) gathered_piece_bytes: usize,
    /// Least number of pieces of such a transfer, if it is long enough: one is received while the next one is on its way.
    pub(crate) gathered_pieces: usize,
    /// Bytes read directly in one poll: a fraction of any `dead_after`, as peers must be answered.
    pub(crate) read_per_poll_bytes: usize,
    /// Bytes read and folded at a time: they stay in the first-level caches.
    pub(crate) fold_bytes: usize,
    /// Elements folded at a time if bytes are unaligned: few enough for the first-level cache.
    pub(crate) unaligned_elements: usize,
    /// Transfers of an all-to-all that a member receives at once: enough to fill its link, few enough that all take part evenly.
    pub(crate) incoming_at_once: usize,
    /// Most bytes of memory that a member takes to combine the parts of an all-gather by hosts; where it would take more, they go round a ring.
    pub(crate) combined_bytes_max: usize,
}

/// Broadcasts by the link.
pub(crate) struct Native {
    /// Members that report to one: keeps both the reports for each window at the root, and the steps of a report, few.
    pub(crate) fan_in: usize,
    /// Frames on their way: fewer than a receiver's ring holds.
    pub(crate) window_frames: usize,
    /// Bytes on their way: many round trips at a fast link's rate, 20 ms at 100 Mbit/s, so that a machine with more processes than cores runs all of
    /// them meanwhile; half of what a port of a small switch, or the broadcast ring of shared memory, holds.
    pub(crate) window_bytes: usize,
    /// Reports for each window. Trades messages to the root against its waiting for them.
    pub(crate) reports_per_window: usize,
    /// Time before a gap is asked for: frames that overtook each other close it by themselves.
    pub(crate) gap_patience: Duration,
    /// Least time before the same question is repeated, which is some round trips. Trades repairs of what is on its way against late repairs.
    pub(crate) ask_min: Duration,
    /// Longest such time.
    pub(crate) ask_max: Duration,
    /// Pause if there was no free slot: nothing tells when one is free.
    pub(crate) slot_pause: Duration,
}

/// When members look after what moves by itself.
pub(crate) struct Polling {
    /// Longest wait without a check. Trades wake-ups against what a lost one costs.
    pub(crate) check_every: Duration,
    /// Interval in milliseconds at which a member polls that calls but never has to wait: well below any `dead_after`, and too long to cost anything.
    pub(crate) poll_every_ms: u64,
    /// Interval in milliseconds at which operations ask about transfers that wait: too long to cost anything.
    pub(crate) ask_every_ms: u64,
}

/// Measuring of algorithms by `tune`: all of these trade its time against certainty.
pub(crate) struct Measuring {
    /// Most runs of an algorithm.
    pub(crate) runs_max: u64,
    /// Least runs of an algorithm: one disturbance in three does not count.
    pub(crate) runs_min: u64,
    /// From messages of so many bytes on, an algorithm is taken for the right one for all longer ones.
    pub(crate) long_bytes: u64,
    /// An algorithm slower than the best by this factor at two lengths in a row is not measured with longer messages …
    pub(crate) hopeless: f64,
    /// … from so many bytes on: the start-up cost of shorter ones tells nothing about longer ones.
    pub(crate) telling_bytes: u64,
    /// Another algorithm must be faster by this factor to be chosen: that gives fewer rules, and none from noise.
    pub(crate) worth_it: f64,
}

pub(crate) const TUNING: Tuning = Tuning {
    eager: Eager {
        bytes: 8 << 10,
        on_host_bytes: 24 << 10,
        between_hosts_bytes: 64 << 10,
        transfers: 8,
        total_bytes: 32 << 20,
        window_bytes_max: 512 << 10,
    },
    long: Long {
        slow_direct_bytes: 1 << 20,
        feed_bytes: 256 << 10,
        frame_bytes: 8 << 10,
        piece_bytes: 32 << 10,
        gathered_piece_bytes: 256 << 10,
        gathered_pieces: 4,
        read_per_poll_bytes: 8 << 20,
        fold_bytes: 64 << 10,
        unaligned_elements: 64,
        incoming_at_once: 8,
        combined_bytes_max: 16 << 20,
    },
    native: Native {
        fan_in: 8,
        window_frames: 256,
        window_bytes: 256 << 10,
        reports_per_window: 4,
        gap_patience: Duration::from_micros(100),
        ask_min: Duration::from_micros(500),
        ask_max: Duration::from_millis(50),
        slot_pause: Duration::from_micros(100),
    },
    polling: Polling {
        check_every: Duration::from_secs(1),
        poll_every_ms: 10,
        ask_every_ms: 1000,
    },
    measuring: Measuring {
        runs_max: 1001,
        runs_min: 3,
        long_bytes: 1 << 20,
        hopeless: 4.0,
        telling_bytes: 64 << 10,
        worth_it: 0.95,
    },
};
