//! Numbers of the links that trade one thing for another: each with its unit, what it trades, and where it comes from.
//!
//! All links read them here. Left out on purpose: limits of kernels, drivers and formats, bounds of loops, and what a program chooses by the options of a
//! link. Those stand where they are used. Depends on nothing here, because the test of rings under loom includes this file.

use std::time::Duration;

/// The numbers of all links.
pub(crate) struct Tuning {
    /// Longest sleep while frames wait that a device, a kernel or a relay did not take: nothing tells when it takes them. Trades their delay against
    /// wake-ups.
    pub(crate) unsent_sleep: Duration,
    /// Longest sleep where a part of the link has no descriptor, so that nothing wakes the sleeper for its frames. Trades their delay against wake-ups.
    pub(crate) blind_sleep: Duration,
    pub(crate) shm: Shm,
    pub(crate) gather: Gather,
    pub(crate) udp: Udp,
    pub(crate) ether: Ether,
    pub(crate) packet: Packet,
    #[cfg(feature = "xdp")]
    pub(crate) xdp: Xdp,
    pub(crate) dpdk: Dpdk,
    pub(crate) relay: Relay,
    pub(crate) paired: Paired,
    pub(crate) capture: Capture,
    pub(crate) impair: Impair,
}

/// Shared memory.
pub(crate) struct Shm {
    /// Bytes of payload in a frame by default. Copying 32 KiB takes ten times as long as the work per frame, and the two copies of a large message, of
    /// its sender and of its receiver, still overlap.
    pub(crate) payload_bytes: usize,
    /// Bytes of a ring by default, at most: both directions of a pair stay in a second-level cache.
    pub(crate) ring_bytes_max: usize,
    /// Bytes of a ring by default, at least, however many nodes there are. Trades memory against frames under way.
    pub(crate) ring_bytes_min: usize,
    /// Memory in bytes that the rings of one node are meant to use at most by default; with many nodes each ring is shorter.
    pub(crate) rings_bytes_per_node: usize,
    /// Bytes of a node's broadcast ring by default. Trades memory against broadcasts that are overwritten before a receiver reads them.
    pub(crate) broadcast_bytes: usize,
    /// Frames worth gathering before a flush: a bell costs a full fence, and a receiver should start on the first frames early.
    pub(crate) burst_frames: usize,
    /// Lines fetched for writing ahead of the tail when few are left: the store of a later commit word then need not wait for them.
    pub(crate) warm_lines: u64,
    /// Below this number of lines few are left. Half of `warm_lines`, so that they are fetched in groups.
    pub(crate) warm_low_lines: u64,
    /// The consumer publishes its head after this part of the ring, as a divisor, or when it is idle. Trades room for the producer against lines that
    /// pass between two cores.
    pub(crate) publish_divisor: u64,
    /// Bytes of a piece of a long copy: less than 2,048, from which on the C library's `memcpy` may use `rep movsb`.
    pub(crate) copy_bytes: usize,
    /// Calls of `receive` in a row that may return with frames of the last busy peer alone. Trades the delay of the other peers' frames against a line
    /// fetched from each.
    pub(crate) hot_calls_max: u32,
    /// Frames taken from one peer before the next is served. Trades evenness between peers against changes from ring to ring.
    pub(crate) round_frames: usize,
    /// Bytes of the shortest frame whose placement is asked for: for a shorter one, asking costs more than copying it twice.
    pub(crate) placed_bytes: usize,
    /// Bytes of a trial by which a process decides for or against bodies by reference: with `trials` of them, less than a millisecond in all.
    pub(crate) tried_bytes: usize,
    /// Number of such trials, of which the shortest times count. Trades the time of the first use against disturbed trials.
    pub(crate) trials: usize,
    /// Milliseconds between two checks whether peers that have yet to read bodies are alive. Trades system calls against memory of bodies that nobody
    /// will read.
    pub(crate) claims_ms: u64,
    /// Generations of a job where the size of files is limited: it has fewer nodes first, and fewer generations than these only if that does not do.
    pub(crate) generations_wanted: u64,
}

/// The transmit half of `udp` and `packet`, and what `dpdk` has in common with it.
pub(crate) struct Gather {
    /// Most datagrams gathered before they are flushed: more gain nothing.
    pub(crate) burst_frames: usize,
    /// Most bytes gathered before they are flushed: more would leave the cache before the kernel copies them. One send that the kernel cuts is an IP
    /// packet with its headers, and takes no more.
    pub(crate) bytes: usize,
    /// Bodies of fewer bytes together are copied with their heads: that takes less time than a system call of their own. Drivers of DPDK that copy take
    /// the same number.
    pub(crate) copied_bytes: usize,
}

/// UDP.
pub(crate) struct Udp {
    /// Datagrams per `recvmmsg`: with more, the call would cost hardly less per datagram, and the buffers would leave the second-level cache.
    pub(crate) batch_datagrams: usize,
    /// Most receives without a guess where the next body belongs. After wrong guesses in a row so many are made, doubled each time: two senders whose
    /// messages alternate are better served by whole batches.
    pub(crate) distrust_max: u32,
    /// Empty polls of a multicast group's socket after which only some receives poll it: each is a system call, which doubles the cost of an idle
    /// receive. A wait polls both sockets.
    pub(crate) group_eager_polls: u32,
    /// After that, one receive in so many polls the group's socket.
    pub(crate) group_poll_every: u32,
    /// Bytes of a receive buffer that `doctor` recommends: one below this drops frames as soon as several peers send at once.
    pub(crate) buffer_bytes_wanted: usize,
}

/// What the links over Ethernet have in common.
pub(crate) struct Ether {
    /// If a device takes no frame for this long, it is not merely full: waiting frames are dropped, as a link may do. The layers above repeat them, and
    /// have begun to long before.
    pub(crate) stuck_max: Duration,
    /// How often a link that is being opened checks whether its device, or its peer, is there. Trades the delay of opening against wake-ups.
    pub(crate) open_check_every: Duration,
    /// How often a sleeping link checks its device.
    pub(crate) check_every: Duration,
    /// A polling link checks its device every so many empty polls: some 10 ms if it does nothing else.
    pub(crate) check_every_polls: u32,
    /// Retries on a name without a listener, with `claim_pause` between them: a second in all. Trades late refusals against claims that end
    /// because of a copy of the last one's socket, such as a child holds until it runs its program.
    pub(crate) claim_tries: u32,
    /// Pause between two such retries.
    pub(crate) claim_pause: Duration,
}

/// AF_PACKET.
pub(crate) struct Packet {
    /// Bytes of the receive ring: room for some 80 frames of Ethernet's MTU from each of 64 senders.
    pub(crate) ring_bytes: usize,
    /// The MTU in bytes beyond which frames are large, and the ring has `large_ring_bytes`.
    pub(crate) large_mtu_bytes: usize,
    /// Bytes of the receive ring for large frames. They come of long messages, which use the whole ring, and a ring larger than the second-level cache
    /// costs more than the bursts that it could hold are worth (docs/decisions/0029).
    pub(crate) large_ring_bytes: usize,
    /// Bytes of frames given to the device and not yet sent; a network card's own queue is shorter.
    pub(crate) send_buffer_bytes: usize,
}

/// AF_XDP.
#[cfg(feature = "xdp")]
pub(crate) struct Xdp {
    /// Bytes of receive chunks by default. The kernel fills all of them in turn however few are needed, so they should fit a second-level cache: 8 MiB
    /// cost a third of the rate of large messages. 2 MiB are 1.6 ms of a 10 Gbit/s link.
    pub(crate) receive_bytes: usize,
    /// The fill ring is larger than needed by this factor, so that we seldom read the counter that the kernel writes on another core.
    pub(crate) fill_ring_factor: u32,
    /// Chunks returned before the kernel is told: often enough that it never waits for them, seldom enough to cost nothing.
    pub(crate) refill_chunks: u32,
    /// Transmit slots of one small chunk: several bursts, so that some are free while others are on their way.
    pub(crate) slots_small: u32,
    /// The same of larger chunks, or of a few.
    pub(crate) slots_large: u32,
    /// The same of more than `chunks_few` chunks.
    pub(crate) slots_huge: u32,
    /// A slot of more chunks than this is large: few make a burst, and many would leave the cache.
    pub(crate) chunks_few: u32,
    /// Most Ethernet frames gathered before the kernel is kicked: as many as it sends in one system call.
    pub(crate) burst_frames: u32,
    /// Bytes after which the kernel is kicked: the frame that reaches them is the last. The kernel should copy them while they are in the cache; a kick
    /// costs as much as copying some hundred bytes.
    pub(crate) burst_bytes: usize,
    /// Kicks in one `flush` beyond those that a full ring takes: the rest waits for the next.
    pub(crate) kicks_spare: u32,
    /// Longest sleep before frames are offered again while the interface is down: longer than `unsent_sleep`, for that may last.
    pub(crate) retry_down: Duration,
    /// Longest sleep before `wait` checks whether the interface still exists.
    pub(crate) check_interface: Duration,
    /// Retries of opening, with `open_pause` between them, six seconds in all: queue and interface stay taken for a moment after a process of ours ended.
    pub(crate) open_tries: u32,
    /// Pause between two such retries.
    pub(crate) open_pause: Duration,
}

/// DPDK.
pub(crate) struct Dpdk {
    /// First nap of a waiting link; each is half as long again as the last. Trades the delay of a frame against processor time.
    pub(crate) nap_min: Duration,
    /// Longest nap: an idle link answers so much late at most.
    pub(crate) nap_max: Duration,
    /// Closing a memif connection discards its memory with the frames in it: a live peer is given this long to fetch them.
    pub(crate) linger: Duration,
    /// Pause between two attempts of a memif client without a server: many times as long as a server needs from its socket to its service.
    pub(crate) retry_after: Duration,
    /// How long a taken queue of AF_XDP is tried again: it is free some milliseconds after its socket was closed.
    pub(crate) queue_free_within: Duration,
    /// Bursts of foreign frames that one call skips, beyond the frames it delivers. Trades calls that deliver nothing against the length of one.
    pub(crate) foreign_bursts: usize,
    /// Most bytes of a memif ring whose size is not stated: its buffers are used in turn, and those that left the cache since their last use cost two
    /// thirds of the rate of large messages.
    pub(crate) memif_ring_bytes: usize,
    /// Most bytes of a burst over memif: it is copied twice on each side, the second time best out of the nearest cache.
    pub(crate) memif_burst_bytes: usize,
    /// Frames of such a burst at least, however long they are.
    pub(crate) memif_burst_frames_min: usize,
    /// Slots of the kernel's AF_PACKET ring for frames of Ethernet's MTU. Trades memory against drops.
    pub(crate) packet_frames: usize,
    /// The same for larger frames.
    pub(crate) packet_frames_large: usize,
    /// Descriptors of a ring where neither the user nor the driver states a number.
    pub(crate) ring_frames: u16,
    /// Bursts in a pool, less one mbuf, for a driver that copies. Fewer mbufs stay in the cache.
    pub(crate) pool_bursts: u32,
    /// Memory in bytes of the whole process where no hugepages are free, or not so many bytes: enough for several links with jumbo
    /// frames. Used only as needed.
    pub(crate) memory_bytes: u64,
    /// Bytes of free hugepages with which a card is used: without them, it is not.
    pub(crate) huge_bytes_min: u64,
}

/// The relay, and links by it.
pub(crate) struct Relay {
    /// Frames taken from one side in a poll. Trades system calls against the delay of the other side's frames.
    pub(crate) burst_frames: usize,
    /// Frames of the largest size that a ring between relay and process holds. Trades memory against drops.
    pub(crate) ring_frames: usize,
    /// Bytes of such a ring at least.
    pub(crate) ring_bytes_min: usize,
    /// Nanoseconds between two checks of a link whether its relay is alive.
    pub(crate) check_every_ns: u64,
}

/// Two links as one.
pub(crate) struct Paired {
    /// Until so many polls in a row found nothing, each call polls the network, so that an answer from there is seen at once.
    pub(crate) eager_polls: u32,
    /// Then the network is polled once in so many nanoseconds: longer pauses delay what comes, shorter ones a process that waits for shared memory.
    pub(crate) poll_every_ns: u64,
}

/// Captures.
pub(crate) struct Capture {
    /// Bytes that are written to the file at a time. Trades memory against system calls.
    pub(crate) buffer_bytes: usize,
}

/// Impairments.
pub(crate) struct Impair {
    /// Frames fetched from the wrapped link at a time while a queue is in use. Trades calls against order: frames that are fetched
    /// together are released together.
    pub(crate) burst_frames: usize,
}

pub(crate) const TUNING: Tuning = Tuning {
    unsent_sleep: Duration::from_millis(1),
    blind_sleep: Duration::from_millis(1),
    shm: Shm {
        payload_bytes: 32 << 10,
        ring_bytes_max: 1 << 20,
        ring_bytes_min: 128 << 10,
        rings_bytes_per_node: 16 << 20,
        broadcast_bytes: 512 << 10,
        burst_frames: 32,
        warm_lines: 32,
        warm_low_lines: 16,
        publish_divisor: 4,
        copy_bytes: 1984,
        hot_calls_max: 4,
        round_frames: 16,
        placed_bytes: 12 << 10,
        tried_bytes: 64 << 10,
        trials: 5,
        claims_ms: 10,
        generations_wanted: 4096,
    },
    gather: Gather {
        burst_frames: 64,
        bytes: 65_000,
        copied_bytes: 2 << 10,
    },
    udp: Udp {
        batch_datagrams: 16,
        distrust_max: 64,
        group_eager_polls: 64,
        group_poll_every: 4,
        buffer_bytes_wanted: 4 << 20,
    },
    ether: Ether {
        stuck_max: Duration::from_millis(50),
        open_check_every: Duration::from_millis(5),
        check_every: Duration::from_millis(200),
        check_every_polls: 1 << 18,
        claim_tries: 200,
        claim_pause: Duration::from_millis(5),
    },
    packet: Packet {
        ring_bytes: 8 << 20,
        large_mtu_bytes: 4096,
        large_ring_bytes: 2 << 20,
        send_buffer_bytes: 1 << 20,
    },
    #[cfg(feature = "xdp")]
    xdp: Xdp {
        receive_bytes: 2 << 20,
        fill_ring_factor: 2,
        refill_chunks: 32,
        slots_small: 256,
        slots_large: 128,
        slots_huge: 16,
        chunks_few: 4,
        burst_frames: 32,
        burst_bytes: 128 << 10,
        kicks_spare: 8,
        retry_down: Duration::from_millis(100),
        check_interface: Duration::from_secs(1),
        open_tries: 600,
        open_pause: Duration::from_millis(10),
    },
    dpdk: Dpdk {
        nap_min: Duration::from_micros(20),
        nap_max: Duration::from_millis(1),
        linger: Duration::from_millis(50),
        retry_after: Duration::from_millis(250),
        queue_free_within: Duration::from_secs(1),
        foreign_bursts: 2,
        memif_ring_bytes: 2 << 20,
        memif_burst_bytes: 128 << 10,
        memif_burst_frames_min: 2,
        packet_frames: 2048,
        packet_frames_large: 512,
        ring_frames: 1024,
        pool_bursts: 16,
        memory_bytes: 512 << 20,
        huge_bytes_min: 128 << 20,
    },
    relay: Relay {
        burst_frames: 64,
        ring_frames: 512,
        ring_bytes_min: 128 << 10,
        check_every_ns: 200_000_000,
    },
    paired: Paired {
        eager_polls: 64,
        poll_every_ns: 4_000,
    },
    capture: Capture {
        buffer_bytes: 256 << 10,
    },
    impair: Impair { burst_frames: 64 },
};
