//! The same seed, the same run: what makes every other failure here worth its seed.

use super::config;
use tsumuji_proto::{Channel, Destination, Duration};
use tsumuji_sim::{Damage, Net, Pace, Seed, Traffic};

/// A bit of everything.
fn busy_run(seed: Seed) -> (u64, Traffic, u64) {
    const KINDS: &[Damage] = &[Damage::Found, Damage::Truncated];
    let mut net = Net::new(seed)
        .rate_mbit(1_000)
        .switch_buffer(64 << 10)
        .delay_us(10..50)
        .loss_percent(5)
        .duplicate_percent(2)
        .reorder_percent(5, 10..500)
        .damage_percent(1, KINDS)
        .defer_percent(5);
    let nodes = net.mesh(5, &config());
    net.run_until_up();
    net.set_pace(nodes[1], Pace::BytesPerSecond(10_000_000));
    for from in &nodes {
        for to in nodes.iter().filter(|to| *to != from) {
            net.stream(*from, *to, Channel::ordered(0), 10_000, 10);
            net.stream(*from, *to, Channel::unordered(0), 100, 10);
        }
        net.publish(*from, Destination::Broadcast, (1, 1), 1, 0, 800)
            .unwrap();
    }
    net.run_for(Duration::from_millis(3));
    net.crash(nodes[4]);
    net.run_for(Duration::from_millis(3));
    net.restart(nodes[4]);
    net.run_until_idle();
    (net.trace(), net.traffic(), net.now().as_nanos())
}

/// Two runs of one seed agree in every frame, delivery and event, and in their times; another seed's run differs.
#[test]
fn same_seed_same_run() {
    let seed = Seed::from_env_or(90);
    let first = busy_run(seed);
    assert_eq!(first, busy_run(seed));
    assert_ne!(first.0, busy_run(Seed(seed.0 + 1)).0);
}
