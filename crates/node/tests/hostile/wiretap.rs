//! The way of an attacker that is the switch: all cables end at it, it passes frames on, and does with them what it likes.
//!
//! Each node has a network namespace with one end of a veth pair, the other ends lie in the namespace of the thread that calls
//! `Wiretap::new`: all of that goes away with the threads. No node can tell whether a frame comes from another node.
//!
//! A raw socket hears all ends; the address by which it heard a node is the door to it.

use std::io::Read;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use fastrand::Rng;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tsumuji_link::ether::{ETHERTYPE, Frames, HEADER_BYTES, MacAddr};

use crate::attacker::{ATTACKER, Attacker, NODES, Sent};
use crate::segment;

/// As the links are opened.
pub(crate) const MTU: u32 = 1500;
const UDP_PORT: u16 = 7000;
/// All protocols (`ETH_P_ALL`), as the kernel wants it: big-endian.
const ALL_PROTOCOLS: i32 = (3_u16).to_be() as i32;
/// Nothing is heard for so long: time to act.
const IDLE: Duration = Duration::from_millis(1);
/// Only turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(20);
/// Of a frame: where its EtherType lies, and which says IPv4.
const ETHERTYPE_AT: usize = 12;
const ETHERTYPE_IPV4: [u8; 2] = [8, 0];
const IP_BYTES: usize = 20;
/// Of an IPv4 packet without options: where its protocol lies, which says UDP, and where its checksum lies.
const IP_PROTOCOL_AT: usize = HEADER_BYTES + 9;
const IP_PROTOCOL_UDP: u8 = 17;
const IP_CHECKSUM_AT: usize = 10;
const UDP_BYTES: usize = 8;
/// Of the datagram: its source port, its checksum, and what it carries.
const UDP_AT: usize = HEADER_BYTES + IP_BYTES;
const UDP_CHECKSUM_AT: usize = UDP_AT + 6;
const UDP_CONTENT_AT: usize = UDP_AT + UDP_BYTES;
/// The shortest frame that Ethernet has, without its checksum.
const ETHER_BYTES_MIN: usize = 60;
/// One in so many frames is dropped, one sent twice, one held back, one changed.
const MISFORTUNE_ONE_IN: usize = 40;

/// Of node `node`, or of the attacker.
pub(crate) fn mac(node: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, 1 + node as u8])
}

pub(crate) fn inet(node: usize) -> SocketAddr {
    let ip = Ipv4Addr::new(10, 9, 0, 1 + node as u8);
    SocketAddr::new(IpAddr::V4(ip), UDP_PORT)
}

/// Where a node finds its interface: in a namespace of its thread's own, under this name.
pub(crate) const INTERFACE: &str = "n0";

/// What a node's thread does first: makes its namespace, and one cable to the switch.
pub(crate) struct Plug {
    node: usize,
    switch_thread: i32,
    made: Sender<usize>,
    heard: Receiver<()>,
}

impl Plug {
    /// Enters a namespace with the interface `INTERFACE`; returns when the switch knows the cable.
    pub(crate) fn plug_in(self) {
        segment::enter().expect("a network namespace");
        let (node, to) = (self.node, self.switch_thread);
        let queues = "numrxqueues 1 numtxqueues 1";
        let ip = inet(node).ip();
        let mac = mac(node);
        segment::ip(&format!(
            "link add {INTERFACE} mtu {MTU} {queues} address {mac} type veth peer name p{node} mtu {MTU} {queues}\n\
             link set p{node} netns {to}\nlink set {INTERFACE} addrgenmode none\nlink set lo up\n\
             addr add {ip}/24 brd + dev {INTERFACE}\nlink set {INTERFACE} up\n"
        ))
        .expect("a cable");
        self.made.send(node).expect("the switch");
        let socket = std::net::UdpSocket::bind((ip, 0)).expect("bind");
        socket.set_broadcast(true).expect("broadcast");
        let begun = Instant::now();
        loop {
            let _ = socket.send_to(b"here", (Ipv4Addr::new(10, 9, 0, 255), 9)); // before the carrier is up it may fail
            match self.heard.recv_timeout(Duration::from_millis(2)) {
                Ok(_) => return,
                Err(RecvTimeoutError::Timeout) => {
                    assert!(begun.elapsed() < PATIENCE, "the switch does not hear us");
                }
                Err(error) => panic!("the switch: {error}"),
            }
        }
    }
}

type OnFrame = Box<dyn FnMut(&[u8])>;

pub(crate) struct Wiretap {
    socket: Socket,
    doors: Vec<SockAddr>,
    over_udp: bool,
    /// Held back.
    late: Option<(usize, Vec<u8>)>,
    /// What was heard of the protocol, to look for what should not be there.
    pub(crate) on_frame: OnFrame,
}

impl Wiretap {
    /// Enters a namespace with the cables of all nodes; their plugs go to `give` in turn.
    pub(crate) fn new(over_udp: bool, give: impl Fn(Plug)) -> Self {
        segment::enter().expect("a network namespace");
        let socket = Socket::new(
            Domain::PACKET,
            Type::RAW,
            Some(Protocol::from(ALL_PROTOCOLS)),
        );
        let socket = socket.expect("a raw socket");
        let _ = socket.set_recv_buffer_size(8 << 20); // a smaller one loses more, as switches do
        let switch_thread = rustix::thread::gettid().as_raw_nonzero().get();
        let (made, is_made) = channel();
        let mut tap = Self {
            socket,
            doors: Vec::new(),
            over_udp,
            late: None,
            on_frame: Box::new(|_| {}),
        };
        for node in 0..NODES {
            let (learnt, heard) = channel();
            give(Plug {
                node,
                switch_thread,
                made: made.clone(),
                heard,
            });
            assert_eq!(is_made.recv().expect("a node"), node);
            tap.learn(node);
            learnt.send(()).expect("the node");
        }
        tap.socket.set_read_timeout(Some(IDLE)).expect("a timeout");
        tap
    }

    /// Brings the cable up and waits for a frame of the node.
    fn learn(&mut self, node: usize) {
        segment::ip(&format!(
            "link set p{node} addrgenmode none\nlink set p{node} up\n"
        ))
        .expect("a port");
        self.socket
            .set_read_timeout(Some(PATIENCE))
            .expect("a timeout");
        loop {
            let mut nothing = [MaybeUninit::new(0_u8); 1];
            let (_, door) = self.socket.peek_from(&mut nothing).expect("a frame");
            let mut bytes = [0; 2048];
            let count = (&self.socket).read(&mut bytes).expect("the frame");
            if bytes[..count].get(6..12) == Some(&mac(node).0) {
                self.doors.push(door);
                return;
            }
        }
    }

    /// Passes on what is there, for a moment; the attacker hears it and has its say.
    pub(crate) fn poll_once(&mut self, attacker: &mut Attacker, acts_per_frame: usize) {
        let mut bytes = [0; 4096];
        match (&self.socket).read(&mut bytes) {
            Ok(count) => self.pass(&mut bytes[..count], attacker),
            Err(_) => self.release(),
        }
        for _ in 0..acts_per_frame {
            let sent = attacker.act();
            let frame = self.wrap(&sent, &mut attacker.dice);
            self.inject(sent.to, &frame);
        }
    }

    fn pass(&mut self, frame: &mut [u8], attacker: &mut Attacker) {
        let Some((ends, _)) = frame.split_first_chunk::<12>() else {
            return;
        };
        let node_of = |bytes: &[u8]| (0..NODES).find(|node| mac(*node).0 == bytes);
        let to_all = ends[0] & 1 == 1;
        let (to, from) = (node_of(&ends[..6]), node_of(&ends[6..]));
        let Some(from) = from else { return };
        let Self {
            over_udp, on_frame, ..
        } = self;
        each_frame(*over_udp, frame, |frame| {
            on_frame(frame);
            if to_all || to.is_some() {
                attacker.hear(Sent {
                    from,
                    to: to.unwrap_or(usize::from(from == 0)),
                    frame: frame.to_vec(),
                });
            }
        });
        let Some(to) = to else {
            for to in (0..NODES).filter(|to| to_all && *to != from) {
                self.inject(to, frame);
            }
            return;
        };
        let dice = &mut attacker.dice;
        match dice.usize(..MISFORTUNE_ONE_IN) {
            0 => {}
            1 => {
                self.inject(to, frame);
                self.inject(to, frame);
            }
            2 => {
                self.release();
                self.late = Some((to, frame.to_vec()));
            }
            3 => {
                let from = if self.over_udp {
                    UDP_CONTENT_AT
                } else {
                    HEADER_BYTES
                };
                let at = from.min(frame.len() - 1);
                let at = dice.usize(at..frame.len());
                frame[at] ^= 1 << dice.usize(..8);
                self.inject(to, frame);
            }
            _ => self.inject(to, frame),
        }
    }

    fn release(&mut self) {
        if let Some((to, frame)) = self.late.take() {
            self.inject(to, &frame);
        }
    }

    fn inject(&mut self, to: usize, frame: &[u8]) {
        let _ = self.socket.send_to(frame, &self.doors[to]); // a full queue is a lost frame
    }

    fn wrap(&self, sent: &Sent, dice: &mut Rng) -> Vec<u8> {
        let mut frame = Vec::with_capacity(1600);
        frame.extend(mac(sent.to).0);
        frame.extend(mac(sent.from).0);
        if self.over_udp {
            frame.extend(ETHERTYPE_IPV4);
            let (from, to) = (inet(sent.from), inet(sent.to));
            let total = (IP_BYTES + UDP_BYTES + sent.frame.len()) as u16;
            let mut ip = vec![0x45, 0];
            ip.extend(total.to_be_bytes());
            ip.extend([0, 0, 0x40, 0, 64, IP_PROTOCOL_UDP, 0, 0]); // whole (DF), 64 hops
            for addr in [from, to] {
                let IpAddr::V4(addr) = addr.ip() else {
                    unreachable!("`inet` makes them")
                };
                ip.extend(addr.octets());
            }
            let sum: u32 = ip
                .chunks(2)
                .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
                .sum();
            let sum = (sum & 0xffff) + (sum >> 16);
            ip[IP_CHECKSUM_AT..][..2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
            frame.extend(ip);
            frame.extend(from.port().to_be_bytes());
            frame.extend(to.port().to_be_bytes());
            frame.extend((total - IP_BYTES as u16).to_be_bytes());
            frame.extend([0, 0]); // no checksum
        } else {
            frame.extend(ETHERTYPE.to_be_bytes());
            // Before each frame its length, which may be a lie, too.
            let stated = if dice.u8(..20) == 0 {
                dice.u16(..)
            } else {
                sent.frame.len() as u16
            };
            frame.extend(stated.to_le_bytes());
        }
        frame.extend(&sent.frame);
        frame.resize(frame.len().max(ETHER_BYTES_MIN), 0);
        frame
    }
}

/// The frames of the protocol that an Ethernet frame holds. A datagram's checksum, which its host left to the device, is taken out.
fn each_frame(over_udp: bool, frame: &mut [u8], mut on_frame: impl FnMut(&[u8])) {
    let is = |ethertype: [u8; 2]| frame.get(ETHERTYPE_AT..HEADER_BYTES) == Some(&ethertype[..]);
    if !over_udp {
        if is(ETHERTYPE.to_be_bytes()) {
            Frames::new(&frame[HEADER_BYTES..]).for_each(on_frame);
        }
        return;
    }
    let ours = frame.len() > UDP_CONTENT_AT
        && is(ETHERTYPE_IPV4)
        && frame[IP_PROTOCOL_AT] == IP_PROTOCOL_UDP
        && frame[UDP_AT..][..2] == UDP_PORT.to_be_bytes();
    if ours {
        frame[UDP_CHECKSUM_AT..][..2].fill(0);
        on_frame(&frame[UDP_CONTENT_AT..]);
    }
}

const _: () = assert!(ATTACKER < 200); // addresses end in a byte
