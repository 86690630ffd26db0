//! Control frames between the seals of two nodes, always encrypted, inside a session: confirmation, and the group key.
//!
//! Called by `peers`. `GroupNews` tells a peer the key of the node's broadcast frames.

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::key::KEY_BYTES;

/// Longest control frame.
pub(crate) const CONTROL_BYTES_MAX: usize = 4 + 4 + 4 + 8 + 8 + KEY_BYTES;

const FLAG_ANSWER: u8 = 1;
const FLAG_GROUP: u8 = 2;

/// A broadcast key, told to one peer.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct GroupNews {
    /// Random for each incarnation of the sender.
    pub(crate) instance: u64,
    /// Grows with each new key of one incarnation.
    pub(crate) generation: u32,
    pub(crate) key_id: u32,
    /// Frames with lower counters are from before.
    pub(crate) counter: u64,
    pub(crate) key: [u8; KEY_BYTES],
}

#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(crate) struct Control {
    /// Asks the receiver for the same message about itself.
    pub(crate) wants_answer: bool,
    /// `None` where the link has no broadcast.
    pub(crate) group: Option<GroupNews>,
}

impl Control {
    /// Writes to the beginning of `slot`, which must have room; returns the length.
    pub(crate) fn write(&self, slot: &mut [u8]) -> usize {
        let mut flags = 0;
        if self.wants_answer {
            flags |= FLAG_ANSWER;
        }
        let Some(group) = &self.group else {
            slot[..4].copy_from_slice(&[flags, 0, 0, 0]);
            return 4;
        };
        slot[..4].copy_from_slice(&[flags | FLAG_GROUP, 0, 0, 0]);
        slot[4..8].copy_from_slice(&group.generation.to_le_bytes());
        slot[8..12].copy_from_slice(&group.key_id.to_le_bytes());
        slot[12..20].copy_from_slice(&group.instance.to_le_bytes());
        slot[20..28].copy_from_slice(&group.counter.to_le_bytes());
        slot[28..CONTROL_BYTES_MAX].copy_from_slice(&group.key);
        CONTROL_BYTES_MAX
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (&[flags, 0, 0, 0], rest) = bytes.split_first_chunk::<4>()? else {
            return None;
        };
        let wants_answer = flags & FLAG_ANSWER != 0;
        let group = match (flags & !FLAG_ANSWER, rest.len()) {
            (0, 0) => None,
            (FLAG_GROUP, _) if bytes.len() == CONTROL_BYTES_MAX => {
                let mut key = [0; KEY_BYTES];
                key.copy_from_slice(&bytes[28..]);
                Some(GroupNews {
                    generation: u32::from_le_bytes(bytes[4..8].try_into().ok()?),
                    key_id: u32::from_le_bytes(bytes[8..12].try_into().ok()?),
                    instance: u64::from_le_bytes(bytes[12..20].try_into().ok()?),
                    counter: u64::from_le_bytes(bytes[20..28].try_into().ok()?),
                    key,
                })
            }
            _ => return None,
        };
        Some(Self {
            wants_answer,
            group,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A control frame is read as it was written; shorter or longer ones, and ones with unknown flags, are not.
    #[test]
    fn reads_back() {
        let news = GroupNews {
            instance: 1 << 50,
            generation: 2,
            key_id: 3,
            counter: 4 << 40,
            key: [5; KEY_BYTES],
        };
        for group in [None, Some(news)] {
            for wants_answer in [false, true] {
                let control = Control {
                    wants_answer,
                    group: group.clone(),
                };
                let mut slot = [0xff; CONTROL_BYTES_MAX + 1];
                let bytes = control.write(&mut slot);
                assert_eq!(Control::parse(&slot[..bytes]), Some(control));
                assert_eq!(Control::parse(&slot[..bytes - 1]), None);
                assert_eq!(Control::parse(&slot[..bytes + 1]), None);
                slot[0] |= 4;
                assert_eq!(Control::parse(&slot[..bytes]), None);
            }
        }
    }
}
