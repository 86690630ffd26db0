//! Links in memory with an attacker on the wire: all that is sent is on a tape, anything may be injected, time is a number.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use tsumuji_link::impair::Clock;
use tsumuji_link::{
    Capacity, Frame, Link, LinkAddr, LinkCaps, LinkCounters, LinkError, Receiver, SealCounters,
    each,
};
use tsumuji_seal::{ClusterKey, Keys, SealMode, Sealed};

pub const FRAME_BYTES: usize = 1500;

/// A frame that somebody sent.
#[derive(Debug, Clone)]
pub struct Taped {
    pub from: u16,
    /// `None`: to all.
    pub to: Option<u16>,
    pub bytes: Vec<u8>,
}

type Lose = Box<dyn FnMut(&Taped) -> bool>;

#[derive(Default)]
pub struct Wire {
    queues: Vec<VecDeque<(u16, Vec<u8>)>>,
    pub tape: Vec<Taped>,
    pub lose: Option<Lose>,
}

/// Wire and time, shared by all.
#[derive(Clone, Default)]
pub struct Net {
    pub wire: Rc<RefCell<Wire>>,
    now: Rc<Cell<Duration>>,
}

impl Clock for Net {
    fn now(&self) -> Duration {
        self.now.get()
    }
}

pub type Node = Sealed<Mem, Net>;

pub fn keys<const N: usize>(of: [&ClusterKey; N]) -> Keys {
    Keys::new(of.into_iter().cloned()).expect("keys")
}

pub fn key() -> ClusterKey {
    ClusterKey::generate().expect("random")
}

impl Net {
    pub fn new(nodes: usize) -> Self {
        let net = Self::default();
        net.now.set(Duration::from_secs(1000));
        net.wire
            .borrow_mut()
            .queues
            .resize_with(nodes, VecDeque::new);
        net
    }

    pub fn node(&self, me: u16, keys: &Keys, mode: SealMode) -> Node {
        let net = self.clone();
        Sealed::with_clock(
            Mem {
                net,
                me,
                received_frames: 0,
            },
            keys,
            mode,
            self.clone(),
        )
        .expect("seal")
    }

    pub fn nodes(&self, count: u16, mode: SealMode) -> Vec<Node> {
        let keys = keys([&key()]);
        (0..count).map(|me| self.node(me, &keys, mode)).collect()
    }

    pub fn pass(&self, time: Duration) {
        self.now.set(self.now.get() + time);
    }

    /// What an attacker may do at any time.
    pub fn inject(&self, from: u16, to: u16, bytes: &[u8]) {
        self.wire.borrow_mut().queues[usize::from(to)].push_back((from, bytes.to_vec()));
    }

    pub fn tape(&self) -> Vec<Taped> {
        self.wire.borrow().tape.clone()
    }

    /// Everything on the wire is gone.
    pub fn clear(&self) {
        let mut wire = self.wire.borrow_mut();
        wire.tape.clear();
        wire.queues.iter_mut().for_each(VecDeque::clear);
    }

    pub fn lose(&self, lose: impl FnMut(&Taped) -> bool + 'static) {
        self.wire.borrow_mut().lose = Some(Box::new(lose));
    }
}

pub struct Mem {
    net: Net,
    me: u16,
    received_frames: u64,
}

impl Link for Mem {
    fn caps(&self) -> LinkCaps {
        LinkCaps {
            name: "mem",
            frame_bytes: FRAME_BYTES,
            receive_frames: 1 << 20,
            burst_frames: 32,
            gathers: false,
            broadcast: true,
            lossless: false,
            damages: false,
            polls_by_call: false,
        }
    }

    fn local_addr(&self) -> LinkAddr {
        LinkAddr::Local(self.me)
    }

    fn capacity(&mut self, _: LinkAddr) -> Result<Capacity, LinkError> {
        Ok(Capacity {
            frames: 32,
            bytes: usize::MAX,
        })
    }

    fn send(&mut self, to: LinkAddr, frames: &[Frame<'_>]) -> Result<usize, LinkError> {
        let nodes = self.net.wire.borrow().queues.len() as u16;
        let to = match to {
            LinkAddr::Local(to) if to < nodes => Some(to),
            LinkAddr::Broadcast => None,
            to => return Err(LinkError::NoSuchPeer { link: "mem", to }),
        };
        let mut sent = 0;
        for frame in frames {
            let taped = Taped {
                from: self.me,
                to,
                bytes: [frame.head, frame.body].concat(),
            };
            let mut wire = self.net.wire.borrow_mut();
            let lost = wire.lose.as_mut().is_some_and(|lose| lose(&taped));
            if !lost {
                for node in (0..nodes).filter(|node| *node != self.me) {
                    if to.is_none_or(|to| to == node) {
                        wire.queues[usize::from(node)].push_back((self.me, taped.bytes.clone()));
                    }
                }
            }
            wire.tape.push(taped);
            sent += 1;
        }
        Ok(sent)
    }

    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        for frames in 0..max {
            let next = self.net.wire.borrow_mut().queues[usize::from(self.me)].pop_front();
            let Some((from, bytes)) = next else {
                return Ok(frames);
            };
            self.received_frames += 1;
            receiver.frame(LinkAddr::Local(from), &bytes);
        }
        Ok(max)
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        self.net.pass(timeout);
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        Ok(true)
    }

    fn note_time(&mut self, _: u64) {}

    fn counters(&self) -> LinkCounters {
        LinkCounters {
            received_frames: self.received_frames,
            ..LinkCounters::default()
        }
    }
}

/// Sends one frame.
pub fn send(node: &mut Node, to: LinkAddr, frame: &[u8]) {
    let taken = node.send_one(to, Frame::whole(frame));
    assert!(taken.expect("send_with"));
}

pub fn send_to(node: &mut Node, to: u16, frame: &[u8]) {
    send(node, LinkAddr::Local(to), frame);
}

/// Receives all that is there.
pub fn receive(node: &mut Node) -> Vec<(u16, Vec<u8>)> {
    let mut frames = Vec::new();
    // Own frames do not count, so 0 does not mean that nothing is left.
    for _ in 0..50 {
        node.receive(
            1024,
            &mut each(|from, frame| {
                let LinkAddr::Local(from) = from else {
                    panic!("{from}")
                };
                frames.push((from, frame.to_vec()));
            }),
        )
        .expect("receive");
    }
    frames
}

/// Lets all receive and the time pass, until nothing more is under way; returns what arrived, by node.
pub fn settle(net: &Net, nodes: &mut [Node]) -> Vec<Vec<(u16, Vec<u8>)>> {
    let mut arrived = vec![Vec::new(); nodes.len()];
    for _ in 0..60 {
        for (node, arrived) in nodes.iter_mut().zip(&mut arrived) {
            arrived.extend(receive(node));
        }
        net.pass(Duration::from_millis(2));
    }
    arrived
}

/// All pairs have sessions.
pub fn meet(net: &Net, nodes: &mut [Node]) {
    for _ in 0..2000 {
        let addrs: Vec<_> = nodes.iter().map(Link::local_addr).collect();
        let mut missing = false;
        for node in nodes.iter_mut() {
            let me = node.local_addr();
            for &to in addrs.iter().filter(|&&to| to != me) {
                if !node.has_session(to) {
                    missing = true;
                    node.connect(to).expect("connect");
                }
            }
        }
        if !missing {
            settle(net, nodes);
            return;
        }
        for node in nodes.iter_mut() {
            assert_eq!(receive(node), []);
        }
        net.pass(Duration::from_millis(1));
    }
    panic!("no sessions");
}

pub fn seal_counters(node: &Node) -> SealCounters {
    node.sealing().expect("it seals")
}

/// Received frames that a node dropped, for whatever reason.
pub fn drops(node: &Node) -> u64 {
    let by_reason = seal_counters(node).drops_by_reason();
    by_reason.iter().map(|(_, count)| count).sum()
}

/// Every frame that a node received was used or is counted under one reason.
pub fn assert_all_counted(node: &Node) {
    let counters = seal_counters(node);
    let counted = counters.opened + counters.control + counters.handshake_frames + drops(node);
    let received = node.inner().counters().received_frames;
    assert_eq!(counted, received, "{counters:?}");
}
