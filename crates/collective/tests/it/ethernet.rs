//! Native broadcast between hosts of a testbed: raw Ethernet over a real bridge whose ports are limited, with and without loss.
//!
//! Needs root and the commands of `tsumuji-testbed`; says so and ends where they are missing.

use std::time::{Duration, Instant};

use crate::common::{LONG, Wire, only, open, testbed, values};
use tsumuji_collective::table::Operation;
use tsumuji_collective::{Algorithm, Collectives, Op};
use tsumuji_node::any_link::Base;
use tsumuji_node::{AnyLink, Endpoint, ImpairConfig, Link, Member, Membership, NodeId, Options};
use tsumuji_testbed::{Host, Testbed};

/// One endpoint in each host.
fn endpoints(testbed: &Testbed, loss: f64) -> Vec<Endpoint> {
    let open = |host: &Host| open(host, Wire::Packet).expect("open");
    let links: Vec<Base> = testbed.hosts().iter().map(open).collect();
    let members: Vec<Member> = (0..)
        .zip(&links)
        .map(|(id, link)| Member {
            id: NodeId(id),
            name: NodeId(id).to_string(),
            addr: link.local_addr(),
        })
        .collect();
    let endpoint = |(id, link): (u16, Base)| {
        let impair = (loss > 0.0).then(|| ImpairConfig {
            loss,
            seed: id.into(),
            ..ImpairConfig::default()
        });
        let link = AnyLink::open(link, impair, None).expect("link");
        let membership = Membership::of(NodeId(id), members.clone());
        Endpoint::new(link, membership, Options::default()).expect("endpoint")
    };
    (0..).zip(links).map(endpoint).collect()
}

/// Broadcasts `count` elements from each of two roots; returns what the root counted, and how long each took.
fn broadcasts(endpoints: Vec<Endpoint>, count: usize) -> Vec<(u64, u64, u64, Duration)> {
    let table = only(Operation::Broadcast, Algorithm::Native);
    std::thread::scope(|scope| {
        let member = |mut endpoint: Endpoint| {
            let table = table.clone();
            move || {
                let rank = usize::from(endpoint.me().0);
                let mut collectives = Collectives::with_table(&mut endpoint, table);
                let world = collectives.world();
                let mut took = Duration::ZERO;
                let before = endpoint.counters().link.sent_bytes;
                for root in 0..2 {
                    let mut data = if rank == root {
                        values(root, count, 0)
                    } else {
                        vec![0; count]
                    };
                    collectives.barrier(&mut endpoint, world).expect("barrier");
                    let start = Instant::now();
                    collectives
                        .broadcast(&mut endpoint, world, root, &mut data)
                        .expect("broadcast");
                    took = start.elapsed();
                    assert!(data == values(root, count, 0), "from {root} at {rank}");
                }
                let mut sums = vec![1.0_f64; 5_000];
                collectives
                    .all_reduce(&mut endpoint, world, &mut sums, &Op::sum())
                    .expect("all-reduce");
                let counters = collectives.counters();
                let sent = endpoint.counters().link.sent_bytes - before;
                let _ = endpoint.close(LONG);
                let again = counters.native_repairs + counters.native_resent;
                (counters.native_frames, again, sent, took)
            }
        };
        let members: Vec<_> = endpoints
            .into_iter()
            .map(|endpoint| scope.spawn(member(endpoint)))
            .collect();
        members
            .into_iter()
            .map(|member| member.join().expect("member"))
            .collect()
    })
}

/// Every byte leaves its root once, whatever the number of receivers, and arrives at all of them.
#[test]
fn bytes_leave_the_root_once() {
    let Some(testbed) = testbed("cast", 6, Some("100mbit")) else {
        return;
    };
    let count = 1 << 17; // 1 MiB
    let found = broadcasts(endpoints(&testbed, 0.0), count);
    for (rank, (frames, again, sent, took)) in found.into_iter().enumerate() {
        let line_rate = (8 * count * 8) as f64 / took.as_secs_f64() / 100e6;
        eprintln!(
            "rank {rank}: {frames} frames, {again} again, {sent} bytes, {line_rate:.3} of the line's rate"
        );
        if rank < 2 {
            assert!(
                frames <= (8 * count as u64).div_ceil(1400),
                "{frames} frames"
            );
            // Frames that the machine was late to receive may have to be sent again.
            assert!(
                again * 5 < frames,
                "{again} of {frames} frames were sent again"
            );
        } else {
            assert_eq!((frames, again), (0, 0));
        }
    }
}

/// A third of the frames lost at every receiver: all arrives all the same.
#[test]
fn lost_frames_are_repaired() {
    let Some(testbed) = testbed("lossy", 4, Some("1gbit")) else {
        return;
    };
    let found = broadcasts(endpoints(&testbed, 0.3), 1 << 15);
    assert!(found[0].1 > 0, "nothing was lost");
}
