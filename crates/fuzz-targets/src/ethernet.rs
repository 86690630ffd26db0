//! Any bytes as an Ethernet frame: `accept` and `Frames` take none for what it is not, and read nothing twice.

use tsumuji_link::ether::{ETHERTYPE, Frames, HEADER_BYTES, LENGTH_BYTES, MacAddr, accept};

const ME: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

/// The target.
pub fn ethernet(bytes: &[u8]) {
    let Ok((from, payload)) = accept(bytes, ME) else {
        return;
    };
    assert!(from.is_station() && from != ME);
    assert_eq!(bytes[12..HEADER_BYTES], ETHERTYPE.to_be_bytes());
    assert!(bytes[..6] == ME.0 || bytes[..6] == MacAddr::BROADCAST.0);
    assert_eq!(payload, &bytes[HEADER_BYTES..]);
    let mut frames = Frames::new(payload);
    let mut taken = 0;
    for frame in &mut frames {
        assert!(!frame.is_empty());
        taken += LENGTH_BYTES + frame.len();
        assert_eq!(frame, &payload[taken - frame.len()..taken]);
    }
    // It ends at a zero, at less than a length, or cut.
    let rest = &payload[taken..];
    assert!(frames.is_cut() || rest.len() < LENGTH_BYTES || rest[..LENGTH_BYTES] == [0, 0]);
}
