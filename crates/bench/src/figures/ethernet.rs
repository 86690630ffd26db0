//! Figures of raw Ethernet: two hosts of a testbed, every link between them, compared with the link alone and with the kernel's own UDP and TCP;
//! broadcast to seven; the cost of waiting.
//!
//! The hosts are network namespaces on a bridge (`tsumuji-testbed`), made here and removed again. Ours are runs of `tsumuji bench … --hosts`. DPDK's
//! devices take part where DPDK is installed; memif joins two processes of one machine.

use std::time::Duration;

use tsumuji_link::Link;
use tsumuji_link::packet::{Packet, PacketConfig};
#[cfg(feature = "xdp")]
use tsumuji_link::xdp::{Xdp, XdpConfig};
use tsumuji_testbed::Testbed;

use super::{Log, Setting, Wanted, told};
use crate::alone;
use crate::compare::{Comparison, Contender, Plan};
use crate::contest::{self, Ground, Ours, Peer};
use crate::limits::broadcast;
use crate::limits::place::{Place, of_testbed};
use crate::ops::Op;
use crate::stats::size_name;

/// The message whose latency has a target.
const SMALL_BYTES: usize = 64;
/// Sizes of the papers' tables of rates: those that fit a plain Ethernet frame, and the one for a jumbo frame.
const RATE_BYTES: [usize; 4] = [200, 300, 1000, 1400];
const JUMBO_RATE_BYTES: [usize; 1] = [8900];
/// Frames of the broadcast, and the pause between two of them.
const BROADCASTS: u64 = 200;
const BROADCAST_PAUSE: Duration = Duration::from_micros(200);
/// Hosts that receive a broadcast.
const LISTENERS: usize = 7;
/// Share of a core that waiting may take.
const IDLE_SHARE: f64 = 0.02;

/// A reliable message may take at most 1.2 times as long as a frame over the link alone.
const OVER_THE_LINK: Wanted = Wanted::AtMost(1.2);
/// Targets compared with the kernel's UDP and TCP.
const OVER_UDP: Wanted = Wanted::AtMost(0.75);
const OVER_TCP: Wanted = Wanted::AtMost(0.5);

const LINKS: [&str; 3] = ["udp", "packet", "xdp"];
const MEMIF: &str = "dpdk:net_memif";
/// The same for messages that need jumbo frames; its buffers take 9 MB, and small messages would use no more than a part of each.
const MEMIF_JUMBO: &str = "dpdk:net_memif,bsize=9216";
const DPDK_PACKET: &str = "dpdk:net_af_packet";
/// The MTU of real cables.
const MTU: u32 = 9000;
/// Its frames must fit a page.
const DPDK_XDP: &str = "dpdk:net_af_xdp";
const DPDK_XDP_MTU: u32 = 3400;

/// All figures of raw Ethernet.
pub(super) fn ethernet(setting: &Setting, log: &mut Log<'_>) {
    let has_dpdk = log.has_dpdk();
    let with = |devices: &[&'static str]| {
        let devices = devices.iter().filter(|_| has_dpdk);
        LINKS.iter().chain(devices).copied().collect::<Vec<_>>()
    };
    let (links, jumbo) = (
        with(&[MEMIF, DPDK_PACKET]),
        with(&[MEMIF_JUMBO, DPDK_PACKET]),
    );
    on_bridge(2, MTU, log, |testbed, log| {
        let course = Course::over(setting, testbed);
        course.latency(&LINKS, &[Peer::Udp, Peer::Tcp], log);
        course.latency(&links[LINKS.len()..], &[], log);
        course.rates(&links, &RATE_BYTES, log);
        course.rates(&jumbo, &JUMBO_RATE_BYTES, log);
        course.idle(&links, log);
    });
    on_bridge(1 + LISTENERS, MTU, log, |testbed, log| {
        heard_by_all(&of_testbed(testbed), log);
    });
    if has_dpdk {
        on_bridge(2, DPDK_XDP_MTU, log, |testbed, log| {
            let course = Course::over(setting, testbed);
            course.latency(&[DPDK_XDP], &[], log);
            course.rates(&[DPDK_XDP], &RATE_BYTES, log);
            course.rates(&[DPDK_XDP], &JUMBO_RATE_BYTES, log);
            course.idle(&[DPDK_XDP], log);
        });
    }
}

fn on_bridge(
    hosts: usize,
    mtu: u32,
    log: &mut Log<'_>,
    measure: impl FnOnce(&Testbed, &mut Log<'_>),
) {
    let title = format!("{hosts} hosts on a bridge, MTU {mtu}");
    log.say(&format!("{title} (network namespaces)"));
    log.on_testbed(&title, hosts, None, mtu, measure);
}

/// The measurements between the two hosts of a testbed.
struct Course<'a> {
    setting: &'a Setting,
    testbed: &'a Testbed,
    ground: Ground,
}

impl<'a> Course<'a> {
    fn over(setting: &'a Setting, testbed: &'a Testbed) -> Self {
        let ground = Ground::of(testbed);
        Self {
            setting,
            testbed,
            ground,
        }
    }

    fn ours(&self, links: &[&str]) -> Vec<Ours> {
        let ours = |link: &&str| self.setting.ours(link, self.testbed);
        links.iter().map(ours).collect()
    }

    fn compared(
        &self,
        op: Op,
        sizes: &[usize],
        iterations: Option<u64>,
        contenders: &mut [Contender<'_>],
        log: &mut Log<'_>,
    ) -> Comparison {
        let plan = Plan {
            op,
            nodes: 2,
            sizes: sizes.to_vec(),
            iterations,
            bits_per_second: None,
            rounds: self.setting.rounds,
        };
        log.compare(&plan, contenders)
    }

    /// p50 of the half-round-trip of a small message over each link, compared with the link alone and with the peers.
    fn latency(&self, links: &[&str], peers: &[Peer], log: &mut Log<'_>) {
        if links.is_empty() {
            return;
        }
        log.say(&format!(
            "half round trip of a reliable {SMALL_BYTES}-byte message between hosts (p50, {} rounds in turn, all spinning)",
            self.setting.rounds
        ));
        let ours = self.ours(links);
        let mut contenders = contest::contenders(&ours, peers, &self.ground, Op::Pingpong);
        let is_raw: Vec<bool> = ours.iter().map(|ours| alone::is_raw(&ours.link)).collect();
        let raw = ours.iter().filter(|ours| alone::is_raw(&ours.link));
        contenders
            .extend(raw.map(|ours| contest::link_alone(ours.link, &self.ground, Op::Pingpong)));
        let trips = Some(self.setting.round_trips / 2);
        let comparison = self.compared(Op::Pingpong, &[SMALL_BYTES], trips, &mut contenders, log);
        let Some(row) = comparison.results.first() else {
            return;
        };
        let mut limits = links.len() + peers.len()..;
        for (own, is_raw) in is_raw.into_iter().enumerate() {
            let limit = is_raw.then(|| limits.next().map(|limit| (limit, OVER_THE_LINK)));
            let peers = peers.iter().enumerate().map(|(peer, kind)| {
                let wanted = match kind {
                    _ if !is_raw => Wanted::Nothing, // the kernel's UDP itself carries it
                    Peer::Udp => OVER_UDP,
                    _ => OVER_TCP,
                };
                (links.len() + peer, wanted)
            });
            for (beside, wanted) in limit.flatten().into_iter().chain(peers) {
                let name = format!("half round trip between hosts, {SMALL_BYTES} B");
                let ratio = 1.0 / row.times_better(own, beside);
                log.pair(name, &comparison, row, (own, beside), ratio, wanted);
            }
        }
    }

    /// Rates by size, with the processor time of both sides, compared with the first link's.
    fn rates(&self, links: &[&str], sizes: &[usize], log: &mut Log<'_>) {
        log.say("rate between hosts by message size");
        let ours = self.ours(links);
        let mut contenders = contest::contenders(&ours, &[], &self.ground, Op::Burst);
        let tried = (&sizes[..1], Some(500));
        let (sizes, iterations) = self.setting.tried_or(tried, (sizes, None));
        let comparison = self.compared(Op::Burst, sizes, iterations, &mut contenders, log);
        for row in &comparison.results {
            let thousands = |rate: f64| rate / row.size as f64 / 1e3;
            for (index, cell) in row.contenders.iter().enumerate() {
                let ours = match &cell.numbers {
                    Some(numbers) => format!(
                        "{}, {:.0} k/s, {:.3} us/KB",
                        told(cell, "MB/s"),
                        thousands(numbers.bytes_per_second),
                        numbers.cpu_us_per_kb.unwrap_or(f64::NAN)
                    ),
                    None => told(cell, "MB/s"),
                };
                let (beside, ratio) = match index {
                    0 => ("-".to_owned(), f64::NAN),
                    _ => (told(&row.contenders[0], "MB/s"), row.times_better(index, 0)),
                };
                let name = format!("rate between hosts, {}", size_name(row.size));
                log.add(name, ours, beside, ratio, Wanted::Nothing);
            }
        }
    }

    /// Processor time of two waiting processes, by link.
    fn idle(&self, links: &[&str], log: &mut Log<'_>) {
        let seconds = self.setting.tried_or(1, 3);
        for (ours, link) in self.ours(links).iter().zip(links) {
            let (ours, ratio) = match ours.idle_share(seconds) {
                Ok(share) => (
                    format!("{:.2} % of a core ({link})", share * 100.0),
                    share / IDLE_SHARE,
                ),
                Err(reason) => (format!("- ({link}: {reason})"), f64::NAN),
            };
            let name = "waiting, busier of two hosts";
            let beside = format!("{:.0} % of a core", IDLE_SHARE * 100.0);
            log.add(name, ours, beside, ratio, Wanted::AtMost(1.0));
        }
    }
}

/// One frame, one transmit, seven receivers.
fn heard_by_all(places: &[Place], log: &mut Log<'_>) {
    let packet = alone::ends(places, |place| {
        Packet::open(&place.interface, PacketConfig::default())
    });
    let packet = packet.and_then(heard);
    #[cfg(feature = "xdp")]
    let xdp = alone::ends(places, |place| {
        Xdp::open(&place.interface, XdpConfig::default())
    });
    #[cfg(feature = "xdp")]
    let xdp = xdp.and_then(heard);
    #[cfg(not(feature = "xdp"))]
    let xdp = Err("this program was built without it".to_owned());
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
        let wanted = Wanted::AtLeast(0.99);
        log.add(name, ours, beside, ratio, wanted);
    }
}

fn heard<L: Link>(mut ends: Vec<L>) -> Result<(u64, Vec<u64>), String> {
    broadcast::broadcast(&mut ends, 1400, BROADCASTS, BROADCAST_PAUSE)
        .map_err(|error| error.to_string())
}
