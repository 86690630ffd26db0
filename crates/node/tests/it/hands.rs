//! Flow control in the program's hands, between real endpoints: windows, messages with deadlines, somebody else's event loop.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use crate::common::{LONG, Over, PLAIN, cluster, pair, pattern};
use rustix::event::epoll;
use tsumuji_node::{
    Channel, Congestion, Datagram, Destination, Endpoint, FlowPolicy, NodeId, Options, Pace,
    ProgressBy, Room, SendError, Sender,
};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const CHANNEL: Channel = Channel::ordered(0);
const VIDEO: u16 = 2;

/// Somebody's epoll loop serves an endpoint, a pipe of its own and a timer: every message is echoed, every line answered.
#[test]
fn an_endpoint_lives_in_a_foreign_epoll_loop() {
    const ROUNDS: u32 = 100;
    const ENDPOINT: u64 = 1;
    const PIPE: u64 = 2;
    for over in PLAIN {
        let (mut a, mut b) = pair(over, &Options::default());
        let (mut theirs, mut mine) = UnixStream::pair().expect("pipe");
        let server = thread::spawn(move || {
            let watch = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
            let add = |fd: std::os::fd::BorrowedFd<'_>, data| {
                let data = epoll::EventData::new_u64(data);
                epoll::add(&watch, fd, data, epoll::EventFlags::IN).expect("add");
            };
            add(b.fd().expect("a descriptor"), ENDPOINT);
            add(std::os::fd::AsFd::as_fd(&mine), PIPE);
            let (mut echoed, mut answered, mut woken) = (0, 0, 0);
            while echoed < ROUNDS || answered < ROUNDS {
                while let Some(message) = b.try_recv().expect("link") {
                    b.try_send(message.from, message.channel, &message.body)
                        .expect("queued");
                    echoed += 1;
                }
                if !b.arm_fd().expect("arm") {
                    continue;
                }
                let wait = b.until_timer().unwrap_or(LONG).min(LONG);
                let wait = rustix::event::Timespec::try_from(wait).expect("short");
                let mut events = Vec::with_capacity(4);
                let room = rustix::buffer::spare_capacity(&mut events);
                epoll::wait(&watch, room, Some(&wait)).expect("wait");
                for event in &events {
                    match event.data.u64() {
                        PIPE => {
                            let mut byte = [0];
                            mine.read_exact(&mut byte).expect("read");
                            mine.write_all(&byte).expect("write");
                            answered += 1;
                        }
                        _ => woken += 1,
                    }
                }
            }
            assert!(b.flush(LONG).expect("flush"));
            woken
        });
        for round in 0..ROUNDS {
            a.send(B, CHANNEL, &pattern(round as usize * 50, 1))
                .expect("send");
            theirs.write_all(&[round as u8]).expect("write");
            let mut byte = [0];
            theirs.read_exact(&mut byte).expect("answer");
            assert_eq!(byte[0], round as u8);
            let echo = a.recv(LONG).expect("link").expect("echo");
            assert!(echo.body == pattern(round as usize * 50, 1), "{over:?}");
        }
        while !server.is_finished() {
            a.recv(Duration::from_millis(1)).expect("link"); // acknowledges the last echo
        }
        assert!(
            server.join().expect("server") > 0,
            "{over:?}: the descriptor woke it"
        );
    }
}

/// A window that changes while messages pass: they all arrive, and the endpoint says what it is.
#[test]
fn windows_change_while_messages_pass() {
    for over in [Over::Shm, Over::LossyUdp(5)] {
        let (mut a, mut b) = pair(over, &Options::default());
        let sender = thread::spawn(move || {
            for index in 0..60 {
                a.send(B, CHANNEL, &pattern(30_000, index)).expect("send");
            }
            let _ = a.close(LONG);
        });
        let most = b.window().frames_limit;
        for index in 0..60_usize {
            b.set_window([1, usize::MAX, 8][index % 3]);
            b.set_budget([1, 64 << 20][index % 2]);
            b.set_peer_window(A, [Some(1), None][index % 2])
                .expect("peer");
            assert_eq!(b.window().frames, [1, most, 8.min(most)][index % 3]);
            let message = b.recv(LONG).expect("link").expect("message");
            assert!(
                message.body == pattern(30_000, index as u64),
                "{over:?}: {index}"
            );
        }
        assert!(matches!(
            b.set_peer_window(B, None),
            Err(SendError::UnknownPeer { peer: B })
        ));
        sender.join().expect("sender");
    }
}

/// Grants nothing to anyone.
#[derive(Debug)]
struct Closed;

impl FlowPolicy for Closed {
    fn window_frames(&mut self, _: &Room, _: &Sender) -> u64 {
        0
    }
}

/// Not even a policy that grants nothing for ever stops a pair; without it all goes on.
#[test]
fn a_closed_policy_stops_nobody() {
    for (over, congestion) in PLAIN.into_iter().zip(Congestion::ALL).chain([
        (Over::Udp, Congestion::Credit),
        (Over::Shm, Congestion::SUCI),
    ]) {
        let options = Options {
            congestion,
            ..Options::default()
        };
        let (mut a, mut b) = pair(over, &options);
        b.set_policy(Some(Box::new(Closed)));
        let sender = thread::spawn(move || {
            for index in 0..8 {
                a.send(B, CHANNEL, &pattern(4_000, index)).expect("send");
            }
            let _ = a.close(LONG);
        });
        for index in 0..8 {
            if index == 4 {
                b.set_policy(None);
            }
            let message = b.recv(LONG).expect("link").expect("message");
            assert!(message.body == pattern(4_000, index), "{over:?}: {index}");
        }
        assert!(b.window().policy_decisions > 0, "{over:?} {congestion}");
        sender.join().expect("sender");
    }
}

/// What a sender counted that wrote to a receiver which takes one message a millisecond.
struct Written {
    /// Of many samples, 200 us apart: frames that wait at the receiver, or are on their way there.
    in_flight_mean: f64,
    paced_frames: u64,
    /// Sent again without a reason: not because of silence, nor by mistake.
    resent_frames: u64,
}

fn write_to_a_slow_receiver(over: Over, congestion: Congestion, pace: Pace) -> Written {
    const MESSAGES: u64 = 600;
    const FIRST: usize = 20;
    let options = Options {
        congestion,
        progress: ProgressBy::Program, // what the receiver takes is what waits for nobody
        ..Options::default()
    };
    let (mut a, mut b) = pair(over, &options);
    let receiver = thread::spawn(move || {
        // What comes before it knows the sender's session would be dropped, and sent again.
        b.send(A, CHANNEL, b"ready").expect("send");
        for _ in 0..FIRST {
            assert_eq!(b.recv(LONG).expect("link").expect("message").body, b"first");
        }
        for index in 0..MESSAGES {
            let message = b.recv(LONG).expect("link").expect("message");
            assert!(message.body == pattern(1_000, index), "{over:?}: {index}");
            thread::sleep(Duration::from_millis(1));
        }
        let counters = b.counters();
        let _ = b.close(LONG);
        counters
    });
    assert_eq!(a.recv(LONG).expect("link").expect("message").body, b"ready");
    a.set_pace(B, pace).expect("peer");
    // From then on the receiver looks once a millisecond: what a round trip takes where nothing waits must be known before. The shortest
    // of several is it, whatever else keeps the machine busy.
    for _ in 0..FIRST {
        a.send(B, CHANNEL, b"first").expect("send");
        assert!(a.flush(LONG).expect("link"));
    }
    let (mut in_flight_sum, mut samples) = (0, 0);
    for index in 0..MESSAGES {
        a.send(B, CHANNEL, &pattern(1_000, index)).expect("send");
    }
    while a.queue_length(B) > 0 {
        a.recv(Duration::from_micros(200)).expect("link");
        let flow = a.flow(B).expect("peer");
        in_flight_sum += flow.in_flight_frames;
        samples += 1;
    }
    let (here, flow) = (a.counters().engine, a.flow(B).expect("peer"));
    assert!(matches!(flow.pace, Pace::Free) == matches!(pace, Pace::Free));
    while !receiver.is_finished() {
        a.recv(Duration::from_millis(1)).expect("link");
    }
    let there = receiver.join().expect("receiver");

    let refused = there.engine.drops.get(tsumuji_proto::Drop::Memory)
        + there.engine.drops.get(tsumuji_proto::Drop::Gap);
    assert_eq!((refused, there.link.dropped_frames), (0, 0), "{over:?}");
    Written {
        in_flight_mean: in_flight_sum as f64 / f64::from(samples),
        paced_frames: flow.paced_frames,
        resent_frames: here
            .retransmitted_frames
            .saturating_sub(here.probes + here.spurious_losses),
    }
}

/// "Slow write": paced by the receiver's drain rate, two frames wait there on average, where without pacing as many do as it granted;
/// nothing is lost or sent again for a loss, over either link, under either congestion control.
#[test]
fn slow_write_follows_a_slow_receiver() {
    for (over, congestion) in PLAIN
        .into_iter()
        .flat_map(|over| Congestion::ALL.map(|congestion| (over, congestion)))
    {
        let free = write_to_a_slow_receiver(over, congestion, Pace::Free);
        let paced = write_to_a_slow_receiver(over, congestion, Pace::Drain);
        println!(
            "{over:?} {congestion}: {:.1} frames in flight, {:.1} when paced, {} of them held back",
            free.in_flight_mean, paced.in_flight_mean, paced.paced_frames
        );
        assert_eq!((free.paced_frames, free.resent_frames), (0, 0), "{over:?}");
        assert_eq!(paced.resent_frames, 0, "{over:?}");
        assert!(
            paced.paced_frames >= 100,
            "{over:?}: {}",
            paced.paced_frames
        );
        assert!(
            paced.in_flight_mean <= 3.0,
            "{over:?} {congestion}: {:.1}",
            paced.in_flight_mean
        );
        // Under suci frames wait at the sender until they are asked for: few are in flight in any case.
        assert!(
            congestion == Congestion::SUCI || paced.in_flight_mean * 2.0 <= free.in_flight_mean,
            "{over:?}: {:.1} of {:.1}",
            paced.in_flight_mean,
            free.in_flight_mean
        );
    }
}

/// Where a third of all frames are overtaken in shared memory, which by itself never does that: messages of all lengths go both ways at
/// once, whole and in order; under `suci`, what came too early is asked for again.
#[test]
fn overtaken_frames_of_shared_memory() {
    const SIZES: [usize; 7] = [0, 1, 1_400, 40_000, 300_000, 3, 1_000_000];
    for congestion in Congestion::ALL {
        let options = Options {
            congestion,
            ..Options::default()
        };
        let (a, b) = pair(Over::OvertakenShm(33), &options);
        // A node that leaves before the other's last acknowledgement has come may have it told of a loss: its frame was perhaps sent again, and
        // nobody answers the second.
        let all_sent = std::sync::Arc::new(std::sync::Barrier::new(2));
        let exchange = move |mut endpoint: tsumuji_node::Endpoint, peer| {
            for (index, size) in (0..).zip(SIZES) {
                endpoint
                    .send(peer, CHANNEL, &pattern(size, index))
                    .expect("send");
            }
            for (index, size) in (0..).zip(SIZES) {
                let message = endpoint.recv(LONG).expect("link").expect("message");
                assert!(
                    message.body == pattern(size, index),
                    "{congestion}: {index}"
                );
            }
            assert!(endpoint.flush(LONG).expect("flush"));
            all_sent.wait();
            let counters = endpoint.counters();
            let _ = endpoint.close(LONG);
            counters
        };
        let other = {
            let exchange = exchange.clone();
            thread::spawn(move || exchange(b, A))
        };
        for counters in [exchange(a, B), other.join().expect("other")] {
            let engine = counters.engine;
            let gaps = engine.drops.get(tsumuji_proto::Drop::Gap);
            let noticed = (gaps > 0, engine.nacks > 0);
            let dropped = congestion == Congestion::SUCI;
            assert_eq!(noticed, (dropped, dropped), "{congestion}: {engine:?}");
        }
    }
}

/// Sends a picture.
fn show(node: &mut Endpoint, payload: &[u8], deadline: Option<Duration>) {
    let picture = Datagram {
        channel_id: VIDEO,
        payload,
        ..Datagram::EMPTY
    };
    node.datagram(Destination::Peer(B), picture, deadline)
        .expect("link");
}

/// A stream of pictures of many frames: what comes is whole and in order, the last one comes, what waited too long does not.
#[test]
fn the_newest_picture_arrives() {
    for over in [Over::Shm, Over::Udp] {
        let options = Options {
            progress: ProgressBy::Program,
            ..Options::default()
        };
        let mut both = cluster(over, 2, &options).into_iter();
        let (mut a, mut b) = (both.next().expect("two"), both.next().expect("two"));
        // Nobody answers hello yet: all but the newest are replaced, and it is late.
        for index in 0..10 {
            let picture = pattern(300_000, index);
            show(&mut a, &picture, Some(Duration::from_micros(1)));
        }
        let flow = a.flow(B).expect("peer");
        assert_eq!(
            flow.superseded_datagrams + flow.late_datagrams,
            10 - flow.queued_messages as u64
        );
        let receiver = thread::spawn(move || {
            let mut last = 0;
            while last < 50 {
                let came = b.recv_datagram(None, LONG).expect("link").expect("one");
                assert_eq!((came.from, came.channel_id), (A, VIDEO));
                let index = u64::from(came.payload[0]) | u64::from(came.payload[1]) << 8;
                assert!(index > last, "{index} after {last}");
                assert!(came.payload[2..] == pattern(50_000, index));
                last = index;
            }
            let _ = b.close(LONG);
        });
        let mut index = 0_u64;
        while !receiver.is_finished() {
            index = (index + 1).min(60_000);
            let head = [index as u8, (index >> 8) as u8];
            let picture = [&head[..], &pattern(50_000, index)].concat();
            // Where those on their way fill the queue, this one is dropped before it began.
            show(&mut a, &picture, Some(LONG));
            a.progress().expect("link");
            thread::yield_now();
        }
        receiver.join().expect("receiver");
        let flow = a.flow(B).expect("peer");
        assert!(
            flow.superseded_datagrams + flow.late_datagrams >= 10,
            "{over:?}: {flow:?}"
        );
    }
}

/// Any node reads any other's flows, while that one's program only takes messages: as it would read them itself.
#[test]
fn flows_of_others_are_told() {
    for over in [Over::Shm, Over::LossyUdp(20)] {
        let mut all = cluster(over, 4, &Options::default()).into_iter();
        let mut me = all.next().expect("me");
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let up = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let others: Vec<_> = all
            .map(|mut other| {
                let (stop, up) = (stop.clone(), up.clone());
                thread::spawn(move || {
                    assert!(other.wait_up(LONG).expect("up").is_empty());
                    if other.me() == B {
                        other.send(NodeId(2), CHANNEL, &[7; 5_000]).expect("sent");
                        assert!(other.flush(LONG).expect("flush"));
                    }
                    up.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        other.recv(Duration::from_millis(5)).expect("link");
                    }
                    other.flow(NodeId(2))
                })
            })
            .collect();
        assert!(me.wait_up(LONG).expect("up").is_empty());
        let told = loop {
            let told = me
                .remote_flow(B, NodeId(2), LONG)
                .expect("a node")
                .expect("told");
            assert_eq!(told.peer, NodeId(2));
            if told.up && told.flow.rtt.as_nanos() > 0 && told.flow.queued_messages == 0 {
                break told;
            }
        };
        let all = me.remote_flows(B, LONG).expect("a node").expect("told");
        let ids: Vec<NodeId> = all.iter().map(|flow| flow.peer).collect();
        assert_eq!(ids, [A, NodeId(2), NodeId(3)]);
        let mine = me.remote_flows(A, LONG).expect("me").expect("told");
        assert_eq!(mine.len(), 3);
        assert_eq!(
            me.remote_flow(A, B, LONG)
                .expect("me")
                .map(|flow| flow.peer),
            Some(B)
        );
        for about in [B, NodeId(4), NodeId(u16::MAX)] {
            assert!(
                matches!(me.remote_flow(B, about, LONG), Err(SendError::UnknownPeer { peer }) if peer == about),
                "{about}"
            );
        }
        assert!(matches!(
            me.remote_flow(NodeId(9), B, LONG),
            Err(SendError::UnknownPeer { peer: NodeId(9) })
        ));
        // Nobody leaves while another one still waits for it.
        while up.load(std::sync::atomic::Ordering::Relaxed) < others.len() {
            me.recv(Duration::from_millis(1)).expect("link");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let theirs: Vec<_> = others
            .into_iter()
            .map(|other| {
                while !other.is_finished() {
                    me.recv(Duration::from_millis(1)).expect("link");
                }
                other.join().expect("other")
            })
            .collect();
        let theirs = theirs[0].expect("a flow of node 1 to 2");
        // It went on after it had told.
        assert!(told.flow.retransmitted_frames <= theirs.retransmitted_frames);
        assert!(
            matches!(
                me.remote_flow(B, NodeId(2), LONG),
                Err(SendError::PeerDead { peer: B })
            ),
            "it left"
        );
    }
}

/// A peer that asks for flows again and again does not keep a flush from ending; it gets its answers all the same.
#[test]
fn flushes_end_while_peers_ask() {
    for over in [Over::Shm, Over::Udp] {
        let (mut a, mut b) = pair(over, &Options::default());
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = std::sync::Arc::clone(&stop);
        let asker = thread::spawn(move || {
            assert!(b.wait_up(LONG).expect("up").is_empty());
            let mut answers = 0;
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                answers += usize::from(b.remote_flow(A, B, LONG).expect("a node").is_some());
                while b.try_recv().expect("link").is_some() {}
            }
            (b, answers)
        });
        assert!(a.wait_up(LONG).expect("up").is_empty());
        for number in 0..200 {
            a.send(B, CHANNEL, &[1; 100]).expect("send");
            assert!(a.flush(LONG).expect("flush"), "{over:?}: {number}");
            a.progress().expect("link");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        while !asker.is_finished() {
            a.progress().expect("link");
        }
        let (_b, answers) = asker.join().expect("asker");
        assert!(answers > 0, "{over:?}");
    }
}
