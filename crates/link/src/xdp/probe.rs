//! The probe for `tsumuji doctor`: whether this process may use AF_XDP, whether a frame passes, and the abilities of each interface.
//!
//! No real interface is touched: the trial uses two virtual ones in a network namespace of its own, which is gone afterwards.

use std::io::{self, Write};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::device::Device;
use super::errors::{mend_rights, missing_rights};
use super::{NAME, Xdp, XdpConfig, XdpMode, sys};
use crate::ether::{self, Capability, InterfaceKind};
use crate::{Link, Probe};

/// Interfaces described at most.
const INTERFACES_MAX: usize = 16;
/// Memory that can be locked without CAP_IPC_LOCK should hold the default rings.
const LOCKED_BYTES_WANTED: u64 = 16 << 20;

/// Sends a frame over a pair of virtual interfaces, and describes the machine's own interfaces.
pub fn probe() -> Probe {
    let missing = missing_rights();
    let flags = SocketFlags::CLOEXEC;
    match rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None) {
        Err(Errno::AFNOSUPPORT) => {
            let reason = "this kernel has no AF_XDP (CONFIG_XDP_SOCKETS)".to_owned();
            return Probe::fails(NAME, reason, String::new());
        }
        Err(errno) if missing.is_empty() => {
            let reason = format!("no AF_XDP socket: {errno}");
            return Probe::fails(NAME, reason, String::new());
        }
        _ => {}
    }
    if !missing.is_empty() {
        let reason = format!("needs {}", missing.join(", "));
        let mut probe = Probe::fails(NAME, reason, mend_rights());
        probe.notes.extend(describe_interfaces());
        return probe;
    }
    let trials = match std::thread::Builder::new().spawn(try_modes) {
        Ok(thread) => thread
            .join()
            .unwrap_or_else(|_| Err("the trial panicked".to_owned())),
        Err(error) => Err(error.to_string()),
    };
    let mut probe = match trials {
        Ok(notes) => Probe::works(NAME, notes),
        Err(reason) => Probe::fails(NAME, reason, String::new()),
    };
    probe.notes.extend(describe_interfaces());
    if let Some(note) = locked_memory() {
        probe.notes.push(note);
        probe.mend = mend_rights();
    }
    probe
}

/// A note if locked memory is scarce.
fn locked_memory() -> Option<String> {
    let free = ether::has_capability(Capability::IpcLock);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current?;
    (!free && limit < LOCKED_BYTES_WANTED).then(|| {
        format!(
            "without CAP_IPC_LOCK the rings shrink to the limit on locked memory of {limit} bytes"
        )
    })
}

/// Runs in a thread of its own, which it takes into a fresh network namespace.
fn try_modes() -> Result<Vec<String>, String> {
    sys::enter_private_network().map_err(|error| format!("no network namespace: {error}"))?;
    veth_pair(1500).map_err(|error| format!("no virtual interfaces to try on: {error}"))?;
    let mut notes = Vec::new();
    for (mode, name) in [(XdpMode::Generic, "generic"), (XdpMode::Native, "native")] {
        let config = XdpConfig {
            mode,
            ..XdpConfig::default()
        };
        match try_out(config) {
            Ok(frames) => notes.push(format!(
                "{name} mode works on virtual interfaces; the receive ring holds {frames} frames"
            )),
            // Generic mode works everywhere.
            Err(reason) if mode == XdpMode::Generic => return Err(reason),
            Err(reason) => notes.push(format!("{name} mode does not: {reason}")),
        }
    }
    Ok(notes)
}

/// Makes interfaces `n0` and `n1`, connected and up, of one queue each, in the thread's network.
pub(super) fn veth_pair(mtu: u32) -> io::Result<()> {
    let one = "numrxqueues 1 numtxqueues 1";
    ip(&format!(
        "link add n0 mtu {mtu} {one} type veth peer name n1 mtu {mtu} {one}\n\
         link set n0 up\nlink set n1 up\n"
    ))
}

/// Runs commands of `ip`, one a line.
pub(super) fn ip(commands: &str) -> io::Result<()> {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("ip (package iproute2): {error}")))?;
    let written = match child.stdin.take() {
        Some(mut input) => input.write_all(commands.as_bytes()),
        None => Ok(()),
    };
    let output = child.wait_with_output()?;
    written?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(text.trim().to_owned()))
}

/// The frames that a receive ring holds; an error if no frame arrives.
fn try_out(config: XdpConfig) -> Result<usize, String> {
    let open = |name| Xdp::open(name, config).map_err(|error| error.to_string());
    let (mut a, mut b) = (open("n0")?, open("n1")?);
    let to = b.local_addr();
    Probe::pass_frame((&mut a, &mut b), to, "virtual interfaces")?;
    Ok(b.caps().receive_frames)
}

/// One line for each Ethernet interface of this machine.
fn describe_interfaces() -> Vec<String> {
    let all = ether::list().unwrap_or_default();
    let ethernet = all
        .iter()
        .filter(|interface| interface.kind == InterfaceKind::Ethernet);
    ethernet
        .take(INTERFACES_MAX)
        .map(|interface| {
            let device = Device::ask(&interface.name, interface.index);
            describe(&interface.name, &device) + &format!("; {}", interface.state)
        })
        .collect()
}

fn describe(name: &str, device: &Device) -> String {
    let mut line = match device.features {
        Some(features) if features.native() => {
            let zero_copy = if features.zero_copy() {
                ", zero-copy"
            } else {
                ""
            };
            let jumbo = if features.several_buffers() {
                ", jumbo frames"
            } else {
                ""
            };
            format!(
                "{name} ({}): native{zero_copy}{jumbo}, or generic",
                device.driver
            )
        }
        Some(_) => format!("{name} ({}): generic only", device.driver),
        None => format!("{name} ({}): generic; native is tried", device.driver),
    };
    if let Some(queues) = device.receive_queues.filter(|queues| *queues > 1) {
        let channels = device.channels();
        line += &format!("; {queues} queues: `ethtool -L {name} {channels} 1` first");
    }
    if let Some(program) = &device.attached {
        line += &format!("; has an XDP program already: {program}");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdp::device::Attached;

    /// Obstacles of an interface are described with the command that removes them.
    #[test]
    fn interfaces_are_described() {
        let mut device = Device {
            driver: "veth".to_owned(),
            receive_queues: Some(1),
            features: None,
            attached: None,
        };
        assert_eq!(
            describe("v0", &device),
            "v0 (veth): generic; native is tried"
        );
        device.receive_queues = Some(4);
        device.attached = Some(Attached {
            id: 9,
            name: Some("dropper".to_owned()),
            generic: true,
        });
        let line = describe("v0", &device);
        assert!(line.contains("`ethtool -L v0 rx 1`"), "{line}");
        assert!(line.contains("'dropper' (id 9, generic)"), "{line}");
    }

    /// The probe answers, whatever our rights: it works, or says what is missing.
    #[test]
    fn probe_answers() {
        let probe = probe();
        assert_eq!(probe.link, NAME);
        assert!(!probe.notes.is_empty());
        if missing_rights().is_empty() {
            assert!(probe.works, "{probe:?}");
        } else {
            assert!(probe.mend.starts_with("setcap"), "{probe:?}");
        }
    }
}
