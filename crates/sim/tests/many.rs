//! One endpoint and any number of peers: what thousands of them cost when few of them talk, counted in looks at deadlines.

use tsumuji_proto::{Config, Duration, Lane, NodeId};
use tsumuji_sim::{Net, Seed, config};

const LANE: Lane = Lane::ordered(0);

/// 1,000 and 10,000 peers of one node; three of them talk with it, under loss, while all others are kept alive. Nobody is given up, and the
/// node looks at deadlines as often as signs of life and the talk ask for, whatever the number of peers.
#[test]
fn thousands_of_peers_are_kept() {
    const KEEP_ALIVE: Duration = Duration::from_millis(200);
    const SPAN: Duration = Duration::from_millis(600);
    for peers in [1_000, 10_000_usize] {
        let mut net = Net::new(Seed::from_env_or(501))
            .rate_mbit(10_000)
            .loss_percent(1);
        let nodes = net.star(
            1 + peers,
            &Config {
                keep_alive: KEEP_ALIVE,
                dead_after: Duration::from_secs(2),
                receive_frames: 1 << 15,
                ..config()
            },
        );
        let hub = nodes[0];
        net.run_until_up();
        // What hello had set is gone by.
        net.run_for(KEEP_ALIVE);
        let before = *net.engine(hub).expect("alive").counters();
        let talkers: Vec<NodeId> = [1, peers / 2, peers].map(|index| nodes[index]).to_vec();
        for peer in &talkers {
            net.stream(*peer, hub, LANE, 10_000, 300);
            net.stream(hub, *peer, LANE, 200, 300);
        }
        net.run_for(SPAN);
        net.run_until_idle();
        let counters = *net.engine(hub).expect("alive").counters();
        let looks = counters.timer_looks - before.timer_looks;
        let frames = counters.sent_frames + counters.received_frames
            - (before.sent_frames + before.received_frames);
        println!("{peers} peers: {looks} looks at deadlines, {frames} frames");
        for peer in &talkers {
            let got = net.deliveries(hub).iter().filter(|m| m.from == *peer);
            assert_eq!((got.count(), net.deliveries(*peer).len()), (300, 300));
        }
        for peer in &nodes[1..] {
            net.check(
                net.is_up(hub, *peer) && net.declared_dead(hub, *peer).is_none(),
                || format!("{peer} was given up"),
            );
        }
        // Each sign of life asked for or answered is two frames, and one look or two; each frame of the talk sets one deadline.
        net.check(looks <= frames, || {
            format!("{peers} peers: {looks} looks for {frames} frames")
        });
    }
}
