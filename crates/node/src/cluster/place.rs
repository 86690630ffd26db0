//! Where each node of an entry is reached, and over another link than the file states: the link that it opens, and its address for the others.

use std::net::SocketAddr;
use std::path::Path;

use tsumuji_link::LinkAddr;
use tsumuji_link::dpdk::DpdkSpec;
use tsumuji_link::ether::{ETHERS_PATH, Ethers, MacAddr};

use super::HostNode;
use crate::link_spec::{LinkSpec, Station, counted_up};

/// Default port of `udp`, if only an address is known; node *i* takes this + *i*.
const PORT: u16 = 7000;
/// Most nodes of one entry: more than any host has cores.
const SLOTS_MAX: u16 = 1024;
/// How a node is reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) link: LinkSpec,
    pub(super) addr: LinkAddr,
    /// The device behind the relay that `link` leads to.
    pub(super) device: Option<LinkSpec>,
}

impl Place {
    pub(super) fn of(link: LinkSpec, addr: LinkAddr) -> Self {
        Self {
            link,
            addr,
            device: None,
        }
    }

    /// Place of node `number` of `slots` on an interface with address `mac`; slots count from that of `link`. Several share a device by a relay.
    pub(super) fn in_slot(
        link: LinkSpec,
        mac: MacAddr,
        (number, slots): (u16, u16),
    ) -> Result<Self, String> {
        let first = match link {
            LinkSpec::Packet(Some(station)) | LinkSpec::Relay(station) => station.slot,
            _ => 0,
        };
        let slot = u8::try_from(u16::from(first) + number).unwrap_or(u8::MAX);
        let mac = mac.of_slot(slot).ok_or_else(|| {
            format!(
                "field `slots`: at most {} nodes share an interface",
                MacAddr::SLOTS
            )
        })?;
        let addr = LinkAddr::Ether(mac);
        Ok(match link {
            LinkSpec::Packet(Some(station)) => {
                let station = Station { slot, ..station };
                Self::of(LinkSpec::Packet(Some(station)), addr)
            }
            LinkSpec::Relay(station) => {
                Self::of(LinkSpec::Relay(Station { slot, ..station }), addr)
            }
            device if slots <= 1 => Self::of(device, addr),
            device => {
                let interface = device.relay_name().ok_or_else(|| {
                    format!(
                        "field `slots`: {slots} nodes cannot share `{device}`: it has one process at a time; take udp, packet or xdp"
                    )
                })?;
                let link = LinkSpec::Relay(Station { interface, slot });
                let device = Some(device);
                Self { link, addr, device }
            }
        })
    }
}

/// The nodes of one entry.
pub(super) fn in_slots(host: &HostNode, slots: u16) -> Result<Vec<HostNode>, String> {
    if !(1..=SLOTS_MAX).contains(&slots) {
        return Err(format!(
            "field `slots`: {slots}: accepted are 1 to {SLOTS_MAX}"
        ));
    }
    let slot = |number: u16| {
        let place = match (host.link, host.addr) {
            (LinkSpec::Udp(Some(addr)), _) => {
                let addr = counted_up(addr, number).ok_or_else(|| {
                    format!(
                        "field `addr`: no {slots} ports follow {}; the highest is 65535",
                        addr.port()
                    )
                })?;
                Place::of(LinkSpec::Udp(Some(addr)), LinkAddr::Inet(addr))
            }
            (link, LinkAddr::Ether(mac)) => Place::in_slot(link, mac, (number, slots))?,
            (link, addr) => Place::of(link, addr),
        };
        let mut node = host.clone();
        (node.slot, node.slots) = (number, slots);
        node.take(place);
        Ok(node)
    };
    (0..slots).map(slot).collect()
}

/// How `host` is reached over a link of this kind.
pub(super) fn on_link(host: &HostNode, node: usize, link: &LinkSpec) -> Result<Place, String> {
    let slot = (host.slot, host.slots);
    match link {
        LinkSpec::Multicast { own: None, group } => {
            let place = on_link(host, node, &LinkSpec::Udp(None))?;
            let LinkAddr::Inet(addr) = place.addr else {
                return Ok(place);
            };
            let link = LinkSpec::Multicast {
                own: Some(addr),
                group: *group,
            };
            Ok(Place::of(link, place.addr))
        }
        LinkSpec::Udp(None) => {
            if let LinkAddr::Inet(addr) = host.addr {
                return Ok(Place::of(LinkSpec::Udp(Some(addr)), host.addr));
            }
            let ip = host.ip.ok_or("needs the field `ip`")?;
            let port = u16::try_from(node)
                .ok()
                .and_then(|node| PORT.checked_add(node));
            let addr = SocketAddr::new(ip, port.ok_or("has no port left for this node")?);
            Ok(Place::of(LinkSpec::Udp(Some(addr)), LinkAddr::Inet(addr)))
        }
        LinkSpec::Packet(_) | LinkSpec::Xdp(_) | LinkSpec::Relay(_) => {
            let interface = link.interface().or(host.interface);
            let interface = interface.ok_or("needs the field `interface`")?;
            let mac = station(host.mac, &host.host, Path::new(ETHERS_PATH))?;
            let station = Station { interface, slot: 0 };
            let link = match link {
                LinkSpec::Xdp(_) => LinkSpec::Xdp(Some(interface)),
                LinkSpec::Relay(_) => LinkSpec::Relay(station),
                _ => LinkSpec::Packet(Some(station)),
            };
            Place::in_slot(link, mac, slot)
        }
        LinkSpec::Dpdk(spec) => {
            let mac = station(host.mac, &host.host, Path::new(ETHERS_PATH))?;
            let spec = if spec.is_on_interface() && spec.interface().is_none() {
                let interface = host.interface.ok_or("needs the field `interface`")?;
                let with = spec.with("iface", interface.as_str());
                with.ok_or("is too long with its interface: a name has 200 bytes")?
            } else {
                *spec
            };
            Place::in_slot(LinkSpec::Dpdk(spec), mac, slot)
        }
        LinkSpec::Udp(Some(_)) | LinkSpec::Multicast { .. } | LinkSpec::Shm => Err(
            "cannot be taken for all hosts: accepted are `udp`, `udp+multicast`, `packet`, `xdp`, `dpdk:DEVICE` and `relay:NAME`"
                .to_owned(),
        ),
    }
}

/// The end of a memif connection that `host` opens, for two network namespaces of this machine: they share files, so the socket has a path (an
/// abstract one would belong to one namespace), and memory.
pub(super) fn meet_here(
    host: &HostNode,
    (node, nodes): (usize, usize),
    spec: &DpdkSpec,
    path: &Path,
) -> Result<Place, String> {
    let via = host.via.as_deref().unwrap_or_default();
    let is_here =
        matches!(via, [ip, netns, exec, _] if ip == "ip" && netns == "netns" && exec == "exec");
    if !is_here {
        return Err("joins processes of one host; take a device that leaves it, for example `dpdk:net_af_packet`".to_owned());
    }
    let mac = station(host.mac, &host.host, Path::new(ETHERS_PATH))?;
    let socket = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let socket = format!("{}.memif", socket.display());
    let index = u16::try_from(node).unwrap_or(u16::MAX);
    let long = || "is too long with its socket: a name has 200 bytes".to_owned();
    let end = spec
        .for_process(index, nodes, &socket)
        .map_err(|error| error.to_string())?;
    let end = match end.parameter("socket-abstract") {
        Some(_) => end,
        None => end.with("socket-abstract", "no").ok_or_else(long)?,
    };
    let end = end.with("mac", &mac.to_string()).ok_or_else(long)?;
    Ok(Place::of(LinkSpec::Dpdk(end), LinkAddr::Ether(mac)))
}

/// The Ethernet address of a host: as stated, or from `/etc/ethers`.
pub(super) fn station(
    stated: Option<MacAddr>,
    host: &str,
    ethers: &Path,
) -> Result<MacAddr, String> {
    if let Some(mac) = stated {
        return Ok(mac);
    }
    let found = Ethers::read(ethers).and_then(|ethers| ethers.resolve(host));
    found.map_err(|error| format!("needs the field `mac`, because {error}"))
}
