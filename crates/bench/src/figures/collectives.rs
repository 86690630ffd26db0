//! Figures of several nodes: gather to one and broadcast from one over cables of 100 Mbit/s, broadcast over shared memory.
//!
//! The target over cables is a share of their rate; MPICH runs the same operations where the machine permits.

use tsumuji_node::{Congestion, LinkSpec};
use tsumuji_testbed::Testbed;

use super::{Log, Setting, Wanted};
use crate::compare::{Comparison, Plan};
use crate::contest::{self, Ground, Ours, Peer};
use crate::ops::Op;
use crate::peers::mpi::MPICH_RANKS_MOST;
use crate::stats::size_name;

/// Rate of the paper's cables.
const CABLE_BITS_PER_SECOND: u64 = 100_000_000;
/// Bytes that one measurement brings to a receiver: a second of such a cable.
const BYTES: usize = 12 << 20;
const GATHER_BYTES: usize = 16 << 10;
const BROADCAST_BYTES: usize = 128 << 10;
/// Nodes of a gather, and of a broadcast.
const GATHERS: [usize; 2] = [8, 32];
const BROADCASTS: [usize; 3] = [5, 8, 40];
/// Share of the cable's rate, counted in payload.
const SHARE: Wanted = Wanted::AtLeast(0.9);
const SHM_SIZES: [usize; 9] = [
    4,
    64,
    1 << 10,
    8 << 10,
    32 << 10,
    64 << 10,
    512 << 10,
    4 << 20,
    16 << 20,
];

/// All figures of several nodes.
pub(super) fn collectives(setting: &Setting, log: &mut Log<'_>) {
    let tried = setting.is_tried();
    for nodes in GATHERS.into_iter().filter(|&nodes| !tried || nodes < 10) {
        on_cables(setting, Op::Gather, nodes, log);
    }
    for nodes in BROADCASTS.into_iter().filter(|&nodes| !tried || nodes < 8) {
        on_cables(setting, Op::Bcast, nodes, log);
    }
    shared_memory(setting, log);
}

fn on_cables(setting: &Setting, op: Op, nodes: usize, log: &mut Log<'_>) {
    let title = match op {
        Op::Gather => format!("gather {}->1", nodes - 1),
        _ => format!("broadcast to {nodes} nodes"),
    };
    let cable = Some(CABLE_BITS_PER_SECOND);
    log.on_testbed(&title, nodes, cable, 1500, |testbed, log| {
        let ground = Ground::of(testbed);
        // Only over raw Ethernet does one frame on the cable reach all.
        let links: &[&str] = if op == Op::Gather {
            &["udp", "packet"]
        } else {
            &["packet", "xdp"]
        };
        log.say(&format!("{title}, every cable 100 Mbit/s"));
        for (index, link) in links.iter().enumerate() {
            let usual = setting.ours(link, testbed);
            let mut ours = vec![usual.clone()];
            if op == Op::Gather {
                // The two differ where many send to one.
                ours = [Congestion::Credit, Congestion::SUCI]
                    .map(|congestion| Ours {
                        congestion: Some(congestion),
                        ..usual.clone()
                    })
                    .to_vec();
            }
            let peers: &[Peer] = if nodes <= MPICH_RANKS_MOST && index == 0 {
                &[Peer::Mpich]
            } else {
                &[]
            };
            let (size, each) = match op {
                Op::Gather => (GATHER_BYTES, nodes - 1),
                _ => (BROADCAST_BYTES, 1),
            };
            let plan = Plan {
                op,
                nodes,
                sizes: vec![size],
                iterations: Some(setting.tried_or(5, (BYTES / size / each).max(4) as u64)),
                bits_per_second: None,
                rounds: setting.rounds.min(3),
            };
            let overflows = || receiver_overflows(testbed);
            let before = overflows();
            let mut contenders = contest::contenders(&ours, peers, &ground, op);
            let comparison = log.compare(&plan, &mut contenders);
            drop(contenders);
            share(&title, op, size, &comparison, log);
            if op == Op::Gather {
                let switch = overflows()
                    .zip(before)
                    .map(|(after, before)| after - before);
                drops(&title, &comparison, switch, log);
            }
        }
    });
}

/// Frames to node 0 dropped at the full queue of its port.
fn receiver_overflows(testbed: &Testbed) -> Option<u64> {
    let status = testbed.status().ok()?;
    Some(status.hosts.first()?.counters.queue_overflows)
}

/// Share of the cable's rate: of the root's for a gather, of each receiver's for a broadcast.
fn share(title: &str, op: Op, size: usize, comparison: &Comparison, log: &mut Log<'_>) {
    let cable = CABLE_BITS_PER_SECOND as f64 / 8.0;
    let cells = comparison.results.iter().flat_map(|row| &row.contenders);
    for (index, cell) in cells.enumerate() {
        let rate = cell.numbers.as_ref().map(|numbers| match op {
            Op::Gather => numbers.bytes_per_second,
            _ => numbers.bytes_per_second_and_node,
        });
        let reason = cell.failure.as_deref().unwrap_or("-");
        let ours = match rate {
            Some(rate) => format!("{:.2} MB/s ({})", rate / 1e6, cell.name),
            None => format!("- ({}: {reason})", cell.name),
        };
        let who = if op == Op::Gather { "" } else { ", each node" };
        let name = format!("{title}, {}{who}", size_name(size));
        let beside = format!("{:.1} MB/s (cable)", cable / 1e6);
        let wanted = if index == 0 { SHARE } else { Wanted::Nothing };
        let ratio = rate.map_or(f64::NAN, |rate| rate / cable);
        log.add(name, ours, beside, ratio, wanted);
    }
}

/// Frames dropped at the receiver for want of room, of each of ours.
fn drops(title: &str, comparison: &Comparison, switch: Option<u64>, log: &mut Log<'_>) {
    let cells = comparison.results.iter().flat_map(|row| &row.contenders);
    for (index, cell) in cells.enumerate() {
        let Some(dropped) = cell.numbers.as_ref().and_then(|one| one.receive_drops) else {
            continue; // a peer, or not measured
        };
        let name = format!("{title}, dropped where they arrived");
        let ours = format!("{dropped} frames ({})", cell.name);
        let beside = match switch {
            Some(frames) => format!("{frames} found the switch's queue full (all contenders)"),
            None => "-".to_owned(),
        };
        let wanted = if index == 0 {
            Wanted::AtMost(0.0)
        } else {
            Wanted::Nothing
        };
        log.add(name, ours, beside, dropped as f64, wanted);
    }
}

/// Broadcast over shared memory, also by MPICH and Open MPI, by two nodes and by more than there are cores.
fn shared_memory(setting: &Setting, log: &mut Log<'_>) {
    let ours = [Ours::here(LinkSpec::Shm, setting.program.clone())];
    let ground = Ground::HERE;
    let mut worst: Option<(f64, String)> = None;
    for nodes in [2, 4] {
        log.say(&format!("broadcast over shared memory to {nodes} nodes"));
        let sizes = setting.tried_or(&SHM_SIZES[..2], &SHM_SIZES[..]);
        let plan = Plan {
            op: Op::Bcast,
            nodes,
            sizes: sizes.to_vec(),
            iterations: setting.is_tried().then_some(20),
            bits_per_second: None,
            rounds: setting.rounds.min(3),
        };
        let peers = [Peer::Mpich, Peer::OpenMpi];
        let mut contenders = contest::contenders(&ours, &peers, &ground, Op::Bcast);
        let comparison = log.compare(&plan, &mut contenders);
        for row in &comparison.results {
            for peer in 1..=peers.len() {
                let name = format!(
                    "shm broadcast to {nodes} nodes, {}, times better",
                    size_name(row.size)
                );
                let ratio = row.times_better(0, peer);
                let wanted = Wanted::Nothing;
                if worst.as_ref().is_none_or(|(least, _)| ratio < *least) && !ratio.is_nan() {
                    let peer = &row.contenders[peer].name;
                    let size = size_name(row.size);
                    worst = Some((ratio, format!("{size} to {nodes} nodes, beside {peer}")));
                }
                log.pair(name, &comparison, row, (0, peer), ratio, wanted);
            }
        }
    }
    if let Some((ratio, which)) = worst {
        let name = "shm broadcast, worst of all, times better".to_owned();
        let wanted = Wanted::Nothing;
        log.add(name, which, "-", ratio, wanted);
    }
}
