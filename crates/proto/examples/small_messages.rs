//! Sends small reliable messages between two engines and nothing else, to be run under an instruction counter:
//! `scripts/instructions.py` runs it twice and divides the difference.
//!
//! `cargo run --release -p tsumuji-proto --example small_messages -- 1000`

use tsumuji_proto::{
    Config, Congestion, Delivery, Destination, Duration, Engine, Instant, Lane, NodeId, Payload,
    Share, Sink,
};

/// Releases what it is given.
#[derive(Default)]
struct Counter {
    messages: u64,
}

impl Sink for Counter {
    fn message(&mut self, delivery: Delivery<'_>) {
        self.messages += 1;
        std::hint::black_box(delivery.body.bytes());
    }

    fn share(&mut self, _share: Share<'_>) {}
}

fn engine(me: u16, now: Instant) -> Engine {
    let mut engine = Engine::new(Config {
        me: NodeId(me),
        incarnation: 1 + u32::from(me),
        seed: 1,
        frame_bytes: 4096,
        receive_frames: 256,
        lossless: false,
        congestion: Congestion::Credit,
        budget_bytes: 64 << 20,
        message_limit_bytes: 64 << 20,
        send_queue_bytes: 64 << 20,
        keep_alive: Duration::from_secs(1),
        dead_after: Duration::from_secs(10),
    });
    engine.add_peer(now, NodeId(1 - me));
    engine
}

/// Moves every frame that `from` may write to `to`.
fn exchange(
    now: Instant,
    from: &mut Engine,
    to: &mut Engine,
    slot: &mut [u8],
    counter: &mut Counter,
) {
    while let Some(destination) = from.next_destination(now) {
        let bytes = from.write_frame(now, destination, slot);
        to.handle_frame(now, &slot[..bytes], counter);
        let Destination::Peer(peer) = destination else {
            continue;
        };
        to.release(NodeId(1 - peer.0), 8);
    }
}

/// One message and whatever frames it causes.
fn send(
    now: Instant,
    from: &mut Engine,
    to: &mut Engine,
    id: NodeId,
    slot: &mut [u8],
    counter: &mut Counter,
) {
    from.submit(
        now,
        id,
        Lane::ordered(0),
        Payload::Copied(b"8 bytes!"),
        false,
    )
    .expect("there is room");
    exchange(now, from, to, slot, counter);
}

fn main() {
    let round_trips: u64 = std::env::args()
        .nth(1)
        .and_then(|count| count.parse().ok())
        .unwrap_or(1000);
    let mut now = Instant::from_nanos(0);
    let (mut a, mut b) = (engine(0, now), engine(1, now));
    let mut slot = vec![0; 4096];
    let mut counter = Counter::default();
    for _ in 0..4 {
        exchange(now, &mut a, &mut b, &mut slot, &mut counter);
        exchange(now, &mut b, &mut a, &mut slot, &mut counter);
    }
    for _ in 0..round_trips {
        now += Duration::from_nanos(500);
        send(now, &mut a, &mut b, NodeId(1), &mut slot, &mut counter);
        send(now, &mut b, &mut a, NodeId(0), &mut slot, &mut counter);
    }
    assert_eq!(counter.messages, 2 * round_trips);
    println!("{} messages", counter.messages);
}
