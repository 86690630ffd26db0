//! A loop that sends: how far ahead of its peer it gets, where the peer keeps up and where it does something else.

mod common;

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use common::LONG;
use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_link::{LinkCaps, LinkCounters, LinkError};
use tsumuji_node::{Body, Endpoint, Handler, Lane, Link, LinkAddr, Membership, NodeId, Options};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const LANE: Lane = Lane::ordered(0);

#[derive(Default)]
struct Taken {
    messages: usize,
}

impl Handler for Taken {
    fn message(&mut self, _: NodeId, _: Lane, _: Body<'_>) {
        self.messages += 1;
    }
}

/// Node 1, and what it took.
type Other = Rc<RefCell<(Endpoint<Shm>, Taken)>>;

/// Node 0's link. Node 1 has a turn whenever something is to be received, as if it ran beside it.
struct Beside {
    link: Shm,
    other: Other,
}

impl Link for Beside {
    fn caps(&self) -> LinkCaps {
        LinkCaps {
            lossless: false, // over shared memory the queue may grow
            ..self.link.caps()
        }
    }
    fn local_addr(&self) -> LinkAddr {
        self.link.local_addr()
    }
    fn recv_burst(
        &mut self,
        max: usize,
        on_frame: impl FnMut(LinkAddr, &[u8]),
    ) -> Result<usize, LinkError> {
        let (endpoint, taken) = &mut *self.other.borrow_mut();
        endpoint.poll(taken).expect("link");
        self.link.recv_burst(max, on_frame)
    }
    fn send_with(
        &mut self,
        to: LinkAddr,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<bool, LinkError> {
        self.link.send_with(to, fill)
    }
    fn flush(&mut self) -> Result<(), LinkError> {
        self.link.flush()
    }
    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        self.link.wait(timeout)
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.fd()
    }
    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        self.link.arm_fd()
    }
    fn counters(&self) -> LinkCounters {
        self.link.counters()
    }
}

/// Both nodes, met.
fn pair() -> (Endpoint<Beside>, Other) {
    let job = ShmJob::create(2, ShmConfig::for_nodes(2)).expect("job");
    let attach = |id| Shm::attach(&job, id).expect("attach");
    let join = |id| Membership::local(id, 2);
    let other = Endpoint::new(attach(1), join(B), Options::default()).expect("endpoint");
    let other = Rc::new(RefCell::new((other, Taken::default())));
    let link = Beside {
        link: attach(0),
        other: Rc::clone(&other),
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
        assert_eq!(other.borrow().1.messages, count + 1);
    }
}

/// A peer that does something else is not waited for as long as the queue has room.
#[test]
fn queue_fills_while_the_peer_is_busy() {
    let job = ShmJob::create(2, ShmConfig::for_nodes(2)).expect("job");
    let link = Shm::attach(&job, 0).expect("attach");
    let join = Membership::local(A, 2);
    let mut endpoint = Endpoint::new(link, join, Options::default()).expect("endpoint");
    let message = vec![7; 16 << 10];
    for _ in 0..200 {
        endpoint.send(B, LANE, &message).expect("send");
    }
    assert_eq!(endpoint.queue_length(B), 200);
}
