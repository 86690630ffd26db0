//! Names of devices: the text that users write after `dpdk:`.
//!
//! Called to read command lines and cluster files. The text is untrusted: its length is bounded, each character is checked, and DPDK's own parser
//! cannot read an accepted text in any other way.

use std::fmt;
use std::str::FromStr;

/// Longest text without `dpdk:`; the path of a UNIX socket has at most 107 bytes.
const SPEC_BYTES_MAX: usize = 200;
/// Longest driver's name: DPDK's device names have 63 bytes, some of which we add.
const DRIVER_BYTES_MAX: usize = 40;
/// Characters of a wrong text that an error shows.
const SHOWN_CHARS_MAX: usize = 80;
const PREFIX: &str = "dpdk:";

/// A device: `dpdk:0000:03:00.0` or `dpdk:net_memif,role=server,socket=/run/x.sock,id=0`. `Copy`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DpdkSpec {
    bytes: [u8; SPEC_BYTES_MAX],
    length: u8,
}

/// The device that a `DpdkSpec` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Device<'a> {
    /// A network card by its address on the PCI bus: `0000:03:00.0`.
    Pci(&'a str),
    /// A device made by a driver: `net_memif`.
    Virtual(&'a str),
}

/// The text names no device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{given}` names no DPDK device: {reason}; write a PCI address (dpdk:0000:03:00.0) or a driver and its parameters \
     (dpdk:net_memif,role=server,socket=/run/x.sock,id=0; dpdk:net_af_packet,iface=eth1; dpdk:net_af_xdp,iface=eth1)"
)]
pub struct DpdkSpecError {
    given: String,
    reason: &'static str,
}

/// Why processes of one host cannot connect by a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DpdkMeetError {
    /// Only one process can have the device.
    #[error(
        "{spec} joins hosts, one process each; say which by --hosts FILE, or take dpdk:net_memif, shm or udp on one host"
    )]
    OneProcess {
        /// The device as given.
        spec: Box<DpdkSpec>,
    },
    /// memif is point to point.
    #[error(
        "{spec} joins two processes (of `solve` and `learn`, one is the judge), not {processes}; take shm or udp for more"
    )]
    TwoEnds {
        /// The device as given.
        spec: Box<DpdkSpec>,
        /// Number of processes.
        processes: usize,
    },
    /// `role` differs between the two processes, so it must not be stated for both.
    #[error(
        "{spec}: `role` is given to each of the two processes when they are started; leave it out"
    )]
    Role {
        /// The device as given.
        spec: Box<DpdkSpec>,
    },
    /// The socket is an abstract one.
    #[error("{spec}: `socket-abstract` names no socket; state `socket`, too, or leave it out")]
    Abstract {
        /// The device as given.
        spec: Box<DpdkSpec>,
    },
    /// The name is too long for the parameters to be added.
    #[error("{spec} is too long: role and socket are added to it, and a name has 200 bytes")]
    Long {
        /// The device as given.
        spec: Box<DpdkSpec>,
    },
}

impl FromStr for DpdkSpec {
    type Err = DpdkSpecError;

    /// Reads a name with or without `dpdk:` before it.
    fn from_str(given: &str) -> Result<Self, DpdkSpecError> {
        let refused = |reason| {
            let shown = given.chars().take(SHOWN_CHARS_MAX);
            DpdkSpecError {
                given: shown
                    .map(|c| if c.is_control() { ' ' } else { c })
                    .collect(),
                reason,
            }
        };
        let text = given.strip_prefix(PREFIX).unwrap_or(given);
        if text.len() > SPEC_BYTES_MAX {
            return Err(refused("it is longer than 200 bytes"));
        }
        let (device, parameters) = text.split_once(',').unwrap_or((text, ""));
        let device = if device.starts_with("net_") {
            check_driver(device).map_err(refused)?;
            device.to_owned()
        } else {
            pci_address(device)
                .ok_or_else(|| refused("it begins with no PCI address, nor with `net_`"))?
        };
        if text.contains(',') {
            check_parameters(parameters).map_err(refused)?;
        }
        let mut spec = Self {
            bytes: [0; SPEC_BYTES_MAX],
            length: 0,
        };
        for part in [device.as_str(), &text[text.len() - parameters.len()..]] {
            let comma = if spec.length > 0 && !part.is_empty() {
                ","
            } else {
                ""
            };
            for byte in comma.bytes().chain(part.bytes()) {
                let place = spec.bytes.get_mut(usize::from(spec.length));
                *place.ok_or_else(|| refused("it is longer than 200 bytes"))? = byte;
                spec.length += 1;
            }
        }
        Ok(spec)
    }
}

fn check_driver(name: &str) -> Result<(), &'static str> {
    let sound = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if name.len() <= DRIVER_BYTES_MAX && name.len() > "net_".len() && name.bytes().all(sound) {
        Ok(())
    } else {
        Err("a driver's name has small letters, digits and `_`, at most 40")
    }
}

/// `03:00.0` → `0000:03:00.0`.
fn pci_address(text: &str) -> Option<String> {
    let mut parts = text.rsplit(':');
    let (slot, function) = parts.next()?.split_once('.')?;
    let bus = parts.next()?;
    let domain = parts.next().unwrap_or("0000");
    if parts.next().is_some() {
        return None;
    }
    let number = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        let sound = digits.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
        sound.then(|| u32::from_str_radix(text, 16).ok()).flatten()
    };
    let domain = number(domain, 4..=8)?;
    let (bus, slot) = (number(bus, 2..=2)?, number(slot, 2..=2)?);
    let function = number(function, 1..=1)?;
    (slot < 32 && function < 8).then(|| format!("{domain:04x}:{bus:02x}:{slot:02x}.{function}"))
}

fn check_parameters(text: &str) -> Result<(), &'static str> {
    let mut seen: Vec<&str> = Vec::new();
    for parameter in text.split(',') {
        let Some((key, value)) = parameter.split_once('=') else {
            return Err("parameters are `name=value`, between commas");
        };
        let sound = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if key.is_empty() || !key.bytes().all(sound) {
            return Err("a parameter's name has letters, digits, `_` and `-`");
        }
        // In DPDK's own parser brackets group and quotes protect.
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"[](){}\"'\\=".contains(&byte);
        if value.is_empty() || !value.bytes().all(plain) {
            return Err("a parameter's value is plain text without blanks, quotes or brackets");
        }
        if seen.contains(&key) {
            return Err("a parameter is given twice");
        }
        seen.push(key);
    }
    Ok(())
}

impl DpdkSpec {
    /// The text without `dpdk:`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default() // ASCII: checked
    }

    pub(super) fn device(&self) -> Device<'_> {
        let device = self.as_str().split(',').next().unwrap_or_default();
        if device.starts_with("net_") {
            Device::Virtual(device)
        } else {
            Device::Pci(device)
        }
    }

    /// The parameters after the device: `role=server,id=0`; may be empty.
    pub(super) fn parameters(&self) -> &str {
        self.as_str().split_once(',').map_or("", |(_, rest)| rest)
    }

    /// The value of one parameter.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let mut all = self
            .parameters()
            .split(',')
            .filter_map(|p| p.split_once('='));
        all.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// Whether its frames stay between processes of this host.
    #[must_use]
    pub fn stays_on_host(&self) -> bool {
        self.driver() == Some("net_memif")
    }

    /// Whether it is a device on an interface of the kernel's.
    #[must_use]
    pub fn is_on_interface(&self) -> bool {
        matches!(self.driver(), Some("net_af_packet" | "net_af_xdp"))
    }

    /// The interface that such a device is on, where the name says so.
    #[must_use]
    pub fn interface(&self) -> Option<&str> {
        self.parameter("iface").filter(|_| self.is_on_interface())
    }

    /// The same device with one parameter more; `None`: the name would be too long, or have the parameter twice.
    #[must_use]
    pub fn with(&self, parameter: &str, value: &str) -> Option<Self> {
        format!("{},{parameter}={value}", self.as_str())
            .parse()
            .ok()
    }

    /// The device that process `index` of `processes` on one host opens, so that they connect. memif: the first is the server, the other its client;
    /// if no socket is stated, it is the file `meeting`: a file has permissions, and abstract names have none. Taps: each process has its own, named
    /// by the stated name followed by `index`; frames between them pass only over a bridge that the user makes.
    pub fn for_process(
        &self,
        index: u16,
        processes: usize,
        meeting: &str,
    ) -> Result<Self, DpdkMeetError> {
        let given = || Box::new(*self);
        let long = || DpdkMeetError::Long { spec: given() };
        match self.driver() {
            Some("net_memif") if processes != 2 => Err(DpdkMeetError::TwoEnds {
                spec: given(),
                processes,
            }),
            Some("net_memif") if self.parameter("role").is_some() => {
                Err(DpdkMeetError::Role { spec: given() })
            }
            Some("net_memif") => {
                let role = if index == 0 { "server" } else { "client" };
                let mut own = self.with("role", role).ok_or_else(long)?;
                if own.parameter("socket").is_none() {
                    own = own.with("socket", meeting).ok_or_else(long)?;
                    own = match own.parameter("socket-abstract") {
                        None => own.with("socket-abstract", "no").ok_or_else(long)?,
                        Some("no") => own,
                        Some(_) => return Err(DpdkMeetError::Abstract { spec: given() }),
                    };
                }
                match own.parameter("id") {
                    Some(_) => Ok(own),
                    None => own.with("id", "0").ok_or_else(long),
                }
            }
            Some("net_tap") => match self.parameter("iface") {
                None => Ok(*self),
                Some(name) => {
                    let stated = format!(",iface={name}");
                    let own = format!(",iface={name}{index}");
                    let text = format!("{},", self.as_str()).replacen(
                        &format!("{stated},"),
                        &format!("{own},"),
                        1,
                    );
                    text.trim_end_matches(',').parse().map_err(|_| long())
                }
            },
            _ => Err(DpdkMeetError::OneProcess { spec: given() }),
        }
    }

    /// The driver, without the number that users may put behind its name: `net_memif7` → `net_memif`.
    pub(super) fn driver(&self) -> Option<&str> {
        match self.device() {
            Device::Virtual(name) => Some(name.trim_end_matches(|c: char| c.is_ascii_digit())),
            Device::Pci(_) => None,
        }
    }
}

impl fmt::Display for DpdkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.as_str())
    }
}

impl fmt::Debug for DpdkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
