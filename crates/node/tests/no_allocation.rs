//! Small messages over shared memory allocate nothing once the exchange runs.
//!
//! The machine may take the core away at any moment; the first time that makes a queue longer than it ever was, the queue
//! grows. That is bounded by `GROWTH`, far below one allocation per thousand frames.
//!
//! A program of its own, for it has an allocator of its own.

mod common;
#[path = "../../link/tests/common/counting_alloc.rs"]
mod counting_alloc;

use std::thread;

use common::{LONG, Over, pair};
use tsumuji_node::{
    Body, Channel, Context, Datagram, Delivery, Destination, Endpoint, Handler, MetricsAt, NodeId,
    Options,
};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const CHANNEL: Channel = Channel::ordered(0);
const WARM_UP: u32 = 2_000;
const MEASURED: u32 = 8_000; // each is a switch of threads where the machine is busy
/// Queues that may reach a new greatest length while we measure.
const GROWTH: u64 = 12;

/// Numbers are published on the way, which must allocate nothing either.
fn watched() -> Options {
    Options {
        metrics: MetricsAt::Local,
        ..Options::default()
    }
}

/// Runs `round` until warm, then counts this thread's allocations over the measured rounds.
fn allocations(mut round: impl FnMut()) -> u64 {
    for _ in 0..WARM_UP {
        round();
    }
    let before = counting_alloc::allocations();
    for _ in 0..MEASURED {
        round();
    }
    counting_alloc::allocations() - before
}

fn echo(mut endpoint: Endpoint) -> Endpoint {
    for _ in 0..WARM_UP + MEASURED {
        let message = endpoint.recv(LONG).expect("recv").expect("message");
        endpoint
            .send(message.from, message.channel, &message.body)
            .expect("send");
        endpoint.recycle(message);
    }
    endpoint
}

/// Message forms: send, recv, recycle.
#[test]
fn ping_pong_of_messages_allocates_nothing() {
    let (mut a, b) = pair(Over::Shm, &watched());
    let peer = thread::spawn(move || echo(b));
    let count = allocations(|| {
        a.send(B, CHANNEL, b"12345678").expect("send");
        let message = a.recv(LONG).expect("recv").expect("echo");
        assert_eq!(message.body, b"12345678");
        a.recycle(message);
    });
    peer.join().expect("peer");
    assert!(
        count <= GROWTH,
        "{count} allocations in {MEASURED} round trips"
    );
}

/// Run-to-completion: the handler reads the frame where it lies.
#[test]
fn ping_pong_by_handler_allocates_nothing() {
    struct Got(u32);
    impl Handler for Got {
        fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
            let body = delivery.body;
            assert!(
                matches!(body, Body::Frame(b"12345678")),
                "a small message is borrowed from its frame"
            );
            self.0 += 1;
        }
    }
    let (mut a, b) = pair(Over::Shm, &Options::default());
    let peer = thread::spawn(move || echo(b));
    let mut got = Got(0);
    let mut expected = 0;
    let count = allocations(|| {
        a.send(B, CHANNEL, b"12345678").expect("send");
        expected += 1;
        while got.0 < expected {
            a.poll_wait(&mut got, LONG).expect("poll");
        }
    });
    peer.join().expect("peer");
    assert!(
        count <= GROWTH,
        "{count} allocations in {MEASURED} round trips"
    );
}

/// Broadcast datagrams: written into the link's slot, read where they lie.
#[test]
fn shares_allocate_nothing() {
    struct Nothing;
    impl Handler for Nothing {
        fn message(&mut self, _: &mut Context<'_>, _: Delivery<'_>) {}
    }
    let (mut a, mut b) = pair(Over::Shm, &Options::default());
    while !(a.is_up(B) && b.is_up(A)) {
        a.poll(&mut Nothing).expect("poll");
        b.poll(&mut Nothing).expect("poll");
    }
    let payload = [7; 1024];
    let mut lap = 0;
    let count = allocations(|| {
        let datagram = Datagram {
            channel_id: 1,
            lap,
            payload: &payload,
            ..Datagram::EMPTY
        };
        a.datagram(Destination::Broadcast, datagram, None)
            .expect("datagram");
        lap += 1;
        a.poll(&mut Nothing).expect("poll");
        b.poll(&mut Nothing).expect("poll");
    });
    assert!(
        count <= GROWTH,
        "{count} allocations in {MEASURED} datagrams"
    );
}

/// Showing numbers to readers of metrics.
#[test]
fn publishing_allocates_nothing() {
    let (mut a, b) = pair(Over::Shm, &watched());
    assert_eq!(allocations(|| a.publish_metrics()), 0);
    drop(b);
}
