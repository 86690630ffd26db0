//! Any bytes as a frame with a checksum: what is opened is what lies behind the header, and closes to the same bytes.

use tsumuji_link::checked::{CHECK_BYTES, close, open};

/// The target.
pub fn checked(bytes: &[u8]) {
    if let Ok(frame) = open(bytes) {
        assert_eq!(frame, &bytes[CHECK_BYTES..][..frame.len()]);
        let mut slot = [&[0; CHECK_BYTES], frame].concat();
        let closed = close(&mut slot, frame.len());
        assert_eq!(slot[..closed], bytes[..closed]);
    }
    // The checksum is no obstacle to who looks for what lies behind it.
    let length = bytes.len().min(u16::MAX.into());
    if length > 0 {
        let mut slot = [&[0; CHECK_BYTES], &bytes[..length]].concat();
        close(&mut slot, length);
        assert_eq!(open(&slot), Ok(&bytes[..length]));
    }
}
