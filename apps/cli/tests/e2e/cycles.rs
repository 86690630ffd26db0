//! Real processes, killed by SIGKILL and started again and again over shared memory, UDP, packet sockets and AF_XDP.
//!
//! Four nodes: node 0 is the test, the others are this program started again. All talk to all without pause, in messages of many
//! sizes, and check each that comes: whole, in order, none twice, none missing between two that live on, none of a former life
//! after one of the present. Each tells node 0 whom it has heard. After every kill those that live on must go on hearing each
//! other; after every restart all must hear the new life, and it all of them, without being asked to look for it.
//!
//! Packet and XDP run in a network namespace that ends with the test's thread. Needs root for that; without, those are skipped.

use std::process::Command;

use crate::common;
use crate::segment;
use crate::talk::{self, NODES, Over, Place, cluster_file, run};
use tsumuji_link::shm::{ShmConfig, ShmJob};
use tsumuji_node::Congestion;

/// The test that a started process runs: there it becomes a worker, and ends.
const ENTRY: &str = "cycles::restarts_over_shared_memory";

/// A hundred deaths in shared memory: nobody is harmed, every new life joins, nothing stays.
#[test]
fn restarts_over_shared_memory() {
    talk::work_if_started();
    let job = ShmJob::create(NODES.into(), ShmConfig::for_nodes(NODES.into())).expect("create");
    let inode = rustix::fs::fstat(&job).expect("fstat").st_ino.to_string();
    run(
        &under(Congestion::Credit, Over::Shm(job)),
        100,
        1,
        |_, _| {},
    );
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    // Address, rights, offset, device, inode, name. The test beside this one has a job of its own.
    let ours = |line: &&str| line.split_whitespace().nth(4) == Some(&inode);
    assert_eq!(maps.lines().find(ours), None, "left mapped");
}

/// The same under the other congestion control.
#[test]
fn restarts_over_shared_memory_under_suci() {
    let job = ShmJob::create(NODES.into(), ShmConfig::for_nodes(NODES.into())).expect("create");
    run(&under(Congestion::SUCI, Over::Shm(job)), 30, 4, |_, _| {});
}

fn under(congestion: Congestion, over: Over) -> Place {
    Place {
        congestion,
        ..Place::new(over, ENTRY)
    }
}

/// An address of loopback that no other test has: by this process, and the test's first port.
fn own_addr(node: u16, port: u16) -> String {
    let pid = std::process::id();
    let (high, low) = (100 + (pid >> 16) % 100, (pid >> 8) & 255);
    format!("udp:127.{high}.{low}.{}:{}", 1 + (pid & 127), port + node)
}

/// Two hosts of two nodes: each life finds the memory of its host's nodes again, and the others over UDP.
#[test]
fn restarts_among_hosts() {
    let folder = tempfile::tempdir().expect("folder");
    let path = cluster_file(folder.path(), |node| {
        format!(
            "host = \"pc{}\"\naddr = \"{}\"",
            node / 2,
            own_addr(node, 7_100)
        )
    });
    run(
        &under(Congestion::Credit, Over::Cluster(path)),
        40,
        6,
        |_, _| {},
    );
}

/// The same over UDP: each life takes up the address of the one before it.
#[test]
fn restarts_over_udp() {
    let folder = tempfile::tempdir().expect("folder");
    let path = cluster_file(folder.path(), |node| {
        format!("addr = \"{}\"", own_addr(node, 7_000))
    });
    for (congestion, cycles) in [(Congestion::Credit, 40), (Congestion::SUCI, 10)] {
        let place = under(congestion, Over::Cluster(path.clone()));
        run(&place, cycles, 2, |_, _| {});
    }
}

/// The same over raw Ethernet, in a network of this thread's own.
fn restarts_over_ethernet(link: &str) {
    if let Some(reason) = segment::lacking() {
        return common::skipped(&format!("restarts over {link}"), &reason);
    }
    let _segment = segment::Segment::new(NODES.into(), 1500);
    let mac = |node: u16| format!("02:00:00:00:00:{:02x}", node + 1);
    let commands = (0..NODES).map(|node| format!("link set n{node} address {}\n", mac(node)));
    segment::ip(&commands.collect::<String>()).expect("addresses");
    let folder = tempfile::tempdir().expect("folder");
    let path = cluster_file(folder.path(), |node| {
        format!("addr = \"{link}:n{node}\"\nmac = \"{}\"", mac(node))
    });
    run(
        &under(Congestion::Credit, Over::Cluster(path)),
        30,
        3,
        |_, _| {},
    );
    let shown = Command::new("ip")
        .args(["-details", "link", "show"])
        .output();
    let shown = shown.expect("ip").stdout;
    let shown = String::from_utf8_lossy(&shown);
    assert!(!shown.contains("prog/xdp"), "a program stayed: {shown}");
}

/// Two hosts of two nodes that share an interface: each life takes up its slot, and finds the memory of its host's nodes again.
#[test]
fn restarts_among_hosts_on_packet_sockets() {
    if let Some(reason) = segment::lacking() {
        return common::skipped("restarts among hosts over packet", &reason);
    }
    let _segment = segment::Segment::new(2, 1500);
    let mac = |host: u16| format!("02:00:00:00:00:{:02x}", host + 1);
    let commands = (0..2).map(|host| format!("link set n{host} address {}\n", mac(host)));
    segment::ip(&commands.collect::<String>()).expect("addresses");
    let entry = |host: u16| {
        format!(
            "[[node]]\nid = {host}\nhost = \"pc{host}\"\nslots = {}\naddr = \"packet:n{host}\"\nmac = \"{}\"\n",
            NODES / 2,
            mac(host)
        )
    };
    let folder = tempfile::tempdir().expect("folder");
    let path = common::file(folder.path(), "cluster.toml", entry(0) + &entry(1));
    run(
        &under(Congestion::Credit, Over::Cluster(path.into())),
        30,
        7,
        |_, _| {},
    );
}

/// Each life takes the interface over from a process that never closed it.
#[test]
fn restarts_over_packet_sockets() {
    restarts_over_ethernet("packet");
}

/// Each life finds the queue free and no program attached, and in the end none is.
#[test]
fn restarts_over_xdp() {
    restarts_over_ethernet("xdp");
}
