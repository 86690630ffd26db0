//! Random disturbances of all kinds at once, for cases that no scenario covers. For tests, and for hours of `examples/soak.rs`.
//!
//! A run is a number of steps, each of which chooses at random, by its own generator, a disturbance of the net. So steps can be left out without
//! changing the choices of the others, and [`shrink`] reduces a failing run to the few steps that it needs.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tsumuji_proto::{Channel, Config, DeliveryClass, Destination, Duration, NodeId, Priority};

use crate::{Conditions, Damage, Net, Pace, Rng, Seed};

/// Nodes of the net.
const NODES: usize = 4;
/// Steps of a whole run.
pub const STEPS: u16 = 120;
const KINDS: &[Damage] = &[
    Damage::Found,
    Damage::Truncated,
    Damage::Padded,
    Damage::Garbage,
    Damage::Flipped,
];

/// Runs crashes, closed and restarted processes, partitions, pauses shorter and longer than the silence limit, slow programs, loss, repetition,
/// damage and garbage in random order. The judge must find no violation, and once the disturbances end all nodes must connect and all messages sent
/// then arrive. Only the steps in `steps` are run. With `Config::ring_bytes` the nodes share memory: paths stay as they are, and rings seem full at
/// random.
///
/// # Panics
/// With the violation that the judge finds.
pub fn run(seed: Seed, config: &Config, steps: &[u16]) {
    let has_rings = config.ring_bytes > 0;
    let mut net = if has_rings {
        Net::new(seed).defer_percent(5)
    } else {
        Net::new(seed)
            .rate_mbit(1_000)
            .switch_buffer(256 << 10)
            .delay_us(5..60)
            .checked()
    };
    let config = Config {
        budget_bytes: if has_rings { 4 << 20 } else { 1 << 20 },
        send_queue_bytes: 2 << 20,
        ..*config
    };
    let nodes = net.mesh(NODES, &config);
    let mut alive = [true; NODES];
    for &step in steps {
        let mut chance = seed.rng(97 + (u64::from(step) << 8));
        disturb(&mut net, &nodes, &mut alive, (&mut chance, has_rings));
        let longest_us = if chance.chance(50_000) {
            200_000
        } else {
            2_000
        };
        net.run_for(Duration::from_micros(chance.within(0..longest_us)));
    }
    net.heal();
    *net.conditions() = Conditions::default();
    for (node, alive) in nodes.iter().zip(alive) {
        if !alive {
            net.restart(*node);
        }
        net.set_pace(*node, Pace::Prompt);
        net.resume(*node);
    }
    // Peers whose session was aborted meanwhile are connected again, as a program would do.
    for _ in 0..3 {
        net.run_for(Duration::from_millis(200));
        for from in &nodes {
            for to in nodes.iter().filter(|to| *to != from) {
                if !net.is_up(*from, *to) {
                    net.reconnect(*from, *to);
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
            net.stream(*from, *to, Channel::ordered(0), 10_000, 10);
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
        // With rings few acknowledgements are sent, and only they state windows.
        net.check(has_rings || window >= config.budget_bytes / 8 * 7, || {
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

/// The violation that the judge finds in such a run, if any.
pub fn verdict(seed: Seed, config: &Config, steps: &[u16]) -> Option<String> {
    let fault = catch_unwind(AssertUnwindSafe(|| run(seed, config, steps))).err()?;
    let text = (fault.downcast_ref::<String>().cloned())
        .or_else(|| fault.downcast_ref::<&str>().map(|text| String::from(*text)));
    Some(text.unwrap_or_else(|| String::from("a panic without words")))
}

/// Leaves steps out of a failing run as long as it still fails, in whatever way; `None`: it does not fail.
pub fn shrink(seed: Seed, config: &Config) -> Option<Vec<u16>> {
    let fails = |steps: &[u16]| verdict(seed, config, steps).is_some();
    let mut steps: Vec<u16> = (0..STEPS).collect();
    if !fails(&steps) {
        return None;
    }
    let mut length = steps.len().div_ceil(2);
    loop {
        let mut from = 0;
        while from < steps.len() {
            let without = [&steps[..from], &steps[steps.len().min(from + length)..]].concat();
            if fails(&without) {
                steps = without;
            } else {
                from += length;
            }
        }
        if length == 1 {
            return Some(steps);
        }
        length = length.div_ceil(2);
    }
}

/// Disturbs the net in one random way; with rings, not its paths.
fn disturb(
    net: &mut Net,
    nodes: &[NodeId],
    alive: &mut [bool],
    (chance, has_rings): (&mut Rng, bool),
) {
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
            let channel = Channel::new(
                class,
                Priority::new(chance.below(4) as u8).unwrap(),
                chance.below(2) as u16 * 40_000,
            );
            let longest = [1, 100, 1_460, 20_000, 400_000][chance.below(5)];
            let bytes = chance.below(longest);
            if alive[at] {
                net.stream(node, to, channel, bytes, chance.within(1..6));
            }
        }
        60..65 if !has_rings => net.conditions().loss_ppm = chance.within(0..400_000) as u32,
        65..70 if !has_rings => {
            let conditions = net.conditions();
            conditions.duplicate_ppm = chance.within(0..200_000) as u32;
            conditions.reorder_ppm = chance.within(0..300_000) as u32;
            conditions.damage_ppm = chance.within(0..100_000) as u32;
            conditions.damage = KINDS;
            conditions.longest_bytes = if chance.chance(200_000) {
                400 + chance.below(1_100)
            } else {
                usize::MAX
            };
        }
        70..75 => {
            let pace =
                [Pace::Prompt, Pace::Stopped, Pace::BytesPerSecond(5_000_000)][chance.below(3)];
            net.set_pace(node, pace);
        }
        75..79 if !has_rings => net.partition(&nodes[..1 + chance.below(NODES - 1)]),
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
