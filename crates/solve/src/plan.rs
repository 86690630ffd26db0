//! What a run will take, before it runs: each method's steps and time on this machine, and the time over the number of workers.
//!
//! Called by the command line (`--plan`). Steps are extrapolated from a short trial of each method on the system itself, divided as in the run, times from
//! what its steps took; only a factorisation is counted instead of tried. Times of several workers are computed: the work of one divided, and for each step what the link
//! takes ([`LinkModel`]) for the elements that workers read of each other and, for Krylov methods, for sums.
//!
//! Left out on purpose: what preconditioners and blocks lose where rows are divided into other numbers of parts than in the trial, and what workers of
//! one host lose by sharing its memory.

use crate::distributed::Krylov;
use crate::krylov::{self, End, Kind, Patience};
use crate::local::{Inner, Limits, Relaxation, direct, single, threads};
use crate::method::between;
use crate::outlook::{Outlook, is_symmetric};
use crate::report::Progress;
use crate::system::{Matrix, RowBlock, Source, System, partition};
use serde::Serialize;
use std::time::Instant;

/// Iterations or laps of a trial, of which the later half counts: the first ones tell little of the others.
const STEPS_TRIED: u64 = 10_000;
/// A trial ends after this time.
const TRIAL_SECONDS: f64 = 1.0;
/// Multiplications a second of a sparse and a dense factorisation: assumed.
const SPARSE_RATE: f64 = 2e9;
const DENSE_RATE: f64 = 2e10;
/// The order of a sparse factorisation, a row: assumed.
const ORDER_SECONDS: f64 = 7e-7;
/// Bytes that one core reads a second: assumed.
const BYTES_A_SECOND: f64 = 8e9;
/// A frame that was lost is sent again after this time, at least: assumed.
const AGAIN_SECONDS: f64 = 5e-4;
/// Most workers that are considered.
const WORKERS_MOST: usize = 1024;
/// Most parts of a trial, each a thread.
const PARTS_MOST: usize = 8;

/// What the run was asked for.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// Workers or threads, each with its part of the rows.
    pub parts: usize,
    /// How laps are done, and whether they are combined (GCR).
    pub relaxation: (Relaxation, bool),
    /// The Krylov method; `None`: the one that suits the system.
    pub krylov: Option<Krylov>,
}

/// Latency and costs of a link.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LinkModel {
    /// Its name.
    pub name: String,
    /// One way of a short message, in seconds, as `tsumuji bench pingpong` measures it.
    pub latency: f64,
    /// Processor time of a frame, sent and received.
    pub frame: f64,
    /// Payload of a frame in bytes.
    pub frame_bytes: usize,
    /// Rate of one node's cable, in bit/s.
    pub bits_per_second: f64,
}

/// One method.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// Its name.
    pub method: String,
    /// Iterations or laps to the tolerance; `None`: none, or the trial came no nearer.
    pub steps: Option<u64>,
    /// Seconds before the first step and, of Krylov methods, of exact residuals.
    pub setup_seconds: f64,
    /// Seconds of a step.
    pub step_seconds: f64,
    /// Seconds in all; `None`: it would not get there.
    pub seconds: Option<f64>,
    /// Where the numbers come from.
    pub from: String,
}

impl Prediction {
    fn of_steps(method: String, steps: Option<u64>, times: (f64, f64), from: String) -> Self {
        let (setup_seconds, step_seconds) = times;
        Self {
            method,
            steps,
            setup_seconds,
            step_seconds,
            seconds: steps.map(|steps| setup_seconds + steps as f64 * step_seconds),
            from,
        }
    }
}

/// The time of several workers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct AtWorkers {
    /// Workers.
    pub workers: usize,
    /// The Krylov method's seconds; `None`: it would not get there.
    pub krylov: Option<f64>,
    /// Relaxation's.
    pub relaxation: Option<f64>,
}

/// A plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// Expected convergence of relaxation.
    pub outlook: Outlook,
    /// Parts into which the trials divided the rows.
    pub parts: usize,
    /// Each method, with the seconds of one thread, fastest first; those that would not get there last.
    pub methods: Vec<Prediction>,
    /// The link that workers are taken to have.
    pub link: LinkModel,
    /// Times of 1, 2, 4 … workers.
    pub workers: Vec<AtWorkers>,
    /// The number of workers beyond which the time of the Krylov method rises.
    pub krylov_best: usize,
    /// The same for relaxation.
    pub relaxation_best: usize,
}

/// Makes a plan by trials of some seconds. `system` is not changed; relaxation works on a copy.
pub fn plan(system: &System, limits: Limits, asked: Asked, link: LinkModel) -> Plan {
    let outlook = Outlook::of_system(system, 1.0, limits.tolerance());
    let parts = asked.parts.clamp(1, PARTS_MOST.min(system.n()));
    let asked = Asked { parts, ..asked };
    let krylov = krylov_trial(system, limits, asked);
    let relaxation = relaxation_trial(system, limits, asked);
    let numbers: Vec<usize> = std::iter::successors(Some(1), |workers| Some(2 * workers))
        .take_while(|&workers| workers <= WORKERS_MOST.min(system.n()))
        .collect();
    let at = |workers: usize| {
        let reads = reads_most(system, workers);
        AtWorkers {
            workers,
            krylov: krylov_time(&krylov, workers, reads, &link),
            relaxation: relaxation_time((&relaxation, asked), workers, reads, &link),
        }
    };
    let workers: Vec<AtWorkers> = numbers.into_iter().map(at).collect();
    let best = |time: fn(&AtWorkers) -> Option<f64>| {
        let timed = workers
            .iter()
            .filter_map(|at| Some((at.workers, time(at)?)));
        let best = timed.min_by(|a, b| a.1.total_cmp(&b.1));
        best.map_or(1, |(workers, _)| workers)
    };
    let (krylov_best, relaxation_best) = (best(|at| at.krylov), best(|at| at.relaxation));
    let mut methods = vec![direct_count(system), krylov.prediction, relaxation];
    methods.sort_by(|a, b| {
        let seconds = |one: &Prediction| one.seconds.unwrap_or(f64::INFINITY);
        seconds(a).total_cmp(&seconds(b))
    });
    Plan {
        outlook,
        parts,
        methods,
        link,
        workers,
        krylov_best,
        relaxation_best,
    }
}

/// A Krylov method's prediction, and what its steps exchange.
struct Tried {
    prediction: Prediction,
    sums_a_step: f64,
}

/// How many of the threads of a trial compute at a time.
fn at_once(parts: usize) -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    parts.min(cores) as f64
}

/// Steps of as many parts; times of one, because threads of a trial wait for each other where the run's workers exchange.
fn krylov_trial(system: &System, limits: Limits, asked: Asked) -> Tried {
    let tried = krylov_trial_in(system, limits, asked);
    if asked.parts == 1 {
        return tried;
    }
    let alone = krylov_trial_in(system, limits, Asked { parts: 1, ..asked }).prediction;
    let one = tried.prediction;
    let times = (alone.setup_seconds, alone.step_seconds);
    Tried {
        prediction: Prediction::of_steps(one.method, one.steps, times, one.from),
        ..tried
    }
}

fn krylov_trial_in(system: &System, limits: Limits, asked: Asked) -> Tried {
    let suited = || between::suited_to(&system.matrix).0;
    let krylov = asked.krylov.unwrap_or_else(suited);
    let tried = limits_of_trial(limits);
    let began = Instant::now();
    let stop = || began.elapsed().as_secs_f64() > TRIAL_SECONDS;
    let (mut moments, mut seen) = (Vec::new(), Vec::new());
    let ranges = partition(&system.matrix, asked.parts).expect("no more parts than rows");
    let block = RowBlock::cut(system, 0..system.n());
    let solved = krylov::solve(
        &block,
        ranges,
        (krylov.kind, krylov.preconditioning),
        None,
        &Patience::unlimited(tried),
        &mut |progress: Progress| {
            moments.push(began.elapsed().as_secs_f64());
            seen.push(progress.residual_estimate);
        },
        &stop,
    );
    let (done, residual) = (solved.ended.iterations.max(1), solved.ended.residual);
    let steps = match solved.ended.end {
        End::Converged => Some(done),
        _ => from_later_half(&numbered(&seen), limits),
    };
    // Exact residuals are no steps.
    let mut spans: Vec<f64> = moments.windows(2).map(|pair| pair[1] - pair[0]).collect();
    spans.sort_by(f64::total_cmp);
    let all = solved.iterate_seconds;
    let step_seconds = spans
        .get(spans.len() / 2)
        .map_or(all / done as f64, |&span| span);
    let besides = (all - done as f64 * step_seconds).max(0.0);
    let from = format!("{done} iterations, to a residual of {residual:.1e}");
    Tried {
        prediction: Prediction::of_steps(
            format!("{} with {}", krylov.kind.name(), solved.preconditioner),
            steps,
            (solved.setup_seconds + besides, step_seconds),
            from,
        ),
        sums_a_step: sums_a_step(krylov.kind),
    }
}

fn sums_a_step(kind: Kind) -> f64 {
    match kind {
        Kind::Cg => 2.0,
        Kind::Gmres => 1.2,
    }
}

fn relaxation_trial(system: &System, limits: Limits, asked: Asked) -> Prediction {
    let (relaxation, combines) = asked.relaxation;
    let name = match combines {
        true => "relaxation, laps combined (GCR)",
        false => "relaxation, laps alone",
    };
    let laps = limits_of_trial(limits);
    let began = Instant::now();
    let mut seen: Vec<(f64, f64)> = Vec::new();
    let watch = |progress: Progress| {
        // Until all have done a lap there is no estimate.
        if progress.residual_estimate.is_finite() {
            seen.push((progress.laps_max as f64, progress.residual_estimate));
        }
    };
    let stop = || began.elapsed().as_secs_f64() > TRIAL_SECONDS;
    let system = system.clone();
    let tried = match asked.parts {
        1 => single::solve(system, (relaxation, combines), laps, watch, stop)
            .map_err(|error| error.to_string()),
        parts => threads::solve(system, parts, (relaxation, combines), laps, watch, stop)
            .map_err(|error| error.to_string()),
    };
    let outcome = match tried {
        Ok(outcome) => outcome,
        Err(error) => return Prediction::of_steps(name.to_owned(), None, (0.0, 0.0), error),
    };
    let done = outcome.laps.iter().max().copied().unwrap_or(0).max(1);
    let steps = if outcome.converged {
        Some(done)
    } else {
        from_later_half(&seen, limits)
    };
    let at_once = at_once(asked.parts);
    let seconds = outcome.seconds;
    let times = (
        at_once * seconds.distribute,
        at_once * (seconds.iterate + seconds.verify) / done as f64,
    );
    let from = format!("{done} laps, to a residual of {:.1e}", outcome.residual);
    Prediction::of_steps(name.to_owned(), steps, times, from)
}

fn limits_of_trial(limits: Limits) -> Limits {
    Limits::new(limits.tolerance(), STEPS_TRIED.min(limits.max_laps())).unwrap_or(limits)
}

/// Residuals with the numbers of their steps.
fn numbered(residuals: &[f64]) -> Vec<(f64, f64)> {
    (1..)
        .map(f64::from)
        .zip(residuals.iter().copied())
        .collect()
}

/// Steps to the tolerance where the residuals after some steps were `seen`, if it goes on falling as in the later half. `None`: it did not fall.
fn from_later_half(seen: &[(f64, f64)], limits: Limits) -> Option<u64> {
    let (&(done, last), &(before, middle)) = (seen.last()?, seen.get(seen.len() / 2)?);
    let fall = (middle / last).ln() / (done - before);
    let left = (last / limits.tolerance()).max(1.0).ln();
    (fall > 1e-9 && fall.is_finite()).then(|| (done + left / fall).ceil() as u64)
}

fn direct_count(system: &System) -> Prediction {
    let symmetric = is_symmetric(&system.matrix);
    let rate = if system.matrix.is_dense() {
        DENSE_RATE
    } else {
        SPARSE_RATE
    };
    match direct::cost(&system.matrix, symmetric) {
        Ok(cost) => {
            let order = if system.matrix.is_dense() {
                0.0
            } else {
                ORDER_SECONDS * system.n() as f64
            };
            let seconds = order + cost.multiplications / rate + 3.0 * cost.entries / SPARSE_RATE;
            Prediction {
                method: "a factorisation".to_owned(),
                steps: None,
                setup_seconds: seconds,
                step_seconds: 0.0,
                seconds: Some(seconds),
                from: format!(
                    "{:.1e} entries and {:.1e} multiplications, counted",
                    cost.entries, cost.multiplications
                ),
            }
        }
        Err(error) => Prediction::of_steps(
            "a factorisation".to_owned(),
            None,
            (0.0, 0.0),
            error.to_string(),
        ),
    }
}

/// Elements that the worker that reads most reads of others.
fn reads_most(system: &System, workers: usize) -> usize {
    if workers == 1 {
        return 0;
    }
    let n = system.n();
    match (&system.matrix, partition(&system.matrix, workers)) {
        (Matrix::Sparse(_), Ok(ranges)) => ranges
            .into_iter()
            .map(|rows| RowBlock::cut(system, rows).foreign_columns().len())
            .max()
            .unwrap_or(0),
        _ => n - n / workers,
    }
}

/// Seconds for `bytes` to arrive at one node, in as many frames as they fill.
fn arrival(bytes: f64, link: &LinkModel) -> f64 {
    let frames = (bytes / link.frame_bytes as f64).ceil();
    link.latency + frames * link.frame + 8.0 * bytes / link.bits_per_second
}

fn krylov_time(tried: &Tried, workers: usize, reads: usize, link: &LinkModel) -> Option<f64> {
    let one = &tried.prediction;
    let steps = one.steps? as f64;
    let compute = one.step_seconds / workers as f64;
    let exchange = if workers == 1 {
        0.0
    } else {
        let rounds = (workers as f64).log2().ceil();
        arrival(8.0 * reads as f64, link) + tried.sums_a_step * rounds * (link.latency + link.frame)
    };
    Some(one.setup_seconds / workers as f64 + steps * (compute + exchange))
}

/// One process is named where it is expected to take at most this part of the time.
const ALONE_GAIN: f64 = 0.7;

/// Why one process is expected to iterate faster than `workers` over `link`, which loses this part of its frames. Computed, without a trial.
pub fn alone_is_faster(
    source: &Source,
    workers: usize,
    link: &LinkModel,
    loss: f64,
) -> Option<String> {
    let bytes = match source {
        Source::System(system) => system.matrix.bytes() as f64,
        Source::Generated(made) => made.what.memory_bytes() as f64,
    };
    // Sparse rows are read by a product and by a preconditioner; those of conjugate gradients multiply, too. How many of their elements others read is not
    // known yet: as at the edge of a grid.
    let n = source.rows();
    let (krylov, _) = between::choose(source);
    let (passes, reads) = match (source.is_dense(), krylov.kind) {
        (true, _) => (1.0, n),
        (false, Kind::Cg) => (1.0, n.isqrt()),
        (false, Kind::Gmres) => (2.0, n.isqrt()),
    };
    let alone = passes * bytes / BYTES_A_SECOND;
    let sums = sums_a_step(krylov.kind) * (workers as f64).log2().ceil();
    let exchange = arrival(8.0 * reads as f64, link)
        + sums * (link.latency + link.frame)
        + (1.0 + sums) * loss * AGAIN_SECONDS;
    let shared = alone / workers as f64 + exchange;
    (workers > 1 && alone < ALONE_GAIN * shared).then(|| {
        format!(
            "one process is expected to iterate faster: {} an iteration, {} by {workers} workers over {} (computed)",
            microseconds(alone),
            microseconds(shared),
            link.name
        )
    })
}

/// As text: of a few of them with a digit behind the point.
fn microseconds(seconds: f64) -> String {
    match 1e6 * seconds {
        few if few < 0.1 => "less than 0.1 us".to_owned(),
        few if few < 10.0 => format!("{few:.1} us"),
        many => format!("{many:.0} us"),
    }
}

/// Laps that values of the lap before cost several workers: assumed.
pub(crate) const STALENESS: f64 = 1.15;

/// Where one part was solved by its factors, that says nothing of several: `None`.
fn relaxation_time(
    (one, asked): (&Prediction, Asked),
    workers: usize,
    reads: usize,
    link: &LinkModel,
) -> Option<f64> {
    let steps = one.steps? as f64;
    if workers == 1 {
        return Some(one.setup_seconds + steps * one.step_seconds);
    }
    let staleness = match (asked.parts, asked.relaxation.0.inner()) {
        (1, Inner::Sweep) => STALENESS,
        (1, _) => return None,
        // Laps of several parts have met it.
        _ => 1.0,
    };
    // A lap computes while values arrive; frames cost the computing core, the cable does not.
    let bytes = 8.0 * reads as f64;
    let frames = (bytes / link.frame_bytes as f64)
        .ceil()
        .max(workers as f64 - 1.0);
    let busy = one.step_seconds / workers as f64 + frames * link.frame;
    let wire = 8.0 * bytes / link.bits_per_second;
    Some(one.setup_seconds / workers as f64 + staleness * steps * busy.max(wire))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::krylov::Preconditioning;
    use crate::system::{Generate, Generated, Solution};

    fn gigabit() -> LinkModel {
        LinkModel {
            name: "udp".into(),
            latency: 20e-6,
            frame: 2e-6,
            frame_bytes: 1400,
            bits_per_second: 1e9,
        }
    }

    fn sweeps() -> Asked {
        Asked {
            parts: 1,
            relaxation: (Relaxation::new(Inner::Sweep, 1.0).unwrap(), false),
            krylov: None,
        }
    }

    fn of(text: &str, asked: Asked) -> Plan {
        let what = text.parse::<Generate>().unwrap();
        let system = what.system_for(1, Solution::Random).unwrap();
        let limits = Limits::new(1e-10, 100_000).unwrap();
        plan(&system, limits, asked, gigabit())
    }

    fn steps(plan: &Plan, name: &str) -> Option<u64> {
        let of = plan.methods.iter().find(|one| one.method.contains(name));
        of.unwrap().steps
    }

    /// A dominant system converges within the trials: their steps are known, and the best number of workers is that with the
    /// least time.
    #[test]
    fn dominant_systems_are_known_exactly() {
        let plan = of("dense:700", sweeps());
        assert!(
            (2..=8).contains(&steps(&plan, "GMRES").unwrap()),
            "{plan:?}"
        );
        assert!((15..=40).contains(&steps(&plan, "relaxation").unwrap()));
        let fastest = |seconds: fn(&AtWorkers) -> Option<f64>| {
            let known = plan
                .workers
                .iter()
                .filter_map(|at| Some((at.workers, seconds(at)?)));
            known.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0
        };
        assert_eq!(plan.krylov_best, fastest(|at| at.krylov), "{plan:?}");
        assert_eq!(
            plan.relaxation_best,
            fastest(|at| at.relaxation),
            "{plan:?}"
        );
        assert_eq!(plan.workers[0].workers, 1);
    }

    /// Of slow systems the steps are extrapolated by the rate of the later half of a trial; what does not fall is not promised.
    #[test]
    fn slow_systems_are_extrapolated() {
        let limits = Limits::new(1e-10, 100_000).unwrap();
        // A decade in 25 steps, from the middle on in 10.
        let decades = |step: f64| (step / 25.0).max(2.0 + (step - 50.0) / 10.0);
        let seen: Vec<f64> = (0..100u8)
            .map(|step| 0.1_f64.powf(decades(step.into())))
            .collect();
        let needed = from_later_half(&numbered(&seen), limits).unwrap();
        assert!((128..=134).contains(&needed), "{needed}");
        assert_eq!(from_later_half(&numbered(&[1.0; 50]), limits), None);
        assert_eq!(
            from_later_half(&numbered(&[1.0, 2.0, f64::NAN]), limits),
            None
        );
        assert_eq!(from_later_half(&[], limits), None);
        let plan = of("poisson2d:60", sweeps());
        assert!(steps(&plan, "relaxation").unwrap() > 200);
        assert!(steps(&plan, "conjugate").unwrap() < 200);
        assert!(plan.methods[0].seconds <= plan.methods[1].seconds);
    }

    /// What is tried is what was asked for: blocks by their factors, combined laps, as many parts, the Krylov method by name.
    #[test]
    fn trials_are_of_what_is_asked() {
        let asked = Asked {
            parts: 2,
            relaxation: (Relaxation::new(Inner::Lu, 1.0).unwrap(), true),
            krylov: Some(Krylov {
                kind: Kind::Gmres,
                preconditioning: Preconditioning::Jacobi,
            }),
        };
        let plan = of("poisson2d:60", asked);
        assert_eq!(plan.parts, 2);
        // Sweeps alone take thousands; a thread that waits for a core adds to those of the other one.
        let laps = steps(&plan, "combined").unwrap();
        assert!(laps < 4_000, "{plan:?}");
        assert!(plan.workers[1].relaxation.is_some());
        let alone = of("poisson2d:60", Asked { parts: 1, ..asked });
        let known = alone.workers.iter().map(|at| at.relaxation.is_some());
        assert!(known.eq(alone.workers.iter().map(|at| at.workers == 1)));
        let iterations = steps(&plan, "GMRES with Jacobi").unwrap();
        assert!(iterations > 60, "{plan:?}");
    }

    /// Small systems, and larger ones on links that lose much, are better solved by one process.
    #[test]
    fn one_process_is_named_where_it_is_faster() {
        let faster = |text: &str, workers, loss| {
            let made = Generated::new(text.parse().unwrap(), 1, Solution::Ones);
            alone_is_faster(&Source::Generated(made), workers, &gigabit(), loss)
        };
        let why = faster("poisson2d:30", 2, 0.0).unwrap();
        assert!(why.contains("by 2 workers over udp"), "{why}");
        assert_eq!(microseconds(3e-8), "less than 0.1 us");
        assert_eq!(microseconds(2.04e-6), "2.0 us");
        assert_eq!(microseconds(3.21e-4), "321 us");
        assert_eq!(faster("poisson2d:30", 1, 0.0), None);
        assert_eq!(faster("dense:3000", 8, 0.0), None);
        assert_eq!(faster("poisson2d:300", 2, 0.0), None);
        assert!(faster("poisson2d:100", 2, 0.9).is_some());
    }

    /// A slower link moves the best number of workers down.
    #[test]
    fn slow_links_want_few_workers() {
        let system = "poisson2d:60"
            .parse::<Generate>()
            .unwrap()
            .system(1)
            .unwrap();
        let limits = Limits::new(1e-10, 100_000).unwrap();
        let slow = LinkModel {
            latency: 1e-3,
            ..gigabit()
        };
        assert_eq!(plan(&system, limits, sweeps(), slow).krylov_best, 1);
    }
}
