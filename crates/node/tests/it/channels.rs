//! Channels with owners: budgets that hold up no other channel, handlers that answer, messages that are retained, and other threads.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{ALL, LONG, Over, PLAIN, cluster, pair, pattern};
use fastrand::Rng;
use tsumuji_node::{
    Bytes, Channel, ChannelOptions, Context, Delivery, DeliveryClass, Endpoint, EndpointError,
    Handler, IdlePolicy, NodeId, Options, Priority, ProgressBy, Retained, SendError,
};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const OWNED: Channel = Channel::ordered(7);
const PLAIN_CHANNEL: Channel = Channel::ordered(0);
const BOTH: [ProgressBy; 2] = [ProgressBy::Assistant, ProgressBy::Program];

fn progress_by(progress: ProgressBy) -> Options {
    Options {
        progress,
        ..Options::default()
    }
}

fn budget(budget_bytes: usize) -> ChannelOptions {
    ChannelOptions {
        budget_bytes,
        ..ChannelOptions::default()
    }
}

fn number(body: &[u8]) -> u32 {
    u32::from_le_bytes(body[..4].try_into().expect("numbered"))
}

/// Hears that a refused send may be tried again.
#[derive(Default)]
struct Writable(Vec<(NodeId, u16)>);

impl Handler for Writable {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        panic!("{} bytes for nobody", delivery.body.bytes().len());
    }
    fn writable(&mut self, peer: NodeId, channel_id: u16) {
        self.0.push((peer, channel_id));
    }
}

/// A channel that nobody reads stops its senders, near its budget, and holds up neither other channels nor the way back. When it is read,
/// all of it is there in order, and the sender hears of it.
#[test]
fn an_unread_channel_holds_up_no_other() {
    const BUDGET: usize = 256 << 10;
    const BYTES: usize = 1000;
    for (over, progress) in ALL.into_iter().flat_map(|over| BOTH.map(|by| (over, by))) {
        let options = Options {
            // Far less than is sent: if the unread channel were charged to it, all would stop.
            budget_bytes: 16 << 20,
            ..progress_by(progress)
        };
        let (mut a, mut b) = pair(over, &options);
        b.open(7, budget(BUDGET)).expect("open");
        let begun = Instant::now();
        let mut sent = 0_u32;
        while !a.is_stopped(B, 7) {
            let mut message = pattern(BYTES, sent.into());
            message[..4].copy_from_slice(&sent.to_le_bytes());
            match a.try_send(B, OWNED, &message) {
                Ok(()) => sent += 1,
                Err(SendError::WouldBlock { .. }) => drop(a.progress().expect("a")),
                Err(error) => panic!("{error}"),
            }
            b.progress().expect("b");
            assert!(
                begun.elapsed() < LONG,
                "nobody stopped the sender, {sent} over {over:?}"
            );
        }
        assert!(matches!(
            a.try_send(B, OWNED, b"more"),
            Err(SendError::WouldBlock { .. })
        ));
        for round in 0..200_u32 {
            a.send(B, PLAIN_CHANNEL, &round.to_le_bytes())
                .expect("send");
            let there = loop {
                a.progress().expect("a");
                if let Some(message) = b.try_recv().expect("b") {
                    break message;
                }
                assert!(begun.elapsed() < LONG, "round {round} over {over:?}");
            };
            assert_eq!(number(&there.body), round);
            b.send(A, OWNED, &round.to_le_bytes()).expect("send");
            while a.ready(Duration::from_micros(100)).expect("a").is_none() {
                b.progress().expect("b");
                assert!(begun.elapsed() < LONG, "back {round} over {over:?}");
            }
            assert_eq!(number(&a.try_recv().expect("a").expect("it").body), round);
        }
        let state = b.channel(7).expect("open");
        assert_eq!((state.stopped_peers, state.budget_bytes), (1, BUDGET));
        let most = BUDGET + 2 * options.send_queue_bytes + options.budget_bytes;
        assert!(
            state.used_bytes > BUDGET / 2 && state.used_bytes < most,
            "{state:?}"
        );
        for expected in 0..sent {
            let message = loop {
                a.progress().expect("a");
                let short = Duration::from_micros(100);
                if let Some(message) = b.recv_on(7, None, short).expect("b") {
                    break message;
                }
                assert!(begun.elapsed() < LONG, "{expected} of {sent} over {over:?}");
            };
            assert_eq!(number(&message.body), expected);
            assert_eq!(message.body[4..], pattern(BYTES, expected.into())[4..]);
            b.recycle(message);
        }
        let mut writable = Writable::default();
        while writable.0.is_empty() {
            a.poll(&mut writable).expect("a");
            b.progress().expect("b");
            assert!(begun.elapsed() < LONG, "nobody says that it goes on");
        }
        assert_eq!(writable.0, [(B, 7)]);
        assert!(!a.is_stopped(B, 7));
        a.send(B, OWNED, &sent.to_le_bytes()).expect("send");
    }
}

/// Answers with what it got, and counts what it retained.
struct Echo {
    retained: mpsc::Sender<Retained>,
}

impl Handler for Echo {
    fn message(&mut self, context: &mut Context<'_>, delivery: Delivery<'_>) {
        let (number, channel) = (number(delivery.body.bytes()), delivery.channel);
        context.reply(delivery.body.bytes()).expect("room");
        if number.is_multiple_of(3) {
            let retained = context.retain(delivery);
            assert_eq!((retained.from(), retained.channel()), (A, channel));
            let _ = self.retained.send(retained);
        }
    }
}

/// A channel's handler answers while its program computes, whatever the lengths, and what it keeps stays whole until another thread lets
/// it go.
#[test]
fn handlers_answer_while_the_program_computes() {
    for over in ALL {
        let (mut a, mut b) = pair(over, &Options::default());
        let (retained, keeps) = mpsc::channel::<Retained>();
        b.open_with(7, ChannelOptions::default(), Echo { retained })
            .expect("open");
        let (done, is_done) = mpsc::channel::<()>();
        let computes = thread::spawn(move || {
            is_done.recv_timeout(LONG).expect("the other side ends"); // no call meanwhile
            b
        });
        let takes = thread::spawn(move || {
            let mut all = 0_usize;
            let mut waiting = Vec::new();
            for retained in keeps {
                let number = number(&retained);
                assert_eq!(retained[4..], pattern(retained.len(), number.into())[4..]);
                all += 1;
                waiting.push(retained);
                if waiting.len() > 4 {
                    waiting.clear();
                }
            }
            all
        });
        const COUNT: u32 = 300;
        for number in 0..COUNT {
            let bytes = [8, 700, 5000, 60_000][number as usize % 4];
            let mut message = pattern(bytes, number.into());
            message[..4].copy_from_slice(&number.to_le_bytes());
            a.send(B, OWNED, &message).expect("send");
            if number % 10 == 9 {
                for expected in number - 9..=number {
                    let got = a.recv_from(B, LONG).expect("a").expect("an answer");
                    assert_eq!(
                        u32::from_le_bytes(got.body[..4].try_into().expect("4")),
                        expected
                    );
                    a.recycle(got);
                }
            }
        }
        done.send(()).expect("it computes");
        let mut b = computes.join().expect("b");
        assert_eq!(b.close_channel(7).expect("open"), 0); // and the handler is dropped
        assert_eq!(takes.join().expect("takes"), COUNT.div_ceil(3) as usize);
    }
}

const CHANNELS: [u16; 4] = [0, 3, 7, 500];

/// What each channel of each sender should bring next.
struct Oracle {
    next: Vec<Vec<u32>>,
    taken: usize,
    story: String,
}

impl Oracle {
    fn take(&mut self, from: NodeId, channel: Channel, body: &[u8]) {
        let place = CHANNELS.iter().position(|known| *known == channel.id());
        let urgent = usize::from(channel.priority() == Priority::URGENT);
        let next = &mut self.next[usize::from(from.0)][2 * place.expect("a channel") + urgent];
        assert_eq!(
            number(body),
            *next,
            "from {from} on {channel:?}: {}",
            self.story
        );
        *next += 1;
        self.taken += 1;
    }
}

impl Handler for Oracle {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        self.take(delivery.from, delivery.channel, delivery.body.bytes());
    }
}

/// One step of a program that receives, of every public kind.
fn receive(node: &mut Endpoint, oracle: &mut Oracle, retained: &mut Vec<Retained>, rng: &mut Rng) {
    let short = Duration::from_micros(rng.u64(0..50));
    let opened: Vec<u16> = (CHANNELS.into_iter())
        .filter(|channel_id| node.channel(*channel_id).is_some())
        .collect();
    let on = rng.choice(&opened).copied();
    let from = rng.bool().then(|| NodeId(rng.u16(0..3)));
    match (rng.u32(0..8), on) {
        (0, _) => drop(node.poll(oracle).expect("poll")),
        (1, Some(on)) => drop(node.poll_on(on, oracle).expect("poll_on")),
        (2, Some(on)) => drop(node.poll_on_wait(on, oracle, short).expect("poll_on_wait")),
        (3, Some(on)) => {
            while let Some(message) = node.recv_on(on, from, short).expect("recv_on") {
                oracle.take(message.from, message.channel, &message.body);
                node.recycle(message);
            }
        }
        (4, on) => {
            if let Some(message) = node.recv_retained(on, from, short).expect("recv_retained") {
                oracle.take(message.from(), message.channel(), &message);
                retained.push(message);
            }
            if rng.u32(..4) == 0 {
                retained.clear();
            }
        }
        (5, _) => drop(node.progress().expect("progress")),
        (6, _) => {
            if let Some(message) = node.recv_from(NodeId(rng.u16(1..3)), short).expect("recv") {
                oracle.take(message.from, message.channel, &message.body);
            }
        }
        _ => drop(node.poll_wait(oracle, short).expect("poll_wait")),
    }
}

/// However a program takes what comes, and whatever channels it opens and has open, each channel's messages come once and in order.
#[test]
fn every_way_to_take_keeps_the_order() {
    let seed = std::env::var("TSUMUJI_SEED").map_or(1, |text| text.parse().expect("a number"));
    for (round, over) in ALL.into_iter().cycle().take(12).enumerate() {
        let mut rng = Rng::with_seed(seed + round as u64);
        let options = progress_by(BOTH[round / 4 % 2]);
        let mut nodes = cluster(over, 3, &options).into_iter();
        let mut receiver = nodes.next().expect("three");
        let senders: Vec<_> = nodes
            .map(|mut node| {
                let mut rng = rng.fork();
                thread::spawn(move || {
                    let mut next = [[0_u32; 2]; CHANNELS.len()];
                    for _ in 0..2000 {
                        let (place, urgent) = (rng.usize(..CHANNELS.len()), rng.usize(..2));
                        let priority = [Priority::NORMAL, Priority::URGENT][urgent];
                        let channel =
                            Channel::new(DeliveryClass::Ordered, priority, CHANNELS[place]);
                        let mut message = next[place][urgent].to_le_bytes().to_vec();
                        next[place][urgent] += 1;
                        message.resize([4, 30, 3000, 9000][rng.usize(..4)], 1);
                        node.send(A, channel, &message).expect("send");
                    }
                    while !node.flush(Duration::from_millis(10)).expect("flush") {}
                    node
                })
            })
            .collect();
        let mut oracle = Oracle {
            next: vec![vec![0; 2 * CHANNELS.len()]; 3],
            taken: 0,
            story: format!("round {round} over {over:?}, seed {seed}"),
        };
        let (mut retained, begun) = (Vec::new(), Instant::now());
        while oracle.taken < 4000 {
            if rng.u32(..200) == 0 {
                let channel_id = CHANNELS[rng.usize(1..CHANNELS.len())];
                let size = 1 << rng.u32(10..20);
                if receiver.channel(channel_id).is_none() {
                    receiver.open(channel_id, budget(size)).expect("not open");
                } else {
                    receiver.set_channel_budget(channel_id, size).expect("open");
                }
            }
            receive(&mut receiver, &mut oracle, &mut retained, &mut rng);
            assert!(
                begun.elapsed() < LONG,
                "{}: {} came",
                oracle.story,
                oracle.taken
            );
        }
        retained.clear();
        while senders.iter().any(|sender| !sender.is_finished()) {
            receiver.progress().expect("progress");
        }
        senders
            .into_iter()
            .for_each(|sender| drop(sender.join().expect("sender")));
        receiver.progress().expect("progress");
        for channel_id in CHANNELS {
            let state = receiver.channel(channel_id).unwrap_or_default();
            assert_eq!(
                (state.messages, state.used_bytes),
                (0, 0),
                "{}",
                oracle.story
            );
        }
    }
}

/// Threads send beside the program, each in its order, also while the program sleeps in a call or computes.
#[test]
fn threads_send_beside_the_program() {
    const EACH: u32 = 500;
    for (over, progress) in ALL.into_iter().flat_map(|over| BOTH.map(|by| (over, by))) {
        let options = Options {
            idle: IdlePolicy::Sleep,
            ..progress_by(progress)
        };
        let (mut a, mut b) = pair(over, &options);
        let sender = a.sender();
        let threads: Vec<_> = (1..=4_u16)
            .map(|channel_id| {
                let sender = sender.clone();
                thread::spawn(move || {
                    for number in 0..EACH {
                        let mut message = number.to_le_bytes().to_vec();
                        message.resize([4, 5000][number as usize % 2], 0);
                        let channel = Channel::ordered(channel_id);
                        sender.send(B, channel, message, LONG).expect("send");
                    }
                })
            })
            .collect();
        let program = thread::spawn(move || {
            // It sleeps in a call until the last answer, or does nothing at all.
            if progress == ProgressBy::Program {
                assert!(a.recv(LONG).expect("a").is_some());
            }
            a
        });
        let mut next = [0; 5];
        for _ in 0..4 * EACH {
            let message = b.recv(LONG).expect("b").expect("a message in time");
            let expected = &mut next[usize::from(message.channel.id())];
            assert_eq!(number(&message.body), *expected, "over {over:?}");
            *expected += 1;
        }
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("thread"));
        b.send(A, PLAIN_CHANNEL, b"done").expect("send");
        while !program.is_finished() {
            b.recv(Duration::from_millis(1)).expect("b"); // and repairs what gets lost
        }
        drop(program.join().expect("program"));
        let closed = sender.send(B, PLAIN_CHANNEL, vec![], LONG);
        assert!(matches!(closed, Err(SendError::Closed)), "{closed:?}");
    }
}

/// A waker ends a wait at once, however the endpoint waits, and one that nobody waits for ends the next.
#[test]
fn wakers_end_waits() {
    for over in PLAIN {
        for (idle, progress) in [IdlePolicy::Sleep, IdlePolicy::Adaptive, IdlePolicy::Spin]
            .into_iter()
            .flat_map(|idle| BOTH.map(|by| (idle, by)))
        {
            let options = Options {
                idle,
                ..progress_by(progress)
            };
            let (mut a, b) = pair(over, &options);
            let waker = a.waker();
            for _ in 0..20 {
                let waker = waker.clone();
                let wakes = thread::spawn(move || {
                    thread::sleep(Duration::from_millis(3));
                    waker.wake();
                });
                assert!(a.recv(LONG).expect("a").is_none());
                wakes.join().expect("thread");
            }
            waker.wake();
            let begun = Instant::now();
            a.poll(&mut Writable::default()).expect("notices");
            a.poll_wait(&mut Writable::default(), LONG).expect("a");
            assert!(begun.elapsed() < LONG / 2);
            drop(b);
        }
    }
}

/// A program that sleeps on its descriptor in a loop of its own wakes up to what other threads want.
#[test]
fn descriptors_wake_for_other_threads() {
    use rustix::event::{PollFd, PollFlags, Timespec};
    for (over, progress) in PLAIN.into_iter().flat_map(|over| BOTH.map(|by| (over, by))) {
        let (mut a, mut b) = pair(over, &progress_by(progress));
        let both = [a.wait_up(Duration::ZERO), b.wait_up(Duration::ZERO)];
        drop(both);
        let sender = a.sender();
        let there = thread::spawn(move || {
            let got = b.recv(LONG).expect("b").expect("a message");
            b.send(A, PLAIN_CHANNEL, &got.body).expect("send");
            b.flush(LONG).expect("flush");
        });
        let sends = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            sender.send(B, PLAIN_CHANNEL, b"hello".to_vec(), LONG)
        });
        let begun = Instant::now();
        let echo = loop {
            if let Some(echo) = a.try_recv().expect("a") {
                break echo;
            }
            if a.arm_fd().expect("a") {
                let most = a.until_timer().unwrap_or(LONG).min(LONG);
                let most = Timespec {
                    tv_sec: most.as_secs() as i64,
                    tv_nsec: most.subsec_nanos().into(),
                };
                let mut fds = [PollFd::from_borrowed_fd(a.fd().expect("fd"), PollFlags::IN)];
                rustix::event::poll(&mut fds, Some(&most)).expect("poll");
            }
            assert!(begun.elapsed() < LONG, "over {over:?} by {progress:?}");
        };
        assert_eq!(echo.body, b"hello");
        sends.join().expect("thread").expect("send");
        a.close(LONG).expect("close");
        there.join().expect("there");
    }
}

/// One block goes to all peers without a copy, and what is retained of a message goes on to another; each owner has its memory back when the
/// last has it.
#[test]
fn memory_is_shared_until_it_has_arrived() {
    struct Owner(Vec<u8>, mpsc::Sender<usize>);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Owner {
        fn drop(&mut self) {
            let _ = self.1.send(self.0.len());
        }
    }
    for over in ALL {
        let mut nodes = cluster(over, 3, &Options::default()).into_iter();
        let (mut a, mut b) = (nodes.next().expect("a"), nodes.next().expect("b"));
        let c = nodes.next().expect("c");
        let sizes = [0, 100, 4096, 50_000, 1_000_000];
        let (back, is_back) = mpsc::channel();
        let last = thread::spawn(move || {
            let mut c = c;
            for size in sizes {
                let direct = c.recv_from(A, LONG).expect("c").expect("of a");
                let relayed = c.recv_from(B, LONG).expect("c").expect("of b");
                let expected = pattern(size, size as u64);
                assert!(direct.body == expected && relayed.body == expected);
            }
            c
        });
        let relay = thread::spawn(move || {
            for _ in sizes {
                let retained = b.recv_retained(None, None, LONG).expect("b").expect("of a");
                let message = Bytes::from_owner(retained);
                b.send_shared(NodeId(2), PLAIN_CHANNEL, message)
                    .expect("send");
            }
            assert!(b.flush(LONG).expect("flush"));
            b
        });
        for size in sizes {
            let owner = Owner(pattern(size, size as u64), back.clone());
            let message = Bytes::from_owner(owner);
            a.send_shared(B, PLAIN_CHANNEL, message.clone())
                .expect("send");
            let id = a
                .send_shared_tracked(NodeId(2), PLAIN_CHANNEL, message)
                .expect("send");
            assert!(a.wait_sent(NodeId(2), id, LONG).expect("c lives"));
        }
        let mut returned: Vec<usize> = (sizes.iter())
            .map(|_| is_back.recv_timeout(LONG).expect("back"))
            .collect();
        returned.sort_unstable();
        assert_eq!(returned, sizes, "over {over:?}");
        drop((relay.join().expect("b"), last.join().expect("c")));
    }
}

/// What is asked of a channel that is not open, or has a handler, is refused and changes nothing.
#[test]
fn channels_that_are_not_open_are_refused() {
    let (mut a, _b) = pair(Over::Shm, &Options::default());
    let none = a.recv_on(7, None, Duration::ZERO);
    assert!(matches!(none, Err(EndpointError::Channel(_))), "{none:?}");
    let none = a.poll_on(7, &mut Writable::default());
    assert!(matches!(none, Err(EndpointError::Channel(_))), "{none:?}");
    a.open_with(7, ChannelOptions::default(), Writable::default())
        .expect("open");
    let none = a.recv_retained(Some(7), None, Duration::ZERO);
    assert!(matches!(none, Err(EndpointError::Channel(_))), "{none:?}");
    let reserved = a.send(B, Channel::ordered(Channel::LIBRARY_IDS), b"");
    assert!(matches!(reserved, Err(SendError::ReservedChannel { .. })));
    a.open(Channel::LIBRARY_IDS, ChannelOptions::default())
        .expect("open");
    a.send(B, Channel::ordered(Channel::LIBRARY_IDS), b"")
        .expect("its owner may");
    let own = a.send(B, Channel::ordered(Channel::CONTROL_ID), b"");
    assert!(matches!(own, Err(SendError::ReservedChannel { .. })));
}
