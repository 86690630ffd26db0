//! How near dense sweeps, and asynchronous relaxation as a whole, come to the memory's limit, with one thread and with two.
//!
//! `cargo run --release -p tsumuji-solve --example dense_bandwidth -- [N] [LAPS]` prints, for `dense:N` (default
//! 10000), GB/s of a streaming sum over the matrix and of Gauss–Seidel sweeps over it, measured in turn; then of the laps of as many workers that relax over
//! shared memory until the tolerance is met, verification excluded.

#[path = "../tests/clusters/mod.rs"]
mod clusters;

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;
use tsumuji_solve::distributed::{Input, SolveConfig};
use tsumuji_solve::local::{Inner, Relaxation, Sweeper, kernels};
use tsumuji_solve::system::{Generate, RowBlock, RowValues, Solution};

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|text| text.parse::<usize>().expect("a whole number"));
    let n = arguments.next().unwrap_or(10_000);
    let laps = arguments.next().unwrap_or(5);
    println!(
        "dense:{n}, {:.2} GB, best of {laps} passes",
        (n * n * 8) as f64 / 1e9
    );
    let generate = Generate::Dense { n };
    println!("threads  sum GB/s  sweep GB/s  sweep/sum  relaxation GB/s  relaxation/sum");
    for threads in [1, 2] {
        let shares: Vec<Range<usize>> = (0..threads)
            .map(|t| t * n / threads..(t + 1) * n / threads)
            .collect();
        let relaxation = Relaxation::new(Inner::Sweep, 1.0).expect("omega is 1");
        let mut sweepers: Vec<Sweeper> = shares
            .iter()
            .map(|rows| {
                Sweeper::new(generate.rows(rows.clone(), 1, Solution::Ones), relaxation)
                    .expect("sweeps need nothing")
            })
            .collect();
        let (mut sum, mut sweep) = (f64::INFINITY, f64::INFINITY);
        let mut x = vec![vec![0.0; n]; threads];
        for _ in 0..laps {
            sum = sum.min(timed(&mut sweepers, &mut x, |sweeper, _| {
                stream(sweeper.block());
            }));
            sweep = sweep.min(timed(&mut sweepers, &mut x, |sweeper, x| {
                for rows in sweeper.lap(256) {
                    black_box(sweeper.relax(rows, x));
                }
            }));
        }
        let gigabytes = (n * n * 8) as f64 / 1e9;
        drop(sweepers); // their memory is needed
        let lap = relaxed(generate, threads);
        println!(
            "{threads:7}  {:8.2}  {:10.2}  {:9.2}  {:15.2}  {:14.2}",
            gigabytes / sum,
            gigabytes / sweep,
            sum / sweep,
            gigabytes / lap,
            sum / lap
        );
    }
}

/// Seconds a lap of `workers` workers that relax asynchronously.
fn relaxed(generate: Generate, workers: usize) -> f64 {
    let config = SolveConfig {
        inner: Inner::Sweep,
        ..SolveConfig::default()
    };
    let input = Input::Generate(&generate);
    let outcome = clusters::solve(clusters::Over::Shm, workers as u16, 0.0, input, &config).outcome;
    let laps: u64 = outcome.laps.iter().sum();
    outcome.seconds.iterate * workers as f64 / laps as f64
}

/// Sums every entry of the block, as fast as it can be read.
fn stream(block: &RowBlock) {
    let RowValues::Dense(values) = &block.values else {
        unreachable!("dense rows were asked for");
    };
    black_box(kernels::sum(values));
}

/// Seconds until every sweeper, each on its own thread, has done `work`.
fn timed(
    sweepers: &mut [Sweeper],
    x: &mut [Vec<f64>],
    work: impl Fn(&mut Sweeper, &mut [f64]) + Sync,
) -> f64 {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for (sweeper, x) in sweepers.iter_mut().zip(x) {
            let work = &work;
            scope.spawn(move || work(sweeper, x));
        }
    });
    begin.elapsed().as_secs_f64()
}
