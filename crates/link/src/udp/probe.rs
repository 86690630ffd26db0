//! The probe for `tsumuji doctor`: whether UDP works here, and how much its receive buffer holds.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Udp, UdpConfig};
use crate::tuning::TUNING;
use crate::{Link, Probe};

/// Sends a frame from one socket to another over the loopback interface.
pub fn probe() -> Probe {
    let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    let (buffer_bytes, frame_bytes) = match try_out(v4) {
        Ok(found) => found,
        Err(reason) => {
            return Probe::fails(super::NAME, reason, "ip link set lo up".to_owned());
        }
    };
    let mut notes = vec![format!(
        "loopback works with frames of {frame_bytes} bytes; the receive buffer holds {buffer_bytes} bytes"
    )];
    notes.push(match try_out(v6) {
        Ok(_) => "IPv6 works".to_owned(),
        Err(reason) => format!("IPv6 does not: {reason}"),
    });
    let mut probe = Probe::works(super::NAME, notes);
    let wanted = TUNING.udp.buffer_bytes_wanted;
    if buffer_bytes < wanted {
        probe.mend = format!("sysctl -w net.core.rmem_max={wanted} net.core.wmem_max={wanted}");
    }
    probe
}

/// The receive buffer and the frame size in bytes, if a frame arrives.
fn try_out(addr: SocketAddr) -> Result<(usize, usize), String> {
    let bind = || Udp::bind(addr, UdpConfig::default()).map_err(|error| error.to_string());
    let (mut a, mut b) = (bind()?, bind()?);
    let to = b.local_addr();
    Probe::pass_frame((&mut a, &mut b), to, "the loopback interface")?;
    Ok((b.receive_buffer_bytes(), b.caps().frame_bytes))
}
