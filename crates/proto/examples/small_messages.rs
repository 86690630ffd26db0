//! Sends small reliable messages between two engines and nothing else, to be run under an instruction counter:
//! `scripts/instructions.py` runs it twice and divides the difference.
//!
//! `cargo run --release -p tsumuji-proto --example small_messages -- 1000`: so many there and so many back, in turn;
//! `-- 1000 1024 64`: of 1,024 bytes, 64 one way before those of the other way.

use tsumuji_proto::{
    Borrowed, Channel, Config, Congestion, Datagram, Delivery, Destination, Duration, Engine,
    Instant, NodeId, Payload, Sink,
};

/// Releases what it is given.
#[derive(Default)]
struct Counter {
    messages: u64,
    /// Of the last one.
    bytes: usize,
}

impl Sink for Counter {
    #[inline(always)] // a call of the sink's is not the engine's cost
    fn message(&mut self, delivery: Delivery<'_>) {
        self.messages += 1;
        self.bytes = delivery.body.bytes().len();
        std::hint::black_box(delivery.body.bytes());
    }

    fn datagram(&mut self, _: u64, _share: Datagram<'_>) {}
}

fn engine(me: u16, now: Instant) -> Engine {
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
        from.plan(now, destination, &Borrowed::NONE, (1, usize::MAX));
        let before = counter.messages;
        let (head, body) = (from.batch(&Borrowed::NONE).next()).expect("a frame");
        let frame = &mut slot[..head.len() + body.len()];
        let (front, back) = frame.split_at_mut(head.len());
        front.copy_from_slice(head);
        back.copy_from_slice(body);
        to.handle_frame(now, frame, counter);
        let Destination::Peer(peer) = destination else {
            continue;
        };
        if counter.messages > before {
            to.release(NodeId(1 - peer.0), counter.bytes);
        }
    }
}

/// One message and whatever frames it causes.
fn send(
    now: Instant,
    from: &mut Engine,
    to: &mut Engine,
    id: NodeId,
    message: &[u8],
    slot: &mut [u8],
    counter: &mut Counter,
) {
    let payload = Payload::Copied(message, &[]);
    from.submit(id, Channel::ordered(0), payload, false)
        .expect("there is room");
    exchange(now, from, to, slot, counter);
}

fn main() {
    let mut options = std::env::args().skip(1).map(|option| option.parse().ok());
    let mut option = |usual| options.next().flatten().unwrap_or(usual);
    let (messages, bytes, burst): (usize, usize, usize) = (option(1000), option(8), option(1));
    let mut now = Instant::from_nanos(0);
    let (mut a, mut b) = (engine(0, now), engine(1, now));
    let (message, mut slot) = (vec![7; bytes], vec![0; 4096]);
    let mut counter = Counter::default();
    for _ in 0..4 {
        exchange(now, &mut a, &mut b, &mut slot, &mut counter);
        exchange(now, &mut b, &mut a, &mut slot, &mut counter);
    }
    for _ in 0..messages / burst {
        now += Duration::from_nanos(500);
        for back in [false, true] {
            let (from, to, id) = if back {
                (&mut b, &mut a, NodeId(0))
            } else {
                (&mut a, &mut b, NodeId(1))
            };
            for _ in 0..burst {
                send(now, from, to, id, &message, &mut slot, &mut counter);
            }
        }
        if burst > 1 {
            exchange(now, &mut a, &mut b, &mut slot, &mut counter); // acknowledgements that no data took along
        }
    }
    assert_eq!(counter.messages as usize, messages / burst * burst * 2);
    println!("{} messages", counter.messages);
}
