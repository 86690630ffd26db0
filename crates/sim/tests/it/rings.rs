//! Nodes of one host in the production loop: messages that pass the queue, in parts and by reference, among those that do not.

use tsumuji_proto::{Channel, Config, Drop, Duration};
use tsumuji_sim::{Net, Pace, Seed, chaos, config};

const CHANNEL: Channel = Channel::ordered(0);

fn near() -> Config {
    Config {
        lossless: true,
        ring_bytes: 128 << 10,
        ..config()
    }
}

/// Messages of every length, one after the other has arrived: most pass the queue, also long ones that are read where they lie, and in order.
#[test]
fn messages_pass_the_queue() {
    for seed in Seed::several(8_000, 3) {
        let mut net = Net::new(seed);
        let (a, b) = net.pair(near());
        let direct = |net: &Net| net.engine(a).expect("alive").counters().direct_messages;
        // Whole in a frame, in parts, by reference, and too long for all of these.
        for (bytes, least, most) in [
            (100, 80, 100),
            (20_000, 80, 100),
            (100_000, 30, 70),
            (200_000, 0, 0),
        ] {
            let before = direct(&net);
            for _ in 0..100 {
                net.stream(a, b, CHANNEL, bytes, 1);
                net.run_until_idle();
            }
            let passed = direct(&net) - before;
            net.check((least..=most).contains(&passed), || {
                format!("{passed} of 100 messages of {bytes} bytes passed the queue")
            });
        }
        let counters = net.engine(a).expect("alive").counters();
        net.check(counters.retransmitted_frames == 0, || {
            String::from("sent again over a link that loses nothing")
        });
    }
}

/// Many senders and a receiver that takes nothing for a while, small rings that are full at random: nothing is dropped, and all arrives in order.
#[test]
fn full_rings_lose_nothing() {
    for seed in Seed::several(8_100, 3) {
        let mut net = Net::new(seed).defer_percent(20);
        let config = Config {
            budget_bytes: 4 << 20,
            ..near()
        };
        let nodes = net.star(5, &config);
        net.run_until_up();
        net.set_pace(nodes[0], Pace::Stopped);
        for bytes in [8, 30_000, 1_000, 90_000] {
            for _ in 0..6 {
                for sender in &nodes[1..] {
                    net.stream(*sender, nodes[0], CHANNEL, bytes, 5);
                    net.stream(*sender, nodes[0], Channel::unordered(1), bytes / 2, 2);
                }
                net.run_for(Duration::from_micros(50));
            }
            net.pause(nodes[0]);
            net.run_for(Duration::from_millis(2));
            net.resume(nodes[0]);
        }
        net.set_pace(nodes[0], Pace::BytesPerSecond(1_000_000_000));
        net.run_until_idle();
        net.check(net.deliveries(nodes[0]).len() == 4 * 4 * 6 * 7, || {
            String::from("not all came")
        });
        let drops = net.engine(nodes[0]).expect("alive").counters().drops;
        net.check(drops.get(Drop::Malformed) == 0, || format!("{drops:?}"));
        let passed = |node| {
            net.engine(node)
                .map_or(0, |engine| engine.counters().direct_messages)
        };
        let passed: u64 = nodes[1..].iter().map(|node| passed(*node)).sum();
        // How many depends on when rings are full: at least one of each sender.
        net.check(passed >= nodes.len() as u64 - 1, || {
            String::from("none passed the queue")
        });
    }
}

/// Processes that die, leave, stand still and come back among all that: the judge finds nothing, as on a network.
#[test]
fn chaos_ends_in_order() {
    let all: Vec<u16> = (0..chaos::STEPS).collect();
    for seed in Seed::several(8_200, 12) {
        chaos::run(seed, &near(), &all);
    }
}
