//! Links by name: what users write, and any of the links behind one type.
//!
//! `AnyLink` chooses by `match`, so the plain links cost one predictable branch a call; the wrapped forms are boxed and pay for
//! what they do.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use tsumuji_link::capture::Capture;
use tsumuji_link::impair::{Impair, ImpairConfig};
use tsumuji_link::shm::Shm;
use tsumuji_link::udp::{Udp, UdpConfig};
use tsumuji_link::{Link, LinkAddr, LinkCaps, LinkCounters, LinkError};

use crate::error::OpenError;
use crate::membership::Membership;

/// A link as users name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkSpec {
    /// `shm`: processes of this host.
    Shm,
    /// `udp` (loopback, a port of the kernel's choice) or `udp:ADDRESS:PORT`.
    Udp(Option<SocketAddr>),
}

/// A link's name that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown link `{given}`; accepted are `shm`, `udp` and `udp:ADDRESS:PORT` (for example `udp:10.0.0.1:7000`)"
)]
pub struct LinkSpecError {
    given: String,
}

impl FromStr for LinkSpec {
    type Err = LinkSpecError;

    fn from_str(text: &str) -> Result<Self, LinkSpecError> {
        let unknown = || LinkSpecError {
            given: text.chars().filter(|c| !c.is_control()).take(100).collect(),
        };
        match text.split_once(':') {
            None if text == "shm" => Ok(Self::Shm),
            None if text == "udp" => Ok(Self::Udp(None)),
            Some(("udp", addr)) => addr
                .parse()
                .map(|addr| Self::Udp(Some(addr)))
                .map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }
}

impl std::fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Shm => f.write_str("shm"),
            Self::Udp(None) => f.write_str("udp"),
            Self::Udp(Some(addr)) => write!(f, "udp:{addr}"),
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
}

impl Base {
    /// Takes its place in a shared-memory job.
    pub(crate) fn attach(memory: BorrowedFd<'_>, index: u16) -> Result<Self, OpenError> {
        Ok(Self::Shm(Shm::attach(memory, index)?))
    }

    /// Opens a UDP socket.
    pub(crate) fn bind(addr: SocketAddr) -> Result<Self, OpenError> {
        Ok(Self::Udp(Udp::bind(addr, UdpConfig::default())?))
    }

    /// Opens the socket whose address the table states for this node.
    pub(crate) fn for_member(membership: &Membership) -> Result<Self, OpenError> {
        match membership
            .members
            .get(usize::from(membership.me.0))
            .map(|member| member.addr)
        {
            Some(LinkAddr::Inet(addr)) => Self::bind(addr),
            _ => Err(OpenError::NotAMember),
        }
    }

    /// Its address as peers must name it, where it is one of IP.
    pub(crate) fn inet_addr(&self) -> Option<SocketAddr> {
        match self.local_addr() {
            LinkAddr::Inet(addr) => Some(addr),
            _ => None,
        }
    }
}

/// Any of the links, as it is or with wrappers around it.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // a process has one; a box would cost the hot path
#[non_exhaustive]
pub enum AnyLink {
    /// Shared memory.
    Shm(Shm),
    /// One UDP socket.
    Udp(Udp),
    /// With seeded misfortune.
    Impaired(Box<Impair<Base>>),
    /// Written to a file.
    Captured(Box<Capture<Base>>),
    /// Written to a file as it is after the misfortune.
    CapturedImpaired(Box<Capture<Impair<Base>>>),
}

impl AnyLink {
    /// Wraps `base` as wanted.
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
    ($type:ident: $($variant:ident)*) => {
        impl Link for $type {
            #[inline]
            fn caps(&self) -> LinkCaps {
                match self { $(Self::$variant(link) => link.caps(),)* }
            }

            #[inline]
            fn local_addr(&self) -> LinkAddr {
                match self { $(Self::$variant(link) => link.local_addr(),)* }
            }

            #[inline]
            fn recv_burst(&mut self, max: usize, on_frame: impl FnMut(LinkAddr, &[u8])) -> Result<usize, LinkError> {
                match self { $(Self::$variant(link) => link.recv_burst(max, on_frame),)* }
            }

            #[inline]
            fn send_with(&mut self, to: LinkAddr, fill: impl FnOnce(&mut [u8]) -> usize) -> Result<bool, LinkError> {
                match self { $(Self::$variant(link) => link.send_with(to, fill),)* }
            }

            #[inline]
            fn flush(&mut self) -> Result<(), LinkError> {
                match self { $(Self::$variant(link) => link.flush(),)* }
            }

            fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
                match self { $(Self::$variant(link) => link.wait(timeout),)* }
            }

            fn fd(&self) -> Option<BorrowedFd<'_>> {
                match self { $(Self::$variant(link) => link.fd(),)* }
            }

            fn arm_fd(&mut self) -> Result<bool, LinkError> {
                match self { $(Self::$variant(link) => link.arm_fd(),)* }
            }

            fn counters(&self) -> LinkCounters {
                match self { $(Self::$variant(link) => link.counters(),)* }
            }
        }
    };
}

delegate!(Base: Shm Udp);
delegate!(AnyLink: Shm Udp Impaired Captured CapturedImpaired);

#[cfg(test)]
mod tests {
    use super::*;

    /// What is accepted reads back as it was written; the rest is refused in one line that says what is accepted.
    #[test]
    fn names_are_read_and_written() {
        for text in ["shm", "udp", "udp:10.0.0.1:7000", "udp:[::1]:0"] {
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
            "dpdk:x",
            "packet:eth0",
            "xdp:e",
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
