//! One process for each interface and network namespace.
//!
//! Called when a link is opened; the link keeps the `Claim`. A claim is an abstract UNIX socket name: such names belong to the
//! network namespace, as interface indexes do, and vanish with the process however it ends.
//!
//! Left out on purpose: protection against a local user who takes the name to keep others out. The error names that process.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::Interface;
use super::sys;

/// Refused claimants that are remembered until the kernel turns further ones away; those do not learn who holds the name.
const BACKLOG: i32 = 4096;
/// An interface name has at most 15 bytes.
const NAME_BYTES_MAX: usize = 15;

/// Held for as long as the interface is used.
#[derive(Debug)]
pub struct Claim {
    _socket: OwnedFd,
}

/// Why the interface could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// Somebody else has it.
    #[error(
        "`{interface}` is in use by {holder}. Give each process of this host an interface of its own and none `{interface}` itself: \
         ip link add link {interface} name {own} type macvlan mode bridge && ip link set {own} up"
    )]
    Held {
        /// Asked for.
        interface: String,
        /// Who has it.
        holder: Holder,
        /// A name for the additional interface.
        own: String,
    },
    /// The kernel refused.
    #[error("cannot claim `{interface}`: {source}")]
    Io {
        /// Asked for.
        interface: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The process that has an interface, as far as the kernel tells us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Process id and program name.
    process: Option<(u32, String)>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.process {
            Some((pid, _)) if *pid == std::process::id() => f.write_str("this process already"),
            Some((pid, program)) if program.is_empty() => write!(f, "process {pid}"),
            Some((pid, program)) => write!(f, "process {pid} ({program})"),
            None => f.write_str("another process"),
        }
    }
}

/// Claims `interface` until the `Claim` is dropped or the process ends.
pub fn claim(interface: &Interface) -> Result<Claim, ClaimError> {
    let failed = |source: rustix::io::Errno| ClaimError::Io {
        interface: interface.name.clone(),
        source: source.into(),
    };
    let name = format!("tsumuji-interface-{}", interface.index);
    let addr = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?;
    let socket = || {
        rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(failed)
    };
    let claimed = socket()?;
    match rustix::net::bind(&claimed, &addr) {
        Ok(()) => {
            // Nobody is ever accepted: a refused claimant connects only to ask the kernel who listens.
            rustix::net::listen(&claimed, BACKLOG).map_err(failed)?;
            Ok(Claim { _socket: claimed })
        }
        Err(rustix::io::Errno::ADDRINUSE) => {
            let asking = socket()?;
            let pid = match rustix::net::connect(&asking, &addr) {
                Ok(()) => sys::peer_pid(&asking),
                Err(_) => None,
            };
            Err(ClaimError::Held {
                interface: interface.name.clone(),
                holder: Holder {
                    process: pid.map(|pid| (pid, program_of(pid))),
                },
                own: own_name(&interface.name),
            })
        }
        Err(error) => Err(failed(error)),
    }
}

/// `eth1` → `eth1a`, within what a name may have.
fn own_name(name: &str) -> String {
    let mut own = name.to_owned();
    while own.len() >= NAME_BYTES_MAX {
        own.pop();
    }
    own + "a"
}

/// The kernel bounds it to 15 bytes; anything may stand in it.
fn program_of(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim().chars().filter(|c| !c.is_control()).collect()
}
