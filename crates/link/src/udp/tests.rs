//! Properties of UDP: sizes, buffers, drops, batches of frames. The conformance suite checks delivery.

use super::*;
use crate::each;

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

fn bind(config: UdpConfig) -> Udp {
    Udp::bind(any(), config).expect("bind")
}

fn ethernet() -> UdpConfig {
    UdpConfig {
        frame_bytes: Some(1472),
        ..UdpConfig::default()
    }
}

fn receive(udp: &mut Udp) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut quiet = 0;
    while quiet < 3 {
        let more = udp
            .receive(64, &mut each(|_, frame| frames.push(frame.to_vec())))
            .expect("receive");
        if more == 0 {
            quiet += 1;
            udp.wait(Duration::from_millis(10)).expect("wait");
        } else {
            quiet = 0;
        }
    }
    frames
}

/// An interface is known by its IPv4 address, else by one of IPv6 that other segments reach.
#[test]
fn interfaces_have_an_address() {
    let of = |name: &str, ip: &str| InterfaceAddr {
        name: name.to_owned(),
        ip: ip.parse().expect(ip),
        flags: InterfaceFlags::IFF_UP,
    };
    let interfaces = [
        of("eth0", "fe80::1"),
        of("eth0", "fd00::1"),
        of("eth1", "fd00::2"),
        of("eth1", "10.0.0.1"),
        of("eth1", "10.0.0.2"),
        of("eth2", "fe80::3"),
    ];
    let ip = |name| ip_among(&interfaces, name).map(|ip| ip.to_string());
    assert_eq!(ip("eth0").as_deref(), Some("fd00::1"));
    assert_eq!(ip("eth1").as_deref(), Some("10.0.0.1"));
    assert_eq!((ip("eth2"), ip("eth")), (None, None));
}

/// Frames are sized for the interface: MTU less headers, but no larger than a datagram may be.
#[test]
fn frame_size_follows_the_mtu() {
    let v4 = any();
    let v6: SocketAddr = "[::1]:0".parse().expect("an address");
    assert_eq!(frame_bytes_for(1500, v4), 1472);
    assert_eq!(frame_bytes_for(1500, v6), 1452);
    assert_eq!(frame_bytes_for(9000, v4), 8972);
    assert_eq!(frame_bytes_for(65_536, v4), FRAME_BYTES_MAX);
    assert_eq!(frame_bytes_for(0, v4), FRAME_BYTES_MIN);
    assert_eq!(
        bind(UdpConfig::default()).caps().frame_bytes,
        FRAME_BYTES_MAX
    );
}

/// `receive_frames` frames of any size fit the receive buffer without a drop: credit is granted by this number.
#[test]
fn stated_frames_fit_the_buffer() {
    for frame_bytes in [
        512, 1452, 1472, 8972, 15_000, 16_384, 33_000, 65_000, 65_507,
    ] {
        let config = UdpConfig {
            frame_bytes: Some(frame_bytes),
            buffer_bytes: 1 << 20,
            offload: false,
            ..UdpConfig::default()
        };
        let (mut a, mut b) = (bind(config), bind(config));
        let count = b.caps().receive_frames;
        assert!(count >= 10, "{count} frames of {frame_bytes}");
        for _ in 0..count {
            let frame = vec![0; frame_bytes];
            let sent = a.send_one(b.local_addr(), Frame::whole(&frame));
            assert!(sent.expect("send"));
            a.flush().expect("flush");
        }
        assert_eq!(receive(&mut b).len(), count, "{frame_bytes}");
        assert_eq!(b.counters().dropped_frames, 0);
    }
}

/// Frames that the kernel drops because a buffer is full are counted.
#[test]
fn kernel_drops_are_counted() {
    let config = UdpConfig {
        buffer_bytes: 64 << 10,
        ..ethernet()
    };
    let (mut a, mut b) = (bind(config), bind(config));
    for _ in 0..1000 {
        a.send_one(b.local_addr(), Frame::whole(&[0; 1472]))
            .expect("send");
        a.flush().expect("flush");
    }
    let arrived = receive(&mut b).len() as u64;
    assert!(arrived < 1000);
    assert_eq!(arrived + b.counters().dropped_frames, 1000);
}

/// What the kernel tells of a peer that is gone costs no frame of others, and does not keep the socket readable; over IPv4 and IPv6 alike.
#[test]
fn unreachable_peers_harm_nobody() {
    for addr in ["127.0.0.1:0", "[::1]:0"] {
        let addr: SocketAddr = addr.parse().expect("an address");
        let bind = || Udp::bind(addr, ethernet()).expect("bind");
        let (mut a, mut b) = (bind(), bind());
        let gone = bind().local_addr();
        for round in 0..20 {
            for to in [gone, b.local_addr()] {
                let sent = a.send_one(to, Frame::whole(&[round; 100]));
                assert!(sent.expect("send"));
                a.flush().expect("flush");
            }
        }
        a.flush().expect("flush");
        assert_eq!(receive(&mut a).len(), 0);
        a.flush().expect("flush");
        assert_eq!(receive(&mut b).len(), 20);
        assert_eq!(a.counters().dropped_frames, 0, "{addr}");
        let begun = std::time::Instant::now();
        a.wait(Duration::from_millis(50)).expect("wait");
        assert!(begun.elapsed() >= Duration::from_millis(50), "{addr}");
    }
}

/// Batches of equal frames, a shorter one at a batch's end, and changes of address are separated as they were joined.
#[test]
fn runs_are_cut_where_they_were_joined() {
    let mut a = bind(ethernet());
    let (mut b, mut c) = (bind(ethernet()), bind(ethernet()));
    let sizes: [usize; 16] = [
        100, 100, 100, 60, 60, 1472, 1472, 1, 1, 1, 2, 1000, 999, 999, 999, 999,
    ];
    for (number, &bytes) in sizes.iter().enumerate() {
        let to = if number < 12 { &b } else { &c };
        a.send_one(to.local_addr(), Frame::whole(&vec![number as u8; bytes]))
            .expect("send");
    }
    a.flush().expect("flush");
    let mut frames = receive(&mut b);
    frames.extend(receive(&mut c));
    let expected: Vec<_> = sizes
        .iter()
        .enumerate()
        .map(|(number, &bytes)| vec![number as u8; bytes])
        .collect();
    assert_eq!(frames, expected);
    assert_eq!(a.counters().sent_frames, 16);
}

/// Where the kernel cannot cut a send (here: because datagrams leave without a checksum), all frames arrive uncut, with bodies short and long, and the
/// link does not ask for it again.
#[test]
fn kernels_that_do_not_cut_are_sent_single_datagrams() {
    for body_bytes in [100, 1400] {
        let (mut a, mut b) = (bind(ethernet()), bind(ethernet()));
        if !a.tx.outlet.segmenting {
            eprintln!("this kernel has no UDP_SEGMENT");
            return;
        }
        sys::set_option(a.socket.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).expect("option");
        let body = vec![9; body_bytes];
        let heads: Vec<[u8; 1]> = (0..20).map(|number| [number]).collect();
        let frames = heads.iter().map(|head| Frame { head, body: &body });
        let frames: Vec<_> = frames.collect();
        assert_eq!(a.send(b.local_addr(), &frames).expect("send"), 20);
        a.flush().expect("flush");
        let numbers: Vec<u8> = receive(&mut b).iter().map(|frame| frame[0]).collect();
        assert_eq!(numbers, (0..20).collect::<Vec<_>>());
        assert!(!a.tx.outlet.segmenting);
        let counters = a.counters();
        assert_eq!((counters.sent_frames, counters.dropped_frames), (20, 0));
    }
}

/// A burst of joined frames is delivered in portions no larger than `max`.
#[test]
fn joined_frames_respect_max() {
    let (mut a, mut b) = (bind(ethernet()), bind(ethernet()));
    for number in 0..60u8 {
        a.send_one(b.local_addr(), Frame::whole(&[number; 10]))
            .expect("send");
    }
    a.flush().expect("flush");
    let mut numbers = Vec::new();
    for _ in 0..200 {
        let got = b
            .receive(7, &mut each(|_, frame| numbers.push(frame[0])))
            .expect("receive");
        assert!(got <= 7);
        if numbers.len() < 60 {
            b.wait(Duration::from_millis(20)).expect("wait");
        }
    }
    assert_eq!(numbers, (0..60).collect::<Vec<_>>());
}

/// Foreign datagrams, empty or of the largest size, do no harm.
#[test]
fn foreign_datagrams_are_harmless() {
    let mut b = bind(ethernet());
    let foreign = std::net::UdpSocket::bind(any()).expect("bind");
    let LinkAddr::Inet(to) = b.local_addr() else {
        panic!("UDP has Inet addresses");
    };
    for bytes in [0, 65_507, 3] {
        foreign.send_to(&vec![9; bytes], to).expect("send");
    }
    let lengths: Vec<_> = receive(&mut b).iter().map(Vec::len).collect();
    assert_eq!(lengths, [65_507, 3]);
    assert_eq!(b.counters().dropped_frames, 1);
}

/// ICMP errors of a peer that is gone fail nothing.
#[test]
fn refusals_fail_nothing() {
    let (mut a, mut b) = (bind(ethernet()), bind(ethernet()));
    let gone = bind(ethernet()).local_addr();
    for _ in 0..20 {
        a.send_one(gone, Frame::whole(&[0; 5])).expect("send");
        a.flush().expect("flush");
        a.receive(8, &mut each(|_, _| {})).expect("receive");
    }
    a.send_one(b.local_addr(), Frame::whole(&[0; 5]))
        .expect("send");
    a.flush().expect("flush");
    assert_eq!(receive(&mut b).len(), 1);
}

/// A socket for both families names its IPv4 peers as such and reaches them.
#[test]
fn dual_stack_speaks_ipv4() {
    let config = ethernet();
    let Ok(mut both) = Udp::bind("[::]:0".parse().expect("an address"), config) else {
        eprintln!("no IPv6 here");
        return;
    };
    let mut v4 = bind(config);
    let LinkAddr::Inet(local) = both.local_addr() else {
        panic!("UDP has Inet addresses");
    };
    let both_addr = LinkAddr::Inet(SocketAddr::from(([127, 0, 0, 1], local.port())));
    v4.send_one(both_addr, Frame::whole(&[0; 5])).expect("send");
    v4.flush().expect("flush");
    both.wait(Duration::from_secs(5)).expect("wait");
    let mut from = None;
    both.receive(1, &mut each(|sender, _| from = Some(sender)))
        .expect("receive");
    assert_eq!(from, Some(v4.local_addr()));
    both.send_one(v4.local_addr(), Frame::whole(&[0; 6]))
        .expect("send");
    both.flush().expect("flush");
    assert_eq!(receive(&mut v4).len(), 1);
}

/// Errors say what to do.
#[test]
fn bind_errors_help() {
    let first = bind(ethernet());
    let LinkAddr::Inet(taken) = first.local_addr() else {
        panic!("UDP has Inet addresses");
    };
    let text = |addr, config| Udp::bind(addr, config).expect_err("impossible").to_string();
    assert!(text(taken, ethernet()).contains("taken"));
    assert!(text("192.0.2.1:0".parse().expect("address"), ethernet()).contains("ip addr"));
    let huge = UdpConfig {
        frame_bytes: Some(70_000),
        ..ethernet()
    };
    assert!(text(any(), huge).contains("70000"));
}

/// The probe answers, with yes on any machine that runs these tests.
#[test]
fn probe_answers() {
    let probe = probe();
    assert!(probe.works, "{probe:?}");
}

/// A port that no other test has, and with it a group.
fn group() -> SocketAddrV4 {
    let port = std::net::UdpSocket::bind(any()).and_then(|socket| socket.local_addr());
    SocketAddrV4::new([239, 77, 0, 2].into(), port.expect("a port").port())
}

fn in_group(group: SocketAddrV4) -> Udp {
    bind(UdpConfig {
        group: Some(group),
        ..ethernet()
    })
}

/// One send reaches all others, and is one frame of the sender's.
#[test]
fn a_broadcast_is_one_send() {
    let group = group();
    let mut a = in_group(group);
    let mut others = [in_group(group), in_group(group), in_group(group)];
    a.send_one(LinkAddr::Broadcast, Frame::whole(&[7; 99]))
        .expect("send");
    a.flush().expect("flush");
    for other in &mut others {
        assert_eq!(receive(other), [[7; 99]]);
    }
    assert_eq!(a.counters().sent_frames, 1);
    assert_eq!(receive(&mut a).len(), 0, "not to its sender");
    assert_eq!(a.counters().received_frames, 0);
}

/// Datagrams to the group name their sender, members or not: the layer above admits members only. One of another group does not come.
#[test]
fn groups_are_apart_and_sources_are_named() {
    let (one, two) = (group(), group());
    let (mut a, mut b) = (in_group(one), in_group(two));
    let foreign = std::net::UdpSocket::bind(any()).expect("bind");
    for group in [one, two] {
        for bytes in [0, 65_507, 3] {
            let sender = socket2::SockRef::from(&foreign);
            sender
                .set_multicast_if_v4(&[127, 0, 0, 1].into())
                .expect("interface");
            foreign.send_to(&vec![9; bytes], group).expect("send");
        }
    }
    let named = LinkAddr::Inet(foreign.local_addr().expect("bound"));
    a.wait(Duration::from_secs(5)).expect("wait");
    let mut lengths = Vec::new();
    while lengths.len() < 2 {
        a.receive(
            8,
            &mut each(|from, frame| {
                assert_eq!(from, named);
                lengths.push(frame.len());
            }),
        )
        .expect("receive");
    }
    assert_eq!(lengths, [65_507, 3]);
    assert_eq!(a.counters().dropped_frames, 1, "the empty one");
    b.send_one(LinkAddr::Broadcast, Frame::whole(&[1]))
        .expect("send");
    b.flush().expect("flush");
    assert_eq!(receive(&mut a).len(), 0);
}

/// A group that cannot be joined is refused with what is accepted.
#[test]
fn group_errors_help() {
    let text = |addr: &str, group: &str| {
        let config = UdpConfig {
            group: Some(group.parse().expect("group")),
            ..ethernet()
        };
        let addr = addr.parse().expect("address");
        Udp::bind(addr, config).expect_err("impossible").to_string()
    };
    for group in ["10.0.0.1:7000", "239.1.2.3:0"] {
        assert!(text("127.0.0.1:0", group).contains("239.0.0.0 to 239.255.255.255"));
    }
    for addr in ["0.0.0.0:0", "[::1]:0"] {
        assert!(text(addr, "239.1.2.3:7000").contains("names none"));
    }
    let sent = bind(ethernet()).send_one(LinkAddr::Broadcast, Frame::whole(&[1]));
    assert!(sent.is_err(), "without a group there is no broadcast");
}
