//! The conformance suite on DPDK's virtual devices: pairs of memif in this process, which need no rights (short, jumbo and the
//! largest frames, a small ring, impaired), and AF_PACKET and AF_XDP over veth, two nodes on a pair and more on a bridge, which need
//! root or `unshare -Urn`. What is lacking is said, and tests nothing.
//!
//! A program of its own: a process sets DPDK up once, and has its threads from then on.

#[path = "common/mod.rs"]
mod common;
#[path = "common/segment.rs"]
mod segment;

use segment::Segment;
use tsumuji_link::dpdk::{Dpdk, DpdkConfig, DpdkOpenError, DpdkSpec};

fn open(text: &str, config: DpdkConfig) -> Dpdk {
    let spec: DpdkSpec = text.parse().expect("a device's name");
    Dpdk::open(&spec, config).expect("open")
}

/// Why no DPDK device can be made here.
fn lacking() -> Option<String> {
    let spec: DpdkSpec = "net_null".parse().expect("a name");
    match Dpdk::open(&spec, DpdkConfig::default()) {
        Ok(_) => None,
        Err(error @ (DpdkOpenError::NotBuiltIn | DpdkOpenError::NotInstalled { .. })) => {
            Some(format!("skipped, no DPDK here: {error}"))
        }
        Err(error) => panic!("DPDK is here but does not work: {error}"),
    }
}

fn lacking_network() -> Option<String> {
    lacking().or_else(segment::lacking)
}

fn memif(parameters: &str, config: DpdkConfig) -> Vec<Dpdk> {
    let (server, client) = Dpdk::memif_pair(parameters, config).expect("a pair");
    vec![server, client]
}

/// The checks that need two links, and no more: memif has two ends.
macro_rules! pair_tests {
    ($make:expr) => {
        pair_tests!($make; no_wake_is_lost no_wake_through_fd_is_lost);
    };
    (variant; $make:expr) => {
        pair_tests!($make; no_wake_of_a_variant_is_lost no_wake_of_a_variant_through_fd_is_lost);
    };
    ($make:expr; $($wakes:ident)+) => {
        conformance_tests!(
            skip if lacking();
            |nodes: usize| {
                assert_eq!(nodes, 2, "memif has two ends");
                $make
            };
            caps_are_sane
            frames_arrive_intact
            burst_arrives
            full_link_refuses_and_recovers
            batches_arrive
            bodies_find_their_places
            wait_ends_without_frames
            counters_add_up
            garbage_addresses_do_no_harm
            stream_between_threads
            $($wakes)+
        );
    };
}

mod memif_ethernet {
    use super::*;
    pair_tests!(memif("", DpdkConfig::default()));
}

mod memif_jumbo {
    use super::*;
    pair_tests!(variant; {
        let links = memif("bsize=9216", DpdkConfig::default());
        assert_eq!(tsumuji_link::Link::caps(&links[0]).frame_bytes, 9200);
        links
    });
}

/// Frames of which a ring, a burst and a pool are the fewest.
mod memif_superframes {
    use super::*;
    pair_tests!(variant; {
        let links = memif("bsize=64896", DpdkConfig::default());
        assert_eq!(tsumuji_link::Link::caps(&links[0]).receive_frames, 32);
        links
    });
}

mod memif_small_ring {
    use super::*;
    pair_tests!(variant; memif(
        "rsize=5",
        DpdkConfig {
            frame_bytes: Some(1000),
            ..DpdkConfig::default()
        }
    ));
}

fn over_veth(nodes: usize, mtu: u32, device: &str) -> Vec<Dpdk> {
    let segment = Segment::new(nodes, mtu);
    let links = segment.interfaces().map(|interface| {
        open(
            &format!("{device},iface={interface}"),
            DpdkConfig::default(),
        )
    });
    links.collect()
}

mod packet_ethernet {
    use super::*;
    conformance_tests!(variant;
        skip if lacking_network();
        |nodes| over_veth(nodes, 1500, "dpdk:net_af_packet")
    );
}

/// All but the overload: the driver does not tell how many frames the kernel's ring lost, and the ring of large frames is short.
mod packet_jumbo {
    use super::*;
    conformance_tests!(
        skip if lacking_network();
        |nodes| over_veth(nodes, 9000, "dpdk:net_af_packet");
        caps_are_sane
        frames_arrive_intact
        burst_arrives
        batches_arrive
        bodies_find_their_places
        wait_ends_without_frames
        broadcast_reaches_all_others
        counters_add_up
        garbage_addresses_do_no_harm
        many_peers_talk
        stream_between_threads
        no_wake_of_a_variant_is_lost
        no_wake_of_a_variant_through_fd_is_lost
    );
}

/// An MTU larger than an mbuf: frames are as long as fits.
mod packet_superframes {
    use super::*;
    conformance_tests!(
        skip if lacking_network();
        |nodes| over_veth(nodes, 65_535, "dpdk:net_af_packet");
        caps_are_sane
        frames_arrive_intact
        stream_between_threads
    );
}

mod xdp_ethernet {
    use super::*;
    conformance_tests!(variant;
        skip if lacking_network();
        |nodes| over_veth(nodes, 1500, "dpdk:net_af_xdp")
    );
}

/// With the largest frames that fit a page.
mod xdp_page {
    use super::*;
    conformance_tests!(
        skip if lacking_network();
        |nodes| over_veth(nodes, 3498, "dpdk:net_af_xdp");
        frames_arrive_intact
        burst_arrives
        stream_between_threads
    );
}

/// Taps on a bridge, as `DpdkSpec::for_process` has it.
fn over_taps(nodes: usize) -> Vec<Dpdk> {
    segment::enter().expect("a network namespace");
    segment::ip("link add br0 type bridge\nlink set br0 up\n").expect("a bridge");
    let links = (0..nodes).map(|node| {
        let link = open(
            &format!("dpdk:net_tap,iface=t{node}"),
            DpdkConfig::default(),
        );
        // The bridge has not yet heard of the others and floods their frames, more than a tap holds by itself.
        let port = format!("link set t{node} master br0 txqueuelen 10000\n");
        segment::ip(&port).expect("a port");
        link
    });
    links.collect()
}

mod taps {
    use super::*;
    conformance_tests!(variant; skip if lacking_network(); over_taps);
}

mod late {
    use super::*;
    pair_tests!(variant; common::late(memif("", DpdkConfig::default())));
}

/// An interface whose frames do not fit a page is refused, and what mends it is said.
#[test]
fn xdp_on_jumbo_frames_is_refused() {
    if let Some(reason) = lacking_network() {
        eprintln!("{reason}");
        return;
    }
    let segment = Segment::new(2, 9000);
    let interface = segment.interfaces().next().expect("two");
    let spec: DpdkSpec = format!("net_af_xdp,iface={interface}")
        .parse()
        .expect("a name");
    let error = Dpdk::open(&spec, DpdkConfig::default())
        .expect_err("MTU 9000")
        .to_string();
    assert!(
        error.contains(&format!("`ip link set dev {interface} mtu 3498`")),
        "{error}"
    );
}

mod memif_checked {
    use super::*;
    pair_tests!(variant; common::checked(memif("", DpdkConfig::default())));
}

mod memif_damaged {
    use super::*;
    conformance_tests!(skip if lacking(); |nodes: usize| {
        assert_eq!(nodes, 2, "memif has two ends");
        common::damaged(memif("", DpdkConfig::default()))
    }; damage_is_found);
}
