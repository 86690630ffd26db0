//! One process for each interface and network namespace, or one for each slot of it.
//!
//! Called when a link is opened; the link keeps the `Claim`. A link that takes all frames of an interface claims the whole of it, one that takes only
//! those for its own address a slot. A claim is an abstract UNIX socket name: such names belong to the network namespace, as
//! interface indexes do, and vanish with the process however it ends. A child between fork and exec holds copies of its parent's sockets, so a claim
//! that is dropped shuts its socket down first, and a claimant that finds a name without a listener retries for a moment.
//!
//! Left out on purpose: protection against a local user who takes the name to keep others out. The error names that process.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::sys;
use super::{Interface, MacAddr};
use crate::tuning::TUNING;

/// Refused claimants whose connections wait before the kernel refuses more; those beyond do not learn which process holds the name.
const BACKLOG: i32 = 4096;
/// An interface name has at most 15 bytes.
const NAME_BYTES_MAX: usize = 15;

/// An exclusive claim, held for as long as the interface is used.
#[derive(Debug)]
pub struct Claim {
    _names: Vec<Name>,
}

/// A name that no other process has.
#[derive(Debug)]
struct Name {
    socket: OwnedFd,
}

impl Drop for Name {
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
        "`{interface}` is in use by {holder}. Several processes share it, each with a slot of its own (`slots = N` in the hosts file; over xdp and dpdk by a relay); \
         or give each an interface of its own, and none `{interface}` itself: \
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

impl ClaimError {
    /// Whether a relay has the interface: one that nobody uses any more may be just ending.
    #[must_use]
    pub fn is_by_relay(&self) -> bool {
        match self {
            Self::Held { holder, .. } => {
                let process = holder.process.as_ref();
                process.is_some_and(|(_, program)| program == crate::relay::PROCESS_NAME)
            }
            Self::Io { .. } => false,
        }
    }
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

/// Claims all of `interface` until the `Claim` is dropped or the process ends.
pub fn claim(interface: &Interface) -> Result<Claim, ClaimError> {
    // Each side takes its names before it looks for the other's, so that of two at once one sees the other.
    let names = [slot_name(0), WHOLE.to_owned()].map(|name| take(interface, &name));
    let names = names.into_iter().collect::<Result<_, _>>()?;
    for slot in 1..MacAddr::SLOTS {
        refuse_if_held(interface, &slot_name(slot))?;
    }
    Ok(Claim { _names: names })
}

/// Claims a slot of `interface` (`MacAddr::of_slot`), beside processes that have other slots.
pub fn claim_slot(interface: &Interface, slot: u8) -> Result<Claim, ClaimError> {
    let names = vec![take(interface, &slot_name(slot))?];
    refuse_if_held(interface, WHOLE)?;
    Ok(Claim { _names: names })
}

/// End of the name of an interface whose frames all go to one process.
const WHOLE: &str = "-whole";

/// End of a slot's name.
fn slot_name(slot: u8) -> String {
    match slot {
        0 => String::new(),
        slot => format!("-{slot}"),
    }
}

fn addr_of(interface: &Interface, end: &str) -> rustix::io::Result<SocketAddrUnix> {
    let name = format!("tsumuji-interface-{}{end}", interface.index);
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

fn socket() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

fn held_by(interface: &Interface, pid: Option<u32>) -> ClaimError {
    ClaimError::Held {
        interface: interface.name.clone(),
        holder: Holder {
            process: pid.map(|pid| (pid, program_of(pid))),
        },
        own: own_name(&interface.name),
    }
}

fn refuse_if_held(interface: &Interface, end: &str) -> Result<(), ClaimError> {
    let ask = || {
        let asking = socket()?;
        rustix::net::connect(&asking, &addr_of(interface, end)?)?;
        Ok(sys::peer_pid(&asking))
    };
    match ask() {
        Ok(pid) => Err(held_by(interface, pid)),
        Err(rustix::io::Errno::CONNREFUSED) => Ok(()),
        Err(source) => Err(ClaimError::Io {
            interface: interface.name.clone(),
            source: source.into(),
        }),
    }
}

/// Takes the interface's name with that end.
fn take(interface: &Interface, end: &str) -> Result<Name, ClaimError> {
    let failed = |source: rustix::io::Errno| ClaimError::Io {
        interface: interface.name.clone(),
        source: source.into(),
    };
    let addr = addr_of(interface, end).map_err(failed)?;
    let socket = || socket().map_err(failed);
    let mut pid = None;
    for _ in 0..TUNING.ether.claim_tries {
        let claimed = socket()?;
        match rustix::net::bind(&claimed, &addr) {
            Ok(()) => {
                // No connection is accepted: a refused claimant connects only to ask the kernel which process listens.
                rustix::net::listen(&claimed, BACKLOG).map_err(failed)?;
                return Ok(Name { socket: claimed });
            }
            Err(rustix::io::Errno::ADDRINUSE) => {}
            Err(error) => return Err(failed(error)),
        }
        let asking = socket()?;
        match rustix::net::connect(&asking, &addr) {
            Ok(()) => pid = sys::peer_pid(&asking),
            Err(rustix::io::Errno::CONNREFUSED) => {
                std::thread::sleep(TUNING.ether.claim_pause);
                continue;
            }
            Err(_) => {}
        }
        break;
    }
    Err(held_by(interface, pid))
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

    fn none() -> Interface {
        Interface {
            name: "none".to_owned(),
            // No interface has this index, so nothing else claims it.
            index: 0x6000_0000 | std::process::id(),
            mac: MacAddr::ZERO,
            mtu_bytes: 1500,
            kind: crate::ether::InterfaceKind::Ethernet,
            state: crate::ether::InterfaceState::Up,
        }
    }

    /// A copy of a dropped claim's socket, such as a child holds until it runs its program, delays a claimant and does not refuse it.
    #[test]
    fn copies_of_a_dropped_claim_are_waited_for() {
        let interface = none();
        let first = take(&interface, "").expect("free");
        let copy = first.socket.try_clone().expect("copy");
        drop(first);
        let child = std::thread::spawn(move || {
            std::thread::sleep(TUNING.ether.claim_pause * 4);
            drop(copy);
        });
        drop(take(&interface, "").expect("free again"));
        child.join().expect("child");
    }

    /// Slots exclude each other only if they are the same; the whole excludes all of them.
    #[test]
    fn slots_and_the_whole_exclude_each_other() {
        let interface = Interface {
            index: 0x5000_0000 | std::process::id(),
            ..none()
        };
        let is_held =
            |claimed: Result<Claim, ClaimError>| matches!(claimed, Err(ClaimError::Held { .. }));
        let slots = [0, 1, 63].map(|slot| claim_slot(&interface, slot).expect("free"));
        for slot in [0, 1, 63] {
            assert!(is_held(claim_slot(&interface, slot)));
        }
        assert!(is_held(claim(&interface)));
        let [zero, one, last] = slots;
        drop((zero, one));
        assert!(is_held(claim(&interface)), "the last is there");
        drop(last);
        let whole = claim(&interface).expect("free");
        for slot in [0, 1, 63] {
            assert!(is_held(claim_slot(&interface, slot)));
        }
        drop(whole);
        claim_slot(&interface, 1).expect("free");
    }
}
