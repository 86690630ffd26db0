//! Many to one: 63 senders, one receiver, one port.
//!
//! Goodput counts payload bytes delivered / (port rate × time from the first submission to the last delivery). A frame of 1500
//! bytes takes 1538 on the wire and carries up to 40 bytes of header, so 94.9 % would be perfect; one of 9000 takes 9038: 99.1 %.
//! The receiver's ring must never overflow: that is what credit is for. `suci` lets it overflow, and repairs that in turn.

use super::{config, figure};
use tsumuji_proto::{Channel, Config, Duration, NodeId};
use tsumuji_sim::{Net, Process, Seed, goodput};

const SENDERS: usize = 63;
const SWITCH_BUFFER_BYTES: usize = 512 << 10;

struct Outcome {
    goodput: f64,
    receive_full: u64,
    switch_full: u64,
}

/// All send `count` messages of `bytes` at the same moment.
fn incast<E: Process>(
    net: &mut Net<E>,
    config: &Config,
    frame_ns: u64,
    rate_bits: u64,
    bytes: usize,
    count: u64,
) -> Outcome {
    let nodes = net.star(SENDERS + 1, config);
    net.set_frame_cost(nodes[0], Duration::from_nanos(frame_ns));
    net.run_until_up();
    let start = net.now();
    for sender in &nodes[1..] {
        net.stream(*sender, nodes[0], Channel::ordered(0), bytes, count);
    }
    net.run_until_idle();
    let delivered = net.deliveries(nodes[0]);
    assert_eq!(delivered.len() as u64, SENDERS as u64 * count);
    let span = delivered.last().unwrap().at.since(start);
    Outcome {
        goodput: goodput(net.delivered_bytes(nodes[0]), span, rate_bits),
        receive_full: net.receive_full(nodes[0]),
        switch_full: net.traffic().switch_full,
    }
}

/// At 1 and 10 Gbit/s, with both frame sizes, the port is 90 % payload and the ring never overflows.
#[test]
fn incast_fills_the_port() {
    for (mbit, frame_bytes, frame_ns) in [
        (1_000, 1_500, 500),
        (1_000, 9_000, 500),
        (10_000, 1_500, 300),
        (10_000, 9_000, 1_000),
    ] {
        let mut net = Net::new(Seed::from_env_or(63))
            .rate_mbit(mbit)
            .switch_buffer(SWITCH_BUFFER_BYTES);
        let config = Config {
            frame_bytes,
            ..config()
        };
        let count = if mbit == 1_000 { 3 } else { 8 };
        let outcome = incast(
            &mut net,
            &config,
            frame_ns,
            mbit * 1_000_000,
            64 << 10,
            count,
        );
        let Outcome {
            goodput,
            receive_full,
            switch_full,
        } = outcome;
        println!(
            "{mbit} Mbit/s, {frame_bytes}: goodput {:.1} %, dropped by the switch {switch_full}",
            goodput * 100.0
        );
        figure(&net, receive_full == 0, || {
            format!("{mbit} Mbit/s, {frame_bytes}: {receive_full} overflowed the ring")
        });
        figure(&net, goodput >= 0.9, || {
            format!(
                "{mbit} Mbit/s, {frame_bytes}: goodput {:.1} %",
                goodput * 100.0
            )
        });
    }
}

/// A ring that holds far more than the switch does not flood it, not even in the first rounds of a short gather.
#[test]
fn first_rounds_do_not_flood_the_switch() {
    const MBIT: u64 = 100;
    for senders in [7, 31] {
        for (bytes, count) in [(64 << 10, 5), (4 << 10, 40), (1 << 20, 1)] {
            let mut net = Net::new(Seed::from_env_or(70))
                .rate_mbit(MBIT)
                .switch_buffer(SWITCH_BUFFER_BYTES)
                .patience(Duration::from_secs(60));
            let config = Config {
                receive_frames: 5120,
                keep_alive: Duration::from_secs(1),
                dead_after: Duration::from_secs(10),
                ..config()
            };
            let nodes = net.star(senders + 1, &config);
            net.run_until_up();
            let start = net.now();
            for sender in &nodes[1..] {
                net.stream(*sender, nodes[0], Channel::ordered(0), bytes, count);
            }
            net.run_until_idle();
            let last = net.deliveries(nodes[0]).last().unwrap().at;
            let delivered = net.delivered_bytes(nodes[0]);
            let share = goodput(delivered, last.since(start), MBIT * 1_000_000);
            let traffic = net.traffic();
            let what = format!(
                "{senders} × {count} × {bytes}: {:.1} %, {} of {} frames dropped by the switch",
                share * 100.0,
                traffic.switch_full,
                traffic.sent_frames
            );
            println!("{what}");
            figure(&net, share >= 0.9, || what.clone());
            let few = traffic.switch_full * 20 <= traffic.sent_frames;
            figure(&net, few, || what.clone());
        }
    }
}

/// A receiver slower than its wire: credit paces the senders to the processor, and the ring still never overflows.
#[test]
fn slow_receiver_is_not_overrun() {
    const FRAME_NS: u64 = 2_000;
    const MBIT: u64 = 10_000;
    let mut net = Net::new(Seed::from_env_or(64))
        .rate_mbit(MBIT)
        .switch_buffer(SWITCH_BUFFER_BYTES);
    let outcome = incast(&mut net, &config(), FRAME_NS, MBIT * 1_000_000, 64 << 10, 4);
    figure(&net, outcome.receive_full == 0, || {
        format!("{} overflowed the ring", outcome.receive_full)
    });
    // What 1460 bytes per 2 µs are of the port's rate.
    let possible = 1_460.0 * 8.0 / (FRAME_NS as f64 * 1e-9) / (MBIT as f64 * 1e6);
    figure(&net, outcome.goodput >= 0.85 * possible, || {
        format!("{:.3} of a possible {possible:.3}", outcome.goodput)
    });
}

/// Small messages need no grant each, and their burst still fits the ring.
#[test]
fn incast_of_small_messages() {
    for bytes in [0, 8, 256, 1_400] {
        let mut net = Net::new(Seed::from_env_or(65))
            .rate_mbit(10_000)
            .switch_buffer(SWITCH_BUFFER_BYTES);
        let outcome = incast(&mut net, &config(), 1_000, 10_000_000_000, bytes, 200);
        figure(&net, outcome.receive_full == 0, || {
            format!("{bytes} bytes: {} overflowed", outcome.receive_full)
        });
    }
}

/// Incast with loss: credit lost with its frame comes back, nobody starves.
#[test]
fn incast_survives_loss() {
    let mut net = Net::new(Seed::from_env_or(66))
        .rate_mbit(1_000)
        .switch_buffer(SWITCH_BUFFER_BYTES)
        .loss_percent(5);
    let outcome = incast(&mut net, &config(), 500, 1_000_000_000, 64 << 10, 2);
    figure(&net, outcome.receive_full == 0, || {
        format!("{} overflowed the ring", outcome.receive_full)
    });
    figure(&net, outcome.goodput >= 0.5, || {
        format!("goodput {:.1} %", outcome.goodput * 100.0)
    });
}

/// Senders of equal load finish together: the last one's time is not several times the median's.
#[test]
fn incast_is_fair() {
    let mut net = Net::new(Seed::from_env_or(67))
        .rate_mbit(1_000)
        .switch_buffer(SWITCH_BUFFER_BYTES);
    let nodes = net.star(17, &config());
    net.run_until_up();
    let start = net.now();
    for sender in &nodes[1..] {
        net.stream(*sender, nodes[0], Channel::ordered(0), 16 << 10, 40);
    }
    net.run_until_idle();
    let finish = |node: &NodeId| {
        net.deliveries(nodes[0])
            .iter()
            .rfind(|message| message.from == *node)
            .unwrap()
            .at
    };
    let mut times: Vec<u64> = nodes[1..]
        .iter()
        .map(|node| finish(node).since(start).as_nanos())
        .collect();
    times.sort_unstable();
    let (first, last) = (times[0], times[times.len() - 1]);
    figure(&net, first * 3 >= last, || {
        format!("the first sender was done after {first} ns, the last after {last}")
    });
}
