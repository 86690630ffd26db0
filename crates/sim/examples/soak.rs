//! Random runs without end, until one fails or the time is over. `make soak MINUTES=60` runs it.
//!
//! ```text
//! cargo run --release -p tsumuji-sim --example soak -- 60
//! TSUMUJI_SEED=0x1234 cargo run --release -p tsumuji-sim --example soak -- 1 credit 3,17,40
//! ```
//!
//! Each run is [`tsumuji_sim::chaos`], of seeds that follow each other, under both congestion controls in turn. A run that fails is
//! shrunk: the steps that it takes are printed, and the command that runs just those. Exit code 1 then.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tsumuji_proto::{Config, Congestion};
use tsumuji_sim::{SEED_VARIABLE, Seed, chaos, config};

/// Between two lines of progress.
const TOLD_EVERY: Duration = Duration::from_secs(10);

struct Failure {
    seed: Seed,
    congestion: Congestion,
    steps: Vec<u16>,
    why: String,
}

fn under(congestion: Congestion) -> Config {
    Config {
        congestion,
        ..config()
    }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: soak MINUTES [credit|suci STEP,STEP,...]; a seed to begin with: {SEED_VARIABLE}"
    );
    ExitCode::from(2)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (minutes, chosen) = match words[..] {
        [minutes] => (minutes, None),
        [minutes, congestion, steps] => (minutes, Some((congestion, steps))),
        _ => return usage(),
    };
    let minutes = minutes.parse::<f64>().ok();
    let Some(minutes) = minutes.filter(|minutes| (0.0..1e6).contains(minutes)) else {
        return usage();
    };
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let first = Seed::from_env_or(clock.map_or(1, |since| since.as_secs() << 24));
    if let Some((name, steps)) = chosen {
        let congestion = name.parse().ok();
        let steps: Result<Vec<u16>, _> = steps.split(',').map(str::parse).collect();
        let (Some(congestion), Ok(steps)) = (congestion, steps) else {
            return usage();
        };
        chaos::run(first, &under(congestion), &steps);
        println!("no failure");
        return ExitCode::SUCCESS;
    }
    std::panic::set_hook(Box::new(|_| {})); // what the judge says is printed once, at the end
    let failure = soak(first, Duration::from_secs_f64(60.0 * minutes));
    let Some(failure) = failure else {
        return ExitCode::SUCCESS;
    };
    let Failure {
        seed,
        congestion,
        steps,
        why,
    } = failure;
    let steps: Vec<String> = steps.iter().map(u16::to_string).collect();
    println!("FAILED under {congestion}, seed {:#x}: {why}", seed.0);
    println!("{} steps of {} do it:", steps.len(), chaos::STEPS);
    println!(
        "{SEED_VARIABLE}={:#x} cargo run --release -p tsumuji-sim --example soak -- 1 {congestion} {}",
        seed.0,
        steps.join(",")
    );
    ExitCode::FAILURE
}

/// Runs of seeds from `first` on, by all processors; the first failure.
fn soak(first: Seed, time: Duration) -> Option<Failure> {
    let all: Vec<u16> = (0..chaos::STEPS).collect();
    let (next, done, ends) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let failure: Mutex<Option<Failure>> = Mutex::new(None);
    let began = Instant::now();
    println!("seeds from {:#x} on, under credit and suci", first.0);
    let work = || {
        while !ends.load(Ordering::Relaxed) && began.elapsed() < time {
            let seed = Seed(first.0.wrapping_add(next.fetch_add(1, Ordering::Relaxed)));
            for congestion in Congestion::ALL {
                let config = under(congestion);
                if let Some(why) = chaos::verdict(seed, &config, &all) {
                    ends.store(true, Ordering::Relaxed);
                    let steps = chaos::shrink(seed, &config).unwrap_or_else(|| all.clone());
                    let why = chaos::verdict(seed, &config, &steps).unwrap_or(why);
                    *failure.lock().expect("nobody panics with it") = Some(Failure {
                        seed,
                        congestion,
                        steps,
                        why,
                    });
                    return;
                }
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(work);
        }
        scope.spawn(|| {
            let mut told = Instant::now();
            while !ends.load(Ordering::Relaxed) && began.elapsed() < time {
                std::thread::park_timeout(Duration::from_millis(200));
                if told.elapsed() >= TOLD_EVERY {
                    told = Instant::now();
                    eprintln!(
                        "{:5.0} s: {} seeds, no failure",
                        began.elapsed().as_secs_f64(),
                        done.load(Ordering::Relaxed)
                    );
                }
            }
        });
        work();
    });
    let seeds = done.load(Ordering::Relaxed);
    println!(
        "{seeds} seeds under each congestion control in {:.0} s",
        began.elapsed().as_secs_f64()
    );
    failure.into_inner().expect("nobody panics with it")
}
