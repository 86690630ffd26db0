use std::time::Duration;

use super::*;
use crate::handshake::{COOKIE_BYTES, Step};
use crate::key::ClusterKey;
use crate::session::{LAST_BLOCKS, REKEY_BLOCKS};

const A: LinkAddr = LinkAddr::Local(0);
const B: LinkAddr = LinkAddr::Local(1);
const SECOND: Duration = Duration::from_secs(1);
/// Two nodes that send to each other are together again after this, whatever happened before: a handshake with one that died has ended.
const MEET_WITHIN: Duration = Duration::from_secs(4);

fn at(node: usize) -> LinkAddr {
    LinkAddr::Local(node as u16)
}

fn keys() -> Keys {
    Keys::new([ClusterKey::generate().expect("random")]).expect("one")
}

/// Two nodes and the time between them.
struct Pair {
    keys: Keys,
    nodes: [Peers; 2],
    now: Duration,
    /// Frames of the first node get lost.
    deaf: bool,
}

impl Pair {
    fn new() -> Self {
        let keys = keys();
        let peers = || Peers::new(&keys, false, true).expect("random");
        Self {
            nodes: [peers(), peers()],
            keys,
            now: 1000 * SECOND,
            deaf: false,
        }
    }

    fn met() -> Self {
        let mut pair = Self::new();
        pair.nodes[0].wish(pair.now, B);
        pair.pump();
        assert!(pair.nodes[0].has_session(B) && pair.nodes[1].has_session(A));
        pair
    }

    /// Takes the frames that a node wants to send.
    fn outs(&mut self, node: usize) -> Vec<(LinkAddr, Vec<u8>)> {
        let peers = &mut self.nodes[node];
        let mut frames = Vec::new();
        while let Some(out) = peers.next_out() {
            let (to, frame) = match out {
                Out::Handshake(to, frame) => (to, frame),
                Out::Control { to, wants_answer } => {
                    let mut slot = vec![0; 512];
                    let bytes = peers.write_control(to, wants_answer, &mut slot);
                    slot.truncate(bytes);
                    (to, slot)
                }
            };
            if !frame.is_empty() {
                frames.push((to, frame));
            }
        }
        frames
    }

    fn give(&mut self, from: LinkAddr, node: usize, frame: &[u8]) -> Option<Vec<u8>> {
        let now = self.now;
        self.nodes[node].begin_burst();
        self.nodes[node]
            .receive(|| now, from, frame)
            .map(<[u8]>::to_vec)
    }

    /// Delivers frames until there are none.
    fn pump(&mut self) {
        for _ in 0..20 {
            for node in 0..2 {
                for (to, frame) in self.outs(node) {
                    if to == at(1 - node) && !(self.deaf && node == 0) {
                        assert_eq!(self.give(at(node), 1 - node, &frame), None);
                    }
                }
            }
        }
    }

    /// Lets time pass in small steps.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += Duration::from_millis(1);
            for peers in &mut self.nodes {
                peers.upkeep(self.now);
            }
            self.pump();
        }
    }

    /// Seals a frame; empty if it could not be.
    fn sealed(&mut self, node: usize, inner: &[u8]) -> Vec<u8> {
        let mut slot = vec![0; HEADER_BYTES + inner.len() + 16];
        slot[HEADER_BYTES..HEADER_BYTES + inner.len()].copy_from_slice(inner);
        let (sealer, flag_bits) = self.nodes[node].sealer(at(1 - node)).expect("a session");
        let bytes = sealer.seal(&mut slot, inner.len(), flag_bits);
        slot.truncate(bytes);
        slot
    }

    fn works(&mut self) {
        for node in 0..2 {
            let frame = self.sealed(node, b"works");
            let opened = self.give(at(node), 1 - node, &frame);
            assert_eq!(opened.as_deref(), Some(&b"works"[..]));
        }
    }

    /// Whether a frame of each node reaches the other.
    fn both_hear(&mut self) -> bool {
        (0..2).all(|node| {
            let has_sealer = self.nodes[node].sealer(at(1 - node)).is_some();
            has_sealer && {
                let frame = self.sealed(node, b"works");
                self.give(at(node), 1 - node, &frame).is_some()
            }
        })
    }

    /// The node dies, and another one begins at its address.
    fn restart(&mut self, node: usize) {
        self.nodes[node] = Peers::new(&self.keys, false, true).expect("random");
    }

    fn wear(&mut self, node: usize, blocks: u64) {
        let (sealer, _) = self.nodes[node].sealer(at(1 - node)).expect("a session");
        sealer.wear(blocks);
    }
}

/// A worn key is replaced while frames go on; the old session ends a little later and leaves nothing behind.
#[test]
fn worn_keys_are_replaced() {
    let mut pair = Pair::met();
    for _ in 0..5 {
        pair.works();
        let late = pair.sealed(1, b"under way");
        pair.wear(0, REKEY_BLOCKS);
        let before = pair.nodes[0].counters.handshakes;
        pair.works();
        pair.pass(Duration::from_millis(50));
        assert_eq!(pair.nodes[0].counters.handshakes, before + 1);
        pair.works();
        assert!(
            pair.give(B, 0, &late).is_some(),
            "the old session still opens"
        );
        pair.pass(PREVIOUS_LIFETIME);
        let later = pair.nodes[0].counters.unknown_session;
        assert!(pair.give(B, 0, &late).is_none());
        assert_eq!(pair.nodes[0].counters.unknown_session, later + 1);
        assert_eq!(pair.nodes[0].sizes(), [1, 1, 0]);
    }
}

/// A spent key seals nothing, even if the peer does not answer.
#[test]
fn spent_key_seals_nothing() {
    let mut pair = Pair::met();
    pair.deaf = true;
    pair.wear(0, LAST_BLOCKS);
    assert!(pair.sealed(0, b"no").is_empty());
    pair.pass(SECOND);
    assert!(pair.sealed(0, b"no").is_empty());
    pair.deaf = false;
    pair.pass(TUNING.renew_gap + 5 * SECOND);
    pair.works();
}

/// A peer dies with a renewal half done: what we wait for of the dead one ends with it, and does not take the session of its successor away.
#[test]
fn successor_of_a_half_renewed_peer() {
    let mut pair = Pair::met();
    pair.wear(0, REKEY_BLOCKS);
    pair.works();
    pair.nodes[0].upkeep(pair.now);
    // Question, challenge, first and second message.
    for _ in 0..2 {
        for node in 0..2 {
            for (_, frame) in pair.outs(node) {
                pair.give(at(node), 1 - node, &frame);
            }
        }
    }
    assert_eq!(pair.nodes[0].counters.handshakes, 2);
    pair.outs(0); // the confirmation gets lost
    pair.restart(1);
    pair.nodes[1].wish(pair.now, A);
    pair.pump();
    for _ in 0..20 {
        pair.works();
        pair.pass(SECOND);
    }
}

/// Nodes that die at any moment, and lose frames, meet again soon and stay together.
#[test]
fn restarts_at_any_moment() {
    for seed in 0..200 {
        let mut dice = fastrand::Rng::with_seed(seed);
        let mut pair = Pair::met();
        for _ in 0..dice.u32(1..6) {
            if dice.bool() {
                let node = dice.usize(..2);
                if pair.nodes[node].has_session(at(1 - node)) {
                    pair.wear(node, REKEY_BLOCKS);
                    pair.both_hear();
                }
            }
            // Both talk, and only some frames arrive.
            for _ in 0..dice.u32(..60) {
                pair.now += Duration::from_millis(dice.u64(..20));
                for node in 0..2 {
                    pair.nodes[node].wish(pair.now, at(1 - node));
                    pair.nodes[node].upkeep(pair.now);
                    for (_, frame) in pair.outs(node) {
                        if dice.u32(..4) > 0 {
                            pair.give(at(node), 1 - node, &frame);
                        }
                    }
                }
            }
            pair.restart(dice.usize(..2));
        }
        let mut waited = Duration::ZERO;
        let mut apart = Duration::ZERO;
        while waited < 20 * SECOND {
            for node in 0..2 {
                pair.nodes[node].wish(pair.now, at(1 - node));
            }
            pair.pass(Duration::from_millis(20));
            waited += Duration::from_millis(20);
            if !pair.both_hear() {
                apart = waited;
            }
        }
        assert!(apart <= MEET_WITHIN, "seed {seed}: apart for {apart:?}");
    }
}

/// A worn broadcast key is replaced at once, and all are told.
#[test]
fn worn_broadcast_key_is_replaced() {
    let mut pair = Pair::met();
    let (sealer, _) = pair.nodes[0].group_sealer().expect("broadcast");
    let old = sealer.key_id();
    sealer.wear(REKEY_BLOCKS);
    let new = pair.nodes[0].group_sealer().expect("broadcast").0.key_id();
    assert_ne!(old, new);
    pair.pass(Duration::from_millis(5));
    let mut slot = vec![7; 60];
    let (sealer, flag_bits) = pair.nodes[0].group_sealer().expect("broadcast");
    assert_eq!(sealer.seal(&mut slot, 28, flag_bits), 60);
    assert_eq!(pair.give(A, 1, &slot).map(|frame| frame.len()), Some(28));
}

/// A silent peer is asked a bounded number of times, and then forgotten.
#[test]
fn silence_is_forgotten() {
    let mut pair = Pair::new();
    pair.deaf = true;
    pair.nodes[0].wish(pair.now, B);
    assert_eq!(pair.outs(0).len(), 1);
    let mut asked = 0;
    for _ in 0..20_000 {
        pair.now += Duration::from_millis(1);
        pair.nodes[0].upkeep(pair.now);
        asked += pair.outs(0).len() as u32;
    }
    assert_eq!(asked, TUNING.repeat_times);
    assert_eq!(pair.nodes[0].sizes(), [0, 0, 0]);
    assert_eq!(pair.nodes[0].next_upkeep(), NEVER);
}

/// Each half-done handshake ends by itself: at whatever step the first node falls silent, nothing is left in the other.
#[test]
fn half_done_handshakes_end() {
    for heard in 0..4 {
        let mut pair = Pair::new();
        pair.nodes[0].wish(pair.now, B);
        for _ in 0..heard {
            for node in 0..2 {
                for (_, frame) in pair.outs(node) {
                    pair.give(at(node), 1 - node, &frame);
                }
            }
        }
        let confirmed = pair.nodes[1].has_session(A);
        assert_eq!(confirmed, heard >= 3);
        pair.deaf = true;
        pair.pass(30 * SECOND);
        if !confirmed {
            assert_eq!(pair.nodes[1].sizes(), [0, 0, 0], "{heard}");
            assert_eq!(pair.nodes[0].sizes(), [0, 0, 0], "{heard}");
        }
    }
}

/// A session in which the peer never sent is replaced by the previous one.
#[test]
fn unconfirmed_session_gives_way() {
    let mut pair = Pair::met();
    let number = |pair: &mut Pair| {
        let id = pair.nodes[0].peers[&B].current.expect("a session");
        pair.nodes[0].slots.get(id).expect("lives").number
    };
    let old = number(&mut pair);
    pair.wear(0, REKEY_BLOCKS);
    pair.sealed(0, b"worn");
    pair.nodes[0].upkeep(pair.now);
    for _ in 0..2 {
        for node in 0..2 {
            for (_, frame) in pair.outs(node) {
                pair.give(at(node), 1 - node, &frame);
            }
        }
    }
    assert!(number(&mut pair) > old, "took the new one");
    pair.deaf = true;
    pair.pass(4 * SECOND);
    assert_eq!(number(&mut pair), old);
    pair.works();
}

/// Without a key, a flood of handshakes has no effect but on one counter; genuine frames from forged addresses cost neither memory nor a
/// multiplication.
#[test]
fn floods_of_handshakes() {
    let mut pair = Pair::met();
    let other = Keys::new([ClusterKey::generate().expect("random")])
        .expect("one")
        .derive()
        .remove(0);
    let before = pair.nodes[0].sizes();
    let (nonce, cookie, noise) = (1, [2; COOKIE_BYTES], [3; 52]);
    let steps = [
        Step::Ask { nonce },
        Step::Challenge { nonce, cookie },
        Step::First {
            nonce,
            cookie,
            noise,
        },
        Step::Second { nonce, noise },
    ];
    for round in 0..20_000 {
        let mut frame = steps[round % 4].frame(false, &other);
        if round % 8 > 3 {
            // Our key's name, which is visible to all, with a wrong proof.
            let own = pair.nodes[0].keys[0].print.0;
            frame[8..16].copy_from_slice(&own);
        }
        pair.give(at(2 + round), 0, &frame);
    }
    assert_eq!(pair.nodes[0].counters.wrong_key, 20_000);
    assert_eq!(pair.nodes[0].sizes(), before);

    // Recorded frames, from any address: an ask is answered by one frame that is no longer; the others are stale.
    let key = pair.keys.derive().remove(0);
    for round in 0..20_000 {
        let step = &steps[round % 4];
        let frame = step.frame(false, &key);
        pair.give(at(2 + round), 0, &frame);
        let answers = pair.outs(0);
        assert_eq!(answers.len(), usize::from(round % 4 == 0));
        assert!(
            answers
                .iter()
                .all(|(_, answer)| answer.len() <= frame.len())
        );
    }
    assert_eq!(pair.nodes[0].counters.stale_handshake, 15_000);
    assert_eq!(pair.nodes[0].sizes(), before);
    assert_eq!(pair.nodes[0].handshakes_left, TUNING.handshakes_per_burst);
    // Unsent, the answers do not pile up either.
    for round in 0..2 * OUTBOX_FRAMES_MAX {
        pair.give(at(2 + round), 0, &steps[0].frame(false, &key));
    }
    assert_eq!(pair.nodes[0].sizes()[2], OUTBOX_FRAMES_MAX);
    assert_eq!(pair.nodes[0].counters.unsent, OUTBOX_FRAMES_MAX as u64);
    pair.outs(0);
    pair.works();
}

/// A challenge is valid at the address it was sent to, for a while; a frame made for it works once.
#[test]
fn challenges_are_bound() {
    let mut pair = Pair::new();
    let key = pair.keys.derive().remove(0);
    let challenge = |pair: &mut Pair, nonce| {
        pair.outs(0);
        pair.give(B, 0, &Step::Ask { nonce }.frame(false, &key));
        let (_, frame) = pair.outs(0).remove(0);
        let Some(crate::handshake::HandshakeFrame {
            step: Step::Challenge { cookie, .. },
            ..
        }) = crate::handshake::HandshakeFrame::parse(&frame)
        else {
            panic!("no challenge");
        };
        cookie
    };
    let first = |nonce, cookie| {
        let (_, noise) =
            crate::handshake::begin(&key, false, nonce, &cookie, nonce as u32).expect("random");
        Step::First {
            nonce,
            cookie,
            noise,
        }
        .frame(false, &key)
    };
    let cookie = challenge(&mut pair, 1);
    for (from, nonce) in [(at(2), 1), (B, 2)] {
        pair.give(from, 0, &first(nonce, cookie));
        assert!(pair.outs(0).is_empty());
    }
    assert_eq!(pair.nodes[0].counters.stale_handshake, 2);
    let frame = first(1, cookie);
    pair.give(B, 0, &frame);
    let answer = pair.outs(0);
    pair.give(B, 0, &frame);
    assert_eq!((pair.outs(0), answer.len()), (answer, 1), "the same again");
    // After another handshake of the peer, the first one is forgotten, but remembered as done.
    let cookie = challenge(&mut pair, 3);
    pair.give(B, 0, &first(3, cookie));
    assert_eq!(pair.outs(0).len(), 1);
    pair.give(B, 0, &frame);
    assert!(pair.outs(0).is_empty());
    // One address can begin only so many in a short time.
    for nonce in 10..10 + FIRSTS_MAX as u64 {
        let cookie = challenge(&mut pair, nonce);
        pair.give(B, 0, &first(nonce, cookie));
    }
    assert_eq!(pair.nodes[0].counters.limited, 2);
    assert_eq!(pair.nodes[0].sizes()[..2], [1, 1]);
    // Too late.
    let cookie = challenge(&mut pair, 99);
    pair.outs(0);
    pair.now += 2 * COOKIE_PERIOD;
    pair.give(B, 0, &first(99, cookie));
    assert!(pair.outs(0).is_empty());
}

/// Work in one burst is bounded; a peer turned away can try again.
#[test]
fn work_of_a_burst_is_bounded() {
    let keys = keys();
    let new = || Peers::new(&keys, false, false).expect("random");
    let (mut server, now) = (new(), 1000 * SECOND);
    let mut clients: Vec<_> = (1..40).map(|node| (at(node), new())).collect();
    let drain = |peers: &mut Peers| {
        let mut frames = Vec::new();
        while let Some(out) = peers.next_out() {
            if let Out::Handshake(to, frame) = out {
                frames.push((to, frame));
            }
        }
        frames
    };
    let mut now = now;
    for _ in 0..500 {
        server.begin_burst();
        for (addr, client) in &mut clients {
            client.begin_burst();
            client.wish(now, A);
            client.upkeep(now);
            for (_, frame) in drain(client) {
                server.receive(|| now, *addr, &frame);
            }
        }
        for (to, frame) in drain(&mut server) {
            let client = clients.iter_mut().find(|(addr, _)| *addr == to);
            client.expect("known").1.receive(|| now, A, &frame);
        }
        let answered = server.slots.taken();
        now += Duration::from_millis(2);
        assert!(answered <= clients.len());
    }
    assert!(
        server.counters.limited > 0,
        "more came at once than one burst takes"
    );
    assert!(clients.iter().all(|(_, client)| client.sessions() == 1));
}

/// In a full table, only a peer that was silent for long makes room; one that was heard is never forgotten for an unknown one.
#[test]
fn full_table_keeps_the_living() {
    let mut pair = Pair::met();
    for node in 2..PEERS_MAX + 1 {
        let peer = Peer {
            quiet_since: pair.now,
            // Something that keeps it remembered.
            firsts: vec![(1, pair.now + 1000 * SECOND)],
            ..Peer::default()
        };
        pair.nodes[0].peers.insert(at(node), peer);
    }
    assert_eq!(pair.nodes[0].sizes()[0], PEERS_MAX);
    let unknown = at(PEERS_MAX + 5);
    pair.nodes[0].wish(pair.now, unknown);
    assert_eq!(pair.nodes[0].counters.unsent, 1);
    assert!(!pair.nodes[0].peers.contains_key(&unknown));
    pair.now += FORGET_QUIET;
    pair.works();
    for more in 0..100 {
        pair.nodes[0].wish(pair.now, at(PEERS_MAX + 10 + more));
        assert_eq!(pair.nodes[0].sizes()[0], PEERS_MAX);
    }
    assert!(pair.nodes[0].has_session(B), "it was heard");
    pair.outs(0);
    pair.works();
}

/// Frames in the other mode are refused even from a peer with the keys; so are readable control frames.
#[test]
fn each_frame_has_the_mode() {
    let mut pair = Pair::met();
    for flag_bits in [
        flags::READABLE,
        flags::READABLE | flags::CONTROL,
        flags::GROUP | flags::CONTROL,
    ] {
        let mut slot = vec![0; 64];
        let (sealer, own) = pair.nodes[0].sealer(B).expect("a session");
        assert_eq!(own, 0);
        assert_eq!(sealer.seal(&mut slot, 32, flag_bits), 64);
        assert_eq!(pair.give(A, 1, &slot), None);
    }
    let counters = pair.nodes[1].counters;
    assert_eq!((counters.other_mode, counters.malformed), (1, 2));
}

/// When a cluster key is removed, the broadcast key that its holders may know is replaced; not before, and all get the new one.
#[test]
fn removed_key_takes_the_broadcast_key_along() {
    let mut pair = Pair::met();
    let old = ClusterKey::generate().expect("random");
    let new = ClusterKey::generate().expect("random");
    let list = |keys: &[&ClusterKey]| Keys::new(keys.iter().copied().cloned()).expect("keys");
    let mut ids = Vec::new();
    for keys in [
        list(&[&old]),
        list(&[&old, &new]),
        list(&[&new, &old]),
        list(&[&new]),
    ] {
        for peers in &mut pair.nodes {
            peers.reload(&keys).expect("random");
        }
        pair.nodes[0].wish(pair.now, B);
        pair.pump();
        pair.pass(Duration::from_millis(200));
        pair.works();
        ids.push(pair.nodes[0].group_sealer().expect("broadcast").0.key_id());
        let told = pair.nodes[0].peers[&B].told_generation;
        assert_eq!(
            Some(told),
            pair.nodes[0].group.as_ref().map(|own| own.generation)
        );
    }
    assert!(ids[0] == ids[1] && ids[1] == ids[2] && ids[2] != ids[3]);
}
