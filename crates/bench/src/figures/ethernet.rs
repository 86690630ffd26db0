//! Figures of raw Ethernet: two hosts of a testbed, every link that joins them, beside the link alone and beside the kernel's own
//! UDP and TCP; broadcast to seven; what waiting costs.
//!
//! The hosts are network namespaces on a bridge (`tsumuji-testbed`), made here and removed again. Ours are runs of
//! `tsumuji bench … --hosts`. DPDK's devices come last, where DPDK is: memif between two processes of this host, AF_PACKET and AF_XDP
//! between hosts.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tsumuji_link::Link;
use tsumuji_link::dpdk::{self, Dpdk, DpdkConfig, DpdkSpec};
use tsumuji_link::packet::{Packet, PacketConfig};
use tsumuji_link::xdp::{Xdp, XdpConfig};
use tsumuji_testbed::Testbed;

use super::{Report, Say, Setting, Wanted, add, down, micros};
use crate::limits::place::{Place, of_testbed};
use crate::limits::{link, tcp, udp};
use crate::machine;
use crate::stats::{Rounds, size_name};
use crate::versus::{Contender, alternate};

/// The message whose latency is promised.
const SMALL_BYTES: usize = 64;
/// Sizes of the papers' tables of rates.
const RATE_BYTES: [usize; 5] = [200, 300, 1000, 1400, 8900];
/// Payload that one rate moves.
const RATE_TOTAL_BYTES: usize = 64 << 20;
/// Frames of the broadcast, and the pause between two of them.
const BROADCASTS: u64 = 200;
const BROADCAST_PAUSE: Duration = Duration::from_micros(200);
/// Hosts that hear a broadcast.
const LISTENERS: u16 = 7;
/// Share of a core that waiting may take.
const IDLE_SHARE: f64 = 0.02;

/// A frame alone takes what a reliable message may take 1.2 times.
const OVER_THE_LINK: Wanted = Wanted::AtMost(1.2);

/// DPDK's devices: for two processes of this host; on interfaces with jumbo frames; on those whose frames fit a page.
const MEMIF: &str = "dpdk:net_memif";
/// The same for messages that need jumbo frames; its buffers take 9 MB, which small messages would only spread themselves over.
const MEMIF_JUMBO: &str = "dpdk:net_memif,bsize=9216";
/// Larger messages take several plain Ethernet frames.
const ETHERNET_BYTES: usize = 1400;
const DPDK_PACKET: &str = "dpdk:net_af_packet";
const DPDK_XDP: &str = "dpdk:net_af_xdp";
const DPDK_XDP_MTU: u32 = 3400;

const LINKS: [&str; 3] = ["udp", "packet", "xdp"];

/// Everything about raw Ethernet.
pub(super) fn ethernet(setting: &Setting, report: &mut Report, say: Say<'_>) {
    say("two hosts on a bridge (network namespaces, MTU 9000)");
    let testbed = match super::testbed(usize::from(LISTENERS) + 1, None, 9000) {
        Ok(testbed) => testbed,
        Err(reason) => return super::missing(report, say, "raw Ethernet", &reason),
    };
    latency(setting, &testbed, report, say);
    rates(setting, &testbed, report, say);
    broadcast(&testbed, report, say);
    idle(setting, &testbed, report, say);
    let probe = dpdk::probe();
    if probe.works {
        dpdk_devices(setting, Some(&testbed), &[MEMIF, DPDK_PACKET], report, say);
    } else {
        say(&format!("no DPDK here: {}", probe.notes.join("; ")));
    }
    down(testbed, say);
    if probe.works {
        match super::testbed(2, None, DPDK_XDP_MTU) {
            Ok(testbed) => {
                dpdk_devices(setting, Some(&testbed), &[DPDK_XDP], report, say);
                down(testbed, say);
            }
            Err(reason) => super::missing(report, say, DPDK_XDP, &reason),
        }
    }
}

/// One `tsumuji bench` between the first two hosts, or two processes of this host, as JSON.
fn bench<'a>(
    setting: &Setting,
    testbed: impl Into<Option<&'a Testbed>>,
    words: &[&str],
) -> Result<Value, String> {
    let hosts = testbed.into().map(|testbed| {
        [
            "--hosts".into(),
            testbed.hosts_file().as_os_str().to_owned(),
        ]
    });
    let output = std::process::Command::new(&setting.program)
        .args(["bench", words[0]])
        .args(hosts.into_iter().flatten())
        .args(&words[1..])
        .args(["--open", "--json"]) // the hosts are namespaces of this machine
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let complaint = String::from_utf8_lossy(&output.stderr);
        complaint.lines().last().unwrap_or("no output").to_owned()
    })
}

fn number(value: &Value, path: &[&str]) -> Result<f64, String> {
    let found = path.iter().fold(value, |value, key| &value[*key]);
    found
        .as_f64()
        .ok_or_else(|| format!("no `{}` in the report", path.join(".")))
}

fn packets(places: &[Place]) -> Result<Vec<Packet>, String> {
    open(places, |interface| {
        Packet::open(interface, PacketConfig::default()).map_err(|error| error.to_string())
    })
}

fn xdps(places: &[Place]) -> Result<Vec<Xdp>, String> {
    open(places, |interface| {
        Xdp::open(interface, XdpConfig::default()).map_err(|error| error.to_string())
    })
}

/// Opens a link in each place.
fn open<L: Send>(
    places: &[Place],
    open: impl Fn(&str) -> Result<L, String> + Sync,
) -> Result<Vec<L>, String> {
    struct Failure(String);
    impl From<std::io::Error> for Failure {
        fn from(error: std::io::Error) -> Self {
            Self(error.to_string())
        }
    }
    let opened = places
        .iter()
        .map(|place| place.enter(|| open(&place.interface).map_err(Failure)));
    opened
        .collect::<Result<_, _>>()
        .map_err(|failure| failure.0)
}

fn alone<L: Link + Send>(ends: Vec<L>, iterations: u64) -> Result<f64, String> {
    let Ok(ends) = <[L; 2]>::try_from(ends) else {
        return Err("two ends are needed".to_owned());
    };
    link::pingpong(ends, machine::two_cpus(), SMALL_BYTES, iterations)
        .map(|half| half.p50)
        .map_err(|error| error.to_string())
}

/// p50 of the half-round-trip of 64 bytes over each link, beside the link alone and beside the kernel.
fn latency(setting: &Setting, testbed: &Testbed, report: &mut Report, say: Say<'_>) {
    let places = of_testbed(testbed);
    let Some(pair) = places.first_chunk::<2>() else {
        return;
    };
    let trips = setting.round_trips / 2;
    let (cpus, size, iterations) = (
        machine::two_cpus(),
        SMALL_BYTES.to_string(),
        trips.to_string(),
    );
    let ours = |link: &'static str| {
        let (size, iterations) = (size.clone(), iterations.clone());
        Contender::new(format!("tsumuji {link}"), move || {
            let words = [
                "pingpong",
                "--link",
                link,
                "--size",
                &size,
                "--iterations",
                &iterations,
            ];
            number(&bench(setting, testbed, &words)?, &["half_rtt_us", "p50"])
        })
    };
    let mut contenders: Vec<_> = LINKS.into_iter().map(ours).collect();
    contenders.push(Contender::new("bare UDP", || {
        udp::pingpong_between(pair, cpus, SMALL_BYTES, trips)
            .map(|half| half.p50)
            .map_err(|error| error.to_string())
    }));
    contenders.push(Contender::new("packet link alone", || {
        alone(packets(pair)?, trips)
    }));
    contenders.push(Contender::new("xdp link alone", || {
        alone(xdps(pair)?, trips)
    }));
    contenders.push(Contender::new("TCP", || {
        tcp::pingpong_between(pair, cpus, SMALL_BYTES, trips)
            .map(|half| half.p50)
            .map_err(|error| error.to_string())
    }));
    say(&format!(
        "half round trip of a reliable {SMALL_BYTES}-byte message between hosts (p50, {} rounds in turn, all spinning)",
        setting.rounds
    ));
    let standings = alternate(setting.rounds, &mut contenders);
    drop(contenders);
    let [own_udp, packet, xdp, bare_udp, bare_packet, bare_xdp, tcp] = &standings[..] else {
        return;
    };
    for (ours, beside, wanted) in [
        (own_udp, bare_udp, Wanted::Nothing),
        (packet, bare_packet, OVER_THE_LINK),
        (xdp, bare_xdp, OVER_THE_LINK),
        (packet, bare_udp, Wanted::AtMost(0.75)),
        (xdp, bare_udp, Wanted::AtMost(0.75)),
        (packet, tcp, Wanted::AtMost(0.5)),
        (xdp, tcp, Wanted::AtMost(0.5)),
    ] {
        let name = format!("half round trip between hosts, {SMALL_BYTES} B");
        let ratio = ours.ratio_to(beside);
        add(
            report,
            say,
            name,
            micros(ours),
            micros(beside),
            ratio,
            wanted,
        );
    }
}

/// Rates by size, with the processor time of both sides.
fn rates(setting: &Setting, testbed: &Testbed, report: &mut Report, say: Say<'_>) {
    say(&format!(
        "rate between hosts by message size (medians of {} rounds): MB/s, thousand messages/s, us of CPU per KB on both sides",
        setting.rounds
    ));
    for size in RATE_BYTES {
        let count = (RATE_TOTAL_BYTES / size).to_string();
        let count = if setting.is_tried() { "500" } else { &count };
        let mut found: [Vec<[f64; 2]>; LINKS.len()] = Default::default();
        let mut failures: [Option<String>; LINKS.len()] = Default::default();
        for _ in 0..setting.rounds {
            for (index, link) in LINKS.into_iter().enumerate() {
                let words = [
                    "burst",
                    "--link",
                    link,
                    "--size",
                    &size.to_string(),
                    "--iterations",
                    count,
                ];
                let measured = bench(setting, testbed, &words).and_then(|report| {
                    let rate = number(&report, &["messages_per_second"])?;
                    Ok([rate, number(&report, &["cpu_us_per_kb"])?])
                });
                match measured {
                    Ok(measured) => found[index].push(measured),
                    Err(reason) => failures[index] = Some(reason),
                }
            }
        }
        let median = |index: usize, column: usize| {
            let values: Vec<f64> = found[index].iter().map(|row| row[column]).collect();
            Rounds::of(&values).median
        };
        for (index, link) in LINKS.into_iter().enumerate() {
            let rate = median(index, 0);
            let ours = match &failures[index] {
                None => format!(
                    "{:.0} MB/s, {:.0} k/s, {:.3} us/KB ({link})",
                    rate * size as f64 / 1e6,
                    rate / 1e3,
                    median(index, 1)
                ),
                Some(reason) => format!("- ({link}: {reason})"),
            };
            let name = format!("rate between hosts, {}", size_name(size));
            let beside = format!("{:.0} k/s (udp)", median(0, 0) / 1e3);
            add(
                report,
                say,
                name,
                ours,
                beside,
                rate / median(0, 0),
                Wanted::Nothing,
            );
        }
    }
}

/// One frame, one transmit, seven listeners.
fn broadcast(testbed: &Testbed, report: &mut Report, say: Say<'_>) {
    let places = of_testbed(testbed);
    let packet = packets(&places).and_then(|mut ends| heard(&mut ends));
    let xdp = xdps(&places).and_then(|mut ends| heard(&mut ends));
    for (link, result) in [("packet", packet), ("xdp", xdp)] {
        let (ours, ratio) = match result {
            Ok((sent, received)) => {
                let least = received.iter().copied().min().unwrap_or(0);
                (
                    format!("{sent} transmits, at least {least} received ({link})"),
                    if sent == BROADCASTS {
                        least as f64 / BROADCASTS as f64
                    } else {
                        0.0
                    },
                )
            }
            Err(reason) => (format!("- ({link}: {reason})"), f64::NAN),
        };
        let name = format!("broadcast to {LISTENERS}, one transmit a frame");
        let beside = format!("{BROADCASTS} frames");
        add(
            report,
            say,
            name,
            ours,
            beside,
            ratio,
            Wanted::AtLeast(0.99),
        );
    }
}

fn heard<L: Link>(ends: &mut [L]) -> Result<(u64, Vec<u64>), String> {
    link::broadcast(ends, 1400, BROADCASTS, BROADCAST_PAUSE).map_err(|error| error.to_string())
}

/// DPDK's devices: the half-round-trip beside the device alone, rates, and what waiting costs.
fn dpdk_devices(
    setting: &Setting,
    testbed: Option<&Testbed>,
    devices: &[&'static str],
    report: &mut Report,
    say: Say<'_>,
) {
    say(
        "DPDK devices; memif joins two processes of this host (its broadcast has one listener), the others hosts",
    );
    for device in devices {
        // memif is no matter of hosts.
        let hosts = testbed.filter(|_| *device != MEMIF);
        dpdk_latency(setting, hosts, device, report, say);
        for size in RATE_BYTES {
            let jumbo = *device == MEMIF && size > ETHERNET_BYTES;
            let device = if jumbo { MEMIF_JUMBO } else { device };
            dpdk_rate(setting, hosts, device, size, report, say);
        }
        idle_of(setting, hosts, device, report, say);
    }
}

fn dpdk_ends(testbed: Option<&Testbed>, device: &str) -> Result<Vec<Dpdk>, String> {
    let Some(testbed) = testbed else {
        let pair = Dpdk::memif_pair("", DpdkConfig::default());
        return pair
            .map(|(server, client)| vec![server, client])
            .map_err(|error| error.to_string());
    };
    open(&of_testbed(testbed)[..2], |interface| {
        let spec: DpdkSpec = format!("{device},iface={interface}")
            .parse()
            .map_err(|error: dpdk::DpdkSpecError| error.to_string())?;
        Dpdk::open(&spec, DpdkConfig::default()).map_err(|error| error.to_string())
    })
}

fn dpdk_latency(
    setting: &Setting,
    testbed: Option<&Testbed>,
    device: &'static str,
    report: &mut Report,
    say: Say<'_>,
) {
    let trips = setting.round_trips / 2;
    let (size, iterations) = (SMALL_BYTES.to_string(), trips.to_string());
    let words = [
        "pingpong",
        "--link",
        device,
        "--size",
        &size,
        "--iterations",
        &iterations,
    ];
    let mut contenders = vec![
        Contender::new(format!("tsumuji {device}"), || {
            number(&bench(setting, testbed, &words)?, &["half_rtt_us", "p50"])
        }),
        Contender::new("device alone", || alone(dpdk_ends(testbed, device)?, trips)),
    ];
    let standings = alternate(setting.rounds, &mut contenders);
    drop(contenders);
    if let [ours, beside] = &standings[..] {
        let name = format!("half round trip, {SMALL_BYTES} B, DPDK");
        let ratio = ours.ratio_to(beside);
        add(
            report,
            say,
            name,
            micros(ours),
            micros(beside),
            ratio,
            OVER_THE_LINK,
        );
    }
}

fn dpdk_rate(
    setting: &Setting,
    testbed: Option<&Testbed>,
    device: &str,
    size: usize,
    report: &mut Report,
    say: Say<'_>,
) {
    let count = if setting.is_tried() {
        500
    } else {
        RATE_TOTAL_BYTES / size
    };
    let (text, count) = (size.to_string(), count.to_string());
    let words = [
        "burst",
        "--link",
        device,
        "--size",
        &text,
        "--iterations",
        &count,
    ];
    let runs: Result<Vec<[f64; 2]>, String> = (0..setting.rounds)
        .map(|_| {
            let report = bench(setting, testbed, &words)?;
            let rate = number(&report, &["messages_per_second"])?;
            Ok([rate, number(&report, &["cpu_us_per_kb"])?])
        })
        .collect();
    let ours = match runs {
        Ok(runs) => {
            let median = |column: usize| {
                let values: Vec<f64> = runs.iter().map(|run| run[column]).collect();
                Rounds::of(&values).median
            };
            let rate = median(0);
            format!(
                "{:.0} MB/s, {:.0} k/s, {:.3} us/KB ({device})",
                rate * size as f64 / 1e6,
                rate / 1e3,
                median(1)
            )
        }
        Err(reason) => format!("- ({device}: {reason})"),
    };
    let name = format!("rate, {}, DPDK", size_name(size));
    add(
        report,
        say,
        name,
        ours,
        "-".to_owned(),
        f64::NAN,
        Wanted::Nothing,
    );
}

/// Processor time of two processes that wait, by link.
fn idle(setting: &Setting, testbed: &Testbed, report: &mut Report, say: Say<'_>) {
    for link in LINKS {
        idle_of(setting, testbed, link, report, say);
    }
}

fn idle_of<'a>(
    setting: &Setting,
    testbed: impl Into<Option<&'a Testbed>>,
    link: &str,
    report: &mut Report,
    say: Say<'_>,
) {
    let measured = bench(setting, testbed, &["idle", "--link", link]);
    let share = measured.and_then(|report| {
        let sides = report["cpu_share"].as_array().cloned().unwrap_or_default();
        let most = sides.iter().filter_map(Value::as_f64).reduce(f64::max);
        most.ok_or_else(|| "no `cpu_share` in the report".to_owned())
    });
    let (ours, ratio) = match share {
        Ok(share) => (
            format!("{:.2} % of a core ({link})", share * 100.0),
            share / IDLE_SHARE,
        ),
        Err(reason) => (format!("- ({link}: {reason})"), f64::NAN),
    };
    let beside = format!("{:.0} % of a core", IDLE_SHARE * 100.0);
    add(
        report,
        say,
        "waiting, busier of two hosts",
        ours,
        beside,
        ratio,
        Wanted::AtMost(1.0),
    );
}
