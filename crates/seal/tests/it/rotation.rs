//! Keys change while frames flow.

use std::time::Duration;

use crate::mem::{Net, Node, key, keys, meet, receive, seal_counters, send, send_to, settle};
use tsumuji_link::LinkAddr;
use tsumuji_seal::{Keys, SealMode};

/// Sends some frames between all and to all; returns how many got lost.
fn traffic(net: &Net, nodes: &mut [Node], rounds: u32) -> usize {
    let count = nodes.len();
    let (mut sent, mut arrived) = (0, 0);
    for round in 0..rounds {
        let frame = round.to_le_bytes();
        #[allow(clippy::needless_range_loop)] // each speaks to all others
        for from in 0..count {
            send(&mut nodes[from], LinkAddr::Broadcast, &frame);
            for to in (0..count).filter(|to| *to != from) {
                send_to(&mut nodes[from], to as u16, &frame);
            }
        }
        sent += 2 * count * (count - 1);
        net.pass(Duration::from_micros(500));
        for node in nodes.iter_mut() {
            arrived += receive(node).len();
        }
    }
    assert!(arrived <= sent);
    sent - arrived
}

fn handshakes(nodes: &[Node]) -> u64 {
    nodes.iter().map(|n| seal_counters(n).handshakes).sum()
}

fn reload(net: &Net, nodes: &mut [Node], new: &Keys) -> usize {
    let mut lost = 0;
    // One after the other, with traffic between, as an operator does it.
    for at in 0..nodes.len() {
        nodes[at].reload(new).expect("reload");
        lost += traffic(net, nodes, 100);
    }
    lost + traffic(net, nodes, 1000)
}

/// Add the new key everywhere, make it the first, remove the old: no frame between two is lost at any step, and few of those to
/// all; in the end the old key opens nothing.
#[test]
fn rotation_under_traffic() {
    for mode in [SealMode::Auth, SealMode::Encrypt] {
        let (old, new) = (key(), key());
        let net = Net::new(5);
        let mut nodes: Vec<_> = (0..3).map(|me| net.node(me, &keys([&old]), mode)).collect();
        meet(&net, &mut nodes);
        assert_eq!(traffic(&net, &mut nodes, 100), 0);
        assert_eq!(reload(&net, &mut nodes, &keys([&old, &new])), 0);
        assert_eq!(handshakes(&nodes), 6, "nothing to agree yet");
        assert_eq!(reload(&net, &mut nodes, &keys([&new, &old])), 0);
        let agreed = handshakes(&nodes) - 6;
        assert!(
            (6..=12).contains(&agreed),
            "{agreed} sides of 3 new sessions"
        );
        let lost = reload(&net, &mut nodes, &keys([&new]));
        assert!(
            lost <= 3 * 2 * 4,
            "{lost} broadcasts lost around the new keys"
        );
        assert_eq!(
            handshakes(&nodes) - 6,
            agreed,
            "sessions were under the new key"
        );

        nodes.push(net.node(3, &keys([&old]), mode));
        for _ in 0..50 {
            send_to(&mut nodes[3], 0, b"let me in");
            assert!(settle(&net, &mut nodes).iter().all(Vec::is_empty));
        }
        assert_eq!(nodes[3].sessions(), 0);
        nodes[3] = net.node(3, &keys([&new]), mode);
        meet(&net, &mut nodes);
        assert_eq!(traffic(&net, &mut nodes, 10), 0);
    }
}

/// Two nodes that disagree about which key is first settle on one session, and do not renew it for ever.
#[test]
fn crossed_keys_settle() {
    let (one, other) = (key(), key());
    let net = Net::new(2);
    let mut nodes = vec![
        net.node(0, &keys([&one]), SealMode::Encrypt),
        net.node(1, &keys([&one]), SealMode::Encrypt),
    ];
    meet(&net, &mut nodes);
    nodes[0].reload(&keys([&other, &one])).expect("reload");
    nodes[1].reload(&keys([&one, &other])).expect("reload");
    assert_eq!(traffic(&net, &mut nodes, 20_000), 0);
    assert_eq!(handshakes(&nodes), 4, "the first, and one renewal");
}

/// A node whose peers do not know the new key yet goes on in its session, asks seldom, and changes once they do.
#[test]
fn renewal_waits_for_the_peer() {
    let (old, new) = (key(), key());
    let net = Net::new(2);
    let mut nodes = vec![
        net.node(0, &keys([&old]), SealMode::Encrypt),
        net.node(1, &keys([&old]), SealMode::Encrypt),
    ];
    meet(&net, &mut nodes);
    nodes[0].reload(&keys([&new, &old])).expect("reload");
    assert_eq!(traffic(&net, &mut nodes, 120_000), 0);
    let refused = seal_counters(&nodes[1]).wrong_key;
    assert!((20..150).contains(&refused), "{refused} in a minute");
    assert_eq!(handshakes(&nodes), 2);
    nodes[1].reload(&keys([&old, &new])).expect("reload");
    assert_eq!(traffic(&net, &mut nodes, 30_000), 0);
    assert_eq!(handshakes(&nodes), 4);
}

/// Sessions under a key that is removed end at once, on the side that removed it.
#[test]
fn removed_key_ends_sessions() {
    let (old, new) = (key(), key());
    let net = Net::new(2);
    let mut nodes = vec![
        net.node(0, &keys([&old]), SealMode::Encrypt),
        net.node(1, &keys([&old]), SealMode::Encrypt),
    ];
    meet(&net, &mut nodes);
    send_to(&mut nodes[1], 0, b"under way");
    nodes[0].reload(&keys([&new])).expect("reload");
    assert_eq!(nodes[0].sessions(), 0);
    send(&mut nodes[1], LinkAddr::Broadcast, b"to all");
    assert_eq!(settle(&net, &mut nodes)[0], []);
    assert!(seal_counters(&nodes[0]).unknown_session >= 2);
    nodes[1].reload(&keys([&new])).expect("reload");
    meet(&net, &mut nodes);
    assert_eq!(traffic(&net, &mut nodes, 10), 0);
}
