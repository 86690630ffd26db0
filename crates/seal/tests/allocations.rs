//! Sealing and opening a frame allocates nothing, alone and by broadcast.
//!
//! A program of its own, for it has an allocator of its own.

#[path = "../../link/tests/common/counting_alloc.rs"]
mod counting_alloc;

use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_link::{Frame, Link, LinkAddr, each};
use tsumuji_seal::{ClusterKey, Keys, SealMode, Sealed};

/// Frames of all sizes, both ways and to all, once the two have met.
#[test]
fn frames_allocate_nothing() {
    for mode in [SealMode::Auth, SealMode::Encrypt] {
        let keys = ClusterKey::generate().and_then(|key| Keys::new([key]));
        let keys = keys.expect("random");
        let job = ShmJob::create(2, ShmConfig::for_nodes(2)).expect("job");
        let mut nodes = [0, 1].map(|me| {
            let link = Shm::attach(&job, me).expect("attach");
            Sealed::new(link, &keys, mode).expect("seal")
        });
        let to = [LinkAddr::Local(1), LinkAddr::Local(0)];
        nodes[0].connect(to[0]).expect("connect");
        for _ in 0..10 {
            for node in &mut nodes {
                node.receive(64, &mut each(|_, _| {})).expect("recv");
            }
        }
        assert!(nodes[0].has_session(to[0]) && nodes[1].has_session(to[1]));
        let limit = nodes[0].caps().frame_bytes;
        let frame = vec![7; limit];
        let before = counting_alloc::allocations();
        let mut received = 0;
        for round in 0..3000 {
            let me = round % 2;
            for addr in [to[me], LinkAddr::Broadcast] {
                let bytes = 1 + round * 37 % limit;
                let taken = nodes[me]
                    .send_one(addr, Frame::whole(&frame[..bytes]))
                    .expect("send");
                assert!(taken);
            }
            nodes[me].flush().expect("flush");
            received += nodes[1 - me]
                .receive(8, &mut each(|_, _| {}))
                .expect("recv");
        }
        assert_eq!(received, 6000);
        assert_eq!(counting_alloc::allocations() - before, 0, "{mode}");
    }
}
