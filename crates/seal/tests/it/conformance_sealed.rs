//! The conformance suite on sealed links, in both modes.

use std::time::{Duration, Instant};

use crate::common::{job, sockets};
use crate::{common, conformance_tests};
use tsumuji_link::udp::UdpConfig;
use tsumuji_link::{Link, each};
use tsumuji_seal::{ClusterKey, Keys, SealMode, Sealed};

/// Seals links that then all have sessions with each other: the suite sends without awaiting an answer.
fn sealed<L: Link>(links: Vec<L>, mode: SealMode) -> Vec<Sealed<L>> {
    let keys = ClusterKey::generate().and_then(|key| Keys::new([key]));
    let keys = keys.expect("random");
    let mut links: Vec<_> = links
        .into_iter()
        .map(|link| Sealed::new(link, &keys, mode).expect("seal"))
        .collect();
    let addrs: Vec<_> = links.iter().map(Link::local_addr).collect();
    let begun = Instant::now();
    let mut quiet = 0;
    // Some rounds more than it takes, for broadcast keys.
    while quiet < 5 {
        assert!(begun.elapsed() < Duration::from_secs(30), "no sessions");
        quiet += 1;
        for link in &mut links {
            let me = link.local_addr();
            for &to in addrs.iter().filter(|&&to| to != me) {
                if !link.has_session(to) {
                    link.connect(to).expect("connect");
                    quiet = 0;
                }
            }
            let frames = link.receive(64, &mut each(|_, _| {})).expect("receive");
            assert_eq!(frames, 0, "nothing was sent");
            link.wait(Duration::from_millis(1)).expect("wait");
        }
    }
    links
}

mod encrypted_shm {
    use super::*;
    conformance_tests!(|nodes| sealed(job(nodes), SealMode::Encrypt));
}

mod readable_shm {
    use super::*;
    conformance_tests!(variant; |nodes| sealed(job(nodes), SealMode::Auth));
}

mod encrypted_udp {
    use super::*;
    conformance_tests!(variant; |nodes| sealed(sockets(nodes), SealMode::Encrypt));
}

mod readable_udp {
    use super::*;
    conformance_tests!(variant; |nodes| sealed(sockets(nodes), SealMode::Auth));
}

mod encrypted_multicast {
    use super::*;
    conformance_tests!(variant; |nodes| {
        sealed(
            common::in_group(nodes, UdpConfig::default()),
            SealMode::Encrypt,
        )
    });
}

mod readable_multicast {
    use super::*;
    conformance_tests!(variant; |nodes| {
        sealed(
            common::in_group(nodes, UdpConfig::default()),
            SealMode::Auth,
        )
    });
}

/// Faults beneath a seal are losses above it.
mod rough_shm {
    use super::*;
    conformance_tests!(skip if None::<String>; |nodes| {
        sealed(common::rough(job(nodes)), SealMode::Encrypt)
    }; only_faults_happen);
}

mod late_shm {
    use super::*;
    conformance_tests!(skip if None::<String>; |nodes| {
        sealed(common::late(job(nodes)), SealMode::Encrypt)
    }; batches_arrive bodies_find_their_places many_peers_talk);
}

mod late_and_reordered {
    use super::*;
    conformance_tests!(variant; |nodes| { sealed(common::late(sockets(nodes)), SealMode::Encrypt) });
}
