//! One endpoint, many peers: 200 real ones over UDP, each with a socket of its own; fewer where the code is not optimised.
//!
//! A program of its own, for it measures memory and processor time of its process.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG, Over, cluster};
use tsumuji_node::{Channel, Endpoint, IdlePolicy, NodeId, Options};

const NODES: u16 = if cfg!(debug_assertions) { 100 } else { 200 };
const THREADS: usize = 2;
const CHANNEL: Channel = Channel::ordered(0);

/// Resident memory of this process, in bytes; 0 where the kernel does not tell.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| {
        rest.trim()
            .strip_suffix(" kB")?
            .trim()
            .parse::<usize>()
            .ok()
    });
    kib.unwrap_or(0) * 1024
}

/// Each node greets node 0 and its neighbour; all greetings arrive, whoever else is there.
#[test]
fn hundreds_of_endpoints_talk() {
    let options = Options {
        idle: IdlePolicy::Sleep,
        ..Options::default()
    };
    let before = resident_bytes();
    let mut all = cluster(Over::Udp, NODES, &options);
    let opened = resident_bytes().saturating_sub(before);
    let start = Instant::now();
    let mut groups: Vec<Vec<Endpoint>> = Vec::new();
    while !all.is_empty() {
        let rest = all.split_off(all.len().min(usize::from(NODES).div_ceil(THREADS)));
        groups.push(std::mem::replace(&mut all, rest));
    }
    let done = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = groups
        .into_iter()
        .map(|mut group| {
            let done = done.clone();
            thread::spawn(move || {
                for node in &mut group {
                    let me = node.me();
                    for to in [NodeId(0), NodeId((me.0 + 1) % NODES)] {
                        if to != me {
                            node.try_send(to, CHANNEL, &me.0.to_le_bytes())
                                .expect("queued");
                        }
                    }
                }
                let wanted = |id: NodeId| if id.0 == 0 { usize::from(NODES) } else { 1 };
                let mut missing: usize = group.iter().map(|node| wanted(node.me())).sum();
                let mut finished = false;
                // Until all has come and is acknowledged, here and there: those of the other thread need our answers.
                while done.load(Ordering::Acquire) < THREADS {
                    let mut idle = true;
                    for node in &mut group {
                        while let Some(message) = node.try_recv().expect("link") {
                            assert_eq!(message.body, message.from.0.to_le_bytes());
                            missing -= 1;
                        }
                        let neighbour = NodeId((node.me().0 + 1) % NODES);
                        idle &= node.queue_length(NodeId(0)) + node.queue_length(neighbour) == 0;
                    }
                    if missing == 0 && idle && !std::mem::replace(&mut finished, true) {
                        done.fetch_add(1, Ordering::Release);
                    }
                    assert!(start.elapsed() < LONG, "{missing} greetings are missing");
                }
                group
            })
        })
        .collect();
    let groups: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().expect("thread"))
        .collect();
    let talked = resident_bytes().saturating_sub(before);
    let flows = usize::from(NODES) * usize::from(NODES - 1);
    println!(
        "{NODES} endpoints: {} KiB resident each when opened, {} KiB when all have talked: {} B for each peer",
        opened / usize::from(NODES) / 1024,
        talked / usize::from(NODES) / 1024,
        talked / flows
    );
    let (cpu, frames) = idle(groups.into_iter().flatten().collect());
    let pairs_seconds = flows as f64 * IDLE.as_secs_f64();
    println!(
        "idle: {:.1} us of processor time a second for each peer of each endpoint, {:.2} frames a second",
        cpu.as_secs_f64() * 1e6 / pairs_seconds,
        frames as f64 / pairs_seconds
    );
}

/// How long all are idle.
const IDLE: Duration = Duration::from_secs(1);

/// Processor time and frames that it takes to keep all up, each in a thread of its own that sleeps until something comes. Nobody is given up.
fn idle(all: Vec<Endpoint>) -> (Duration, u64) {
    let begun = cpu_time();
    let barrier = Arc::new(Barrier::new(all.len()));
    let threads: Vec<_> = all
        .into_iter()
        .map(|mut node| {
            let barrier = barrier.clone();
            thread::spawn(move || {
                let before = node.counters().engine.sent_frames;
                let until = Instant::now() + IDLE;
                while let Some(left) = until.checked_duration_since(Instant::now()) {
                    assert!(node.recv(left).expect("link").is_none());
                }
                let peers = (0..NODES).map(NodeId).filter(|peer| *peer != node.me());
                for peer in peers {
                    assert!(node.is_up(peer), "{} gave {peer} up", node.me());
                }
                // A node that leaves is gone at once: not before all have looked.
                barrier.wait();
                node.counters().engine.sent_frames - before
            })
        })
        .collect();
    let frames = threads
        .into_iter()
        .map(|thread| thread.join().expect("thread"))
        .sum();
    (cpu_time() - begun, frames)
}

/// Of this process, all threads.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
