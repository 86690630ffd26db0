//! Programs that only ever poll: everything that time brings must come to them, too.

mod common;

use std::time::Instant;

use common::{LONG, Over, cluster};
use tsumuji_node::{AnyLink, DeliveryClass, Endpoint, Lane, NodeId, Options, Priority};

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

/// Two that have met.
fn two_over_udp() -> [Endpoint<AnyLink>; 2] {
    let mut both = cluster(Over::Udp, 2, &Options::default()).into_iter();
    let (mut a, mut b) = (both.next().expect("two"), both.next().expect("two"));
    let start = Instant::now();
    while !(a.is_up(NodeId(1)) && b.is_up(NodeId(0))) {
        a.progress().expect("link");
        b.progress().expect("link");
        assert!(start.elapsed() < LONG, "they do not meet");
    }
    [a, b]
}

/// What a program sends before it computes leaves at once; and what of a long run has piled up leaves with its next call, all of it.
#[test]
fn one_call_sends_what_piled_up() {
    const AT_ONCE: usize = 16;
    let [mut a, mut b] = two_over_udp();
    let mut all_arrive = |messages: usize| {
        let start = Instant::now();
        for expected in 0..messages {
            let message = loop {
                if let Some(message) = b.try_recv().expect("link") {
                    break message;
                }
                assert!(start.elapsed() < LONG, "{expected} of {messages} came");
            };
            assert_eq!(message.body, [expected as u8; 100]);
        }
    };
    let mut send = |messages: usize| {
        a.progress().expect("link");
        for number in 0..messages {
            a.send(NodeId(1), Lane::ordered(0), &[number as u8; 100])
                .expect("queued");
        }
    };
    send(AT_ONCE);
    all_arrive(AT_ONCE);
    for messages in [17, 60, 100] {
        send(messages);
        send(0);
        all_arrive(messages);
    }
}

/// The newest of a *latest* lane leaves at once, however many there were before it.
#[test]
fn the_newest_leaves_at_once() {
    let [mut a, mut b] = two_over_udp();
    let lane = Lane::new(DeliveryClass::Latest, Priority::NORMAL, 0);
    for number in 0..60 {
        a.send(NodeId(1), lane, &[number]).expect("queued");
    }
    let start = Instant::now();
    while b
        .try_recv()
        .expect("link")
        .is_none_or(|message| message.body != [59])
    {
        assert!(start.elapsed() < LONG, "the newest did not come");
    }
}

/// Who sends and ends has sent.
#[test]
fn the_end_sends_what_piled_up() {
    let [mut a, mut b] = two_over_udp();
    for number in 0..60 {
        a.send(NodeId(1), Lane::ordered(0), &[number])
            .expect("queued");
    }
    drop(a);
    let start = Instant::now();
    for number in 0..60 {
        let message = loop {
            if let Some(message) = b.try_recv().expect("link") {
                break message;
            }
            assert!(start.elapsed() < LONG, "{number} of 60 came");
        };
        assert_eq!(message.body, [number]);
    }
}
