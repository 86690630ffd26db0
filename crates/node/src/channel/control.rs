//! What endpoints say to each other of their channels, by short messages on [`Lane::CONTROL_CHANNEL`].

use tsumuji_proto::{DeliveryClass, Lane, Priority};

/// Ordered, so that the last word counts.
pub(crate) const LANE: Lane = Lane::new(
    DeliveryClass::Ordered,
    Priority::URGENT,
    Lane::CONTROL_CHANNEL,
);

/// See the head of this module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Control {
    /// Send nothing more on this channel for now.
    Stop(u16),
    /// Go on.
    Go(u16),
}

impl Control {
    pub(crate) fn to_bytes(self) -> [u8; 4] {
        let (kind, channel) = match self {
            Self::Stop(channel) => (1, channel),
            Self::Go(channel) => (2, channel),
        };
        let [low, high] = channel.to_le_bytes();
        [kind, 0, low, high]
    }

    /// `None`: it is none, or of a later version.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        match *bytes {
            [1, 0, low, high] => Some(Self::Stop(u16::from_le_bytes([low, high]))),
            [2, 0, low, high] => Some(Self::Go(u16::from_le_bytes([low, high]))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was said is read; all else is nothing.
    #[test]
    fn words_read_as_written() {
        for said in [Control::Stop(0), Control::Go(0xfffe), Control::Stop(258)] {
            assert_eq!(Control::parse(&said.to_bytes()), Some(said));
        }
        for other in [
            &[][..],
            &[1, 0, 0],
            &[1, 1, 0, 0],
            &[3, 0, 0, 0],
            &[1, 0, 0, 0, 0],
        ] {
            assert_eq!(Control::parse(other), None);
        }
    }
}
