//! While a program is away, its progress assistant does what the endpoint owes: to peers, and to what the program has sent.
//!
//! The promises are in `common/promises.rs`, and held to over the links between hosts in `away_cables.rs`.

use std::thread;
use std::time::Duration;

use crate::common::promises::{self, send_all};
use crate::common::{self, ALL, LONG, Over, PLAIN, cluster, pair, pattern};
use rustix::event::{PollFd, PollFlags, Timespec};
use tsumuji_node::any_link::Base;
use tsumuji_node::{
    AnyLink, Channel, CloseError, Endpoint, Membership, NodeId, Options, ProgressBy,
};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const CHANNEL: Channel = Channel::ordered(0);

/// A pair whose sides have options of their own.
fn both(over: Over, a: &Options, b: &Options) -> (Endpoint, Endpoint) {
    if over != Over::Udp {
        return pair(over, a); // the same for both
    }
    let (a_link, b_link) = (common::udp(), common::udp());
    let addrs = [common::inet(&a_link), common::inet(&b_link)];
    let open = |link, me, options: &Options| {
        let link = AnyLink::open(Base::Udp(link), None, None).expect("link");
        Endpoint::new(link, Membership::inet(me, &addrs), options.clone()).expect("endpoint")
    };
    (open(a_link, A, a), open(b_link, B, b))
}

/// What a loop has sent arrives while its program computes, also under loss.
#[test]
fn sent_arrives_while_the_sender_computes() {
    for over in ALL {
        println!("over {over:?}");
        promises::sent_arrives_while_the_sender_computes(&mut |a, b| both(over, a, b));
    }
}

/// What arrives is taken in and acknowledged while its receiver computes.
#[test]
fn flush_ends_while_the_receiver_computes() {
    for over in ALL {
        println!("over {over:?}");
        promises::flush_ends_while_the_receiver_computes(&mut |a, b| both(over, a, b));
    }
}

/// Two that meet need no further call of the other.
#[test]
fn hello_needs_no_call() {
    for over in ALL {
        println!("over {over:?}");
        promises::hello_needs_no_call(&mut |a, b| both(over, a, b));
    }
}

/// A program that computes longer than `dead_after` lives.
#[test]
fn computing_is_not_dying() {
    for over in PLAIN {
        println!("over {over:?}");
        promises::computing_is_not_dying(&mut |a, b| both(over, a, b));
    }
}

/// Without assistant what fits the first window leaves at once all the same.
#[test]
fn programs_own_progress_sends_first_windows() {
    for over in PLAIN {
        println!("over {over:?}");
        promises::programs_own_progress_sends_first_windows(&mut |a, b| both(over, a, b));
    }
}

/// A program that sleeps on its descriptor is woken for what the assistant has taken in.
#[test]
fn descriptor_tells_of_what_the_assistant_took() {
    for over in PLAIN {
        for round in 0..20 {
            let (mut a, mut b) = pair(over, &Options::default());
            assert!(a.wait_up(LONG).expect("alive").is_empty());
            a.send(B, CHANNEL, &pattern(100, 0)).expect("send");
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
            nodes[0].send(NodeId(to), CHANNEL, b"hello").expect("send");
        }
        for node in &mut nodes[1..] {
            let message = node.recv(LONG).expect("link").expect("hello");
            assert_eq!((message.from, message.body.as_slice()), (A, &b"hello"[..]));
        }
    }
}

/// What is lost is told once.
#[test]
fn what_is_lost_is_told() {
    promises::what_is_lost_is_told(&mut |a, b| both(Over::Udp, a, b));
}

/// `close` says what it gives up: here a peer that is not there.
#[test]
fn close_says_what_it_gives_up() {
    let options = Options {
        progress: ProgressBy::Program, // an assistant may meet the peer at once
        ..Options::default()
    };
    for over in PLAIN {
        let (mut a, b) = pair(over, &options);
        drop(b); // before they met
        send_all(&mut a, B, 3, 100);
        match a.close(Duration::from_millis(10)) {
            Err(CloseError::Undelivered {
                lost,
                unacknowledged,
            }) => {
                assert_eq!([lost, unacknowledged].concat(), [(B, 3)], "over {over:?}");
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
            a.send(B, CHANNEL, b"last").expect("send");
            assert_eq!(
                b.recv(LONG).expect("link").expect("a message").body,
                b"last"
            );
            drop(b);
            assert!(a.flush(LONG).expect("it came"), "over {over:?}");
        }
    }
}
