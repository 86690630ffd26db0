//! A loop that sends: how far ahead of its peer it gets, where the peer keeps up and where it does something else.

mod common;

use std::sync::{Arc, Mutex};

use common::LONG;
use common::meddled::{Meddled, Meddler};
use tsumuji_link::LinkCaps;
use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_node::{Body, Endpoint, Handler, Lane, Membership, NodeId, Options, Share};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const LANE: Lane = Lane::ordered(0);

#[derive(Default)]
struct Taken {
    messages: usize,
    /// It does something else than to poll: it tells node 0 something, again and again.
    is_busy: bool,
    shares: usize,
}

impl Handler for Taken {
    fn message(&mut self, _: NodeId, _: Lane, _: Body<'_>) {
        self.messages += 1;
    }
}

/// Node 1, and what it took.
type Other = Arc<Mutex<(Endpoint<Shm>, Taken)>>;

/// Around node 0's link. Node 1 has a turn whenever something is to be received, as if it ran beside it.
struct Beside(Other);

impl Meddler for Beside {
    fn amend(&self, caps: LinkCaps) -> LinkCaps {
        LinkCaps {
            lossless: false, // over shared memory the queue may grow
            ..caps
        }
    }
    fn before_receiving(&mut self) {
        let (endpoint, taken) = &mut *self.0.lock().expect("whole");
        if taken.is_busy {
            // So none of node 0's turns is empty.
            let sent = endpoint.send_share(A, Share::EMPTY).expect("link");
            taken.shares += usize::from(sent);
        } else {
            endpoint.poll(taken).expect("link");
        }
    }
}

/// Both nodes, met.
fn pair() -> (Endpoint<Meddled<Shm, Beside>>, Other) {
    let job = ShmJob::create(2, ShmConfig::for_nodes(2)).expect("job");
    let attach = |id| Shm::attach(&job, id).expect("attach");
    let join = |id| Membership::local(id, 2);
    let other = Endpoint::new(attach(1), join(B), Options::default()).expect("endpoint");
    let other = Arc::new(Mutex::new((other, Taken::default())));
    let link = Meddled {
        link: attach(0),
        meddler: Beside(Arc::clone(&other)),
    };
    let mut endpoint = Endpoint::new(link, join(A), Options::default()).expect("endpoint");
    endpoint.send(B, LANE, b"hello").expect("send");
    assert!(endpoint.flush(LONG).expect("link"), "they do not meet");
    (endpoint, other)
}

/// Where the peer keeps up, the queue stays what fits a cache, whatever the size of the messages, and however much it could hold.
#[test]
fn queue_stays_short() {
    for bytes in [64, 16 << 10, 100_000] {
        let (mut endpoint, other) = pair();
        let (message, count) = (vec![7; bytes], (16 << 20) / bytes.max(1 << 10));
        let mut most = (0, 0);
        for _ in 0..count {
            endpoint.send(B, LANE, &message).expect("send");
            let flow = endpoint.flow(B).expect("known");
            most = (
                most.0.max(flow.queued_bytes),
                most.1.max(flow.queued_messages),
            );
        }
        assert!(most.0 <= 512 << 10 && most.1 <= 2048, "{bytes}: {most:?}");
        assert!(endpoint.flush(LONG).expect("link"));
        assert_eq!(other.lock().expect("whole").1.messages, count + 1);
    }
}

/// A peer that does something else is not waited for as long as the queue has room.
#[test]
fn queue_fills_while_the_peer_is_busy() {
    let (mut endpoint, other) = pair();
    let message = vec![7; 16 << 10];
    other.lock().expect("whole").1.is_busy = true;
    for _ in 0..200 {
        endpoint.send(B, LANE, &message).expect("send");
    }
    assert_eq!(endpoint.queue_length(B), 200);
    assert!(
        other.lock().expect("whole").1.shares > 0,
        "it was never looked for"
    );
    other.lock().expect("whole").1.is_busy = false;
    assert!(endpoint.flush(LONG).expect("link"));
}
