//! An engine with a peer that is up takes any frames, time-outs and submits, and neither panics nor leaves its bounds.
//!
//! The input begins with the congestion control, one byte; then it is a list of steps: one byte says what, one how long before it, two how many bytes follow as the frame. Node ids
//! and the session are put right in most frames: else nothing would get past the first check.

use tsumuji_proto::{
    Borrowed, Channel, Config, Congestion, Datagram, Delivery, Destination, Duration, Engine,
    Instant, NodeId, Payload, Posted, Sink,
};

const FRAME_BYTES: usize = 512;
const BUDGET_BYTES: usize = 256 << 10;
const MESSAGE_LIMIT_BYTES: usize = 1 << 20;
/// Written between two steps at most: the window of packet numbers, and some control frames.
const FRAMES_PER_STEP: usize = 5000;

/// Keeps lengths of what the program has not released.
#[derive(Default)]
struct Unreleased(Vec<usize>);

impl Sink for Unreleased {
    fn message(&mut self, delivery: Delivery<'_>) {
        self.0.push(delivery.body.bytes().len());
    }
    fn datagram(&mut self, _: u64, _: Datagram<'_>) {}
    fn place(&mut self, _: NodeId, _: Channel, length_bytes: usize) -> Option<Posted> {
        let is_posted = length_bytes.is_multiple_of(3) && length_bytes <= 64 << 10;
        let buffer = vec![0_u8; if is_posted { length_bytes } else { 0 }];
        Posted::new(0, length_bytes, Box::new(buffer)).ok()
    }
}

fn engine_of(me: u16, now: Instant, congestion: Congestion, ring_bytes: usize) -> Engine {
    let mut engine = Engine::new(Config {
        me: NodeId(me),
        incarnation: 1 + u32::from(me),
        frame_bytes: FRAME_BYTES,
        receive_frames: 64,
        lossless: false,
        ring_bytes,
        congestion,
        budget_bytes: BUDGET_BYTES,
        message_limit_bytes: MESSAGE_LIMIT_BYTES,
        send_queue_bytes: 1 << 20,
        keep_alive: Duration::from_millis(100),
        dead_after: Duration::from_secs(1),
    });
    engine.add_peer(now, NodeId(1 - me));
    engine
}

/// As a link hands in what it copies where it belongs, if that is known.
fn take(now: Instant, victim: &mut Engine, frame: &[u8], unreleased: &mut Unreleased) {
    victim.foresee(now, frame, frame.len(), unreleased);
    if let Some(placement) = victim.placement() {
        let (head, body) = frame.split_at(placement.head_bytes.min(frame.len()));
        if body.len() <= placement.body_bytes.min(placement.place.len()) {
            placement.place[..body.len()].copy_from_slice(body);
            if victim.is_expected(0, head, body.len()) {
                return victim.handle_placed(now, head, body.len(), unreleased);
            }
        }
    }
    victim.handle_frame(now, frame, unreleased);
}

/// What `from` has to write, handed to `each`.
fn drain(now: Instant, from: &mut Engine, mut each: impl FnMut(&[u8])) {
    let mut frames = 0;
    while let Some(to) = from.next_destination(now) {
        from.plan(now, to, &Borrowed::NONE, (1, usize::MAX));
        let (head, body) = from.batch(&Borrowed::NONE).next().expect("a frame");
        let frame = [head, body].concat();
        assert!((1..=FRAME_BYTES).contains(&frame.len()), "to {to:?}");
        each(&frame);
        frames += 1;
        assert!(frames <= FRAMES_PER_STEP, "writes without end");
    }
    while from.poll_event().is_some() {}
}

/// The target.
pub fn engine(input: &[u8]) {
    let mut now = Instant::from_nanos(0);
    let Some((first, input)) = input.split_first() else {
        return;
    };
    let congestion = match first % 4 {
        1 => Congestion::SUCI,
        3 => Congestion::SUCI_ASKING,
        _ => Congestion::Credit,
    };
    let ring_bytes = if first & 4 == 0 { 0 } else { 512 };
    let new = |me| engine_of(me, now, congestion, ring_bytes);
    let (mut victim, mut peer) = (new(0), new(1));
    let mut unreleased = Unreleased::default();
    for _ in 0..4 {
        drain(now, &mut victim, |frame| {
            peer.handle_frame(now, frame, &mut Unreleased::default())
        });
        drain(now, &mut peer, |frame| {
            victim.handle_frame(now, frame, &mut Unreleased::default())
        });
    }
    assert!(victim.is_up(NodeId(1)) && peer.is_up(NodeId(0)));
    // A frame of the peer's tells the session that the victim accepts.
    let mut session = [0; 4];
    let greeting = Payload::Copied(b"hello", &[]);
    peer.submit(NodeId(0), Channel::ordered(9), greeting, false)
        .expect("there is room");
    drain(now, &mut peer, |frame| {
        session.copy_from_slice(&frame[8..12])
    });

    let mut rest = input;
    while let [step, wait, low, high, more @ ..] = rest {
        now += Duration::from_micros(u64::from(*wait) * u64::from(*wait) * 4);
        let bytes = usize::from(u16::from_le_bytes([*low, *high]) % 600).min(more.len());
        let (bytes, after) = more.split_at(bytes);
        rest = after;
        match step % 8 {
            0 if low % 4 == 3 => {
                let to = [Destination::Peer(NodeId(1)), Destination::Broadcast]
                    [usize::from(low / 4 % 2)];
                let datagram = Datagram {
                    channel_id: (*low).into(),
                    key: (wait % 4).into(),
                    payload: &vec![7; usize::from(*high) * 97],
                    ..Datagram::EMPTY
                };
                let deadline = (wait % 2 == 0).then(|| now + Duration::from_micros(500));
                let _ = victim.submit_datagram(to, datagram, deadline);
            }
            0 => {
                let (channel, length) = (
                    Channel::ordered(bytes.len() as u16),
                    usize::from(*high) * 97,
                );
                // Short ones may leave together.
                let (message, notify) = (vec![7; length], length >= FRAME_BYTES);
                let payload = if notify {
                    Payload::Shared(message.into())
                } else {
                    Payload::Copied(&message, &[])
                };
                let _ = victim.submit(NodeId(1), channel, payload, notify);
            }
            1 => victim.handle_timeout(now),
            2 => {
                for length in unreleased.0.drain(..) {
                    victim.release(NodeId(1), length);
                }
                let _ = victim.recall(NodeId(1), Channel::ordered(9), 0);
            }
            3 => victim.handle_frame(now, bytes, &mut unreleased),
            _ => {
                let mut frame = bytes.to_vec();
                if let Some(header) = frame.get_mut(..12) {
                    header[0] = 1 << 4 | header[0] & 15;
                    header[1] &= 127;
                    header[2..6].copy_from_slice(&[1, 0, 0, 0]);
                    header[8..12].copy_from_slice(&session);
                }
                if first & 8 == 0 {
                    victim.handle_frame(now, &frame, &mut unreleased);
                } else {
                    take(now, &mut victim, &frame, &mut unreleased);
                }
            }
        }
        let held: usize = unreleased.0.iter().sum();
        // R-30; and R-78.
        let exceeding = match congestion {
            Congestion::Credit => 2,
            Congestion::Suci { .. } => 5,
        };
        assert!(victim.accounts().are_balanced(), "{:?}", victim.accounts());
        assert!(
            held <= BUDGET_BYTES + exceeding * MESSAGE_LIMIT_BYTES,
            "holds {held} bytes"
        );
        drain(now, &mut victim, |_| {});
    }
}
