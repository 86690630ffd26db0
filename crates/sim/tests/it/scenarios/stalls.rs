//! Messages that cannot get through though their peer is heard: they fail by name, and what waits for memory does not.

use super::config;
use tsumuji_proto::{Channel, Destination, Duration, Event, NodeId};
use tsumuji_sim::{Net, Pace, Seed};

fn stalls(net: &Net, node: NodeId, peer: NodeId) -> usize {
    let stalled = |event: &Event| matches!(event, Event::Stalled { peer: who, message: Some(_) } if *who == peer);
    let events = net.events(node).iter();
    events.filter(|(_, event)| stalled(event)).count()
}

/// A path ceases to carry full frames, one way, while small ones pass in both. The sender of long messages is told in bounded time which one does
/// not get through, and how many are lost with it. The rest of the net notices nothing. Once the path is mended, the two meet and talk again.
#[test]
fn a_path_without_full_frames_fails_by_name() {
    for seed in Seed::several(12_000, 10) {
        let mut net = Net::new(seed).rate_mbit(1_000).delay_us(10..40);
        let nodes = net.mesh(3, &config());
        let [a, b, c] = nodes[..] else { unreachable!() };
        net.run_until_up();
        let narrow = tsumuji_sim::Conditions {
            longest_bytes: 600,
            ..net.conditions().clone()
        };
        net.stream(a, b, Channel::ordered(0), 20_000, 30);
        net.run_for(Duration::from_micros(300));
        net.set_path(a, b, narrow.clone());
        // Small messages on another channel, and the other way, go on: they keep the two alive.
        for _ in 0..130 {
            net.stream(a, b, Channel::unordered(1), 100, 1);
            net.stream(b, a, Channel::ordered(0), 100, 1);
            net.stream(b, c, Channel::ordered(0), 20_000, 1);
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
                    net.reconnect(from, to);
                }
            }
        }
        let before = net.deliveries(b).len();
        net.stream(a, b, Channel::ordered(0), 20_000, 10);
        net.run_until_idle();
        assert_eq!(net.deliveries(b).len() - before, 10);
    }
}

/// A path that carries no frames of full size, and is not mended: each time that two meet again after a message has failed, they agree on smaller
/// ones, until what is sent arrives, datagrams too, of whatever length. When one of them has died, they begin with full frames again.
#[test]
fn frames_are_narrowed_to_what_the_path_carries() {
    for seed in Seed::several(12_300, 5) {
        for longest_bytes in [1_450, 800, 400] {
            let mut net = Net::new(seed).rate_mbit(1_000).delay_us(10..40);
            let config = tsumuji_proto::Config {
                frame_bytes: 8_900,
                ..config()
            };
            let nodes = net.mesh(3, &config);
            let [a, b, c] = nodes[..] else { unreachable!() };
            net.run_until_up();
            let fair = net.conditions().clone();
            let narrow = tsumuji_sim::Conditions {
                longest_bytes,
                ..fair.clone()
            };
            net.set_path(a, b, narrow);
            let mut failed = 0;
            while failed < 10 {
                let (before, told) = (net.deliveries(b).len(), stalls(&net, a, b));
                net.stream(a, b, Channel::ordered(0), 20_000, 3);
                while stalls(&net, a, b) == told && net.deliveries(b).len() < before + 3 {
                    net.stream(b, a, Channel::ordered(0), 100, 1);
                    net.run_for(Duration::from_millis(10));
                }
                if net.deliveries(b).len() == before + 3 {
                    break;
                }
                failed += 1;
                while !net.is_up(a, b) || !net.is_up(b, a) {
                    for (from, to) in [(a, b), (b, a)] {
                        if !net.is_up(from, to) {
                            net.reconnect(from, to);
                        }
                    }
                    net.run_for(Duration::from_millis(10));
                }
            }
            let most = [1_450, 800, 400].iter().position(|it| *it == longest_bytes);
            net.check(Some(failed) == most.map(|at| at + 1), || {
                format!("{failed} messages failed where {longest_bytes} bytes pass")
            });
            for bytes in [300, 1_000, 5_000, 12_000] {
                let (before, others) = (net.datagrams(b).len(), net.datagrams(c).len());
                net.publish(a, Destination::Broadcast, (1, 1), bytes, 0, bytes as usize)
                    .unwrap();
                net.run_for(Duration::from_millis(5));
                net.check(net.datagrams(b).len() == before + 1, || {
                    format!("{b} has no datagram of {bytes} bytes")
                });
                net.check(net.datagrams(c).len() == others + 1, || {
                    format!("{c} has no datagram of {bytes} bytes")
                });
            }
            net.set_path(a, b, fair);
            net.crash(b);
            net.run_for(config.dead_after.times(3));
            net.restart(b);
            for _ in 0..20 {
                net.run_for(Duration::from_millis(50));
                if !net.is_up(a, b) {
                    net.reconnect(a, b);
                }
            }
            let frames = net.traffic().sent_frames;
            net.stream(a, b, Channel::ordered(0), 80_000, 10);
            net.run_until_idle();
            let frames = net.traffic().sent_frames - frames;
            net.check(frames < 300, || {
                format!("{frames} frames for 100 fragments of full size")
            });
        }
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
        net.stream(a, b, Channel::ordered(0), 30_000, 20);
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
            net.stream(a, b, Channel::ordered(0), 5_000, 3);
            net.run_for(Duration::from_micros(seed.0 % 20 * 10));
            net.partition(&[a]);
            net.stream(a, b, Channel::ordered(0), 5_000, 3);
            net.stream(b, a, Channel::unordered(0), 5_000, 3);
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
