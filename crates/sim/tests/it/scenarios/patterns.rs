//! Patterns of messages: one to one, all to all, a thousand with their neighbours.

use super::{config, figure};
use tsumuji_proto::{Channel, Duration};
use tsumuji_sim::{Net, Seed, goodput};

const GIGABIT: u64 = 1_000_000_000;

/// One to one fills the wire, at both frame sizes, both ways at once.
#[test]
fn one_to_one_fills_the_wire() {
    // Most that 1500-byte frames can carry is (1500 − 40) / 1538 = 94.9 %, 9000-byte ones 99.1 %; acknowledgements take theirs.
    for (frame_bytes, least) in [(1_500, 0.92), (9_000, 0.97)] {
        let mut net = Net::new(Seed::from_env_or(20))
            .rate_mbit(1_000)
            .switch_buffer(512 << 10);
        let (a, b) = net.pair(tsumuji_proto::Config {
            frame_bytes,
            ..config()
        });
        let start = net.now();
        net.stream(a, b, Channel::ordered(0), 64 << 10, 100);
        net.stream(b, a, Channel::ordered(0), 64 << 10, 100);
        net.run_until_idle();
        for (node, peer) in [(a, b), (b, a)] {
            let last = net.deliveries(node).last().unwrap().at;
            let share = goodput(net.delivered_bytes(node), last.since(start), GIGABIT);
            figure(&net, share >= least, || {
                format!("{peer} to {node}: {:.1} % at {frame_bytes}", share * 100.0)
            });
        }
        let traffic = net.traffic();
        figure(
            &net,
            traffic.receive_full + traffic.switch_full == 0,
            || format!("{traffic:?}"),
        );
    }
}

/// No size is a cliff: from 4 bytes to 4 MiB, larger messages never move fewer bytes a second (5 % of grain allowed).
#[test]
fn throughput_never_falls_with_size() {
    let mut best = 0.0;
    for shift in 2..=22 {
        let bytes = 1usize << shift;
        let mut net = Net::new(Seed::from_env_or(21))
            .rate_mbit(10_000)
            .switch_buffer(512 << 10);
        let (a, b) = net.pair(config());
        let count = ((16 << 20) / bytes as u64).clamp(4, 2_000);
        let start = net.now();
        net.stream(a, b, Channel::ordered(0), bytes, count);
        net.run_until_idle();
        let last = net.deliveries(b).last().unwrap().at;
        let share = goodput(net.delivered_bytes(b), last.since(start), 10 * GIGABIT);
        figure(&net, share > best * 0.95, || {
            format!(
                "{bytes} bytes: {:.2} % after {:.2} %",
                share * 100.0,
                best * 100.0
            )
        });
        best = share.max(best);
    }
}

/// Sixteen nodes, everyone to everyone at once, on a lossy gigabit switch with a small buffer.
#[test]
fn all_to_all() {
    let mut net = Net::new(Seed::from_env_or(22))
        .rate_mbit(1_000)
        .switch_buffer(256 << 10)
        .loss_percent(1);
    let nodes = net.mesh(16, &config());
    net.run_until_up();
    let start = net.now();
    for from in &nodes {
        for to in nodes.iter().filter(|to| *to != from) {
            net.stream(*from, *to, Channel::ordered(0), 40_000, 2);
            net.stream(*from, *to, Channel::unordered(1), 100, 5);
        }
    }
    net.run_until_idle();
    for node in &nodes {
        assert_eq!(net.deliveries(*node).len(), 15 * 7);
        assert_eq!(net.receive_full(*node), 0);
    }
    // 1.2 MB to each node would take 10 ms on an empty wire.
    let took = net.now().since(start);
    figure(&net, took <= Duration::from_millis(100), || {
        format!("took {} ms", took.as_nanos() / 1_000_000)
    });
}

/// A thousand engines in one run, each with eight neighbours.
#[test]
fn thousand_engines() {
    let mut net = Net::new(Seed::from_env_or(23))
        .delay_us(5..40)
        .loss_percent(1);
    let nodes = net.nodes(1_000, &config());
    for (index, node) in nodes.iter().enumerate() {
        for step in [1, 2, 30, 400] {
            net.connect(*node, nodes[(index + step) % nodes.len()]);
        }
    }
    net.run_until_up();
    for (index, node) in nodes.iter().enumerate() {
        for step in [1, 2, 30, 400] {
            let to = nodes[(index + step) % nodes.len()];
            net.stream(*node, to, Channel::ordered(0), 4_000, 5);
            net.stream(*node, to, Channel::ordered(1), 64, 5);
        }
    }
    net.run_until_idle();
    assert!(nodes.iter().all(|node| net.deliveries(*node).len() == 40));
}

/// A link that has no slot for a peer at the moment delays, and loses nothing.
#[test]
fn deferred_destinations_come_round() {
    let mut net = Net::new(Seed::from_env_or(24))
        .defer_percent(50)
        .loss_percent(5);
    let nodes = net.mesh(4, &config());
    net.run_until_up();
    for from in &nodes {
        for to in nodes.iter().filter(|to| *to != from) {
            net.stream(*from, *to, Channel::ordered(0), 10_000, 20);
        }
    }
    net.run_until_idle();
}
