//! The payload behind the Ethernet header: frames of ours one after another, each behind its length.
//!
//! Written by the links' transmit halves, which join frames to the same station while they wait to leave; read by their receive halves. An Ethernet
//! frame costs a device and a kernel the same whether it carries one small message or thirty. `Frames` reads untrusted bytes: it never panics, and
//! each step consumes some of them.

use super::{HEADER_BYTES, MacAddr};
use crate::{LinkAddr, LinkCounters, Receiver};

/// The length before each frame, little-endian. 0: no more frames, the rest is padding.
pub const LENGTH_BYTES: usize = 2;
/// Bytes before the first frame of ours in an Ethernet frame.
pub(crate) const LEAD_BYTES: usize = HEADER_BYTES + LENGTH_BYTES;

/// Writes the length of a frame into the first bytes of `slot`.
///
/// # Panics
/// If `slot` is shorter than that, or the frame longer than 65,535 bytes.
#[inline]
pub fn write_length(slot: &mut [u8], frame_bytes: usize) {
    let length = u16::try_from(frame_bytes).expect("no Ethernet frame is that long");
    slot[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
}

/// The frames of one payload, in order. A length that reaches beyond the payload ends the iteration, and then `is_cut` is true.
#[derive(Debug, Clone)]
pub struct Frames<'a> {
    rest: &'a [u8],
    cut: bool,
}

impl<'a> Frames<'a> {
    /// Reads the payload of an Ethernet frame, padding included.
    #[inline]
    pub fn new(payload: &'a [u8]) -> Self {
        Self {
            rest: payload,
            cut: false,
        }
    }

    /// Whether a frame's stated length reached beyond the payload; the frames before it are sound.
    #[inline]
    pub fn is_cut(&self) -> bool {
        self.cut
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        // A single byte behind the last frame is padding, as is a zero length.
        let (length, rest) = self.rest.split_first_chunk::<LENGTH_BYTES>()?;
        let bytes = usize::from(u16::from_le_bytes(*length));
        if bytes == 0 {
            self.rest = &[];
            return None;
        }
        match rest.split_at_checked(bytes) {
            Some((frame, rest)) => {
                self.rest = rest;
                Some(frame)
            }
            None => {
                self.rest = &[];
                self.cut = true;
                None
            }
        }
    }
}

/// Limits of joined Ethernet frames, for stations that only shorter frames reach than the interface takes.
#[derive(Debug, Default)]
pub(crate) struct Reach(Vec<(MacAddr, usize)>);

impl Reach {
    /// Sets the limit for `to`; `most`: the limit of the interface.
    pub(crate) fn set(&mut self, to: MacAddr, frame_bytes: usize, most: usize) {
        self.0.retain(|(known, _)| *known != to);
        if frame_bytes < most {
            self.0.push((to, frame_bytes));
        }
    }

    /// Most bytes of frames of ours to `to`, with the lengths between them.
    #[inline]
    pub(crate) fn of(&self, to: MacAddr, most: usize) -> usize {
        if self.0.is_empty() {
            return most;
        }
        let known = self.0.iter().find(|(known, _)| *known == to);
        known.map_or(most, |(_, frame_bytes)| *frame_bytes)
    }
}

/// Delivers and counts the frames of one payload; returns their number.
#[inline]
pub(crate) fn hand_over(
    from: MacAddr,
    payload: &[u8],
    counters: &mut LinkCounters,
    receiver: &mut impl Receiver,
) -> usize {
    let (mut frames, mut handed) = (Frames::new(payload), 0);
    for frame in frames.by_ref() {
        handed += 1;
        counters.received_frames += 1;
        counters.received_bytes += frame.len() as u64;
        receiver.frame(LinkAddr::Ether(from), frame);
    }
    counters.dropped_frames += u64::from(frames.is_cut());
    handed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(frames: &[&[u8]]) -> Vec<u8> {
        let mut payload = Vec::new();
        for frame in frames {
            let at = payload.len();
            payload.extend([0; LENGTH_BYTES]);
            write_length(&mut payload[at..], frame.len());
            payload.extend_from_slice(frame);
        }
        payload
    }

    fn read(payload: &[u8]) -> (Vec<&[u8]>, bool) {
        let mut frames = Frames::new(payload);
        let read = frames.by_ref().collect();
        (read, frames.is_cut())
    }

    /// Frames are read as they were written, with any padding behind them.
    #[test]
    fn frames_come_out_as_they_went_in() {
        let frames: [&[u8]; 3] = [b"one", &[7; 300], b"x"];
        for padding in 0..50 {
            let mut payload = bundle(&frames);
            payload.resize(payload.len() + padding, 0);
            assert_eq!(read(&payload), (frames.to_vec(), false));
        }
        assert_eq!(read(&[]), (vec![], false));
        assert_eq!(read(&[0; 46]), (vec![], false));
    }

    /// Only frames to stations with a shorter limit are joined less, as long as the limit holds.
    #[test]
    fn reach_is_by_station() {
        let (one, other) = (MacAddr([2; 6]), MacAddr([4; 6]));
        let mut reach = Reach::default();
        assert_eq!(reach.of(one, 9000), 9000);
        reach.set(one, 1400, 9000);
        reach.set(MacAddr::BROADCAST, 1400, 9000);
        reach.set(one, 700, 9000);
        let found = [one, other, MacAddr::BROADCAST].map(|to| reach.of(to, 9000));
        assert_eq!(found, [700, 9000, 1400]);
        reach.set(one, 9000, 9000);
        assert_eq!(reach.of(one, 9000), 9000);
    }

    /// A payload cut anywhere gives its whole frames and reports the cut; nothing is read beyond it.
    #[test]
    fn cut_payloads_are_told() {
        let frames: [&[u8]; 2] = [b"first", b"second"];
        let payload = bundle(&frames);
        for end in 0..payload.len() {
            let (read, cut) = read(&payload[..end]);
            assert_eq!(read, frames[..usize::from(end >= 7)].to_vec(), "{end}");
            // A single byte of a length is padding.
            assert_eq!(cut, ![0, 1, 7, 8].contains(&end), "{end}");
        }
    }
}
