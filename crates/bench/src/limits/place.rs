//! Places of a bare exchange: this host, or hosts of a testbed.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tsumuji_node::HostNode;

/// The place of one end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// File of its network namespace; `None`: ours.
    pub netns: Option<PathBuf>,
    /// Its address.
    pub ip: Ipv4Addr,
    /// Its interface.
    pub interface: String,
}

impl Place {
    /// Both ends here, over the loopback interface.
    pub const LOOPBACK: [Self; 2] = [Self::here(), Self::here()];

    const fn here() -> Self {
        Self {
            netns: None,
            ip: Ipv4Addr::LOCALHOST,
            interface: String::new(),
        }
    }

    /// The place of a node whose command leads into a network namespace of this machine.
    pub fn of_node(node: &HostNode) -> Option<Self> {
        let via: Vec<&str> = node.via.iter().flatten().map(String::as_str).collect();
        let (["ip", "netns", "exec", name], Some(IpAddr::V4(ip))) = (&via[..], node.ip) else {
            return None;
        };
        let interface = node.interface.as_ref();
        Some(Self {
            netns: Some(Path::new("/run/netns").join(name)),
            ip,
            interface: interface.map_or_else(String::new, |name| name.as_str().to_owned()),
        })
    }

    /// Runs `open` in that place, on a thread of its own, which then ends. Sockets opened there stay in that namespace when other threads use them.
    pub fn enter<T: Send, E: Send + From<io::Error>>(
        &self,
        open: impl FnOnce() -> Result<T, E> + Send,
    ) -> Result<T, E> {
        let Some(netns) = &self.netns else {
            return open();
        };
        let netns = File::open(netns)?;
        std::thread::scope(|scope| {
            let opening = scope.spawn(move || {
                move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
                    .map_err(io::Error::from)?;
                open()
            });
            opening.join().expect("opening does not panic")
        })
    }
}

/// The hosts of a testbed.
pub fn of_testbed(testbed: &tsumuji_testbed::Testbed) -> Vec<Place> {
    let place = |host: &tsumuji_testbed::Host| Place {
        netns: Some(PathBuf::from("/run/netns").join(host.netns())),
        ip: host.ip(),
        interface: host.interface().to_owned(),
    };
    testbed.hosts().iter().map(place).collect()
}
