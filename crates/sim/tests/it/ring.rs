//! The receive ring under credit, where frames come late and the receiver is slower than its wire: it does not overflow.

use tsumuji_proto::{Channel, Duration};
use tsumuji_sim::{Net, Seed, config};

const CHANNEL: Channel = Channel::ordered(0);

/// However many frames are late: those that wait in the ring, are granted, or were overtaken and may still come are never more than the ring
/// holds. They are late by less than a sender waits before it counts them lost for good, which is more than two of its round trips.
#[test]
fn late_frames_find_room() {
    const MESSAGES: u64 = 60;
    const BYTES: usize = 64 << 10;
    for (frame_ns, senders, late_percent, late_us) in [
        (5_000, 1, 50, 1..400),
        (5_000, 8, 50, 100..400),
        (20_000, 1, 2, 1..100),
        (20_000, 1, 50, 300..301),
        (20_000, 3, 30, 100..101),
        (20_000, 8, 50, 1..400),
    ] {
        let mut net = Net::new(Seed::from_env_or(601))
            .rate_mbit(10_000)
            .delay_us(100..101)
            .reorder_percent(late_percent, late_us.clone());
        let nodes = net.star(1 + senders, &config());
        net.set_frame_cost(nodes[0], Duration::from_nanos(frame_ns));
        net.run_until_up();
        let start = net.now();
        for sender in &nodes[1..] {
            net.stream(*sender, nodes[0], CHANNEL, BYTES, MESSAGES);
        }
        net.run_until_idle();
        let frames = senders as u64 * MESSAGES * (BYTES as u64).div_ceil(1_460);
        let used = (frames * frame_ns) as f64 / net.now().since(start).as_nanos() as f64;
        let overflowed = net.receive_full(nodes[0]);
        println!(
            "{senders} senders, {late_percent} % late by {late_us:?} us, {frame_ns} ns a frame: {overflowed} overflowed, \
             peak {}, {:.0} % of the processor",
            net.ring_peak(nodes[0]),
            used * 100.0
        );
        net.check(overflowed == 0, || {
            format!("{senders} senders, {late_percent} % late: {overflowed} overflowed")
        });
        net.check(used > 0.5, || {
            format!("{senders} senders, {late_percent} % late: {used:.2} of the processor")
        });
    }
}
