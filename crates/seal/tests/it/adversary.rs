//! An attacker on the wire, without a key: nothing panics, grows, or is delivered that was not sent, and every drop is counted.

use std::collections::HashSet;
use std::time::Duration;

use crate::mem::{
    Net, Node, Taped, assert_all_counted, drops, key, keys, meet, receive, seal_counters, send,
    send_to, settle,
};
use fastrand::Rng;
use tsumuji_link::LinkAddr;
use tsumuji_seal::{OVERHEAD_BYTES, SealMode};

const MODES: [SealMode; 2] = [SealMode::Auth, SealMode::Encrypt];
const SEALED: u8 = 0x17;
const HANDSHAKE: u8 = 0x18;

fn pair(mode: SealMode) -> (Net, Vec<Node>) {
    let net = Net::new(4);
    let mut nodes = net.nodes(2, mode);
    meet(&net, &mut nodes);
    net.clear();
    (net, nodes)
}

fn numbered(number: u32) -> Vec<u8> {
    let mut frame = number.to_le_bytes().to_vec();
    frame.resize(4 + number as usize % 300, number as u8);
    frame
}

/// Frames arrive both ways and by broadcast, once, and in `encrypt` nobody reads them.
#[test]
fn frames_arrive() {
    for mode in MODES {
        let net = Net::new(3);
        let mut nodes = net.nodes(3, mode);
        meet(&net, &mut nodes);
        net.clear();
        let dropped = |nodes: &[Node]| -> u64 { nodes.iter().map(drops).sum() };
        let before = dropped(&nodes);
        send_to(&mut nodes[0], 1, b"a frame to one");
        send(&mut nodes[2], LinkAddr::Broadcast, b"a frame to all");
        let arrived = settle(&net, &mut nodes);
        let to_all = (2, b"a frame to all".to_vec());
        assert_eq!(arrived[0], std::slice::from_ref(&to_all));
        assert_eq!(arrived[1], [(0, b"a frame to one".to_vec()), to_all]);
        assert!(arrived[2].is_empty());
        for taped in net.tape() {
            assert_eq!(taped.bytes[0], SEALED);
            assert_eq!(taped.bytes.len(), 14 + OVERHEAD_BYTES);
            let readable = taped.bytes.windows(7).any(|bytes| bytes == b"a frame");
            assert_eq!(readable, mode == SealMode::Auth);
        }
        assert_eq!(dropped(&nodes), before);
    }
}

/// A node without a key is not heard, whatever it sends.
#[test]
fn open_frames_are_refused() {
    let (net, mut nodes) = pair(SealMode::Encrypt);
    for kind in (0..7).chain(9..14) {
        net.inject(1, 0, &[0x10 | kind, 0, 1, 0, 0, 0, 0, 0, 9, 9, 9, 9]);
    }
    for bytes in [
        &[][..],
        &[0x27, 0],
        &[0x1e; 90],
        &[SEALED],
        &[HANDSHAKE; 15],
    ] {
        net.inject(1, 0, bytes);
    }
    assert_eq!(receive(&mut nodes[0]), []);
    let counters = seal_counters(&nodes[0]);
    assert_eq!((counters.unsealed, counters.malformed), (12, 5));
}

/// A node that has another key, or runs another mode, gets no session and no frame, and is counted as such.
#[test]
fn unauthenticated_nodes_get_no_session() {
    let (one, other) = (key(), key());
    for (second_key, second_mode) in [(&other, SealMode::Encrypt), (&one, SealMode::Auth)] {
        let net = Net::new(2);
        let mut nodes = vec![
            net.node(0, &keys([&one]), SealMode::Encrypt),
            net.node(1, &keys([second_key]), second_mode),
        ];
        for round in 0..100 {
            send_to(&mut nodes[0], 1, &numbered(round));
            send_to(&mut nodes[1], 0, &numbered(round));
            assert!(settle(&net, &mut nodes).iter().all(Vec::is_empty));
        }
        for node in &nodes {
            let counters = seal_counters(node);
            assert_eq!((node.sessions(), counters.handshakes), (0, 0));
            assert_eq!(counters.no_session, 100);
            let counted = match second_mode {
                SealMode::Encrypt => counters.wrong_key,
                SealMode::Auth => counters.other_mode,
            };
            assert!(counted > 0 && counted == drops(node));
        }
    }
}

/// One change to a frame, of some kind.
fn mutate(dice: &mut Rng, frames: &[Taped], at: usize) -> Vec<u8> {
    let mut bytes = frames[at].bytes.clone();
    match dice.usize(..7) {
        0 => bytes.truncate(dice.usize(..bytes.len())),
        1 => bytes.extend((0..1 + dice.usize(..40)).map(|i| i as u8)),
        2 => {
            let other = &frames[dice.usize(..frames.len())].bytes;
            let cut = dice.usize(..bytes.len().min(other.len()));
            bytes.splice(..cut, other[..cut].iter().copied());
        }
        3 => bytes = (0..dice.usize(..300)).map(|_| dice.u8(..)).collect(),
        4 => bytes[0] = 0x10 | dice.u8(..9),
        _ => {
            for _ in 0..=dice.usize(..3) {
                let bit = dice.usize(..bytes.len().min(40) * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
    bytes
}

/// Random, changed, cut, spliced and repeated frames of all kinds, from all sources, beside true traffic: each true frame
/// arrives at most once, nothing else does, and each frame that the attacker added is counted.
#[test]
fn hostile_frames_beside_traffic() {
    for mode in MODES {
        let net = Net::new(4);
        let mut nodes = net.nodes(3, mode);
        meet(&net, &mut nodes);
        let mut dice = Rng::with_seed(mode as u64 + 1);
        let mut seen = HashSet::new();
        let (mut lost, mut sent) = (0, 0);
        for number in 0..300 {
            let (from, to) = (dice.usize(..3), dice.usize(..3));
            let mut expected = Vec::new();
            if from == to {
                send(&mut nodes[from], LinkAddr::Broadcast, &numbered(number));
                expected.extend((0..3).filter(|node| *node != from));
            } else {
                send_to(&mut nodes[from], to as u16, &numbered(number));
                expected.push(to);
            }
            sent += expected.len();
            let tape = net.tape();
            for _ in 0..20 {
                let at = dice.usize(..tape.len());
                let bytes = mutate(&mut dice, &tape, at);
                let (source, target) = (dice.u16(..4), dice.u16(..3));
                net.inject(source, target, &bytes);
                net.inject(tape[at].from, tape[at].to.unwrap_or(target), &bytes);
                let again = &tape[dice.usize(..tape.len())];
                net.inject(again.from, again.to.unwrap_or(target), &again.bytes);
            }
            for (me, node) in nodes.iter_mut().enumerate() {
                for (source, frame) in receive(node) {
                    let number = u32::from_le_bytes(frame[..4].try_into().expect("4"));
                    assert_eq!(frame, numbered(number));
                    assert!(seen.insert((me, number)), "{number} came twice");
                    assert_eq!(usize::from(source), from, "a frame of now");
                    assert!(expected.contains(&me), "not for this node");
                }
            }
            lost += expected
                .iter()
                .filter(|me| !seen.contains(&(**me, number)))
                .count();
            nodes.iter().for_each(assert_all_counted);
            net.pass(Duration::from_micros(300));
        }
        assert_eq!(lost, 0, "of {sent}");
        let handshakes: u64 = nodes.iter().map(|n| seal_counters(n).handshakes).sum();
        assert_eq!(handshakes, 6, "none but the first three, on both sides");
    }
}

/// All that was ever sent, sent again in any order: nothing is delivered, no session changes, no handshake is worked on.
#[test]
fn replays_change_nothing() {
    for mode in MODES {
        let net = Net::new(4);
        let mut nodes = net.nodes(3, mode);
        meet(&net, &mut nodes);
        for number in 0..100 {
            send_to(&mut nodes[0], 1, &numbered(number));
            send_to(&mut nodes[1], 0, &numbered(number));
            send(&mut nodes[2], LinkAddr::Broadcast, &numbered(number));
        }
        settle(&net, &mut nodes);
        let tape = net.tape();
        let before: Vec<_> = nodes.iter().map(seal_counters).collect();
        let mut dice = Rng::with_seed(4);
        for round in 0..20 {
            let mut delivered = 0;
            for _ in 0..tape.len() {
                let taped = &tape[dice.usize(..tape.len())];
                for to in 0..3 {
                    if taped.to.is_none_or(|addressee| addressee == to) && taped.from != to {
                        net.inject(taped.from, to, &taped.bytes);
                    }
                }
            }
            for node in &mut nodes {
                delivered += receive(node).len();
            }
            assert_eq!(delivered, 0);
            // Sooner and later than challenges live.
            net.pass(Duration::from_secs(round));
        }
        for (node, before) in nodes.iter().zip(before) {
            let after = seal_counters(node);
            assert_eq!(after.handshakes, before.handshakes);
            assert_eq!(node.sessions(), 2);
            assert!(after.replayed > before.replayed);
            assert!(after.stale_handshake > before.stale_handshake);
        }
        net.clear();
        send_to(&mut nodes[0], 1, b"still the same session");
        assert_eq!(receive(&mut nodes[1]).len(), 1);
        assert_eq!(net.tape().len(), 1);
    }
}

/// Frames out of order all arrive, those that were overtaken by more than the window excepted.
#[test]
fn reordered_frames_arrive() {
    let (net, mut nodes) = pair(SealMode::Encrypt);
    for number in 0..3000 {
        send_to(&mut nodes[0], 1, &numbered(number));
    }
    let tape = net.tape();
    net.clear();
    let mut dice = Rng::with_seed(9);
    let mut order: Vec<_> = (0..tape.len()).collect();
    for block in order.chunks_mut(1000) {
        for at in 0..block.len() {
            block.swap(at, dice.usize(..block.len()));
        }
    }
    // The first comes last, and too late.
    let first = order.iter().position(|at| *at == 0).expect("there");
    order.remove(first);
    order.push(0);
    for at in order {
        net.inject(0, 1, &tape[at].bytes);
    }
    assert_eq!(receive(&mut nodes[1]).len(), 2999);
    assert_eq!(seal_counters(&nodes[1]).replayed, 1);
}

/// Own frames sent back, and frames of one node under the address of another, are refused.
#[test]
fn reflected_and_relabelled_frames() {
    for mode in MODES {
        let net = Net::new(4);
        let mut nodes = net.nodes(3, mode);
        meet(&net, &mut nodes);
        for number in 0..20 {
            send_to(&mut nodes[0], 1, &numbered(number));
            send(&mut nodes[0], LinkAddr::Broadcast, &numbered(number));
        }
        let tape = net.tape();
        net.clear();
        for taped in &tape {
            for source in 0..4 {
                // Back to its sender.
                net.inject(source, taped.from, &taped.bytes);
                if source != taped.from {
                    // On to the others, as if from someone else.
                    for to in 0..3 {
                        net.inject(source, to, &taped.bytes);
                    }
                }
            }
        }
        for node in &mut nodes {
            assert_eq!(receive(node), []);
        }
        let counters = seal_counters(&nodes[1]);
        assert!(counters.wrong_source > 0 && counters.unknown_session > 0);
        assert_eq!(nodes.iter().map(Node::sessions).collect::<Vec<_>>(), [2; 3]);
    }
}

/// A restarted node gets a new session; what was sealed in the old one is refused by both incarnations.
#[test]
fn restart_replaces_the_session() {
    let net = Net::new(2);
    let one = keys([&key()]);
    let mut nodes: Vec<_> = (0..2)
        .map(|me| net.node(me, &one, SealMode::Encrypt))
        .collect();
    meet(&net, &mut nodes);
    send_to(&mut nodes[0], 1, b"to the old incarnation");
    send_to(&mut nodes[1], 0, b"from the old incarnation");
    let tape = net.tape();
    net.clear();
    nodes[1] = net.node(1, &one, SealMode::Encrypt);
    send_to(&mut nodes[0], 1, b"lost: it knows no session");
    assert_eq!(receive(&mut nodes[1]), []);
    assert_eq!(seal_counters(&nodes[1]).unknown_session, 1);
    meet(&net, &mut nodes);
    send_to(&mut nodes[0], 1, b"new");
    assert_eq!(receive(&mut nodes[1]), [(0, b"new".to_vec())]);
    // A little later what the old incarnation left under way is refused, too.
    net.pass(Duration::from_secs(20));
    settle(&net, &mut nodes);
    for taped in &tape {
        net.inject(taped.from, taped.to.expect("one"), &taped.bytes);
    }
    assert_eq!(settle(&net, &mut nodes), [[], []]);
    assert_eq!(seal_counters(&nodes[0]).handshakes, 2);
    assert_eq!(nodes[0].sessions(), 1);
}

/// A restart forged out of recorded first messages ends no session, at no time.
#[test]
fn forged_restart_ends_nothing() {
    let (net, mut nodes) = pair(SealMode::Encrypt);
    // True handshakes of other incarnations of node 1, of which the attacker lets only the beginnings through.
    let tape = {
        let other_net = Net::new(4);
        let mut others = other_net.nodes(2, SealMode::Encrypt);
        meet(&other_net, &mut others);
        other_net.tape()
    };
    for _ in 0..40 {
        for taped in tape.iter().filter(|taped| taped.bytes[0] == HANDSHAKE) {
            net.inject(1, 0, &taped.bytes);
        }
        net.pass(Duration::from_secs(1));
        receive(&mut nodes[0]);
        send_to(&mut nodes[0], 1, b"here");
        send_to(&mut nodes[1], 0, b"here");
        assert_eq!(receive(&mut nodes[1]).len(), 1);
        assert_eq!(receive(&mut nodes[0]).len(), 1);
    }
    assert!(seal_counters(&nodes[0]).wrong_key > 0);
}

/// A genuine handshake that a second incarnation of a node began and never confirmed leaves the first incarnation's session as it is.
#[test]
fn unconfirmed_handshake_replaces_nothing() {
    let net = Net::new(2);
    let one = keys([&key()]);
    let mut nodes: Vec<_> = (0..2)
        .map(|me| net.node(me, &one, SealMode::Encrypt))
        .collect();
    meet(&net, &mut nodes);
    net.clear();
    let mut twin = net.node(1, &one, SealMode::Encrypt);
    // The attacker has a genuine *first* that was made for a challenge of now, and keeps the confirmation back.
    twin.connect(LinkAddr::Local(0)).expect("connect");
    receive(&mut nodes[0]);
    receive(&mut twin);
    receive(&mut nodes[0]);
    net.wire.borrow_mut().tape.clear();
    for _ in 0..30 {
        send_to(&mut nodes[0], 1, b"to the first incarnation");
        let here = receive(&mut nodes[1]);
        assert_eq!(here, [(0, b"to the first incarnation".to_vec())]);
        send_to(&mut nodes[1], 0, b"from the first incarnation");
        assert_eq!(receive(&mut nodes[0]).len(), 1);
        net.pass(Duration::from_millis(300));
    }
    assert_eq!(seal_counters(&nodes[0]).handshakes, 1);
}

/// Whichever of a handshake's frames are lost, sessions come about on both sides; also when both begin at once.
#[test]
fn handshake_survives_loss() {
    for seed in 0..60 {
        let net = Net::new(3);
        let mut nodes = net.nodes(3, SealMode::Encrypt);
        let mut dice = Rng::with_seed(seed);
        let loss_percent = [0, 20, 40, 60][seed as usize % 4];
        net.lose(move |_| dice.usize(..100) < loss_percent);
        let mut arrived = 0;
        for round in 0..100_000 {
            for (from, to) in [(0, 1), (1, 0), (0, 2)] {
                if round % 5 == 0 {
                    send_to(&mut nodes[from], to, b"here");
                }
            }
            arrived += nodes
                .iter_mut()
                .map(|node| receive(node).len())
                .sum::<usize>();
            net.pass(Duration::from_millis(2));
            let up = |from: usize, to| nodes[from].has_session(LinkAddr::Local(to));
            if up(0, 1) && up(1, 0) && up(0, 2) && up(2, 0) && arrived > 10 {
                break;
            }
        }
        for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0)] {
            assert!(nodes[from].has_session(LinkAddr::Local(to)), "seed {seed}");
        }
        net.wire.borrow_mut().lose = None;
        settle(&net, &mut nodes);
        send_to(&mut nodes[1], 0, b"a");
        send_to(&mut nodes[0], 1, b"b");
        send_to(&mut nodes[2], 0, b"c");
        let arrived = settle(&net, &mut nodes);
        assert_eq!((arrived[0].len(), arrived[1].len()), (2, 1), "seed {seed}");
    }
}

/// Both begin at the same moment: one handshake remains, and both use its session.
#[test]
fn simultaneous_opening() {
    for _ in 0..20 {
        let net = Net::new(2);
        let mut nodes = net.nodes(2, SealMode::Encrypt);
        nodes[0].connect(LinkAddr::Local(1)).expect("connect");
        nodes[1].connect(LinkAddr::Local(0)).expect("connect");
        settle(&net, &mut nodes);
        for node in &nodes {
            assert_eq!((node.sessions(), seal_counters(node).handshakes), (1, 1));
        }
        send_to(&mut nodes[0], 1, b"one");
        send_to(&mut nodes[1], 0, b"other");
        let arrived = settle(&net, &mut nodes);
        assert_eq!((arrived[0].len(), arrived[1].len()), (1, 1));
    }
}

/// A receiver that was told a broadcast key late, or whose news were lost, asks for it. Earlier broadcasts are not delivered
/// to a node that joins later.
#[test]
fn broadcast_keys_heal() {
    let net = Net::new(3);
    let one = keys([&key()]);
    let mut nodes: Vec<_> = (0..2)
        .map(|me| net.node(me, &one, SealMode::Auth))
        .collect();
    meet(&net, &mut nodes);
    net.clear();
    for number in 0..10 {
        send(&mut nodes[0], LinkAddr::Broadcast, &numbered(number));
    }
    let earlier = net.tape();
    settle(&net, &mut nodes);
    nodes.push(net.node(2, &one, SealMode::Auth));
    // Node 2 meets the others, but control frames to it get lost for a while.
    net.lose(|taped| taped.to == Some(2) && taped.bytes[0] == SEALED && taped.bytes[1] & 4 != 0);
    for _ in 0..5 {
        nodes[2].connect(LinkAddr::Local(0)).expect("connect");
        settle(&net, &mut nodes);
    }
    net.wire.borrow_mut().lose = None;
    let mut heard = 0;
    for number in 100..110 {
        send(&mut nodes[0], LinkAddr::Broadcast, &numbered(number));
        heard += settle(&net, &mut nodes)[2].len();
    }
    assert!(heard >= 8, "only {heard} of 10");
    for taped in &earlier {
        net.inject(0, 2, &taped.bytes);
    }
    assert_eq!(receive(&mut nodes[2]), []);
    assert_eq!(seal_counters(&nodes[2]).replayed, 10);
}

/// A node without a session receives broadcasts and cannot open them.
#[test]
fn broadcasts_need_a_session() {
    let net = Net::new(2);
    let mut nodes = net.nodes(2, SealMode::Encrypt);
    send(&mut nodes[0], LinkAddr::Broadcast, b"to whom?");
    assert_eq!(settle(&net, &mut nodes), [[], []]);
    assert_eq!(seal_counters(&nodes[1]).unknown_session, 1);
    assert_eq!(net.tape().len(), 1, "and it asks nobody");
}

/// An address that the link does not have is the link's error, and is not remembered.
#[test]
fn nowhere() {
    let net = Net::new(2);
    let mut nodes = net.nodes(1, SealMode::Encrypt);
    for _ in 0..3 {
        assert!(nodes[0].connect(LinkAddr::Local(77)).is_err());
        let frame = tsumuji_link::Frame::whole(&[0; 5]);
        let sent = tsumuji_link::Link::send_one(&mut nodes[0], LinkAddr::Local(77), frame);
        assert!(sent.is_err());
    }
    settle(&net, &mut nodes);
    assert!(net.tape().is_empty());
}
