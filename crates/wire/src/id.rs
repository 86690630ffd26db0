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
    /// Best effort (R-3, R-86 … R-88): the fragments of datagrams that are longer than a frame. Programs send them by calls of their own.
    Datagram,
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

/// A message sequence between two nodes: class, priority and channel.
///
/// Messages of one ordered lane arrive in the order sent; between lanes there is no order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(u32);

/// Bits of a lane's number: 16 of the channel, 2 of the priority, 2 of the class.
const PRIORITY_SHIFT: u32 = 16;
const CLASS_SHIFT: u32 = 18;
/// The three classes: as numbers they come after each other.
const UNORDERED: u32 = 1 << CLASS_SHIFT;
const DATAGRAM: u32 = 2 << CLASS_SHIFT;
const END: u32 = 3 << CLASS_SHIFT;

impl Lane {
    /// Channels from here on are for libraries between endpoint and program. What they have on the way is none of the program's messages.
    pub const LIBRARY_CHANNELS: u16 = 0xff00;

    /// The last of them is the endpoints' own. Few and short messages travel there, and none waits for room in a queue.
    pub const CONTROL_CHANNEL: u16 = u16::MAX;

    /// The lane of that class, priority and channel.
    pub const fn new(class: DeliveryClass, priority: Priority, channel: u16) -> Self {
        let class = match class {
            DeliveryClass::Ordered => 0,
            DeliveryClass::Unordered => UNORDERED,
            DeliveryClass::Datagram => DATAGRAM,
        };
        Self(class | (priority.0 as u32) << PRIORITY_SHIFT | channel as u32)
    }

    /// Ordered, normal priority.
    pub const fn ordered(channel: u16) -> Self {
        Self::new(DeliveryClass::Ordered, Priority::NORMAL, channel)
    }

    /// Unordered, normal priority.
    pub const fn unordered(channel: u16) -> Self {
        Self::new(DeliveryClass::Unordered, Priority::NORMAL, channel)
    }

    /// Of the datagrams of that channel: before all messages.
    pub const fn datagram(channel: u16) -> Self {
        Self::new(DeliveryClass::Datagram, Priority::URGENT, channel)
    }

    /// What the receiver is promised.
    pub const fn class(self) -> DeliveryClass {
        match self.0 {
            DATAGRAM.. => DeliveryClass::Datagram,
            UNORDERED.. => DeliveryClass::Unordered,
            _ => DeliveryClass::Ordered,
        }
    }

    /// Best effort.
    #[inline]
    pub const fn is_datagram(self) -> bool {
        self.0 >= DATAGRAM
    }

    /// How urgent.
    #[inline]
    pub const fn priority(self) -> Priority {
        Priority((self.0 >> PRIORITY_SHIFT) as u8 & 3)
    }

    /// Who it is for, at the receiver.
    #[inline]
    pub const fn channel(self) -> u16 {
        self.0 as u16
    }

    /// Its channel is for libraries.
    #[inline]
    pub const fn is_library(self) -> bool {
        self.channel() >= Self::LIBRARY_CHANNELS
    }

    /// As a number below 2²⁰: class (2 bits), priority (2), channel (16).
    #[inline]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The lane of that number; `None`: there is no such class.
    #[inline]
    pub const fn from_number(number: u32) -> Option<Self> {
        if number < END {
            Some(Self(number))
        } else {
            None
        }
    }
}

impl core::fmt::Debug for Lane {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (class, priority) = (self.class(), self.priority().0);
        write!(f, "{class:?}({}, priority {priority})", self.channel())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Class, priority and channel come back out of every lane, and every number below three classes is a lane.
    #[test]
    fn lanes_read_as_made() {
        for kind in 0..16_u32 {
            for channel in [0, 1, 255, 256, 65_535] {
                let number = kind << 16 | channel;
                let lane = Lane::from_number(number);
                assert_eq!(lane.is_some(), kind < 12);
                let Some(lane) = lane else { continue };
                let again = Lane::new(lane.class(), lane.priority(), lane.channel());
                assert_eq!((again, again.number()), (lane, number));
                assert_eq!(lane.is_datagram(), lane.class() == DeliveryClass::Datagram);
            }
        }
        let lane = Lane::new(DeliveryClass::Datagram, Priority::URGENT, 1700);
        assert_eq!((lane.channel(), lane.priority()), (1700, Priority::URGENT));
    }
}
