//! Links by name as users write them, and one type for any of the links.
//!
//! `AnyLink` selects by `match`, so a plain link costs one predictable branch a call; wrapped links are boxed, and only they pay for their wrappers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use tsumuji_link::capture::Capture;
use tsumuji_link::dpdk::{Dpdk, DpdkConfig, DpdkSpec, DpdkSpecError};
use tsumuji_link::ether::MacAddr;
use tsumuji_link::impair::{Impair, ImpairConfig};
use tsumuji_link::packet::{Packet, PacketConfig};
use tsumuji_link::shm::Shm;
use tsumuji_link::udp::{Udp, UdpConfig};
#[cfg(feature = "xdp")]
use tsumuji_link::xdp::{Xdp, XdpConfig};
use tsumuji_link::{
    Capacity, Erased, Frame, Link, LinkAddr, LinkCaps, LinkCounters, LinkError, Paired, Receiver,
    Rings, SealCounters,
};

use crate::bootstrap::{HostMemory, HostServer};
use crate::error::OpenError;
#[cfg(feature = "seal")]
use crate::security::Keyed;
use crate::security::leaves_host;

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
    /// `xdp:INTERFACE`: raw Ethernet by AF_XDP, for one process.
    Xdp(Option<InterfaceName>),
    /// `dpdk:PCI-ADDRESS` or `dpdk:DRIVER,PARAMETERS`: a DPDK device.
    Dpdk(DpdkSpec),
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
        }
    }

    /// The network interface, if the link uses one and names it.
    pub fn interface(&self) -> Option<InterfaceName> {
        match self {
            Self::Packet(station) => station.map(|station| station.interface),
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
            Self::Packet(_) | Self::Xdp(_) => true,
            Self::Dpdk(spec) => !spec.stays_on_host(),
        }
    }
}

/// A place on a network interface that processes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Station {
    /// The interface.
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
         `packet:INTERFACE`, `xdp:INTERFACE` (for example `packet:eth1`) and `dpdk:DEVICE`"
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
            Self::Xdp(Some(interface)) => write!(f, "xdp:{interface}"),
            Self::Shm | Self::Udp(None) | Self::Packet(None) | Self::Xdp(None) => {
                f.write_str(self.kind())
            }
        }
    }
}

/// A link that reaches peers, without wrappers.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // a process has one; a box would cost the hot path
#[non_exhaustive]
pub enum Base {
    /// Shared memory.
    Shm(Shm),
    /// One UDP socket.
    Udp(Udp),
    /// One network interface, by AF_PACKET.
    Packet(Packet),
    /// One network interface, by AF_XDP.
    #[cfg(feature = "xdp")]
    Xdp(Xdp),
    /// One DPDK device.
    Dpdk(Dpdk),
}

impl Base {
    /// Attaches to a shared-memory job as its member `index`.
    pub(crate) fn attach(memory: BorrowedFd<'_>, index: u16) -> Result<Self, OpenError> {
        Ok(Self::Shm(Shm::attach(memory, index)?))
    }

    /// Opens the named link. Shared memory has no name: see `attach`.
    pub fn open(link: &LinkSpec) -> Result<Self, OpenError> {
        let unnamed = || OpenError::NoInterface { link: link.kind() };
        Ok(match link {
            LinkSpec::Shm => return Err(OpenError::NotAMember),
            LinkSpec::Udp(addr) => {
                let addr = addr.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));
                Self::Udp(Udp::bind(addr, UdpConfig::default())?)
            }
            LinkSpec::Packet(station) => {
                let station = station.as_ref().ok_or_else(unnamed)?;
                let config = PacketConfig {
                    slot: station.slot,
                    ..PacketConfig::default()
                };
                Self::Packet(Packet::open(station.interface.as_str(), config)?)
            }
            #[cfg(not(feature = "xdp"))]
            LinkSpec::Xdp(_) => return Err(OpenError::NotBuilt { feature: "xdp" }),
            #[cfg(feature = "xdp")]
            LinkSpec::Xdp(interface) => {
                let interface = interface.as_ref().ok_or_else(unnamed)?;
                Self::Xdp(Xdp::open(interface.as_str(), XdpConfig::default())?)
            }
            LinkSpec::Dpdk(spec) => Self::Dpdk(Dpdk::open(spec, DpdkConfig::default())?),
        })
    }
}

/// Any of the links, with or without sealing.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // a process has one; a box would cost the hot path
#[non_exhaustive]
pub enum AnyLink {
    /// Not sealed.
    Open(Unsealed),
    /// Sealed with a cluster key.
    #[cfg(feature = "seal")]
    Sealed(Box<Keyed>),
    /// Shared memory within this host, and another link beyond it.
    Hosted(Box<Hosted>),
}

/// A link that leaves this host, beside shared memory.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // a process has one
#[doc(hidden)]
pub enum Network {
    Open(Unsealed),
    #[cfg(feature = "seal")]
    Sealed(Box<Keyed>),
}

/// A paired link, and the thread that offers its memory to other nodes of this host.
#[derive(Debug)]
pub struct Hosted {
    link: Paired<Network>,
    _offer: HostServer,
}

impl std::ops::Deref for Hosted {
    type Target = Paired<Network>;

    fn deref(&self) -> &Self::Target {
        &self.link
    }
}

impl std::ops::DerefMut for Hosted {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.link
    }
}

impl AnyLink {
    /// Adds the shared memory of this host's nodes.
    pub(crate) fn paired(self, host: HostMemory) -> Result<Self, OpenError> {
        let network = match self {
            Self::Open(link) => Network::Open(link),
            #[cfg(feature = "seal")]
            Self::Sealed(link) => Network::Sealed(link),
            Self::Hosted(_) => return Ok(self),
        };
        let shm = Shm::attach(&host.memory, host.rank)?;
        let link = Paired::new(shm, network).map_err(|source| OpenError::Neighbours {
            what: "make an epoll descriptor",
            source,
        })?;
        Ok(Self::Hosted(Box::new(Hosted {
            link,
            _offer: host.offer,
        })))
    }

    /// Adds the given wrappers to `base`; frames are not sealed (see [`Security`](crate::Security)).
    pub fn open(
        base: Base,
        impair: Option<ImpairConfig>,
        capture: Option<&Path>,
    ) -> Result<Self, OpenError> {
        Unsealed::open(base, impair, capture).map(Self::Open)
    }
}

/// Any of the links, with or without wrappers.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // a process has one; a box would cost the hot path
#[non_exhaustive]
pub enum Unsealed {
    /// Shared memory.
    Shm(Shm),
    /// One UDP socket.
    Udp(Udp),
    /// One network interface, by AF_PACKET.
    Packet(Packet),
    /// One network interface, by AF_XDP.
    #[cfg(feature = "xdp")]
    Xdp(Xdp),
    /// One DPDK device.
    Dpdk(Dpdk),
    /// Impaired at random, from a seed.
    Impaired(Box<Impair<Base>>),
    /// Captured to a file.
    Captured(Box<Capture<Base>>),
    /// Impaired, then captured to a file.
    CapturedImpaired(Box<Capture<Impair<Base>>>),
}

impl Unsealed {
    /// Whether another host can send to this link.
    pub fn leaves_host(&self) -> bool {
        let by_device = |link: &Dpdk| !link.spec().stays_on_host();
        let by_base = |base: &Base| match base {
            Base::Dpdk(link) => by_device(link),
            other => leaves_host(other.local_addr()),
        };
        match self {
            Self::Dpdk(link) => by_device(link),
            Self::Impaired(link) => by_base(link.inner()),
            Self::Captured(link) => by_base(link.inner()),
            Self::CapturedImpaired(link) => by_base(link.inner().inner()),
            other => leaves_host(other.local_addr()),
        }
    }

    /// Adds the given wrappers to `base`.
    pub fn open(
        base: Base,
        impair: Option<ImpairConfig>,
        capture: Option<&Path>,
    ) -> Result<Self, OpenError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::Capture { path, source }
        };
        Ok(match (impair, capture, base) {
            (None, None, Base::Shm(link)) => Self::Shm(link),
            (None, None, Base::Udp(link)) => Self::Udp(link),
            (None, None, Base::Packet(link)) => Self::Packet(link),
            #[cfg(feature = "xdp")]
            (None, None, Base::Xdp(link)) => Self::Xdp(link),
            (None, None, Base::Dpdk(link)) => Self::Dpdk(link),
            (Some(config), None, base) => Self::Impaired(Box::new(Impair::new(base, config)?)),
            (None, Some(path), base) => {
                Self::Captured(Box::new(Capture::create(base, path).map_err(failed(path))?))
            }
            (Some(config), Some(path), base) => {
                let impaired = Impair::new(base, config)?;
                let captured = Capture::create(impaired, path).map_err(failed(path))?;
                Self::CapturedImpaired(Box::new(captured))
            }
        })
    }
}

/// Implements `Link` by `match` over the variants.
macro_rules! delegate {
    ($type:ident: $($(#[$cfg:meta])? $variant:ident)*) => {
        impl Link for $type {
            #[inline]
            fn caps(&self) -> LinkCaps {
                match self { $($(#[$cfg])? Self::$variant(link) => link.caps(),)* }
            }

            fn caps_to(&self, to: LinkAddr) -> LinkCaps {
                match self { $($(#[$cfg])? Self::$variant(link) => link.caps_to(to),)* }
            }

            #[inline]
            fn note_time(&mut self, now_ns: u64) {
                match self { $($(#[$cfg])? Self::$variant(link) => link.note_time(now_ns),)* }
            }

            #[inline]
            fn local_addr(&self) -> LinkAddr {
                match self { $($(#[$cfg])? Self::$variant(link) => link.local_addr(),)* }
            }

            #[inline]
            fn capacity(&mut self, to: LinkAddr) -> Result<Capacity, LinkError> {
                match self { $($(#[$cfg])? Self::$variant(link) => link.capacity(to),)* }
            }

            #[inline]
            fn send<'a>(&mut self, to: LinkAddr, frames: impl Iterator<Item = Frame<'a>> + Clone) -> Result<usize, LinkError> {
                match self { $($(#[$cfg])? Self::$variant(link) => link.send(to, frames),)* }
            }

            #[inline]
            fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
                self.receive_by(max, receiver)
            }

            #[inline]
            fn flush(&mut self) -> Result<(), LinkError> {
                match self { $($(#[$cfg])? Self::$variant(link) => link.flush(),)* }
            }

            fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
                match self { $($(#[$cfg])? Self::$variant(link) => link.wait(timeout),)* }
            }

            fn fd(&self) -> Option<BorrowedFd<'_>> {
                match self { $($(#[$cfg])? Self::$variant(link) => link.fd(),)* }
            }

            fn rings(&self) -> Option<&impl Rings> {
                self.shm()
            }

            #[inline]
            fn rings_mut(&mut self) -> Option<&mut impl Rings> {
                self.shm_mut()
            }

            fn set_reach(&mut self, to: LinkAddr, frame_bytes: usize) {
                match self { $($(#[$cfg])? Self::$variant(link) => link.set_reach(to, frame_bytes),)* }
            }

            fn arm_fd(&mut self) -> Result<bool, LinkError> {
                match self { $($(#[$cfg])? Self::$variant(link) => link.arm_fd(),)* }
            }

            fn counters(&self) -> LinkCounters {
                match self { $($(#[$cfg])? Self::$variant(link) => link.counters(),)* }
            }

            fn sealing(&self) -> Option<SealCounters> {
                match self { $($(#[$cfg])? Self::$variant(link) => link.sealing(),)* }
            }
        }
    };
}

impl Base {
    fn shm(&self) -> Option<&Shm> {
        match self {
            Self::Shm(link) => Some(link),
            _ => None,
        }
    }

    fn shm_mut(&mut self) -> Option<&mut Shm> {
        match self {
            Self::Shm(link) => Some(link),
            _ => None,
        }
    }
}

/// A wrapped shared memory offers no rings: messages in them would bypass the wrapper.
impl Unsealed {
    fn shm(&self) -> Option<&Shm> {
        match self {
            Self::Shm(link) => Some(link),
            _ => None,
        }
    }

    #[inline]
    fn shm_mut(&mut self) -> Option<&mut Shm> {
        match self {
            Self::Shm(link) => Some(link),
            _ => None,
        }
    }
}

impl AnyLink {
    fn shm(&self) -> Option<&Shm> {
        match self {
            Self::Open(link) => link.shm(),
            #[cfg(feature = "seal")]
            Self::Sealed(_) => None,
            Self::Hosted(link) => Some(link.shm()),
        }
    }

    #[inline]
    fn shm_mut(&mut self) -> Option<&mut Shm> {
        match self {
            Self::Open(link) => link.shm_mut(),
            #[cfg(feature = "seal")]
            Self::Sealed(_) => None,
            Self::Hosted(link) => Some(link.shm_mut()),
        }
    }
}

/// Its own rings are not those of the host's nodes.
impl Network {
    fn shm(&self) -> Option<&Shm> {
        None
    }

    fn shm_mut(&mut self) -> Option<&mut Shm> {
        None
    }

    fn receive_by(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        match self {
            Self::Open(link) => link.receive(max, &mut Erased(receiver)),
            #[cfg(feature = "seal")]
            Self::Sealed(link) => link.receive(max, &mut Erased(receiver)),
        }
    }
}

// The receive code of each link is compiled for each kind of handler. Wrapped links would multiply these copies, so they call the receiver through a
// table of functions.
impl Base {
    fn receive_by(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        match self {
            Self::Shm(link) => link.receive(max, receiver),
            Self::Udp(link) => link.receive(max, receiver),
            Self::Packet(link) => link.receive(max, receiver),
            #[cfg(feature = "xdp")]
            Self::Xdp(link) => link.receive(max, receiver),
            Self::Dpdk(link) => link.receive(max, receiver),
        }
    }
}

impl Unsealed {
    #[inline]
    fn receive_by(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        match self {
            Self::Shm(link) => link.receive(max, receiver),
            Self::Udp(link) => link.receive(max, receiver),
            Self::Packet(link) => link.receive(max, receiver),
            #[cfg(feature = "xdp")]
            Self::Xdp(link) => link.receive(max, receiver),
            Self::Dpdk(link) => link.receive(max, receiver),
            Self::Impaired(link) => link.receive(max, &mut Erased(receiver)),
            Self::Captured(link) => link.receive(max, &mut Erased(receiver)),
            Self::CapturedImpaired(link) => link.receive(max, &mut Erased(receiver)),
        }
    }
}

impl AnyLink {
    #[inline]
    fn receive_by(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        match self {
            Self::Open(link) => link.receive(max, receiver),
            #[cfg(feature = "seal")]
            Self::Sealed(link) => link.receive(max, &mut Erased(receiver)),
            Self::Hosted(link) => link.receive(max, receiver),
        }
    }
}

delegate!(Base: Shm Udp Packet #[cfg(feature = "xdp")] Xdp Dpdk);
delegate!(Unsealed: Shm Udp Packet #[cfg(feature = "xdp")] Xdp Dpdk Impaired Captured CapturedImpaired);
delegate!(AnyLink: Open #[cfg(feature = "seal")] Sealed Hosted);
delegate!(Network: Open #[cfg(feature = "seal")] Sealed);

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepted names are written as they were read; others are refused in one line that says what is accepted.
    #[test]
    fn names_are_read_and_written() {
        for text in [
            "shm",
            "udp",
            "udp:10.0.0.1:7000",
            "udp:[::1]:0",
            "packet",
            "packet:eth1",
            "packet:eth1:63",
            "xdp",
            "xdp:eth0.5",
            "packet:a-name.of_15ch",
            "dpdk:0000:03:00.0",
            "dpdk:net_memif,role=server,socket=/run/x.sock,id=0",
        ] {
            assert_eq!(text.parse::<LinkSpec>().expect(text).to_string(), text);
        }
        for text in [
            "",
            "shm:",
            "SHM",
            "udp:",
            "udp:host",
            "udp:1.2.3.4",
            "udp:1.2.3.4:70000",
            "packet:",
            "packet:a/b",
            "xdp:a b",
            "packet:..",
            "packet:eth1:0",
            "packet:eth1:64",
            "packet:eth1:a",
            "packet::1",
            "xdp:eth1:2",
            "packet:sixteen-letters-",
        ] {
            let message = text.parse::<LinkSpec>().expect_err(text).to_string();
            assert!(
                message.starts_with(&format!("unknown link `{text}`; accepted are `shm`")),
                "{message}"
            );
        }
        assert!(
            !"a\nb"
                .parse::<LinkSpec>()
                .expect_err("newline")
                .to_string()
                .contains('\n')
        );
    }
}
