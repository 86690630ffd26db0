//! Hosts of a testbed, links in each of them, and endpoints on these. Needs root and the commands of `tsumuji-testbed`; says so where they are
//! missing.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tsumuji_link::packet::{Packet, PacketConfig};
use tsumuji_link::udp::{Udp, UdpConfig};
use tsumuji_link::xdp::{Xdp, XdpConfig};
use tsumuji_node::any_link::Base;
use tsumuji_node::{
    AnyLink, Endpoint, ImpairConfig, LinkAddr, Member, Membership, NodeId, Options,
};
use tsumuji_testbed::{Host, Spec, Testbed};

/// So many hosts, or `None` and the reason on standard error.
pub(crate) fn testbed(name: &str, hosts: u16, rate: Option<&str>) -> Option<Testbed> {
    if let Err(why) = tsumuji_testbed::check_rights() {
        eprintln!("skipped: {why}");
        return None;
    }
    let name = format!("{name}{}", std::process::id());
    let mut spec = Spec::new(hosts).named(name.parse().expect("name"));
    spec.rate = rate.map(|rate| rate.parse().expect("rate"));
    match Testbed::up(&spec) {
        Ok(testbed) => Some(testbed),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// How hosts reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    Udp,
    Packet,
    Xdp,
}

/// A link of the host, or why there is none. A socket stays where it was opened: so a thread of its own goes there, and ends.
pub(crate) fn open(host: &Host, wire: Wire) -> Result<Base, String> {
    let netns = File::open(format!("/run/netns/{}", host.netns())).expect("namespace");
    thread::scope(|scope| {
        let opening = scope.spawn(move || {
            move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("enter");
            match wire {
                Wire::Udp => {
                    let addr = SocketAddr::new(host.ip().into(), 7000);
                    let link = Udp::bind(addr, UdpConfig::default());
                    link.map(Base::Udp).map_err(|why| why.to_string())
                }
                Wire::Packet => {
                    let link = Packet::open(host.interface(), PacketConfig::default());
                    link.map(Base::Packet).map_err(|why| why.to_string())
                }
                Wire::Xdp => {
                    let link = Xdp::open(host.interface(), XdpConfig::default());
                    link.map(Base::Xdp).map_err(|why| why.to_string())
                }
            }
        });
        opening.join().expect("opened")
    })
}

pub(crate) fn endpoint(
    base: Base,
    id: NodeId,
    addrs: &[LinkAddr; 2],
    impair: Option<ImpairConfig>,
    options: &Options,
) -> Endpoint {
    let members = [NodeId(0), NodeId(1)].map(|id| Member {
        id,
        name: id.to_string(),
        addr: addrs[usize::from(id.0)],
    });
    let membership = Membership::of(id, members.into());
    let link = AnyLink::open(base, impair, None).expect("link");
    Endpoint::new(link, membership, options.clone()).expect("endpoint")
}
