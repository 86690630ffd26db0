//! Two endpoints in one process while others want its cores: what one thread does with both, and what two threads do with one each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crate::common::{LONG, Over, PLAIN, pair, pattern};
use tsumuji_node::{Channel, Endpoint, NodeId, Options};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const CHANNEL: Channel = Channel::ordered(0);

/// Threads that compute, as many as there are cores.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn begin() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = thread::available_parallelism().map_or(2, usize::from);
        let threads = (0..cores).map(|_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        });
        Self {
            threads: threads.collect(),
            stop,
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("it computes");
        }
    }
}

fn bytes_of(round: u64) -> usize {
    [8, 1_000, 20_000, 200_000][round as usize % 4]
}

fn receive(endpoint: &mut Endpoint, round: u64, over: Over) {
    let message = endpoint.recv(LONG).expect("link").expect("it was sent");
    let sent = pattern(bytes_of(round), round);
    assert!(message.body == sent, "{over:?}: message {round}");
}

/// One thread serves both ends: what it sends by one is taken by the other while it does not look at it.
#[test]
fn one_thread_serves_both_under_load() {
    const ROUNDS: u64 = 200;
    for over in PLAIN {
        let _load = Load::begin();
        let (mut a, mut b) = pair(over, &Options::default());
        assert!(a.wait_up(LONG).expect("up").is_empty());
        assert!(b.wait_up(LONG).expect("up").is_empty());
        for first in (0..ROUNDS).step_by(8) {
            for round in first..first + 8 {
                let message = pattern(bytes_of(round), round);
                a.send(B, CHANNEL, &message).expect("send");
                b.send(A, CHANNEL, &message).expect("send");
            }
            for round in first..first + 8 {
                receive(&mut b, round, over);
                receive(&mut a, round, over);
            }
        }
        assert!(a.flush(LONG).expect("flush") && b.flush(LONG).expect("flush"));
    }
}

/// Two threads have one each, and stream both ways at once.
#[test]
fn two_threads_stream_under_load() {
    const ROUNDS: u64 = 400;
    const AHEAD: u64 = 16;
    for over in PLAIN {
        let _load = Load::begin();
        let (a, b) = pair(over, &Options::default());
        let stream = move |mut endpoint: Endpoint, to| {
            for round in 0..ROUNDS + AHEAD {
                if round < ROUNDS {
                    let message = pattern(bytes_of(round), round);
                    endpoint.send(to, CHANNEL, &message).expect("send");
                }
                if let Some(earlier) = round.checked_sub(AHEAD) {
                    receive(&mut endpoint, earlier, over);
                }
            }
            assert!(endpoint.flush(LONG).expect("flush"));
            endpoint
        };
        let other = thread::spawn(move || stream(b, A));
        let _a = stream(a, B);
        let _b = other.join().expect("no panic");
    }
}
