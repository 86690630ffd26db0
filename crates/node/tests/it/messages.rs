//! Messages between endpoints of one process, in all forms, over every link.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{ALL, LONG, Over, PLAIN, cluster, pair, pattern};
use tsumuji_node::{
    Channel, Context, Datagram, Delivery, DeliveryClass, Destination, Handler, IdlePolicy, NodeId,
    Options, Priority, ProgressBy, SendError, SendId,
};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const CHANNEL: Channel = Channel::ordered(0);

/// Messages of all sizes around frame borders arrive whole and in order, also under loss, in both directions at once.
#[test]
fn blocking_forms_carry_all_sizes_in_order() {
    let sizes = [
        0,
        1,
        8,
        1300,
        1400,
        1500,
        9000,
        32 << 10,
        (32 << 10) + 1,
        70_000,
        1 << 20,
        3,
        0,
        65_535,
    ];
    for over in ALL {
        let (mut a, mut b) = pair(over, &Options::default());
        let peer = thread::spawn(move || {
            for (index, size) in (0..).zip(sizes) {
                let message = b.recv(LONG).expect("recv").expect("a message");
                assert_eq!((message.from, message.channel), (A, CHANNEL));
                assert_eq!(message.body.len(), size, "message {index} over {over:?}");
                assert!(
                    message.body == pattern(size, index),
                    "message {index} over {over:?} differs"
                );
                b.send(A, CHANNEL, &message.body).expect("send");
                b.recycle(message);
            }
            let _ = b.close(LONG);
        });
        for (index, size) in (0..).zip(sizes) {
            a.send_shared(B, CHANNEL, pattern(size, index).into())
                .expect("send");
        }
        for (index, size) in (0..).zip(sizes) {
            let message = a.recv(LONG).expect("recv").expect("an echo");
            assert!(
                message.body == pattern(size, index),
                "echo {index} over {over:?} differs"
            );
        }
        assert!(a.flush(LONG).expect("flush"));
        let _ = a.close(LONG); // before joining: the peer's last acknowledgements need our turns
        peer.join().expect("peer");
    }
}

/// `flush` waits for what other threads and handlers have given, too, though that leaves only while it waits, and is read later.
#[test]
fn flush_waits_for_what_threads_send() {
    let options = Options {
        progress: ProgressBy::Program, // so that nothing leaves, and b takes nothing
        ..Options::default()
    };
    for over in PLAIN {
        let (mut a, mut b) = pair(over, &options);
        a.sender()
            .send(B, CHANNEL, pattern(1, 1), LONG)
            .expect("send");
        let peer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(30)); // the message lies in the ring, unread
            let message = b.recv(LONG).expect("recv").expect("message");
            assert_eq!(message.body, pattern(1, 1));
            b.flush(LONG).expect("acknowledged")
        });
        assert!(a.flush(LONG).expect("flush"), "over {over:?}");
        let _ = a.close(LONG);
        assert!(peer.join().expect("peer"));
    }
}

/// One message of 64 MiB is more than any queue or window, and arrives as it was.
#[test]
fn large_message_arrives_whole() {
    for over in PLAIN {
        let (mut a, mut b) = pair(over, &Options::default());
        let peer = thread::spawn(move || b.recv(LONG).expect("recv").expect("message").body);
        a.send_shared(
            B,
            Channel::new(DeliveryClass::Unordered, Priority::BULK, 0),
            pattern(64 << 20, 5).into(),
        )
        .expect("send");
        assert!(a.flush(LONG).expect("flush"), "over {over:?}");
        assert!(
            peer.join().expect("peer") == pattern(64 << 20, 5),
            "over {over:?} it differs"
        );
    }
}

/// Non-blocking forms never wait: nothing to receive is `None`, a full queue is `WouldBlock`, and room comes back.
#[test]
fn non_blocking_forms_say_so() {
    for over in PLAIN {
        let options = Options {
            send_queue_bytes: 64 << 10,
            budget_bytes: 256 << 10,
            progress: ProgressBy::Program, // so that b takes nothing
            ..Options::default()
        };
        let (mut a, mut b) = pair(over, &options);
        assert!(a.try_recv().expect("recv").is_none());
        let message = pattern(1000, 1);
        let mut queued = 0_usize;
        loop {
            match a.try_send(B, CHANNEL, &message) {
                Ok(()) => queued += 1,
                Err(SendError::WouldBlock { peer }) => break assert_eq!(peer, B),
                Err(error) => panic!("{error}"),
            }
            assert!(queued < 1_000_000, "the queue has no bound over {over:?}");
        }
        assert!(a.queue_length(B) >= 1);
        assert!(
            !a.wait_writable(B, 0, 60_000, Duration::from_millis(5))
                .expect("alive"),
            "b takes nothing yet"
        );
        let done = Arc::new(AtomicBool::new(false));
        let done_there = Arc::clone(&done);
        let peer = thread::spawn(move || {
            for _ in 0..queued {
                assert_eq!(b.ready(LONG).expect("ready"), Some(1000));
                assert_eq!(
                    b.recv(LONG).expect("recv").expect("message").body,
                    pattern(1000, 1)
                );
            }
            while !done_there.load(Ordering::Relaxed) {
                b.progress().expect("acknowledge");
            }
        });
        assert!(a.wait_writable(B, 0, 60_000, LONG).expect("alive"));
        assert!(a.flush(LONG).expect("flush") && a.is_up(B));
        assert_eq!(a.queue_length(B), 0);
        done.store(true, Ordering::Relaxed);
        peer.join().expect("peer");
    }
}

/// A receiver that does not take its messages stops the sender; what it had in memory stays near its budget.
#[test]
fn budget_holds_the_sender_back() {
    for over in PLAIN {
        let options = Options {
            send_queue_bytes: 16 << 20,
            budget_bytes: 1 << 20,
            ..Options::default()
        };
        let (mut a, mut b) = pair(over, &options);
        assert!(a.wait_up(Duration::ZERO).is_ok());
        let message = pattern(100_000, 2);
        for _ in 0..100 {
            a.send(B, CHANNEL, &message).expect("send"); // 10 MB: ten times the budget
        }
        // Rounds without taking: both sides go on until nothing has moved for a while, and for many rounds.
        let (mut moved, mut idle_rounds) = (Instant::now(), 0);
        while moved.elapsed() < Duration::from_millis(100) || idle_rounds < 1_000 {
            let before = b.counters().engine.delivered_messages;
            a.progress().expect("a");
            b.progress().expect("b");
            let delivered = b.counters().engine.delivered_messages;
            idle_rounds += u32::from(delivered > 0);
            if delivered > before {
                (moved, idle_rounds) = (Instant::now(), 0);
            }
            assert!(moved.elapsed() < LONG, "nothing comes over {over:?}");
        }
        let delivered = b.counters().engine.delivered_messages;
        let most = (1 << 20) / 100_000 + 1; // one message may exceed the budget
        assert!(
            (1..=most).contains(&delivered),
            "{delivered} messages of 100 kB came into a budget of 1 MiB over {over:?}"
        );
        let taker = thread::spawn(move || {
            for _ in 0..100 {
                assert_eq!(
                    b.recv(LONG).expect("recv").expect("message").body.len(),
                    100_000
                );
            }
            let _ = b.close(LONG);
        });
        assert!(a.flush(LONG).expect("flush"), "over {over:?}");
        taker.join().expect("taker");
    }
}

/// Tracked messages are open until the peer acknowledged them whole, and then stay sent.
#[test]
fn completion_forms_tell_acknowledgement() {
    let options = Options {
        progress: ProgressBy::Program, // so that b acknowledges nothing
        ..Options::default()
    };
    for over in ALL {
        let (mut a, mut b) = pair(over, &options);
        let id = a
            .send_tracked(B, CHANNEL, &pattern(200_000, 3))
            .expect("send");
        assert!(!a.is_sent(B, id).expect("alive"), "b has not even polled");
        assert!(!a.wait_sent(B, id, Duration::from_millis(1)).expect("alive"));
        let done = Arc::new(AtomicBool::new(false));
        let done_there = Arc::clone(&done);
        let peer = thread::spawn(move || {
            let message = b.recv(LONG).expect("recv").expect("message");
            // Acknowledgements need turns, and may be lost.
            while !done_there.load(Ordering::Relaxed) {
                let more = b.recv(Duration::from_millis(1)).expect("recv");
                assert!(more.is_none());
            }
            message.body.len()
        });
        let sent = a.wait_sent(B, id, LONG).expect("alive");
        done.store(true, Ordering::Relaxed);
        assert!(sent, "over {over:?}");
        assert!(a.is_sent(B, id).expect("alive"));
        assert_eq!(peer.join().expect("peer"), 200_000);
    }
}

/// A long message that is acknowledged while it is still being sent counts as sent, too.
#[test]
fn long_tracked_messages_end() {
    const ROUNDS: usize = 40;
    for over in ALL {
        let (mut a, mut b) = pair(over, &Options::default());
        let done = Arc::new(AtomicBool::new(false));
        let done_there = Arc::clone(&done);
        let peer = thread::spawn(move || {
            let mut count = 0;
            while !done_there.load(Ordering::Relaxed) {
                let got = b.recv(Duration::from_millis(1)).expect("recv");
                count += usize::from(got.is_some());
            }
            // The turn that ends a call may have acknowledged another message.
            while b.recv(Duration::from_millis(1)).expect("recv").is_some() {
                count += 1;
            }
            count
        });
        let message = pattern(300_000, 5);
        for round in 0..ROUNDS {
            let id = a.send_tracked(B, CHANNEL, &message).expect("send");
            assert!(
                a.wait_sent(B, id, LONG).expect("alive"),
                "round {round} over {over:?}"
            );
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(peer.join().expect("peer"), ROUNDS);
    }
}

#[derive(Default)]
struct Collect {
    messages: Vec<(NodeId, Vec<u8>)>,
    datagrams: Vec<(NodeId, u16, u32, Vec<u8>)>,
    up: Vec<NodeId>,
    sent: Vec<SendId>,
}

impl Handler for Collect {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        let Delivery { from, body, .. } = delivery;
        self.messages.push((from, body.bytes().to_vec()));
    }
    fn datagram(&mut self, _: &mut Context<'_>, datagram: Datagram<'_>) {
        self.datagrams.push((
            datagram.source,
            datagram.channel_id,
            datagram.key,
            datagram.payload.to_vec(),
        ));
    }
    fn peer_up(&mut self, peer: NodeId) {
        self.up.push(peer);
    }
    fn sent(&mut self, _: NodeId, id: SendId) {
        self.sent.push(id);
    }
}

/// A handler sees messages, datagrams, peers and acknowledgements; what came during calls without one is handed over first.
#[test]
fn handlers_see_everything_once_and_in_order() {
    for over in PLAIN {
        let mut nodes = cluster(over, 3, &Options::default());
        let mut others: Vec<_> = nodes.drain(1..).collect();
        let mut a = nodes.pop().expect("a");
        let mut seen = Collect::default();
        let mut other = Collect::default();
        let mut rounds = 0;
        while !(a.is_up(NodeId(1)) && a.is_up(NodeId(2)) && others.iter().all(|node| node.is_up(A)))
        {
            a.try_recv().expect("recv"); // no handler: what comes is kept
            for node in &mut others {
                node.poll(&mut other).expect("poll");
            }
            rounds += 1;
            assert!(rounds < 10_000_000, "they do not meet over {over:?}");
        }
        others[0].send(A, CHANNEL, b"one").expect("send");
        others[1]
            .datagram(
                Destination::Broadcast,
                Datagram {
                    channel_id: 7,
                    lap: 1,
                    key: 16,
                    payload: b"datagram",
                    ..Datagram::EMPTY
                },
                None,
            )
            .expect("datagram");
        while a.ready(Duration::ZERO).expect("ready").is_none() {}
        others[0].send(A, CHANNEL, b"two").expect("send");
        let id = a.send_tracked(B, CHANNEL, b"back").expect("send");
        while seen.messages.len() < 2
            || seen.datagrams.is_empty()
            || seen.sent.is_empty()
            || other.messages.is_empty()
        {
            a.poll_wait(&mut seen, Duration::from_micros(10))
                .expect("poll");
            for node in &mut others {
                node.poll(&mut other).expect("poll");
            }
        }
        assert_eq!(seen.messages, [(B, b"one".to_vec()), (B, b"two".to_vec())]);
        assert_eq!(seen.datagrams, [(NodeId(2), 7, 16, b"datagram".to_vec())]);
        assert_eq!(seen.sent, [id]);
        seen.up.sort();
        assert_eq!(seen.up, [NodeId(1), NodeId(2)]);
        assert_eq!(other.messages, [(A, b"back".to_vec())]);
    }
}

/// Datagrams reach every peer on links with and without broadcast, of one frame and of several, or one peer if asked.
#[test]
fn datagrams_reach_whom_they_should() {
    for over in PLAIN {
        let mut nodes = cluster(over, 3, &Options::default());
        let mut seen: Vec<Collect> = (0..3).map(|_| Collect::default()).collect();
        let all_up = |nodes: &[tsumuji_node::Endpoint]| {
            nodes.iter().all(|node| {
                (0..3)
                    .map(NodeId)
                    .all(|id| id == node.me() || node.is_up(id))
            })
        };
        while !all_up(&nodes) {
            for (node, seen) in nodes.iter_mut().zip(&mut seen) {
                node.poll(seen).expect("poll");
            }
        }
        fn of_channel(channel_id: u16, payload: &[u8]) -> Datagram<'_> {
            Datagram {
                channel_id,
                payload,
                ..Datagram::EMPTY
            }
        }
        let x = Datagram {
            key: 9,
            ..of_channel(2, b"x")
        };
        let all = Destination::Broadcast;
        let capacity = nodes[0].datagram_capacity_bytes();
        assert!(capacity >= 1024);
        assert_eq!(
            nodes[0]
                .datagram(all, of_channel(1, &vec![1; capacity]), None)
                .expect("datagram"),
            0
        );
        let long = vec![3; 3 * capacity];
        assert_eq!(
            nodes[0]
                .datagram(all, of_channel(3, &long), None)
                .expect("of several frames"),
            0
        );
        let to = |node| Destination::Peer(node);
        assert_eq!(nodes[0].datagram(to(NodeId(2)), x, None).expect("link"), 0);
        assert!(matches!(
            nodes[0].datagram(to(A), x, None),
            Err(SendError::UnknownPeer { peer: A })
        ));
        let library = of_channel(Channel::LIBRARY_IDS, b"x");
        assert!(matches!(
            nodes[0].datagram(all, library, None),
            Err(SendError::ReservedChannel { .. })
        ));
        while seen[1].datagrams.len() < 2 || seen[2].datagrams.len() < 3 {
            for (node, seen) in nodes.iter_mut().zip(&mut seen) {
                node.poll(seen).expect("poll");
            }
        }
        for node in [&seen[1], &seen[2]] {
            assert!(
                node.datagrams.contains(&(A, 1, 0, vec![1; capacity])),
                "over {over:?}"
            );
            assert!(node.datagrams.contains(&(A, 3, 0, long.clone())));
        }
        assert!(seen[2].datagrams.contains(&(A, 2, 9, b"x".to_vec())));
        assert_eq!(
            (
                seen[0].datagrams.len(),
                seen[1].datagrams.len(),
                seen[2].datagrams.len()
            ),
            (0, 2, 3)
        );
    }
}

/// Every idle policy lets messages through, both ways.
#[test]
fn all_idle_policies_work() {
    for over in PLAIN {
        for idle in [IdlePolicy::Adaptive, IdlePolicy::Yield, IdlePolicy::Sleep] {
            let (mut a, mut b) = pair(
                over,
                &Options {
                    idle,
                    ..Options::default()
                },
            );
            let peer = thread::spawn(move || {
                for _ in 0..200 {
                    let message = b.recv(LONG).expect("recv").expect("message");
                    b.send(A, CHANNEL, &message.body).expect("send");
                }
                b
            });
            for round in 0..200_u32 {
                a.send(B, CHANNEL, &round.to_le_bytes()).expect("send");
                assert_eq!(
                    a.recv(LONG).expect("recv").expect("echo").body,
                    round.to_le_bytes()
                );
            }
            peer.join().expect("peer");
        }
    }
}

/// The descriptor becomes readable when something comes, and is not armed while something waits.
#[test]
fn descriptor_wakes_a_foreign_loop() {
    for over in PLAIN {
        let (mut a, mut b) = pair(over, &Options::default());
        let peer = thread::spawn(move || {
            assert!(b.wait_up(LONG).expect("up").is_empty());
            b.send(A, CHANNEL, b"wake").expect("send");
            b.flush(LONG).expect("flush");
        });
        let message = loop {
            if let Some(message) = a.try_recv().expect("recv") {
                break message;
            }
            if a.arm_fd().expect("arm") {
                let wait = a.until_timer().unwrap_or(LONG).min(LONG);
                let fd = a.fd().expect("a descriptor");
                let mut fds = [rustix::event::PollFd::new(
                    &fd,
                    rustix::event::PollFlags::IN,
                )];
                let wait = rustix::event::Timespec::try_from(wait).expect("short");
                rustix::event::poll(&mut fds, Some(&wait)).expect("poll");
            }
        };
        assert_eq!(message.body, b"wake");
        assert!(a.flush(LONG).expect("flush"));
        drop(a);
        peer.join().expect("peer");
    }
}

/// Ids that are not other members are refused, not queued.
#[test]
fn unknown_peers_are_refused() {
    let (mut a, _b) = pair(Over::Shm, &Options::default());
    for id in [A, NodeId(2), NodeId(u16::MAX)] {
        assert!(
            matches!(
                a.send(id, CHANNEL, b"x"),
                Err(SendError::UnknownPeer { .. })
            ),
            "{id}"
        );
        assert!(
            matches!(
                a.send_shared(id, CHANNEL, vec![1].into()),
                Err(SendError::UnknownPeer { .. })
            ),
            "{id}"
        );
        assert!(
            matches!(
                a.wait_writable(id, 0, 1, LONG),
                Err(SendError::UnknownPeer { .. })
            ),
            "{id}"
        );
    }
    assert_eq!((a.name_of(B), a.name_of(NodeId(9))), ("node 1", ""));
}
