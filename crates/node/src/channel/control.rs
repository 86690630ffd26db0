//! Control messages between endpoints about their channels, on [`Channel::CONTROL_ID`].

use tsumuji_proto::{Channel, DeliveryClass, Priority};

/// Ordered, so that the last message counts.
pub(crate) const CHANNEL: Channel = Channel::new(
    DeliveryClass::Ordered,
    Priority::URGENT,
    Channel::CONTROL_ID,
);

/// A control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Control {
    /// The receiver may send nothing more on this channel for now.
    Stop(u16),
    /// The receiver may send on this channel again.
    Go(u16),
}

impl Control {
    pub(crate) fn to_bytes(self) -> [u8; 4] {
        let (kind, channel_id) = match self {
            Self::Stop(channel_id) => (1, channel_id),
            Self::Go(channel_id) => (2, channel_id),
        };
        let [low, high] = channel_id.to_le_bytes();
        [kind, 0, low, high]
    }

    /// Parses a control message; `None`: it is none, or of a later version.
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

    /// Control messages are parsed as written; anything else is rejected.
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
