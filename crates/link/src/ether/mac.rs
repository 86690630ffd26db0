//! Ethernet addresses.

use std::fmt;
use std::str::FromStr;

/// An Ethernet address: `02:00:00:00:00:01`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// All stations of the segment.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// No address, as the loopback interface has.
    pub const ZERO: Self = Self([0; 6]);

    /// Processes that can share one interface, each with an address of its own.
    pub const SLOTS: u8 = 64;

    /// The address of process number `slot` of an interface with this address: itself for 0, else it differs in the upper six bits of the first byte,
    /// by exclusive or with the number, and is marked as locally administered. `None`: there is no such slot.
    #[must_use]
    pub fn of_slot(self, slot: u8) -> Option<Self> {
        let mut bytes = self.0;
        match slot {
            0 => {}
            1..Self::SLOTS => bytes[0] = (bytes[0] ^ slot << 2) & !3 | 2,
            _ => return None,
        }
        Some(Self(bytes))
    }

    /// A group of stations; the broadcast address is one.
    #[must_use]
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether a single station may have this address.
    #[must_use]
    pub fn is_station(self) -> bool {
        !self.is_multicast() && self != Self::ZERO
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is no Ethernet address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an Ethernet address; write six hexadecimal bytes like 02:00:00:00:00:01")]
pub struct ParseMacError;

impl FromStr for MacAddr {
    type Err = ParseMacError;

    /// Six bytes of one or two hexadecimal digits (as ethers(5) has them), between colons.
    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or(ParseMacError)?;
            let hexadecimal = part.bytes().all(|digit| digit.is_ascii_hexdigit());
            if !hexadecimal || !(1..=2).contains(&part.len()) {
                return Err(ParseMacError);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| ParseMacError)?;
        }
        match parts.next() {
            None => Ok(Self(bytes)),
            Some(_) => Err(ParseMacError),
        }
    }
}
