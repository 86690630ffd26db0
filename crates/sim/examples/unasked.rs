//! How many frames should `suci` send again without asking? Each K beside the others: simulated cables of 100 Mbit/s and one switch, virtual time.
//!
//! ```text
//! cargo run --release -p tsumuji-sim --example unasked
//! ```
//!
//! Blocks of 16 KiB, one each 5 ms, on a wire that loses 1 % of the frames: the mean time from the write of a block to its arrival. A stream of messages
//! of 1000 B on the same wire, and gathers by a switch that holds 512 KiB: the share of the cable's rate that is payload, and in the gathers the frames
//! that the switch dropped.

use tsumuji_proto::{Channel, Config, Congestion, Duration};
use tsumuji_sim::{Net, Seed, config, goodput};

const K: [u16; 9] = [0, 4, 8, 16, 32, 64, 128, 256, 4096];
const MBIT: u64 = 100;
const SWITCH_BUFFER_BYTES: usize = 512 << 10;
const LOSS_PERCENT: u32 = 1;
const BLOCK_BYTES: usize = 16 << 10;
const BLOCKS_MBIT: u64 = 1_000;
const BLOCKS: usize = 4_000;
const BLOCKS_APART: Duration = Duration::from_millis(2);
/// Senders of the gathers; each sends so many messages of so many bytes.
const SENDERS: [usize; 2] = [7, 31];
const GATHERS: [(usize, u64); 2] = [(4 << 10, 200), (64 << 10, 12)];

fn with_k(unasked_frames: u16) -> Config {
    Config {
        congestion: Congestion::Suci { unasked_frames },
        // As that of a socket's buffer, and signs of life as rare as a node's usual ones.
        receive_frames: 5120,
        keep_alive: Duration::from_secs(1),
        dead_after: Duration::from_secs(10),
        ..config()
    }
}

fn net(seed: Seed) -> Net {
    Net::new(seed)
        .rate_mbit(MBIT)
        .switch_buffer(SWITCH_BUFFER_BYTES)
        .patience(Duration::from_secs(600))
}

/// Mean microseconds from write to arrival.
fn blocks(seed: Seed, k: u16) -> f64 {
    let mut net = net(seed).loss_percent(LOSS_PERCENT).rate_mbit(BLOCKS_MBIT);
    let (a, b) = net.pair(with_k(k));
    net.run_until_up();
    let mut written = Vec::with_capacity(BLOCKS);
    for _ in 0..BLOCKS {
        written.push(net.now());
        net.stream(a, b, Channel::ordered(0), BLOCK_BYTES, 1);
        net.run_for(BLOCKS_APART);
    }
    net.run_until_idle();
    let arrived = net.deliveries(b).iter().map(|delivery| delivery.at);
    let waits = arrived.zip(written).map(|(at, from)| at.since(from));
    waits.map(|wait| wait.as_nanos() as f64 / 1e3).sum::<f64>() / BLOCKS as f64
}

/// Share of the cable's rate.
fn stream(seed: Seed, k: u16) -> f64 {
    let mut net = net(seed).loss_percent(LOSS_PERCENT);
    let (a, b) = net.pair(with_k(k));
    net.run_until_up();
    let start = net.now();
    net.stream(a, b, Channel::ordered(0), 1_000, 4_000);
    net.run_until_idle();
    let last = net.deliveries(b).last().map_or(start, |last| last.at);
    goodput(net.delivered_bytes(b), last.since(start), MBIT * 1_000_000)
}

/// Share of the cable's rate, and how many frames the switch dropped.
fn gather(seed: Seed, k: u16, senders: usize, (bytes, count): (usize, u64)) -> (f64, u64) {
    let mut net = net(seed);
    let nodes = net.star(senders + 1, &with_k(k));
    net.run_until_up();
    let start = net.now();
    for sender in &nodes[1..] {
        net.stream(*sender, nodes[0], Channel::ordered(0), bytes, count);
    }
    net.run_until_idle();
    let last = net
        .deliveries(nodes[0])
        .last()
        .map_or(start, |last| last.at);
    let share = goodput(
        net.delivered_bytes(nodes[0]),
        last.since(start),
        MBIT * 1_000_000,
    );
    (share, net.traffic().switch_full)
}

fn main() {
    let seed = Seed::from_env_or(76);
    let mut head = format!("{:>5}  {:>9}  {:>7}", "K", "16 KiB us", "stream");
    for senders in SENDERS {
        for (bytes, _) in GATHERS {
            head += &format!("  {:>20}", format!("{senders} to 1, {} KiB", bytes >> 10));
        }
    }
    println!("{head}");
    for k in K {
        let mut line = format!(
            "{k:>5}  {:>9.0}  {:>5.1} %",
            blocks(seed, k),
            stream(seed, k) * 100.0
        );
        for senders in SENDERS {
            for each in GATHERS {
                let (share, dropped) = gather(seed, k, senders, each);
                line += &format!("  {:>20}", format!("{:.1} %, {dropped}", share * 100.0));
            }
        }
        println!("{line}");
    }
}
