//! Programs that only ever poll: everything that time brings must come to them, too.

use std::time::Instant;

use crate::common::{LONG, Over, cluster};
use tsumuji_node::{Channel, Datagram, Destination, Endpoint, NodeId, Options, ProgressBy};

const MESSAGES: usize = 50;

/// Losses are repaired though neither side calls anything that waits.
#[test]
fn trying_alone_repairs_losses() {
    let mut both = cluster(Over::LossyUdp(30), 2, &Options::default()).into_iter();
    let (mut a, mut b) = (both.next().expect("two"), both.next().expect("two"));
    for _ in 0..MESSAGES {
        a.try_send(NodeId(1), Channel::ordered(0), &[1; 3000])
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
fn two_over_udp() -> [Endpoint; 2] {
    let options = Options {
        progress: ProgressBy::Program, // nothing leaves but by the program's calls
        ..Options::default()
    };
    let mut both = cluster(Over::Udp, 2, &options).into_iter();
    let (mut a, mut b) = (both.next().expect("two"), both.next().expect("two"));
    let start = Instant::now();
    while !(a.is_up(NodeId(1)) && b.is_up(NodeId(0))) {
        a.progress().expect("link");
        b.progress().expect("link");
        assert!(start.elapsed() < LONG, "they do not meet");
    }
    [a, b]
}

/// Takes `messages` numbered ones, while their sender makes no call.
fn all_arrive(b: &mut Endpoint, messages: u8) {
    let start = Instant::now();
    for expected in 0..messages {
        let message = loop {
            if let Some(message) = b.try_recv().expect("link") {
                break message;
            }
            assert!(start.elapsed() < LONG, "{expected} of {messages} came");
        };
        assert_eq!(message.body, [expected; 100]);
    }
}

/// What a program sends leaves at once, batch or not, as far as the first window goes; nothing waits for a next call.
#[test]
fn what_is_sent_leaves_at_once() {
    let [mut a, mut b] = two_over_udp();
    for number in 0..60 {
        a.send(NodeId(1), Channel::ordered(0), &[number; 100])
            .expect("queued");
    }
    all_arrive(&mut b, 60);
    a.progress().expect("link"); // acknowledgements
    let mut batch = a.batch();
    for number in 0..60 {
        batch
            .send(NodeId(1), Channel::ordered(0), &[number; 100])
            .expect("queued");
    }
    drop(batch);
    all_arrive(&mut b, 60);
}

/// Messages of a batch wait for its end, and share frames; so does one that says that more follow.
#[test]
fn batches_share_frames() {
    let [mut a, mut b] = two_over_udp();
    let sent_frames = |a: &Endpoint| a.counters().engine.sent_frames;
    let before = sent_frames(&a);
    let mut batch = a.batch();
    for number in 0..10 {
        batch
            .send(NodeId(1), Channel::ordered(0), &[number; 100])
            .expect("queued");
    }
    assert_eq!(sent_frames(&batch), before, "they wait");
    drop(batch);
    assert_eq!(sent_frames(&a), before + 1);
    all_arrive(&mut b, 10);
    for number in 0..9 {
        a.send_more(NodeId(1), Channel::ordered(0), &[number; 100])
            .expect("queued");
    }
    assert_eq!(sent_frames(&a), before + 1, "they wait");
    a.send(NodeId(1), Channel::ordered(0), &[9; 100])
        .expect("queued");
    assert_eq!(sent_frames(&a), before + 2);
    all_arrive(&mut b, 10);
}

/// The newest datagram of a key leaves at once, however many there were before it, and with a batch, in a batch.
#[test]
fn the_newest_leaves_at_once() {
    let [mut a, mut b] = two_over_udp();
    for (first, in_batch) in [(0, false), (100, true)] {
        if in_batch {
            a.cork();
        }
        for lap in first..first + 60 {
            let update = Datagram {
                lap,
                payload: &[7; 100],
                ..Datagram::EMPTY
            };
            let missed = a.datagram(Destination::Peer(NodeId(1)), update, None);
            assert_eq!(missed.expect("link"), 0);
        }
        if in_batch {
            a.uncork().expect("link");
        }
        let start = Instant::now();
        while b
            .recv_datagram(None, LONG)
            .expect("link")
            .is_none_or(|came| came.lap != first + 59)
        {
            assert!(start.elapsed() < LONG, "the newest did not come");
        }
    }
}

/// A process that sends a batch and ends has sent it.
#[test]
fn the_end_sends_what_waits() {
    let [mut a, mut b] = two_over_udp();
    a.cork();
    for number in 0..60 {
        a.send(NodeId(1), Channel::ordered(0), &[number])
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
