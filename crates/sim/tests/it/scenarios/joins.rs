//! Members that join a running cluster, among others that die and come back, under traffic and losses.

use super::config;
use super::restarts::Cluster;
use tsumuji_proto::{Channel, Config, Duration};
use tsumuji_sim::{Net, Seed};

const CHANNEL: Channel = Channel::ordered(0);

/// Clusters that grow to several times their size while members die and return: after each step what is granted fits the receive ring, whatever its
/// size, and in the end all meet and all arrives.
#[test]
fn clusters_grow_in_bad_weather() {
    for seed in Seed::several(12_000, 40) {
        let net = Net::new(seed)
            .rate_mbit(1_000)
            .switch_buffer(256 << 10)
            .delay_us(5..60)
            .loss_percent([0, 1, 10][(seed.0 % 3) as usize])
            .reorder_percent(5, 10..200)
            .patience(Duration::from_secs(20));
        let config = Config {
            receive_frames: [20, 64, 256][(seed.0 / 3 % 3) as usize],
            send_queue_bytes: 1 << 20,
            ..config()
        };
        let mut cluster = Cluster::new(net, seed, 2, &config);
        while cluster.nodes.len() < 16 {
            let at = cluster.chance.below(cluster.nodes.len());
            match cluster.chance.below(10) {
                0..6 => cluster.send(),
                6 | 7 => cluster.join(&config),
                8 if cluster.alive[at] => cluster.end(at),
                8 => {}
                _ if !cluster.alive[at] => cluster.begin(at),
                _ => {}
            }
            let span = cluster.span();
            cluster.run_for(span);
        }
        cluster.come_to_rest();
    }
}

/// A peer that was granted all and stopped sending leaves room for those that join later: they send at once, and the ring does not overflow.
#[test]
fn unused_credit_shuts_nobody_out() {
    let mut net = Net::new(Seed::from_env_or(12_900))
        .rate_mbit(10_000)
        .delay_us(20..21);
    let config = Config {
        receive_frames: 256,
        ..config()
    };
    let receiver = net.node(config.clone());
    net.set_frame_cost(receiver, Duration::from_micros(3));
    let first = net.node(config.clone());
    net.connect(first, receiver);
    net.run_until_up();
    net.stream(first, receiver, CHANNEL, 100_000, 50);
    net.run_until_idle();
    for joined in 1..=10_u64 {
        let node = net.node(config.clone());
        net.connect(node, receiver);
        net.run_until_up();
        let begun = net.now();
        net.stream(node, receiver, CHANNEL, 1_000, 20);
        net.run_until_idle();
        let took = net.now().since(begun);
        // A probe of a sender without credit would wait for a millisecond and more.
        net.check(took < Duration::from_millis(3), || {
            format!("20 messages of the peer that joined as {joined} took {took:?}")
        });
    }
    let overflowed = net.receive_full(receiver);
    net.check(overflowed == 0, || format!("{overflowed} overflowed"));
}

/// Of a thousand nodes, each with eight neighbours, a hundred join while the others talk, one node meets them all, and others are killed and started
/// again.
#[test]
fn a_hundred_join_among_a_thousand() {
    let seed = Seed::from_env_or(12_950);
    let mut net = Net::new(seed).delay_us(5..40).loss_percent(1);
    let mut chance = seed.rng(92);
    let mut nodes = net.nodes(900, &config());
    let neighbours = [1, 2, 30, 400];
    for (index, node) in nodes.iter().enumerate() {
        for step in neighbours {
            net.connect(*node, nodes[(index + step) % nodes.len()]);
        }
    }
    net.run_until_up();
    let hub = nodes[0];
    for _ in 0..100 {
        let node = net.node(config());
        net.connect(node, hub);
        for _ in 0..7 {
            net.connect(node, nodes[1 + chance.below(nodes.len() - 1)]);
        }
        nodes.push(node);
        for _ in 0..20 {
            let from = chance.below(900);
            let to = nodes[(from + neighbours[chance.below(4)]) % 900];
            net.stream(nodes[from], to, CHANNEL, 4_000, 3);
        }
        net.stream(node, hub, CHANNEL, 4_000, 3);
        let killed = nodes[1 + chance.below(nodes.len() - 1)];
        net.crash(killed);
        net.run_for(Duration::from_micros(chance.within(0..2_000)));
        net.restart(killed);
        let accounts = net.engine(hub).expect("alive").accounts();
        net.check(
            accounts.are_balanced() && accounts.claimed_frames <= 256,
            || format!("{accounts:?}"),
        );
    }
    // Nodes that have not noticed a restart yet do so now.
    net.run_for(config().dead_after.times(2));
    for node in &nodes[900..] {
        net.reconnect(*node, hub);
        net.reconnect(hub, *node);
    }
    net.run_for(Duration::from_millis(300));
    for node in &nodes[900..] {
        net.check(net.is_up(*node, hub) && net.is_up(hub, *node), || {
            format!("{node} and {hub} have not met")
        });
        net.stream(hub, *node, CHANNEL, 4_000, 3);
    }
    net.run_until_idle();
}
