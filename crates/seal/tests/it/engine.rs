//! Whole endpoints over sealed links, with loss beneath the seal: the engine above notices nothing but the loss.

use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use tsumuji_link::Link;
use tsumuji_link::LinkAddr;
use tsumuji_link::impair::{Impair, ImpairConfig};
use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_link::udp::{Udp, UdpConfig};
use tsumuji_node::{AnyLink, Channel, Endpoint, Membership, NodeId, Options};
use tsumuji_seal::{ClusterKey, Keys, SealMode, Sealed};

/// Only turns a hang into a failure.
const LONG: Duration = Duration::from_secs(60);
const MESSAGES: u32 = 150;

type Lossy = Sealed<Impair<Udp>>;

fn keys() -> Keys {
    Keys::new([ClusterKey::generate().expect("random")]).expect("one")
}

fn udp(port: u16) -> Udp {
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    Udp::bind(addr, UdpConfig::default()).expect("bind")
}

fn inet(link: &Udp) -> SocketAddr {
    match link.local_addr() {
        LinkAddr::Inet(addr) => addr,
        other => panic!("{other}"),
    }
}

fn lossy(link: Udp, seed: u64, keys: &Keys, mode: SealMode) -> Lossy {
    let config = ImpairConfig {
        loss: 0.2,
        duplicate: 0.05,
        reorder: 0.05,
        corrupt: 0.02,
        seed,
        ..ImpairConfig::default()
    };
    Sealed::new(Impair::new(link, config).expect("impair"), keys, mode).expect("seal")
}

fn endpoint(link: impl Link + Send + 'static, membership: Membership) -> Endpoint {
    Endpoint::new(AnyLink::own(link), membership, Options::default()).expect("endpoint")
}

fn message(number: u32) -> Vec<u8> {
    let bytes = [4, 40, 1500, 9000, 70_000][number as usize % 5] + number as usize;
    let mut message: Vec<u8> = (0..bytes).map(|i| (i as u32 * 31 + number) as u8).collect();
    message[..4].copy_from_slice(&number.to_le_bytes());
    message
}

/// Sends all, takes all of the other's, in order; leaves when both have heard that all arrived. The last acknowledgements of
/// a node that leaves before may be lost, and then its peer does not know that its messages arrived.
fn exchange(mut node: Endpoint, peer: NodeId, both: &Barrier) {
    for number in 0..MESSAGES {
        node.send(peer, Channel::ordered(0), &message(number))
            .expect("send");
        if number % 3 == 2 {
            expect(&mut node, number / 3);
        }
    }
    for number in MESSAGES / 3..MESSAGES {
        expect(&mut node, number);
    }
    assert!(node.flush(LONG).expect("flush"));
    both.wait();
    let _ = node.close(Duration::from_secs(1));
}

fn expect(node: &mut Endpoint, number: u32) {
    let got = node.recv(LONG).expect("recv").expect("a message in time");
    assert!(got.body == message(number), "message {number} differs");
    node.recycle(got);
}

/// Two endpoints exchange messages of all sizes in order, while a fifth of the frames is lost and others are repeated, reordered
/// and damaged beneath the seal, those of the handshake too; in both modes.
#[test]
fn messages_survive_loss_beneath_the_seal() {
    for mode in [SealMode::Auth, SealMode::Encrypt] {
        let keys = keys();
        let links = [udp(0), udp(0)];
        let addrs = [inet(&links[0]), inet(&links[1])];
        let both = Arc::new(Barrier::new(2));
        let threads = links.into_iter().zip(0_u16..).map(|(link, me)| {
            let link = lossy(link, 7 + u64::from(me), &keys, mode);
            let node = endpoint(link, Membership::inet(NodeId(me), &addrs));
            let both = Arc::clone(&both);
            std::thread::spawn(move || exchange(node, NodeId(1 - me), &both))
        });
        for thread in threads.collect::<Vec<_>>() {
            thread.join().expect("all arrived");
        }
    }
}

/// A restarted process joins again: its new handshake replaces the session, and the engine tells the new incarnation.
#[test]
fn restarted_process_joins_again() {
    let keys = keys();
    let links = [udp(0), udp(0)];
    let addrs = [inet(&links[0]), inet(&links[1])];
    let [a, b] = links;
    let open = |link, me| {
        let link = lossy(link, 3, &keys, SealMode::Encrypt);
        endpoint(link, Membership::inet(NodeId(me), &addrs))
    };
    let mut a = open(a, 0);
    let mut incarnation = Some(b);
    for number in 0..3 {
        let link = incarnation.take().unwrap_or_else(|| udp(addrs[1].port()));
        let mut b = open(link, 1);
        let there = std::thread::spawn(move || {
            b.send(NodeId(0), Channel::ordered(0), &message(number))
                .expect("send");
            b.flush(LONG).expect("flush")
        });
        expect(&mut a, number);
        // The answer to its last frame may have got lost.
        while !there.is_finished() {
            a.progress().expect("progress");
            std::thread::yield_now();
        }
        assert!(there.join().expect("flushed"));
    }
}

/// Best-effort datagrams reach all by one sealed broadcast over shared memory.
#[test]
fn shares_arrive_by_sealed_broadcast() {
    let keys = keys();
    let job = ShmJob::create(3, ShmConfig::for_nodes(3)).expect("job");
    let mut nodes: Vec<_> = (0..3)
        .map(|me| {
            let link = Shm::attach(&job, me).expect("attach");
            let link = Sealed::new(link, &keys, SealMode::Encrypt).expect("seal");
            endpoint(link, Membership::local(NodeId(me), 3))
        })
        .collect();
    assert!(nodes[0].broadcasts());
    let mut taken = [Vec::new(), Vec::new(), Vec::new()];
    let begun = std::time::Instant::now();
    for lap in 0.. {
        let values = [lap as u8; 64];
        nodes[0]
            .datagram(
                tsumuji_node::Destination::Broadcast,
                tsumuji_node::Datagram {
                    channel_id: 1,
                    lap,
                    key: 5,
                    payload: &values,
                    ..tsumuji_node::Datagram::EMPTY
                },
                None,
            )
            .expect("datagram");
        for (node, taken) in nodes.iter_mut().zip(&mut taken) {
            struct Taker<'a>(&'a mut Vec<(u32, Vec<u8>)>);
            impl tsumuji_node::Handler for Taker<'_> {
                fn message(
                    &mut self,
                    _: &mut tsumuji_node::Context<'_>,
                    _: tsumuji_node::Delivery<'_>,
                ) {
                }
                fn datagram(
                    &mut self,
                    _: &mut tsumuji_node::Context<'_>,
                    datagram: tsumuji_node::Datagram<'_>,
                ) {
                    self.0.push((datagram.lap, datagram.payload.to_vec()));
                }
            }
            node.poll(&mut Taker(taken)).expect("poll");
        }
        if taken[1].len() > 50 && taken[2].len() > 50 {
            break;
        }
        assert!(begun.elapsed() < LONG, "no datagrams");
    }
    for (lap, payload) in taken.iter().flatten() {
        assert_eq!(payload[..], [*lap as u8; 64]);
    }
    assert!(taken[0].is_empty());
}
