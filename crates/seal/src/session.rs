//! Sealing and opening with the keys of one direction: sealing in a transmit slot, opening into a scratch buffer.
//!
//! Called by `peers`. AES-256-GCM; the nonce is the envelope's counter, which one `Sealer` never uses twice.
//!
//! Invariant: the result of `open` lies in the scratch buffer, and its tag was checked over these same bytes: they are copied out of the link's
//! memory first, so that no process that can still write there changes them after the check.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::envelope::{Envelope, HEADER_BYTES, TAG_BYTES, flags};
use crate::key::KEY_BYTES;
use crate::window::Window;

/// Blocks of 16 bytes after which new keys are agreed: 1 TiB. The advantage of distinguishing the ciphertext from noise grows with the square of this
/// number over 2^129: 2^-57, the bound that TLS 1.3 keeps, too (RFC 8446, 5.5).
pub(crate) const REKEY_BLOCKS: u64 = 1 << 36;
/// Frames after which new keys are agreed: forging one by chance stays as unlikely as a tag of 16 bytes makes it, and a leaked session key opens no
/// more than these.
pub(crate) const REKEY_FRAMES: u64 = 1 << 32;
/// Blocks after which a key seals nothing more.
pub(crate) const LAST_BLOCKS: u64 = 1 << 37;

/// Blocks of a frame beside its full ones: the tag's, the lengths', and a partial one at the end.
const BLOCKS_PER_FRAME: u64 = 3;

fn key(bytes: &[u8; KEY_BYTES]) -> LessSafeKey {
    let key = UnboundKey::new(&AES_256_GCM, bytes).expect("the algorithm's key length");
    LessSafeKey::new(key)
}

fn nonce(counter: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[NONCE_LEN - 8..].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// Seals frames for one receiver, or for all.
#[derive(Debug)]
pub(crate) struct Sealer {
    key: LessSafeKey,
    /// Key id of the session at the receiver.
    key_id: u32,
    next: u64,
    blocks: u64,
}

impl Sealer {
    pub(crate) fn new(bytes: &[u8; KEY_BYTES], key_id: u32) -> Self {
        Self {
            key: key(bytes),
            key_id,
            next: 0,
            blocks: 0,
        }
    }

    /// The counter of the next frame.
    pub(crate) fn next_counter(&self) -> u64 {
        self.next
    }

    pub(crate) fn key_id(&self) -> u32 {
        self.key_id
    }

    /// Whether new keys should be agreed.
    #[inline]
    pub(crate) fn is_worn(&self) -> bool {
        self.blocks >= REKEY_BLOCKS || self.next >= REKEY_FRAMES
    }

    /// Whether no frame may be sealed any more.
    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.blocks >= LAST_BLOCKS
    }

    /// Pretends that so many blocks had been sealed.
    #[cfg(test)]
    pub(crate) fn wear(&mut self, blocks: u64) {
        self.blocks = blocks;
    }

    /// Pretends that so many frames had been sealed.
    #[cfg(test)]
    pub(crate) fn skip_to(&mut self, counter: u64) {
        self.next = counter;
    }

    /// Seals the `inner_bytes` bytes that begin at `slot[HEADER_BYTES]`; returns the length of the whole frame, or 0 if the slot
    /// is too small or the key is spent.
    #[inline]
    pub(crate) fn seal(&mut self, slot: &mut [u8], inner_bytes: usize, flag_bits: u8) -> usize {
        let bytes = HEADER_BYTES + inner_bytes + TAG_BYTES;
        let (Ok(stated), Some(frame)) = (u16::try_from(inner_bytes), slot.get_mut(..bytes)) else {
            return 0;
        };
        if self.is_spent() {
            return 0;
        }
        let envelope = Envelope {
            flags: flag_bits,
            inner_bytes: stated,
            key_id: self.key_id,
            counter: self.next,
        };
        let nonce = nonce(self.next);
        self.next += 1;
        self.blocks += inner_bytes as u64 / 16 + BLOCKS_PER_FRAME;
        let (body, tag_bytes) = frame.split_at_mut(HEADER_BYTES + inner_bytes);
        let (header, inner) = body.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&envelope.header());
        let tag = if flag_bits & flags::READABLE != 0 {
            self.key
                .seal_in_place_separate_tag(nonce, Aad::from(&*body), &mut [])
        } else {
            self.key
                .seal_in_place_separate_tag(nonce, Aad::from(&*header), inner)
        };
        // Fails only beyond 64 GiB.
        let Ok(tag) = tag else {
            return 0;
        };
        tag_bytes.copy_from_slice(tag.as_ref());
        bytes
    }
}

/// Why a frame was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenFailure {
    Replayed,
    BadTag,
}

/// Opens frames of one sender.
#[derive(Debug)]
pub(crate) struct Opener {
    key: LessSafeKey,
    window: Window,
}

impl Opener {
    /// Takes counters from `first` on.
    pub(crate) fn new(bytes: &[u8; KEY_BYTES], first: u64) -> Self {
        Self {
            key: key(bytes),
            window: Window::starting_at(first),
        }
    }

    /// Opens a frame whose header was parsed from `header`; `rest` is all behind it. Returns the inner frame.
    #[inline]
    pub(crate) fn open<'a>(
        &mut self,
        envelope: &Envelope,
        header: &[u8; HEADER_BYTES],
        rest: &[u8],
        scratch: &'a mut [u8],
    ) -> Result<&'a mut [u8], OpenFailure> {
        if !self.window.is_new(envelope.counter) {
            return Err(OpenFailure::Replayed);
        }
        let inner_bytes = usize::from(envelope.inner_bytes);
        let end = HEADER_BYTES + inner_bytes + TAG_BYTES;
        // `Envelope::parse` checked that `rest` has them, and `scratch` holds the largest frame that a header can state.
        let Some(scratch) = scratch.get_mut(..end) else {
            return Err(OpenFailure::BadTag);
        };
        scratch[..HEADER_BYTES].copy_from_slice(header);
        scratch[HEADER_BYTES..].copy_from_slice(&rest[..inner_bytes + TAG_BYTES]);
        let nonce = nonce(envelope.counter);
        let opened = if envelope.has(flags::READABLE) {
            let (body, tag) = scratch.split_at_mut(HEADER_BYTES + inner_bytes);
            self.key
                .open_in_place(nonce, Aad::from(&*body), tag)
                .map(drop)
        } else {
            self.key
                .open_in_place(nonce, Aad::from(header), &mut scratch[HEADER_BYTES..])
                .map(drop)
        };
        opened.map_err(|_| OpenFailure::BadTag)?;
        self.window.accept(envelope.counter);
        Ok(&mut scratch[HEADER_BYTES..HEADER_BYTES + inner_bytes])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; KEY_BYTES] = [9; KEY_BYTES];

    fn sealed(sealer: &mut Sealer, inner: &[u8], flag_bits: u8) -> Vec<u8> {
        let mut slot = vec![0xaa; HEADER_BYTES + inner.len() + TAG_BYTES];
        slot[HEADER_BYTES..HEADER_BYTES + inner.len()].copy_from_slice(inner);
        let bytes = sealer.seal(&mut slot, inner.len(), flag_bits);
        assert_eq!(bytes, slot.len());
        slot
    }

    fn open(opener: &mut Opener, frame: &[u8]) -> Result<Vec<u8>, OpenFailure> {
        let header: [u8; HEADER_BYTES] = frame[..HEADER_BYTES].try_into().expect("16");
        let envelope = Envelope::parse(&header, frame.len()).expect("legal");
        let mut scratch = vec![0; 70_000];
        opener
            .open(&envelope, &header, &frame[HEADER_BYTES..], &mut scratch)
            .map(|inner| inner.to_vec())
    }

    /// Both modes return the sealed frame, once, with padding behind it; only the readable mode shows it on the wire.
    #[test]
    fn opens_what_was_sealed() {
        for flag_bits in [0, flags::READABLE] {
            let mut sealer = Sealer::new(&KEY, 5);
            let mut opener = Opener::new(&KEY, 0);
            for bytes in [1, 15, 16, 17, 1000, 65_535] {
                let inner = vec![0x5a; bytes];
                let mut frame = sealed(&mut sealer, &inner, flag_bits);
                let shown = frame[HEADER_BYTES..HEADER_BYTES + bytes] == inner;
                assert_eq!(shown, flag_bits == flags::READABLE);
                frame.extend([1; 30]);
                assert_eq!(open(&mut opener, &frame).as_deref(), Ok(&inner[..]));
                assert_eq!(open(&mut opener, &frame), Err(OpenFailure::Replayed));
            }
        }
    }

    /// A change of any single bit of header, content or tag is noticed, and does not keep the true frame from being opened.
    #[test]
    fn every_bit_counts() {
        for flag_bits in [0, flags::READABLE] {
            let mut sealer = Sealer::new(&KEY, 5);
            let mut opener = Opener::new(&KEY, 0);
            let frame = sealed(&mut sealer, b"a frame of 21 bytes..", flag_bits);
            for bit in 0..frame.len() * 8 {
                let mut changed = frame.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                let header = changed[..HEADER_BYTES].try_into().expect("16");
                if Envelope::parse(header, changed.len()).is_none() {
                    continue;
                }
                assert_eq!(
                    open(&mut opener, &changed),
                    Err(OpenFailure::BadTag),
                    "{bit}"
                );
            }
            assert!(open(&mut opener, &frame).is_ok());
        }
    }

    /// Another key opens nothing; a group key learnt late opens no earlier frame.
    #[test]
    fn other_keys_and_earlier_frames() {
        let mut sealer = Sealer::new(&KEY, 5);
        let frames: Vec<_> = (0..5_u8).map(|i| sealed(&mut sealer, &[i], 0)).collect();
        let mut other = Opener::new(&[8; KEY_BYTES], 0);
        assert_eq!(open(&mut other, &frames[0]), Err(OpenFailure::BadTag));
        let mut late = Opener::new(&KEY, 3);
        assert_eq!(open(&mut late, &frames[2]), Err(OpenFailure::Replayed));
        assert_eq!(open(&mut late, &frames[4]), Ok(vec![4]));
        assert_eq!(open(&mut late, &frames[3]), Ok(vec![3]));
    }

    /// A spent key seals nothing more; a worn one reports it in time.
    #[test]
    fn keys_wear_out() {
        let mut sealer = Sealer::new(&KEY, 5);
        let mut slot = [0; 100];
        sealer.wear(REKEY_BLOCKS - 1);
        assert!(!sealer.is_worn());
        assert_eq!(sealer.seal(&mut slot, 20, 0), 52);
        assert!(sealer.is_worn() && !sealer.is_spent());
        sealer.wear(LAST_BLOCKS);
        assert_eq!(sealer.seal(&mut slot, 20, 0), 0);
        assert_eq!(sealer.next_counter(), 1);
    }

    /// Frames count, too, however short they are.
    #[test]
    fn frames_wear_keys_out() {
        let mut sealer = Sealer::new(&KEY, 5);
        let mut slot = [0; 100];
        sealer.skip_to(REKEY_FRAMES - 1);
        assert!(!sealer.is_worn());
        assert_eq!(sealer.seal(&mut slot, 20, 0), 52);
        assert!(sealer.is_worn() && !sealer.is_spent());
    }

    /// A frame is not sealed if the slot is too small or the header cannot state its length.
    #[test]
    fn bounds_of_sealing() {
        let mut sealer = Sealer::new(&KEY, 5);
        assert_eq!(sealer.seal(&mut [0; 51], 20, 0), 0);
        assert_eq!(sealer.seal(&mut vec![0; 70_000], 65_536, 0), 0);
        assert_eq!(sealer.next_counter(), 0);
    }
}
