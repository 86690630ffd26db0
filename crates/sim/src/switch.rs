//! The switch: one output port per node, with a finite buffer; and all faults of the paths.
//!
//! Called by `net` when a frame's last bit is there (store and forward). Each copy passes in this order: partition, loss, damage, duplication, then
//! the port's buffer (tail drop), its rate, and at last the path's delay. Copies of a broadcast share their bytes.

use std::collections::BTreeMap;

use crate::rng::Rng;
use crate::timeline::{Happening, Timeline};
use crate::wires::{Conditions, Damage, Port, wire_bytes};
use tsumuji_node::Bytes;
use tsumuji_proto::{Destination, Duration, NodeId};

/// Longest random frame: longer than any real one, shorter than a buffer.
const GARBAGE_BYTES: u64 = 10_000;

/// Frames by what happened to them. Each drop is counted under one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Frames that nodes transmitted; a broadcast counts once.
    pub sent_frames: u64,
    /// Bytes of these, without Ethernet's.
    pub sent_bytes: u64,
    /// Lost at random, or too long for their path.
    pub lost: u64,
    /// Dropped at the border of a partition.
    pub partitioned: u64,
    /// Damaged and found by the link's checksum.
    pub damage_found: u64,
    /// Damaged and passed on.
    pub damage_passed: u64,
    /// Refused by the checksum, where frames have one.
    pub refused: u64,
    /// Passed on twice.
    pub duplicated: u64,
    /// Given an extra delay.
    pub reordered: u64,
    /// Dropped: no room in the switch's buffer.
    pub switch_full: u64,
    /// Dropped: no room in a live node's receive ring.
    pub receive_full: u64,
    /// Dropped: no process was running at the node, or it died with the frame in its ring.
    pub nobody: u64,
}

/// The timeline, and the counts of frames.
#[derive(Debug)]
pub(crate) struct Medium {
    pub(crate) timeline: Timeline,
    pub(crate) rng: Rng,
    pub(crate) traffic: Traffic,
}

#[derive(Debug, Default)]
pub(crate) struct Switch {
    ports: Vec<Port>,
    rate_bits: u64,
    buffer_bytes: usize,
    conditions: Conditions,
    paths: BTreeMap<(NodeId, NodeId), Conditions>,
    /// Nodes of different sides do not reach each other.
    side: Vec<u32>,
}

impl Switch {
    pub(crate) fn new() -> Self {
        Self {
            buffer_bytes: usize::MAX,
            ..Self::default()
        }
    }

    pub(crate) fn add_port(&mut self) {
        self.ports.push(Port::new(self.rate_bits));
        self.side.push(0);
    }

    pub(crate) fn set_rate(&mut self, bits_per_second: u64) {
        self.rate_bits = bits_per_second;
        self.ports.fill(Port::new(bits_per_second));
    }

    pub(crate) fn set_buffer(&mut self, bytes: usize) {
        self.buffer_bytes = bytes;
    }

    pub(crate) fn conditions_mut(&mut self) -> &mut Conditions {
        &mut self.conditions
    }

    pub(crate) fn set_path(&mut self, from: NodeId, to: NodeId, conditions: Conditions) {
        self.paths.insert((from, to), conditions);
    }

    pub(crate) fn set_side(&mut self, node: NodeId, side: u32) {
        self.side[usize::from(node.0)] = side;
    }

    pub(crate) fn heal(&mut self) {
        self.side.fill(0);
    }

    /// Forwards a frame to one node, or to all but the sender.
    pub(crate) fn forward(
        &mut self,
        medium: &mut Medium,
        from: NodeId,
        to: Destination,
        frame: Bytes,
    ) {
        match to {
            Destination::Peer(to) => self.forward_copy(medium, from, to, frame),
            Destination::Broadcast => {
                for to in (0..self.ports.len() as u16)
                    .map(NodeId)
                    .filter(|to| *to != from)
                {
                    self.forward_copy(medium, from, to, frame.clone());
                }
            }
        }
    }

    fn forward_copy(&mut self, medium: &mut Medium, from: NodeId, to: NodeId, mut frame: Bytes) {
        let Medium {
            timeline,
            rng,
            traffic,
        } = medium;
        let index = usize::from(to.0);
        if index >= self.ports.len() {
            traffic.nobody += 1;
            return;
        }
        if self.side[index] != self.side[usize::from(from.0)] {
            traffic.partitioned += 1;
            return;
        }
        let conditions = self.paths.get(&(from, to)).unwrap_or(&self.conditions);
        let is_too_long = frame.len() > conditions.longest_bytes;
        if is_too_long || rng.chance(conditions.loss_ppm) {
            traffic.lost += 1;
            return;
        }
        if rng.chance(conditions.damage_ppm) {
            let kind = conditions.damage[rng.below(conditions.damage.len())];
            let Some(bytes) = damage(kind, &frame, rng) else {
                traffic.damage_found += 1;
                return;
            };
            traffic.damage_passed += 1;
            frame = bytes.into();
        }
        let copies = 1 + u32::from(rng.chance(conditions.duplicate_ppm));
        for copy in 0..copies {
            let frame = frame.clone();
            traffic.duplicated += u64::from(copy > 0);
            let bytes = wire_bytes(frame.len());
            let now = timeline.now();
            let port = &mut self.ports[index];
            if port.backlog_bytes(now).saturating_add(bytes) > self.buffer_bytes {
                traffic.switch_full += 1;
                continue;
            }
            let mut delay_ns = rng.within(conditions.delay_ns.clone());
            if rng.chance(conditions.reorder_ppm) {
                traffic.reordered += 1;
                delay_ns += rng.within(conditions.reorder_ns.clone());
            }
            let arrival = port.send(now, bytes) + Duration::from_nanos(delay_ns);
            timeline.plan(arrival, Happening::AtNode { from, to, frame });
        }
    }
}

/// The damaged frame; `None` where the link's checksum finds the damage.
fn damage(kind: Damage, bytes: &[u8], rng: &mut Rng) -> Option<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    match kind {
        Damage::Found => return None,
        Damage::Truncated => bytes.truncate(rng.below(bytes.len())),
        Damage::Padded => bytes.extend((0..rng.within(1..64)).map(|i| i as u8)),
        Damage::Flipped if bytes.is_empty() => {}
        Damage::Flipped => {
            for _ in 0..rng.within(1..9) {
                let bit = rng.below(bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        Damage::Garbage => bytes = garbage(rng),
    }
    Some(bytes)
}

/// Random bytes; short ones as likely as long ones.
pub(crate) fn garbage(rng: &mut Rng) -> Vec<u8> {
    let longest = if rng.chance(500_000) {
        64
    } else {
        GARBAGE_BYTES
    };
    (0..rng.within(0..longest))
        .map(|_| rng.bits() as u8)
        .collect()
}
