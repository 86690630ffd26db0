//! The receive ring under credit, where frames come late: it never overflows.

use tsumuji_proto::{Config, Duration, Lane};
use tsumuji_sim::{Net, Seed, config};

const LANE: Lane = Lane::ordered(0);

/// What came of a stream from each of `senders` through reordering paths.
struct Outcome {
    overflowed: u64,
    /// Of the receiver's processor.
    used: f64,
}

/// The receiver takes 2 µs for each frame, its wire 1.2 µs; `late_percent` of all frames are late by up to `late_us`.
fn reordered(seed: Seed, senders: usize, late_percent: u32, late_us: u64) -> Outcome {
    const FRAME_NS: u64 = 2_000;
    const MESSAGES: u64 = 100;
    let mut net = Net::new(seed)
        .rate_mbit(10_000)
        .reorder_percent(late_percent, 1..late_us);
    let nodes = net.star(1 + senders, &Config { ..config() });
    net.set_frame_cost(nodes[0], Duration::from_nanos(FRAME_NS));
    net.run_until_up();
    let start = net.now();
    for sender in &nodes[1..] {
        net.stream(*sender, nodes[0], LANE, 64 << 10, MESSAGES);
    }
    net.run_until_idle();
    let frames = senders as u64 * MESSAGES * (64_u64 << 10).div_ceil(1_460);
    let took = net.now().since(start).as_nanos();
    Outcome {
        overflowed: net.receive_full(nodes[0]),
        used: (frames * FRAME_NS) as f64 / took as f64,
    }
}

/// However many frames are late, and by however much: those that wait in the ring, are granted, or were overtaken and may still come
/// are never more than the ring holds.
#[test]
fn late_frames_find_room() {
    for (senders, late_percent, late_us) in [
        (1, 10, 100),
        (1, 50, 500),
        (1, 90, 2_000),
        (4, 30, 300),
        (16, 50, 1_000),
    ] {
        let outcome = reordered(Seed::from_env_or(601), senders, late_percent, late_us);
        println!(
            "{senders} senders, {late_percent} % late by up to {late_us} us: {} overflowed, {:.0} % of the processor",
            outcome.overflowed,
            outcome.used * 100.0
        );
    }
}
