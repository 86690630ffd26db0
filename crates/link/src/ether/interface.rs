//! Network interfaces: their properties, and whether they are up.
//!
//! Called when a link is opened, and from time to time while it is open (`Watch`).

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use nix::net::if_::if_nameindex;

use super::MacAddr;
use super::sys;
use crate::LinkError;
use crate::tuning::TUNING;

/// Interfaces named in an error message; a machine of containers has hundreds.
const NAMED_MAX: usize = 16;

/// Kind of a network device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InterfaceKind {
    /// Frames with an Ethernet header, and addresses of six bytes.
    Ethernet,
    /// Leads back to this host.
    Loopback,
    /// Anything else (a tunnel, InfiniBand), by its ARPHRD number.
    Other(u16),
}

/// Whether frames can pass an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InterfaceState {
    /// Set down.
    Down,
    /// Set up, but without a link partner.
    NoCarrier,
    /// Frames pass.
    Up,
    /// The interface does not exist any more.
    Gone,
}

impl fmt::Display for InterfaceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Down => "down",
            Self::NoCarrier => "up, but without carrier",
            Self::Up => "up",
            Self::Gone => "removed",
        })
    }
}

/// An interface as it was when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interface {
    /// Its name, as `eth0`.
    pub name: String,
    /// The kernel's number for it, never used again in its network namespace.
    pub index: u32,
    /// Its address; `MacAddr::ZERO` if it is no Ethernet interface.
    pub mac: MacAddr,
    /// Largest payload of a frame, in bytes, without the Ethernet header.
    pub mtu_bytes: usize,
    /// Kind of the device.
    pub kind: InterfaceKind,
    /// Whether frames could pass.
    pub state: InterfaceState,
}

/// Why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InterfaceError {
    /// No interface has the name.
    #[error("no interface `{name}`; there are {there}")]
    NotFound {
        /// The name.
        name: String,
        /// Interfaces that exist.
        there: String,
    },
    /// It is the loopback interface.
    #[error("`{name}` leads back to this host; within one host use the links shm or udp")]
    Loopback {
        /// The name.
        name: String,
    },
    /// It is no Ethernet interface.
    #[error(
        "`{name}` is no Ethernet interface (hardware type {hardware}); `ip -brief link` lists all"
    )]
    NotEthernet {
        /// The name.
        name: String,
        /// ARPHRD number.
        hardware: u16,
    },
    /// It is set down.
    #[error("`{name}` is down; set it up: ip link set dev {name} up")]
    Down {
        /// The name.
        name: String,
    },
    /// It has no carrier.
    #[error(
        "`{name}` is up but has no carrier after {} s; connect the cable, or set the other end up: ip link set dev INTERFACE up", waited.as_secs()
    )]
    NoCarrier {
        /// The name.
        name: String,
        /// How long the caller waited.
        waited: Duration,
    },
    /// A system call failed.
    #[error("cannot inspect interface `{name}`: {source}")]
    Io {
        /// The name.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl Interface {
    /// Reads an interface of the calling thread's network namespace.
    pub fn open(name: &str) -> Result<Self, InterfaceError> {
        sys::interface(name).map_err(|source| {
            if is_gone(&source) || source.kind() == io::ErrorKind::InvalidInput {
                InterfaceError::NotFound {
                    name: name.to_owned(),
                    there: names(),
                }
            } else {
                InterfaceError::Io {
                    name: name.to_owned(),
                    source,
                }
            }
        })
    }

    /// Returns an error unless it is an Ethernet interface and not the loopback one.
    pub fn require_ethernet(&self) -> Result<(), InterfaceError> {
        let name = self.name.clone();
        match self.kind {
            InterfaceKind::Ethernet => Ok(()),
            InterfaceKind::Loopback => Err(InterfaceError::Loopback { name }),
            InterfaceKind::Other(hardware) => Err(InterfaceError::NotEthernet { name, hardware }),
        }
    }

    /// Gives it another address, which later readers see.
    pub(crate) fn set_mac(&self, mac: MacAddr) -> io::Result<()> {
        sys::set_mac(&self.name, mac)
    }

    /// Waits until frames can pass; with a `timeout` of zero, reads the state once.
    pub fn wait_up(&self, timeout: Duration) -> Result<(), InterfaceError> {
        let begun = Instant::now();
        loop {
            let state = sys::interface_state(self.index).map_err(|source| InterfaceError::Io {
                name: self.name.clone(),
                source,
            })?;
            let waited = begun.elapsed();
            let name = self.name.clone();
            match state {
                InterfaceState::Up => return Ok(()),
                InterfaceState::Gone => {
                    let there = names();
                    return Err(InterfaceError::NotFound { name, there });
                }
                InterfaceState::Down if waited >= timeout => {
                    return Err(InterfaceError::Down { name });
                }
                InterfaceState::NoCarrier if waited >= timeout => {
                    return Err(InterfaceError::NoCarrier { name, waited });
                }
                InterfaceState::Down | InterfaceState::NoCarrier => {
                    std::thread::sleep(TUNING.ether.open_check_every.min(timeout - waited));
                }
            }
        }
    }
}

/// All interfaces of the calling thread's network namespace.
pub fn list() -> io::Result<Vec<Interface>> {
    let mut found = Vec::new();
    for name in interface_names()? {
        match sys::interface(&name) {
            Ok(interface) => found.push(interface),
            // Removed while we read the list.
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// The names of all interfaces, in the kernel's order.
fn interface_names() -> io::Result<Vec<String>> {
    let all = if_nameindex()?;
    let names = all
        .iter()
        .map(|it| it.name().to_string_lossy().into_owned());
    Ok(names.collect())
}

/// Names for error messages: "lo, eth0".
fn names() -> String {
    let names = interface_names().unwrap_or_default();
    match names.len() {
        0 => "none".to_owned(),
        count if count > NAMED_MAX => {
            format!(
                "{} and {} more",
                names[..NAMED_MAX].join(", "),
                count - NAMED_MAX
            )
        }
        _ => names.join(", "),
    }
}

pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO))
}

/// When a link is to check next whether its device went down, came back or is gone.
#[derive(Debug)]
pub struct Checks {
    last: Instant,
    empty_polls: u32,
}

impl Default for Checks {
    fn default() -> Self {
        Self {
            last: Instant::now(),
            empty_polls: 0,
        }
    }
}

impl Checks {
    /// A check begins.
    pub fn begin(&mut self) {
        *self = Self::default();
    }

    /// Whether it is time for a check, for a link that is about to sleep.
    #[must_use]
    pub fn is_time(&self) -> bool {
        self.last.elapsed() >= TUNING.ether.check_every
    }

    /// Notes a poll that found nothing; returns whether it is time for a check.
    #[inline]
    #[must_use]
    pub fn misses(&mut self) -> bool {
        self.empty_polls += 1;
        self.empty_polls >= TUNING.ether.check_every_polls
    }

    /// Makes a check due: at once before a sleep, otherwise at the next poll that finds nothing.
    #[cfg(test)]
    pub(crate) fn hasten(&mut self) {
        self.last -= TUNING.ether.check_every;
        self.empty_polls = TUNING.ether.check_every_polls - 1;
    }
}

/// Follows the state of one interface while a link is open.
#[derive(Debug)]
pub struct Watch {
    index: u32,
    state: InterfaceState,
}

impl Watch {
    /// Begins with the state that `interface` had.
    #[must_use]
    pub fn new(interface: &Interface) -> Self {
        Self {
            index: interface.index,
            state: interface.state,
        }
    }

    /// The state last read.
    #[must_use]
    pub fn state(&self) -> InterfaceState {
        self.state
    }

    /// Reads the state (two quick system calls). `Some`: it has changed to this. If reading fails, it counts as unchanged.
    pub fn refresh(&mut self) -> Option<InterfaceState> {
        let state = sys::interface_state(self.index).unwrap_or(self.state);
        let changed = state != self.state;
        self.state = state;
        changed.then_some(state)
    }

    /// The error of a link whose interface is gone.
    pub fn check(&self, name: &dyn std::fmt::Display) -> Result<(), LinkError> {
        if self.state != InterfaceState::Gone {
            return Ok(());
        }
        Err(LinkError::Io {
            what: "the link's interface is gone",
            source: io::Error::new(
                io::ErrorKind::NotConnected,
                format!("that of {name} was removed; open the link anew"),
            ),
        })
    }
}
