//! Numbers of the sockets layer that trade one thing for another: each with its unit, what it trades, and where it comes from.
//!
//! Left out on purpose: bounds of what programs and other processes may cause, times after which a process counts as gone or stopped (they depend on each
//! other, and stand where they are used), and the kernel's own numbers.

use crate::ring::RING_BYTES;

/// The numbers of this library.
pub(crate) struct Tuning {
    pub(crate) idle: Idle,
    pub(crate) waits: Waits,
    pub(crate) kernel: Kernel,
    pub(crate) copies: Copies,
    pub(crate) lock: Lock,
    pub(crate) brief: Brief,
    pub(crate) meeting: Meeting,
    pub(crate) segments: Segments,
}

/// Looking again before a sleep, and yields: processor time against latency.
pub(crate) struct Idle {
    /// Longest time of looking again, in microseconds: less than a sleep and a wake-up cost both sides.
    pub(crate) spin_us: u64,
    /// Failures in a row after which looking again stops.
    pub(crate) failures_max: u32,
    /// Every how many-th wait tries it all the same: twice as rarely after each try that fails.
    pub(crate) try_every: u32,
    /// Most times that it becomes twice as rare.
    pub(crate) doublings_max: u32,
    /// Polls between two readings of the clock.
    pub(crate) polls: u32,
    /// A gap of more nanoseconds between two polls means that the thread was preempted.
    pub(crate) gap_ns: u64,
    /// Nanoseconds without polling after that. Longer ones were worse wherever they were tried: on a busy machine a process that looks gains more than it
    /// loses.
    pub(crate) rest_ns: u64,
    /// Most yields of a waiter before it sleeps.
    pub(crate) yields_max: u32,
    /// A yield that is over within so many nanoseconds nobody has used: the core is free for a sleeper.
    pub(crate) unused_ns: u64,
    /// Yields that take so many nanoseconds, the mean of about the last `yields_averaged`, are to programs that compute: less than Linux's least time
    /// slice on two cores, and several times as long as with 64 clients of small messages and as many threads that serve them.
    pub(crate) late_ns: u64,
    /// Number of yields of that mean.
    pub(crate) yields_averaged: u64,
    /// Nanoseconds without yields after late ones. With longer ones so many of a job's threads sleep that those which let others go before them come back
    /// late, too.
    pub(crate) without_yields_ns: u64,
    /// Calls in a row that found nothing, beyond which a program spins: event loops make one after each event.
    pub(crate) calls_max: u32,
    /// A program that spins makes the next call within so many nanoseconds, unless others had the core.
    pub(crate) together_ns: u64,
}

/// Longest sleeps where a wake-up may be missed: wake-ups against late notice.
pub(crate) struct Waits {
    /// Nanoseconds that a call sleeps on the word, the first and the second time that nothing comes. Ends that nobody tells, as those of killed processes,
    /// are seen so much later; the first is a tick of many kernels, so that time-outs are no coarser. Where many connections share few cores, an answer
    /// often takes longer than that. Not in more steps: a signal that comes between two of them interrupts neither.
    pub(crate) word_ns: [u64; 2],
    /// Sleep in nanoseconds of those who cannot be woken: where the other end's bells would be taken for data.
    pub(crate) deaf_ns: u64,
    /// Sleep in nanoseconds of those who wait for more bytes of TCP than a bell is.
    pub(crate) unheard_ns: u64,
    /// Nanoseconds that a thread sleeps for room before it looks whether another one has shut down sending, of which the kernel knows nothing.
    pub(crate) room_ns: u64,
    /// Nanoseconds that a thread waits for the one that waits in the kernel before it looks whether that one lives.
    pub(crate) follow_ns: u64,
    /// Nanoseconds that `poll` and its like sleep before looking again, where a wake-up may be missed.
    pub(crate) poll_ns: u64,
    /// After so many sleeps that the kernel has ended for nothing, such a call naps before the next.
    pub(crate) fruitless_max: u32,
    /// Microseconds of that nap.
    pub(crate) fruitless_nap_us: u64,
    /// Microseconds that a call sleeps that peeks at more than there is.
    pub(crate) peek_us: u64,
    /// Microseconds between two checks of an end that goes back to TCP.
    pub(crate) demotion_step_us: u64,
}

/// How often the kernel is asked: system calls against late notice of what only the kernel knows.
pub(crate) struct Kernel {
    /// Every how many-th `epoll_wait` asks the kernel although there is news in memory.
    pub(crate) epoll_ask_every: u32,
    /// At every how many-th ring of an epoll instance's doorbell all are taken out of it.
    pub(crate) take_rings_every: u32,
    /// Every how many-th `poll` that finds nothing asks the kernel about ours, too.
    pub(crate) poll_ask_every: u32,
    /// Every how many-th call that did not need the kernel asks it how the connection is.
    pub(crate) stream_ask_every: u32,
    /// Bells taken out of the kernel at once.
    pub(crate) bells: usize,
    /// How often a thread looks whether others have heard a bell: longer than they usually wait for a core.
    pub(crate) heard_rounds: u32,
    /// The first so many of these looks come after yields, the others after naps.
    pub(crate) heard_yields: u32,
    /// Microseconds of such a nap.
    pub(crate) heard_nap_us: u64,
}

/// Sizes of copies.
pub(crate) struct Copies {
    /// Bytes that are written before the receiver is told: it copies out while we copy in.
    pub(crate) chunk_bytes: usize,
    /// A full ring is worth writing to again when so many bytes are free; the kernel has a third of a buffer.
    pub(crate) room_bytes: u64,
    /// Bytes of one step of `sendfile` and `splice`. Trades memory against calls.
    pub(crate) file_bytes: usize,
    /// Bytes that go by way of memory of ours at once. Trades memory against calls.
    pub(crate) own_bytes: usize,
    /// Bytes that are copied at once where the kernel cannot write to a pipe without waiting.
    pub(crate) pipe_bytes: usize,
}

/// Waiting for a lock.
pub(crate) struct Lock {
    /// Tries before a waiter gives its core away.
    pub(crate) spins: u32,
    /// Rounds of that before it sleeps.
    pub(crate) yields: u32,
    /// Microseconds that it sleeps between two polls.
    pub(crate) sleep_us: u64,
}

/// Which connections are too short to be carried.
pub(crate) struct Brief {
    /// Bytes of payload below which a connection is short, if it also lives for less than `lifetime_ns`.
    pub(crate) bytes: u64,
    /// Nanoseconds of that.
    pub(crate) lifetime_ns: u64,
    /// Short ones in a row before any goes by TCP.
    pub(crate) in_a_row: u32,
    /// Nanoseconds for which the next go by TCP, at first: doubled with each that is short.
    pub(crate) pause_ns: u64,
    /// Most times that it is doubled.
    pub(crate) doublings_max: u32,
}

/// How programs find each other: late connections against connections that stay with TCP.
pub(crate) struct Meeting {
    /// Nanoseconds for which a listener that had no mailbox is not asked again.
    pub(crate) absent_ns: u64,
    /// Nanoseconds after which what is known of an address of the host is asked again.
    pub(crate) local_ns: u64,
    /// Nanoseconds that a client waits for the word of the other host's gateway before it leaves a connection to TCP.
    pub(crate) gateway_ns: u64,
    /// Nanoseconds that `accept` waits for a hello of a client that has come to the mailbox: it makes its memory meanwhile.
    pub(crate) hello_ns: u64,
    /// Ports that a client tries before it leaves the choice to the kernel and the connection to TCP.
    pub(crate) ports_tried: usize,
}

/// Segments that are kept: memory and descriptors against making them again.
pub(crate) struct Segments {
    /// Segments of clients that a listener keeps for their next connections.
    pub(crate) known_max: usize,
    /// A listener keeps at most this part, as a divisor, of the descriptors that the process may have open.
    pub(crate) known_divisor: usize,
    /// How many of them are polled, with each new one, whether their clients have gone.
    pub(crate) known_polls: usize,
    /// Segments without connections that a process keeps for the next ones.
    pub(crate) idle_max: usize,
    /// Hellos after which all processes that accept from a shared listener are taken to have the segment. Connections of programs that make fewer are all
    /// carried; of those that make many, one that comes to a process without the segment stays with TCP, and hellos begin again.
    pub(crate) shared_hellos: u32,
}

pub(crate) const TUNING: Tuning = Tuning {
    idle: Idle {
        spin_us: 20,
        failures_max: 4,
        try_every: 64,
        doublings_max: 4,
        polls: 16,
        gap_ns: 300_000,
        rest_ns: 5_000_000,
        yields_max: 2,
        unused_ns: 1_000,
        late_ns: 1_000_000,
        yields_averaged: 16,
        without_yields_ns: 10_000_000,
        calls_max: 4,
        together_ns: 1_000_000,
    },
    waits: Waits {
        word_ns: [4_000_000, 12_000_000],
        deaf_ns: 1_000_000,
        unheard_ns: 10_000_000,
        room_ns: 100_000_000,
        follow_ns: 100_000_000,
        poll_ns: 10_000_000,
        fruitless_max: 16,
        fruitless_nap_us: 100,
        peek_us: 250,
        demotion_step_us: 200,
    },
    kernel: Kernel {
        epoll_ask_every: 16,
        take_rings_every: 4,
        poll_ask_every: 8,
        stream_ask_every: 16,
        bells: 64,
        heard_rounds: 60,
        heard_yields: 10,
        heard_nap_us: 100,
    },
    copies: Copies {
        chunk_bytes: 128 << 10,
        room_bytes: RING_BYTES / 4,
        file_bytes: 256 << 10,
        own_bytes: 64 << 10,
        pipe_bytes: 64 << 10,
    },
    lock: Lock {
        spins: 100,
        yields: 20,
        sleep_us: 50,
    },
    brief: Brief {
        bytes: 64 << 10,
        lifetime_ns: 20_000_000,
        in_a_row: 4,
        pause_ns: 50_000_000,
        doublings_max: 5,
    },
    meeting: Meeting {
        absent_ns: 50_000_000,
        local_ns: 1_000_000_000,
        gateway_ns: 500_000_000,
        hello_ns: 2_000_000,
        ports_tried: 3,
    },
    segments: Segments {
        known_max: 1024,
        known_divisor: 8,
        known_polls: 8,
        idle_max: 16,
        shared_hellos: 256,
    },
};
