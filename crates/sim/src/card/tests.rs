//! Cards that stand for shared memory, without a net: the suite of rings.

use super::*;
use tsumuji_link::conformance::{Neighbours, rings_conform};
use tsumuji_proto::Congestion;

struct Two([Card; 2]);

impl Neighbours for Two {
    type Link = Card;

    fn begin() -> Self {
        let job = Rc::default();
        Self([0, 1].map(|me| {
            let config = Config {
                me: NodeId(me),
                incarnation: 1,
                frame_bytes: 600,
                receive_frames: 1000,
                lossless: true,
                ring_bytes: 8192,
                congestion: Congestion::Credit,
                budget_bytes: 1 << 20,
                message_limit_bytes: 1 << 20,
                send_queue_bytes: 1 << 20,
                keep_alive: Duration::from_secs(1),
                dead_after: Duration::from_secs(3),
            };
            let card = Card::new(
                &config,
                Port::new(0),
                Rng::new(1),
                (false, 0),
                Rc::clone(&job),
            );
            card.begin_process();
            card.begin(Instant::default(), usize::MAX);
            card
        }))
    }

    fn links(&mut self) -> [&mut Card; 2] {
        self.0.each_mut()
    }

    fn first(&mut self) -> &mut Card {
        &mut self.0[0]
    }

    fn carry(&mut self) {
        for (from, to) in [(0, 1), (1, 0)] {
            let addr = self.0[from].local_addr();
            for frame in self.0[from].take_sent().0 {
                self.0[to].put(addr, frame.bytes.into());
            }
        }
    }

    fn vanish(&mut self) {
        self.0[1].clear();
        self.0[1].end_process();
    }

    fn succeed(&mut self) {
        self.0[1].begin_process();
    }
}

/// Rings are as those in real shared memory.
#[test]
fn rings_are_as_in_shared_memory() {
    rings_conform::<Two>();
}
