//! Messages by reference over shared memory: read where their sender has them, once, in order, and given back whatever becomes of either side.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{LONG, Over, pair, pattern};
use fastrand::Rng;
use tsumuji_link::shm::{Identity, ProcessMemory};
use tsumuji_node::{
    Bytes, Channel, ChannelOptions, Congestion, NodeId, Options, ProgressBy, Tuning,
};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const CHANNEL: Channel = Channel::ordered(7);

/// Long messages leave by reference also where the kernel is slow at it.
fn referring() -> Options {
    Options {
        tuning: Some(Tuning::default()),
        ..Options::default()
    }
}

/// Memory of the program's that tells when it is given back.
struct Owner(Vec<u8>, Sender<usize>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.fill(0xee); // whoever read it now would get that
        let _ = self.1.send(self.0.len());
    }
}

/// Of all lengths and by all ways to send in turn, to a receiver that reads, computes and posts: each arrives once, whole and in order, and each
/// owner has its memory back.
#[test]
fn references_follow_all_other_messages() {
    const MESSAGES: u64 = 3000;
    for (progress, congestion, seed) in [
        (ProgressBy::Assistant, Congestion::Credit, 1),
        (ProgressBy::Program, Congestion::Credit, 2),
        (ProgressBy::Assistant, Congestion::SUCI, 3),
    ] {
        let options = Options {
            progress,
            congestion,
            ..referring()
        };
        let (mut a, mut b) = pair(Over::Shm, &options);
        b.open(7, ChannelOptions::default()).expect("open");
        let bytes_of = move |number: u64| {
            let mut rng = Rng::with_seed(seed << 32 | number);
            let longest = [100, 20_000, 100_000, 100_000, 1_000_000][rng.usize(..5)];
            rng.usize(8..longest)
        };
        let receiver = thread::spawn(move || {
            let mut rng = Rng::with_seed(seed);
            let mut number = 0;
            while number < MESSAGES {
                if rng.u32(..200) == 0 {
                    thread::sleep(Duration::from_millis(3));
                }
                let expected = pattern(bytes_of(number), number);
                if rng.u32(..10) == 0 {
                    let posted = b.post(7, Some(A), vec![0; expected.len()]).expect("post");
                    assert!(b.wait_posted(&posted, LONG).expect("posted"), "{number}");
                    assert!(
                        b.unpost(posted).expect("filled").buffer == expected,
                        "{number}"
                    );
                } else {
                    let message = b.recv_on(7, Some(A), LONG).expect("link").expect("message");
                    assert!(message.body == expected, "{number}");
                }
                number += 1;
            }
            b
        });
        assert!(a.wait_up(LONG).expect("up").is_empty());
        let (back, is_back) = channel();
        let mut rng = Rng::with_seed(seed + 10);
        let mut owned = 0;
        for number in 0..MESSAGES {
            let message = pattern(bytes_of(number), number);
            match rng.u32(..10) {
                0 => a.send(B, CHANNEL, &message).expect("send"),
                1 => a.send_shared(B, CHANNEL, message.into()).expect("send"),
                2 => {
                    let id = a.send_shared_tracked(B, CHANNEL, message.into());
                    assert!(rng.bool() || a.wait_sent(B, id.expect("send"), LONG).expect("sent"));
                }
                _ => {
                    owned += 1;
                    let message = Bytes::from_owner(Owner(message, back.clone()));
                    a.send_shared(B, CHANNEL, message).expect("send");
                }
            }
        }
        assert!(a.flush(LONG).expect("flush"));
        drop(back);
        assert_eq!(
            is_back.iter().count(),
            owned,
            "{progress:?}, {congestion:?}"
        );
        let direct = a.counters().engine.direct_messages;
        println!("{progress:?}, {congestion:?}: {direct} of {MESSAGES} directly");
        assert!(direct > 100 || congestion == Congestion::SUCI, "{direct}");
        drop(receiver.join().expect("receiver"));
    }
}

/// A receiver that takes nothing of what comes holds what fits its budget, and loses nothing: who sends hears to stop in time.
#[test]
fn references_keep_to_the_budget() {
    const MESSAGES: u64 = 90;
    const BYTES: usize = 1 << 20;
    let (mut a, mut b) = pair(Over::Shm, &referring());
    let sender = thread::spawn(move || {
        assert!(a.wait_up(LONG).expect("up").is_empty());
        for number in 0..MESSAGES {
            let begun = Instant::now();
            while a.flow(B).expect("flow").queued_messages > 1 && begun.elapsed().as_millis() < 5 {
                a.progress().expect("progress");
            }
            let message = Bytes::from(pattern(BYTES, number));
            a.send_shared(B, CHANNEL, message).expect("send");
        }
        assert!(a.flush(LONG).expect("flush"));
        let direct = a.counters().engine.direct_messages;
        println!("{direct} of {MESSAGES} directly");
    });
    thread::sleep(Duration::from_millis(500)); // it computes, and its assistant takes in what it may
    for number in 0..MESSAGES {
        let message = b.recv(LONG).expect("link").expect("message");
        assert!(message.body == pattern(BYTES, number), "{number}");
    }
    sender.join().expect("sender");
}

/// Where the budget has no room for references, shared messages are copied into the ring, as others.
#[test]
fn a_small_budget_has_shared_messages_copied() {
    let options = Options {
        budget_bytes: 6 << 20,
        ..referring()
    };
    let (mut a, mut b) = pair(Over::Shm, &options);
    let (taken, is_taken) = channel();
    let receiver = thread::spawn(move || {
        for number in 0..200 {
            let message = b.recv(LONG).expect("link").expect("message");
            assert!(message.body == pattern(100_000, number), "{number}");
            drop(message);
            taken.send(()).expect("the sender waits");
        }
        b
    });
    assert!(a.wait_up(LONG).expect("up").is_empty());
    let mut copied = 0;
    for number in 0..200 {
        let message = Bytes::from(pattern(100_000, number));
        let before = a.counters().engine.direct_messages;
        a.send_shared(B, CHANNEL, message.clone()).expect("send");
        // One that waits in the queue is copied when it leaves.
        let has_left = a.counters().engine.direct_messages > before;
        if number >= 100 && has_left {
            assert!(message.is_unique(), "{number} is referred to");
            copied += 1;
        }
        while a.flow(B).expect("flow").queued_messages > 0 {
            a.progress().expect("progress");
        }
        // A receiver with many unread messages takes none directly.
        is_taken.recv_timeout(LONG).expect("taken");
    }
    assert!(copied > 0);
    drop(receiver.join().expect("receiver"));
}

/// A receiver that dies unread, or a sender that ends first: the memory comes back, the receiver never gets what was there afterwards, and what is lost
/// is told.
#[test]
fn references_end_with_either_side() {
    if ProcessMemory::of(Identity::new().words()).is_none() {
        eprintln!("skipped: the kernel does not let processes read each other here");
        return;
    }
    for sender_ends in [false, true] {
        let options = Options {
            progress: ProgressBy::Program,
            ..referring()
        };
        let (mut a, mut b) = pair(Over::Shm, &options);
        let meets = Arc::new(AtomicBool::new(true));
        let goes_on = Arc::clone(&meets);
        let meeting = thread::spawn(move || {
            assert!(b.wait_up(LONG).expect("up").is_empty());
            assert!(b.recv(LONG).expect("link").is_some());
            while goes_on.load(Ordering::Relaxed) {
                b.progress().expect("progress"); // until the other side knows that it was read
            }
            b
        });
        a.send(B, CHANNEL, b"up").expect("send");
        assert!(a.flush(LONG).expect("flush"));
        meets.store(false, Ordering::Relaxed);
        let mut b = meeting.join().expect("b");
        a.progress().expect("progress");
        let (back, is_back) = channel();
        for number in 0..3 {
            let message = Bytes::from_owner(Owner(pattern(100_000, number), back.clone()));
            a.send_shared(B, CHANNEL, message).expect("send");
        }
        assert!(is_back.try_recv().is_err(), "nobody has read it");
        if sender_ends {
            assert!(
                a.close(Duration::from_millis(50)).is_err(),
                "it is told that three are lost"
            );
            assert_eq!(is_back.iter().take(3).count(), 3);
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(200) {
                assert!(
                    b.recv(Duration::from_millis(10))
                        .map_or(true, |it| it.is_none())
                );
            }
        } else {
            drop(b);
            let begun = Instant::now();
            let mut returned = 0;
            while returned < 3 {
                assert!(begun.elapsed() < LONG, "{returned}");
                let _ = a.progress();
                returned += is_back.try_iter().count();
            }
            assert!(a.flush(LONG).is_err(), "it is told that three are lost");
        }
    }
}
