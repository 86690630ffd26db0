//! Figures compared with MPI: ping-pong and burst between two hosts of a testbed, ours over each link, MPICH and Open MPI over TCP, in one run, at
//! the MTU of real cables and at the largest of the virtual one.
//!
//! The kernel's TCP moves up to 64 KiB at once over a virtual cable, whatever its MTU, since no card cuts them into frames. A raw frame is as long as
//! the MTU. So frames of that size are the fair comparison, and the other shows the cost of frames of 9000 bytes.
//!
//! Of many sizes the worst is the figure, with its size. A burst may also be at its limit: that of bare UDP over the same cable, which has no
//! reliability to pay for, or of the raw link alone, frames without engine.

use tsumuji_node::LinkSpec;
use tsumuji_testbed::Testbed;

use super::messages::{DIP, dips};
use super::{Log, Point, Setting, Sweep, Wanted, told};
use crate::compare::{Comparison, Contender, Plan, Row};
use crate::contest::{self, Ground, Ours, Peer};
use crate::ops::Op;
use crate::stats::size_name;

/// The peers, behind our links in the lists of contenders; behind them each link's limit.
const PEERS: [Peer; 2] = [Peer::Mpich, Peer::OpenMpi];
/// Up to this size there is a target for latency; beyond it, ours must not be slower.
const SMALL_MOST_BYTES: usize = 1 << 10;
/// A burst of at least this fraction of its link alone is at its limit.
const AT_THE_LIMIT: f64 = 0.9;
/// Target of a burst that is not at its limit, in times of MPI's.
const BURST: f64 = 1.35;

/// One of our links, and how many times better than MPI a small ping-pong over it must be.
type Promise = (&'static str, f64);

/// A cable, and the measurements over it.
struct Cable {
    mtu_bytes: u32,
    what: &'static str,
    links: &'static [Promise],
}

/// memif is the DPDK device with the fastest small messages, and joins two namespaces of one machine; its buffers are as large as the cable's frames,
/// and their number is limited to some megabytes.
const CABLES: [Cable; 2] = [
    Cable {
        mtu_bytes: 9000,
        what: "as real cables have",
        links: &[
            ("udp", 1.6),
            ("packet", 2.5),
            ("xdp", 2.5),
            ("dpdk:net_memif,bsize=9216", 2.5),
        ],
    },
    Cable {
        mtu_bytes: 65_535,
        what: "the most a virtual cable takes, and what TCP moves at once at any MTU: like for like",
        links: &[
            ("packet", 2.5),
            ("xdp", 2.5),
            ("dpdk:net_memif,bsize=64896", 2.5),
        ],
    },
];

/// The sizes, fewer where only the benchmark is tried.
fn sizes(op: Op, setting: &Setting) -> Vec<usize> {
    let all: &[usize] = if op == Op::Pingpong {
        &[
            4,
            64,
            1 << 10,
            4 << 10,
            16 << 10,
            64 << 10,
            512 << 10,
            4 << 20,
        ]
    } else {
        &[
            64,
            1 << 10,
            1500,
            4 << 10,
            16 << 10,
            64 << 10,
            128 << 10,
            512 << 10,
            4 << 20,
            16 << 20,
        ]
    };
    // Of a small and of a large one there are figures.
    let is_wanted = |size: &usize| !setting.is_tried() || [64, 4 << 10].contains(size);
    all.iter().copied().filter(is_wanted).collect()
}

/// All figures compared with MPI.
pub(super) fn mpi(setting: &Setting, log: &mut Log<'_>) {
    let has_dpdk = log.has_dpdk();
    for cable in &CABLES {
        let (mtu, what) = (cable.mtu_bytes, cable.what);
        log.say(&format!(
            "two hosts on a bridge (network namespaces), MPI over TCP between them; MTU {mtu}: {what}"
        ));
        let promises: Vec<Promise> = cable
            .links
            .iter()
            .copied()
            .filter(|(link, _)| has_dpdk || !link.starts_with("dpdk:"))
            .collect();
        let course = Course { promises, mtu };
        log.on_testbed("beside MPI between hosts", 2, None, mtu, |testbed, log| {
            over(&course, setting, testbed, log);
        });
    }
}

/// The measurements over one cable.
struct Course {
    promises: Vec<Promise>,
    mtu: u32,
}

impl Course {
    /// Indices of the peers among the contenders.
    fn peers(&self) -> std::ops::Range<usize> {
        self.promises.len()..self.promises.len() + PEERS.len()
    }

    /// Index of a link's limit among the contenders.
    fn limit(&self, own: usize) -> usize {
        self.peers().end + own
    }

    fn name(&self, link: &str) -> String {
        format!("{link}, MTU {}", self.mtu)
    }
}

fn over(course: &Course, setting: &Setting, testbed: &Testbed, log: &mut Log<'_>) {
    let links = course.promises.iter();
    let links: Vec<Ours> = links.map(|(link, _)| setting.ours(link, testbed)).collect();
    let ground = Ground::of(testbed);
    for op in [Op::Pingpong, Op::Burst] {
        let comparison = compared(setting, op, &links, &ground, log);
        if op == Op::Pingpong {
            pingpong(course, &comparison, log);
        } else {
            burst(course, &comparison, log);
        }
        log.peers(&comparison, course.peers());
    }
}

fn compared(
    setting: &Setting,
    op: Op,
    links: &[Ours],
    ground: &Ground,
    log: &mut Log<'_>,
) -> Comparison {
    let plan = Plan {
        op,
        nodes: 2,
        sizes: sizes(op, setting),
        iterations: setting.is_tried().then_some(50),
        bits_per_second: None,
        // Many sizes, each a comparison of its own: the worst of them counts.
        rounds: setting.rounds.min(3),
    };
    let mut contenders = contest::contenders(links, &PEERS, ground, op);
    contenders.extend(links.iter().map(|ours| limit(ours.link, ground, op)));
    log.compare(&plan, &mut contenders)
}

/// The limit of a link, measured without MPI.
fn limit(link: LinkSpec, ground: &Ground, op: Op) -> Contender<'_> {
    match (link, op) {
        (LinkSpec::Udp(_), Op::Pingpong) => {
            Contender::absent("UDP", "its limit is asked for of bursts only")
        }
        (LinkSpec::Udp(_), _) => contest::contender(Peer::Udp, link, ground, op),
        _ => contest::link_alone(link, ground, op),
    }
}

/// The size at which `of` is least.
pub(super) fn least(
    comparison: &Comparison,
    wanted: impl Fn(usize) -> bool,
    of: impl Fn(&Row) -> f64,
) -> Option<(&Row, f64)> {
    let rows = comparison.results.iter().filter(|row| wanted(row.size));
    let values = rows.map(|row| (row, of(row)));
    values
        .filter(|(_, value)| value.is_finite())
        .min_by(|a, b| a.1.total_cmp(&b.1))
}

/// Adds one size, such as the worst, of one link compared with one peer.
pub(super) fn worst(
    log: &mut Log<'_>,
    name: String,
    comparison: &Comparison,
    found: Option<(&Row, f64)>,
    (own, peer): (usize, usize),
    wanted: Wanted,
) {
    let unit = comparison.unit;
    let row = found.map(|(row, _)| row).or(comparison.results.first());
    let Some(row) = row else { return };
    let ratio = found.map_or(f64::NAN, |(_, value)| value);
    let told = |index: usize| told(&row.contenders[index], unit);
    let ours = format!("{} at {}", told(own), size_name(row.size));
    let beside = told(peer);
    log.add(name, ours, beside, ratio, wanted);
}

fn pingpong(course: &Course, comparison: &Comparison, log: &mut Log<'_>) {
    for (own, (link, times)) in course.promises.iter().enumerate() {
        let link = course.name(link);
        for peer in course.peers() {
            let better = |row: &Row| row.times_better(own, peer);
            let small = least(comparison, |size| size <= SMALL_MOST_BYTES, better);
            let name = format!(
                "{link}: ping-pong, times better, worst to {}",
                size_name(SMALL_MOST_BYTES)
            );
            let wanted = Wanted::AtLeast(*times);
            worst(log, name, comparison, small, (own, peer), wanted);
            let all = least(comparison, |_| true, better);
            let name = format!("{link}: ping-pong, times better, worst of all sizes");
            let wanted = Wanted::AtLeast(1.0);
            worst(log, name, comparison, all, (own, peer), wanted);
        }
        let limit = course.limit(own);
        let of_the_limit = |row: &Row| row.times_better(own, limit);
        let found = least(comparison, |size| size > SMALL_MOST_BYTES, of_the_limit);
        if found.is_some() {
            let name = format!("{link}: ping-pong beside the link alone, worst of large sizes");
            let wanted = Wanted::Nothing;
            worst(log, name, comparison, found, (own, limit), wanted);
        }
    }
}

/// The score of a burst: how many times better it is; at its limit, at least the target.
fn burst_score(times_better: f64, of_the_limit: f64) -> f64 {
    if of_the_limit >= AT_THE_LIMIT {
        times_better.max(BURST)
    } else {
        times_better
    }
}

fn burst(course: &Course, comparison: &Comparison, log: &mut Log<'_>) {
    for (own, (link, _)) in course.promises.iter().enumerate() {
        let link = course.name(link);
        let limit = course.limit(own);
        for peer in course.peers() {
            let score =
                |row: &Row| burst_score(row.times_better(own, peer), row.times_better(own, limit));
            let found = least(comparison, |_| true, score);
            let name = format!("{link}: burst, times better or at the limit, worst of all sizes");
            let wanted = Wanted::AtLeast(BURST);
            worst(log, name, comparison, found, (own, peer), wanted);
        }
        let of_the_limit = |row: &Row| row.times_better(own, limit);
        let found = least(comparison, |_| true, of_the_limit);
        let name = format!("{link}: burst beside the link alone, worst of all sizes");
        let wanted = Wanted::Nothing;
        worst(log, name, comparison, found, (own, limit), wanted);
        let points: Vec<Point> = comparison
            .results
            .iter()
            .filter_map(|row| point(row, own, limit))
            .collect();
        for (name, points) in [
            ("no dip", &points[..]),
            (
                "no decline past 64 KiB",
                &points[points.partition_point(|point| point.size < 64 << 10)..],
            ),
        ] {
            // Messages larger than the caches come from memory in any case: a loss of the link alone, too, is excused.
            let deepest = dips(points, true).first().copied();
            let (ours, left) = match deepest {
                Some((_, index, left)) => {
                    (format!("lowest at {}", size_name(points[index].size)), left)
                }
                None => ("never falls".to_owned(), 1.0),
            };
            let left = if points.is_empty() { f64::NAN } else { left };
            let name = format!("{link}: burst between hosts, {name}");
            let beside = "best of smaller sizes, where the link alone keeps it".to_owned();
            log.add(name, ours, beside, left, Wanted::AtLeast(DIP));
        }
        log.report.sweeps.push(Sweep {
            link: format!("{link} between hosts"),
            points,
        });
    }
}

fn point(row: &Row, own: usize, limit: usize) -> Option<Point> {
    let rate = |index: usize| {
        let numbers = row.contenders.get(index)?.numbers.as_ref()?;
        Some(numbers.headline.median * 1e6)
    };
    Some(Point {
        size: row.size,
        bytes_per_second: rate(own)?,
        limit_bytes_per_second: rate(limit).unwrap_or(f64::NAN),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A burst at its limit counts as having reached the target; below the limit the ratio counts, and a larger ratio at the limit is kept.
    #[test]
    fn limits_count_as_reached() {
        assert_eq!(burst_score(1.1, 0.95), BURST);
        assert_eq!(burst_score(1.1, 0.5), 1.1);
        assert_eq!(burst_score(3.0, 0.95), 3.0);
        assert!(burst_score(f64::NAN, 0.5).is_nan());
    }
}
