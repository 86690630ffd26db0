//! Names that travel in frames.

/// A process of the cluster. Given by the launcher or the cluster file; small and dense from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

impl core::fmt::Display for NodeId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// What the receiver is promised about order. Both are reliable and exactly once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeliveryClass {
    /// First in, first out within one lane.
    Ordered,
    /// Delivered as soon as complete.
    Unordered,
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
/// Messages of one ordered lane arrive in the order sent; between lanes there is no order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lane(pub u8);

impl Lane {
    /// Channels of each class and priority.
    pub const CHANNELS: u8 = 32;

    /// `channel` is taken modulo 32.
    pub const fn new(class: DeliveryClass, priority: Priority, channel: u8) -> Self {
        let class = match class {
            DeliveryClass::Ordered => 0,
            DeliveryClass::Unordered => 0x80,
        };
        Self(class | (priority.0 << 5) | (channel % Self::CHANNELS))
    }

    /// Ordered, normal priority.
    pub const fn ordered(channel: u8) -> Self {
        Self::new(DeliveryClass::Ordered, Priority::NORMAL, channel)
    }

    /// Unordered, normal priority.
    pub const fn unordered(channel: u8) -> Self {
        Self::new(DeliveryClass::Unordered, Priority::NORMAL, channel)
    }

    /// What the receiver is promised.
    pub const fn class(self) -> DeliveryClass {
        if self.0 & 0x80 == 0 {
            DeliveryClass::Ordered
        } else {
            DeliveryClass::Unordered
        }
    }

    /// How urgent.
    pub const fn priority(self) -> Priority {
        Priority((self.0 >> 5) & 3)
    }

    /// 0 to 31.
    pub const fn channel(self) -> u8 {
        self.0 & 0x1f
    }
}
