//! Processes that die and come back, and cables that are cut.

use super::config;
use tsumuji_proto::{Channel, Duration, Event, NodeId};
use tsumuji_sim::{Net, Process, Seed};

const CHANNEL: Channel = Channel::ordered(0);

fn kinds<E: Process>(net: &Net<E>, node: NodeId, of: NodeId) -> String {
    let letter = |event: &Event| match event {
        Event::PeerUp { peer, .. } if *peer == of => Some('U'),
        Event::PeerDead { peer, .. } if *peer == of => Some('D'),
        _ => None,
    };
    net.events(node)
        .iter()
        .filter_map(|(_, event)| letter(event))
        .collect()
}

/// The receiver dies in the middle of a large message and comes back at once: the old message fails, a new one arrives whole.
#[test]
fn receiver_restarts_in_a_large_message() {
    for seed in Seed::several(5_000, 5) {
        let mut net = Net::new(seed)
            .rate_mbit(1_000)
            .delay_us(10..30)
            .loss_percent(2);
        let (a, b) = net.pair(config());
        net.stream(a, b, CHANNEL, 4 << 20, 1);
        net.run_for(Duration::from_millis(10));
        assert_eq!(net.deliveries(b).len(), 0);
        net.crash(b);
        net.run_for(Duration::from_millis(1));
        net.restart(b);
        net.run_until(|net| net.is_up(a, b) && net.is_up(b, a) && kinds(net, a, b) == "UDU");
        let failed = net.events(a).iter().find_map(|(_, event)| match event {
            Event::PeerDead {
                failed_messages, ..
            } => Some(*failed_messages),
            _ => None,
        });
        assert_eq!(failed, Some(1));
        net.stream(a, b, CHANNEL, 100_000, 3);
        net.run_until_idle();
        assert_eq!(net.deliveries(b).len(), 3);
        assert_eq!(net.flow(a, b).unwrap().queued_bytes, 0);
    }
}

/// The sender dies in the middle of a large message: what had arrived is forgotten, and its memory serves others again.
#[test]
fn sender_restarts_in_a_large_message() {
    for seed in Seed::several(5_100, 5) {
        let mut net = Net::new(seed)
            .rate_mbit(1_000)
            .delay_us(10..30)
            .loss_percent(2);
        let small = tsumuji_proto::Config {
            budget_bytes: 1 << 20,
            ..config()
        };
        let nodes = net.mesh(3, &small);
        let [a, b, c] = nodes[..] else { unreachable!() };
        net.run_until_up();
        net.stream(c, b, CHANNEL, 1_000, 1);
        net.run_until_idle();
        let window = net.flow(c, b).unwrap().window_bytes;
        for round in 0..10 {
            // Most of the budget, and longer on the wire than this incarnation lasts.
            net.stream(a, b, CHANNEL, 900_000, 1);
            net.run_for(Duration::from_millis(5));
            assert_eq!(net.deliveries(b).len(), 1, "round {round}");
            net.crash(a);
            net.restart(a);
            net.run_until(|net| kinds(net, b, a).len() == 3 + 2 * round && net.is_up(a, b));
        }
        assert_eq!(kinds(&net, b, a), "UDUDUDUDUDUDUDUDUDUDU");
        net.stream(c, b, CHANNEL, 100_000, 20);
        net.stream(a, b, CHANNEL, 100_000, 20);
        net.run_until_idle();
        assert_eq!(net.deliveries(b).len(), 41);
        // The next sign of incarnation tells the window as it is when all is quiet.
        net.run_for(config().keep_alive.times(3));
        let left = net.flow(c, b).unwrap().window_bytes;
        net.check(left * 10 >= window * 9, || {
            format!("window was {window}, is {left}: memory was not given back")
        });
    }
}

/// A process that stays away is declared dead within the stated bound, its senders' memory is freed, and its return is noticed.
#[test]
fn absent_receiver_is_declared_dead() {
    let mut net = Net::new(Seed::from_env_or(52)).rate_mbit(1_000);
    let (a, b) = net.pair(config());
    let bound = config().dead_after + config().keep_alive;
    net.stream(a, b, CHANNEL, 1 << 20, 20);
    net.run_for(Duration::from_millis(5));
    let crash = net.now();
    net.crash(b);
    net.run_until(|net| net.declared_dead(a, b).is_some());
    let took = net.declared_dead(a, b).unwrap().since(crash);
    net.check(took <= bound, || {
        format!(
            "death was declared after {} ms",
            took.as_nanos() / 1_000_000
        )
    });
    net.check(
        net.flow(a, b).is_none_or(|flow| flow.queued_bytes == 0),
        || format!("{:?}", net.flow(a, b)),
    );
    net.run_for(Duration::from_millis(500));
    net.restart(b);
    net.reconnect(a, b);
    net.run_until(|net| net.is_up(a, b) && net.is_up(b, a));
    net.stream(a, b, CHANNEL, 1_000, 10);
    net.run_until_idle();
    assert_eq!(kinds(&net, a, b), "UDU");
    assert_eq!(
        kinds(&net, b, a).trim_start_matches('U').len(),
        0,
        "the new incarnation knows nothing of the old one"
    );
}

/// A process that closes is known to be gone long before a silent one would be.
#[test]
fn close_needs_no_timeout() {
    let mut net = Net::new(Seed::from_env_or(53));
    let (a, b) = net.pair(config());
    let start = net.now();
    net.leave(b);
    net.run_until(|net| net.declared_dead(a, b).is_some());
    let took = net.now().since(start);
    net.check(took <= Duration::from_millis(1), || {
        format!("took {} µs", took.as_nanos() / 1_000)
    });
}

/// Frames of a incarnation that is over, late by long delays, never disturb the next: many quick restarts under traffic.
#[test]
fn quick_restarts_with_late_frames() {
    for seed in Seed::several(5_300, 10) {
        let mut net = Net::new(seed)
            .delay_us(10..40)
            .duplicate_percent(20)
            .reorder_percent(20, 100..5_000)
            .loss_percent(5);
        let (a, b) = net.pair(config());
        let mut chance = seed.rng(98);
        for _ in 0..8 {
            net.stream(a, b, CHANNEL, 20_000, 10);
            net.stream(b, a, CHANNEL, 20_000, 10);
            net.run_for(Duration::from_nanos(chance.within(0..4_000_000)));
            let victim = if chance.chance(500_000) { a } else { b };
            net.crash(victim);
            net.run_for(Duration::from_nanos(chance.within(0..2_000_000)));
            net.restart(victim);
            let other = if victim == a { b } else { a };
            net.run_until(|net| {
                net.is_up(a, b) && net.is_up(b, a) && up_with_current(net, other, victim)
            });
        }
        net.stream(a, b, CHANNEL, 5_000, 10);
        net.stream(b, a, CHANNEL, 5_000, 10);
        net.run_until_idle();
    }
}

/// Copies of frames that come up to 50 ms late, after the incarnations that sent them: none brings a former incarnation back.
#[test]
fn stale_copies_reconnect_nobody() {
    for seed in Seed::several(5_350, 20) {
        let mut net = Net::new(seed)
            .duplicate_percent(50)
            .reorder_percent(30, 1_000..50_000);
        let (a, b) = net.pair(config());
        let mut chance = seed.rng(96);
        for _ in 0..10 {
            net.stream(a, b, CHANNEL, 200, 10);
            net.stream(b, a, CHANNEL, 200, 10);
            net.run_for(Duration::from_nanos(chance.within(0..20_000_000)));
            let (victim, other) = if chance.chance(500_000) {
                (a, b)
            } else {
                (b, a)
            };
            net.crash(victim);
            net.restart(victim);
            net.run_until(|net| {
                net.is_up(a, b) && net.is_up(b, a) && up_with_current(net, other, victim)
            });
        }
        net.stream(a, b, CHANNEL, 5_000, 10);
        net.stream(b, a, CHANNEL, 5_000, 10);
        net.run_until_idle();
        let ups = net
            .events(a)
            .iter()
            .filter(|(_, event)| matches!(event, Event::PeerUp { .. }))
            .count();
        net.check(ups <= 12, || {
            format!("{a} met {b} {ups} times, which had at most 11 incarnations")
        });
    }
}

fn up_with_current<E: Process>(net: &Net<E>, node: NodeId, of: NodeId) -> bool {
    let current = net.config_of(of).incarnation;
    let last = net
        .events(node)
        .iter()
        .rev()
        .find_map(|(_, event)| match event {
            Event::PeerUp { peer, incarnation } if *peer == of => Some(*incarnation),
            _ => None,
        });
    last == Some(current)
}

/// A cut shorter than `dead_after` costs time only. The silence is longer than the cut: by what was left of one keep-alive
/// period before it, and by one until the next sign of incarnation after it.
#[test]
fn short_cut_heals() {
    for seed in Seed::several(5_400, 5) {
        let mut net = Net::new(seed).rate_mbit(1_000);
        let nodes = net.mesh(4, &config());
        net.run_until_up();
        for (from, to) in [(0, 2), (2, 0), (1, 3), (0, 1)] {
            net.stream(nodes[from], nodes[to], CHANNEL, 50_000, 40);
        }
        net.run_for(Duration::from_millis(2));
        net.partition(&nodes[..2]);
        net.run_for(config().dead_after - config().keep_alive.times(2) - Duration::from_millis(5));
        assert!(net.traffic().partitioned > 0);
        net.heal();
        net.run_until_idle();
        assert_eq!(
            net.deliveries(nodes[2]).len() + net.deliveries(nodes[0]).len(),
            80
        );
        for node in &nodes {
            let dead = net
                .events(*node)
                .iter()
                .any(|(_, event)| matches!(event, Event::PeerDead { .. }));
            net.check(!dead, || format!("{node} declared someone dead"));
        }
    }
}

/// A cut longer than `dead_after` is death, on both sides, within the bound, for exactly those cut off; then they may meet again.
#[test]
fn long_cut_is_death_on_both_sides() {
    let mut net = Net::new(Seed::from_env_or(55)).rate_mbit(1_000);
    let nodes = net.mesh(4, &config());
    net.run_until_up();
    // One pair is busy, the other idle: both must notice.
    net.stream(nodes[0], nodes[2], CHANNEL, 1 << 20, 30);
    net.run_for(Duration::from_millis(20));
    let cut = net.now();
    net.partition(&nodes[..2]);
    net.run_for(Duration::from_millis(300));
    let (soonest, latest) = (
        config().dead_after - config().keep_alive.times(2),
        config().dead_after + config().keep_alive,
    );
    for (index, node) in nodes.iter().enumerate() {
        for (other, peer) in nodes
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index)
        {
            let died = net.declared_dead(*node, *peer);
            if (index < 2) == (other < 2) {
                net.check(died.is_none(), || {
                    format!("{node} declared {peer}, on its own side, dead")
                });
                continue;
            }
            let took = died.map(|at| at.since(cut));
            net.check(
                took.is_some_and(|took| took >= soonest && took <= latest),
                || {
                    format!(
                        "{node} declared {peer} dead after {:?} ns",
                        took.map(Duration::as_nanos)
                    )
                },
            );
        }
    }
    net.heal();
    net.run_for(Duration::from_millis(50));
    for (a, b) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        net.reconnect(nodes[a], nodes[b]);
        net.reconnect(nodes[b], nodes[a]);
    }
    net.run_until(|net| {
        (0..2)
            .all(|a| (2..4).all(|b| net.is_up(nodes[a], nodes[b]) && net.is_up(nodes[b], nodes[a])))
    });
    let before = net.deliveries(nodes[2]).len();
    net.stream(nodes[0], nodes[2], CHANNEL, 10_000, 10);
    net.run_until_idle();
    assert_eq!(
        net.deliveries(nodes[2]).len(),
        before + 10,
        "the old session's messages stay where they were"
    );
}

/// A process stopped for less than `dead_after` goes on where it was, though its ring overflowed meanwhile.
#[test]
fn stopped_process_goes_on() {
    let mut net = Net::new(Seed::from_env_or(56)).rate_mbit(1_000);
    let (a, b) = net.pair(config());
    net.stream(a, b, CHANNEL, 50_000, 50);
    net.run_for(Duration::from_millis(2));
    net.pause(b);
    net.run_for(Duration::from_millis(60));
    net.resume(b);
    net.run_until_idle();
    assert_eq!(
        (net.deliveries(b).len(), net.declared_dead(a, b)),
        (50, None)
    );
}

/// An idle cluster stays up, and its keep-alive costs little.
#[test]
fn idle_cluster_stays_up() {
    let mut net = Net::new(Seed::from_env_or(57)).loss_percent(5);
    let nodes = net.mesh(8, &config());
    net.run_until_up();
    net.run_for(Duration::from_millis(100));
    let before = net.traffic().sent_frames;
    net.run_for(Duration::from_secs(5));
    let sent = net.traffic().sent_frames - before;
    // 56 directed pairs, 250 keep-alive periods: a probe and its answer each, and not a multiple of that.
    net.check(sent <= 56 * 250 * 2, || {
        format!("{sent} frames in 5 idle seconds")
    });
    for node in &nodes {
        assert!(
            !net.events(*node)
                .iter()
                .any(|(_, event)| matches!(event, Event::PeerDead { .. }))
        );
    }
}
