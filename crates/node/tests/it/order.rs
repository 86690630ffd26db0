//! Messages of an ordered channel arrive in order, by whichever calls a program receives, and however it mixes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{ALL, LONG, Over, cluster};
use fastrand::Rng;
use tsumuji_node::{Channel, Context, Delivery, Endpoint, Handler, NodeId, Options};

const RECEIVER: NodeId = NodeId(0);
const CHANNELS: [Channel; 2] = [Channel::ordered(0), Channel::ordered(3)];
const MESSAGES: u32 = 4000;

/// Knows what must come next, from each sender on each channel.
#[derive(Debug)]
struct Oracle {
    /// By sender, then channel.
    next: Vec<[u32; CHANNELS.len()]>,
    taken: u32,
    story: String,
}

impl Oracle {
    fn new(nodes: u16, story: String) -> Self {
        Self {
            next: vec![[0; CHANNELS.len()]; nodes.into()],
            taken: 0,
            story,
        }
    }

    fn take(&mut self, from: NodeId, channel: Channel, body: &[u8]) {
        let place = CHANNELS.iter().position(|known| *known == channel);
        let next = &mut self.next[usize::from(from.0)][place.expect("a channel of the test")];
        let number = u32::from_le_bytes(body[..4].try_into().expect("numbered"));
        assert_eq!(number, *next, "from {from} on {channel:?}: {}", self.story);
        *next += 1;
        self.taken += 1;
    }
}

impl Handler for Oracle {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        let Delivery {
            from,
            channel,
            body,
            ..
        } = delivery;
        self.take(from, channel, body.bytes());
    }
}

/// One step of a program that receives, of every public kind.
fn receive(node: &mut Endpoint, oracle: &mut Oracle, rng: &mut Rng) {
    let short = Duration::from_micros(rng.u64(0..50));
    match rng.u32(0..9) {
        0 | 1 => drop(node.poll(oracle).expect("poll")),
        2 => drop(node.poll_wait(oracle, short).expect("poll_wait")),
        3 => {
            for _ in 0..rng.u32(1..100) {
                node.progress().expect("progress");
            }
        }
        4 => drop(node.ready(short).expect("ready")),
        5 => {
            for _ in 0..rng.u32(1..200) {
                let Some(message) = node.try_recv().expect("try_recv") else {
                    break;
                };
                oracle.take(message.from, message.channel, &message.body);
                node.recycle(message);
            }
        }
        6 => {
            if let Some(message) = node.recv(short).expect("recv") {
                oracle.take(message.from, message.channel, &message.body);
            }
        }
        7 => drop(node.flush(short).expect("flush")),
        _ => node.send(NodeId(1), CHANNELS[0], b"aside").expect("send"),
    }
}

fn send_all(node: &mut Endpoint, seed: u64, done: &AtomicBool) {
    let mut rng = Rng::with_seed(seed);
    let mut message = vec![0; 6000];
    for number in 0..MESSAGES {
        message[..4].copy_from_slice(&number.to_le_bytes());
        let bytes = if rng.u32(0..50) == 0 {
            6000
        } else {
            rng.usize(4..200)
        };
        for channel in CHANNELS {
            node.send(RECEIVER, channel, &message[..bytes])
                .expect("send");
        }
        while node.try_recv().expect("try_recv").is_some() {}
    }
    while !done.load(Ordering::Acquire) {
        drop(node.recv(Duration::from_micros(100)).expect("recv"));
    }
}

/// Two senders, and a receiver that mixes poll, poll_wait, progress, ready, recv, flush and send.
#[test]
fn order_survives_every_way_to_receive() {
    let seed: u64 = std::env::var("TSUMUJI_SEED").map_or(5, |text| text.parse().expect("a number"));
    for (over, seed) in ALL.into_iter().zip(seed..) {
        mixed(over, seed);
    }
}

fn mixed(over: Over, seed: u64) {
    let mut nodes = cluster(over, 3, &Options::default()).into_iter();
    let mut receiver = nodes.next().expect("three");
    let done = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = nodes
        .map(|mut node| {
            let done = Arc::clone(&done);
            thread::spawn(move || send_all(&mut node, seed, &done))
        })
        .collect();
    let mut oracle = Oracle::new(3, format!("over {over:?}, TSUMUJI_SEED={seed}"));
    let mut rng = Rng::with_seed(seed);
    let start = std::time::Instant::now();
    while oracle.taken < 2 * 2 * MESSAGES {
        receive(&mut receiver, &mut oracle, &mut rng);
        assert!(
            start.elapsed() < LONG,
            "{} came: {}",
            oracle.taken,
            oracle.story
        );
    }
    done.store(true, Ordering::Release);
    for sender in senders {
        sender.join().expect("sender");
    }
}

/// What waits when a program at last polls is handed over in order, also while more comes: the peer sends on meanwhile.
#[test]
fn order_survives_a_poll_after_progress() {
    for over in [Over::Shm, Over::Udp] {
        let mut nodes = cluster(over, 2, &Options::default()).into_iter();
        let mut receiver = nodes.next().expect("two");
        let mut sender = nodes.next().expect("two");
        let done = Arc::new(AtomicBool::new(false));
        let there = {
            let done = Arc::clone(&done);
            thread::spawn(move || send_all(&mut sender, 1, &done))
        };
        let mut oracle = Oracle::new(2, format!("over {over:?}"));
        while oracle.taken < 2 * MESSAGES {
            for _ in 0..500 {
                receiver.progress().expect("progress");
            }
            receiver.poll(&mut oracle).expect("poll");
        }
        done.store(true, Ordering::Release);
        there.join().expect("sender");
    }
}
