//! Programs that only ever poll: everything that time brings must come to them, too.

mod common;

use std::time::Instant;

use common::{LONG, Over, cluster};
use tsumuji_node::{Lane, NodeId, Options};

const MESSAGES: usize = 50;

/// Losses are repaired though neither side calls anything that waits.
#[test]
fn trying_alone_repairs_losses() {
    let mut both = cluster(Over::LossyUdp(30), 2, &Options::default()).into_iter();
    let (mut a, mut b) = (both.next().expect("two"), both.next().expect("two"));
    for _ in 0..MESSAGES {
        a.try_send(NodeId(1), Lane::ordered(0), &[1; 3000])
            .expect("queued");
    }
    let start = Instant::now();
    let mut received = 0;
    while received < MESSAGES {
        assert!(a.try_recv().expect("link").is_none());
        received += usize::from(b.try_recv().expect("link").is_some());
        assert!(start.elapsed() < LONG, "{received} of {MESSAGES} came");
    }
}
