//! Everything at once, at random, and odd sizes of everything.

use super::config;
use tsumuji_proto::{Channel, Config, DeliveryClass, Duration, Event, NodeId, Priority};
use tsumuji_sim::{Net, Pace, Seed, chaos};

/// Whatever happens, the judge finds nothing. `make soak` goes on with other seeds.
#[test]
fn chaos_ends_in_order() {
    let all: Vec<u16> = (0..chaos::STEPS).collect();
    for seed in Seed::several(9_000, 30) {
        chaos::run(seed, &config(), &all);
    }
}

/// Odd sizes of everything, different at each node: frames, rings, budgets, queues, processors. All is delivered, by everyone.
#[test]
fn odd_configurations_work() {
    for seed in Seed::several(9_500, 15) {
        let mut chance = seed.rng(95);
        let mut net = Net::new(seed)
            .rate_mbit([100, 1_000, 10_000][chance.below(3)])
            .switch_buffer([128 << 10, 512 << 10, 4 << 20][chance.below(3)])
            .loss_percent([0, 1, 5][chance.below(3)])
            .delay_us(1..1 + chance.within(1..200));
        let nodes: Vec<NodeId> = (0..5)
            .map(|_| {
                let node = net.node(Config {
                    frame_bytes: [64, 100, 576, 1_500, 9_000, 65_000][chance.below(6)],
                    // Some are smaller than the number of peers: then credit comes by probes.
                    receive_frames: [8, 32, 256, 4_096][chance.below(4)],
                    // A node that cannot hold one frame's content crawls; that is no use case.
                    budget_bytes: [70_000, 300_000, 16 << 20][chance.below(3)],
                    send_queue_bytes: [1 << 10, 100_000, 8 << 20][chance.below(3)],
                    ..config()
                });
                net.set_frame_cost(node, Duration::from_nanos([0, 300, 3_000][chance.below(3)]));
                let pace =
                    [Pace::Prompt, Pace::Prompt, Pace::BytesPerSecond(20_000_000)][chance.below(3)];
                net.set_pace(node, pace);
                node
            })
            .collect();
        for (index, a) in nodes.iter().enumerate() {
            for b in &nodes[index + 1..] {
                net.connect(*a, *b);
            }
        }
        net.run_until_up();
        for _ in 0..30 {
            let from = chance.below(nodes.len());
            let to = (from + 1 + chance.below(nodes.len() - 1)) % nodes.len();
            let class = if chance.chance(700_000) {
                DeliveryClass::Ordered
            } else {
                DeliveryClass::Unordered
            };
            let channel = Channel::new(class, Priority::new(chance.below(4) as u8).unwrap(), 0);
            let longest = [1, 100, 5_000, 100_000][chance.below(4)];
            net.stream(
                nodes[from],
                nodes[to],
                channel,
                chance.below(longest),
                chance.within(1..20),
            );
        }
        net.run_until_idle();
        let dead = |node: &NodeId| {
            net.events(*node)
                .iter()
                .any(|(_, event)| matches!(event, Event::PeerDead { .. }))
        };
        net.check(!nodes.iter().any(dead), || {
            String::from("someone was declared dead")
        });
    }
}
