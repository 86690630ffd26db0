//! The conformance suite on wrapped links: nothing impaired, late and out of order, limited, captured, and all at once; and what it says of links that
//! lose and repeat.

use crate::common::{job, sockets};
use crate::{common, conformance_tests};
use tsumuji_link::capture::Capture;
use tsumuji_link::impair::{Impair, ImpairConfig};
use tsumuji_link::{Frame, Link, LinkAddr, MayHaveRings, Paired};

mod transparent {
    use super::*;
    conformance_tests!(variant; |nodes| {
        let links = job(nodes).into_iter();
        let links = links.map(|link| Impair::new(link, ImpairConfig::default()));
        links.collect::<Result<Vec<_>, _>>().expect("impair")
    });
}

mod late_shm {
    use super::*;
    conformance_tests!(|nodes| common::late(job(nodes)));
}

mod rough_shm {
    use super::*;
    conformance_tests!(skip if None::<String>; |nodes| common::rough(job(nodes)); only_faults_happen);
}

mod rough_captured {
    use super::*;
    conformance_tests!(skip if None::<String>; |nodes| {
        let links = common::rough(job(nodes)).into_iter();
        let captured = links.map(|link| Capture::new(link, std::io::sink()));
        captured.collect::<Vec<_>>()
    }; only_faults_happen);
}

mod captured_shm {
    use super::*;
    conformance_tests!(skip if None::<String>; |nodes| {
        let captured = job(nodes).into_iter().map(|link| Capture::new(link, std::io::sink()));
        captured.collect::<Vec<_>>()
    }; batches_arrive bodies_find_their_places broadcast_reaches_all_others);
}

/// Rings are passed on by what only combines links or checks cables; other wrappers have none.
#[test]
fn rings_are_passed_on() {
    let mut links = job(2).into_iter();
    let mut next = || links.next().expect("two");
    assert!(common::checked(vec![next()])[0].rings().is_some());
    let paired = Paired::new(next(), sockets(1).remove(0)).expect("epoll");
    assert!(paired.rings().is_some());
}

mod late_udp {
    use super::*;
    conformance_tests!(variant; |nodes| common::late(sockets(nodes)));
}

mod captured {
    use super::*;
    conformance_tests!(variant; |nodes| {
        let links = common::late(sockets(nodes)).into_iter();
        let captured = links.map(|link| Capture::new(link, std::io::sink()));
        captured.collect::<Vec<_>>()
    });
}

/// Shared memory and loopback sockets as one link, without processes of this host among the peers.
mod paired_beyond {
    use super::*;
    conformance_tests!(|nodes| {
        let network = sockets(nodes).into_iter();
        let paired = network.map(|udp| Paired::new(job(2).remove(0), udp));
        paired.collect::<Result<Vec<_>, _>>().expect("epoll")
    });
}

/// The same, with all peers on this host.
mod paired_within {
    use super::*;
    conformance_tests!(|nodes| {
        let pairs = job(nodes).into_iter().zip(sockets(nodes));
        let paired = pairs.map(|(shm, udp)| Paired::new(shm, udp).map(Paired::known_locally));
        paired.collect::<Result<Vec<_>, _>>().expect("epoll")
    });
}

/// And beside a network that is late and damages frames.
mod paired_checked {
    use super::*;
    conformance_tests!(variant; |nodes| {
        let pairs = job(nodes).into_iter().zip(common::late(sockets(nodes)));
        let paired = pairs.map(|(shm, udp)| Paired::new(shm, udp));
        paired.collect::<Result<Vec<_>, _>>().expect("epoll")
    });
}

/// Of what leaves by a pair, the part that stays on this host is told apart.
#[test]
fn near_frames_are_counted() {
    let pairs = job(2).into_iter().zip(sockets(2));
    let mut pairs: Vec<_> = pairs
        .map(|(shm, udp)| Paired::new(shm, udp).expect("epoll"))
        .collect();
    let (near, far) = (LinkAddr::Local(1), pairs[1].local_addr());
    let (sender, body) = (&mut pairs[0], [7; 100]);
    for (to, bytes) in [(near, 30), (far, 100), (near, 40)] {
        let frame = Frame::whole(&body[..bytes]);
        assert!(sender.send_one(to, frame).expect("sent"));
        sender.flush().expect("flushed");
    }
    let counters = sender.counters();
    assert_eq!((counters.sent_frames, counters.sent_bytes), (3, 170));
    assert_eq!((counters.near_frames, counters.near_bytes), (2, 70));
}
