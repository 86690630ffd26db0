//! Specification of a testbed: its name, number of hosts, frame size and rate, and the addresses that follow from them.
//!
//! All properties of a host follow from the testbed's name and the host's number, and can be computed without the kernel.
//!
//! Called by all other modules, and by `tsumuji testbed` to parse its command line.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// The hosts of a testbed share one /24 network; its last two addresses are left free.
pub(crate) const MOST_HOSTS: u16 = 253;
/// IPv4 requires every host to take 576 bytes.
pub(crate) const LEAST_MTU_BYTES: u32 = 576;
/// The largest IPv4 packet; virtual Ethernet takes no more either.
pub(crate) const MOST_MTU_BYTES: u32 = 65_535;
/// Names become part of interface marks (at most 255 bytes) and of file names.
const LONGEST_NAME_BYTES: usize = 64;

/// A testbed's name: letters, digits, `-` and `_`; the names of its namespaces begin with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Name(String);

impl Name {
    /// The namespace that holds the bridge.
    pub fn switch(&self) -> String {
        format!("{}-switch", self.0)
    }

    /// The namespace (and the name) of a host.
    pub fn host(&self, id: u16) -> String {
        format!("{}-{id}", self.0)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The number of the host that a namespace's name means in this testbed.
    pub(crate) fn host_id(&self, namespace: &str) -> Option<u16> {
        let digits = namespace.strip_prefix(&self.0)?.strip_prefix('-')?;
        let id = digits.parse().ok()?;
        (id < MOST_HOSTS && digits == format!("{id}")).then_some(id)
    }
}

impl Default for Name {
    fn default() -> Self {
        Self("tsumuji".to_owned())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// Why a specification is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The name cannot name namespaces.
    #[error(
        "'{0}' cannot name a testbed; use 1 to {LONGEST_NAME_BYTES} letters, digits, '-' and '_', not '-' first"
    )]
    Name(String),
    /// Too few or too many hosts.
    #[error("{0} hosts; a testbed has 1 to {MOST_HOSTS}")]
    Hosts(u16),
    /// The MTU is out of range.
    #[error("MTU of {0} bytes; use {LEAST_MTU_BYTES} to {MOST_MTU_BYTES}")]
    Mtu(u32),
    /// The rate is malformed or out of range.
    #[error("'{0}' is no rate; use a number with kbit, mbit or gbit, 100kbit to 100gbit")]
    Rate(String),
    /// The fraction is malformed or out of range.
    #[error("'{0}' is no fraction; use 0 to 1, or 0% to 100%")]
    Fraction(String),
}

impl FromStr for Name {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let is_sound = (1..=LONGEST_NAME_BYTES).contains(&text.len())
            && !text.starts_with('-')
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        if is_sound {
            Ok(Self(text.to_owned()))
        } else {
            Err(SpecError::Name(text.to_owned()))
        }
    }
}

/// Rate of a cable in bits per second, each way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    bits_per_second: u64,
}

impl Rate {
    const LEAST: u64 = 100_000;
    const MOST: u64 = 100_000_000_000;

    /// A rate from 100 kbit/s to 100 Gbit/s.
    pub fn from_bits_per_second(bits_per_second: u64) -> Result<Self, SpecError> {
        if (Self::LEAST..=Self::MOST).contains(&bits_per_second) {
            Ok(Self { bits_per_second })
        } else {
            Err(SpecError::Rate(format!("{bits_per_second}bit")))
        }
    }

    /// The rate in bits per second.
    pub fn bits_per_second(self) -> u64 {
        self.bits_per_second
    }
}

impl FromStr for Rate {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let error = || SpecError::Rate(text.to_owned());
        let lower = text.trim().to_ascii_lowercase();
        let split = lower
            .find(|letter: char| letter.is_ascii_alphabetic())
            .ok_or_else(error)?;
        let (number, unit) = lower.split_at(split);
        let unit: f64 = match unit {
            "bit" => 1.0,
            "kbit" => 1e3,
            "mbit" => 1e6,
            "gbit" => 1e9,
            _ => return Err(error()),
        };
        let bits = number.trim().parse::<f64>().map_err(|_| error())? * unit;
        // Out of range and NaN are refused alike; the conversion of the others is exact enough.
        if !(bits >= Self::LEAST as f64 && bits <= Self::MOST as f64) {
            return Err(error());
        }
        Self::from_bits_per_second(bits.round() as u64).map_err(|_| error())
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.bits_per_second;
        for (unit, name) in [
            (1_000_000_000, "gbit"),
            (1_000_000, "mbit"),
            (1_000, "kbit"),
        ] {
            if bits.is_multiple_of(unit) {
                return write!(f, "{}{name}", bits / unit);
            }
        }
        write!(f, "{bits}bit")
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// An Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl Serialize for Mac {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Prefix of all our Ethernet addresses: locally administered, then "ts" in ASCII.
const MAC_PREFIX: [u8; 3] = [0x02, 0x74, 0x73];

/// The Ethernet address of a host: 02:74:73:00:00:01 for host 0, and so on.
pub(crate) fn host_mac(id: u16) -> Mac {
    mac(0, id + 1)
}

/// The Ethernet address of the switch's port towards a host.
pub(crate) fn port_mac(id: u16) -> Mac {
    mac(1, id + 1)
}

/// The Ethernet address of the bridge itself.
pub(crate) fn bridge_mac() -> Mac {
    mac(2, 0)
}

fn mac(group: u8, number: u16) -> Mac {
    let [a, b, c] = MAC_PREFIX;
    let [high, low] = number.to_be_bytes();
    Mac([a, b, c, group, high, low])
}

/// The IP address of a host: 10.77.0.1 for host 0, and so on, in a /24.
pub(crate) fn host_ip(id: u16) -> Ipv4Addr {
    // `MOST_HOSTS` keeps this below 254.
    Ipv4Addr::new(10, 77, 0, u8::try_from(id + 1).unwrap_or(u8::MAX))
}

/// The interface of every host.
pub(crate) const INTERFACE: &str = "eth0";
/// The bridge in the switch's namespace.
pub(crate) const BRIDGE: &str = "br0";

/// The switch's port by which copies of frames enter again (see `dropper`), and the other end of its cable, which is unused.
pub(crate) const COPIES: [&str; 2] = ["copies", "copies-end"];

/// The switch's port towards a host.
pub(crate) fn port(id: u16) -> String {
    format!("p{id}")
}

/// The host to which a port of the switch leads.
pub(crate) fn port_id(name: &str) -> Option<u16> {
    name.strip_prefix('p')?.parse().ok()
}

/// The testbed to build.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Its name; several testbeds may exist at once, each with a bridge of its own.
    pub name: Name,
    /// Number of hosts, 1 to 253.
    pub hosts: u16,
    /// Bytes of the largest IP packet on every interface.
    pub mtu_bytes: u32,
    /// Rate of every cable each way; `None`: unlimited.
    pub rate: Option<Rate>,
}

impl Spec {
    /// Hosts with the ordinary MTU of Ethernet and unlimited rate.
    pub fn new(hosts: u16) -> Self {
        Self {
            name: Name::default(),
            hosts,
            mtu_bytes: 1500,
            rate: None,
        }
    }

    /// The same under another name.
    pub fn named(mut self, name: Name) -> Self {
        self.name = name;
        self
    }

    /// Refuses specifications that cannot be built.
    pub fn check(&self) -> Result<(), SpecError> {
        if !(1..=MOST_HOSTS).contains(&self.hosts) {
            return Err(SpecError::Hosts(self.hosts));
        }
        if !(LEAST_MTU_BYTES..=MOST_MTU_BYTES).contains(&self.mtu_bytes) {
            return Err(SpecError::Mtu(self.mtu_bytes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates are read and written in the usual units; the error for others lists the accepted ones.
    #[test]
    fn rates_are_read_and_written() {
        for (text, bits, shown) in [
            ("1gbit", 1_000_000_000, "1gbit"),
            ("2.5Gbit", 2_500_000_000, "2500mbit"),
            ("100 mbit", 100_000_000, "100mbit"),
            ("100000bit", 100_000, "100kbit"),
            ("123456bit", 123_456, "123456bit"),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(
                (rate.bits_per_second(), rate.to_string()),
                (bits, shown.to_owned())
            );
        }
        for text in [
            "", "1", "gbit", "nangbit", "-1gbit", "1gib", "1kbit", "1e9gbit", "infgbit",
        ] {
            assert_eq!(text.parse::<Rate>(), Err(SpecError::Rate(text.to_owned())));
        }
    }

    /// Names that could be options, paths or marks are refused.
    #[test]
    fn names_are_plain_words() {
        let long = "x".repeat(65);
        for text in ["", "-a", "a/b", "..", "a b", "ä", "a:b", long.as_str()] {
            assert_eq!(text.parse::<Name>(), Err(SpecError::Name(text.to_owned())));
        }
        let name: Name = "lab_2-x".parse().unwrap();
        assert_eq!(
            (name.switch(), name.host(7)),
            ("lab_2-x-switch".to_owned(), "lab_2-x-7".to_owned())
        );
    }

    /// Only names that this testbed could have given are recognised as its hosts.
    #[test]
    fn host_names_are_told_from_others() {
        let name: Name = "t".parse().unwrap();
        assert_eq!(name.host_id("t-12"), Some(12));
        for other in [
            "t-switch", "t-012", "t-+1", "t-253", "t-1-0", "u-1", "t1", "t-", "t-99999",
        ] {
            assert_eq!(name.host_id(other), None, "{other}");
        }
    }

    /// No two interfaces of a testbed have one address, up to the largest.
    #[test]
    fn addresses_are_distinct() {
        let mut macs = vec![bridge_mac().to_string()];
        macs.extend(
            (0..MOST_HOSTS).flat_map(|id| [host_mac(id).to_string(), port_mac(id).to_string()]),
        );
        macs.sort();
        macs.dedup();
        assert_eq!(macs.len(), 2 * usize::from(MOST_HOSTS) + 1);
        assert_eq!(host_mac(0).to_string(), "02:74:73:00:00:01");
        assert_eq!(host_ip(MOST_HOSTS - 1), Ipv4Addr::new(10, 77, 0, 253));
    }

    /// Specifications that cannot be built are refused before anything is touched.
    #[test]
    fn limits_are_checked() {
        assert_eq!(Spec::new(0).check(), Err(SpecError::Hosts(0)));
        assert_eq!(Spec::new(254).check(), Err(SpecError::Hosts(254)));
        let spec = |mtu_bytes| Spec {
            mtu_bytes,
            ..Spec::new(2)
        };
        assert_eq!(spec(575).check(), Err(SpecError::Mtu(575)));
        assert_eq!(spec(65_536).check(), Err(SpecError::Mtu(65_536)));
        assert_eq!(spec(9000).check(), Ok(()));
    }
}
