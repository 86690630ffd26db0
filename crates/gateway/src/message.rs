//! What gateways tell each other.
//!
//! On the channel `CONTROL`: which addresses a host has, and offers of connections. On the channel of a stream, in order: its data, and what the ends
//! say of it. Each message of a stream begins with the receiver's token for it, so that one for an earlier stream of the channel is known.
//!
//! Everything is bounded when it is read.

use serde::{Deserialize, Serialize};
use tsumuji_streams::address::{Address, Pair};

/// Channel of control messages.
pub(crate) const CONTROL: u16 = 1;
/// Channels of streams begin here.
pub(crate) const FIRST: u16 = 16;
/// Addresses of a host that are taken.
pub(crate) const ADDRESSES_MAX: usize = 64;
/// Longest control message, in bytes.
const CONTROL_BYTES_MAX: usize = 4096;

/// An address, as it travels.
type Words = [u64; 3];

/// A message on the channel `CONTROL`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Control {
    /// The IP addresses of the sender's host.
    Addresses(Vec<[u8; 16]>),
    /// A client of the sender's host is about to connect.
    Offer {
        /// Token and channel of the stream at the sender.
        stream: (u32, u16),
        client: Words,
        server: Words,
    },
    /// The answer: token and channel of the stream at the receiver, and, if the listener was told, those at the sender.
    Offered((u32, u16), Option<(u32, u16)>),
}

impl Control {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("words and lists of bytes")
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > CONTROL_BYTES_MAX {
            return None;
        }
        let control = postcard::from_bytes(bytes).ok()?;
        match &control {
            Self::Addresses(all) if all.len() > ADDRESSES_MAX => None,
            _ => Some(control),
        }
    }
}

/// What a message of a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bytes.
    Data = 1,
    /// The client has connected: both addresses.
    Confirmed,
    /// The server has accepted, and goes by its ring.
    Claimed,
    /// So does the client.
    Agreed,
    /// The connection stays with TCP.
    Cancelled,
    /// The first byte by ring follows after so many by TCP: that number, plus one.
    Switch,
    /// Nothing more will be sent.
    Finished,
    /// What follows goes by TCP again.
    Back,
    /// The receiver's end shall send by TCP again.
    WantsTcp,
    /// The sender's program has been told by its kernel that the receiver's end of the connection was closed.
    SeesEnd,
    /// The sender's program has closed the connection, or is gone; a byte: by a reset.
    Gone,
}

const KINDS: [Kind; 11] = [
    Kind::Data,
    Kind::Confirmed,
    Kind::Claimed,
    Kind::Agreed,
    Kind::Cancelled,
    Kind::Switch,
    Kind::Finished,
    Kind::Back,
    Kind::WantsTcp,
    Kind::SeesEnd,
    Kind::Gone,
];

/// Bytes before what a message says.
pub(crate) const HEAD_BYTES: usize = 5;

/// The beginning of a message.
pub(crate) fn head(kind: Kind, token: u32) -> [u8; HEAD_BYTES] {
    let mut bytes = [kind as u8; HEAD_BYTES];
    bytes[1..].copy_from_slice(&token.to_le_bytes());
    bytes
}

/// Kind, token and the rest.
pub(crate) fn split(bytes: &[u8]) -> Option<(Kind, u32, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let kind = KINDS.iter().find(|kind| **kind as u8 == head[0])?;
    let token = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
    Some((*kind, token, rest))
}

/// A number, as it travels.
pub(crate) fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Both addresses, as they travel.
pub(crate) fn pair_to_bytes(pair: &Pair) -> Vec<u8> {
    let words = pair.client.words().into_iter().chain(pair.server.words());
    words.flat_map(u64::to_le_bytes).collect()
}

pub(crate) fn pair(bytes: &[u8]) -> Option<Pair> {
    let (words, []) = bytes.as_chunks::<8>() else {
        return None;
    };
    let words: &[[u8; 8]; 6] = words.try_into().ok()?;
    let [a, b, c, d, e, f] = words.map(u64::from_le_bytes);
    Some(Pair {
        client: Address::from_words([a, b, c])?,
        server: Address::from_words([d, e, f])?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said arrives; anything else is none.
    #[test]
    fn messages_are_bounded() {
        for (at, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, at + 1);
            let message = [&head(kind, 77)[..], b"rest"].concat();
            assert_eq!(split(&message), Some((kind, 77, &b"rest"[..])));
        }
        assert_eq!(split(&[0; HEAD_BYTES]), None);
        assert_eq!(split(&head(Kind::Gone, 1)[..4]), None);
        let offer = Control::Offer {
            stream: (7, 16),
            client: [1, 2, 3],
            server: [4, 5, 6],
        };
        let bytes = offer.to_bytes();
        assert_eq!(Control::parse(&bytes), Some(offer));
        for length in 0..bytes.len() {
            assert_eq!(Control::parse(&bytes[..length]), None);
        }
        let many = Control::Addresses(vec![[0; 16]; ADDRESSES_MAX + 1]);
        assert_eq!(Control::parse(&many.to_bytes()), None);
        let at = |port| Address { ip: [9; 16], port };
        let both = Pair {
            client: at(1),
            server: at(2),
        };
        assert_eq!(pair(&pair_to_bytes(&both)), Some(both));
        assert_eq!(pair(&[0; 47]), None);
        assert_eq!(pair(&[0xff; 48]), None);
    }
}
