//! Tests that need no rights: the ring's shape and walk, the sending queue; `interface` has the others.

mod interface;

use std::io::Read;

use super::rx::{Cursor, Geometry, Raw};
use super::*;
use crate::ether::MacAddr;

/// Any MTU and buffer give a ring that the kernel accepts and whose slots hold a frame of that MTU.
#[test]
fn geometry_fits_any_mtu() {
    for mtu_bytes in [68, 512, 1500, 3506, 9000, 9216, 65_535] {
        for ring_bytes in [0, 1, 65_536, 1 << 20, 8 << 20, usize::MAX] {
            let geometry = Geometry::new(mtu_bytes, ring_bytes);
            let ours = mtu_bytes.min(rx::PAYLOAD_BYTES_MAX);
            assert!(geometry.slot_bytes >= ours + 14 + 66 + 4);
            assert!(geometry.slot_bytes.is_multiple_of(libc::TPACKET_ALIGNMENT));
            assert!(geometry.block_bytes.is_multiple_of(65_536));
            assert!(geometry.block_bytes >= geometry.slot_bytes);
            assert!(geometry.slots() >= 1 && geometry.bytes() <= 1 << 30);
            assert!(geometry.bytes() <= ring_bytes.max(geometry.block_bytes));
        }
    }
    let small = Geometry::new(1500, 200_000);
    assert_eq!(small.blocks, 3);
    let smaller = small.halved().expect("three blocks");
    assert_eq!((smaller.blocks, smaller.halved()), (1, None));
}

/// The cursor visits every slot once, in order, and begins again.
#[test]
fn cursor_walks_all_slots() {
    for (mtu_bytes, ring_bytes) in [
        (1500, 0),
        (1500, 1 << 20),
        (9000, 300_000),
        (65_535, 1 << 20),
    ] {
        let geometry = Geometry::new(mtu_bytes, ring_bytes);
        let mut cursor = Cursor::default();
        let mut offsets = Vec::new();
        for _ in 0..geometry.slots() {
            let at = cursor.offset();
            assert!(at % geometry.block_bytes + geometry.slot_bytes <= geometry.block_bytes);
            assert!(at + geometry.slot_bytes <= geometry.bytes());
            offsets.push(at);
            cursor.advance(&geometry);
        }
        assert!(offsets.is_sorted_by(|a, b| a < b), "{geometry:?}");
        assert_eq!((offsets[0], cursor.offset()), (0, 0));
    }
}

/// A frame that was cut, or whose stated length reaches beyond its slot, is rejected.
#[test]
fn claims_of_a_slot_are_checked() {
    let slot = [7u8; 128];
    let raw = |at, kept_bytes, frame_bytes| Raw {
        slot: &slot,
        at,
        kept_bytes,
        frame_bytes,
    };
    assert_eq!(raw(66, 62, 62).frame(), Some(&slot[66..]));
    assert_eq!(raw(66, 0, 0).frame(), Some(&[][..]));
    for (at, kept_bytes, frame_bytes) in [
        (66, 60, 62),
        (66, 63, 63),
        (129, 0, 0),
        (66, usize::MAX, usize::MAX),
        (usize::MAX, 1, 1),
    ] {
        assert_eq!(raw(at, kept_bytes, frame_bytes).frame(), None);
    }
}

/// Wrong names and kinds are refused before any right is needed.
#[test]
fn bad_interfaces_are_refused() {
    let open = |name| Packet::open(name, PacketConfig::default()).expect_err(name);
    assert!(
        open("no-such-if")
            .to_string()
            .contains("no interface `no-such-if`")
    );
    if Interface::open("lo").is_ok() {
        assert!(open("lo").to_string().contains("within one host"));
    }
}

/// The probe says what works, or what helps.
#[test]
fn probe_explains_itself() {
    let found = probe();
    assert_eq!(found.link, "packet");
    assert!(!found.notes.is_empty());
    if !found.works && found.notes[0].contains("CAP_NET_RAW") {
        assert!(found.mend.starts_with("setcap cap_net_raw+ep "));
    }
}

/// A socket that takes a few frames and then is full, and its other end.
fn narrow_socket() -> (Socket, Socket) {
    let (near, far) = Socket::pair(Domain::UNIX, Type::DGRAM.nonblocking(), None).expect("pair");
    near.set_send_buffer_size(8192).expect("SO_SNDBUF");
    (near, far)
}

fn read_all(mut socket: &Socket) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(bytes) = socket.read(&mut buffer) {
        frames.push(buffer[..bytes].to_vec());
    }
    frames
}

/// A full socket keeps all frames in order and loses none; each leaves once, with its header.
#[test]
fn full_socket_keeps_frames() {
    const FRAMES: u32 = 500;
    let me = MacAddr([2, 0, 0, 0, 0, 1]);
    let to = MacAddr([2, 0, 0, 0, 0, 2]);
    let (near, far) = narrow_socket();
    let mut tx = Gather::new(Outlet::new(me, 1500), 1500);
    let mut counters = LinkCounters::default();
    let mut arrived = Vec::new();
    let mut offered = 0;
    let (mut blocked, mut joined) = (0, 0);
    while arrived.len() < FRAMES as usize {
        let mut ethernet_frames = Vec::new();
        // Bursts of all lengths, single frames among them: some copied, others sent from the caller's memory.
        let mut batch = Vec::new();
        while offered + (batch.len() as u32) < FRAMES {
            let number = offered + batch.len() as u32;
            let mut frame = vec![0; 4 + number as usize % 1497];
            frame[..4].copy_from_slice(&number.to_le_bytes());
            batch.push(frame);
            if number.is_multiple_of(1 + number % 37) {
                break;
            }
        }
        let cut = |frame: &'_ Vec<u8>| frame.len().min(20);
        let frames = batch.iter().map(|frame| Frame {
            head: &frame[..cut(frame)],
            body: &frame[cut(frame)..],
        });
        let frames: Vec<_> = frames.collect();
        let (taken, _) = (tx.send(near.as_fd(), &mut counters, to, &frames)).expect("send");
        offered += taken as u32;
        let flushed = tx.flush(near.as_fd(), &mut counters).expect("flush");
        assert_eq!(flushed, Flushed::Done);
        if tx.blocked() == Some(Blocked::Buffer) {
            blocked += 1;
            ethernet_frames = read_all(&far);
        } else if offered == FRAMES {
            ethernet_frames = read_all(&far);
        }
        joined += ethernet_frames.len();
        for ethernet_frame in ethernet_frames {
            assert!(ethernet_frame.len() <= 14 + 2 + 1500);
            let (from, payload) = ether::accept(&ethernet_frame, to).expect("sound");
            assert_eq!(from, me);
            arrived.extend(ether::Frames::new(payload).map(<[u8]>::to_vec));
        }
    }
    assert!(blocked > 10, "the socket was full");
    for (number, frame) in (0u32..).zip(&arrived) {
        assert_eq!(frame.len(), 4 + number as usize % 1497);
        assert_eq!(frame[..4], number.to_le_bytes());
    }
    assert!(joined < arrived.len(), "small ones joined others");
    let bytes: usize = arrived.iter().map(Vec::len).sum();
    assert_eq!(counters.sent_frames, u64::from(FRAMES));
    assert_eq!(counters.sent_bytes, bytes as u64);
    assert_eq!(counters.dropped_frames, 0);
}

/// Small frames to one station leave together as far as they fit; another station, or a frame that does not fit, begins anew.
#[test]
fn small_frames_join() {
    let me = MacAddr([2, 0, 0, 0, 0, 1]);
    let stations = [MacAddr([2, 0, 0, 0, 0, 2]), MacAddr::BROADCAST];
    let (near, far) = narrow_socket();
    let mut tx = Gather::new(Outlet::new(me, 600), 600);
    let mut counters = LinkCounters::default();
    // 2 x (2 + 299) is the whole payload; another byte would be too many.
    let sent = [
        (0, 299),
        (0, 299),
        (0, 1),
        (1, 1),
        (1, 597),
        (0, 300),
        (0, 300),
    ];
    for (station, bytes) in sent {
        let frame = vec![bytes as u8; bytes];
        let frame = Frame::whole(&frame);
        let sent = tx.send(near.as_fd(), &mut counters, stations[station], &[frame]);
        assert_eq!(sent.expect("send").0, 1);
    }
    tx.flush(near.as_fd(), &mut counters).expect("flush");
    let arrived: Vec<(MacAddr, Vec<usize>)> = read_all(&far)
        .iter()
        .map(|frame| {
            let to = MacAddr(frame[..6].try_into().expect("six"));
            let (_, payload) = ether::accept(frame, to).expect("sound");
            let sizes = ether::Frames::new(payload).map(|frame| {
                assert!(frame.iter().all(|byte| *byte == frame.len() as u8));
                frame.len()
            });
            (to, sizes.collect())
        })
        .collect();
    let [one, all] = stations;
    let expected = [
        (one, vec![299, 299]),
        (one, vec![1]),
        (all, vec![1, 597]),
        (one, vec![300]),
        (one, vec![300]),
    ];
    assert_eq!(arrived, expected);
    assert_eq!((counters.sent_frames, counters.sent_bytes), (7, 1797));
}

/// Frames that the socket refuses for good are counted one by one and do not stop those behind them.
#[test]
fn refused_frames_are_counted() {
    let (near, far) = narrow_socket();
    let mut tx = Gather::new(Outlet::new(MacAddr([2, 0, 0, 0, 0, 1]), 600), 600);
    let mut counters = LinkCounters::default();
    drop(far);
    for count in [1, 5] {
        for _ in 0..count {
            let frame = Frame::whole(&[0; 600]);
            let sent = tx.send(near.as_fd(), &mut counters, MacAddr::BROADCAST, &[frame]);
            assert_eq!(sent.expect("send").0, 1);
        }
        tx.flush(near.as_fd(), &mut counters).expect("flush");
        assert_eq!(tx.blocked(), None);
    }
    assert_eq!((counters.sent_frames, counters.dropped_frames), (0, 6));
}

/// Some slots are left for frames without credit, however few there are, and no ring is without credit.
#[test]
fn slots_are_left_for_what_needs_no_credit() {
    for (mtu_bytes, ring_bytes, slots, granted) in [
        (9000, TUNING.packet.large_ring_bytes, 224, 196),
        (65_535, TUNING.packet.large_ring_bytes, 32, 28),
        (65_535, 1, 1, 1),
    ] {
        assert_eq!(Geometry::new(mtu_bytes, ring_bytes).slots(), slots);
        assert_eq!(ether::granted_slots(slots), granted);
    }
}
