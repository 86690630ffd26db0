//! Steady traffic allocates nothing: neither per small message nor per fragment.

#[path = "../../link/tests/common/counting_alloc.rs"]
mod counting_alloc;

use tsumuji_proto::{
    Body, Borrowed, Channel, Config, Congestion, Datagram, Delivery, Destination, Duration, Engine,
    Instant, NodeId, Payload, Sink,
};

/// Counts messages, and gives assembled ones back for the pool.
#[derive(Default)]
struct Counter {
    messages: usize,
    bytes: usize,
    whole: Option<Vec<u8>>,
}

impl Sink for Counter {
    fn message(&mut self, delivery: Delivery<'_>) {
        self.messages += 1;
        self.bytes += delivery.body.bytes().len();
        if let Body::Whole(body) = delivery.body {
            self.whole = Some(std::mem::take(body));
        }
    }

    fn datagram(&mut self, _: u64, _share: Datagram<'_>) {}
}

struct Pair {
    engines: [Engine; 2],
    now: Instant,
    slot: Box<[u8]>,
}

impl Pair {
    fn new() -> Self {
        let now = Instant::from_nanos(0);
        let engines = [0, 1].map(|me| {
            let mut engine = Engine::new(Config {
                me: NodeId(me),
                incarnation: 1 + u32::from(me),
                frame_bytes: 4096,
                receive_frames: 256,
                lossless: false,
                ring_bytes: 0,
                congestion: Congestion::Credit,
                budget_bytes: 64 << 20,
                message_limit_bytes: 64 << 20,
                send_queue_bytes: 64 << 20,
                keep_alive: Duration::from_secs(1),
                dead_after: Duration::from_secs(10),
            });
            engine.add_peer(now, NodeId(1 - me));
            engine
        });
        let mut pair = Self {
            engines,
            now,
            slot: vec![0; 4096].into_boxed_slice(),
        };
        for _ in 0..10 {
            pair.poll_once(&mut Counter::default());
        }
        assert!(pair.engines[0].is_up(NodeId(1)) && pair.engines[1].is_up(NodeId(0)));
        pair
    }

    /// Each engine writes all it may; the other takes it.
    fn poll_once(&mut self, counter: &mut Counter) {
        self.now += Duration::from_micros(100);
        for from in 0..2 {
            self.engines[from].handle_timeout(self.now);
            while let Some(to) = self.engines[from].next_destination(self.now) {
                assert_eq!(to, Destination::Peer(NodeId(1 - from as u16)));
                self.engines[from].plan(self.now, to, &Borrowed::NONE, (1, usize::MAX));
                let (head, body) = self.engines[from].batch(&Borrowed::NONE).next().unwrap();
                let bytes = head.len() + body.len();
                self.slot[..head.len()].copy_from_slice(head);
                self.slot[head.len()..bytes].copy_from_slice(body);
                let receiver = &mut self.engines[1 - from];
                let before = (counter.messages, counter.bytes);
                receiver.handle_frame(self.now, &self.slot[..bytes], counter);
                let (messages, bytes) = (counter.messages - before.0, counter.bytes - before.1);
                receiver.release_all(NodeId(from as u16), messages, bytes);
                if let Some(body) = counter.whole.take() {
                    receiver.recycle(body);
                }
            }
            while self.engines[from].poll_event().is_some() {}
        }
    }

    fn send(&mut self, message: &[u8]) {
        let payload = Payload::Copied(message, &[]);
        self.engines[0]
            .submit(NodeId(1), Channel::ordered(0), payload, false)
            .unwrap();
    }
}

fn allocations_of(rounds: usize, message: &[u8], per_round: usize) -> u64 {
    let mut pair = Pair::new();
    let mut counter = Counter::default();
    for _ in 0..20 {
        (0..per_round).for_each(|_| pair.send(message));
        (0..20).for_each(|_| pair.poll_once(&mut counter));
    }
    let warm = counter.messages;
    assert_eq!(warm, 20 * per_round);
    let before = counting_alloc::allocations();
    for _ in 0..rounds {
        (0..per_round).for_each(|_| pair.send(message));
        (0..20).for_each(|_| pair.poll_once(&mut counter));
    }
    let after = counting_alloc::allocations();
    assert_eq!(counter.messages - warm, rounds * per_round);
    assert_eq!(pair.engines[1].accounts().memory_bytes, 0);
    after - before
}

/// Small messages, in a frame of their own and several in one.
#[test]
fn small_messages_allocate_nothing() {
    assert_eq!(allocations_of(500, b"8 bytes!", 1), 0);
    assert_eq!(allocations_of(500, b"8 bytes!", 10), 0);
}

/// A megabyte is some 260 frames.
#[test]
fn fragments_allocate_nothing() {
    assert_eq!(allocations_of(20, &vec![7; 1 << 20], 1), 0);
}
