//! Figures of messages: half-round-trips beside the bare machine and MPI, throughput by size beside bare copies.

use tsumuji_node::LinkSpec;

use super::{Point, Report, Say, Setting, Sweep, Wanted, add};
use crate::exchange::{Kind, Measured, Plan, measure};
use crate::limits;
use crate::machine;
use crate::peers::mpi::{Library, Mpi, Transport};
use crate::stats::{Rounds, size_name};
use crate::versus::{Contender, Standing, alternate};

/// The size whose latency is promised.
const SMALL_BYTES: usize = 8;
/// A throughput below this fraction of what a smaller message reached is a dip; the rest is noise between rounds.
const DIP: f64 = 0.9;
/// Payload that one point of the sweep moves, and the most messages it takes.
const SWEEP_BYTES: u64 = 256 << 20;
const SWEEP_MESSAGES_MAX: u64 = 300_000;
/// Sizes just past the places where frames, socket buffers and datagrams end.
const PAST_EDGES: [usize; 4] = [1500, 9001, (16 << 10) + 1, (64 << 10) + 1];

fn ours(setting: &Setting, link: LinkSpec, plan: &Plan) -> Result<Measured, String> {
    measure(plan, link, &setting.serve).map_err(|error| error.to_string())
}

fn micros(standing: &Standing) -> String {
    match &standing.result {
        Ok(rounds) => format!(
            "{:.3} us ({}, +-{:.0} %)",
            rounds.median,
            standing.name,
            rounds.spread_percent() / 2.0
        ),
        Err(reason) => format!("- ({}: {reason})", standing.name),
    }
}

/// p50 of the half-round-trip of 8 bytes: shm beside a cache line and a bare copy, udp beside bare UDP and MPI over TCP.
pub(super) fn pingpong(setting: &Setting, report: &mut Report, say: Say<'_>) {
    let cpus = machine::two_cpus();
    let mut plan = Plan::new(Kind::Pingpong, SMALL_BYTES);
    plan.iterations = setting.round_trips;
    let trips = plan.iterations;
    let half = |link: LinkSpec| {
        let plan = plan.clone();
        Contender::new(format!("tsumuji {link}"), move || {
            Ok(ours(setting, link, &plan)?.half_rtt_us.p50)
        })
    };
    say(&format!(
        "half round trip of a reliable {SMALL_BYTES}-byte message (p50, {} rounds in turn, both sides spinning)",
        setting.rounds
    ));
    let standings = alternate(
        setting.rounds,
        &mut [
            half(LinkSpec::Shm),
            Contender::new("bare cache line", || {
                Ok(limits::cacheline::pingpong(cpus, trips).p50)
            }),
            Contender::new("bare copy", || {
                Ok(limits::copy::pingpong(cpus, SMALL_BYTES, trips).p50)
            }),
        ],
    );
    for (limit, wanted) in [(1, Wanted::AtMost(2.0)), (2, Wanted::Nothing)] {
        let ratio = standings[0].median() / standings[limit].median();
        add(
            report,
            say,
            "shm half round trip, 8 B",
            micros(&standings[0]),
            micros(&standings[limit]),
            ratio,
            wanted,
        );
    }

    let mut contenders = vec![
        half(LinkSpec::Udp(None)),
        Contender::new("bare UDP", || {
            limits::udp::pingpong(cpus, SMALL_BYTES, trips)
                .map(|half| half.p50)
                .map_err(|error| error.to_string())
        }),
    ];
    for library in [Library::OpenMpi, Library::Mpich] {
        match Mpi::build(library) {
            Ok(mpi) => {
                report.peers.push(mpi.version());
                contenders.push(Contender::new(
                    format!("{} over TCP", mpi.version()),
                    move || {
                        mpi.pingpong(Transport::Tcp, SMALL_BYTES, trips)
                            .map(|half| half.p50)
                            .map_err(|error| error.to_string())
                    },
                ));
            }
            Err(error) => contenders
                .push(Contender::new(format!("{library:?} over TCP"), move || {
                    Err(error.to_string())
                })),
        }
    }
    let standings = alternate(setting.rounds, &mut contenders);
    // "About 0.6" of MPI's: two thirds is still about that.
    for (other, wanted) in [
        (1, Wanted::AtMost(1.15)),
        (2, Wanted::AtMost(0.66)),
        (3, Wanted::AtMost(0.66)),
    ] {
        let ratio = standings[0].median() / standings[other].median();
        add(
            report,
            say,
            "udp half round trip, 8 B",
            micros(&standings[0]),
            micros(&standings[other]),
            ratio,
            wanted,
        );
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

/// The deepest fall of throughput below what a smaller message had reached: the size, and the fraction that was left.
///
/// With `excused`, a fall counts only as far as the bare exchange does not fall, too: messages larger than the caches come from
/// memory, whoever carries them.
fn deepest_dip(points: &[Point], excused: bool) -> (usize, f64) {
    let mut best: Option<&Point> = None;
    let mut dip = (0, 1.0);
    for point in points {
        let Some(before) = best else {
            best = Some(point);
            continue;
        };
        let kept = point.limit_bytes_per_second / before.limit_bytes_per_second;
        let excuse = if excused && kept < 1.0 { kept } else { 1.0 };
        let left = point.bytes_per_second / before.bytes_per_second / excuse;
        if left < dip.1 {
            dip = (point.size, left);
        }
        if point.bytes_per_second > before.bytes_per_second {
            best = Some(point);
        }
    }
    dip
}

/// Throughput over shm and udp for messages from 4 B up, with a look for dips.
pub(super) fn burst(setting: &Setting, report: &mut Report, say: Say<'_>) {
    let cpus = machine::two_cpus();
    let sizes = sizes(setting.burst_bytes_max);
    for link in [LinkSpec::Shm, LinkSpec::Udp(None)] {
        say(&format!(
            "throughput over {link} by message size (medians of {} sweeps), beside bare exchange",
            setting.rounds
        ));
        let mut found = vec![(Vec::new(), Vec::new()); sizes.len()];
        let mut failure = None;
        'rounds: for _ in 0..setting.rounds {
            for (&size, (ours_found, limit_found)) in sizes.iter().zip(&mut found) {
                let mut plan = Plan::new(Kind::Burst, size);
                plan.iterations = (SWEEP_BYTES / size as u64).clamp(16, SWEEP_MESSAGES_MAX);
                match ours(setting, link, &plan) {
                    Ok(measured) => ours_found.push(measured.bytes_per_second),
                    Err(reason) => {
                        failure = Some(format!("{}: {reason}", size_name(size)));
                        break 'rounds;
                    }
                }
                limit_found.push(match link {
                    LinkSpec::Shm => limits::copy::burst(cpus, size, plan.iterations) * size as f64,
                    _ => limits::udp::burst(cpus, size, plan.iterations)
                        .map_or(f64::NAN, |burst| burst.messages_per_second * size as f64),
                });
            }
        }
        let name = format!(
            "{link} burst, no dip from 4 B to {}",
            size_name(setting.burst_bytes_max)
        );
        if let Some(reason) = failure {
            add(
                report,
                say,
                name,
                format!("- ({reason})"),
                "-".to_owned(),
                f64::NAN,
                Wanted::AtLeast(DIP),
            );
            continue;
        }
        let points: Vec<Point> = sizes
            .iter()
            .zip(&found)
            .map(|(&size, (ours, limit))| Point {
                size,
                bytes_per_second: Rounds::of(ours).median,
                limit_bytes_per_second: Rounds::of(limit).median,
            })
            .collect();
        for point in &points {
            say(&format!(
                "  {:>9}  {:>10.1} MB/s  bare {:>10.1} MB/s  {:>12.0} messages/s",
                size_name(point.size),
                point.bytes_per_second / 1e6,
                point.limit_bytes_per_second / 1e6,
                point.bytes_per_second / point.size as f64
            ));
        }
        for (excused, beside, wanted) in [
            (false, "best of smaller sizes", Wanted::Nothing),
            (
                true,
                "the same, where bare exchange keeps it",
                Wanted::AtLeast(DIP),
            ),
        ] {
            let (size, left) = deepest_dip(&points, excused);
            let ours = if size == 0 {
                "never falls".to_owned()
            } else {
                format!("lowest at {}", size_name(size))
            };
            add(
                report,
                say,
                name.clone(),
                ours,
                beside.to_owned(),
                left,
                wanted,
            );
        }
        report.sweeps.push(Sweep {
            link: link.to_string(),
            points,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(rates: &[f64]) -> Vec<Point> {
        let point = |(size, &rate): (usize, &f64)| Point {
            size,
            bytes_per_second: rate,
            limit_bytes_per_second: 1.0,
        };
        rates.iter().enumerate().map(point).collect()
    }

    /// The deepest fall is found against the best before it, not against the neighbour.
    #[test]
    fn dips() {
        assert_eq!(deepest_dip(&points(&[1.0, 2.0, 3.0]), false), (0, 1.0));
        assert_eq!(
            deepest_dip(&points(&[1.0, 10.0, 8.0, 6.0, 9.0, 20.0]), false),
            (3, 0.6)
        );
    }

    /// What the limit loses, too, is no dip of ours; what it loses more is none either.
    #[test]
    fn dips_of_the_limit_are_excused() {
        let mut falling = points(&[1.0, 10.0, 4.0, 6.0]);
        falling[2].limit_bytes_per_second = 0.5;
        assert_eq!(deepest_dip(&falling, false), (2, 0.4));
        assert_eq!(deepest_dip(&falling, true), (3, 0.6));
        falling[3].limit_bytes_per_second = 0.1;
        assert_eq!(deepest_dip(&falling, true), (2, 0.8));
    }

    /// The sweep covers its ends and the edges between, in order.
    #[test]
    fn sweep_sizes() {
        let sizes = sizes(64 << 20);
        assert_eq!((sizes[0], sizes[sizes.len() - 1]), (4, 64 << 20));
        assert!(sizes.is_sorted() && sizes.contains(&1500) && sizes.contains(&65537));
    }
}
