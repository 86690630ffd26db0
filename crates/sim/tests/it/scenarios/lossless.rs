//! Links that lose nothing between live peers, as shared memory: a peer that does not run costs questions, not repetitions.

use super::{CONGESTION, config};
use tsumuji_proto::{Channel, Config, Congestion, Duration};
use tsumuji_sim::{Net, Pace, Seed};

fn lossless() -> Config {
    Config {
        lossless: true,
        dead_after: Duration::from_secs(2),
        ..config()
    }
}

/// Fragments sent again, and probes, of a sender whose peer stands still for 5 ms now and then.
fn stalled_peer(seed: Seed, config: Config) -> (u64, u64) {
    let mut net = Net::new(seed).rate_mbit(10_000);
    let (a, b) = net.pair(config);
    // Room for what needs no credit, too: questions, acknowledgements.
    net.set_ring(b, 1024);
    for bytes in [8, 100_000, 8, 2_000] {
        net.stream(a, b, Channel::ordered(0), bytes, 40);
        net.stream(b, a, Channel::ordered(0), 100, 10);
        net.run_for(Duration::from_micros(20));
        net.pause(b);
        net.run_for(Duration::from_millis(5));
        net.resume(b);
        net.run_until_idle();
    }
    assert_eq!(net.deliveries(b).len(), 160);
    assert_eq!(net.traffic().receive_full, 0);
    let counters = net.engine(a).unwrap().counters();
    (counters.retransmitted_frames, counters.probes)
}

/// A peer that is merely not scheduled is asked and nothing is sent twice; on a link that may lose, fragments would be.
#[test]
fn stalled_peers_are_asked() {
    for seed in Seed::several(7_500, 5) {
        let (again, probes) = stalled_peer(seed, lossless());
        assert_eq!(again, 0, "fragments were sent again; seed {}", seed.0);
        assert!(probes > 0, "silence was not noticed; seed {}", seed.0);
        let lossy = Config {
            lossless: false,
            ..lossless()
        };
        // Under `suci` silence is asked about on every link: a sender needs permission to send again.
        let again = stalled_peer(seed, lossy).0;
        assert_eq!(
            again > 0,
            CONGESTION == Congestion::Credit,
            "seed {}",
            seed.0
        );
    }
}

/// What memory refuses is sent again all the same, for slow programs, several senders, small budgets.
#[test]
fn refused_frames_come_again() {
    for budget_bytes in [20_000, 300_000] {
        for seed in Seed::several(7_600, 5) {
            let mut net = Net::new(seed).rate_mbit(10_000);
            let config = Config {
                budget_bytes,
                ..lossless()
            };
            let nodes = net.star(5, &config);
            net.run_until_up();
            net.set_pace(nodes[0], Pace::Stopped);
            for sender in &nodes[1..] {
                net.stream(*sender, nodes[0], Channel::ordered(0), 50_000, 5);
                net.stream(*sender, nodes[0], Channel::unordered(1), 100, 50);
            }
            net.run_for(Duration::from_millis(50));
            net.set_pace(nodes[0], Pace::BytesPerSecond(100_000_000));
            net.run_until_idle();
            assert_eq!(net.deliveries(nodes[0]).len(), 4 * 55);
        }
    }
}

/// A restarted process and a link that loses frames against its word: both recover.
#[test]
fn restarts_and_broken_promises_recover() {
    for seed in Seed::several(7_700, 5) {
        let mut net = Net::new(seed)
            .rate_mbit(10_000)
            .delay_us(1..20)
            .loss_percent(5);
        let (a, b) = net.pair(lossless());
        net.stream(a, b, Channel::ordered(0), 20_000, 50);
        net.run_for(Duration::from_micros(300));
        net.crash(b);
        net.run_for(Duration::from_millis(3));
        net.restart(b);
        net.run_until(|net| net.declared_dead(a, b).is_some() && net.is_up(a, b));
        let before = net.deliveries(b).len();
        net.stream(a, b, Channel::ordered(0), 20_000, 50);
        net.stream(b, a, Channel::unordered(0), 10, 50);
        net.run_until_idle();
        assert_eq!(net.deliveries(b).len() - before, 50);
        assert_eq!(net.deliveries(a).len(), 50);
    }
}
