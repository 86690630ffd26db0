//! Asynchronous relaxation by more workers than a machine has cores: the production engine, board, judge and workers, a simulated switch, virtual time.
//! Only computing is not done by the clock: an entry of A takes as long as this machine takes for one when it reads rows from memory, which is measured
//! first (`--value-ps` sets it).
//!
//! `--measured 1,2` runs the same system for real, too, with as many workers on this machine over UDP, and prints both: there an entry takes as long as
//! with so many threads at once. `--cores 2` lets a machine's second core receive and send; what is left of that on the core that computes is
//! measured, too.
//!
//! ```text
//! cargo run --release -p tsumuji-solve --features simulated --example simulated -- --system dense:8000 --workers 1,2 --measured 1,2
//! cargo run --release -p tsumuji-solve --features simulated --example simulated -- --workers 1,2,4,8,16,32,64 --system dense:16000 --rate 10000
//! ```

#[path = "../tests/clusters/mod.rs"]
mod clusters;

use tsumuji_board::Elements;
use tsumuji_sim::Seed;
use tsumuji_solve::distributed::SolveConfig;
use tsumuji_solve::distributed::simulated::machines::{Machines, entry_ps, handover_ns};
use tsumuji_solve::local::Inner;
use tsumuji_solve::system::{Generated, Solution, Source};

/// Rows of a step where what an entry takes is measured.
const STEP_ROWS: usize = 64;
/// Elements of a frame whose handover to the computing core is measured.
const HANDOVER_ELEMENTS: usize = 16;

/// Seconds and laps of the same on this machine, over UDP, each node a thread.
fn measured(case: &Machines) -> (f64, f64) {
    let config = SolveConfig {
        inner: Inner::Sweep,
        elements: case.elements,
        combines: false,
        ..SolveConfig::default()
    };
    let made = Generated::new(case.system, case.seed, Solution::Ones);
    let workers = case.workers as u16;
    let outcome = clusters::solve(
        clusters::Over::Udp,
        workers,
        0.0,
        &Source::Generated(made),
        &config,
    )
    .outcome;
    assert!(outcome.converged, "{}", outcome.reason);
    let laps: u64 = outcome.laps.iter().sum();
    let seconds = outcome.seconds.iterate + outcome.seconds.verify;
    (seconds, laps as f64 / case.workers as f64)
}

/// Prints both, in turn, `ROUNDS` times.
fn validate(case: &Machines, workers: &[usize]) {
    const ROUNDS: usize = 3;
    println!("\nsimulated and measured (this machine, UDP, medians of {ROUNDS})");
    println!("workers  ps an entry  simulated s  measured s  ratio  laps  laps measured");
    for &workers in workers {
        let mut rounds: Vec<_> = (0..ROUNDS)
            .map(|_| {
                let value_ps = entry_ps(&case.system, (workers, workers), STEP_ROWS, &|| false)
                    .expect("nobody stops it");
                let case = Machines {
                    workers,
                    value_ps,
                    ..case.clone()
                };
                let found = case.relax(&|| false).expect("the case was checked");
                let laps: u64 = found.summary.laps.iter().sum();
                let (seconds, real_laps) = measured(&case);
                let laps = laps as f64 / workers as f64;
                (
                    found.seconds / seconds,
                    value_ps,
                    found.seconds,
                    seconds,
                    laps,
                    real_laps,
                )
            })
            .collect();
        rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (ratio, value_ps, simulated, seconds, laps, real_laps) = rounds[ROUNDS / 2];
        println!(
            "{workers:>7} {value_ps:>12} {simulated:>12.4} {seconds:>11.4} {ratio:>6.2} {laps:>5.1} {real_laps:>14.1}"
        );
    }
}

/// Reads `--name VALUE` pairs. Beside the cases: how many workers are measured, too.
fn cases() -> Result<(Vec<Machines>, Vec<usize>), String> {
    let mut case = Machines {
        system: "dense:4000".parse().expect("a system"),
        solution: Solution::Ones,
        workers: 0,
        elements: Elements::Auto,
        frame_bytes: 1_500,
        frame_ns: 500,
        handover_ns: None,
        delay_us: 5..8,
        rate_mbit: 10_000,
        loss_percent: 0,
        value_ps: 0,
        slow: None,
        seed: Seed::from_env_or(1).0,
    };
    let mut workers = vec![1, 2, 4, 8, 16, 32, 64];
    let mut measured = Vec::new();
    let mut cores = 1;
    let words: Vec<String> = std::env::args().skip(1).collect();
    for pair in words.chunks(2) {
        let [name, value] = pair else {
            return Err(format!("{} has no value", pair[0]));
        };
        let number = || {
            value
                .parse::<u64>()
                .map_err(|_| format!("{value} is no number"))
        };
        match name.as_str() {
            "--workers" | "--measured" => {
                let list = value.split(',').map(str::parse);
                let list: Vec<usize> = list
                    .collect::<Result<_, _>>()
                    .map_err(|_| format!("{value} are no numbers"))?;
                *(if name == "--workers" {
                    &mut workers
                } else {
                    &mut measured
                }) = list;
            }
            "--system" => case.system = value.parse().map_err(|error| format!("{error}"))?,
            "--loss" => case.loss_percent = number()? as u32,
            "--rate" => case.rate_mbit = number()?,
            "--elements" => case.elements = Elements::Fixed(number()?.max(1) as usize),
            "--frame-ns" => case.frame_ns = number()?,
            "--handover-ns" => case.handover_ns = Some(number()?),
            "--cores" => {
                cores = number()?;
                if !(1..=2).contains(&cores) {
                    return Err(format!("--cores {cores}: accepted are 1 and 2"));
                }
            }
            "--value-ps" => case.value_ps = number()?,
            "--slow" => case.slow = Some(number()? as usize),
            "--seed" => case.seed = number()?,
            _ => {
                return Err(format!(
                    "{name}: accepted are --workers A,B,…, --measured A,B,…, --system SPEC, --loss PERCENT, --rate MBIT, --elements E, --frame-ns NS, --cores 1|2, --handover-ns NS, --value-ps PS, --slow WORKER, --seed S"
                ));
            }
        }
    }
    if workers
        .iter()
        .chain(&measured)
        .any(|&workers| workers == 0 || workers > case.system.n())
    {
        return Err(format!("--workers: 1 to {}", case.system.n()));
    }
    if case.value_ps == 0 {
        case.value_ps =
            entry_ps(&case.system, (1, 1), STEP_ROWS, &|| false).expect("nobody stops it");
    }
    if cores > 1 && case.handover_ns.is_none() {
        case.handover_ns = Some(handover_ns(HANDOVER_ELEMENTS));
    }
    let with = |workers| Machines {
        workers,
        ..case.clone()
    };
    Ok((workers.into_iter().map(with).collect(), measured))
}

/// Least-squares slope of log time over log workers.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let (mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0);
    for (workers, seconds) in points {
        let (a, b) = (workers.ln(), seconds.ln());
        (x, y, xx, xy) = (x + a, y + b, xx + a * a, xy + a * b);
    }
    (count * xy - x * y) / (count * xx - x * x)
}

fn main() {
    let (cases, measured) = match cases() {
        Ok(cases) => cases,
        Err(what) => {
            eprintln!("simulated: {what}");
            std::process::exit(2);
        }
    };
    let first = &cases[0];
    println!(
        "simulated: {}, {} Mbit/s, {} % of frames lost, {} ps an entry, {} ns a frame",
        first.system, first.rate_mbit, first.loss_percent, first.value_ps, first.frame_ns
    );
    if let Some(handover_ns) = first.handover_ns {
        println!(
            "two cores each: one receives and sends, the other one computes, {handover_ns} ns a frame of it"
        );
    }
    println!("workers  seconds   laps  frames   lost  residual  speed-up");
    let mut points = Vec::new();
    for case in &cases {
        let found = case.relax(&|| false).expect("the case was checked");
        let summary = &found.summary;
        let laps: u64 = summary.laps.iter().sum();
        points.push((case.workers as f64, found.seconds));
        println!(
            "{:>7} {:>8.4} {:>6.1} {:>7} {:>6}  {:>8.1e} {:>9.2}",
            case.workers,
            found.seconds,
            laps as f64 / case.workers as f64,
            found.frames,
            found.lost_frames,
            summary.residual,
            points[0].1 * points[0].0 / found.seconds,
        );
        assert!(summary.reason.is_converged(), "{}", summary.reason);
    }
    if points.len() > 1 {
        println!(
            "slope {:.3} of log seconds over log workers",
            slope(&points)
        );
    }
    if !measured.is_empty() {
        validate(first, &measured);
    }
}
