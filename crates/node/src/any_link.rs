//! One type for any of the links, so that an endpoint needs no parameter; `boxed` has links of a type that is not known here.
//!
//! `AnyLink` selects by `match`, so a plain link costs one predictable branch a call. Wrapped links, and those that a program brings along, are boxed.

mod boxed;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::Path;

use tsumuji_link::capture::Capture;
use tsumuji_link::dpdk::{Dpdk, DpdkConfig};
use tsumuji_link::impair::{Impair, ImpairConfig};
use tsumuji_link::packet::{Packet, PacketConfig};
use tsumuji_link::relay::Relayed;
use tsumuji_link::shm::Shm;
use tsumuji_link::udp::{Udp, UdpConfig};
#[cfg(feature = "xdp")]
use tsumuji_link::xdp::{Xdp, XdpConfig};
use tsumuji_link::{Erased, Link, LinkError, MayHaveRings, Paired, Receiver, Rings, pass_on};

pub use boxed::BoxedLink;

use crate::bootstrap::{HostMemory, HostServer, relay};
use crate::error::OpenError;
use crate::link_spec::{LinkSpec, leaves_host};

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
    /// A device that a relay has.
    Relay(Relayed),
}

impl Base {
    /// Whether another host can send to this link.
    pub(crate) fn leaves_host(&self) -> bool {
        match self {
            Self::Dpdk(link) => !link.spec().stays_on_host(),
            other => leaves_host(other.local_addr()),
        }
    }

    /// Attaches to a shared-memory job as its member `index`.
    pub(crate) fn attach(memory: BorrowedFd<'_>, index: u16) -> Result<Self, OpenError> {
        Ok(Self::Shm(Shm::attach(memory, index)?))
    }

    /// Opens the named link. Shared memory has no name: see `attach`.
    pub fn open(link: &LinkSpec) -> Result<Self, OpenError> {
        relay::opened(|| Self::open_now(link))
    }

    fn open_now(link: &LinkSpec) -> Result<Self, OpenError> {
        let unnamed = || OpenError::NoInterface(link.kind());
        Ok(match link {
            LinkSpec::Shm => return Err(OpenError::NotAMember),
            LinkSpec::Udp(addr) => {
                let addr = addr.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));
                Self::Udp(Udp::bind(addr, UdpConfig::default())?)
            }
            LinkSpec::Multicast { own, group } => {
                let own = own.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));
                let config = UdpConfig {
                    group: Some(group.ok_or(OpenError::NoGroup)?),
                    ..UdpConfig::default()
                };
                Self::Udp(Udp::bind(own, config)?)
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
            LinkSpec::Xdp(_) => return Err(OpenError::NotBuilt("xdp")),
            #[cfg(feature = "xdp")]
            LinkSpec::Xdp(interface) => {
                let interface = interface.as_ref().ok_or_else(unnamed)?;
                Self::Xdp(Xdp::open(interface.as_str(), XdpConfig::default())?)
            }
            LinkSpec::Dpdk(spec) => Self::Dpdk(Dpdk::open(spec, DpdkConfig::default())?),
            LinkSpec::Relay(station) => Self::Relay(relay::attach(station)?),
        })
    }
}

/// Any of the links, with or without wrappers.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // a process has one; a box would cost the hot path
#[non_exhaustive]
pub enum AnyLink {
    /// One link as it is. Few levels down, as each costs its share of every call.
    Plain(Base),
    /// One link, impaired, captured or sealed; or one of the program's own.
    Boxed(BoxedLink),
    /// Shared memory within this host, and another link beyond it.
    Hosted(Box<Hosted>),
}

/// A paired link, and the thread that offers its memory to other nodes of this host.
#[derive(Debug)]
pub struct Hosted {
    link: Paired<BoxedLink>,
    _offer: HostServer,
}

impl std::ops::Deref for Hosted {
    type Target = Paired<BoxedLink>;

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
    /// Adds the given wrappers to `base`. Captures see frames as they are impaired; frames are not sealed (see [`Security`](crate::Security)).
    pub fn open(
        base: Base,
        impair: Option<ImpairConfig>,
        capture: Option<&Path>,
    ) -> Result<Self, OpenError> {
        let Some(path) = capture else {
            return Ok(match impair {
                None => Self::Plain(base),
                Some(config) => Self::own(Impair::new(base, config)?),
            });
        };
        let impaired = Impair::new(base, impair.unwrap_or_default())?;
        let captured = Capture::create(impaired, path).map_err(|source| OpenError::Capture {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self::own(captured))
    }

    /// A link of any other type.
    pub fn own(link: impl Link + Send + 'static) -> Self {
        Self::Boxed(BoxedLink::new(link))
    }

    /// Adds the shared memory of this host's nodes.
    pub(crate) fn paired(self, host: HostMemory) -> Result<Self, OpenError> {
        let network = match self {
            Self::Plain(base) => BoxedLink::new(base),
            Self::Boxed(link) => link,
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
}

macro_rules! from {
    ($($(#[$cfg:meta])? $variant:ident($link:ty))*) => {
        $($(#[$cfg])? impl From<$link> for AnyLink {
            fn from(link: $link) -> Self {
                Self::Plain(Base::$variant(link))
            }
        })*
    };
}
from!(Shm(Shm) Udp(Udp) Packet(Packet) #[cfg(feature = "xdp")] Xdp(Xdp) Dpdk(Dpdk));

/// Forwards the calls of `Link` to the present variant, except `receive`, which differs between the enums.
macro_rules! choose {
    ($variants:tt) => {
        pass_on!($variants: caps caps_to local_addr capacity send flush wait fd arm_fd set_reach note_time counters sealing);
    };
}

// The receive code of each link is compiled for each kind of handler. Wrapped links would multiply these copies, so they call the receiver through a
// table of functions.
impl Link for Base {
    choose!({Shm Udp Packet #[cfg(feature = "xdp")] Xdp Dpdk Relay});

    #[inline]
    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        match self {
            Self::Shm(link) => link.receive(max, receiver),
            Self::Udp(link) => link.receive(max, receiver),
            Self::Packet(link) => link.receive(max, receiver),
            #[cfg(feature = "xdp")]
            Self::Xdp(link) => link.receive(max, receiver),
            Self::Dpdk(link) => link.receive(max, receiver),
            Self::Relay(link) => link.receive(max, &mut Erased(receiver)),
        }
    }
}

impl Link for AnyLink {
    choose!({Plain Boxed Hosted});

    #[inline]
    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        match self {
            Self::Plain(link) => link.receive(max, receiver),
            Self::Boxed(link) => link.receive(max, receiver),
            Self::Hosted(link) => link.receive(max, receiver),
        }
    }
}

impl MayHaveRings for AnyLink {
    /// A wrapped shared memory offers no rings: messages in them would bypass the wrapper.
    fn rings(&self) -> Option<&impl Rings> {
        match self {
            Self::Plain(Base::Shm(link)) => Some(link),
            Self::Plain(_) | Self::Boxed(_) => None,
            Self::Hosted(link) => Some(link.shm()),
        }
    }

    #[inline]
    fn rings_mut(&mut self) -> Option<&mut impl Rings> {
        match self {
            Self::Plain(Base::Shm(link)) => Some(link),
            Self::Plain(_) | Self::Boxed(_) => None,
            Self::Hosted(link) => Some(link.shm_mut()),
        }
    }
}

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
            "udp+multicast",
            "udp+multicast:239.77.0.1:7000",
            "udp+multicast:239.77.0.1:7000@10.0.0.1:7001",
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
            "udp+multicast:",
            "udp+multicast:10.0.0.1:7000",
            "udp+multicast:239.77.0.1:0",
            "udp+multicast:239.77.0.1:7000@host",
            "udp+broadcast",
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
