//! The address database: ids and their addresses, from a text file or put together by the program.
//!
//! ```text
//! # id  address                 Ethernet address, or its host's name in /etc/ethers
//! 0     10.0.0.1:7000
//! 1     pc2.lab:7000            02:00:00:00:00:02
//! 7     packet:eth1             pc7
//! ```
//!
//! An address is `HOST:PORT`, `udp:HOST:PORT`, `HOST` (with the port given at opening), an Ethernet address, or a link of raw Ethernet:
//! `packet:INTERFACE`, `xdp:INTERFACE`, `dpdk:DEVICE`, `relay:NAME`. Ids are sparse; every process must have the same set, because nodes are numbered in their
//! order.
//!
//! The text may hold anything: its length and its lines are bounded, and errors name their line.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use tsumuji_link::ether::MacAddr;
use tsumuji_node::any_link::Base;
use tsumuji_node::link_spec::LinkSpec;
use tsumuji_node::{
    Endpoint, HostNode, InterfaceName, LinkAddr, Member, Membership, NodeId, Options, endpoint_on,
    text_file,
};

use crate::failure::Failure;

/// Larger files are refused: 65,536 lines take less.
const FILE_LIMIT_BYTES: u64 = 16 << 20;
/// Limit of an address in bytes: a host's name has at most 253, a DPDK device 200.
const ADDRESS_LIMIT_BYTES: usize = 300;

/// Ids and their addresses.
#[derive(Debug, Clone, Default)]
pub(crate) struct AddressMap {
    entries: BTreeMap<u16, Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    address: String,
    /// An Ethernet address, or the name of a host in `/etc/ethers`.
    station: Option<String>,
}

/// The link that the opener asks for, over what the database says.
#[derive(Debug, Clone, Default)]
pub(crate) enum Wanted {
    /// The link of each entry.
    #[default]
    Stated,
    /// This link of raw Ethernet, with the Ethernet addresses in the entries.
    Raw(LinkSpec),
    /// UDP, with the own address if given.
    Udp(Option<std::net::SocketAddr>),
}

impl Wanted {
    /// Whether this text names a link, rather than a host.
    pub(crate) fn names_link(text: &str) -> bool {
        let kind = text.split(':').next().unwrap_or_default();
        ["shm", "udp", "packet", "xdp", "dpdk", "relay"].contains(&kind)
    }

    /// Parses the name of a link.
    pub(crate) fn read(link: &str) -> Result<Self, String> {
        let spec: LinkSpec = link.parse().map_err(|error| format!("{error}"))?;
        match spec {
            LinkSpec::Shm => Err(
                "shared memory has no addresses: start the processes by `tsumuji launch --link shm`, or open it by its descriptor".to_owned(),
            ),
            LinkSpec::Udp(own) => Ok(Self::Udp(own)),
            LinkSpec::Multicast { .. } => Err(format!(
                "link `{link}` is for nodes of a launch or of a hosts file; take udp:ADDRESS:PORT"
            )),
            LinkSpec::Packet(None) | LinkSpec::Xdp(None) => {
                Err(format!("link `{link}` needs an interface, for example `{link}:eth1`"))
            }
            raw => Ok(Self::Raw(raw)),
        }
    }
}

impl AddressMap {
    /// Reads and checks a file.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::open(
                format!("{}: {error}", path.display()),
                error.raw_os_error().unwrap_or(libc::EIO),
            )
        };
        let text = text_file::read(path, FILE_LIMIT_BYTES).map_err(failed)?;
        let text = text.ok_or_else(|| {
            Failure::open(
                format!(
                    "{}: an address database has at most {FILE_LIMIT_BYTES} bytes",
                    path.display()
                ),
                libc::EFBIG,
            )
        })?;
        Self::parse(&text).map_err(|(line, problem)| {
            Failure::open(
                format!("{}:{line}: {problem}", path.display()),
                libc::EINVAL,
            )
        })
    }

    /// Parses and checks a text; an error is a line, from 1, and what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut address_map = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let accepted = "accepted is `ID ADDRESS`, and after it the Ethernet address where raw Ethernet is used";
            let (id, rest) = line
                .split_once(char::is_whitespace)
                .ok_or_else(|| (number, format!("an id without address; {accepted}")))?;
            let id: i64 = id
                .parse()
                .map_err(|_| (number, format!("the id is no number; {accepted}")))?;
            address_map
                .add(id, rest)
                .map_err(|problem| (number, problem))?;
        }
        Ok(address_map)
    }

    /// Adds one id; `address` is written as in a file after the id.
    pub(crate) fn add(&mut self, id: i64, address: &str) -> Result<(), String> {
        let id = u16::try_from(id).map_err(|_| format!("id {id}: accepted are 0 to 65535"))?;
        let mut words = address.split_whitespace();
        let (first, station, more) = (words.next(), words.next(), words.next());
        let Some(first) = first else {
            return Err(format!("id {id} has no address"));
        };
        if more.is_some() {
            return Err(format!(
                "id {id}: more than an address and an Ethernet address"
            ));
        }
        if address.len() > ADDRESS_LIMIT_BYTES
            || address.chars().any(|c| c.is_control() && c != '\t')
        {
            return Err(format!(
                "id {id}: an address has at most {ADDRESS_LIMIT_BYTES} bytes, none of them a control character"
            ));
        }
        if self.has(id) {
            return Err(format!("id {id} is there twice"));
        }
        let entry = Entry {
            address: first.to_owned(),
            station: station.map(str::to_owned),
        };
        self.entries.insert(id, entry);
        Ok(())
    }

    /// Replaces the address of this process.
    pub(crate) fn state_own(&mut self, id: u16, address: &str) -> Result<(), String> {
        let station = self.entries.remove(&id).and_then(|entry| entry.station);
        let address = match station {
            Some(station) => format!("{address} {station}"),
            None => address.to_owned(),
        };
        self.add(id.into(), &address)
    }

    /// Whether there is an entry for this id.
    pub(crate) fn has(&self, id: u16) -> bool {
        self.entries.contains_key(&id)
    }

    /// The ids, ascending.
    pub(crate) fn ids(&self) -> Vec<u16> {
        self.entries.keys().copied().collect()
    }

    /// Addresses of all entries, in order of ids; the error names the first entry without a usable one.
    fn hosts(&self, wanted: &Wanted, port: Option<u16>) -> Result<Vec<HostNode>, String> {
        self.entries
            .iter()
            .map(|(id, entry)| {
                entry
                    .host(*id, wanted, port)
                    .map_err(|problem| format!("id {id}: {problem}"))
            })
            .collect()
    }

    /// Opens the endpoint of the process with id `me`. `port`: for addresses without one.
    pub(crate) fn open(
        &self,
        me: u16,
        wanted: &Wanted,
        port: Option<u16>,
        options: Options,
    ) -> Result<Endpoint, Failure> {
        let invalid = |problem: String| Failure::open(problem, libc::EINVAL);
        let place = self
            .ids()
            .binary_search(&me)
            .map_err(|_| invalid(format!("id {me} is not in the address database")))?;
        let mut hosts = self.hosts(wanted, port).map_err(invalid)?;
        if let Wanted::Udp(Some(own)) = wanted {
            hosts[place].link = LinkSpec::Udp(Some(*own));
            hosts[place].addr = LinkAddr::Inet(*own);
        }
        let base = Base::open(&hosts[place].link)?;
        let members = (0..=u16::MAX)
            .zip(self.entries.keys())
            .zip(&hosts)
            .map(|((node, id), host)| Member {
                id: NodeId(node),
                name: format!("node {id}"),
                addr: host.addr,
            })
            .collect();
        let me = NodeId(place as u16); // at most as many as 16-bit ids
        let membership = Membership::of(me, members);
        Ok(endpoint_on(base, membership, options)?)
    }
}

impl Entry {
    fn host(&self, id: u16, wanted: &Wanted, port: Option<u16>) -> Result<HostNode, String> {
        let name = self.station.clone().unwrap_or_else(|| format!("node {id}"));
        let own_mac = self.address.parse::<MacAddr>().ok();
        let mac = own_mac.or_else(|| self.station.as_deref().and_then(|text| text.parse().ok()));
        if let Wanted::Raw(link) = wanted {
            return HostNode::read(&name, &link.to_string(), mac);
        }
        let is_udp = matches!(wanted, Wanted::Udp(_));
        if self.address == "shm" {
            return Err("shared memory has no addresses: start the processes by `tsumuji launch --link shm`".to_owned());
        }
        if let Some(mac) = own_mac {
            if is_udp {
                return Err(
                    "only an Ethernet address is stated; link `udp` needs HOST:PORT".to_owned(),
                );
            }
            return Ok(HostNode {
                host: name,
                // Its address as a peer; the process itself must name the interface.
                link: LinkSpec::Packet(None),
                addr: LinkAddr::Ether(mac),
                interface: None::<InterfaceName>,
                ip: None,
                mac: Some(mac),
                slot: 0,
                slots: 1,
                device: None,
                via: None,
            });
        }
        let is_raw = ["packet:", "xdp:", "dpdk:", "relay:"]
            .iter()
            .any(|kind| self.address.starts_with(kind));
        if is_raw {
            if is_udp {
                return Err(format!("`{}` is not reached by link `udp`", self.address));
            }
            return HostNode::read(&name, &self.address, mac);
        }
        let inet = self.address.strip_prefix("udp:").unwrap_or(&self.address);
        let has_port = inet.parse::<IpAddr>().is_err()
            && inet
                .rsplit_once(':')
                .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let inet = match (has_port, port) {
            (true, _) => inet.to_owned(),
            (false, None) => return Err(format!("`{inet}` has no port; write {inet}:7000")),
            (false, Some(port)) if inet.contains(':') => format!("[{inet}]:{port}"),
            (false, Some(port)) => format!("{inet}:{port}"),
        };
        HostNode::read(&name, &format!("udp:{inet}"), mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addrs(
        address_map: &AddressMap,
        wanted: &str,
        port: Option<u16>,
    ) -> Result<Vec<String>, String> {
        let wanted = if wanted.is_empty() {
            Wanted::Stated
        } else {
            Wanted::read(wanted)?
        };
        let hosts = address_map.hosts(&wanted, port)?;
        Ok(hosts
            .iter()
            .map(|host| format!("{} {}", host.link, host.addr))
            .collect())
    }

    /// Each form of address is understood; nodes are numbered in order of ids.
    #[test]
    fn addresses_are_read() {
        let address_map = AddressMap::parse(
            "# comment\n\n9 127.0.0.1:7000 # one\n2\tudp:127.0.0.1:7001 02:00:00:00:00:02\n\
             30 127.0.0.1\n31 ::1\n40 packet:eth1 02:00:00:00:00:04\n41 02:00:00:00:00:05\n",
        )
        .expect("sound");
        assert_eq!(address_map.ids(), [2, 9, 30, 31, 40, 41]);
        assert_eq!(
            addrs(&address_map, "", Some(99)).expect("hosts"),
            [
                "udp:127.0.0.1:7001 127.0.0.1:7001",
                "udp:127.0.0.1:7000 127.0.0.1:7000",
                "udp:127.0.0.1:99 127.0.0.1:99",
                "udp:[::1]:99 [::1]:99",
                "packet:eth1 02:00:00:00:00:04",
                "packet 02:00:00:00:00:05",
            ]
        );
        let error = addrs(&address_map, "", None).expect_err("no port");
        assert!(error.contains("id 30: `127.0.0.1` has no port"), "{error}");
    }

    /// One link for all: raw Ethernet with the stated Ethernet addresses, UDP with the stated hosts.
    #[test]
    fn one_link_for_all() {
        let address_map = AddressMap::parse(
            "0 127.0.0.1:7000 02:00:00:00:00:01\n1 127.0.0.1:7001 02:00:00:00:00:02\n",
        )
        .expect("sound");
        assert_eq!(
            addrs(&address_map, "xdp:eth3", None).expect("raw"),
            ["xdp:eth3 02:00:00:00:00:01", "xdp:eth3 02:00:00:00:00:02"]
        );
        assert_eq!(
            addrs(&address_map, "udp", None).expect("udp")[1],
            "udp:127.0.0.1:7001 127.0.0.1:7001"
        );
        let kinds = ["udp", "udp:h:1", "xdp:eth3", "dpdk:net_tap", "relay:eth3"];
        assert!(kinds.into_iter().all(Wanted::names_link));
        assert!(
            !["127.0.0.1", "pc1", "fe80::1"]
                .into_iter()
                .any(Wanted::names_link)
        );
        for (link, why) in [
            ("shm", "tsumuji launch"),
            ("packet", "interface"),
            ("x", "unknown link"),
        ] {
            let error = addrs(&address_map, link, None).expect_err(link);
            assert!(error.contains(why), "{error}");
        }
    }

    proptest::proptest! {
        /// Any text is accepted, or refused with one of its lines; it gives no more ids than lines.
        #[test]
        fn any_text_is_read_or_refused(text in "([0-9 \\t\\-a-f:.#\\n]|\\PC){0,200}") {
            match AddressMap::parse(&text) {
                Ok(address_map) => proptest::prop_assert!(address_map.ids().len() <= text.lines().count()),
                Err((line, problem)) => {
                    proptest::prop_assert!((1..=text.lines().count()).contains(&line));
                    proptest::prop_assert!(!problem.is_empty() && !problem.contains('\n'));
                }
            }
        }
    }

    /// Invalid texts are refused with their line; nothing panics.
    #[test]
    fn unsound_texts_are_refused() {
        for (text, line, why) in [
            ("0", 1, "without address"),
            ("\nx 127.0.0.1:1", 2, "no number"),
            ("-1 127.0.0.1:1", 1, "accepted are 0 to 65535"),
            ("70000 127.0.0.1:1", 1, "accepted are 0 to 65535"),
            ("0 127.0.0.1:1\n0 127.0.0.1:2", 2, "twice"),
            ("0 127.0.0.1:1 02:00:00:00:00:01 more", 1, "more than"),
            ("0 \u{1}", 1, "control"),
        ] {
            let (at, problem) = AddressMap::parse(text).expect_err(text);
            assert!(
                at == line && problem.contains(why),
                "{text:?}: {at}: {problem}"
            );
        }
        let long = format!("0 {}", "a".repeat(400));
        assert!(AddressMap::parse(&long).is_err());
        for address in [
            "0.0.0.0:1",
            "127.0.0.1:0",
            "224.0.0.1:5",
            "udp:",
            ":",
            "packet:",
            "[::1",
            "a b",
        ] {
            let mut address_map = AddressMap::default();
            let refused = address_map.add(0, address).is_err()
                || address_map.hosts(&Wanted::Stated, Some(1)).is_err();
            assert!(refused, "{address}");
        }
    }
}
