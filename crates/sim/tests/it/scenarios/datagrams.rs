//! Best-effort frames: they may be lost, and must be right.

use super::config;
use tsumuji_proto::{Destination, Duration, Event, NodeId};
use tsumuji_sim::{Net, Seed};

/// On a calm net a broadcast reaches every peer once, with its stamp and content.
#[test]
fn broadcast_reaches_all() {
    let mut net = Net::new(Seed::from_env_or(40));
    let nodes = net.mesh(8, &config());
    net.run_until_up();
    for lap in 1..=10 {
        net.publish(
            nodes[0],
            Destination::Broadcast,
            (7, 1),
            lap,
            64 * lap,
            1_000,
        )
        .unwrap();
        net.run_for(Duration::from_millis(1));
    }
    for node in &nodes[1..] {
        let stamps: Vec<_> = net
            .datagrams(*node)
            .iter()
            .map(|datagram| (datagram.source, datagram.lap, datagram.key))
            .collect();
        let expected: Vec<_> = (1..=10).map(|lap| (nodes[0], lap, 64 * lap)).collect();
        assert_eq!(stamps, expected);
    }
}

/// Under loss, repetition and reordering no datagram is damaged, none invented.
#[test]
fn shares_survive_or_vanish() {
    for seed in Seed::several(4_100, 5) {
        let mut net = Net::new(seed)
            .delay_us(10..500)
            .loss_percent(30)
            .duplicate_percent(10);
        let nodes = net.mesh(4, &config());
        net.run_until_up();
        for lap in 1..=500 {
            for node in &nodes {
                net.publish(*node, Destination::Broadcast, (7, 1), lap, 0, 1_200)
                    .unwrap();
            }
            net.run_for(Duration::from_micros(50));
        }
        net.run_for(Duration::from_millis(5));
        for node in &nodes {
            let got = net.datagrams(*node).len();
            net.check((700..=1_700).contains(&got), || {
                format!("{node} got {got} of 1500")
            });
        }
    }
}

/// Late datagrams of an incarnation that is over are not handed over: the judge checks the incarnation of each.
#[test]
fn shares_of_former_sessions_are_refused() {
    for seed in Seed::several(4_200, 5) {
        let mut net = Net::new(seed)
            .duplicate_percent(30)
            .reorder_percent(50, 100..20_000);
        let nodes = net.mesh(3, &config());
        net.run_until_up();
        for incarnation in 0..10 {
            for lap in 1..=20 {
                net.publish(nodes[0], Destination::Broadcast, (7, 1), lap, 0, 800)
                    .unwrap();
                net.run_for(Duration::from_micros(200));
            }
            net.crash(nodes[0]);
            net.restart(nodes[0]);
            let session_now = net.config_of(nodes[0]).incarnation;
            net.run_until(|net| {
                let met = |node: NodeId| {
                    net.events(node).iter().any(|(_, event)| {
                        matches!(event, Event::PeerUp { incarnation, .. } if *incarnation == session_now)
                    })
                };
                met(nodes[1]) && met(nodes[2])
            });
            net.check(net.datagrams(nodes[1]).len() > incarnation * 10, || {
                format!("only {} datagrams", net.datagrams(nodes[1]).len())
            });
        }
    }
}
