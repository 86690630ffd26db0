//! Everything at once, at random: what no single scenario thinks of.

use super::config;
use tsumuji_proto::{Config, DeliveryClass, Destination, Duration, Event, Lane, NodeId, Priority};
use tsumuji_sim::{Damage, Net, Pace, Rng, Seed};

const NODES: usize = 4;
const STEPS: usize = 120;
const KINDS: &[Damage] = &[
    Damage::Found,
    Damage::Truncated,
    Damage::Padded,
    Damage::Garbage,
    Damage::Flipped,
];

/// One random thing happens to the net.
fn disturb(net: &mut Net, nodes: &[NodeId], alive: &mut [bool], chance: &mut Rng) {
    let at = chance.below(NODES);
    let node = nodes[at];
    match chance.below(100) {
        0..60 => {
            let to = nodes[(at + 1 + chance.below(NODES - 1)) % NODES];
            let class = if chance.chance(700_000) {
                DeliveryClass::Ordered
            } else {
                DeliveryClass::Unordered
            };
            let lane = Lane::new(
                class,
                Priority::new(chance.below(4) as u8).unwrap(),
                chance.below(2) as u8,
            );
            let longest = [1, 100, 1_460, 20_000, 400_000][chance.below(5)];
            let bytes = chance.below(longest);
            if alive[at] {
                net.stream(node, to, lane, bytes, chance.within(1..6));
            }
        }
        60..65 => net.conditions().loss_ppm = chance.within(0..400_000) as u32,
        65..70 => {
            let conditions = net.conditions();
            conditions.duplicate_ppm = chance.within(0..200_000) as u32;
            conditions.reorder_ppm = chance.within(0..300_000) as u32;
            conditions.damage_ppm = chance.within(0..100_000) as u32;
            conditions.damage = KINDS;
        }
        70..75 => {
            let pace =
                [Pace::Prompt, Pace::Stopped, Pace::BytesPerSecond(5_000_000)][chance.below(3)];
            net.set_pace(node, pace);
        }
        75..79 => net.partition(&nodes[..1 + chance.below(NODES - 1)]),
        79..84 => net.heal(),
        84..88 if alive[at] => {
            if chance.chance(300_000) {
                net.leave(node);
            } else {
                net.crash(node);
            }
            alive[at] = false;
        }
        88..94 if !alive[at] => {
            net.restart(node);
            alive[at] = true;
        }
        94..96 if alive[at] => net.pause(node),
        96..98 if alive[at] => net.resume(node),
        98 if alive[at] => {
            let (lap, bytes) = (chance.below(100) as u32, chance.below(1_000));
            net.publish(node, Destination::Broadcast, (1, 1), lap, 0, bytes)
                .unwrap();
        }
        99 => net.inject_garbage(node, 20, Duration::from_millis(1)),
        _ => {}
    }
}

/// Crashes, farewells, restarts, cuts, stops, slow programs, losses, repetitions, damage and garbage in random order: the judge
/// finds nothing at any time, and once the weather is fair again all meet and everything sent then arrives.
#[test]
fn chaos_ends_in_order() {
    for seed in Seed::several(9_000, 30) {
        let mut net = Net::new(seed)
            .checked()
            .rate_mbit(1_000)
            .switch_buffer(256 << 10)
            .delay_us(5..60);
        let config = tsumuji_proto::Config {
            budget_bytes: 1 << 20,
            send_queue_bytes: 2 << 20,
            ..config()
        };
        let nodes = net.mesh(NODES, &config);
        let mut chance = seed.rng(97);
        let mut alive = [true; NODES];
        for _ in 0..STEPS {
            disturb(&mut net, &nodes, &mut alive, &mut chance);
            let longest_us = if chance.chance(50_000) {
                200_000
            } else {
                2_000
            };
            net.run_for(Duration::from_micros(chance.within(0..longest_us)));
        }
        net.heal();
        *net.conditions() = tsumuji_sim::Conditions::default();
        for (node, alive) in nodes.iter().zip(alive) {
            if !alive {
                net.restart(*node);
            }
            net.set_pace(*node, Pace::Prompt);
            net.resume(*node);
        }
        // Whoever was given up meanwhile is tried again, as a program would when it wants its peer back.
        for _ in 0..3 {
            net.run_for(Duration::from_millis(200));
            for from in &nodes {
                for to in nodes.iter().filter(|to| *to != from) {
                    if !net.is_up(*from, *to) {
                        net.revive(*from, *to);
                    }
                }
            }
        }
        net.run_until_up();
        net.run_until_idle();
        let before: Vec<usize> = nodes
            .iter()
            .map(|node| net.deliveries(*node).len())
            .collect();
        for from in &nodes {
            for to in nodes.iter().filter(|to| *to != from) {
                net.stream(*from, *to, Lane::ordered(0), 10_000, 10);
            }
        }
        net.run_until_idle();
        net.run_for(config.keep_alive.times(3));
        for (from, to) in nodes
            .iter()
            .flat_map(|from| nodes.iter().map(move |to| (*from, *to)))
        {
            let window = net
                .flow(from, to)
                .map_or(usize::MAX, |flow| flow.window_bytes);
            net.check(window >= config.budget_bytes / 8 * 7, || {
                format!("{to} grants {from} only {window} bytes")
            });
        }
        for (node, before) in nodes.iter().zip(before) {
            assert_eq!(net.deliveries(*node).len() - before, (NODES - 1) * 10);
            net.check(net.held(*node) == 0, || {
                format!("{node} holds {} bytes", net.held(*node))
            });
        }
    }
}

/// Odd sizes of everything, different at each node: frames, rings, budgets, queues, processors. All is delivered, by everyone.
#[test]
fn odd_configurations_work() {
    for seed in Seed::several(9_500, 30) {
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
                    // R-21 holds for rings of at least one frame for each peer.
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
            let lane = Lane::new(class, Priority::new(chance.below(4) as u8).unwrap(), 0);
            let longest = [1, 100, 5_000, 100_000][chance.below(4)];
            net.stream(
                nodes[from],
                nodes[to],
                lane,
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
