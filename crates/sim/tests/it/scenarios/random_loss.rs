//! Random loss is not congestion: R-27 tells a lossy cable from a switch whose buffer is full.
//!
//! Goodput counts payload bytes delivered / (port rate × time from the first submission to the last delivery). A frame of 1500 bytes
//! takes 1538 on the wire and carries 40 bytes of header.

use super::{config, figure};
use tsumuji_proto::{Channel, Config};
use tsumuji_sim::{Net, Seed, goodput};

const MBIT: u64 = 10_000;
/// What full frames leave to payload.
const PERFECT: f64 = 1_460.0 / 1_538.0;

/// One sender, 50 µs each way, random loss both ways: at least 85 % of what the losses leave.
#[test]
fn random_loss_costs_what_it_takes() {
    for (loss_percent, bytes, count, receive_frames) in [
        (1, 64 << 10, 300, 256),
        (5, 64 << 10, 300, 256),
        (10, 64 << 10, 300, 256),
        (5, 20 << 20, 1, 256),
        (5, 64 << 10, 300, 1024),
    ] {
        for seed in Seed::several(6_000, 3) {
            let mut net = Net::new(seed)
                .rate_mbit(MBIT)
                .delay_us(50..51)
                .loss_percent(loss_percent);
            let (a, b) = net.pair(Config {
                receive_frames,
                ..config()
            });
            let start = net.now();
            net.stream(a, b, Channel::ordered(0), bytes, count);
            net.run_until_idle();
            let last = net.deliveries(b).last().unwrap().at;
            let share = goodput(net.delivered_bytes(b), last.since(start), MBIT * 1_000_000);
            let possible = PERFECT * (1.0 - f64::from(loss_percent) / 100.0);
            figure(&net, share >= 0.85 * possible, || {
                format!(
                    "{count} × {bytes} bytes at {loss_percent} %, ring of {receive_frames}: {:.1} % of a possible {:.1} %",
                    share * 100.0,
                    possible * 100.0
                )
            });
        }
    }
}

/// A few senders and a small switch buffer, with and without random loss: the port stays busy, and what the switch drops is
/// a small part.
#[test]
fn small_buffers_are_found_among_random_losses() {
    for (senders, buffer_bytes) in [(2, 128 << 10), (4, 64 << 10), (16, 128 << 10)] {
        for loss_percent in [0, 1, 5] {
            for seed in Seed::several(6_100, 2) {
                let mut net = Net::new(seed)
                    .rate_mbit(MBIT)
                    .switch_buffer(buffer_bytes)
                    .loss_percent(loss_percent);
                let nodes = net.star(senders + 1, &config());
                net.run_until_up();
                let start = net.now();
                for sender in &nodes[1..] {
                    let count = 400 / senders as u64;
                    net.stream(*sender, nodes[0], Channel::ordered(0), 64 << 10, count);
                }
                net.run_until_idle();
                let last = net.deliveries(nodes[0]).last().unwrap().at;
                let share = goodput(
                    net.delivered_bytes(nodes[0]),
                    last.since(start),
                    MBIT * 1_000_000,
                );
                let possible = PERFECT * (1.0 - f64::from(loss_percent) / 100.0);
                let traffic = net.traffic();
                figure(&net, share >= 0.85 * possible, || {
                    format!("{senders} to 1, {loss_percent} %: {:.1} %", share * 100.0)
                });
                figure(
                    &net,
                    traffic.switch_full * 10 <= traffic.sent_frames,
                    || format!("{senders} to 1, {loss_percent} %: {traffic:?}"),
                );
                figure(&net, traffic.receive_full == 0, || format!("{traffic:?}"));
            }
        }
    }
}
