//! Processes that another launcher has started: `mpiexec`, `mpirun`, `srun`. Each rank finds the others by that launcher's key-value space.
//!
//! Called by `worker`. A rank opens its link, states its host and its address under a key of its own, waits for all, and reads what the others stated.
//! `pmi` speaks PMI-1 and PMI-2 over the descriptor that MPICH's `mpiexec` and Slurm's `srun` pass on; `pmix_sys` calls the library PMIx, by which Open MPI's
//! `mpirun` and `srun --mpi=pmix` are reached.
//!
//! Ranks of one host reach each other over shared memory. If all are on one host, no other link is opened unless `TSUMUJI_LINK` names it.
//!
//! What the key-value space holds is not trusted: lengths are bounded, nothing panics.

mod pmi;
mod pmix_sys;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tsumuji_link::LinkAddr;
use tsumuji_proto::NodeId;

use super::ENV_LINK;
use super::neighbours::Neighbours;
use super::rendezvous::MAX_NODES;
use super::worker::{Ends, bad, text};
use crate::any_link::Base;
use crate::endpoint::Endpoint;
use crate::error::OpenError;
use crate::link_spec::{InterfaceName, LinkSpec, Station};
use crate::membership::{Member, Membership, shared_hosts};
use crate::options::Options;
use crate::route::ip_towards;

/// Key under which a rank states its host and address; its number follows.
const KEY: &str = "tsumuji-";
/// The longest statement: a host's identity and an address.
const STATED_BYTES_MAX: usize = 300;

/// The key-value space of a launcher.
trait KeyValues {
    /// This process's rank.
    fn rank(&self) -> u32;
    /// Number of processes.
    fn size(&self) -> u32;
    /// Number of this process among those of its host, if the launcher tells.
    fn local_rank(&self) -> Option<u16>;
    /// States a value; others see it after a fence.
    fn put(&mut self, key: &str, value: &str) -> io::Result<()>;
    /// Waits until all processes have called it.
    fn fence(&mut self) -> io::Result<()>;
    /// The value that the process of that rank has stated.
    fn get(&mut self, rank: u32, key: &str) -> io::Result<String>;
    /// Takes leave of the launcher's service; the process goes on.
    fn finish(&mut self) -> io::Result<()>;
}

/// Whether another launcher has started this process, as far as its environment tells.
pub(super) fn is_there() -> bool {
    pmi::is_there() || pmix_sys::is_there()
}

fn connect() -> io::Result<Box<dyn KeyValues>> {
    if pmi::is_there() {
        Ok(Box::new(pmi::Pmi::connect()?))
    } else {
        Ok(Box::new(pmix_sys::Library::connect()?))
    }
}

/// Meets the other ranks and opens the endpoint; `open` finishes it with a link and the nodes of this host.
pub(super) fn join(
    options: Options,
    open: impl FnOnce(Ends, Membership, Options) -> Result<Endpoint, OpenError>,
) -> Result<Endpoint, OpenError> {
    let failed = |what| move |source| OpenError::Foreign { what, source };
    let mut space = connect().map_err(failed("connect to it"))?;
    let (rank, size) = (space.rank(), space.size());
    let is_sound = size >= 1 && rank < size && size as usize <= MAX_NODES;
    if !is_sound {
        let problem = format!("rank {rank} of {size}; accepted are 1 to {MAX_NODES} processes");
        return Err(failed("learn the number of processes")(io::Error::other(
            problem,
        )));
    }
    let asked = text(ENV_LINK)?;
    let asked = asked.map(|link| read_link(&link, tsumuji_link::udp::ip_of_interface));
    let asked = asked.transpose()?;
    let me = rank as u16; // below `MAX_NODES`
    let base = open_link(asked.as_ref(), me, space.local_rank())?;
    let mine = Stated {
        host: host_identity().map_err(failed("tell this host from others"))?,
        addr: base.as_ref().map(tsumuji_link::Link::local_addr),
    };
    let exchange = |space: &mut dyn KeyValues| -> io::Result<Vec<Stated>> {
        space.put(&format!("{KEY}{rank}"), &mine.write())?;
        space.fence()?;
        (0..size)
            .map(|other| Stated::read(other, &space.get(other, &format!("{KEY}{other}"))?))
            .collect()
    };
    let all = exchange(&mut *space).map_err(failed("exchange addresses"))?;
    let mut membership = membership_of(me, &all)?;
    let near = Neighbours::take_over(&mut membership);
    let all_here = all.iter().all(|other| other.host == mine.host);
    // Ranks that are all on this host need no network link, unless one was asked for.
    let base = base.filter(|_| asked.is_some() || !all_here);
    let endpoint = match (base, near) {
        (Some(base), near) => {
            let endpoint = open((base, near), membership, options);
            // Everyone has its memory before anyone may end.
            space.fence().map_err(failed("wait for the others"))?;
            endpoint
        }
        (None, Some(near)) if all_here => {
            let attached = near.meet().and_then(|host| {
                let base = Base::attach(std::os::fd::AsFd::as_fd(&host.memory), host.rank)?;
                Ok((base, host))
            });
            // The others wait for this one, whatever became of it, and may still ask it for the memory.
            space.fence().map_err(failed("wait for the others"))?;
            let (base, _host) = attached?;
            let members = membership.members.len() as u16;
            let local = Membership::local(membership.me, members);
            open((base, None), local, options)
        }
        // One process alone, whose address nobody needs.
        (None, _) if size == 1 => {
            let base = Base::open(&LinkSpec::Udp(None))?;
            let addr = tsumuji_link::Link::local_addr(&base);
            membership.members[0].addr = addr;
            open((base, None), membership, options)
        }
        (None, _) => {
            let problem = "`shm` joins processes of one host, and these are on several".to_owned();
            return Err(bad(ENV_LINK, "shm", problem));
        }
    };
    space.finish().map_err(failed("take leave of it"))?;
    endpoint
}

/// The link that is asked for. All ranks have the same text, so that an interface may stand for its host's address: `udp:INTERFACE`, and
/// `udp:INTERFACE:PORT`.
fn read_link(
    text: &str,
    ip_of: impl Fn(&str) -> io::Result<Option<IpAddr>>,
) -> Result<LinkSpec, OpenError> {
    let refused = |problem: String| bad(ENV_LINK, text, problem);
    let unknown = match text.parse::<LinkSpec>() {
        Ok(link) => return Ok(link),
        Err(problem) => refused(problem.to_string()),
    };
    let Some(place) = text.strip_prefix("udp:") else {
        return Err(unknown);
    };
    let (name, port) = match place.split_once(':') {
        Some((name, port)) => (name, port.parse::<u16>().ok()),
        None => (place, Some(0)),
    };
    let is_name = InterfaceName::new(name).is_some() && name.parse::<IpAddr>().is_err();
    let Some(port) = port.filter(|_| is_name) else {
        return Err(unknown);
    };
    let ip = ip_of(name).map_err(|source| OpenError::Foreign {
        what: "list the interfaces of this host",
        source,
    })?;
    let none = || format!("no interface `{name}` with an IP address is here; `ip addr` lists them");
    let ip = ip.ok_or_else(|| refused(none()))?;
    Ok(LinkSpec::Udp(Some(SocketAddr::new(ip, port))))
}

/// The link that reaches other hosts; `None`: all ranks are asked to be on one host.
fn open_link(
    asked: Option<&LinkSpec>,
    rank: u16,
    local_rank: Option<u16>,
) -> Result<Option<Base>, OpenError> {
    let in_slot = |station: Station| {
        let slot = local_rank.and_then(|rank| u8::try_from(rank).ok());
        Station {
            slot: slot.unwrap_or(station.slot),
            ..station
        }
    };
    let link = match asked {
        Some(LinkSpec::Shm) => return Ok(None),
        None | Some(LinkSpec::Udp(None)) => LinkSpec::Udp(Some(SocketAddr::new(own_ip(), 0))),
        Some(LinkSpec::Multicast { own: None, group }) => LinkSpec::Multicast {
            own: Some(SocketAddr::new(own_ip(), 0)),
            group: *group,
        },
        Some(LinkSpec::Packet(Some(station))) => LinkSpec::Packet(Some(in_slot(*station))),
        Some(LinkSpec::Relay(station)) => LinkSpec::Relay(in_slot(*station)),
        Some(other) => *other,
    };
    let counted = link.counted(rank).ok_or_else(|| {
        let problem = format!("rank {rank} has no port: the highest is 65535");
        bad(ENV_LINK, &link.to_string(), problem)
    })?;
    Base::open(&counted).map(Some)
}

/// An address of this host that other hosts reach, as far as its routes tell.
fn own_ip() -> IpAddr {
    // The address is one for documentation (RFC 5737): the default route leads there.
    let by_route = ip_towards(SocketAddr::from(([192, 0, 2, 1], 9)));
    let by_table = || local_ip(&std::fs::read_to_string("/proc/net/fib_trie").ok()?);
    by_route
        .ok()
        .or_else(|| by_table().map(IpAddr::V4))
        .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// The first address of this host that is not of loopback, in the kernel's table of routes: an address and, below it, `/32 host LOCAL`.
fn local_ip(table: &str) -> Option<Ipv4Addr> {
    let mut lines = table.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        let addr = line.strip_prefix("|-- ").and_then(|addr| addr.parse().ok());
        let is_local = lines.peek().is_some_and(|next| *next == "/32 host LOCAL");
        if let Some(addr) = addr.filter(|addr: &Ipv4Addr| is_local && !addr.is_loopback()) {
            return Some(addr);
        }
    }
    None
}

/// What tells hosts apart: the boot of the kernel, and the network namespace, to which the names belong by which nodes of a host meet.
fn host_identity() -> io::Result<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let network = std::fs::read_link("/proc/self/ns/net")?;
    let network = network.to_string_lossy();
    let number: String = network.chars().filter(char::is_ascii_digit).collect();
    Ok(format!("{}.{number}", boot.trim()))
}

/// What a rank states.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stated {
    host: String,
    addr: Option<LinkAddr>,
}

impl Stated {
    fn write(&self) -> String {
        let addr = match self.addr {
            Some(LinkAddr::Inet(addr)) => format!("udp/{addr}"),
            Some(LinkAddr::Ether(mac)) => format!("ether/{mac}"),
            _ => "shm/".to_owned(),
        };
        format!("1/{}/{addr}", self.host)
    }

    fn read(rank: u32, text: &str) -> io::Result<Self> {
        let read = || {
            let mut parts = text.splitn(4, '/');
            let (version, host) = (parts.next()?, parts.next()?);
            let (kind, addr) = (parts.next()?, parts.next()?);
            let addr = match kind {
                "udp" => Some(LinkAddr::Inet(addr.parse().ok()?)),
                "ether" => Some(LinkAddr::Ether(addr.parse().ok()?)),
                "shm" if addr.is_empty() => None,
                _ => return None,
            };
            let is_sound = version == "1" && !host.is_empty();
            is_sound.then(|| Self {
                host: host.to_owned(),
                addr,
            })
        };
        let stated = if text.len() <= STATED_BYTES_MAX {
            read()
        } else {
            None
        };
        stated.ok_or_else(|| {
            io::Error::other(format!(
                "what rank {rank} states is not understood; are all programs of one version?"
            ))
        })
    }
}

/// Reads a text as what another rank states, as a service's answer, and as a table of routes: for fuzz targets. What a rank states is read again as it was
/// written. Returns whether it is a statement.
#[doc(hidden)]
pub fn is_understood(text: &str) -> bool {
    let _ = (pmi::is_answer(text), local_ip(text));
    let Ok(stated) = Stated::read(0, text) else {
        return false;
    };
    let again = Stated::read(0, &stated.write());
    assert_eq!(again.ok(), Some(stated), "{text}");
    true
}

fn membership_of(rank: u16, all: &[Stated]) -> Result<Membership, OpenError> {
    let member = |(id, stated): (u16, &Stated)| Member {
        id: NodeId(id),
        name: format!("rank {id}"),
        // Without an address it is reached over shared memory, if at all.
        addr: stated.addr.unwrap_or(LinkAddr::Local(id)),
    };
    let members = (0..=u16::MAX).zip(all).map(member).collect();
    let membership = Membership {
        hosts: shared_hosts(all.iter().map(|stated| stated.host.as_str())),
        ..Membership::of(NodeId(rank), members)
    };
    membership.check()?;
    Ok(membership)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stated(host: &str, addr: &str) -> Stated {
        Stated {
            host: host.to_owned(),
            addr: addr.parse().ok().map(LinkAddr::Inet),
        }
    }

    /// A statement is read as it was written; anything else is refused in one line that names the rank.
    #[test]
    fn statements_are_read_and_written() {
        let mac = LinkAddr::Ether(tsumuji_link::ether::MacAddr([2, 0, 0, 0, 0, 7]));
        for one in [
            stated("a", "10.0.0.1:7000"),
            stated("b.3", "[fe80::1]:1"),
            stated("c", ""),
            Stated {
                host: "d".to_owned(),
                addr: Some(mac),
            },
        ] {
            assert_eq!(Stated::read(3, &one.write()).expect("sound"), one);
        }
        let long = format!("1/{}/shm/", "x".repeat(STATED_BYTES_MAX));
        for text in [
            "",
            "1",
            "2/a/shm/",
            "1//shm/",
            "1/a/udp/",
            "1/a/udp/host:1",
            "1/a/tcp/1",
            "1/a/shm/x",
            &long,
        ] {
            let error = Stated::read(3, text).expect_err(text).to_string();
            assert!(error.contains("rank 3") && !error.contains('\n'), "{error}");
        }
    }

    /// Over UDP an interface stands for its own address; what is neither an interface nor an address is refused.
    #[test]
    fn interfaces_stand_for_addresses() {
        let ip_of =
            |name: &str| Ok::<_, io::Error>((name == "eth1").then(|| IpAddr::from([10, 0, 0, 7])));
        let read = |text: &str| {
            let link = read_link(text, ip_of).map(|link| link.to_string());
            link.map_err(|error| error.to_string())
        };
        for (text, link) in [
            ("udp:eth1", "udp:10.0.0.7:0"),
            ("udp:eth1:7000", "udp:10.0.0.7:7000"),
            ("udp:10.0.0.1:7", "udp:10.0.0.1:7"),
            ("udp", "udp"),
            ("packet:eth1", "packet:eth1"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(link));
        }
        for (text, why) in [
            ("udp:eth2", "no interface `eth2`"),
            ("udp:", "unknown link"),
            ("udp:10.0.0.1", "unknown link"),
            ("udp:[::1]", "unknown link"),
            ("udp:eth1:x", "unknown link"),
            ("udp:eth1:70000", "unknown link"),
            ("udp:eth1:7:8", "unknown link"),
            ("tcp:eth1", "unknown link"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(why), "{error}");
        }
        assert!(read_link("udp:eth1", |_| Err(io::ErrorKind::Other.into())).is_err());
    }

    /// The table has networks, broadcasts and loopback beside the address that is looked for.
    #[test]
    fn the_own_address_is_in_the_table() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     +-- 10.77.0.0/24 2 0 2\n        |-- 10.77.0.0\n           /24 link UNICAST\n        \
            |-- 127.0.0.1\n           /32 host LOCAL\n        |-- 10.77.0.1\n           /32 host LOCAL\n        |-- 10.77.0.255\n           /32 link BROADCAST\n";
        assert_eq!(local_ip(table), Some(Ipv4Addr::new(10, 77, 0, 1)));
        for none in [
            "",
            "|-- ",
            "|-- x\n/32 host LOCAL",
            "|-- 127.0.0.1\n/32 host LOCAL",
        ] {
            assert_eq!(local_ip(none), None);
        }
    }

    /// Ranks with one host's identity share its number; others have none.
    #[test]
    fn ranks_are_grouped_by_host() {
        let all = [
            stated("a", "10.0.0.1:1"),
            stated("b", "10.0.0.2:1"),
            stated("a", "10.0.0.1:2"),
            stated("c", "10.0.0.3:1"),
        ];
        let membership = membership_of(2, &all).expect("sound");
        assert_eq!(membership.hosts, [Some(0), None, Some(0), None]);
        let twice = [stated("a", "10.0.0.1:1"), stated("b", "10.0.0.1:1")];
        assert!(membership_of(0, &twice).is_err());
    }

    /// The host's identity is the same for all of its processes, and has no character that a key-value space could mistake.
    #[test]
    fn hosts_have_an_identity() {
        let identity = host_identity().expect("proc is there");
        assert_eq!(identity, host_identity().expect("again"));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        assert!(
            identity.len() > 20 && identity.chars().all(is_plain),
            "{identity}"
        );
    }
}
