//! Messages that cannot get through though their peer is heard: they fail by name, and what waits for memory does not.

use super::config;
use tsumuji_proto::{Congestion, Duration, Event, Lane, NodeId};
use tsumuji_sim::{Net, Pace, Seed};

fn stalls(net: &Net, node: NodeId, peer: NodeId) -> usize {
    let stalled = |event: &Event| matches!(event, Event::Stalled { peer: who, message: Some(_) } if *who == peer);
    let events = net.events(node).iter();
    events.filter(|(_, event)| stalled(event)).count()
}

/// A path ceases to carry full frames, one way, while small ones pass in both: who sends long messages is told which one does not get through, in
/// bounded time, and how many are lost with it; the rest of the net notices nothing, and once the path is mended the two meet and talk again.
#[test]
fn a_path_without_full_frames_fails_by_name() {
    if config().congestion == Congestion::Suci {
        return; // it waits
    }
    for seed in Seed::several(12_000, 10) {
        let mut net = Net::new(seed).rate_mbit(1_000).delay_us(10..40);
        let nodes = net.mesh(3, &config());
        let [a, b, c] = nodes[..] else { unreachable!() };
        net.run_until_up();
        let narrow = tsumuji_sim::Conditions {
            longest_bytes: 600,
            ..net.conditions().clone()
        };
        net.stream(a, b, Lane::ordered(0), 20_000, 30);
        net.run_for(Duration::from_micros(300));
        net.set_path(a, b, narrow.clone());
        // Small messages on another lane, and the other way, go on: they keep the two alive.
        for _ in 0..130 {
            net.stream(a, b, Lane::unordered(1), 100, 1);
            net.stream(b, a, Lane::ordered(0), 100, 1);
            net.stream(b, c, Lane::ordered(0), 20_000, 1);
            net.run_for(Duration::from_millis(10));
        }
        let told = stalls(&net, a, b);
        net.check(told > 0, || String::from("nobody was told"));
        let lost = (net.events(a).iter()).any(|(_, event)| {
            matches!(event, Event::MessagesLost { peer, messages } if *peer == b && *messages > 0)
        });
        net.check(lost, || String::from("of no loss"));
        let others = stalls(&net, b, a) + stalls(&net, b, c) + stalls(&net, c, b);
        net.check(others == 0, || format!("{others} others were told"));
        let fair = net.conditions().clone();
        net.set_path(a, b, fair);
        for _ in 0..20 {
            net.run_for(Duration::from_millis(50));
            for (from, to) in [(a, b), (b, a)] {
                if !net.is_up(from, to) {
                    net.revive(from, to);
                }
            }
        }
        let before = net.deliveries(b).len();
        net.stream(a, b, Lane::ordered(0), 20_000, 10);
        net.run_until_idle();
        assert_eq!(net.deliveries(b).len() - before, 10);
    }
}

/// A receiver whose program takes nothing for many times `dead_after` refuses what its memory does not hold: that is no stall, and all arrives when
/// it goes on.
#[test]
fn a_full_receiver_is_no_stall() {
    for seed in Seed::several(12_500, 5) {
        let mut net = Net::new(seed).delay_us(10..40).loss_percent(2);
        let config = tsumuji_proto::Config {
            budget_bytes: 100_000,
            ..config()
        };
        let (a, b) = net.pair(config.clone());
        net.set_pace(b, Pace::Stopped);
        net.stream(a, b, Lane::ordered(0), 30_000, 20);
        net.run_for(config.dead_after.times(20));
        let dead = (net.events(a).iter().chain(net.events(b)))
            .any(|(_, event)| matches!(event, Event::PeerDead { .. } | Event::Stalled { .. }));
        net.check(!dead, || String::from("who waits for memory was given up"));
        net.set_pace(b, Pace::Prompt);
        net.run_until_idle();
        assert_eq!(net.deliveries(b).len(), 20);
    }
}

/// A cable that is cut for less than `dead_after` stalls nobody, whatever was sent into it, and however seldom it is tried again by then.
#[test]
fn a_short_cut_is_no_stall() {
    for seed in Seed::several(12_600, 20) {
        for cut_ms in [40, 60, 75] {
            let mut net = Net::new(seed).delay_us(10..40);
            let (a, b) = net.pair(config());
            net.run_until_up();
            net.stream(a, b, Lane::ordered(0), 5_000, 3);
            net.run_for(Duration::from_micros(seed.0 % 20 * 10));
            net.partition(&[a]);
            net.stream(a, b, Lane::ordered(0), 5_000, 3);
            net.stream(b, a, Lane::unordered(0), 5_000, 3);
            net.run_for(Duration::from_millis(cut_ms));
            net.heal();
            net.run_until_idle();
            let ended = (net.events(a).iter().chain(net.events(b)))
                .any(|(_, event)| matches!(event, Event::PeerDead { .. } | Event::Stalled { .. }));
            net.check(!ended, || String::from("the session ended"));
            assert_eq!((net.deliveries(b).len(), net.deliveries(a).len()), (6, 3));
        }
    }
}
