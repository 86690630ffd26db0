//! One endpoint, many peers: 200 real ones over UDP, each with a socket of its own.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use common::{LONG, Over, cluster};
use tsumuji_node::{AnyLink, Endpoint, IdlePolicy, Lane, NodeId, Options};

const NODES: u16 = 200;
const THREADS: usize = 2;
const LANE: Lane = Lane::ordered(0);

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
fn two_hundred_endpoints_talk() {
    let options = Options {
        idle: IdlePolicy::Sleep,
        ..Options::default()
    };
    let before = resident_bytes();
    let mut all = cluster(Over::Udp, NODES, &options);
    let opened = resident_bytes().saturating_sub(before);
    let start = Instant::now();
    let mut groups: Vec<Vec<Endpoint<AnyLink>>> = Vec::new();
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
                            node.try_send(to, LANE, &me.0.to_le_bytes())
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
    println!(
        "{NODES} endpoints: {} KiB resident each when opened, {} KiB when all have talked",
        opened / usize::from(NODES) / 1024,
        talked / usize::from(NODES) / 1024
    );
    drop(groups);
}
