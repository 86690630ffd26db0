//! Links by name, as users write them.

use std::net::{SocketAddr, SocketAddrV4};
use std::str::FromStr;

use tsumuji_link::LinkAddr;
use tsumuji_link::dpdk::{DpdkSpec, DpdkSpecError};
use tsumuji_link::ether::MacAddr;

/// A link as users name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkSpec {
    /// `shm`: processes of this host.
    Shm,
    /// `udp` (loopback, a port of the kernel's choice) or `udp:ADDRESS:PORT`.
    Udp(Option<SocketAddr>),
    /// `udp+multicast`, `udp+multicast:GROUP:PORT` or `udp+multicast:GROUP:PORT@ADDRESS:PORT`: as `udp`, with broadcast to a multicast group.
    Multicast {
        /// The node's own address; `None`: as for `udp`.
        own: Option<SocketAddr>,
        /// The job's group; `None`: whoever starts the nodes chooses it.
        group: Option<SocketAddrV4>,
    },
    /// `packet:INTERFACE`: raw Ethernet by AF_PACKET; without interface, the one in the hosts file. `packet:INTERFACE:SLOT`: beside other processes.
    Packet(Option<Station>),
    /// `xdp:INTERFACE`: raw Ethernet by AF_XDP, for one process, or for a relay.
    Xdp(Option<InterfaceName>),
    /// `dpdk:PCI-ADDRESS` or `dpdk:DRIVER,PARAMETERS`: a DPDK device.
    Dpdk(DpdkSpec),
    /// `relay:NAME` or `relay:NAME:SLOT`: a device that a relay has (`tsumuji relay`), beside other processes.
    Relay(Station),
}

impl LinkSpec {
    /// The name before the first colon.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Udp(_) => "udp",
            Self::Multicast { .. } => "udp+multicast",
            Self::Packet(_) => "packet",
            Self::Xdp(_) => "xdp",
            Self::Dpdk(_) => "dpdk",
            Self::Relay(_) => "relay",
        }
    }

    /// The network interface, if the link uses one and names it.
    pub fn interface(&self) -> Option<InterfaceName> {
        match self {
            Self::Packet(station) => station.map(|station| station.interface),
            Self::Relay(station) => Some(station.interface),
            Self::Xdp(name) => *name,
            Self::Dpdk(spec) => spec.interface().and_then(InterfaceName::new),
            Self::Shm | Self::Udp(_) | Self::Multicast { .. } => None,
        }
    }

    /// Whether frames leave this host, as far as the name tells. (`udp` without address is loopback.)
    pub fn leaves_host(&self) -> bool {
        match self {
            Self::Shm | Self::Udp(None) | Self::Multicast { own: None, .. } => false,
            Self::Udp(Some(addr))
            | Self::Multicast {
                own: Some(addr), ..
            } => !addr.ip().is_loopback(),
            Self::Packet(_) | Self::Xdp(_) | Self::Relay(_) => true,
            Self::Dpdk(spec) => !spec.stays_on_host(),
        }
    }

    /// The same with a group made from `job`, if it needs one and names none. `job` is something that no other job has.
    pub(crate) fn grouped(self, job: impl IntoIterator<Item = u8>) -> Self {
        match self {
            Self::Multicast { own, group: None } => Self::Multicast {
                own,
                group: Some(group_of(job)),
            },
            other => other,
        }
    }

    /// The link of process number `index`, if all are given this one: ports are counted up. `None`: there is no such port.
    pub(crate) fn counted(self, index: u16) -> Option<Self> {
        Some(match self {
            Self::Udp(Some(addr)) => Self::Udp(Some(counted_up(addr, index)?)),
            Self::Multicast {
                own: Some(addr),
                group,
            } => Self::Multicast {
                own: Some(counted_up(addr, index)?),
                group,
            },
            other => other,
        })
    }

    /// The name of a relay that has this device: that of the interface, or the PCI address with points in place of colons. `None`: no relay can have
    /// it, or it has no such name.
    pub fn relay_name(&self) -> Option<InterfaceName> {
        match self {
            Self::Xdp(interface) => *interface,
            Self::Dpdk(spec) if !spec.stays_on_host() => match spec.parameter("iface") {
                Some(interface) => InterfaceName::new(interface),
                None => InterfaceName::new(&spec.as_str().replace(':', ".")),
            },
            _ => None,
        }
    }
}

/// A place on a network interface, or at a relay, that processes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Station {
    /// The interface, or the relay's name.
    pub interface: InterfaceName,
    /// The process's number there, from 0 (`PacketConfig::slot`).
    pub slot: u8,
}

impl Station {
    /// `eth1` or `eth1:2`; `None`: neither.
    fn read(text: &str) -> Option<Self> {
        let (interface, slot) = match text.split_once(':') {
            None => (text, 0),
            Some((interface, slot)) => (interface, slot.parse().ok().filter(|slot| *slot > 0)?),
        };
        let interface = InterfaceName::new(interface)?;
        (slot < MacAddr::SLOTS).then_some(Self { interface, slot })
    }
}

impl std::fmt::Display for Station {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.slot {
            0 => self.interface.fmt(f),
            slot => write!(f, "{}:{slot}", self.interface),
        }
    }
}

/// A group of 239.192.0.0/14, which organisations may use as they like (RFC 2365), and a port below those that the kernel gives away.
fn group_of(job: impl IntoIterator<Item = u8>) -> SocketAddrV4 {
    const FIRST_PORT: u64 = 20_000;
    const PORTS: u64 = 12_000;
    // FNV-1a: the same on all hosts.
    let hash = job
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    let [a, b, c, ..] = hash.to_be_bytes();
    let port = FIRST_PORT + (hash & 0xffff_ffff) % PORTS;
    SocketAddrV4::new([239, 192 | a & 3, b, c].into(), port as u16)
}

/// `GROUP:PORT` of a multicast group.
pub(crate) fn read_group(text: &str) -> Option<SocketAddrV4> {
    let group: SocketAddrV4 = text.parse().ok()?;
    (group.ip().is_multicast() && group.port() > 0).then_some(group)
}

/// The address of process number `index`, if ports are counted up from that of `addr`; a port of the kernel's choice stays one. `None`: there is no such
/// port.
pub(crate) fn counted_up(addr: SocketAddr, index: u16) -> Option<SocketAddr> {
    let port = match addr.port() {
        0 => 0,
        port => port.checked_add(index)?,
    };
    Some(SocketAddr::new(addr.ip(), port))
}

/// Name of a network interface, as Linux accepts it; small and `Copy`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct InterfaceName {
    bytes: [u8; Self::BYTES_MAX],
    length: u8,
}

impl InterfaceName {
    /// The kernel's limit, IFNAMSIZ without the terminating zero.
    const BYTES_MAX: usize = 15;

    /// The name; `None` if no interface can have it.
    pub fn new(name: &str) -> Option<Self> {
        let sound = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':');
        let fits = (1..=Self::BYTES_MAX).contains(&name.len()) && name.bytes().all(sound);
        if !fits || name == "." || name == ".." {
            return None;
        }
        let mut bytes = [0; Self::BYTES_MAX];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Some(Self {
            bytes,
            length: name.len() as u8,
        })
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default() // ASCII: checked by `new`
    }
}

impl std::fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

/// Whether another host can send to this address.
pub fn leaves_host(addr: LinkAddr) -> bool {
    match addr {
        LinkAddr::Local(_) => false,
        LinkAddr::Inet(addr) => !addr.ip().is_loopback(),
        _ => true,
    }
}

/// Error for a text that names no link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkSpecError {
    /// No such link.
    #[error(
        "unknown link `{given}`; accepted are `shm`, `udp`, `udp:ADDRESS:PORT` (for example `udp:10.0.0.1:7000`), \
         `udp+multicast`, `udp+multicast:GROUP:PORT` (for example `udp+multicast:239.77.0.1:7000`), `packet:INTERFACE`, `xdp:INTERFACE` (for example `packet:eth1`), `dpdk:DEVICE` and `relay:NAME`"
    )]
    Unknown {
        /// The text, shortened.
        given: String,
    },
    /// No such DPDK device.
    #[error(transparent)]
    Dpdk(#[from] DpdkSpecError),
}

impl FromStr for LinkSpec {
    type Err = LinkSpecError;

    fn from_str(text: &str) -> Result<Self, LinkSpecError> {
        let unknown = || LinkSpecError::Unknown {
            given: text.chars().filter(|c| !c.is_control()).take(100).collect(),
        };
        let Some((kind, rest)) = text.split_once(':') else {
            return match text {
                "shm" => Ok(Self::Shm),
                "udp" => Ok(Self::Udp(None)),
                "udp+multicast" => Ok(Self::Multicast {
                    own: None,
                    group: None,
                }),
                "packet" => Ok(Self::Packet(None)),
                "xdp" => Ok(Self::Xdp(None)),
                _ => Err(unknown()),
            };
        };
        let link = match kind {
            "udp" => rest.parse().ok().map(|addr| Self::Udp(Some(addr))),
            "udp+multicast" => {
                let (group, own) = match rest.split_once('@') {
                    Some((group, own)) => (group, Some(own.parse().map_err(|_| unknown())?)),
                    None => (rest, None),
                };
                read_group(group).map(|group| Self::Multicast {
                    own,
                    group: Some(group),
                })
            }
            "packet" => Station::read(rest).map(|station| Self::Packet(Some(station))),
            "xdp" => InterfaceName::new(rest).map(|name| Self::Xdp(Some(name))),
            "relay" => Station::read(rest).map(Self::Relay),
            "dpdk" => return Ok(Self::Dpdk(text.parse()?)),
            _ => None,
        };
        link.ok_or_else(unknown)
    }
}

impl std::fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Udp(Some(addr)) => write!(f, "udp:{addr}"),
            Self::Multicast { own, group } => {
                f.write_str(self.kind())?;
                if let Some(group) = group {
                    write!(f, ":{group}")?;
                }
                own.map_or(Ok(()), |own| write!(f, "@{own}"))
            }
            Self::Dpdk(spec) => spec.fmt(f),
            Self::Packet(Some(station)) => write!(f, "packet:{station}"),
            Self::Relay(station) => write!(f, "relay:{station}"),
            Self::Xdp(Some(interface)) => write!(f, "xdp:{interface}"),
            Self::Shm | Self::Udp(None) | Self::Packet(None) | Self::Xdp(None) => {
                f.write_str(self.kind())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only addresses that other hosts can reach need a statement.
    #[test]
    fn what_leaves_the_host() {
        let inet = |text: &str| LinkAddr::Inet(text.parse().expect(text));
        for (addr, leaves) in [
            (LinkAddr::Local(3), false),
            (inet("127.0.0.1:1"), false),
            (inet("[::1]:1"), false),
            (inet("10.0.0.1:1"), true),
            (inet("0.0.0.0:1"), true),
            (LinkAddr::Ether(MacAddr([2; 6])), true),
        ] {
            assert_eq!(leaves_host(addr), leaves, "{addr}");
        }
    }
}
