//! Tests of permissions without engines.

use super::*;
use alloc::vec::Vec;
use tsumuji_wire::NodeId;

const RING: u64 = 100;

/// Some peers, each of which lost its first frame.
struct Ledger {
    suci: Suci,
    inbound: Vec<Inbound>,
    expected: Vec<u64>,
}

impl Ledger {
    fn new(peers: usize) -> Self {
        Self {
            suci: Suci::new(RING as usize),
            inbound: (0..peers).map(|_| Inbound::new(RING)).collect(),
            expected: (0..peers).map(|_| FIRST_NUMBER).collect(),
        }
    }

    fn ask(&mut self, peer: usize, round: u32, frames: u32) -> Option<Answer> {
        let expected = self.expected[peer];
        let ask = Permit {
            source: NodeId(peer as u16),
            destination: NodeId(99),
            session: 0,
            round,
            number: expected as u32,
            frames,
        };
        let inbound = &mut self.inbound[peer];
        self.suci.on_ask(peer as u16, inbound, expected, &ask)
    }

    /// Visits all waiting peers once.
    fn share_out(&mut self) {
        for _ in 0..self.suci.waiting.len() {
            let peer = self.suci.call().expect("somebody waits");
            let index = usize::from(peer);
            let (inbound, expected) = (&mut self.inbound[index], self.expected[index]);
            Suci::answer_call(inbound);
            let part = self.suci.part();
            self.suci.grant(peer, inbound, expected, 1000, part);
        }
    }

    fn come(&mut self, peer: usize, frames: u64) {
        for _ in 0..frames {
            let expected = self.expected[peer];
            self.suci.on_taken(&mut self.inbound[peer], expected);
            self.expected[peer] += 1;
        }
    }

    fn granted(&self) -> Vec<u32> {
        let each = self.inbound.iter().zip(&self.expected);
        each.map(|(inbound, &expected)| inbound.permit(expected).1)
            .collect()
    }
}

/// A single peer is granted what it asks for, up to the ring; several get equal parts of it, and never more than it holds together.
#[test]
fn ring_is_shared_out() {
    let mut ledger = Ledger::new(1);
    assert_eq!(ledger.ask(0, 1, 300), Some(Answer::Grant));
    ledger.share_out();
    assert_eq!(ledger.granted(), [100]);
    let mut ledger = Ledger::new(4);
    for peer in 0..4 {
        ledger.ask(peer, 1, 60);
    }
    ledger.share_out();
    assert_eq!(ledger.granted(), [25; 4]);
    assert_eq!(ledger.ask(0, 1, 60), Some(Answer::Grant), "told again");
    ledger.share_out();
    assert_eq!(ledger.granted(), [25; 4]);
    for came in [25, 25, 10] {
        ledger.come(0, came);
        ledger.share_out();
        assert!(ledger.granted().iter().sum::<u32>() <= 100);
    }
    assert_eq!(
        ledger.granted(),
        [0, 33, 33, 33],
        "who is done leaves its part"
    );
}

/// A peer whose granted frames were lost is granted as many as arrived, and one more for each frame that arrives.
#[test]
fn grants_follow_what_arrives() {
    let mut ledger = Ledger::new(1);
    ledger.ask(0, 1, 90);
    ledger.share_out();
    assert_eq!(ledger.granted(), [90]);
    ledger.come(0, 10);
    ledger.ask(0, 2, 80);
    ledger.share_out();
    assert_eq!(ledger.granted(), [10]);
    ledger.come(0, 10);
    ledger.share_out();
    assert_eq!(ledger.granted(), [20]);
    ledger.ask(0, 3, 70);
    ledger.share_out();
    assert_eq!(ledger.granted(), [10]);
    ledger.ask(0, 4, 70);
    ledger.share_out();
    assert_eq!(ledger.granted(), [1], "nothing came");
}

/// A grant no longer counts when its peer asks anew, when nothing of it arrives for long, and when the session ends.
#[test]
fn grants_end() {
    for way in 0..3 {
        let mut ledger = Ledger::new(2);
        ledger.ask(0, 1, 1000);
        ledger.share_out();
        ledger.ask(1, 1, 1000);
        ledger.share_out();
        assert_eq!(ledger.granted(), [100, 0]);
        assert!(ledger.suci.is_full());
        let (inbound, expected) = (&mut ledger.inbound[0], ledger.expected[0]);
        assert!(ledger.suci.check_holder(0, inbound, expected), "not yet");
        match way {
            0 => {
                assert_eq!(ledger.ask(0, 2, 1000), Some(Answer::Grant));
            }
            1 => {
                ledger.suci.now += TUNING.suci.grant_lifetime;
                assert!(!ledger.suci.check_holder(0, inbound, expected));
                assert_eq!(ledger.suci.holder(0), None);
            }
            _ => ledger.suci.reset(0, inbound, expected),
        }
        ledger.share_out();
        assert!(ledger.granted()[1] >= 50, "{way}: {:?}", ledger.granted());
        assert!(ledger.granted().iter().sum::<u32>() <= 100);
    }
}

/// A peer whose grant grows while it waits is in the queue once, and leaves it when it wants no more.
#[test]
fn nobody_waits_twice() {
    let mut ledger = Ledger::new(2);
    for peer in 0..2 {
        ledger.ask(peer, 1, 400);
    }
    ledger.share_out();
    for _ in 0..300 {
        let expected = ledger.expected[0];
        ledger.come(0, 1);
        if ledger.suci.wants_more(&ledger.inbound[0], expected + 1) {
            let (inbound, part) = (&mut ledger.inbound[0], ledger.suci.part());
            ledger.suci.grant(0, inbound, expected + 1, 1000, part);
        }
        assert!(ledger.suci.waiting.len() <= 2);
        assert!(ledger.suci.outstanding <= RING);
        if ledger.granted()[0] == 0 {
            ledger.share_out();
        }
    }
    assert!(ledger.inbound[0].holds && ledger.suci.holders.len() <= 2);
}
