//! A reader that stops: what its window lets a writer write, and repairs that the writer brings forward.

use std::thread;
use std::time::Duration;

use crate::common::{LONG, Over, PLAIN, pair, pattern};
use tsumuji_node::{Channel, Congestion, Endpoint, NodeId, Options, ProgressBy};

const B: NodeId = NodeId(1);
const CHANNEL: Channel = Channel::ordered(0);
/// What the reader's memory holds of messages that it does not read.
const BUDGET_BYTES: usize = 64 << 10;
const MESSAGE_BYTES: usize = 1000;
/// What the rings between two processes hold besides, at most.
const RING_MESSAGES: u64 = 2048;

/// A program that does not read stops its writers at what its window takes: what they queue for it stays a few messages, although the queue has room for
/// thousands. A message larger than the window goes when nothing is queued. When the reader goes on, so may they. Over any link, under either congestion
/// control.
#[test]
fn a_reader_that_stops_stops_its_writers() {
    for (over, congestion) in PLAIN
        .into_iter()
        .flat_map(|over| Congestion::ALL.map(|congestion| (over, congestion)))
    {
        let options = Options {
            congestion,
            budget_bytes: BUDGET_BYTES,
            ..Options::default()
        };
        let (mut a, mut b) = pair(over, &options);
        let (mut written, mut rounds) = (0, 0);
        // A busy machine may be late with acknowledgements, of what then still counts as queued.
        loop {
            rounds += 1;
            assert!(rounds < 10_000, "{over:?} {congestion}: it never stops");
            if a.wait_window(B, 0, MESSAGE_BYTES, Duration::from_millis(20))
                .expect("wait")
            {
                a.send(B, CHANNEL, &pattern(MESSAGE_BYTES, written))
                    .expect("send");
                written += 1;
            } else if a.queued_bytes(B) <= 2 * MESSAGE_BYTES {
                break;
            }
        }
        let most = (BUDGET_BYTES / MESSAGE_BYTES) as u64 + RING_MESSAGES;
        assert!(
            written <= most,
            "{over:?} {congestion}: {written} messages for a reader that has stopped"
        );
        assert!(
            a.wait_writable(B, 0, MESSAGE_BYTES, Duration::ZERO)
                .expect("wait")
        );
        for index in 0..written {
            let message = b.recv(LONG).expect("link").expect("message");
            assert!(message.body == pattern(MESSAGE_BYTES, index), "{over:?}");
        }
        // The reader may learn only by these calls that there is something to read and to tell.
        while !a.wait_window(B, 0, MESSAGE_BYTES, LONG).expect("wait") {}
        let large = 4 * BUDGET_BYTES;
        assert!(a.flush(LONG).expect("flush"), "{over:?} {congestion}");
        assert!(a.wait_window(B, 0, large, Duration::ZERO).expect("wait"));
        a.send(B, CHANNEL, &pattern(large, 1)).expect("send");
        let message = b.recv(LONG).expect("link").expect("message");
        assert!(message.body == pattern(large, 1), "{over:?} {congestion}");
    }
}

/// A writer may have the repair of what a stopped process has not acknowledged at once, however long the pauses of silence have become by then: `credit`
/// sends the oldest frame again, `suci` asks.
#[test]
fn repairs_come_when_the_program_wants_them() {
    const CALLS: u64 = 60;
    for congestion in Congestion::ALL {
        let options = Options {
            congestion,
            progress: ProgressBy::Program,
            ..Options::default()
        };
        let (mut a, mut b) = pair(Over::Udp, &options);
        // Nobody else drives the two.
        let mut take = |a: &mut Endpoint, index| {
            let message = loop {
                if let Some(message) = b.try_recv().expect("link") {
                    break message;
                }
                a.progress().expect("link");
            };
            assert!(message.body == pattern(100, index), "{congestion}");
        };
        a.send(B, CHANNEL, &pattern(100, 0)).expect("send");
        take(&mut a, 0);
        a.send(B, CHANNEL, &pattern(100, 1)).expect("send");
        for _ in 0..CALLS {
            let rtt = Duration::from_nanos(a.flow(B).expect("known").rtt.as_nanos());
            thread::sleep((2 * rtt).max(Duration::from_millis(2)));
            a.repair_now(B).expect("known");
        }
        let probes = a.counters().engine.probes;
        // By themselves they come after 0.5 ms, 1, 2 and so on up to 200 ms.
        assert!(
            probes >= CALLS / 2,
            "{congestion}: {probes} repairs in {CALLS} calls"
        );
        let again = match congestion {
            Congestion::Credit => a.flow(B).expect("known").retransmitted_frames,
            Congestion::Suci { .. } => a.counters().engine.asks,
        };
        assert!(again >= CALLS / 2, "{congestion}: {again}");
        take(&mut a, 1);
    }
}
