//! Names that travel in frames.

/// A process of the cluster. Given by the launcher or the cluster file; small and dense from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

impl core::fmt::Display for NodeId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// What the receiver is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeliveryClass {
    /// Reliable, exactly once; first in, first out within one lane.
    Ordered,
    /// Reliable, exactly once; delivered as soon as complete.
    Unordered,
    /// Best effort, at most once: the newest wins, at the sender and at the receiver (R-86 … R-88).
    Latest,
}

/// 0 is the most urgent, 3 the least; strict between values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// The most urgent.
    pub const URGENT: Self = Self(0);
    /// What a program that does not care uses.
    pub const NORMAL: Self = Self(2);
    /// The least urgent: bulk transfers.
    pub const BULK: Self = Self(3);
    /// How many there are.
    pub const COUNT: usize = 4;

    /// `None` if `value` is above 3.
    pub const fn new(value: u8) -> Option<Self> {
        if value < 4 { Some(Self(value)) } else { None }
    }

    /// 0 to 3.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// One of 256 independent message sequences between two nodes: class, priority and channel in one byte.
///
/// Messages of one ordered lane arrive in the order sent; between lanes there is no order. Of a *latest* lane, a stream of
/// values of which only the newest counts, none arrives after a newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lane(pub u8);

/// Bits of a lane's byte that tell its class.
const UNORDERED: u8 = 0x80;
const LATEST: u8 = 0x90;

impl Lane {
    /// Channels of each priority of ordered lanes.
    pub const CHANNELS: u8 = 32;
    /// The channel on which libraries between endpoint and program speak among themselves.
    pub const LIBRARY_CHANNEL: u8 = Self::CHANNELS - 1;
    /// Channels of each priority of unordered lanes, and as many of latest ones.
    pub const FREE_CHANNELS: u8 = 16;

    /// `channel` is taken modulo 32 for ordered lanes, else modulo 16.
    pub const fn new(class: DeliveryClass, priority: Priority, channel: u8) -> Self {
        let place = match class {
            DeliveryClass::Ordered => channel % Self::CHANNELS,
            DeliveryClass::Unordered => UNORDERED | (channel % Self::FREE_CHANNELS),
            DeliveryClass::Latest => LATEST | (channel % Self::FREE_CHANNELS),
        };
        Self(place | (priority.0 << 5))
    }

    /// Ordered, normal priority.
    pub const fn ordered(channel: u8) -> Self {
        Self::new(DeliveryClass::Ordered, Priority::NORMAL, channel)
    }

    /// Unordered, normal priority.
    pub const fn unordered(channel: u8) -> Self {
        Self::new(DeliveryClass::Unordered, Priority::NORMAL, channel)
    }

    /// Only the newest message of `stream` counts; normal priority.
    pub const fn latest(stream: u8) -> Self {
        Self::new(DeliveryClass::Latest, Priority::NORMAL, stream)
    }

    /// What the receiver is promised.
    pub const fn class(self) -> DeliveryClass {
        match self.0 & LATEST {
            LATEST => DeliveryClass::Latest,
            UNORDERED => DeliveryClass::Unordered,
            _ => DeliveryClass::Ordered,
        }
    }

    /// Best effort: the newest message wins.
    #[inline]
    pub const fn is_latest(self) -> bool {
        self.0 & LATEST == LATEST
    }

    /// How urgent.
    pub const fn priority(self) -> Priority {
        Priority((self.0 >> 5) & 3)
    }

    /// 0 to 31, of an ordered lane; else 0 to 15.
    pub const fn channel(self) -> u8 {
        match self.class() {
            DeliveryClass::Ordered => self.0 & 0x1f,
            DeliveryClass::Unordered | DeliveryClass::Latest => self.0 & 0x0f,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Class, priority and channel come back out of every lane, and every byte is a lane.
    #[test]
    fn lanes_read_as_made() {
        for byte in 0..=u8::MAX {
            let lane = Lane(byte);
            assert_eq!(
                Lane::new(lane.class(), lane.priority(), lane.channel()),
                lane
            );
            assert_eq!(lane.is_latest(), lane.class() == DeliveryClass::Latest);
        }
        let lane = Lane::new(DeliveryClass::Latest, Priority::URGENT, 17);
        assert_eq!((lane.channel(), lane.priority()), (1, Priority::URGENT));
    }
}
