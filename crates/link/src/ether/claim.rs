//! One process for each interface and network namespace.
//!
//! Called when a link is opened; the link keeps the `Claim`. A claim is an abstract UNIX socket name: such names belong to the network namespace, as
//! interface indexes do, and vanish with the process however it ends. A child between fork and exec holds copies of its parent's sockets, so a claim
//! that is dropped shuts its socket down first, and a claimant that finds a name without a listener retries for a moment.
//!
//! Left out on purpose: protection against a local user who takes the name to keep others out. The error names that process.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::Interface;
use super::sys;

/// Refused claimants whose connections wait before the kernel refuses more; those beyond do not learn which process holds the name.
const BACKLOG: i32 = 4096;
/// An interface name has at most 15 bytes.
const NAME_BYTES_MAX: usize = 15;

/// Retries on a name without a listener, and the pause between: a second in all.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(5);

/// An exclusive claim, held for as long as the interface is used.
#[derive(Debug)]
pub struct Claim {
    socket: OwnedFd,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Closing alone does not free the name while a child between fork and exec has a copy; this reaches every copy.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

/// Why the interface could not be claimed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// Another process has it.
    #[error(
        "`{interface}` is in use by {holder}. Give each process of this host an interface of its own and none `{interface}` itself: \
         ip link add link {interface} name {own} type macvlan mode bridge && ip link set {own} up"
    )]
    Held {
        /// The interface.
        interface: String,
        /// The process that has it.
        holder: Holder,
        /// A name for the additional interface.
        own: String,
    },
    /// A system call failed.
    #[error("cannot claim `{interface}`: {source}")]
    Io {
        /// The interface.
        interface: String,
        /// The kernel's error.
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
    let mut pid = None;
    for _ in 0..TRIES {
        let claimed = socket()?;
        match rustix::net::bind(&claimed, &addr) {
            Ok(()) => {
                // No connection is accepted: a refused claimant connects only to ask the kernel which process listens.
                rustix::net::listen(&claimed, BACKLOG).map_err(failed)?;
                return Ok(Claim { socket: claimed });
            }
            Err(rustix::io::Errno::ADDRINUSE) => {}
            Err(error) => return Err(failed(error)),
        }
        let asking = socket()?;
        match rustix::net::connect(&asking, &addr) {
            Ok(()) => pid = sys::peer_pid(&asking),
            Err(rustix::io::Errno::CONNREFUSED) => {
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(_) => {}
        }
        break;
    }
    Err(ClaimError::Held {
        interface: interface.name.clone(),
        holder: Holder {
            process: pid.map(|pid| (pid, program_of(pid))),
        },
        own: own_name(&interface.name),
    })
}

/// A name for an additional interface: `eth1` → `eth1a`, within the length limit.
fn own_name(name: &str) -> String {
    let mut own = name.to_owned();
    while own.len() >= NAME_BYTES_MAX {
        own.pop();
    }
    own + "a"
}

/// Name of the process's program, at most 15 bytes; it may contain any characters.
fn program_of(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim().chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy of a dropped claim's socket, such as a child holds until it runs its program, delays a claimant and does not refuse it.
    #[test]
    fn copies_of_a_dropped_claim_are_waited_for() {
        let interface = Interface {
            name: "none".to_owned(),
            // No interface has this index, so nothing else claims it.
            index: 0x6000_0000 | std::process::id(),
            mac: crate::ether::MacAddr::ZERO,
            mtu_bytes: 1500,
            kind: crate::ether::InterfaceKind::Ethernet,
            state: crate::ether::InterfaceState::Up,
        };
        let first = claim(&interface).expect("free");
        let copy = first.socket.try_clone().expect("copy");
        drop(first);
        let child = std::thread::spawn(move || {
            std::thread::sleep(PAUSE * 4);
            drop(copy);
        });
        drop(claim(&interface).expect("free again"));
        child.join().expect("child");
    }
}
