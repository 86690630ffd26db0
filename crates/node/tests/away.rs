//! While a program is away, its progress assistant does what the endpoint owes: to peers, and to what the program has sent.
//!
//! "Away" here is a side that makes no call until the other has what it waits for: a broken promise is a wait without end, which
//! `LONG` turns into a failure. Nothing is measured.

mod common;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use common::{ALL, LONG, Over, PLAIN, cluster, pair, pattern};
use rustix::event::{PollFd, PollFlags, Timespec};
use tsumuji_node::{
    AnyLink, CloseError, Endpoint, Lane, Membership, NodeId, Options, ProgressBy, SendError,
};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const LANE: Lane = Lane::ordered(0);

/// Takes `count` messages that are as `send_all` made them, and says so to those who are away.
fn take_all(node: &mut Endpoint<AnyLink>, count: usize, bytes: usize, over: Over) {
    for number in 0..count {
        let message = node.recv(LONG).expect("link");
        let message = message.unwrap_or_else(|| panic!("{number} of {count} came over {over:?}"));
        assert!(
            message.body == pattern(bytes, number as u64),
            "{number} over {over:?}"
        );
        node.recycle(message);
    }
}

fn send_all(node: &mut Endpoint<AnyLink>, to: NodeId, count: usize, bytes: usize) {
    for number in 0..count {
        let message = pattern(bytes, number as u64);
        node.send(to, LANE, &message).expect("send");
    }
}

fn gate() -> (Sender<()>, Receiver<()>) {
    channel()
}

/// What a loop has sent arrives while its program computes: also more than any first window, before hello, and under loss.
#[test]
fn sent_arrives_while_the_sender_computes() {
    for over in ALL {
        for (count, bytes) in [(1, 8), (200, 100), (3000, 8), (20, 100_000)] {
            let (mut a, mut b) = pair(over, &Options::default());
            let (arrived, all_arrived) = gate();
            let sender = thread::spawn(move || {
                send_all(&mut a, B, count, bytes);
                all_arrived.recv_timeout(LONG).expect("all arrived"); // no call meanwhile
                a
            });
            take_all(&mut b, count, bytes, over);
            arrived.send(()).expect("the sender waits");
            drop(sender.join().expect("sender"));
        }
    }
}

/// What arrives is taken in and acknowledged while its receiver computes: within the budget, whatever it is.
#[test]
fn flush_ends_while_the_receiver_computes() {
    for over in ALL {
        let (mut a, mut b) = pair(over, &Options::default());
        assert!(b.wait_up(LONG).is_ok() || a.is_up(B)); // b calls once
        send_all(&mut a, B, 500, 3000);
        assert!(a.flush(LONG).expect("alive"), "over {over:?}");
        take_all(&mut b, 500, 3000, over);
    }
}

/// Two that meet need no further call of the other: one waits, the other has made its endpoint and computes.
#[test]
fn hello_needs_no_call() {
    for over in ALL {
        let (mut a, b) = pair(over, &Options::default());
        assert!(a.wait_up(LONG).expect("alive").is_empty(), "over {over:?}");
        drop(b);
    }
}

/// A program that computes longer than `dead_after` lives, to its peers and to itself; what it then sends arrives.
#[test]
fn computing_is_not_dying() {
    let options = Options {
        keep_alive: Duration::from_millis(20),
        dead_after: Duration::from_millis(200),
        ..Options::default()
    };
    for over in PLAIN {
        let (mut a, mut b) = pair(over, &options);
        assert!(a.wait_up(LONG).expect("alive").is_empty());
        let computing = thread::spawn(move || {
            thread::sleep(options.dead_after * 4);
            a.send(B, LANE, b"still here").expect("alive");
            assert!(a.flush(LONG).expect("alive"));
            assert_eq!(a.deaths(B), 0);
            a
        });
        let message = b.recv(LONG).expect("link").expect("a message");
        assert_eq!(
            (message.body.as_slice(), b.deaths(A)),
            (&b"still here"[..], 0),
            "over {over:?}"
        );
        drop(computing.join().expect("sender"));
    }
}

/// Without assistant what fits the first window leaves at once all the same.
#[test]
fn programs_own_progress_sends_first_windows() {
    let options = Options {
        progress: ProgressBy::Program,
        ..Options::default()
    };
    for over in PLAIN {
        let (mut a, mut b) = pair(over, &options);
        let start = Instant::now();
        while !(a.is_up(B) && b.is_up(A)) {
            a.progress().expect("link");
            b.progress().expect("link");
            assert!(start.elapsed() < LONG, "they do not meet over {over:?}");
        }
        send_all(&mut a, B, 10, 100);
        take_all(&mut b, 10, 100, over);
        drop(a);
    }
}

/// A program that sleeps on its descriptor is woken for what the assistant has taken in.
#[test]
fn descriptor_tells_of_what_the_assistant_took() {
    for over in PLAIN {
        for round in 0..20 {
            let (mut a, mut b) = pair(over, &Options::default());
            assert!(a.wait_up(LONG).expect("alive").is_empty());
            a.send(B, LANE, &pattern(100, 0)).expect("send");
            // Now and then so long that the assistant has taken it before, and now and then not.
            thread::sleep(Duration::from_micros(300 * round));
            let mut taken = None;
            while taken.is_none() {
                if b.arm_fd().expect("link") {
                    let fd = b.fd().expect("a descriptor");
                    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
                    let most = Timespec {
                        tv_sec: LONG.as_secs() as i64,
                        tv_nsec: 0,
                    };
                    let ready = rustix::event::poll(&mut fds, Some(&most)).expect("poll");
                    assert_eq!(ready, 1, "nothing woke it over {over:?}, round {round}");
                }
                taken = b.try_recv().expect("link");
            }
        }
    }
}

/// Several endpoints live in one process, each with its assistant, and all end.
#[test]
fn many_endpoints_share_a_process() {
    for over in PLAIN {
        let mut nodes = cluster(over, 8, &Options::default());
        for to in 1..8 {
            nodes[0].send(NodeId(to), LANE, b"hello").expect("send");
        }
        for node in &mut nodes[1..] {
            let message = node.recv(LONG).expect("link").expect("hello");
            assert_eq!((message.from, message.body.as_slice()), (A, &b"hello"[..]));
        }
    }
}

/// A node that computes without assistant longer than its peer waits is taken for dead; what it then sends is lost, and it is told so once, by
/// `flush` as by the next `send`: never does all seem well.
#[test]
fn what_is_lost_is_told() {
    let patient = Options {
        progress: ProgressBy::Program,
        ..Options::default()
    };
    let hasty = Options {
        keep_alive: Duration::from_millis(20),
        dead_after: Duration::from_millis(200),
        ..Options::default()
    };
    for by_flush in [true, false] {
        let (a_link, b_link) = (common::udp(), common::udp());
        let addrs = [common::inet(&a_link), common::inet(&b_link)];
        let open = |link, me, options| {
            Endpoint::new(link, Membership::inet(me, &addrs), options).expect("endpoint")
        };
        let mut a = open(a_link, A, patient.clone());
        let mut b = open(b_link, B, hasty.clone());
        assert!(a.wait_up(LONG).expect("alive").is_empty());
        assert!(b.wait_up(LONG).expect("alive").is_empty());
        let start = Instant::now();
        while b.deaths(A) == 0 {
            drop(b.recv(Duration::from_millis(10)).expect("link"));
            assert!(start.elapsed() < LONG, "a silent node lives for ever");
        }
        for _ in 0..60 {
            a.send(B, LANE, b"lost").expect("nobody knows yet");
        }
        let (lost, start) = (60, Instant::now());
        let told = if by_flush {
            a.flush(LONG).expect_err("it was lost")
        } else {
            // It finds out some time; until then more may be queued, and lost.
            while a.deaths(B) == 0 {
                a.progress().expect("link");
                assert!(start.elapsed() < LONG, "it never finds out");
            }
            a.send(B, LANE, b"?").expect_err("it was lost")
        };
        match told {
            SendError::MessagesLost { peer: B, messages } => assert_eq!(messages, lost),
            other => panic!("{other}"),
        }
        // Told once; and the two have met again, or are about to.
        let start = Instant::now();
        while !matches!(a.send(B, LANE, b"again"), Ok(())) {
            a.progress().expect("link");
            assert!(start.elapsed() < LONG, "they do not meet again");
        }
        assert!(a.flush(LONG).expect("told before"));
        assert_eq!(b.recv(LONG).expect("link").expect("again").body, b"again");
    }
}

/// `close` says what it gives up: here a peer that is not there.
#[test]
fn close_says_what_it_gives_up() {
    for over in PLAIN {
        let (mut a, b) = pair(over, &Options::default());
        drop(b); // before they met
        send_all(&mut a, B, 3, 100);
        match a.close(Duration::from_millis(10)) {
            Err(CloseError::Undelivered { lost, given_up }) => {
                assert_eq!([lost, given_up].concat(), [(B, 3)], "over {over:?}");
            }
            other => panic!("over {over:?}: {other:?}"),
        }
    }
}

/// What was acknowledged, or about to be, when its receiver left is not told as lost: it says what has come before it goes.
#[test]
fn leaving_acknowledges_first() {
    for over in PLAIN {
        for _ in 0..50 {
            let (mut a, mut b) = pair(over, &Options::default());
            a.send(B, LANE, b"last").expect("send");
            assert_eq!(
                b.recv(LONG).expect("link").expect("a message").body,
                b"last"
            );
            drop(b);
            assert!(a.flush(LONG).expect("it came"), "over {over:?}");
        }
    }
}
