//! The scenarios under the congestion control `suci`, and its own rules at work.

#[path = "scenarios/mod.rs"]
mod scenarios;

use scenarios::config;
use tsumuji_proto::{Channel, Config, Congestion, CongestionKind, Counters, Drop, Duration, Event};
use tsumuji_sim::{Net, Pace, Seed};

const CONGESTION: Congestion = Congestion::SUCI;

/// The rules with this K.
fn with_k(unasked_frames: u16) -> Config {
    Config {
        congestion: Congestion::Suci { unasked_frames },
        ..config()
    }
}

/// Lossy wires: what comes after a gap is dropped under its own reason, what came before is acknowledged again, losses are called
/// and asked about. With K = 0 nothing at all is sent again that was not granted; with more, K frames for each NACK besides.
#[test]
fn losses_are_repaired_by_permission() {
    for (k, seeds) in [(0, 12_000), (Congestion::UNASKED_FRAMES, 12_020)] {
        for seed in Seed::several(seeds, 5) {
            let mut net = Net::new(seed)
                .rate_mbit(1_000)
                .loss_percent(3)
                .duplicate_percent(2);
            // K is the sender's own affair: the receiver has another one.
            let (a, b) = (net.node(with_k(k)), net.node(with_k(7)));
            net.connect(a, b);
            net.stream(a, b, Channel::ordered(0), 64 << 10, 20);
            net.run_until_idle();
            assert_eq!(net.deliveries(b).len(), 20);
            let (here, there) = (counters(&net, a), counters(&net, b));
            for (what, count) in [
                ("gaps", there.drops.get(Drop::Gap)),
                ("old numbers", there.drops.get(Drop::Duplicate)),
                ("nacks", there.nacks),
                ("asks", here.asks),
                ("grants", there.grants),
                ("sent again", here.retransmitted_frames),
            ] {
                net.check(count > 0, || format!("K = {k}: no {what}"));
            }
            let permitted = there.granted_frames + u64::from(k) * there.nacks;
            net.check(here.retransmitted_frames <= permitted, || {
                format!("K = {k}: more sent again than permitted: {here:?}, {there:?}")
            });
            assert_eq!((here.nacks, here.grants, there.asks), (0, 0, 0));
        }
    }
}

/// A queue that never exceeds K is sent again unasked: the sender asks only after silence, or where the same number is lost twice. Its window
/// keeps the queue short, and less of it would make the sender ask for nearly every loss.
#[test]
fn short_queues_are_repeated_unasked() {
    const FRAMES: u16 = 8;
    let run = |seed, k: u16| {
        let mut net = Net::new(seed).rate_mbit(1_000).loss_percent(2);
        let (a, b) = (net.node(with_k(k)), net.node(with_k(k)));
        net.call(b, |engine, _| engine.set_window(usize::from(FRAMES)));
        net.connect(a, b);
        net.stream(a, b, Channel::ordered(0), 1_000, 2_000);
        net.run_until_idle();
        assert_eq!(net.deliveries(b).len(), 2_000);
        let (here, there) = (counters(&net, a), counters(&net, b));
        net.check(here.asks <= here.probes || k == 0, || {
            format!("K = {k}: asks without silence: {here:?}")
        });
        net.check(there.nacks > 20, || format!("K = {k}: {there:?}"));
        (net, here, there)
    };
    for seed in Seed::several(12_040, 5) {
        let (net, here, there) = run(seed, FRAMES);
        net.check(here.retransmitted_frames > there.granted_frames, || {
            format!("nothing was sent again unasked: {here:?}, {there:?}")
        });
        let (net, asking, _) = run(seed, 0);
        net.check(asking.asks > 2 * here.asks, || {
            format!(
                "K = 0 asks {}, K = {FRAMES} asks {}",
                asking.asks, here.asks
            )
        });
    }
}

/// On wires that lose nothing there is nothing to ask for.
#[test]
fn calm_wires_need_no_permission() {
    let mut net = Net::new(Seed::from_env_or(12_100)).rate_mbit(1_000);
    let (a, b) = net.pair(config());
    net.stream(a, b, Channel::ordered(0), 64 << 10, 50);
    net.stream(b, a, Channel::unordered(0), 100, 500);
    net.run_until_idle();
    for node in [a, b] {
        let counters = counters(&net, node);
        assert_eq!((counters.asks, counters.nacks, counters.grants), (0, 0, 0));
        assert_eq!(counters.retransmitted_frames, 0);
        for reason in [Drop::Gap, Drop::Duplicate, Drop::Memory] {
            assert_eq!(counters.drops.get(reason), 0, "{}", reason.name());
        }
    }
}

/// Before a ring that holds far more than the switch, two streams to one receiver are not dropped on their way: the window that is
/// stated unasked is smaller.
#[test]
fn unasked_windows_do_not_flood_the_switch() {
    let deep = Config {
        receive_frames: 4096,
        ..config()
    };
    let mut net = Net::new(Seed::from_env_or(12_150))
        .rate_mbit(100)
        .switch_buffer(1 << 20);
    let nodes = net.star(3, &deep);
    net.run_until_up();
    for sender in &nodes[1..] {
        net.stream(*sender, nodes[0], Channel::ordered(0), 1_024, 4_000);
    }
    net.run_until_idle();
    assert_eq!(net.traffic().switch_full, 0);
    assert_eq!(counters(&net, nodes[0]).nacks, 0);
}

/// The window stated with each acknowledgement is what the program's queue leaves: a stopped program stops its sender, with few
/// frames refused, and one that takes again is told of.
#[test]
fn window_follows_the_queue() {
    let mut net = Net::new(Seed::from_env_or(12_200)).rate_mbit(1_000);
    let (a, b) = net.pair(Config {
        budget_bytes: 200_000,
        ..config()
    });
    net.set_pace(b, Pace::Stopped);
    net.stream(a, b, Channel::ordered(0), 10_000, 100);
    net.run_for(Duration::from_millis(20));
    let flow = net.flow(a, b).unwrap();
    assert_eq!((flow.credit_frames, flow.window_bytes), (0, 0));
    net.set_pace(b, Pace::Prompt);
    net.run_until_idle();
    assert_eq!(net.deliveries(b).len(), 100);
    // As many as were on their way when the window closed, and those come again.
    let (here, there) = (counters(&net, a), counters(&net, b));
    net.check(here.retransmitted_frames <= 256, || format!("{here:?}"));
    net.check(there.drops.get(Drop::Memory) <= 10, || format!("{there:?}"));
}

/// A window that the program chose before its peers came is what hello tells them, and what each acknowledgement repeats.
#[test]
fn chosen_windows_are_told() {
    let mut net = Net::new(Seed::from_env_or(12_250)).rate_mbit(1_000);
    let (a, b) = (net.node(config()), net.node(config()));
    net.call(b, |engine, _| engine.set_window(4));
    net.connect(a, b);
    net.run_until_up();
    net.stream(a, b, Channel::ordered(0), 10_000, 50);
    while net.deliveries(b).len() < 50 {
        let flow = net.flow(a, b).unwrap();
        net.check(flow.in_flight_frames + flow.credit_frames <= 4, || {
            format!("{flow:?}")
        });
        net.run_for(Duration::from_micros(10));
    }
    let told = net.flow(b, a).unwrap();
    net.check(told.granted_frames <= 4, || format!("{told:?}"));
    net.call(b, |engine, _| engine.set_window(64));
    net.run_for(Duration::from_millis(1));
    assert_eq!(net.flow(a, b).unwrap().credit_frames, 64);
    net.run_until_idle();
}

/// Sixteen to one over a ring that cannot hold their windows: it overflows, each asks, and what all are granted together never
/// makes it overflow again while nobody has anything new.
#[test]
fn overflowing_ring_is_shared_by_grants() {
    let mut net = Net::new(Seed::from_env_or(12_300)).rate_mbit(10_000);
    let nodes = net.star(17, &config());
    // Slower than the wire, so that what is sent at once fills the ring.
    net.set_frame_cost(nodes[0], Duration::from_nanos(2_000));
    net.run_until_up();
    for sender in &nodes[1..] {
        // Less than a window: all of it leaves at once.
        net.stream(*sender, nodes[0], Channel::ordered(0), 200_000, 1);
    }
    net.run_for(Duration::from_millis(4));
    let first = net.receive_full(nodes[0]);
    net.check(first > 100, || format!("only {first} overflowed"));
    net.run_until_idle();
    let receiver = counters(&net, nodes[0]);
    let (mut asks, mut again) = (0, 0);
    for sender in &nodes[1..] {
        let counters = counters(&net, *sender);
        asks += counters.asks;
        again += counters.retransmitted_frames;
    }
    net.check(asks >= 10 && receiver.grants >= 10, || {
        format!("{asks} asks, {receiver:?}")
    });
    net.check(again <= receiver.granted_frames, || {
        format!("{again} sent again, {} granted", receiver.granted_frames)
    });
    let later = net.receive_full(nodes[0]) - first;
    net.check(later == 0, || format!("{later} overflowed after grants"));
}

/// A node with another congestion control is not met: both sides are told, the others go on.
#[test]
fn mixed_cluster_is_refused() {
    let mut net = Net::new(Seed::from_env_or(12_400));
    let nodes = net.nodes(2, &config());
    let other = net.node(Config {
        congestion: Congestion::Credit,
        ..config()
    });
    net.connect(nodes[0], nodes[1]);
    net.connect(nodes[0], other);
    net.stream(nodes[0], nodes[1], Channel::ordered(0), 1_000, 10);
    net.run_until_idle();
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.deliveries(nodes[1]).len(), 10);
    for (node, peer, theirs) in [
        (nodes[0], other, CongestionKind::Credit),
        (other, nodes[0], CongestionKind::Suci),
    ] {
        let told = Event::OtherCongestion { peer, theirs };
        let times = net.events(node).iter().filter(|(_, event)| *event == told);
        assert_eq!(times.count(), 1);
        assert!(!net.is_up(node, peer));
    }
}

fn counters(net: &Net, node: tsumuji_proto::NodeId) -> Counters {
    *net.engine(node).expect("alive").counters()
}
