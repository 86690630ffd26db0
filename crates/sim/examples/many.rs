//! Gather and broadcast among more nodes than a machine can hold: the production engine, simulated cables of 100 Mbit/s and one
//! switch, virtual time.
//!
//! ```text
//! cargo run --release -p tsumuji-sim --example many -- 40 100 1000
//! ```
//!
//! Shares of the cable's rate, counted in payload. A gather is plain messages to node 0, by both congestion controls. The broadcast
//! is that of raw Ethernet: each frame leaves node 0 once; nodes tell by reliable messages along a tree of fan-in 8 how far they
//! have come, and node 0 keeps at most a window ahead of the slowest, as `tsumuji-collective` does (whose clock is the machine's,
//! so that its own code cannot be run in virtual time).

use tsumuji_proto::{Channel, Config, Congestion, Destination, Duration, NodeId};
use tsumuji_sim::{Net, Seed, config, goodput, wire_bytes};

const BITS_PER_SECOND: u64 = 100_000_000;
/// Of a port of the switch.
const SWITCH_BUFFER_BYTES: usize = 512 << 10;
/// What a processor takes for a frame.
const FRAME_COST: Duration = Duration::from_micros(1);
/// Payload that one cable carries in a run: a quarter of a second.
const BYTES: usize = 3 << 20;
const MESSAGE_BYTES: usize = 16 << 10;
/// Of each sender: the first of so many at once does not wait for credit.
const MESSAGES_LEAST: usize = 8;
/// As in the collective.
const FAN_IN: usize = 8;
const WINDOW_BYTES: usize = 256 << 10;
const REPORT_BYTES: usize = WINDOW_BYTES / 4;
/// Of a broadcast frame's payload, and its Ethernet frame.
const PIECE_BYTES: usize = 1_440;
const FRAME_BYTES: usize = 1_500;

/// What a run gave.
#[derive(Debug)]
pub(crate) struct Found {
    /// Of the rate of the cable at node 0.
    pub(crate) share: f64,
    /// Frames lost for want of room at the receivers.
    pub(crate) receive_full: u64,
    /// In the switch.
    pub(crate) switch_full: u64,
}

fn net(nodes: usize, congestion: Congestion) -> (Net, Vec<NodeId>) {
    let mut net = Net::new(Seed::from_env_or(nodes as u64))
        .rate_mbit(BITS_PER_SECOND / 1_000_000)
        .switch_buffer(SWITCH_BUFFER_BYTES)
        .patience(Duration::from_secs(600));
    // Signs of life as rare as a node's usual ones: a thousand at once must not fill the cable.
    let config = Config {
        congestion,
        frame_bytes: FRAME_BYTES,
        keep_alive: Duration::from_secs(1),
        dead_after: Duration::from_secs(10),
        ..config()
    };
    let all = net.star(nodes, &config);
    for &node in &all {
        net.set_frame_cost(node, FRAME_COST);
    }
    (net, all)
}

fn found(net: &Net, all: &[NodeId], bytes: u64, span: Duration) -> Found {
    Found {
        share: goodput(bytes, span, BITS_PER_SECOND),
        receive_full: all.iter().map(|&node| net.receive_full(node)).sum(),
        switch_full: net.traffic().switch_full,
    }
}

/// All send to node 0 at the same moment.
pub(crate) fn gather(nodes: usize, congestion: Congestion) -> Found {
    let (mut net, all) = net(nodes, congestion);
    net.run_until_up();
    let start = net.now();
    let count = (BYTES / MESSAGE_BYTES / (nodes - 1)).max(MESSAGES_LEAST) as u64;
    for &sender in &all[1..] {
        net.stream(sender, all[0], Channel::ordered(0), MESSAGE_BYTES, count);
    }
    net.run_until_idle();
    let last = net.deliveries(all[0]).last().map_or(start, |last| last.at);
    found(&net, &all, net.delivered_bytes(all[0]), last.since(start))
}

/// One node's place in the tree of reports.
#[derive(Clone, Default)]
struct Place {
    /// How far each child and all behind it have come.
    children: Vec<(NodeId, usize)>,
    reports_read: usize,
    told: usize,
}

/// Node 0 sends the same to all.
pub(crate) fn broadcast(nodes: usize) -> Found {
    let (mut net, all) = net(nodes, Congestion::Credit);
    let mut places = vec![Place::default(); nodes];
    for rank in 1..nodes {
        let parent = (rank - 1) / FAN_IN;
        places[parent].children.push((all[rank], 0));
        if parent > 0 {
            net.connect(all[parent], all[rank]);
        }
    }
    net.run_until_up();
    let (start, pieces) = (net.now(), BYTES / PIECE_BYTES);
    // A frame leaves when the one before it has left.
    let frame_ns = wire_bytes(FRAME_BYTES) as u64 * 8_000_000_000 / BITS_PER_SECOND;
    let mut sent = 0;
    loop {
        let behind = hear(&mut net, &all, &mut places, pieces);
        if behind == pieces {
            break;
        }
        if sent < pieces && (sent - behind) * PIECE_BYTES < WINDOW_BYTES {
            let to = Destination::Broadcast;
            let result = net.publish(all[0], to, (1, 1), 1, sent as u32, PIECE_BYTES);
            net.check(result.is_ok(), || format!("piece {sent}: {result:?}"));
            sent += 1;
        }
        net.run_for(Duration::from_nanos(frame_ns));
    }
    let span = net.now().since(start);
    found(&net, &all, (pieces * PIECE_BYTES) as u64, span)
}

/// Everybody reads the reports that came and passes on what they say; returns how far the slowest is, as node 0 knows.
fn hear(net: &mut Net, all: &[NodeId], places: &mut [Place], pieces: usize) -> usize {
    for rank in 0..all.len() {
        let place = &mut places[rank];
        let arrived = net.deliveries(all[rank]);
        for (report, text) in arrived[place.reports_read..]
            .iter()
            .zip(&net.received(all[rank])[place.reports_read..])
        {
            let reached = u64::from_le_bytes(text[..8].try_into().expect("8 bytes"));
            if let Some(child) = place.children.iter_mut().find(|(id, _)| *id == report.from) {
                child.1 = child.1.max(reached as usize);
            }
        }
        place.reports_read = arrived.len();
        // Nothing is lost on these cables: what came, came without a gap.
        let own = if rank == 0 {
            pieces
        } else {
            net.datagrams(all[rank]).len()
        };
        let reached = place
            .children
            .iter()
            .fold(own, |least, child| least.min(child.1));
        let must_report = (reached - place.told.min(reached)) * PIECE_BYTES >= REPORT_BYTES
            || reached == pieces && place.told < pieces;
        if rank > 0 && must_report {
            place.told = reached;
            let report = (reached as u64).to_le_bytes();
            net.send(
                all[rank],
                all[(rank - 1) / FAN_IN],
                Channel::ordered(0),
                &report,
            );
        }
    }
    places[0]
        .children
        .iter()
        .map(|child| child.1)
        .min()
        .unwrap_or(pieces)
}

/// Prints all three for each number of nodes.
#[allow(dead_code, reason = "the test takes the functions only")]
fn main() {
    let asked: Result<Vec<usize>, _> = std::env::args().skip(1).map(|word| word.parse()).collect();
    let nodes = match asked {
        Ok(list) if list.is_empty() => vec![40, 100, 1000],
        Ok(list) if list.iter().all(|nodes| (2..=10_000).contains(nodes)) => list,
        _ => {
            eprintln!("many: numbers of nodes are accepted, 2 to 10000");
            std::process::exit(2);
        }
    };
    println!("nodes  operation       of the cable's rate  dropped by receivers  by the switch");
    for nodes in nodes {
        for (name, found) in [
            ("gather credit", gather(nodes, Congestion::Credit)),
            ("gather suci", gather(nodes, Congestion::SUCI)),
            ("broadcast", broadcast(nodes)),
        ] {
            println!(
                "{nodes:>5}  {name:14}  {:>18.1} %  {:>20}  {:>13}",
                found.share * 100.0,
                found.receive_full,
                found.switch_full
            );
        }
    }
}
