//! Figures of messages: half-round-trips compared with the bare machine and MPI, throughput by size compared with bare copies.

use tsumuji_node::{LinkSpec, Security};

use super::{Log, Point, Setting, Sweep, Wanted};
use crate::compare;
use crate::contest::{self, Ground, Ours, Peer};
use crate::exchange::{ExchangeError, Kind, Measured, Plan, measure, spec};
use crate::limits;
use crate::machine;
use crate::ops::Op;
use crate::stats::{Rounds, size_name};
use crate::versus::order;

/// The size whose latency has a target.
const SMALL_BYTES: usize = 8;
/// Target for a message over shm, in times of a cache line.
const SHM_LINES: f64 = 2.0;
/// Two cores below the same cache pass a line within this time; others take longer.
const NEAR_US: f64 = 0.1;
/// A throughput below this fraction of a smaller message's is a dip; smaller differences are noise between rounds.
pub(super) const DIP: f64 = 0.9;
/// Most apparent dips that are measured again.
const SUSPECTS_MAX: usize = 6;
/// Payload that one point of the sweep moves, and the most messages it takes.
const SWEEP_BYTES: u64 = 256 << 20;
const SWEEP_MESSAGES_MAX: u64 = 300_000;
/// Sizes just past the places where frames, socket buffers and datagrams end.
const PAST_EDGES: [usize; 4] = [1500, 9001, (16 << 10) + 1, (64 << 10) + 1];

pub(super) fn exchanged(
    setting: &Setting,
    link: LinkSpec,
    plan: &Plan,
) -> Result<Measured, ExchangeError> {
    measure(
        plan,
        spec(link, None, &setting.program),
        &Security::Unstated,
    )
}

pub(super) fn ours(setting: &Setting, link: LinkSpec, plan: &Plan) -> Result<Measured, String> {
    exchanged(setting, link, plan).map_err(|error| error.to_string())
}

/// Targets of shm relative to a cache line, and to a copy, which takes `copy_to_line` times as long as the line. Twice the cache line, unless the
/// bare copy alone takes longer than that: then the copy is the limit.
fn shm_limits(copy_to_line: f64) -> [Wanted; 2] {
    if copy_to_line > SHM_LINES {
        [Wanted::Nothing, Wanted::AtMost(1.0)]
    } else {
        [Wanted::AtMost(SHM_LINES), Wanted::Nothing]
    }
}

/// Whether the two cores are near. A virtual machine's may move between one run and the next, which changes every figure of shm.
fn state(line_us: f64) -> String {
    let name = if line_us < NEAR_US { "near" } else { "far" };
    format!(
        "the two cores are {name}: a cache line takes {:.0} ns from one to the other (near is below {:.0} ns)",
        line_us * 1e3,
        NEAR_US * 1e3
    )
}

/// p50 of the half-round-trip of 8 bytes: shm compared with a cache line and a bare copy, udp with bare UDP and MPI over TCP.
pub(super) fn pingpong(setting: &Setting, log: &mut Log<'_>) {
    log.say(&format!(
        "half round trip of a reliable {SMALL_BYTES}-byte message (p50, {} rounds in turn, both sides spinning)",
        setting.rounds
    ));
    let plan = compare::Plan {
        op: Op::Pingpong,
        nodes: 2,
        sizes: vec![SMALL_BYTES],
        iterations: Some(setting.round_trips),
        bits_per_second: None,
        rounds: setting.rounds,
    };
    let ground = Ground::HERE;
    // "About 0.6" of MPI's: up to two thirds.
    let beside_udp = [
        (Peer::Bare, Wanted::AtMost(1.15)),
        (Peer::OpenMpi, Wanted::AtMost(0.66)),
        (Peer::Mpich, Wanted::AtMost(0.66)),
    ];
    for link in [LinkSpec::Shm, LinkSpec::Udp(None)] {
        let ours = [Ours::here(link, setting.program.clone())];
        let is_memory = link == LinkSpec::Shm;
        let peers = beside_udp.map(|(peer, _)| peer);
        let peers = if is_memory { &peers[..1] } else { &peers[..] };
        let mut contenders = contest::contenders(&ours, peers, &ground, Op::Pingpong);
        if is_memory {
            contenders.insert(1, contest::cache_line());
        }
        let comparison = log.compare(&plan, &mut contenders);
        if !is_memory {
            log.peers(&comparison, 2..contenders.len());
        }
        let row = &comparison.results[0];
        let wanted: Vec<Wanted> = if is_memory {
            let line = row.contenders[1].numbers.as_ref();
            log.say(&state(line.map_or(f64::NAN, |line| line.headline.median)));
            shm_limits(row.times_better(1, 2)).to_vec()
        } else {
            beside_udp.map(|(_, wanted)| wanted).to_vec()
        };
        for (other, wanted) in (1..).zip(wanted) {
            let name = format!("{link} half round trip, 8 B");
            let ratio = 1.0 / row.times_better(0, other);
            log.pair(name, &comparison, row, (0, other), ratio, wanted);
        }
    }
}

/// Sizes of a sweep: powers of two, and just past the edges.
fn sizes(largest: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (2..usize::BITS)
        .map(|power| 1 << power)
        .chain(PAST_EDGES)
        .filter(|&size| size <= largest)
        .collect();
    sizes.sort_unstable();
    sizes
}

/// Falls of throughput below a smaller message's: index of that message, index of the fallen one, and the fraction left, deepest first.
///
/// With `excused`, a fall counts only as far as the bare exchange does not fall, too, and as far as ours is then slower than the bare exchange:
/// messages larger than the caches come from memory in any case.
pub(super) fn dips(points: &[Point], excused: bool) -> Vec<(usize, usize, f64)> {
    let mut best = 0;
    let mut dips = Vec::new();
    for index in 1..points.len() {
        let left = left_of(points[best], points[index], excused);
        if left < 1.0 {
            dips.push((best, index, left));
        }
        if points[index].bytes_per_second > points[best].bytes_per_second {
            best = index;
        }
    }
    dips.sort_by(|a, b| a.2.total_cmp(&b.2));
    dips
}

fn left_of(best: Point, fallen: Point, excused: bool) -> f64 {
    let left = fallen.bytes_per_second / best.bytes_per_second;
    if !excused {
        return left;
    }
    // A limit that was not measured (NaN) excuses nothing.
    let kept = (fallen.limit_bytes_per_second / best.limit_bytes_per_second).min(1.0);
    let of_the_limit = fallen.bytes_per_second / fallen.limit_bytes_per_second;
    (left / kept).max(of_the_limit)
}

/// Measures one size, ours and the bare exchange, in the order of the round.
fn point(setting: &Setting, link: LinkSpec, size: usize, round: usize) -> Result<Point, String> {
    let cpus = machine::two_cpus();
    let mut plan = Plan::new(Kind::Burst, size);
    plan.iterations = (SWEEP_BYTES / size as u64).clamp(16, SWEEP_MESSAGES_MAX);
    let limit = || match link {
        LinkSpec::Shm => {
            let copied = limits::copy::burst(cpus, size, plan.iterations);
            plan.iterations as f64 * size as f64 / copied.seconds
        }
        _ => limits::udp::burst(cpus, size, plan.iterations)
            .map_or(f64::NAN, |rate| rate * size as f64),
    };
    let mut point = Point {
        size,
        bytes_per_second: f64::NAN,
        limit_bytes_per_second: f64::NAN,
    };
    for contender in order(round, 2) {
        if contender == 0 {
            let measured = ours(setting, link, &plan);
            let failed = |reason: String| format!("{}: {reason}", size_name(size));
            point.bytes_per_second = measured.map_err(failed)?.bytes_per_second;
        } else {
            point.limit_bytes_per_second = limit();
        }
    }
    Ok(point)
}

/// Medians of `rounds` measurements of each size, the sizes in turn.
fn sweep(
    setting: &Setting,
    link: LinkSpec,
    sizes: &[usize],
    rounds: usize,
) -> Result<Vec<Vec<Point>>, String> {
    let mut found = vec![Vec::new(); sizes.len()];
    for round in 0..rounds {
        for index in order(round, sizes.len()) {
            found[index].push(point(setting, link, sizes[index], round)?);
        }
    }
    Ok(found)
}

fn median_of(points: &[Point]) -> Point {
    let median = |of: fn(&Point) -> f64| Rounds::over(points, of);
    Point {
        size: points[0].size,
        bytes_per_second: median(|point| point.bytes_per_second).median,
        limit_bytes_per_second: median(|point| point.limit_bytes_per_second).median,
    }
}

/// The deepest dip that remains when both sizes are measured again in turn: on a machine that changes its speed in the middle of a sweep, most
/// apparent dips are the machine's. Returns the size (0: none) and the fraction left.
fn confirmed_dip(
    setting: &Setting,
    link: LinkSpec,
    points: &[Point],
) -> Result<(usize, f64), String> {
    let mut deepest = (0, 1.0);
    let suspects = dips(points, true);
    let count = suspects.iter().filter(|dip| dip.2 < DIP).count();
    for (best, fallen, _) in suspects.into_iter().take(count.min(SUSPECTS_MAX)) {
        let sizes = [points[best].size, points[fallen].size];
        let found = sweep(setting, link, &sizes, setting.rounds)?;
        let left: Vec<f64> = found[0]
            .iter()
            .zip(&found[1])
            .map(|(&best, &fallen)| left_of(best, fallen, true))
            .collect();
        let left = Rounds::of(&left).median;
        if left < deepest.1 {
            deepest = (sizes[1], left);
        }
    }
    Ok(deepest)
}

/// Throughput over shm and udp for messages from 4 B up, with a search for dips.
pub(super) fn burst(setting: &Setting, log: &mut Log<'_>) {
    let sizes = sizes(setting.burst_bytes_max);
    for link in [LinkSpec::Shm, LinkSpec::Udp(None)] {
        log.say(&format!(
            "throughput over {link} by message size (medians of {} sweeps), beside bare exchange",
            setting.rounds
        ));
        let name = format!(
            "{link} burst, no dip from 4 B to {}",
            size_name(setting.burst_bytes_max)
        );
        let found = sweep(setting, link, &sizes, setting.rounds).and_then(|found| {
            let points: Vec<Point> = found.iter().map(|found| median_of(found)).collect();
            for point in &points {
                log.say(&format!(
                    "  {:>9}  {:>10.1} MB/s  bare {:>10.1} MB/s  {:>12.0} messages/s",
                    size_name(point.size),
                    point.bytes_per_second / 1e6,
                    point.limit_bytes_per_second / 1e6,
                    point.bytes_per_second / point.size as f64
                ));
            }
            let confirmed = confirmed_dip(setting, link, &points)?;
            Ok((points, confirmed))
        });
        let (points, confirmed) = match found {
            Ok(found) => found,
            Err(reason) => {
                log.unmeasured(name, &reason, Wanted::AtLeast(DIP));
                continue;
            }
        };
        let raw = dips(&points, false)
            .first()
            .map_or((0, 1.0), |dip| (points[dip.1].size, dip.2));
        for ((size, left), beside, wanted) in [
            (raw, "best of smaller sizes", Wanted::Nothing),
            (
                confirmed,
                "the same, in turn, where bare exchange keeps it",
                Wanted::AtLeast(DIP),
            ),
        ] {
            let ours = if size == 0 {
                "never falls".to_owned()
            } else {
                format!("lowest at {}", size_name(size))
            };
            log.add(name.clone(), ours, beside, left, wanted);
        }
        log.report.sweeps.push(Sweep {
            link: link.to_string(),
            points,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn points(rates: &[f64]) -> Vec<Point> {
        let point = |(size, &rate): (usize, &f64)| Point {
            size,
            bytes_per_second: rate,
            limit_bytes_per_second: 100.0,
        };
        rates.iter().enumerate().map(point).collect()
    }

    /// A fall is measured from the best before it, not from the neighbour, and the deepest comes first.
    #[test]
    fn falls() {
        assert_eq!(dips(&points(&[1.0, 2.0, 3.0]), false), []);
        let found = dips(&points(&[1.0, 10.0, 8.0, 6.0, 9.0, 20.0]), false);
        assert_eq!(found, [(1, 3, 0.6), (1, 2, 0.8), (1, 4, 0.9)]);
    }

    /// A fall of the limit, too, is no dip of ours.
    #[test]
    fn falls_of_the_limit_are_excused() {
        let mut falling = points(&[1.0, 10.0, 4.0, 6.0]);
        falling[2].limit_bytes_per_second = 50.0;
        assert_eq!(dips(&falling, false)[0], (1, 2, 0.4));
        assert_eq!(dips(&falling, true), [(1, 3, 0.6), (1, 2, 0.8)]);
        falling[3].limit_bytes_per_second = 10.0;
        assert_eq!(dips(&falling, true), [(1, 2, 0.8)]);
        // Ours was ahead of the limit and fell to it: it is at the limit.
        falling[1].limit_bytes_per_second = 5.0;
        falling[2].limit_bytes_per_second = 4.0;
        falling[3].limit_bytes_per_second = 6.0;
        assert_eq!(dips(&falling, true), []);
        // A limit that was not measured excuses nothing.
        falling[2].limit_bytes_per_second = f64::NAN;
        assert_eq!(dips(&falling, true), [(1, 2, 0.4)]);
    }

    /// The target is never faster than a bare copy.
    #[test]
    fn copies_are_the_limit_where_lines_are_near() {
        let verdicts = |copy, ratio| shm_limits(copy).map(|wanted| wanted.verdict(ratio));
        assert_eq!(verdicts(1.5, 1.9), [Verdict::Reached, Verdict::Open]);
        assert_eq!(verdicts(1.5, 2.1), [Verdict::Missed, Verdict::Open]);
        assert_eq!(verdicts(2.2, 0.9), [Verdict::Open, Verdict::Reached]);
        assert_eq!(verdicts(2.2, 1.1), [Verdict::Open, Verdict::Missed]);
        assert!(state(0.05).contains("near: a cache line takes 50 ns"));
        assert!(state(0.2).contains("far"));
    }

    /// The sweep covers its ends and the edges between, in order.
    #[test]
    fn sweep_sizes() {
        let sizes = sizes(64 << 20);
        assert_eq!((sizes[0], sizes[sizes.len() - 1]), (4, 64 << 20));
        assert!(sizes.is_sorted() && sizes.contains(&1500) && sizes.contains(&65537));
    }
}
