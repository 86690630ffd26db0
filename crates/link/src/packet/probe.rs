//! The probe for `tsumuji doctor`: whether this process may open raw sockets and make a receive ring, and which interfaces could be used.
//!
//! No frame is sent: the socket is bound to no interface.

use std::os::fd::AsFd;

use super::{NAME, raw_socket, rx::Geometry, sys};
use crate::Probe;
use crate::ether::{
    self, Capability, Interface, InterfaceKind, InterfaceState, has_capability, setcap_command,
};

/// Interfaces described; a machine of containers has hundreds.
const DESCRIBED_MAX: usize = 16;
/// MTU and bytes of a ring of one block: the probe only needs to know whether a ring can be made.
const TRIAL: (usize, usize) = (1500, 0);

/// Opens a socket with a small ring, and reads the interfaces.
pub fn probe() -> Probe {
    let interfaces = ether::list().unwrap_or_default();
    let usable: Vec<_> = interfaces
        .iter()
        .filter(|interface| interface.kind == InterfaceKind::Ethernet)
        .collect();
    let up: Vec<_> = usable
        .iter()
        .filter(|interface| interface.state == InterfaceState::Up)
        .collect();
    let described: Vec<_> = usable
        .iter()
        .take(DESCRIBED_MAX)
        .map(|interface| describe(interface))
        .collect();
    let mut probe = match (try_out(), usable.first(), up.is_empty()) {
        (Err((reason, mend)), ..) => Probe::fails(NAME, reason, mend),
        (Ok(_), None, _) => Probe::fails(
            NAME,
            "there is no Ethernet interface here".to_owned(),
            "tsumuji testbed up -n 2".to_owned(),
        ),
        (Ok(_), Some(first), true) => Probe::fails(
            NAME,
            "no Ethernet interface is up".to_owned(),
            format!("ip link set {} up", first.name),
        ),
        (Ok(notes), Some(_), false) => Probe::works(NAME, notes),
    };
    probe.notes.extend(described);
    probe
}

fn describe(interface: &Interface) -> String {
    format!(
        "{}: {}, MTU {}, {}",
        interface.name, interface.state, interface.mtu_bytes, interface.mac
    )
}

/// Facts if it works, or the reason and a command that helps.
fn try_out() -> Result<Vec<String>, (String, String)> {
    let socket = raw_socket().map_err(|error| {
        if error.kind() == std::io::ErrorKind::PermissionDenied {
            let reason = "raw sockets need CAP_NET_RAW, which this process lacks".to_owned();
            (reason, setcap_command(&[Capability::NetRaw]))
        } else {
            (
                format!("this kernel has no packet sockets: {error}"),
                String::new(),
            )
        }
    })?;
    let (mtu_bytes, ring_bytes) = TRIAL;
    sys::choose_ring_version(socket.as_fd())
        .and_then(|()| sys::RxRing::new(socket.as_fd(), Geometry::new(mtu_bytes, ring_bytes)))
        .map_err(|error| {
            let reason = format!("no receive ring (TPACKET_V2) can be had: {error}");
            (reason, String::new())
        })?;
    let right = if has_capability(Capability::NetRaw) {
        "CAP_NET_RAW is there"
    } else {
        "raw sockets are allowed"
    };
    Ok(vec![format!(
        "{right}; receive rings (TPACKET_V2) can be had"
    )])
}
