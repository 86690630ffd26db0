//! The ring's shape and walk, and what needs no rights. Links on interfaces are tested in `tests/`.

use super::rx::{Cursor, Geometry, Raw};
use super::*;

/// Any MTU and buffer give a ring that the kernel accepts and whose slots hold a frame of that MTU.
#[test]
fn geometry_fits_any_mtu() {
    for mtu_bytes in [68, 512, 1500, 3506, 9000, 9216, 65_535] {
        for ring_bytes in [0, 1, 65_536, 1 << 20, 8 << 20, usize::MAX] {
            let geometry = Geometry::new(mtu_bytes, ring_bytes);
            assert!(geometry.slot_bytes >= mtu_bytes + 14 + 66 + 4);
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

/// The cursor meets every slot once, in order, and begins anew.
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

/// A frame that was cut, or that claims to reach beyond its slot, is none.
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

/// The doctor's answer says what works or what mends it.
#[test]
fn probe_explains_itself() {
    let found = probe();
    assert_eq!(found.link, "packet");
    assert!(!found.notes.is_empty());
    if !found.works && found.notes[0].contains("CAP_NET_RAW") {
        assert!(found.mend.starts_with("setcap cap_net_raw+ep "));
    }
}
