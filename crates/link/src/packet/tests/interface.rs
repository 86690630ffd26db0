//! Links on virtual interfaces: hostile neighbours, a full ring, interfaces that go down, come back or are removed.
//!
//! Needs root, or `unshare -Urn`; without, each test reports that and tests nothing.

#[path = "../../../tests/common/segment.rs"]
mod segment;

use std::io::Read;
use std::time::Instant;

use rustix::thread::{CapabilitySet, CapabilitySets};

use self::segment::{Segment, ip, lacking};
use super::*;
use crate::ether::{announcement, write_header};
use crate::{Frames, each};

/// No step takes this long on a working machine.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL_EVERY: Duration = Duration::from_millis(10);

/// Makes interfaces n0 and n1, connected, that only this thread sees. `false`: not possible here.
fn on_veth(mtu: u32) -> bool {
    if let Some(reason) = lacking() {
        eprintln!("{reason}");
        return false;
    }
    Segment::new(2, mtu);
    true
}

fn open(interface: &str) -> Packet {
    Packet::open(interface, PacketConfig::default()).expect("open")
}

fn refusal(interface: &str, config: PacketConfig) -> String {
    Packet::open(interface, config)
        .expect_err("refused")
        .to_string()
}

fn mac(interface: &str) -> MacAddr {
    Interface::open(interface).expect("interface").mac
}

/// A bare socket that sends any frame by `interface`, and receives frames of our EtherType there.
fn bare(interface: &str) -> Socket {
    let socket = raw_socket().expect("socket");
    let index = Interface::open(interface).expect("interface").index;
    sys::bind(socket.as_fd(), index).expect("bind");
    socket
}

fn send(link: &mut Packet, to: LinkAddr, payload: &[u8]) {
    let sent = link.send_one(to, Frame::whole(payload));
    assert!(sent.expect("send"), "room");
    link.flush().expect("flush");
}

/// The next frame that is delivered.
fn next(link: &mut Packet) -> (LinkAddr, Vec<u8>) {
    let begun = Instant::now();
    let mut got = None;
    while got.is_none() {
        assert!(begun.elapsed() < PATIENCE, "no frame");
        link.wait(POLL_EVERY).expect("wait");
        let keep = |from, frame: &[u8]| got = Some((from, frame.to_vec()));
        link.receive(1, &mut each(keep)).expect("receive");
    }
    got.expect("just seen")
}

/// The next frame that a bare socket receives, whole.
fn next_bare(socket: &Socket) -> Vec<u8> {
    let begun = Instant::now();
    let mut buffer = [0; 2048];
    loop {
        match (&*socket).read(&mut buffer) {
            Ok(bytes) => return buffer[..bytes].to_vec(),
            Err(_) => {
                assert!(begun.elapsed() < PATIENCE, "no frame");
                std::thread::sleep(POLL_EVERY);
            }
        }
    }
}

fn framed(destination: MacAddr, source: MacAddr, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; ether::HEADER_BYTES];
    write_header(&mut frame, destination, source);
    frame.extend_from_slice(payload);
    frame
}

/// Frames that are not for us never reach the program; malformed ones are counted; afterwards the link works on.
#[test]
fn hostile_frames_are_dropped() {
    if !on_veth(1500) {
        return;
    }
    // The sender's end has a larger MTU than ours.
    ip("link set n1 mtu 1504\n").expect("mtu");
    let mut link = open("n0");
    let (me, peer) = (mac("n0"), mac("n1"));
    let hostile = bare("n1");
    let group = MacAddr([1, 0, 0x5e, 0, 0, 1]);
    let unknown = MacAddr([2, 9, 9, 9, 9, 9]);
    let mut other_type = framed(me, peer, &[1; 50]);
    other_type[12..14].copy_from_slice(&0x0800u16.to_be_bytes());
    let unseen = [
        framed(group, peer, &[1; 50]),
        framed(unknown, peer, &[1; 50]),
        other_type,
        announcement(peer).to_vec(),
    ];
    let counted = [
        framed(me, me, &[1; 50]),
        framed(MacAddr::BROADCAST, me, &[1; 50]),
        framed(me, MacAddr::BROADCAST, &[1; 50]),
        framed(me, group, &[1; 50]),
        framed(me, MacAddr::ZERO, &[1; 50]),
        framed(me, peer, &[]),
        framed(me, peer, &[1; 1501]),
        framed(me, peer, &[1; 1504]),
        // Lengths that reach beyond the payload: by one byte, by far.
        framed(
            me,
            peer,
            &[49, 0].into_iter().chain([1; 48]).collect::<Vec<_>>(),
        ),
        framed(me, peer, &[0xff; 50]),
    ];
    for frame in unseen.iter().chain(&counted) {
        hostile.send(frame).expect("send");
    }
    assert!(
        hostile.send(&[0xff; 13]).is_err(),
        "the kernel sends no half header"
    );
    hostile
        .send(&framed(me, peer, b"\x05\0sound"))
        .expect("send");
    let from = LinkAddr::Ether(peer);
    assert_eq!(next(&mut link), (from, b"sound".to_vec()));
    let padded = [&b"\x03\0all"[..], &[0; 41]].concat();
    hostile
        .send(&framed(MacAddr::BROADCAST, unknown, &padded))
        .expect("send");
    let everyone = (LinkAddr::Ether(unknown), b"all".to_vec());
    assert_eq!(next(&mut link), everyone);
    // The sound frames before an impossible length are delivered.
    let half = b"\x03\0all\xff\xff";
    hostile
        .send(&framed(MacAddr::BROADCAST, unknown, half))
        .expect("send");
    assert_eq!(next(&mut link), everyone);
    let counters = link.counters();
    assert_eq!(counters.received_frames, 3);
    assert_eq!(counters.dropped_frames, counted.len() as u64 + 1);
}

/// Frames of a flood that do not fit the ring are counted exactly by the kernel, and the link works on.
#[test]
fn full_ring_is_counted() {
    if !on_veth(9000) {
        return;
    }
    let config = PacketConfig {
        buffer_bytes: Some(0),
        ..PacketConfig::default()
    };
    let mut link = Packet::open("n0", config).expect("open");
    let mut peer = open("n1");
    let slots = link.ring.slots();
    let to = link.local_addr();
    // The announcement of the peer has a slot.
    let kept = slots - 1;
    for number in 0..slots + 50 {
        send(&mut peer, to, &[number as u8; 8998]);
    }
    for number in 0..kept {
        assert_eq!(next(&mut link).1, [number as u8; 8998]);
    }
    assert_eq!(link.receive(1, &mut each(|_, _| {})).expect("receive"), 0);
    assert_eq!(link.counters().dropped_frames, (slots + 50 - kept) as u64);
    send(&mut peer, to, b"again");
    assert_eq!(next(&mut link).1, b"again");
    assert_eq!(
        link.counters().dropped_frames,
        (slots + 50 - kept) as u64,
        "counted once"
    );
}

/// Batches arrive whole and in order, at short and long MTUs; frames that the kernel refuses are queued and leave later.
#[test]
fn batches_arrive() {
    for mtu in [600, 9000, 65_535] {
        std::thread::spawn(move || {
            if !on_veth(mtu) {
                return;
            }
            let (mut a, mut b) = (open("n0"), open("n1"));
            let (to, largest) = (b.local_addr(), a.caps().frame_bytes);
            let mut sent = Vec::new();
            for round in 0..20u8 {
                let room = a.capacity(to).expect("capacity");
                let count = (room.bytes / largest).clamp(1, room.frames);
                let bodies: Vec<Vec<u8>> = (0..count)
                    .map(|index| vec![round ^ index as u8; largest - 40])
                    .collect();
                let head = [round; 40];
                let frames = bodies.iter().map(|body| Frame { head: &head, body });
                let frames: Frames<'_> = frames.collect();
                assert_eq!(a.send(to, &frames).expect("send"), count);
                a.flush().expect("flush");
                for body in &bodies {
                    assert_eq!(next(&mut b).1, [&head[..], body].concat());
                }
                sent.push(count as u64);
            }
            assert_eq!(a.counters().sent_frames, sent.iter().sum::<u64>());
            assert_eq!(a.counters().sent_bytes, b.counters().received_bytes);
            ip("link set n0 down\n").expect("down");
            let body = vec![1; 400];
            let frame = Frame {
                head: &[2; 40],
                body: &body,
            };
            assert!(a.send_one(to, frame).expect("send"));
            a.flush().expect("flush");
            assert_eq!(a.counters().dropped_frames, 1);
        })
        .join()
        .expect("no panic");
    }
}

/// A link announces itself when it is opened; other links deliver no frame of it.
#[test]
fn opening_announces() {
    if !on_veth(1500) {
        return;
    }
    let mut link = open("n1");
    let tap = bare("n1");
    drop(open("n0"));
    assert_eq!(next_bare(&tap), announcement(mac("n0")));
    assert_eq!(link.receive(8, &mut each(|_, _| {})).expect("receive"), 0);
    assert_eq!(link.counters(), LinkCounters::default());
}

/// While the interface is down frames are dropped and counted, and no call fails; when it is up again it is announced and works.
#[test]
fn interface_goes_down_and_up() {
    if !on_veth(1500) {
        return;
    }
    let (mut a, mut b) = (open("n0"), open("n1"));
    let (to_a, to_b) = (a.local_addr(), b.local_addr());
    send(&mut a, to_b, b"before");
    assert_eq!(next(&mut b).1, b"before");
    let tap = bare("n1");
    ip("link set n0 down\n").expect("down");
    send(&mut a, to_b, b"lost");
    send(&mut a, to_b, b"lost, too");
    assert_eq!(a.counters().dropped_frames, 2);
    assert_eq!(a.counters().sent_frames, 1);
    // The other end has lost its carrier: frames that the device refuses are dropped in the end, and nothing fails meanwhile.
    send(&mut b, to_a, b"lost");
    let begun = Instant::now();
    while b.counters().dropped_frames == 0 {
        assert!(begun.elapsed() < PATIENCE, "the frame is kept for ever");
        b.wait(POLL_EVERY).expect("wait");
        b.arm_fd().expect("arm_fd");
    }
    // Neither link is kept awake by a pending socket error.
    for link in [&mut a, &mut b] {
        // The other's announcement lies in the ring.
        assert_eq!(link.receive(8, &mut each(|_, _| {})).expect("receive"), 0);
        link.wait(Duration::ZERO).expect("wait");
        assert!(link.arm_fd().expect("arm_fd"));
        assert!(link.socket.take_error().expect("SO_ERROR").is_none());
        assert_ne!(link.watch.state(), InterfaceState::Gone);
    }
    assert_eq!(
        a.watch.refresh().or(Some(a.watch.state())),
        Some(InterfaceState::Down)
    );
    ip("link set n0 up\n").expect("up");
    let begun = Instant::now();
    while a.watch.state() != InterfaceState::Up {
        assert!(begun.elapsed() < PATIENCE, "never up");
        a.wait(POLL_EVERY).expect("wait");
    }
    assert_eq!(next_bare(&tap), announcement(mac("n0")));
    send(&mut a, to_b, b"after");
    assert_eq!(next(&mut b).1, b"after");
    send(&mut b, to_a, b"answer");
    assert_eq!(next(&mut a).1, b"answer");
}

/// A link whose interface was removed reports an error, whether it sends, sleeps or polls, and again on later calls.
#[test]
fn removed_interface_is_an_error() {
    if !on_veth(1500) {
        return;
    }
    let (mut a, mut b) = (open("n0"), open("n1"));
    let to_b = b.local_addr();
    ip("link del n0\n").expect("remove");
    for _ in 0..2 {
        a.send_one(to_b, Frame::whole(&[0])).expect("gathered");
        let error = a.flush().expect_err("gone").to_string();
        assert!(error.contains("n0 was removed; open"), "{error}");
    }
    let begun = Instant::now();
    for _ in 0..2 {
        let error = loop {
            assert!(begun.elapsed() < PATIENCE, "no error");
            if let Err(error) = b.wait(PATIENCE) {
                break error.to_string();
            }
        };
        assert!(error.contains("n1 was removed; open"), "{error}");
        b.checks.hasten();
    }
    // A process that only polls gets the error as well.
    b.checks.hasten();
    assert!(b.receive(1, &mut each(|_, _| {})).is_err());
}

/// Impossible options are refused with advice.
#[test]
fn impossible_wishes_are_refused() {
    if !on_veth(1500) {
        return;
    }
    for bytes in [0, 511, 1501, usize::MAX] {
        let config = PacketConfig {
            frame_bytes: Some(bytes),
            ..PacketConfig::default()
        };
        let text = refusal("n0", config);
        assert!(text.contains("`n0`, whose MTU is 1500; take 512"), "{text}");
    }
    ip("link set n0 mtu 300\n").expect("mtu");
    assert!(refusal("n0", PacketConfig::default()).contains("whose MTU is 300"));
    let at_once = PacketConfig {
        up_timeout: Duration::ZERO,
        ..PacketConfig::default()
    };
    ip("link set n0 mtu 1500 down\n").expect("down");
    assert!(refusal("n0", at_once).contains("ip link set dev n0 up"));
    let begun = Instant::now();
    loop {
        // The kernel notices a missing carrier a little later.
        let text = refusal("n1", at_once);
        if text.contains("`n1` is up but has no carrier") {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{text}");
        std::thread::sleep(POLL_EVERY);
    }
    assert!(refusal("n2", at_once).contains("there are lo, n1, n0"));
    // All refusals gave the interface back.
    ip("link set n0 up\n").expect("up");
    drop(open("n0"));
}

/// Processes share interfaces: each gets its own frames and what is sent to all, whatever interface its peer shares with others.
#[test]
fn slots_share_an_interface() {
    if !on_veth(1500) {
        return;
    }
    let at = |interface: &str, slot: u8| {
        let config = PacketConfig {
            slot,
            ..PacketConfig::default()
        };
        Packet::open(interface, config).expect("open")
    };
    let mut near = [0, 1, 63].map(|slot| at("n0", slot));
    let mut far = [0, 1].map(|slot| at("n1", slot));
    assert_eq!(
        near[1].local_addr(),
        LinkAddr::Ether(mac("n0").of_slot(1).expect("a slot"))
    );
    let text = refusal(
        "n0",
        PacketConfig {
            slot: 64,
            ..PacketConfig::default()
        },
    );
    assert_eq!(text, "slot 64: accepted are 0 to 63");
    let text = refusal(
        "n0",
        PacketConfig {
            slot: 1,
            ..PacketConfig::default()
        },
    );
    assert!(
        text.contains("`n0` is in use by this process already"),
        "{text}"
    );
    for (index, number) in (0..near.len()).zip(b'a'..) {
        for there in &mut far {
            let (mine, theirs) = (near[index].local_addr(), there.local_addr());
            send(&mut near[index], theirs, &[number]);
            assert_eq!(next(there), (mine, vec![number]));
            send(there, mine, &[number, 1]);
            assert_eq!(next(&mut near[index]), (theirs, vec![number, 1]));
        }
    }
    let from = near[2].local_addr();
    send(&mut near[2], LinkAddr::Broadcast, b"all");
    for there in &mut far {
        assert_eq!(next(there), (from, b"all".to_vec()));
    }
    // Nothing else came: neither frames for another slot nor those of this host.
    for link in near.iter_mut().chain(&mut far) {
        link.wait(POLL_EVERY).expect("wait");
        let none = link.receive(8, &mut each(|from, _| panic!("a frame of {from}")));
        assert_eq!(none.expect("receive"), 0);
        assert_eq!(link.counters().dropped_frames, 0);
    }
}

/// Addresses that no peer of this link can have are refused by name; our own address, too.
#[test]
fn impossible_addresses_are_refused() {
    if !on_veth(1500) {
        return;
    }
    let mut link = open("n0");
    for to in [
        LinkAddr::Local(1),
        LinkAddr::Inet("127.0.0.1:1".parse().expect("an address")),
        LinkAddr::Ether(MacAddr::ZERO),
        LinkAddr::Ether(MacAddr([1, 0, 0x5e, 0, 0, 1])),
        link.local_addr(),
    ] {
        let error = link.send_one(to, Frame::whole(&[0])).expect_err("refused");
        assert!(matches!(error, LinkError::NoSuchPeer { .. }), "{error}");
    }
    let broadcast = LinkAddr::Ether(MacAddr::BROADCAST);
    assert!(
        link.send_one(broadcast, Frame::whole(&[0]))
            .expect("as Broadcast")
    );
}

/// Without the capability the error and the doctor name it and the command.
#[test]
fn missing_right_is_named() {
    if !on_veth(1500) {
        return;
    }
    let had = rustix::thread::capabilities(None).expect("capabilities");
    let without = CapabilitySets {
        effective: had.effective - CapabilitySet::NET_RAW,
        ..had
    };
    // For this thread only.
    rustix::thread::set_capabilities(None, without).expect("drop");
    let text = refusal("n0", PacketConfig::default());
    let found = probe();
    rustix::thread::set_capabilities(None, had).expect("take back");
    // The kernel notices the carrier a little later.
    let interface = Interface::open("n0").expect("n0");
    interface.wait_up(PATIENCE).expect("up");
    assert!(text.contains("CAP_NET_RAW"), "{text}");
    assert!(text.contains("`setcap cap_net_raw+ep /"), "{text}");
    assert!(!found.works && found.mend.starts_with("setcap cap_net_raw+ep /"));
    let found = probe();
    assert!(found.works, "{found:?}");
    let n0 = format!("n0: up, MTU 1500, {}", mac("n0"));
    assert!(found.notes.contains(&n0), "{found:?}");
}
