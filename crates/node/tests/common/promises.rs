//! What an endpoint promises while a program is away, over whatever link. "Away" here is a side that makes no call until the other has what it
//! waits for: a broken promise is a wait without end, which `LONG` turns into a failure. Nothing is measured.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use tsumuji_node::{Channel, Endpoint, NodeId, Options, ProgressBy, SendError};

use super::{LONG, pattern};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const CHANNEL: Channel = Channel::ordered(0);

/// Two new endpoints, each other's peers, with the options of each.
pub(crate) type Open<'a> = dyn FnMut(&Options, &Options) -> (Endpoint, Endpoint) + 'a;

/// Takes `count` messages that are as `send_all` made them.
fn take_all(node: &mut Endpoint, count: usize, bytes: usize) {
    for number in 0..count {
        let message = node.recv(LONG).expect("link");
        let message = message.unwrap_or_else(|| panic!("{number} of {count} came"));
        assert!(message.body == pattern(bytes, number as u64), "{number}");
        node.recycle(message);
    }
}

pub(crate) fn send_all(node: &mut Endpoint, to: NodeId, count: usize, bytes: usize) {
    for number in 0..count {
        let message = pattern(bytes, number as u64);
        node.send(to, CHANNEL, &message).expect("send");
    }
}

/// A node that soon takes a silent peer for dead.
fn hasty() -> Options {
    Options {
        keep_alive: Duration::from_millis(20),
        dead_after: Duration::from_millis(200),
        ..Options::default()
    }
}

/// Without assistant.
fn alone() -> Options {
    Options {
        progress: ProgressBy::Program,
        ..Options::default()
    }
}

/// What a loop has sent arrives while its program computes: also more than any first window, and before hello.
pub(crate) fn sent_arrives_while_the_sender_computes(open: &mut Open<'_>) {
    let usual = Options::default();
    for (count, bytes) in [(1, 8), (200, 100), (3000, 8), (20, 100_000)] {
        let (mut a, mut b) = open(&usual, &usual);
        let (arrived, all_arrived) = channel();
        let sender = thread::spawn(move || {
            send_all(&mut a, B, count, bytes);
            all_arrived.recv_timeout(LONG).expect("all arrived"); // no call meanwhile
            a
        });
        take_all(&mut b, count, bytes);
        arrived.send(()).expect("the sender waits");
        drop(sender.join().expect("sender"));
    }
}

/// What arrives is taken in and acknowledged while its receiver computes: within the budget, whatever it is.
pub(crate) fn flush_ends_while_the_receiver_computes(open: &mut Open<'_>) {
    let (mut a, mut b) = open(&Options::default(), &Options::default());
    assert!(b.wait_up(LONG).is_ok() || a.is_up(B)); // b calls once
    send_all(&mut a, B, 500, 3000);
    assert!(a.flush(LONG).expect("alive"));
    take_all(&mut b, 500, 3000);
}

/// Two that meet need no further call of the other: one waits, the other has made its endpoint and computes.
pub(crate) fn hello_needs_no_call(open: &mut Open<'_>) {
    let (mut a, b) = open(&Options::default(), &Options::default());
    assert!(a.wait_up(LONG).expect("alive").is_empty());
    drop(b);
}

/// A program that computes longer than `dead_after` lives, to its peers and to itself; what it then sends arrives.
pub(crate) fn computing_is_not_dying(open: &mut Open<'_>) {
    let options = hasty();
    let (mut a, mut b) = open(&options, &options);
    assert!(a.wait_up(LONG).expect("alive").is_empty());
    let computing = thread::spawn(move || {
        thread::sleep(options.dead_after * 4);
        a.send(B, CHANNEL, b"still here").expect("alive");
        assert!(a.flush(LONG).expect("alive"));
        assert_eq!(a.ended_sessions(B), 0);
        a
    });
    let message = b.recv(LONG).expect("link").expect("a message");
    assert_eq!(
        (message.body.as_slice(), b.ended_sessions(A)),
        (&b"still here"[..], 0)
    );
    drop(computing.join().expect("sender"));
}

/// Without assistant what fits the first window leaves at once all the same.
pub(crate) fn programs_own_progress_sends_first_windows(open: &mut Open<'_>) {
    let (mut a, mut b) = open(&alone(), &alone());
    let start = Instant::now();
    while !(a.is_up(B) && b.is_up(A)) {
        a.progress().expect("link");
        b.progress().expect("link");
        assert!(start.elapsed() < LONG, "they do not meet");
    }
    send_all(&mut a, B, 10, 100);
    take_all(&mut b, 10, 100);
    drop(a);
}

/// A node that computes without assistant longer than its peer waits is taken for dead; what it then sends is lost, and it is told so once, by
/// `flush` as by the next `send`: never does all seem well. Where silence kills, that is: between hosts.
pub(crate) fn what_is_lost_is_told(open: &mut Open<'_>) {
    for by_flush in [true, false] {
        let (mut a, mut b) = open(&alone(), &hasty());
        assert!(a.wait_up(LONG).expect("alive").is_empty());
        assert!(b.wait_up(LONG).expect("alive").is_empty());
        let start = Instant::now();
        while b.ended_sessions(A) == 0 {
            drop(b.recv(Duration::from_millis(10)).expect("link"));
            assert!(start.elapsed() < LONG, "a silent node lives for ever");
        }
        for _ in 0..60 {
            a.send(B, CHANNEL, b"lost").expect("nobody knows yet");
        }
        let (lost, start) = (60, Instant::now());
        let told = if by_flush {
            a.flush(LONG).expect_err("it was lost")
        } else {
            // It finds out some time; until then more may be queued, and lost.
            while a.ended_sessions(B) == 0 {
                a.progress().expect("link");
                assert!(start.elapsed() < LONG, "it never finds out");
            }
            a.send(B, CHANNEL, b"?").expect_err("it was lost")
        };
        match told {
            SendError::MessagesLost { peer: B, messages } => assert_eq!(messages, lost),
            other => panic!("{other}"),
        }
        // Told once; and the two have met again, or are about to.
        let start = Instant::now();
        while !matches!(a.send(B, CHANNEL, b"again"), Ok(())) {
            a.progress().expect("link");
            assert!(start.elapsed() < LONG, "they do not meet again");
        }
        assert!(a.flush(LONG).expect("told before"));
        assert_eq!(b.recv(LONG).expect("link").expect("again").body, b"again");
    }
}
