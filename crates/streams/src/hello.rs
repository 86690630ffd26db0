//! The hello that a client leaves in a mailbox: which slot of which segment it offers, and which connection will come.
//!
//! The segment's file goes with it. Through a gateway a second descriptor does: an end of a socket pair by which each side wakes the other.

use crate::address::Address;
use crate::ring::{GENERATION_SHIFT, SLOTS};

const MAGIC: u64 = 0x7473_756d_6865_6c32;
const WORDS: usize = 10;
/// Bytes of a hello.
pub const HELLO_BYTES: usize = WORDS * 8;

/// A gateway's answer to a hello: the other host's listener was offered the connection.
pub const OFFERED_THERE: u8 = 1;
/// Or was not: it stays with TCP.
pub const NOT_THERE: u8 = 0;

/// What a client leaves in a mailbox, besides the segment's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Of the slot's state.
    pub generation: u64,
    /// Monotonic clock of the host.
    pub sent_ns: u64,
    /// Below `SLOTS`.
    pub slot: usize,
    /// The address that the connection will come from; on one host the port alone counts.
    pub client: Address,
    /// The address that it goes to.
    pub server: Address,
}

impl Hello {
    /// As it travels.
    pub fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let first = [MAGIC, self.generation, self.sent_ns, self.slot as u64];
        let words = first
            .into_iter()
            .chain(self.client.words())
            .chain(self.server.words());
        let mut bytes = [0; HELLO_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Of bytes that came; every field is bounded.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HELLO_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at * 8 + byte]));
        let slot = usize::try_from(word(3)).ok().filter(|slot| *slot < SLOTS)?;
        (word(0) == MAGIC).then_some(Self {
            generation: word(1) & (u64::MAX >> GENERATION_SHIFT),
            sent_ns: word(2),
            slot,
            client: Address::from_words([word(4), word(5), word(6)])?,
            server: Address::from_words([word(7), word(8), word(9)])?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hello says what was said, and any other bytes are none.
    #[test]
    fn hellos_are_bounded() {
        let at = |port| Address { ip: [7; 16], port };
        let hello = Hello {
            generation: 7,
            sent_ns: 9,
            slot: SLOTS - 1,
            client: at(65535),
            server: at(80),
        };
        let bytes = hello.to_bytes();
        assert_eq!(Hello::parse(&bytes), Some(hello));
        for length in 0..HELLO_BYTES {
            assert_eq!(Hello::parse(&bytes[..length]), None);
        }
        for (at, value) in [(0, 0xff), (24, SLOTS as u8), (26, 1), (50, 1), (74, 1)] {
            let mut wrong = bytes;
            wrong[at] = value;
            assert_eq!(Hello::parse(&wrong), None, "byte {at}");
        }
    }
}
