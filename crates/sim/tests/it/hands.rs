//! Flow control in the program's hands: windows that change while it runs, and rules of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tsumuji_proto::{
    Channel, Config, Congestion, Duration, FlowPolicy, NodeId, Pace, Room, Sender,
};
use tsumuji_sim::{Net, Pace as Taking, Seed, config};

const CHANNEL: Channel = Channel::ordered(0);
const MILLISECOND: Duration = Duration::from_millis(1);

/// Several senders, one receiver that changes its window, its budget and its peers' windows again and again: all arrives, the ring
/// never overflows, and after a cut the sum comes down to it.
#[test]
fn windows_change_under_load() {
    let mut net = Net::new(Seed::from_env_or(401))
        .rate_mbit(10_000)
        .loss_percent(1);
    let nodes = net.star(6, &config());
    let receiver = nodes[0];
    net.set_frame_cost(receiver, Duration::from_nanos(2_000));
    net.run_until_up();
    for sender in &nodes[1..] {
        net.stream(*sender, receiver, CHANNEL, 20_000, 200);
    }
    let promised = net.engine(receiver).unwrap().accounts().claimed_frames as usize;
    for step in 0..60_usize {
        let window = [256, 8, 1, 64, 100_000][step % 5];
        let budget = [16 << 20, 1 << 10, 1 << 20][step % 3];
        let limit = [None, Some(2), Some(0), Some(1 << 40)][step % 4];
        let before = net.call(receiver, |engine, _| engine.window().granted_frames);
        net.call(receiver, |engine, _| {
            engine.set_window(window);
            engine.set_budget(budget);
            assert!(engine.set_peer_window(nodes[1 + step % 5], limit));
            assert!(!engine.set_peer_window(receiver, limit), "oneself");
        });
        for _ in 0..20 {
            net.run_for(MILLISECOND.divided(20));
            let now = net.engine(receiver).unwrap().window();
            let most = now.frames.max(promised).max(before.unwrap_or(0));
            net.check(
                now.granted_frames <= most && now.frames == window.clamp(1, 256),
                || format!("{now:?} after a cut from {before:?}"),
            );
        }
    }
    net.run_until_idle();
    net.check(net.receive_full(receiver) == 0, || {
        format!("{} overflowed", net.receive_full(receiver))
    });
}

/// A cut window slows a sender down, and a grown one lets it go on at once, without a word from the sender.
#[test]
fn a_grown_window_is_told() {
    let mut net = Net::new(Seed::from_env_or(402))
        .rate_mbit(10_000)
        .delay_us(200..201);
    let (a, b) = net.pair(config());
    net.call(b, |engine, _| engine.set_peer_window(a, Some(1)));
    // What hello promised is a frame's worth of permission for each, and is not taken back.
    net.stream(a, b, CHANNEL, 1_000, 20_000);
    net.run_for(MILLISECOND.times(40));
    let before = net.deliveries(b).len();
    net.call(b, |engine, _| engine.set_peer_window(a, None));
    net.run_for(MILLISECOND.times(40));
    let after = net.deliveries(b).len() - before;
    net.check(after > 4 * before, || {
        format!("{before} in 40 ms, then {after}")
    });
    net.run_until_idle();
}

/// A budget that is cut below what the program holds lets in nothing new until that is taken; one that grows lets all in.
#[test]
fn a_budget_changes_while_messages_wait() {
    let mut net = Net::new(Seed::from_env_or(403)).delay_us(5..20);
    let (a, b) = net.pair(config());
    net.set_pace(b, Taking::Stopped);
    net.stream(a, b, CHANNEL, 10_000, 100);
    net.run_for(MILLISECOND.times(5));
    let held = net.held(b);
    net.call(b, |engine, _| engine.set_budget(1));
    net.stream(a, b, CHANNEL, 10_000, 400);
    net.run_for(MILLISECOND.times(50));
    net.check(net.held(b) <= held + 2 * 10_000 && held > 500_000, || {
        format!("{} held, {held} before the cut", net.held(b))
    });
    net.call(b, |engine, _| engine.set_budget(64 << 20));
    net.set_pace(b, Taking::Prompt);
    net.run_until_idle();
    net.check(net.deliveries(b).len() == 500, || String::from("all come"));
}

/// Three quarters to one peer.
#[derive(Debug)]
struct Favour {
    peer: NodeId,
    asked: Arc<AtomicU64>,
}

impl FlowPolicy for Favour {
    fn window_frames(&mut self, room: &Room, sender: &Sender) -> u64 {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if sender.peer == self.peer {
            room.pool_frames * 3 / 4
        } else {
            room.pool_frames / 4 / (room.peers as u64 - 1)
        }
    }

    fn memory_rank(&mut self, _: &Room, sender: &Sender) -> u64 {
        u64::from(sender.peer != self.peer)
    }
}

/// The one that a policy favours gets three quarters of what comes, while all want to send.
#[test]
fn a_policy_shares_as_it_says() {
    Congestion::ALL.into_iter().for_each(shares_as_it_says);
}

fn shares_as_it_says(congestion: Congestion) {
    let delay = match congestion {
        Congestion::Credit => 5..20,
        // Under `suci` what is overtaken is sent again, by most senders all the time: no share would be seen.
        Congestion::Suci { .. } => 10..11,
    };
    let mut net = Net::new(Seed::from_env_or(404))
        .rate_mbit(1_000)
        .delay_us(delay);
    let nodes = net.star(
        5,
        &Config {
            congestion,
            ..config()
        },
    );
    net.run_until_up();
    let asked = Arc::new(AtomicU64::new(0));
    let policy = Favour {
        peer: nodes[3],
        asked: asked.clone(),
    };
    net.call(nodes[0], |engine, _| {
        engine.set_policy(Some(Box::new(policy)))
    });
    for sender in &nodes[1..] {
        net.stream(*sender, nodes[0], CHANNEL, 50_000, 2_000);
    }
    net.run_for(MILLISECOND.times(20));
    let start = net.deliveries(nodes[0]).len();
    net.run_for(MILLISECOND.times(400));
    let came = &net.deliveries(nodes[0])[start..];
    let favoured = came
        .iter()
        .filter(|message| message.from == nodes[3])
        .count();
    let share = favoured as f64 / came.len() as f64;
    net.check((0.65..0.85).contains(&share), || {
        format!("{congestion}: {favoured} of {}", came.len())
    });
    let busy = came.len() as f64 * 50_000.0 * 8.0 / 0.4 / 1e9;
    net.check(busy > 0.85 && asked.load(Ordering::Relaxed) > 1_000, || {
        format!("{congestion}: {busy} of the wire")
    });
    // Without it, all get alike.
    net.call(nodes[0], |engine, _| engine.set_policy(None));
    net.run_for(MILLISECOND.times(20));
    let start = net.deliveries(nodes[0]).len();
    net.run_for(MILLISECOND.times(200));
    let came = &net.deliveries(nodes[0])[start..];
    let favoured = came
        .iter()
        .filter(|message| message.from == nodes[3])
        .count();
    let share = favoured as f64 / came.len() as f64;
    net.check((0.15..0.4).contains(&share), || {
        format!("{congestion}: {favoured} of {}", came.len())
    });
}

/// Answers by a fixed pattern that means nothing.
#[derive(Debug)]
struct Nonsense(Vec<u64>, usize);

impl FlowPolicy for Nonsense {
    fn window_frames(&mut self, _: &Room, _: &Sender) -> u64 {
        self.1 += 1;
        self.0[self.1 % self.0.len()]
    }

    fn memory_rank(&mut self, _: &Room, sender: &Sender) -> u64 {
        u64::MAX - sender.memory_bytes as u64
    }
}

/// Nothing for ever, everything for all, or either by turns: every message arrives, also where memory is scarce and frames are lost; and
/// under `credit` the ring does not overflow.
#[test]
fn nonsense_neither_overruns_nor_hangs() {
    Congestion::ALL.into_iter().for_each(nonsense_does_no_harm);
}

fn nonsense_does_no_harm(congestion: Congestion) {
    for (answers, messages) in [
        (vec![0], 3),
        (vec![u64::MAX], 40),
        (vec![0, u64::MAX, 1, 0, 7], 20),
    ] {
        for budget_bytes in [16 << 20, 30_000] {
            let mut net = Net::new(Seed::from_env_or(405))
                .rate_mbit(10_000)
                .loss_percent(2);
            let nodes = net.star(
                9,
                &Config {
                    budget_bytes,
                    congestion,
                    ..config()
                },
            );
            net.set_frame_cost(nodes[0], Duration::from_nanos(2_000));
            net.run_until_up();
            let policy = Nonsense(answers.clone(), 0);
            net.call(nodes[0], |engine, _| {
                engine.set_policy(Some(Box::new(policy)))
            });
            for sender in &nodes[1..] {
                net.stream(*sender, nodes[0], CHANNEL, 20_000, messages);
            }
            net.run_until_idle();
            // Under `suci` rings overflow, and are repaired.
            let full = net.receive_full(nodes[0]);
            net.check(full == 0 || congestion == Congestion::SUCI, || {
                format!("{answers:?}: {full} overflowed")
            });
        }
    }
}

/// Permits only one peer to send again, but for the frame that each ask is worth.
#[derive(Debug)]
struct RepairsOf(NodeId);

impl FlowPolicy for RepairsOf {
    fn window_frames(&mut self, _: &Room, sender: &Sender) -> u64 {
        if sender.repairs && sender.peer != self.0 {
            0
        } else {
            sender.usual_frames
        }
    }
}

/// Under `suci`, a policy decides who may send again what was lost: while all ask, the favoured one is done long before the others,
/// and those are not stopped for ever.
#[test]
fn a_policy_permits_repairs() {
    let mut net = Net::new(Seed::from_env_or(410))
        .rate_mbit(10_000)
        .loss_percent(3);
    let nodes = net.star(
        5,
        &Config {
            congestion: Congestion::SUCI,
            ..config()
        },
    );
    net.run_until_up();
    net.call(nodes[0], |engine, _| {
        engine.set_policy(Some(Box::new(RepairsOf(nodes[3]))))
    });
    for sender in &nodes[1..] {
        net.stream(*sender, nodes[0], CHANNEL, 20_000, 40);
    }
    net.run_until_idle();
    let last = |of: NodeId| {
        let came = net.deliveries(nodes[0]).iter().rev();
        came.clone()
            .find(|message| message.from == of)
            .map(|message| message.at)
    };
    let favoured = last(nodes[3]).expect("all came");
    for other in [nodes[1], nodes[2], nodes[4]] {
        let at = last(other).expect("all came");
        let start = tsumuji_proto::Instant::default();
        net.check(at.since(start) > favoured.since(start).times(3), || {
            format!("favoured after {favoured:?}, another after {at:?}")
        });
    }
}

/// Grants everything to everyone.
#[derive(Debug)]
struct Spendthrift;

impl FlowPolicy for Spendthrift {
    fn window_frames(&mut self, room: &Room, _: &Sender) -> u64 {
        room.window_frames
    }
}

/// Many senders, a receiver whose ring holds far less than its engine grants by a policy that gives all to all: frames that
/// found the ring full, the share of the processor's time that was used, and the time it took.
fn overcommitted(pace: Pace, senders: usize) -> (u64, f64, Duration) {
    const RING: usize = 96;
    const FRAME_NS: u64 = 2_000;
    let mut net = Net::new(Seed::from_env_or(408)).rate_mbit(10_000);
    let nodes = net.star(
        senders + 1,
        &Config {
            receive_frames: 4_096,
            ..config()
        },
    );
    net.set_ring(nodes[0], RING);
    net.set_frame_cost(nodes[0], Duration::from_nanos(FRAME_NS));
    net.run_until_up();
    net.call(nodes[0], |engine, _| {
        engine.set_policy(Some(Box::new(Spendthrift)))
    });
    for sender in &nodes[1..] {
        net.call(*sender, |engine, now| {
            assert!(engine.set_pace(now, nodes[0], pace))
        });
    }
    let start = net.now();
    for sender in &nodes[1..] {
        net.stream(*sender, nodes[0], CHANNEL, 16_000, 200);
    }
    net.run_until_idle();
    let took = net.now().since(start);
    let frames = senders * 200 * 16_000_usize.div_ceil(1_460);
    let used = frames as f64 * FRAME_NS as f64 / took.as_nanos() as f64;
    (net.receive_full(nodes[0]), used, took)
}

/// With slow write the receive side never overflows, however much it grants, and is kept as busy; without, it does.
#[test]
fn slow_write_never_overflows_the_receiver() {
    for senders in [2, 8, 16] {
        let (dropped, ..) = overcommitted(Pace::Free, senders);
        assert!(
            dropped > 100,
            "{senders} senders: {dropped} dropped without pacing"
        );
        let (dropped, used, took) = overcommitted(Pace::Drain, senders);
        println!(
            "{senders} senders: {:.1} % of the processor in {took:?}",
            used * 100.0
        );
        assert_eq!(dropped, 0, "{senders} senders");
        assert!(used > 0.85, "{senders} senders: {used:.2} of the processor");
    }
}

/// A rate that is asked for is kept, whatever is granted, also where frames are lost; and may be changed while frames wait.
#[test]
fn a_rate_is_kept() {
    let mut net = Net::new(Seed::from_env_or(409))
        .delay_us(5..20)
        .loss_percent(2);
    let (a, b) = net.pair(config());
    net.call(a, |engine, now| {
        engine.set_pace(now, b, Pace::BytesPerSecond(2_000_000))
    });
    net.stream(a, b, CHANNEL, 10_000, 1_000);
    net.run_for(MILLISECOND.times(500));
    let bytes = net.delivered_bytes(b);
    net.check((850_000..1_000_000).contains(&bytes), || {
        format!("{bytes} bytes in half a second")
    });
    net.call(a, |engine, now| engine.set_pace(now, b, Pace::Free));
    net.run_until_idle();
    net.check(
        net.now().since(tsumuji_proto::Instant::default()) < MILLISECOND.times(1_000),
        || String::from("slow for ever"),
    );
}
