//! Numbers of the engine that trade one thing for another: each with its unit, what it trades, and where it comes from.
//!
//! One side may choose each of them alone. Where a rule of docs/protocol.md states the number as ours, the rule is named: it is to be changed there, too.
//! Left out on purpose: what both sides must agree on, bounds of what a peer may cause, and defaults of options that programs set.

use crate::time::Duration;

/// The numbers of the engine.
pub(crate) struct Tuning {
    pub(crate) credit: Credit,
    pub(crate) path: Path,
    pub(crate) suci: Suci,
    pub(crate) acks: Acks,
    pub(crate) loss: Loss,
    pub(crate) pace: Pace,
    pub(crate) messages: Messages,
    pub(crate) datagrams: Datagrams,
    pub(crate) session: Session,
}

/// Credit that a receiver grants.
pub(crate) struct Credit {
    /// How many senders are granted scheduled credit at once. More of them keep the receive side busy when one stalls; fewer let short messages
    /// finish sooner and need less switch buffer.
    pub(crate) scheduled_senders: usize,
    /// Most frames that an idle peer may send without further permission, at first: as many as a program's loop sends between two steps of its
    /// work. With many peers, R-21 and R-27 leave each less.
    pub(crate) unscheduled_frames: u64,
    /// This part of the window, as a divisor, is kept for peers that are added later. Otherwise credit that one peer was granted and does not use
    /// could leave nothing to promise to a new one.
    pub(crate) kept_divisor: u64,
    /// Each peer that is added later is promised at most this part, as a divisor, of what is left of the kept frames.
    pub(crate) promised_divisor: u64,
}

/// How many frames may be on their way to a node.
pub(crate) struct Path {
    /// Losses do not shrink the pool below this and one frame for each peer: enough for 10 Gbit/s × 40 µs.
    pub(crate) pool_frames_min: u64,
    /// Least number of frames in a measurement: of 5 % loss it finds 10 ± 3.
    pub(crate) measured_frames_min: u64,
    /// Where frames may be lost, the pool begins no larger than this, because the first measurement would come too late for a first burst that no switch
    /// holds. Enough for 10 Gbit/s × 300 µs.
    pub(crate) pool_frames_first: u64,
    /// With many peers, the pool begins with so many frames for each: each may send half of it without further permission, a few small messages.
    pub(crate) peer_frames_first: u64,
    /// Loss up to this, in millionths, starts no trial.
    pub(crate) tolerated_ppm: u64,
    /// Loss beyond this, in millionths, halves the pool without a trial: a quarter less would not change the rate of a pool that overflows so much.
    pub(crate) gross_ppm: u64,
    /// When neither a smaller nor a larger pool was better, the next trial waits for this many measurements. Trades trials in vain against the time
    /// until a path that has changed is noticed.
    pub(crate) rest_measurements: u32,
}

/// The congestion control `suci`.
pub(crate) struct Suci {
    /// A grant of which nothing arrived for this long no longer counts when others wait, because it or its frames were lost. Many round trips of
    /// a local network.
    pub(crate) grant_lifetime: Duration,
    /// The window in frames until the program chooses another, if the link may lose frames: a switch may hold less than our receive side, and
    /// senders that go back for each loss must not fill it. The paper's window is what a UDP socket held in its day, 64 KiB or some dozens of frames.
    pub(crate) window_frames: u64,
    /// How many waiting peers are visited after each frame: the next frame comes soon, and should cost little.
    pub(crate) calls_per_frame: usize,
    /// How many waiting peers are visited after an ask, or when memory comes free.
    pub(crate) calls_per_ask: usize,
}

/// Acknowledgements. All of these trade frames without data against waiting senders.
pub(crate) struct Acks {
    /// How long an acknowledgement may be delayed. Part of every time-out of its sender, too.
    pub(crate) delay: Duration,
    /// An acknowledgement is sent after this many frames at the latest, and sooner if the peer's window is small.
    pub(crate) frames_max: u32,
    /// An acknowledgement is also sent after this many bytes of payload: a sender that goes on copies what is not acknowledged of a long message.
    pub(crate) bytes: usize,
    /// While a gap is open, it is reported again after this many frames.
    pub(crate) frames_per_gap_report: u32,
}

/// When frames count as lost, and what silence causes.
pub(crate) struct Loss {
    /// A frame is lost when this many later ones have arrived; doubles each time that turns out wrong. Trades repairs of what is only late against late
    /// repairs.
    pub(crate) reordering_frames: u64,
    /// Upper limit of that number.
    pub(crate) reordering_frames_max: u64,
    /// At most this many unanswered numbers count as the tail: the last of what there was to send, and their repairs.
    pub(crate) tail_frames: usize,
    /// The round trip before the first sample arrives.
    pub(crate) initial_rtt: Duration,
    /// Shortest time-out: shorter ones measure the peer's scheduler, not the network.
    pub(crate) probe_min: Duration,
    /// Longest time-out, however often it was doubled: longer ones do not help on a dead link.
    pub(crate) probe_max: Duration,
    /// Time between probes that a program brings forward, at least: it may call in a loop while the peer does not run.
    pub(crate) repairs_apart: Duration,
}

/// Pacing by round trips.
pub(crate) struct Pace {
    /// The shortest round trip is that of the last one or two of these periods, because the path may become longer.
    pub(crate) shortest_kept: Duration,
    /// Immediate answers that are requested in each window, so that it moves smoothly.
    pub(crate) asks_per_window: u64,
}

/// Copies of messages, and memory.
pub(crate) struct Messages {
    /// Shared messages of fewer bytes are copied: that is cheaper, and releases the program's memory at once.
    pub(crate) shared_bytes: usize,
    /// Approximate bytes of a piece of a borrowed message that is retained: large enough to be copied fast, small enough to be released soon.
    pub(crate) piece_bytes: usize,
    /// A direct message has at most this part of a ring, as a divisor: others are on their way, too.
    pub(crate) ring_divisor: usize,
    /// Bytes of payload of each frame of a direct message of several frames: short, because the receiver copies one while the next is written.
    pub(crate) part_bytes: usize,
    /// Bytes of unused buffers kept at most. Large ones are worth keeping most: new ones cost a page fault every 4 KiB.
    pub(crate) kept_bytes: usize,
    /// Number of unused bitmaps kept at most. Trades memory against allocations.
    pub(crate) kept_bitmaps: usize,
}

/// Datagrams.
pub(crate) struct Datagrams {
    /// Datagrams of one frame that wait for a slot of the link, at most: more would only become outdated.
    pub(crate) waiting_max: usize,
    /// When none of them could leave, all are tried again after this time, and after twice as long each further time: a peer's ring may stay full while
    /// its process is stopped.
    pub(crate) retry: Duration,
    /// The longest such time. Trades the delay of datagrams against tries in vain.
    pub(crate) retry_max: Duration,
    /// An incomplete datagram is dropped if no fragment of it came for this long: its sender has dropped it, or its last fragments are lost. This
    /// is far beyond any reordering, and a datagram this late is of no use.
    pub(crate) patience: Duration,
}

/// Sessions, and questions to peers.
pub(crate) struct Session {
    /// First wait for a welcome. Later waits double.
    pub(crate) retry: Duration,
    /// The longest such wait. Trades the time until a peer that comes late is met against frames to peers that are not there.
    pub(crate) retry_max: Duration,
    /// A peer is asked for its window at most this often: many round trips of a local network, and a program may ask in a loop.
    pub(crate) window_asked_each: Duration,
}

pub(crate) const TUNING: Tuning = Tuning {
    credit: Credit {
        scheduled_senders: 4,
        unscheduled_frames: 256,
        kept_divisor: 8,
        promised_divisor: 4,
    },
    path: Path {
        pool_frames_min: 32,
        measured_frames_min: 192,
        pool_frames_first: 256,
        peer_frames_first: 8,
        tolerated_ppm: 20_000,
        gross_ppm: 333_333,
        rest_measurements: 16,
    },
    suci: Suci {
        grant_lifetime: Duration::from_millis(10),
        window_frames: 256,
        calls_per_frame: 4,
        calls_per_ask: 64,
    },
    acks: Acks {
        delay: Duration::from_micros(50),
        frames_max: 32,
        bytes: 128 << 10,
        frames_per_gap_report: 4,
    },
    loss: Loss {
        reordering_frames: 3,
        reordering_frames_max: 64,
        tail_frames: 4,
        initial_rtt: Duration::from_millis(1),
        probe_min: Duration::from_micros(500),
        probe_max: Duration::from_millis(200),
        repairs_apart: Duration::from_millis(1),
    },
    pace: Pace {
        shortest_kept: Duration::from_secs(2),
        asks_per_window: 4,
    },
    messages: Messages {
        shared_bytes: 4 << 10,
        piece_bytes: 64 << 10,
        ring_divisor: 4,
        part_bytes: 16 << 10,
        kept_bytes: 256 << 20,
        kept_bitmaps: 256,
    },
    datagrams: Datagrams {
        waiting_max: 64,
        retry: Duration::from_micros(250),
        retry_max: Duration::from_millis(32),
        patience: Duration::from_secs(1),
    },
    session: Session {
        retry: Duration::from_millis(1),
        retry_max: Duration::from_millis(200),
        window_asked_each: Duration::from_millis(1),
    },
};
