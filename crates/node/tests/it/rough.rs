//! All kinds of messages at once over shared memory, to a peer that is killed and comes back: as production has it, with frames that are lost, repeated
//! and overtaken, and the same beneath a seal.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::common::{LONG, TestKey, pattern};
use fastrand::Rng;
use tsumuji_link::shm::{Shm, ShmAttachError, ShmConfig, ShmJob};
use tsumuji_node::any_link::Base;
use tsumuji_node::{
    Channel, Datagram, Destination, Endpoint, ImpairConfig, Membership, NodeId, Options,
    ProgressBy, SealMode, Security, SendError, Tuning,
};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const CHANNEL: Channel = Channel::ordered(0);
/// So many messages may wait when the next is sent.
const WAITING_MAX: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Rings,
    Rough,
    SealedRough,
}

/// One run; what it was is printed if it fails.
struct Run {
    over: Over,
    seed: u64,
    job: OwnedFd,
    key: TestKey,
    begun: Instant,
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:?}, seed {}", self.over, self.seed);
        }
    }
}

impl Run {
    fn new(over: Over, seed: u64) -> Self {
        Self {
            over,
            seed,
            job: ShmJob::create(2, ShmConfig::for_nodes(2)).expect("job"),
            key: TestKey::new(),
            begun: Instant::now(),
        }
    }

    fn open(&self, id: NodeId) -> Endpoint {
        // A child that another test forks keeps the lock on a place until it executes another program.
        let link = loop {
            match Shm::attach(&self.job, id.0) {
                Err(ShmAttachError::Taken { .. }) => self.is_in_time(),
                attached => break attached.expect("attach"),
            }
        };
        let impair = (self.over != Over::Rings).then(|| ImpairConfig {
            loss: 0.07,
            duplicate: 0.05,
            reorder: 0.1,
            seed: self.seed << 8 | u64::from(id.0),
            ..ImpairConfig::default()
        });
        let security = match self.over {
            Over::SealedRough => self.key.sealed(SealMode::Encrypt),
            _ => Security::Open,
        };
        let link = security.open(Base::Shm(link), impair, None).expect("link");
        let options = Options {
            progress: ProgressBy::Program, // one thread plays both sides, so that no call may wait for the other
            send_queue_bytes: 64 << 20,
            tuning: Some(Tuning::default()), // by reference also where the kernel is slow at it
            ..Options::default()
        };
        Endpoint::new(link, Membership::local(id, 2), options).expect("endpoint")
    }

    fn is_in_time(&self) {
        assert!(self.begun.elapsed() < LONG, "stuck");
    }

    /// Takes what `b` has got: the messages of `life` from `next` on, in order, and datagrams that were sent.
    fn take(&self, b: &mut Endpoint, life: u64, next: &mut u64) {
        self.is_in_time();
        while let Some(message) = b.try_recv().expect("b") {
            let expected = self.message(life, *next);
            assert!(message.body == expected, "message {next} of life {life}");
            *next += 1;
            b.recycle(message);
        }
        while let Some(datagram) = b.recv_datagram(None, Duration::ZERO).expect("b") {
            let number = u64::from(datagram.lap);
            assert!(
                datagram.payload == pattern(1000, number),
                "datagram {number}"
            );
        }
    }

    /// Short, of one frame, of several, by reference where the link has rings, and too long for these.
    fn message(&self, life: u64, number: u64) -> Vec<u8> {
        let seed = self.seed << 32 | life << 16 | number;
        let longest = [20, 200, 5_000, 50_000, 200_000, 1_200_000];
        let mut rng = Rng::with_seed(seed);
        let kind = [0, 0, 1, 1, 2, 2, 3, 3, 4, 5][rng.usize(..10)];
        pattern(rng.usize(..longest[kind]), seed)
    }
}

/// Both are polled until both are up, and `a` knows that the earlier lives of `b` have ended.
fn meet(run: &Run, a: &mut Endpoint, b: &mut Endpoint, life: u64) {
    while !(a.is_up(B) && b.is_up(A) && a.ended_sessions(B) == life) {
        run.is_in_time();
        a.progress().expect("a");
        assert!(b.try_recv().expect("b").is_none(), "of an earlier life");
    }
}

/// Sends messages `0..count` of a life in all ways, while `b` takes them; returns how many were taken.
fn exchange(run: &Run, a: &mut Endpoint, b: &mut Endpoint, life: u64, count: u64) -> u64 {
    let mut rng = Rng::with_seed(run.seed + life);
    let (mut next, mut number) = (0, 0);
    while number < count {
        match rng.u32(..5) {
            0 => {
                let mut batch = a.batch();
                for _ in 0..rng.u64(1..8).min(count - number) {
                    let message = run.message(life, number);
                    batch.send_shared(B, CHANNEL, message.into()).expect("send");
                    number += 1;
                }
            }
            1 => {
                let message = run.message(life, number);
                a.try_send(B, CHANNEL, &message).expect("room");
                number += 1;
            }
            2 => {
                let datagram = Datagram {
                    channel_id: 3,
                    lap: number as u32,
                    key: number as u32 % 4,
                    payload: &pattern(1000, number),
                    ..Datagram::EMPTY
                };
                let to = Destination::Broadcast;
                a.datagram(to, datagram, None).expect("datagram");
            }
            _ => {
                let message = run.message(life, number);
                a.send_shared(B, CHANNEL, message.into()).expect("send");
                number += 1;
            }
        }
        // Only behind nothing else a message passes the queue.
        let most = [0, 0, WAITING_MAX][rng.usize(..3)];
        loop {
            a.progress().expect("a");
            run.take(b, life, &mut next);
            if a.queue_length(B) <= most {
                break;
            }
        }
    }
    next
}

fn messages_survive(over: Over, seed: u64) {
    const LIVES: u64 = 3;
    const MESSAGES: u64 = 120;
    let run = Run::new(over, seed);
    let mut a = run.open(A);
    for life in 0..LIVES {
        let mut b = run.open(B);
        meet(&run, &mut a, &mut b, life);
        // It hears of what its last life lost once.
        let mut told = 0;
        while let Err(error) = a.try_send(B, CHANNEL, b"") {
            let lost = matches!(error, SendError::MessagesLost { .. });
            assert!(lost && life > 0 && told == 0, "{error}");
            told += 1;
        }
        while b.try_recv().expect("b").is_none() {
            run.is_in_time();
            a.progress().expect("a");
        }
        let mut next = exchange(&run, &mut a, &mut b, life, MESSAGES);
        if life + 1 < LIVES {
            b.vanish();
            continue;
        }
        while next < MESSAGES || a.queue_length(B) > 0 {
            a.progress().expect("a");
            run.take(&mut b, life, &mut next);
        }
        assert_eq!((next, a.ended_sessions(B)), (MESSAGES, LIVES - 1));
    }
    let direct = a.counters().engine.direct_messages;
    let again = a.counters().engine.retransmitted_frames;
    println!("{over:?}, seed {seed}: {direct} passed the queue, {again} frames again");
    match over {
        Over::Rings => assert!(direct > 20, "{direct}"),
        Over::Rough | Over::SealedRough => assert!(direct == 0 && again > 0, "{direct}, {again}"),
    }
}

/// As in production: in rings, and read where they lie.
#[test]
fn messages_survive_in_rings() {
    (1..=3).for_each(|seed| messages_survive(Over::Rings, seed));
}

/// Where frames are lost, repeated and overtaken, no message goes past the impairment, and each arrives once and in order.
#[test]
fn messages_survive_faults() {
    (1..=2).for_each(|seed| messages_survive(Over::Rough, seed));
}

/// The same beneath a seal: a new process agrees on keys anew.
#[test]
fn messages_survive_faults_beneath_a_seal() {
    messages_survive(Over::SealedRough, 1);
}
