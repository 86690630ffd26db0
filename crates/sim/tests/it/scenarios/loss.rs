//! Exactly once and in order, whatever the wires do short of lying.

use super::{config, figure};
use tsumuji_proto::{Channel, Config, DeliveryClass, Duration, Priority};
use tsumuji_sim::{Damage, Net, Seed};

/// Loss and reordering delay a message but never truncate or repeat it.
#[test]
fn large_message_survives_loss() {
    let mut net = Net::new(Seed::from_env_or(7))
        .delay_us(20..80)
        .loss_percent(10);
    let (a, b) = net.pair(config());
    let sent = net.random_payload(1 << 20);
    net.send(a, b, Channel::ordered(0), &sent);
    net.run_until_idle();
    assert_eq!(net.received(b), [sent]);
}

/// 30 % loss, reordering and duplication on the way there and back, many channels at once: the judge sees each message once.
#[test]
fn hard_weather_on_many_channels() {
    for seed in Seed::several(1_000, 20) {
        let mut net = Net::new(seed)
            .delay_us(10..60)
            .loss_percent(30)
            .duplicate_percent(10)
            .reorder_percent(20, 50..1_000);
        // Longer than it takes to lose all signs of life of 100 ms, which happens in such weather.
        let (a, b) = net.pair(Config {
            dead_after: Duration::from_secs(1),
            ..config()
        });
        let mut chance = seed.rng(99);
        let mut sent = [0; 2];
        for _ in 0..60 {
            let class = if chance.chance(500_000) {
                DeliveryClass::Ordered
            } else {
                DeliveryClass::Unordered
            };
            let priority = Priority::new(chance.below(4) as u8).unwrap();
            let channel = Channel::new(class, priority, chance.below(3) as u16);
            // Empty, a few bytes, a frame, several frames, many.
            let longest = [1, 16, 1_460, 9_000, 100_000][chance.below(5)];
            let (bytes, count) = (chance.below(longest), chance.within(1..4));
            let forth = chance.chance(600_000);
            let (from, to) = if forth { (a, b) } else { (b, a) };
            sent[usize::from(forth)] += count as usize;
            net.stream(from, to, channel, bytes, count);
            net.run_for(Duration::from_nanos(chance.within(0..300_000)));
        }
        net.run_until_idle();
        let delivered = [net.deliveries(a).len(), net.deliveries(b).len()];
        net.check(delivered == sent, || {
            format!("{delivered:?} delivered of {sent:?}")
        });
    }
}

/// Half of all frames lost in one direction only: acknowledgements, or data, suffer alone.
#[test]
fn one_way_loss() {
    for (forth, back) in [(500_000, 0), (0, 500_000)] {
        let mut net = Net::new(Seed::from_env_or(8));
        // Of half of all frames so many in a row may be lost that a session with the usual limit ends.
        let (a, b) = net.pair(Config {
            dead_after: Duration::from_secs(10),
            ..config()
        });
        for (from, to, loss_ppm) in [(a, b, forth), (b, a, back)] {
            let conditions = tsumuji_sim::Conditions {
                loss_ppm,
                ..Default::default()
            };
            net.set_path(from, to, conditions);
        }
        net.stream(a, b, Channel::ordered(1), 20_000, 50);
        net.run_until_idle();
        assert_eq!(net.deliveries(b).len(), 50);
    }
}

/// A short message that nothing follows does not wait for a long timeout when its frame is lost.
#[test]
fn tail_loss_is_probed() {
    const MESSAGES: usize = 200;
    let mut net = Net::new(Seed::from_env_or(2_000)).loss_percent(20);
    let (a, b) = net.pair(config());
    let mut slow = 0;
    for _ in 0..MESSAGES {
        let start = net.now();
        net.stream(a, b, Channel::ordered(0), 100, 1);
        net.run_until_idle();
        slow += usize::from(net.now().since(start) > Duration::from_millis(5));
    }
    // A try fails with 36 %; the fourth starts after about 3.5 ms. 5 % are expected to need more than that.
    figure(&net, slow <= MESSAGES / 8, || {
        format!("{slow} of {MESSAGES} messages took over 5 ms")
    });
}

/// Frames that merely overtake each other are not sent again and again: the sender learns how far they do.
#[test]
fn reordering_alone_costs_little() {
    // 30 µs of jitter are 24 frames of 1500 bytes at 10 Gbit/s.
    let mut net = Net::new(Seed::from_env_or(5))
        .rate_mbit(10_000)
        .delay_us(20..50);
    let (a, b) = net.pair(config());
    net.stream(a, b, Channel::ordered(0), 64 << 10, 160);
    net.run_until_idle();
    let counters = net.engine(a).unwrap().counters();
    let (again, sent) = (counters.retransmitted_frames, counters.sent_frames);
    figure(&net, again * 4 <= sent, || {
        format!("{again} of {sent} frames were sent again, and none was lost")
    });
}

/// Damage that a link or a parser can see costs a frame, never a promise.
#[test]
fn visible_damage_is_only_loss() {
    const KINDS: &[Damage] = &[
        Damage::Found,
        Damage::Truncated,
        Damage::Padded,
        Damage::Garbage,
    ];
    for seed in Seed::several(3_000, 5) {
        let mut net = Net::new(seed).delay_us(10..30).damage_percent(20, KINDS);
        let nodes = net.mesh(3, &config());
        net.run_until_up();
        for node in &nodes {
            net.inject_garbage(*node, 2_000, Duration::from_millis(20));
        }
        for (index, from) in nodes.iter().enumerate() {
            let to = nodes[(index + 1) % nodes.len()];
            net.stream(*from, to, Channel::ordered(0), 30_000, 20);
            net.stream(*from, to, Channel::unordered(0), 10, 200);
        }
        net.run_until_idle();
        let damaged = net.traffic().damage_passed;
        net.check(damaged > 100, || {
            format!("only {damaged} damaged frames were let through")
        });
    }
}

/// Damage of every kind, flipped bits included, on every twentieth frame, and garbage from nowhere: with a checksum around each frame nothing
/// that arrives is other than it was sent, and everything arrives.
#[test]
fn checked_damage_is_only_loss() {
    const KINDS: &[Damage] = &[
        Damage::Flipped,
        Damage::Truncated,
        Damage::Padded,
        Damage::Garbage,
    ];
    for seed in Seed::several(3_500, 10) {
        let mut net = Net::new(seed)
            .checked()
            .delay_us(10..30)
            .damage_percent(5, KINDS);
        let nodes = net.mesh(3, &config());
        net.run_until_up();
        for node in &nodes {
            net.inject_garbage(*node, 500, Duration::from_millis(20));
        }
        for (index, from) in nodes.iter().enumerate() {
            let to = nodes[(index + 1) % nodes.len()];
            net.stream(*from, to, Channel::ordered(0), 30_000, 20);
            net.stream(*from, to, Channel::unordered(0), 10, 200);
        }
        net.run_until_idle();
        for node in &nodes {
            let arrived = net.deliveries(*node).len();
            net.check(arrived == 220, || format!("{node} has {arrived} of 220"));
        }
        let traffic = net.traffic();
        net.check(
            traffic.damage_passed > 50 && 2 * traffic.refused > traffic.damage_passed,
            || format!("too little was damaged: {traffic:?}"),
        );
    }
}

/// Flipped bits that no checksum finds: nobody panics, spins or grows, and a pair on sound wires notices nothing.
#[test]
fn undetected_damage_is_contained() {
    const FLIPS: &[Damage] = &[Damage::Flipped, Damage::Truncated, Damage::Garbage];
    for seed in Seed::several(4_000, 20) {
        let mut net = Net::new(seed);
        let nodes = net.mesh(3, &config());
        let [a, b, c] = nodes[..] else { unreachable!() };
        net.run_until_up();
        net.forgive(a, b);
        let conditions = tsumuji_sim::Conditions {
            damage_ppm: 50_000,
            damage: FLIPS,
            ..Default::default()
        };
        net.set_path(a, b, conditions.clone());
        net.set_path(b, a, conditions);
        let before = net.traffic().sent_frames;
        net.stream(a, b, Channel::ordered(0), 5_000, 100);
        net.stream(b, a, Channel::unordered(0), 500, 100);
        net.stream(a, c, Channel::ordered(0), 5_000, 100);
        net.stream(c, b, Channel::ordered(0), 5_000, 100);
        net.run_for(Duration::from_millis(500));
        let from_a = net.deliveries(c).len();
        let from_c = net
            .deliveries(b)
            .iter()
            .filter(|message| message.from == c)
            .count();
        net.check((from_a, from_c) == (100, 100), || {
            format!("sound pairs got {from_a} and {from_c} of 100 and 100")
        });
        let sent = net.traffic().sent_frames - before;
        net.check(sent < 100_000, || {
            format!("{sent} frames for 2 MB in half a second")
        });
    }
}
