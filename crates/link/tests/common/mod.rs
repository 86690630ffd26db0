//! One test per check of the conformance suite, for a factory; links of one process; and the impairment under which links are checked, too.

#![allow(dead_code)] // Each test program uses a part.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use tsumuji_link::Link;
use tsumuji_link::checked::Checked;
use tsumuji_link::impair::{Impair, ImpairConfig};
use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_link::udp::{Udp, UdpConfig};

/// Frames come late and out of order, and all of them come.
const LATE: ImpairConfig = ImpairConfig {
    loss: 0.0,
    duplicate: 0.0,
    reorder: 0.1,
    corrupt: 0.0,
    delay: Duration::from_micros(20),
    jitter: Duration::from_micros(30),
    rate_bytes_per_second: None,
    queue_frames: 4096,
    seed: 3,
};

/// Links of one shared memory.
pub(crate) fn job(nodes: usize) -> Vec<Shm> {
    job_with(nodes, ShmConfig::for_nodes(nodes))
}

pub(crate) fn job_with(nodes: usize, config: ShmConfig) -> Vec<Shm> {
    let fd = ShmJob::create(nodes, config).expect("create");
    let attach = |node| Shm::attach(&fd, node).expect("attach");
    (0..nodes as u16).map(attach).collect()
}

/// Sockets on the loopback interface.
pub(crate) fn sockets(nodes: usize) -> Vec<Udp> {
    sockets_with(nodes, UdpConfig::default())
}

pub(crate) fn sockets_with(nodes: usize, config: UdpConfig) -> Vec<Udp> {
    let bind = |_| Udp::bind((Ipv4Addr::LOCALHOST, 0).into(), config).expect("bind");
    (0..nodes).map(bind).collect()
}

/// Sockets on the loopback interface with a multicast group of their own: on a port that no other test has.
pub(crate) fn in_group(nodes: usize, config: UdpConfig) -> Vec<Udp> {
    let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = free.local_addr().expect("bound").port();
    let group = SocketAddrV4::new(Ipv4Addr::new(239, 77, 0, 1), port);
    let config = UdpConfig {
        group: Some(group),
        ..config
    };
    sockets_with(nodes, config)
}

/// Links whose frames come late and out of order.
pub(crate) fn late<L: Link>(links: Vec<L>) -> Vec<Impair<L>> {
    let late = links.into_iter().map(|link| Impair::new(link, LATE));
    late.collect::<Result<_, _>>().expect("impair")
}

/// Links that lose, repeat and reorder frames.
pub(crate) fn rough<L: Link>(links: Vec<L>) -> Vec<Impair<L>> {
    let config = ImpairConfig {
        loss: 0.07,
        duplicate: 0.07,
        reorder: 0.1,
        seed: 9,
        ..ImpairConfig::default()
    };
    let rough = links.into_iter().map(|link| Impair::new(link, config));
    rough.collect::<Result<_, _>>().expect("impair")
}

/// Links with a checksum around each frame.
pub(crate) fn checked<L: Link>(links: Vec<L>) -> Vec<Checked<L>> {
    links.into_iter().map(Checked::new).collect()
}

/// The same on cables that change a bit of every fifth frame.
pub(crate) fn damaged<L: Link>(links: Vec<L>) -> Vec<Checked<Impair<L>>> {
    let config = ImpairConfig {
        corrupt: 0.2,
        seed: 5,
        ..ImpairConfig::default()
    };
    let damaged = links.into_iter().map(|link| Impair::new(link, config));
    checked(damaged.collect::<Result<_, _>>().expect("impair"))
}

/// Makes the tests, of all checks or of those that are named. `skip if` an expression gives a reason: they print it and test nothing. A `variant` of a link
/// that is tested in full, with other sizes or a wrapper, sleeps less often.
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr) => {
        conformance_tests!(skip if None::<String>; $make);
    };
    (variant; $make:expr) => {
        conformance_tests!(variant; skip if None::<String>; $make);
    };
    (skip if $lacking:expr; $make:expr) => {
        conformance_tests!(all but wakes skip if $lacking; $make; no_wake_is_lost no_wake_through_fd_is_lost);
    };
    (variant; skip if $lacking:expr; $make:expr) => {
        conformance_tests!(all but wakes skip if $lacking; $make;
            no_wake_of_a_variant_is_lost no_wake_of_a_variant_through_fd_is_lost);
    };
    (all but wakes skip if $lacking:expr; $make:expr; $($wakes:ident)+) => {
        conformance_tests!(skip if $lacking; $make;
            caps_are_sane
            frames_arrive_intact
            burst_arrives
            full_link_refuses_and_recovers
            batches_arrive
            bodies_find_their_places
            wait_ends_without_frames
            broadcast_reaches_all_others
            counters_add_up
            garbage_addresses_do_no_harm
            many_peers_talk
            stream_between_threads
            $($wakes)+
        );
    };
    (skip if $lacking:expr; $make:expr; $($check:ident)+) => {
        $(
            #[test]
            fn $check() {
                if let Some(reason) = $lacking {
                    eprintln!("{reason}");
                    return;
                }
                tsumuji_link::conformance::$check(&$make);
            }
        )+
    };
}
