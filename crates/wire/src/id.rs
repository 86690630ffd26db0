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
    /// Reliable, exactly once; first in, first out within one channel.
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

/// Where a message goes at its receiver, and how: an id, a delivery class and a priority.
///
/// Messages of one ordered channel arrive in the order sent; between channels there is no order. Channels of one id are opened together, and
/// have one owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel(u32);

/// Bits of a channel's number: 16 of the id, 2 of the priority, 2 of the class.
const PRIORITY_SHIFT: u32 = 16;
const CLASS_SHIFT: u32 = 18;
/// The three classes: as numbers they come after each other.
const UNORDERED: u32 = 1 << CLASS_SHIFT;
const DATAGRAM: u32 = 2 << CLASS_SHIFT;
const END: u32 = 3 << CLASS_SHIFT;

impl Channel {
    /// Ids from here on are for libraries between endpoint and program. What they have on the way is none of the program's messages.
    pub const LIBRARY_IDS: u16 = 0xff00;

    /// The last of them is the endpoints' own. Few and short messages travel there, and none waits for room in a queue.
    pub const CONTROL_ID: u16 = u16::MAX;

    /// The channel of that class, priority and id.
    pub const fn new(class: DeliveryClass, priority: Priority, id: u16) -> Self {
        let class = match class {
            DeliveryClass::Ordered => 0,
            DeliveryClass::Unordered => UNORDERED,
            DeliveryClass::Datagram => DATAGRAM,
        };
        Self(class | (priority.0 as u32) << PRIORITY_SHIFT | id as u32)
    }

    /// Ordered, normal priority.
    pub const fn ordered(id: u16) -> Self {
        Self::new(DeliveryClass::Ordered, Priority::NORMAL, id)
    }

    /// Unordered, normal priority.
    pub const fn unordered(id: u16) -> Self {
        Self::new(DeliveryClass::Unordered, Priority::NORMAL, id)
    }

    /// Of the datagrams of that id: before all messages.
    pub const fn datagram(id: u16) -> Self {
        Self::new(DeliveryClass::Datagram, Priority::URGENT, id)
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
    pub const fn id(self) -> u16 {
        self.0 as u16
    }

    /// Its id is for libraries.
    #[inline]
    pub const fn is_library(self) -> bool {
        self.id() >= Self::LIBRARY_IDS
    }

    /// As a number below 2²⁰: class (2 bits), priority (2), id (16).
    #[inline]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The channel of that number; `None`: there is no such class.
    #[inline]
    pub const fn from_number(number: u32) -> Option<Self> {
        if number < END {
            Some(Self(number))
        } else {
            None
        }
    }
}

impl core::fmt::Debug for Channel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (class, priority) = (self.class(), self.priority().0);
        write!(f, "{class:?}({}, priority {priority})", self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Class, priority and id come back out of every channel, and every number below three classes is a channel.
    #[test]
    fn channels_read_as_made() {
        for kind in 0..16_u32 {
            for id in [0, 1, 255, 256, 65_535] {
                let number = kind << 16 | id;
                let channel = Channel::from_number(number);
                assert_eq!(channel.is_some(), kind < 12);
                let Some(channel) = channel else { continue };
                let again = Channel::new(channel.class(), channel.priority(), channel.id());
                assert_eq!((again, again.number()), (channel, number));
                assert_eq!(
                    channel.is_datagram(),
                    channel.class() == DeliveryClass::Datagram
                );
            }
        }
        let channel = Channel::new(DeliveryClass::Datagram, Priority::URGENT, 1700);
        assert_eq!((channel.id(), channel.priority()), (1700, Priority::URGENT));
    }
}
