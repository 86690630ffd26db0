//! A checksum around every frame of a link that may damage frames: damaged frames are dropped.
//!
//! Wraps any link, beneath the engine, as a seal does; the wrapped link may lose, change and cut frames as a cable does. `LinkCaps::damages` of the
//! wrapped link tells whether checksums are needed: over shared memory, and around a seal, calls pass through.
//!
//! A frame leaves with a header of its own in front of its head. A placed body counts only once it was checked in its place (`Receiver::is_sound`);
//! until then the bytes there mean nothing.
//!
//! Invariant: no frame is delivered that its sender did not write, except with probability 2⁻³² for each damaged frame.

use crc32c::{crc32c, crc32c_append};

use crate::{
    BATCH_FRAMES_MAX, Capacity, Coming, Frame, Frames, HEAD_BYTES_MAX, Link, LinkAddr, LinkCaps,
    LinkCounters, LinkError, MayHaveRings, Placement, Receiver, Rings, pass_on,
};

/// Bytes of the header before each frame.
pub const CHECK_BYTES: usize = 8;

/// Version 1 and kind 11, as in the first byte of every frame.
const FIRST_BYTE: u8 = 1 << 4 | 11;

/// Bytes of the header before the checksum, and covered by it: first byte, zero, length of the frame.
const PREFIX_BYTES: usize = 4;

/// The length in the header has 16 bits.
const INNER_BYTES_MAX: usize = u16::MAX as usize;

/// Why a frame is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsound {
    /// Its checksum is wrong.
    Damaged,
    /// It has no checksum: its sender adds none.
    Unchecked,
}

/// Writes the header in front of the frame of `bytes` that lies in `slot` behind it; returns the length of both.
///
/// # Panics
/// If `slot` is shorter than that, or the frame longer than 65,535 bytes.
#[inline]
pub fn close(slot: &mut [u8], bytes: usize) -> usize {
    let (header, rest) = slot.split_at_mut(CHECK_BYTES);
    header.copy_from_slice(&header_of(&rest[..bytes], &[]));
    CHECK_BYTES + bytes
}

/// The frame in `bytes`, without its header.
#[inline]
pub fn open(bytes: &[u8]) -> Result<&[u8], Unsound> {
    let inner_bytes = inner_bytes(bytes)?;
    let (header, rest) = bytes.split_at(CHECK_BYTES);
    let inner = rest.get(..inner_bytes).ok_or(Unsound::Damaged)?;
    if is_sound(header, inner, &[]) {
        Ok(inner)
    } else {
        Err(Unsound::Damaged)
    }
}

/// Bytes of the frame behind this header.
#[inline]
fn inner_bytes(header: &[u8]) -> Result<usize, Unsound> {
    match *header {
        [FIRST_BYTE, 0, low, high, _, _, _, _, ..] => match u16::from_le_bytes([low, high]) {
            0 => Err(Unsound::Damaged),
            bytes => Ok(bytes.into()),
        },
        [FIRST_BYTE, ..] => Err(Unsound::Damaged),
        _ => Err(Unsound::Unchecked),
    }
}

/// The header of a frame in two parts.
#[inline]
fn header_of(head: &[u8], body: &[u8]) -> [u8; CHECK_BYTES] {
    let bytes = head.len() + body.len();
    assert!(bytes <= INNER_BYTES_MAX, "a frame of {bytes} bytes");
    let mut header = [FIRST_BYTE, 0, 0, 0, 0, 0, 0, 0];
    header[2..PREFIX_BYTES].copy_from_slice(&(bytes as u16).to_le_bytes());
    let sum = sum(&header[..PREFIX_BYTES], head, body);
    header[PREFIX_BYTES..].copy_from_slice(&sum.to_le_bytes());
    header
}

/// Whether the checksum in `header` fits the frame; `header` has at least `CHECK_BYTES`.
#[inline]
fn is_sound(header: &[u8], head: &[u8], body: &[u8]) -> bool {
    let stated = &header[PREFIX_BYTES..CHECK_BYTES];
    stated == sum(&header[..PREFIX_BYTES], head, body).to_le_bytes()
}

/// CRC-32C (Castagnoli, as in iSCSI, RFC 3720), for which processors have an instruction.
#[inline]
fn sum(prefix: &[u8], head: &[u8], body: &[u8]) -> u32 {
    let sum = crc32c_append(crc32c(prefix), head);
    if body.is_empty() {
        sum
    } else {
        crc32c_append(sum, body)
    }
}

/// A frame's header and head together; a longer head is cut to what fits.
#[derive(Debug, Clone, Copy)]
struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    length: usize,
}

impl Head {
    #[inline]
    fn new(frame: &Frame<'_>) -> Self {
        let mut bytes = [0; HEAD_BYTES_MAX];
        let length = if frame.head.len() <= HEAD_BYTES_MAX - CHECK_BYTES {
            CHECK_BYTES + frame.head.len()
        } else {
            CHECK_BYTES
        };
        bytes[..CHECK_BYTES].copy_from_slice(&header_of(frame.head, frame.body));
        bytes[CHECK_BYTES..length].copy_from_slice(&frame.head[..length - CHECK_BYTES]);
        Self { bytes, length }
    }

    /// The body that follows: a frame has either a head that fits, or no body.
    #[inline]
    fn body_of<'a>(&self, frame: &Frame<'a>) -> &'a [u8] {
        if self.length == CHECK_BYTES + frame.head.len() {
            return frame.body;
        }
        assert!(
            frame.body.is_empty(),
            "a head of {} bytes",
            frame.head.len()
        );
        frame.head
    }
}

/// Frames refused, and their bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Refused {
    damaged: u64,
    unchecked: u64,
    bytes: u64,
}

impl Refused {
    #[cold]
    fn count(&mut self, why: Unsound, bytes: usize) {
        match why {
            Unsound::Damaged => self.damaged += 1,
            Unsound::Unchecked => self.unchecked += 1,
        }
        self.bytes += bytes as u64;
    }
}

/// A link that delivers only undamaged frames.
#[derive(Debug)]
pub struct Checked<L> {
    inner: L,
    /// Frames have checksums.
    on: bool,
    refused: Refused,
    /// Heads of the frames that are being sent.
    heads: Vec<Head>,
}

impl<L: Link> Checked<L> {
    /// Adds and checks checksums if the link may damage frames.
    pub fn new(inner: L) -> Self {
        let on = inner.caps().damages;
        Self {
            inner,
            on,
            refused: Refused::default(),
            heads: Vec::new(),
        }
    }
}

/// Receives from the wrapped link, and passes on sound frames.
///
/// Used also where frames are not checked, so that receiving code is compiled once for each receiver.
struct Checking<'a, R> {
    receiver: &'a mut R,
    on: bool,
    refused: &'a mut Refused,
    /// Frames passed on.
    frames: usize,
}

impl<R: Receiver> Receiver for Checking<'_, R> {
    #[inline]
    fn frame(&mut self, from: LinkAddr, frame: &[u8]) {
        if !self.on {
            self.frames += 1;
            return self.receiver.frame(from, frame);
        }
        match open(frame) {
            Ok(inner) => {
                self.frames += 1;
                self.receiver.frame(from, inner);
            }
            Err(why) => self.refused.count(why, frame.len()),
        }
    }

    /// Nothing is known for sure of the coming frame before it was checked.
    #[inline]
    fn placement(&mut self, coming: Option<Coming<'_>>) -> Option<Placement<'_>> {
        if !self.on {
            return self.receiver.placement(coming);
        }
        let mut placement = self.receiver.placement(None)?;
        placement.head_bytes += CHECK_BYTES;
        (placement.head_bytes <= HEAD_BYTES_MAX).then_some(placement)
    }

    fn is_expected(
        &mut self,
        from: LinkAddr,
        index: usize,
        head: &[u8],
        body_bytes: usize,
    ) -> bool {
        if !self.on {
            return self.receiver.is_expected(from, index, head, body_bytes);
        }
        let Some((header, head)) = head.split_at_checked(CHECK_BYTES) else {
            return false;
        };
        inner_bytes(header) == Ok(head.len() + body_bytes)
            && self.receiver.is_expected(from, index, head, body_bytes)
    }

    fn is_sound(&mut self, index: usize, head: &[u8], body_bytes: usize) -> bool {
        if !self.on {
            return self.receiver.is_sound(index, head, body_bytes);
        }
        let Some((header, head)) = head.split_at_checked(CHECK_BYTES) else {
            return false;
        };
        // Nothing was delivered since, so the place is the same as before.
        let Some(placement) = self.receiver.placement(None) else {
            return false;
        };
        let start = index.saturating_mul(placement.body_bytes);
        let body = placement.place.get(start..start.saturating_add(body_bytes));
        body.is_some_and(|body| is_sound(header, head, body))
            && self.receiver.is_sound(index, head, body_bytes)
    }

    fn placed(&mut self, from: LinkAddr, head: &[u8], body_bytes: usize) {
        let check_bytes = if self.on { CHECK_BYTES } else { 0 };
        if let Some(head) = head.get(check_bytes..) {
            self.frames += 1;
            self.receiver.placed(from, head, body_bytes);
        }
    }

    fn bodiless(&mut self, from: LinkAddr, head: &[u8], body_bytes: usize) {
        if !self.on {
            self.frames += 1;
            self.receiver.bodiless(from, head, body_bytes);
        }
    }
}

impl<L: Link> Link for Checked<L> {
    pass_on!((inner): local_addr flush wait fd arm_fd note_time sealing);

    fn caps(&self) -> LinkCaps {
        let caps = self.inner.caps();
        if !self.on {
            return caps;
        }
        LinkCaps {
            frame_bytes: (caps.frame_bytes - CHECK_BYTES).min(INNER_BYTES_MAX),
            damages: false,
            // Damaged frames are lost.
            lossless: false,
            ..caps
        }
    }

    fn caps_to(&self, to: LinkAddr) -> LinkCaps {
        if self.on {
            self.caps()
        } else {
            self.inner.caps_to(to)
        }
    }

    #[inline]
    fn capacity(&mut self, to: LinkAddr) -> Result<Capacity, LinkError> {
        let capacity = self.inner.capacity(to)?;
        if !self.on || capacity.frames == 0 {
            return Ok(capacity);
        }
        let headers_bytes = capacity.frames * CHECK_BYTES;
        Ok(Capacity {
            bytes: capacity.bytes.saturating_sub(headers_bytes),
            ..capacity
        })
    }

    #[inline]
    fn send(&mut self, to: LinkAddr, frames: &[Frame<'_>]) -> Result<usize, LinkError> {
        if !self.on {
            return self.inner.send(to, frames);
        }
        let Self { inner, heads, .. } = self;
        heads.clear();
        heads.extend(frames.iter().take(BATCH_FRAMES_MAX).map(Head::new));
        let checked = heads.iter().zip(frames).map(|(head, frame)| Frame {
            head: &head.bytes[..head.length],
            body: head.body_of(frame),
        });
        inner.send(to, &checked.collect::<Frames<'_>>())
    }

    #[inline]
    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        let mut checking = Checking {
            receiver,
            on: self.on,
            refused: &mut self.refused,
            frames: 0,
        };
        self.inner.receive(max, &mut checking)?;
        Ok(checking.frames)
    }

    fn set_reach(&mut self, to: LinkAddr, frame_bytes: usize) {
        self.inner
            .set_reach(to, frame_bytes + if self.on { CHECK_BYTES } else { 0 });
    }

    fn counters(&self) -> LinkCounters {
        let inner = self.inner.counters();
        if !self.on {
            return inner;
        }
        // Counts of the layer above: without our headers, and without refused frames.
        let refused = self.refused;
        let received_frames =
            (inner.received_frames).saturating_sub(refused.damaged + refused.unchecked);
        let check_bytes = CHECK_BYTES as u64;
        LinkCounters {
            sent_bytes: inner
                .sent_bytes
                .saturating_sub(inner.sent_frames * check_bytes),
            received_frames,
            received_bytes: (inner.received_bytes)
                .saturating_sub(refused.bytes + received_frames * check_bytes),
            damaged_frames: inner.damaged_frames + refused.damaged,
            unchecked_frames: inner.unchecked_frames + refused.unchecked,
            ..inner
        }
    }
}

impl<L: MayHaveRings> MayHaveRings for Checked<L> {
    fn rings(&self) -> Option<&impl Rings> {
        self.inner.rings()
    }

    #[inline]
    fn rings_mut(&mut self) -> Option<&mut impl Rings> {
        self.inner.rings_mut()
    }
}

#[cfg(test)]
mod tests;
