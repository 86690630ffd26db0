//! Faults and delays of frames between two nodes: the conditions of a path, and ports that send at a rate.

use std::ops::Range;

use tsumuji_proto::{Duration, Instant};

/// Bytes that a frame takes on the wire beside its own: Ethernet header 14, checksum 4, preamble 8, gap 12.
pub const ETHERNET_OVERHEAD_BYTES: usize = 38;

/// Ethernet pads shorter contents to this.
pub const ETHERNET_SHORTEST_BYTES: usize = 46;

/// Bytes that a frame of `frame_bytes` occupies on the wire.
pub const fn wire_bytes(frame_bytes: usize) -> usize {
    let content = if frame_bytes < ETHERNET_SHORTEST_BYTES {
        ETHERNET_SHORTEST_BYTES
    } else {
        frame_bytes
    };
    content + ETHERNET_OVERHEAD_BYTES
}

/// What happens to a frame that `Conditions::damage_ppm` picks. The crate's head explains the kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// The link's checksum finds it: the frame is dropped, and counted apart from lost ones.
    Found,
    /// Cut short, possibly to nothing.
    Truncated,
    /// Garbage appended, as a padding link would.
    Padded,
    /// One to eight bits flipped anywhere: only authentication would notice. The oracle must be told to forgive the pair.
    Flipped,
    /// Replaced by random bytes of random length.
    Garbage,
}

/// Conditions of the path from one node to another. Probabilities are in millionths (ppm) per frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conditions {
    /// Time from the switch's port to the node, drawn for each frame; a wide range reorders.
    pub delay_ns: Range<u64>,
    /// Probability of loss before the switch's port.
    pub loss_ppm: u32,
    /// Longer frames are lost, as with too small an MTU.
    pub longest_bytes: usize,
    /// Probability of passing the port twice.
    pub duplicate_ppm: u32,
    /// Probability of an extra delay.
    pub reorder_ppm: u32,
    /// Range of that delay.
    pub reorder_ns: Range<u64>,
    /// Probability of damage.
    pub damage_ppm: u32,
    /// Kinds of damage, equally probable; must not be empty where `damage_ppm` is above 0.
    pub damage: &'static [Damage],
}

impl Default for Conditions {
    /// 10 µs, and nothing goes wrong.
    fn default() -> Self {
        Self {
            delay_ns: 10_000..10_001,
            loss_ppm: 0,
            longest_bytes: usize::MAX,
            duplicate_ppm: 0,
            reorder_ppm: 0,
            reorder_ns: 0..1_000_000,
            damage_ppm: 0,
            damage: &[Damage::Found],
        }
    }
}

/// A transmitter that sends one frame after the other at a rate.
#[derive(Debug, Clone, Default)]
pub(crate) struct Port {
    /// Picoseconds, so that 100 Gbit/s is exact. 0: no limit.
    ps_per_byte: u64,
    free_at_ps: u64,
}

impl Port {
    /// 0 bits a second stands for no limit.
    pub(crate) fn new(bits_per_second: u64) -> Self {
        Self {
            ps_per_byte: 8_000_000_000_000u64
                .checked_div(bits_per_second)
                .unwrap_or(0),
            free_at_ps: 0,
        }
    }

    /// When the last bit of `bytes` has left, after all that was sent before.
    pub(crate) fn send(&mut self, now: Instant, bytes: usize) -> Instant {
        if self.ps_per_byte == 0 {
            return now;
        }
        self.free_at_ps =
            self.free_at_ps.max(now.as_nanos() * 1_000) + bytes as u64 * self.ps_per_byte;
        Instant::from_nanos(self.free_at_ps.div_ceil(1_000))
    }

    /// Bytes that wait here, without the part of the first frame that has left.
    pub(crate) fn backlog_bytes(&self, now: Instant) -> usize {
        match self.ps_per_byte {
            0 => 0,
            ps_per_byte => {
                (self.free_at_ps.saturating_sub(now.as_nanos() * 1_000) / ps_per_byte) as usize
            }
        }
    }
}

/// Share of a port's rate that `payload_bytes` made in `span`: 1.0 would be a wire that carries nothing else.
pub fn goodput(payload_bytes: u64, span: Duration, bits_per_second: u64) -> f64 {
    payload_bytes as f64 * 8.0 / (bits_per_second as f64 * span.as_nanos() as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full frame at 1 Gbit/s takes the time known from Ethernet: 1538 bytes, 12.304 µs; the shortest 0.672 µs.
    #[test]
    fn frames_take_their_time() {
        let mut port = Port::new(1_000_000_000);
        let start = Instant::from_nanos(100);
        assert_eq!(
            port.send(start, wire_bytes(1500)),
            Instant::from_nanos(100 + 12_304)
        );
        assert_eq!(port.backlog_bytes(start), 1538);
        assert_eq!(
            port.send(start, wire_bytes(0)),
            Instant::from_nanos(100 + 12_304 + 672)
        );
        assert_eq!(port.backlog_bytes(Instant::from_nanos(100 + 12_304)), 84);
        assert_eq!(port.backlog_bytes(Instant::from_nanos(50_000)), 0);
    }

    /// Without a rate no frame waits.
    #[test]
    fn no_rate_no_wait() {
        let mut port = Port::new(0);
        assert_eq!(
            port.send(Instant::from_nanos(5), 1_000_000),
            Instant::from_nanos(5)
        );
        assert_eq!(port.backlog_bytes(Instant::from_nanos(5)), 0);
    }

    /// Goodput counts payload only: full frames with a 40-byte header reach 94.9 % at 1500 bytes.
    #[test]
    fn goodput_counts_payload_only() {
        let share = goodput(1460, Duration::from_nanos(12_304), 1_000_000_000);
        assert!((share - 0.9493).abs() < 1e-4, "{share}");
    }
}
