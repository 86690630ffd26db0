//! The cluster file: the nodes of a cluster on several hosts, and their addresses.
//!
//! ```toml
//! [[node]]
//! id = 0
//! host = "pc1"
//! addr = "udp:10.0.0.1:7000"
//!
//! [[node]]
//! id = 1
//! host = "pc2"
//! addr = "udp:pc2.lab:7000"
//! ```
//!
//! Ids are 0, 1, 2 … without gap, in any order. `host` is the host's name (default: `node 0`). An address of `udp` may name a host, which is resolved
//! when the file is read. Read by `bootstrap::worker`, by programs that take `--hosts`, and by `launcher`.
//!
//! `slots = 8` makes eight nodes of an entry: over `udp` with ports counted up from the stated one, over `packet` with Ethernet addresses made from
//! that of the interface, as over `xdp` and `dpdk`, whose devices a relay has then (`bootstrap::relay`). Nodes are numbered in the order of the entries, all slots of one before those of the next. Nodes of one host (entries with
//! one `host` count, too) reach each other over shared memory.
//!
//! `addr = "packet:eth1"` (or `xdp:eth1`, `dpdk:net_af_packet,iface=eth1`, `dpdk:0000:03:00.0`) is raw Ethernet; the address of that interface is
//! `mac = "02:…"`, or the entry of `host` in `/etc/ethers`. A node may also state `interface`, `ip` and `mac`, so that another link can be chosen for
//! all (`over`), and `via = ["ssh", "-T", "pc2"]`, a command that runs another command there.

//! `multicast = "239.77.0.1:7000"` before the nodes, all of `udp`, lets broadcasts leave as one datagram to that group.

mod place;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, ToSocketAddrs};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use tsumuji_link::LinkAddr;
use tsumuji_link::ether::{ETHERS_PATH, MacAddr};
use tsumuji_proto::NodeId;

use self::place::{Place, in_slots, meet_here, on_link, station};
use crate::bootstrap::relay;
use crate::error::ClusterFileError;
use crate::link_spec::{InterfaceName, LinkSpec, read_group};
use crate::membership::{Member, Membership, shared_hosts};
use crate::text_file::{self, line_of};

/// Larger files are refused: 65,536 nodes take less.
const FILE_LIMIT_BYTES: u64 = 16 << 20;

/// Limit of words in a `via` command.
const VIA_WORDS_MAX: usize = 64;

/// A valid cluster file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterFile {
    members: Vec<Member>,
    hosts: Vec<HostNode>,
    key: Option<PathBuf>,
    /// The multicast group that the file states.
    group: Option<SocketAddrV4>,
}

/// One `[[node]]`: where it runs and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostNode {
    /// Name of its host.
    pub host: String,
    /// The link that it opens, with address or interface.
    pub link: LinkSpec,
    /// Its address for frames of other nodes.
    pub addr: LinkAddr,
    /// Interface for raw Ethernet, if stated.
    pub interface: Option<InterfaceName>,
    /// IP address for `udp`, if stated here or in `addr`.
    pub ip: Option<IpAddr>,
    /// Ethernet address of the interface, if stated.
    pub mac: Option<MacAddr>,
    /// Number of the node among those of its entry.
    pub slot: u16,
    /// How many nodes the entry has.
    pub slots: u16,
    /// The device behind the relay that `link` leads to, if this cluster's nodes may start that.
    pub device: Option<LinkSpec>,
    /// The command that runs a command on that host, if stated; empty: none is needed.
    pub via: Option<Vec<String>>,
}

impl HostNode {
    fn at(host: String, link: LinkSpec, addr: LinkAddr) -> Self {
        Self {
            host,
            link,
            addr,
            interface: link.interface(),
            ip: match addr {
                LinkAddr::Inet(addr) => Some(addr.ip()),
                _ => None,
            },
            mac: None,
            slot: 0,
            slots: 1,
            device: None,
            via: None,
        }
    }

    fn take(&mut self, place: Place) {
        (self.link, self.addr, self.device) = (place.link, place.addr, place.device);
    }

    /// The relay that the node needs, and may start.
    pub(crate) fn relay(&self) -> Option<relay::Wanted> {
        self.device.map(|device| relay::Wanted {
            link: device.to_string(),
            slots: self.slots,
        })
    }

    /// A node from a program's arguments: `udp:HOST:PORT`, or `packet:INTERFACE`, `xdp:INTERFACE`, `dpdk:DEVICE` with the Ethernet address `mac`, or
    /// that of `host` in `/etc/ethers`. The error says what is accepted.
    pub fn read(host: &str, addr: &str, mac: Option<MacAddr>) -> Result<Self, String> {
        let (link, addr) = read_addr(addr, mac, host, Path::new(ETHERS_PATH))?;
        let mut node = Self::at(host.to_owned(), link, addr);
        node.mac = mac;
        if let LinkAddr::Ether(mac) = addr {
            node.take(Place::in_slot(link, mac, (0, 1))?);
        }
        Ok(node)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    key: Option<PathBuf>,
    multicast: Option<Spanned<String>>,
    #[serde(default)]
    node: Vec<Spanned<RawNode>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    id: Spanned<u16>,
    slots: Option<Spanned<u16>>,
    #[serde(alias = "name")]
    host: Option<String>,
    addr: Spanned<String>,
    interface: Option<Spanned<String>>,
    ip: Option<Spanned<String>>,
    mac: Option<Spanned<String>>,
    via: Option<Spanned<Vec<String>>>,
}

/// A field that is not understood: its place, and what is accepted.
type Refusal = (Range<usize>, String);

fn optional<T>(
    name: &str,
    field: Option<&Spanned<String>>,
    accepted: &str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, Refusal> {
    let Some(field) = field else { return Ok(None) };
    let text = field.get_ref();
    let refused = || {
        (
            field.span(),
            format!("field `{name}`: `{text}`: accepted is {accepted}"),
        )
    };
    read(text).map(Some).ok_or_else(refused)
}

impl RawNode {
    fn check(self, id: u16, ethers: &Path) -> Result<HostNode, Refusal> {
        let host = self.host.unwrap_or_else(|| NodeId(id).to_string());
        let interface = optional(
            "interface",
            self.interface.as_ref(),
            "the name of a network interface, for example \"eth1\"",
            InterfaceName::new,
        )?;
        let ip = optional(
            "ip",
            self.ip.as_ref(),
            "an IP address, for example \"10.0.0.1\"",
            |text| text.parse::<IpAddr>().ok().filter(reaches_one),
        )?;
        let mac = optional(
            "mac",
            self.mac.as_ref(),
            "the address of one interface, for example \"02:00:00:00:00:01\"",
            |text| text.parse().ok().filter(|mac: &MacAddr| mac.is_station()),
        )?;
        if let Some(via) = &self.via {
            let words = via.get_ref();
            let sound = words.len() <= VIA_WORDS_MAX
                && words
                    .iter()
                    .all(|word| !word.is_empty() && !word.contains('\0'));
            if !sound {
                return Err((
                    via.span(),
                    format!(
                        "field `via`: accepted are up to {VIA_WORDS_MAX} words, none of them empty, for example [\"ssh\", \"-T\", \"pc2\"]"
                    ),
                ));
            }
        }
        let (link, addr) = read_addr(self.addr.get_ref(), mac, &host, ethers)
            .map_err(|problem| (self.addr.span(), problem))?;
        let mut node = HostNode::at(host, link, addr);
        node.interface = interface.or(node.interface);
        node.ip = ip.or(node.ip);
        node.mac = mac;
        node.via = self.via.map(Spanned::into_inner);
        Ok(node)
    }
}

impl ClusterFile {
    /// Reads and checks a file.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ClusterFileError> {
        let path = path.as_ref();
        Self::parse(&read_text(path)?, path)
    }

    /// Checks a file's text; `path` is for messages.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ClusterFileError> {
        Self::parse_with(text, path, (Path::new(ETHERS_PATH), None))
    }

    /// The same with `slots` nodes of each entry, whatever the file says.
    pub fn read_with_slots(path: impl AsRef<Path>, slots: u16) -> Result<Self, ClusterFileError> {
        let path = path.as_ref();
        Self::parse_with(
            &read_text(path)?,
            path,
            (Path::new(ETHERS_PATH), Some(slots)),
        )
    }

    fn parse_with(
        text: &str,
        path: &Path,
        (ethers, all_slots): (&Path, Option<u16>),
    ) -> Result<Self, ClusterFileError> {
        let error = |span: Option<Range<usize>>, problem: String| ClusterFileError::Content {
            path: path.to_owned(),
            line: line_of(text, span.map_or(0, |span| span.start)),
            problem,
        };
        let raw: RawFile = toml::from_str(text).map_err(|found| {
            let accepted = "accepted are `key`, `multicast` and [[node]] tables with `id`, `host`, `addr` and, if needed, `slots`, `interface`, `ip`, `mac`, `via`";
            error(
                found.span(),
                format!("{}; {accepted}", found.message().replace('\n', " ")),
            )
        })?;
        if raw.node.is_empty() {
            return Err(error(
                None,
                "no [[node]] in the file; at least one is needed".to_owned(),
            ));
        }
        let entries = raw.node.len();
        let mut hosts: Vec<Vec<HostNode>> = vec![Vec::new(); entries];
        let mut addrs = HashSet::new();
        for node in raw.node {
            let node = node.into_inner();
            let id = *node.id.get_ref();
            let Some(place) = hosts.get(usize::from(id)) else {
                let problem = format!(
                    "field `id`: {id} leaves a gap; the ids of {entries} entries are 0 to {}",
                    entries - 1
                );
                return Err(error(Some(node.id.span()), problem));
            };
            if !place.is_empty() {
                return Err(error(
                    Some(node.id.span()),
                    format!("field `id`: {id} is there twice"),
                ));
            }
            let addr_span = node.addr.span();
            let (slots, slots_span) = match (all_slots, &node.slots) {
                (Some(slots), _) => (slots, addr_span.clone()),
                (None, Some(slots)) => (*slots.get_ref(), slots.span()),
                (None, None) => (1, addr_span.clone()),
            };
            let host = node
                .check(id, ethers)
                .map_err(|(span, problem)| error(Some(span), problem))?;
            for slot in
                in_slots(&host, slots).map_err(|problem| error(Some(slots_span), problem))?
            {
                let problem = if !addrs.insert(slot.addr) {
                    format!("field `addr`: {} is there twice", slot.addr)
                } else if addrs.len() > usize::from(u16::MAX) {
                    format!(
                        "field `id`: more nodes than ids, of which there are {}",
                        u16::MAX
                    )
                } else {
                    hosts[usize::from(id)].push(slot);
                    continue;
                };
                return Err(error(Some(addr_span), problem));
            }
        }
        // There are as many places as entries, and none was taken twice, so all are taken.
        let mut file = Self::of(hosts.into_iter().flatten().collect());
        // The key file's path is relative to the cluster file.
        let folder = path.parent().unwrap_or(Path::new(""));
        file.key = raw.key.map(|key| folder.join(key));
        if let Some(stated) = raw.multicast {
            file.set_group(stated.get_ref())
                .map_err(|problem| error(Some(stated.span()), problem))?;
        }
        Ok(file)
    }

    fn of(hosts: Vec<HostNode>) -> Self {
        let members = (0..=u16::MAX).zip(&hosts).map(|(id, host)| Member {
            id: NodeId(id),
            name: host.host.clone(),
            addr: host.addr,
        });
        Self {
            members: members.collect(),
            hosts,
            key: None,
            group: None,
        }
    }

    fn set_group(&mut self, text: &str) -> Result<(), String> {
        let group = read_group(text).ok_or_else(|| {
            format!("field `multicast`: `{text}`: accepted is an IPv4 group with a port, for example \"239.77.0.1:7000\"")
        })?;
        self.group = Some(group);
        for host in &mut self.hosts {
            let LinkSpec::Udp(Some(addr @ SocketAddr::V4(_))) = host.link else {
                return Err(format!(
                    "field `multicast`: `{}` is at `{}`; accepted are nodes of `udp` with IPv4 addresses",
                    host.host, host.link
                ));
            };
            host.link = LinkSpec::Multicast {
                own: Some(addr),
                group: Some(group),
            };
        }
        Ok(())
    }

    /// The same nodes over another link: `udp` with the stated `ip` (or that of `addr`); `packet`, `xdp` and DPDK's virtual devices on an interface
    /// (`dpdk:net_af_packet`) with `interface`; a card at the same PCI address on each; `dpdk:net_memif` with a socket beside the file, if its hosts
    /// are two namespaces of this machine. `path` is that of the file.
    pub fn over(self, link: &LinkSpec, path: &Path) -> Result<Self, ClusterFileError> {
        let mut hosts = self.hosts;
        let nodes = hosts.len();
        let mut addrs = HashSet::new();
        for (node, host) in hosts.iter_mut().enumerate() {
            let found = match link {
                LinkSpec::Dpdk(spec) if spec.stays_on_host() => {
                    meet_here(host, (node, nodes), spec, path)
                }
                _ => on_link(host, node, link),
            };
            let found = found.and_then(|found| {
                let is_new = addrs.insert(found.addr);
                is_new.then_some(found).ok_or_else(|| {
                    "has one process at a time, and another node has its address; take udp or packet, with `slots`"
                        .to_owned()
                })
            });
            let found = found.map_err(|problem| ClusterFileError::Over {
                path: path.to_owned(),
                node,
                host: host.host.clone(),
                link: Box::new(*link),
                problem,
            })?;
            host.take(found);
        }
        // Without a stated group one is made from all addresses, which no other job has at the same time.
        let all = hosts.iter().map(|host| format!("{} ", host.addr));
        let all: String = all.collect();
        for host in &mut hosts {
            if let LinkSpec::Multicast { own, group } = host.link {
                let group = group.or(self.group);
                host.link = LinkSpec::Multicast { own, group }.grouped(all.bytes());
            }
        }
        let mut file = Self::of(hosts);
        (file.key, file.group) = (self.key, self.group);
        Ok(file)
    }

    /// Whether all nodes can meet: all by IP, or all by Ethernet addresses. `path` is for the error.
    pub fn check_links(&self, path: &Path) -> Result<(), ClusterFileError> {
        let by_ip = |node: &HostNode| matches!(node.addr, LinkAddr::Inet(_));
        let first = &self.hosts[0];
        let mut nodes = self.hosts.iter().enumerate();
        match nodes.find(|(_, node)| by_ip(node) != by_ip(first)) {
            None => Ok(()),
            Some((node, other)) => Err(ClusterFileError::Mixed {
                path: path.to_owned(),
                node,
                host: other.host.clone(),
                kind: other.link.kind(),
                first: first.link.kind(),
            }),
        }
    }

    /// The key file (`key = "lab.key"`, beside the cluster file) with which all frames are sealed.
    pub fn key(&self) -> Option<&Path> {
        self.key.as_deref()
    }

    /// The link's name as in `Endpoint::link_name`: `udp`, or `shm+udp` where nodes share a host.
    pub fn link_name(&self) -> String {
        let kind = self.hosts[0].link.kind();
        if self.shared_hosts().iter().any(Option::is_some) {
            format!("shm+{kind}")
        } else {
            kind.to_owned()
        }
    }

    fn shared_hosts(&self) -> Vec<Option<u16>> {
        shared_hosts(self.hosts.iter().map(|node| node.host.as_str()))
    }

    /// Where each node runs, in order of their ids.
    pub fn hosts(&self) -> &[HostNode] {
        &self.hosts
    }

    /// All nodes, in order of their ids.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The membership of node `me`; `path` is for the error if there is no such node.
    pub fn membership(&self, me: NodeId, path: &Path) -> Result<Membership, ClusterFileError> {
        if usize::from(me.0) >= self.members.len() {
            let last = self.members.len() - 1;
            return Err(ClusterFileError::NoSuchNode {
                path: path.to_owned(),
                node: me,
                last,
            });
        }
        self.check_links(path)?;
        Ok(Membership {
            hosts: self.shared_hosts(),
            ..Membership::of(me, self.members.clone())
        })
    }
}

fn read_text(path: &Path) -> Result<String, ClusterFileError> {
    let error = |source| ClusterFileError::Read {
        path: path.to_owned(),
        source,
    };
    let text = text_file::read(path, FILE_LIMIT_BYTES).map_err(error)?;
    text.ok_or_else(|| ClusterFileError::TooLarge {
        path: path.to_owned(),
        limit: FILE_LIMIT_BYTES,
    })
}

/// Whether it is the address of one host: neither unspecified nor multicast.
fn reaches_one(ip: &IpAddr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast()
}

fn read_addr(
    text: &str,
    mac: Option<MacAddr>,
    host: &str,
    ethers: &Path,
) -> Result<(LinkSpec, LinkAddr), String> {
    if let Some(link) = text
        .parse()
        .ok()
        .filter(|link: &LinkSpec| link.interface().is_some() || matches!(link, LinkSpec::Dpdk(_)))
    {
        let mac = station(mac, host, ethers)
            .map_err(|problem| format!("field `addr`: `{text}` {problem}"))?;
        return Ok((link, LinkAddr::Ether(mac)));
    }
    let addr = read_inet(text)?;
    Ok((LinkSpec::Udp(Some(addr)), LinkAddr::Inet(addr)))
}

fn read_inet(text: &str) -> Result<SocketAddr, String> {
    let accepted = "accepted is \"udp:ADDRESS:PORT\", for example \"udp:10.0.0.1:7000\", \"packet:INTERFACE\", \"xdp:INTERFACE\", \"dpdk:DEVICE\" or \"relay:NAME\"";
    let Some(rest) = text.strip_prefix("udp:") else {
        return Err(format!("field `addr`: `{text}`: {accepted}"));
    };
    let addr = match rest.parse::<SocketAddr>() {
        Ok(addr) => addr,
        Err(_) => match rest.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                let found = rest
                    .to_socket_addrs()
                    .map_err(|error| format!("field `addr`: host `{host}`: {error}"))?;
                let mut found: Vec<SocketAddr> = found.collect();
                found.sort_by_key(SocketAddr::is_ipv6); // version 4 first, like most clusters
                *found
                    .first()
                    .ok_or_else(|| format!("field `addr`: host `{host}` has no address"))?
            }
            _ => return Err(format!("field `addr`: `{text}`: {accepted}")),
        },
    };
    if addr.port() == 0 || !reaches_one(&addr.ip()) {
        return Err(format!(
            "field `addr`: `{text}`: peers cannot send to it; {accepted}"
        ));
    }
    Ok(addr)
}

#[cfg(test)]
mod tests;
