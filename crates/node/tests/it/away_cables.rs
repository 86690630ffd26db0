//! The promises to a program that is away (`common/promises.rs`), between hosts: over UDP, AF_PACKET, AF_XDP, and two ends of DPDK's memif.
//!
//! Needs root and the commands of `tsumuji-testbed`, and DPDK for the last; says what it skips.

use crate::common::hosts::{Wire, endpoint, open, testbed};
use crate::common::promises;
use tsumuji_link::Link;
use tsumuji_link::dpdk::{Dpdk, DpdkConfig};
use tsumuji_node::any_link::Base;
use tsumuji_node::{NodeId, Options};

/// Each promise, with the assistant and without, as it is stated for either.
fn all(open: &mut promises::Open<'_>) {
    promises::hello_needs_no_call(open);
    promises::sent_arrives_while_the_sender_computes(open);
    promises::flush_ends_while_the_receiver_computes(open);
    promises::computing_is_not_dying(open);
    promises::programs_own_progress_sends_first_windows(open);
    promises::what_is_lost_is_told(open);
}

/// Over cables between two hosts.
#[test]
fn promises_hold_between_hosts() {
    let Some(testbed) = testbed("away", 2, None) else {
        return;
    };
    for wire in [Wire::Udp, Wire::Packet, Wire::Xdp] {
        let opened = [0, 1].map(|id| open(&testbed.hosts()[id], wire));
        if let [_, Err(why)] | [Err(why), _] = opened {
            eprintln!("skipped: {wire:?}: {why}");
            continue;
        }
        drop(opened);
        println!("over {wire:?}");
        all(&mut |a: &Options, b: &Options| {
            let bases = [0, 1].map(|id| open(&testbed.hosts()[id], wire).expect("opened before"));
            let addrs = [bases[0].local_addr(), bases[1].local_addr()];
            let [base_a, base_b] = bases;
            (
                endpoint(base_a, NodeId(0), &addrs, None, a),
                endpoint(base_b, NodeId(1), &addrs, None, b),
            )
        });
    }
}

/// Over two ends of a memif connection.
#[test]
fn promises_hold_over_dpdk() {
    let usual = DpdkConfig::default();
    if let Err(why) = Dpdk::memif_pair("", usual) {
        eprintln!("skipped: {why}");
        return;
    }
    all(&mut |a: &Options, b: &Options| {
        let (device_a, device_b) = Dpdk::memif_pair("", usual).expect("opened before");
        let addrs = [device_a.local_addr(), device_b.local_addr()];
        (
            endpoint(Base::Dpdk(device_a), NodeId(0), &addrs, None, a),
            endpoint(Base::Dpdk(device_b), NodeId(1), &addrs, None, b),
        )
    });
}
