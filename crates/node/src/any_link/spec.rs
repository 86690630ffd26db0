//! Links by name, as users write them.

use std::net::SocketAddr;
use std::str::FromStr;

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
            Self::Shm | Self::Udp(_) => None,
        }
    }

    /// Whether frames leave this host, as far as the name tells. (`udp` without address is loopback.)
    pub fn leaves_host(&self) -> bool {
        match self {
            Self::Shm | Self::Udp(None) => false,
            Self::Udp(Some(addr)) => !addr.ip().is_loopback(),
            Self::Packet(_) | Self::Xdp(_) | Self::Relay(_) => true,
            Self::Dpdk(spec) => !spec.stays_on_host(),
        }
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

/// Error for a text that names no link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkSpecError {
    /// No such link.
    #[error(
        "unknown link `{given}`; accepted are `shm`, `udp`, `udp:ADDRESS:PORT` (for example `udp:10.0.0.1:7000`), \
         `packet:INTERFACE`, `xdp:INTERFACE` (for example `packet:eth1`), `dpdk:DEVICE` and `relay:NAME`"
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
        match text.split_once(':') {
            None if text == "shm" => Ok(Self::Shm),
            None if text == "udp" => Ok(Self::Udp(None)),
            None if text == "packet" => Ok(Self::Packet(None)),
            None if text == "xdp" => Ok(Self::Xdp(None)),
            Some(("udp", addr)) => addr
                .parse()
                .map(|addr| Self::Udp(Some(addr)))
                .map_err(|_| unknown()),
            Some(("packet", name)) => Station::read(name)
                .map(|station| Self::Packet(Some(station)))
                .ok_or_else(unknown),
            Some(("xdp", name)) => InterfaceName::new(name)
                .map(|name| Self::Xdp(Some(name)))
                .ok_or_else(unknown),
            Some(("relay", name)) => Station::read(name).map(Self::Relay).ok_or_else(unknown),
            Some(("dpdk", _)) => Ok(Self::Dpdk(text.parse()?)),
            _ => Err(unknown()),
        }
    }
}

impl std::fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Udp(Some(addr)) => write!(f, "udp:{addr}"),
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
