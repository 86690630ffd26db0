//! A process that joins a running cluster, as its environment says: `TSUMUJI_JOIN` is the address of node 0, which admits.
//!
//! Called by `worker`. On one host the cluster may be a launch over shared memory: then the launcher gives the memory to those that ask for it, under a
//! name made of its process number, and the address is `shm:PROCESS`.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tsumuji_link::LinkAddr;
use tsumuji_link::ether::MacAddr;
use tsumuji_link::shm::{NODES_MAX, Shm};
use tsumuji_proto::NodeId;

use super::offer::{Server, ask};
use super::rendezvous;
use super::worker::{bad, number, parsed, text};
use super::{ENV_JOIN, ENV_LINK, ENV_NODE};
use crate::any_link::Base;
use crate::endpoint::JoinRequest;
use crate::error::OpenError;
use crate::link_spec::LinkSpec;
use crate::route::ip_towards;

/// Time to be admitted and to learn who the others are: longer than it takes until a member that comes back elsewhere counts as dead.
pub(super) const WITHIN: Duration = Duration::from_secs(30);
/// Nodes that a launch over shared memory expects beside those that it starts.
const ROOM: usize = 16;

/// Number of nodes that the shared memory of a launch of `nodes` expects, where others may join: for so many a member's receive side is sized. More may
/// come, and then share it.
pub(super) fn expected(nodes: usize) -> usize {
    (2 * nodes).max(nodes + ROOM).min(NODES_MAX)
}

/// Offers the shared memory of a launch to processes of this user that join as the nodes from `first` on; returns its address in `TSUMUJI_JOIN`.
pub(super) fn offer(memory: OwnedFd, first: u16) -> io::Result<(Server, String)> {
    let process = std::process::id();
    let listener = rendezvous::listen(&name_of(process))?;
    Ok((
        Server::start(listener, memory, first)?,
        format!("shm:{process}"),
    ))
}

fn name_of(process: u32) -> String {
    let user = rustix::process::geteuid().as_raw();
    format!("tsumuji-join-{user}-{process}")
}

/// Where a cluster is that a process joins, as users write it: the value of [`ENV_JOIN`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinAddress {
    text: String,
    at: Where,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    /// The launcher that has the shared memory.
    Memory(u32),
    Udp(SocketAddr),
    Station(MacAddr),
}

impl std::str::FromStr for JoinAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let addr = text.strip_prefix("udp:").unwrap_or(text);
        let at = match text.strip_prefix("shm:") {
            Some(process) => process.parse().ok().map(Where::Memory),
            None => (addr.parse().map(Where::Udp))
                .or_else(|_| text.parse().map(Where::Station))
                .ok(),
        };
        let text = text.to_owned();
        at.map(|at| Self { text, at }).ok_or(
            "accepted are udp:ADDRESS:PORT or an Ethernet address, of node 0, and shm:PROCESS",
        )
    }
}

impl std::fmt::Display for JoinAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// The cluster that the environment asks this process to join: an open link, and whom to ask. `None`: none.
pub(super) fn asked() -> Result<Option<(Base, JoinRequest)>, OpenError> {
    let Some(place) = text(ENV_JOIN)? else {
        return Ok(None);
    };
    let wrong = |problem: &str| bad(ENV_JOIN, &place, problem.to_owned());
    let JoinAddress { at, .. } = place.parse().map_err(wrong)?;
    let link: Option<LinkSpec> = parsed(ENV_LINK)?;
    let id = number(ENV_NODE, "the id of a member that died")?.map(NodeId);
    let (base, to) = match (at, link) {
        (Where::Memory(process), None | Some(LinkSpec::Shm)) => {
            (place_in_memory(process, id.is_some())?, LinkAddr::Local(0))
        }
        (Where::Udp(addr), None | Some(LinkSpec::Udp(None))) => {
            let ip = ip_towards(addr).map_err(|error| wrong(&error.to_string()))?;
            let own = LinkSpec::Udp(Some(SocketAddr::new(ip, 0)));
            (Base::open(&own)?, LinkAddr::Inet(addr))
        }
        (Where::Udp(addr), Some(LinkSpec::Multicast { own: None, group })) => {
            let ip = ip_towards(addr).map_err(|error| wrong(&error.to_string()))?;
            let own = Some(SocketAddr::new(ip, 0));
            let own = LinkSpec::Multicast { own, group };
            (Base::open(&own)?, LinkAddr::Inet(addr))
        }
        (Where::Udp(addr), Some(link @ (LinkSpec::Udp(_) | LinkSpec::Multicast { .. }))) => {
            (Base::open(&link)?, LinkAddr::Inet(addr))
        }
        (Where::Station(mac), Some(link))
            if link.interface().is_some() || matches!(link, LinkSpec::Dpdk(_)) =>
        {
            (Base::open(&link)?, LinkAddr::Ether(mac))
        }
        (Where::Station(_), _) => {
            return Err(wrong(
                "an Ethernet address needs TSUMUJI_LINK, for example packet:eth1",
            ));
        }
        (_, Some(link)) => {
            return Err(wrong(&format!("no address of link `{link}`")));
        }
    };
    let host = rustix::system::uname();
    let name = format!(
        "{} {}",
        host.nodename().to_string_lossy(),
        std::process::id()
    );
    Ok(Some((base, JoinRequest { to, name, id })))
}

/// Takes a free place in the shared memory of a launch, behind those of the processes that it starts. A process that takes the id of a dead member must
/// not come from the place of another member that has left.
fn place_in_memory(process: u32, has_id: bool) -> Result<Base, OpenError> {
    let failed = |source| OpenError::Neighbours {
        what: "ask the launcher for the shared memory",
        source,
    };
    let found = ask::<u16>(&name_of(process)).map_err(failed)?;
    let (first, memory) = found.ok_or_else(|| {
        failed(io::Error::new(
            io::ErrorKind::NotFound,
            format!("process {process} of this user is no launcher with --admit over shm"),
        ))
    })?;
    Ok(Base::Shm(Shm::attach_free(memory.as_fd(), first, has_id)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses are read with and without the link's name; anything else is none.
    #[test]
    fn addresses_are_read() {
        let udp = Where::Udp("10.0.0.1:7000".parse().expect("an address"));
        for (text, at) in [
            ("udp:10.0.0.1:7000", Some(udp)),
            ("10.0.0.1:7000", Some(udp)),
            ("shm:77", Some(Where::Memory(77))),
            (
                "02:00:00:00:00:07",
                Some(Where::Station(MacAddr([2, 0, 0, 0, 0, 7]))),
            ),
            ("shm:", None),
            ("shm", None),
            ("udp:10.0.0.1", None),
            ("", None),
        ] {
            let read = text.parse().map(|address: JoinAddress| address.at);
            assert_eq!(read.ok(), at, "{text}");
        }
    }
}
