//! Names that frames carry.

/// Id of a member of the cluster, assigned by the launcher or the cluster file: small, and dense from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

impl core::fmt::Display for NodeId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// Delivery guarantee of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeliveryClass {
    /// Reliable, exactly once, in the order sent within one channel.
    Ordered,
    /// Reliable, exactly once; delivered as soon as it is complete.
    Unordered,
    /// Best effort (R-3, R-86 … R-88): datagrams, which programs send by calls of their own.
    Datagram,
}

/// Priority of a channel: 0 is the most urgent, 3 the least. A more urgent frame always goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// The most urgent priority.
    pub const URGENT: Self = Self(0);
    /// The default.
    pub const NORMAL: Self = Self(2);
    /// The least urgent priority, for bulk transfers.
    pub const BULK: Self = Self(3);
    /// Number of priorities.
    pub const COUNT: usize = 4;

    /// `None` if `value` is above 3.
    pub const fn new(value: u8) -> Option<Self> {
        if value < 4 { Some(Self(value)) } else { None }
    }

    /// The priority as a number, 0 to 3.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A sequence of messages between two nodes: an id, a delivery class and a priority.
///
/// Messages of one ordered channel arrive in the order sent; there is no order between channels. All channels of one id are opened together, and have
/// one owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel(u32);

/// Layout of a channel's number: 16 bits of id, 2 of priority, 2 of class.
const PRIORITY_SHIFT: u32 = 16;
const CLASS_SHIFT: u32 = 18;
/// Limits of the three classes, whose channels have consecutive numbers.
const UNORDERED: u32 = 1 << CLASS_SHIFT;
const DATAGRAM: u32 = 2 << CLASS_SHIFT;
const END: u32 = 3 << CLASS_SHIFT;

impl Channel {
    /// First id of the channels of libraries between endpoint and program. Messages there do not count as messages of the program.
    pub const LIBRARY_IDS: u16 = 0xff00;

    /// Id of the control channel, which endpoints use among themselves. Its messages are few and short, and never wait for room in a queue.
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

    /// Ordered channel of normal priority.
    pub const fn ordered(id: u16) -> Self {
        Self::new(DeliveryClass::Ordered, Priority::NORMAL, id)
    }

    /// Unordered channel of normal priority.
    pub const fn unordered(id: u16) -> Self {
        Self::new(DeliveryClass::Unordered, Priority::NORMAL, id)
    }

    /// Channel of the datagrams of that id, of the most urgent priority.
    pub const fn datagram(id: u16) -> Self {
        Self::new(DeliveryClass::Datagram, Priority::URGENT, id)
    }

    /// Delivery guarantee.
    pub const fn class(self) -> DeliveryClass {
        match self.0 {
            DATAGRAM.. => DeliveryClass::Datagram,
            UNORDERED.. => DeliveryClass::Unordered,
            _ => DeliveryClass::Ordered,
        }
    }

    /// Whether the class is `Datagram`.
    #[inline]
    pub const fn is_datagram(self) -> bool {
        self.0 >= DATAGRAM
    }

    /// Priority.
    #[inline]
    pub const fn priority(self) -> Priority {
        Priority((self.0 >> PRIORITY_SHIFT) as u8 & 3)
    }

    /// Id, by which the receiver finds the owner.
    #[inline]
    pub const fn id(self) -> u16 {
        self.0 as u16
    }

    /// Whether the id is one of libraries.
    #[inline]
    pub const fn is_library(self) -> bool {
        self.id() >= Self::LIBRARY_IDS
    }

    /// The channel as a number below 2²⁰: class (2 bits), priority (2), id (16).
    #[inline]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The channel with that number; `None` if there is no such class.
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

    /// Class, priority and id can be read from every channel, and every number below three classes is a channel.
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
