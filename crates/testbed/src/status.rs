//! State of a testbed, as the kernel reports it at its switch.
//!
//! Called by `Testbed::status`. A few commands are enough for any number of hosts: everything is read at the switch's ports.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::commands::{CommandError, Tool, ask};
use crate::impair::{self, Impairment};
use crate::spec::{BRIDGE, Mac, Name, Rate, port_id};
use crate::{Host, hosts_file};

/// State of a testbed.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Its name.
    pub name: Name,
    /// The file by which other commands know its hosts, if it exists.
    pub hosts_file: Option<PathBuf>,
    /// The namespace with the bridge.
    pub switch: String,
    /// Bytes of the largest IP packet.
    pub mtu: u32,
    /// Rate of every cable each way, if it is limited.
    pub rate: Option<Rate>,
    /// Hosts by number.
    pub hosts: Vec<HostStatus>,
}

/// State of one host.
#[derive(Debug, Clone, Serialize)]
pub struct HostStatus {
    /// Number of the host, from 0.
    pub id: u16,
    /// Its name.
    pub host: String,
    /// Its address.
    pub ip: Ipv4Addr,
    /// The address of its interface.
    pub mac: Mac,
    /// Its interface.
    pub interface: String,
    /// Its namespace.
    pub netns: String,
    /// Whether its cable is connected and both ends are up.
    pub up: bool,
    /// Impairment of frames that are sent to it.
    pub impairment: Impairment,
    /// Traffic so far.
    pub counters: Counters,
}

/// Traffic between a host and the switch, as the host sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Frames that the host sent.
    pub sent_frames: u64,
    /// Bytes that the host sent.
    pub sent_bytes: u64,
    /// Frames sent to the host.
    pub received_frames: u64,
    /// Bytes sent to the host.
    pub received_bytes: u64,
    /// Frames to the host that were lost by impairment.
    pub lost_on_purpose: u64,
    /// Frames to the host dropped at the switch's full queue.
    pub queue_overflows: u64,
}

#[derive(Deserialize)]
struct Interface {
    ifname: String,
    #[serde(default)]
    mtu: u32,
    #[serde(default)]
    operstate: String,
    #[serde(default)]
    stats64: Stats,
}

#[derive(Deserialize, Default)]
struct Stats {
    rx: Passed,
    tx: Passed,
}

#[derive(Deserialize, Default)]
struct Passed {
    bytes: u64,
    packets: u64,
}

#[derive(Deserialize)]
struct Qdisc {
    kind: String,
    dev: String,
    #[serde(default)]
    drops: u64,
    #[serde(default)]
    options: QdiscOptions,
}

#[derive(Deserialize, Default)]
struct QdiscOptions {
    /// In bytes per second.
    #[serde(default)]
    rate: u64,
}

/// Reads the state from the kernel.
pub(crate) fn status(name: &Name, hosts: &[Host]) -> Result<Status, CommandError> {
    let switch = name.switch();
    let interfaces: Vec<Interface> =
        ask(Tool::Ip, &switch, &["-json", "-statistics", "link", "show"])?;
    let qdiscs: Vec<Qdisc> = ask(
        Tool::Tc,
        &switch,
        &["-json", "-statistics", "qdisc", "show"],
    )?;
    let impaired = impair::current(name)?;

    let bridge = interfaces.iter().find(|one| one.ifname == BRIDGE);
    let mtu = bridge.map_or(0, |bridge| bridge.mtu);
    let rate = qdiscs
        .iter()
        .find(|one| one.kind == "tbf")
        .and_then(|one| Rate::from_bits_per_second(one.options.rate.saturating_mul(8)).ok());
    let ports: HashMap<u16, Interface> = interfaces
        .into_iter()
        .filter_map(|one| Some((port_id(&one.ifname)?, one)))
        .collect();
    let drops = |id: u16, kind: &str| {
        let here = |one: &&Qdisc| one.kind == kind && port_id(&one.dev) == Some(id);
        qdiscs.iter().filter(here).map(|one| one.drops).sum()
    };
    let hosts = hosts.iter().map(|host| {
        let id = host.id();
        let port = ports.get(&id);
        // Frames that the port receives are those the host has sent.
        let counters = port.map_or_else(Counters::default, |Interface { stats64, .. }| Counters {
            sent_frames: stats64.rx.packets,
            sent_bytes: stats64.rx.bytes,
            received_frames: stats64.tx.packets,
            received_bytes: stats64.tx.bytes,
            lost_on_purpose: drops(id, "clsact"),
            queue_overflows: drops(id, "tbf"),
        });
        HostStatus {
            id,
            host: host.name().to_owned(),
            ip: host.ip(),
            mac: host.mac(),
            interface: host.interface().to_owned(),
            netns: host.netns().to_owned(),
            up: port.is_some_and(|port| port.operstate == "UP"),
            impairment: impaired.get(&id).copied().unwrap_or_default(),
            counters,
        }
    });
    let hosts_file = hosts_file::path(name);
    Ok(Status {
        name: name.clone(),
        hosts_file: hosts_file.exists().then_some(hosts_file),
        switch: switch.clone(),
        mtu,
        rate,
        hosts: hosts.collect(),
    })
}
