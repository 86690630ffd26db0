//! Decides by measurement whether relaxation takes the place of the Krylov method that iterates.
//!
//! Owned by the judge's driver. A Krylov method waits in every iteration: for the slowest worker, for sums and elements, and longer where frames are lost.
//! Workers that relax wait for nothing, but do more laps. The rest of the run is predicted both ways: from the iterations and their time so far, and
//! from the laps that the matrix needs. Those are known where it is strictly dominant; otherwise the method stays, and the user is told what it waits for.
//!
//! Left out on purpose: measuring before rows are given out, which was wrong too often (docs/decisions/0080 and 0083).

use super::pace::Worked;
use crate::outlook::largest_ratio;
use crate::plan::STALENESS;
use crate::system::{DENSE_DOMINANCE, Source};
use std::time::{Duration, Instant};

/// The run is measured over this time, twice: what disturbs a worker for once decides nothing.
const WINDOW: Duration = Duration::from_secs(1);
/// ... and over so many iterations.
const ITERATIONS: f64 = 5.0;
/// A rest of the run that is shorter is not worth another method, in seconds.
const LEAST_SECONDS: f64 = 0.5;
/// Relaxation is to take at most this part of the time: the number of laps is an estimate.
const GAIN: f64 = 0.7;
/// Gauss–Seidel takes this part of the laps that dominance allows Jacobi's method: measured on generated dense systems, whose laps a report tells.
const SWEEPS: f64 = 0.5;
/// A worker below this part of the fastest one's speed is slow.
const SLOW: f64 = 0.8;
/// Losses above this part of the frames are told as a cause.
const LOSSY: f64 = 0.01;

/// What was measured while a Krylov method iterated.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measured {
    /// Logarithms by which the residual has fallen, and by which it is still to fall.
    fallen: f64,
    left: f64,
    /// Time and iterations in which it fell.
    seconds: f64,
    iterations: f64,
    /// Seconds that each worker computes in an iteration.
    computing: Vec<f64>,
    /// Rows of each worker.
    rows: Vec<f64>,
    /// Seconds to a worker and back.
    round_trip: f64,
    /// Part of the frames that is lost.
    pub(super) loss: f64,
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Advice {
    /// Relax, for this reason.
    Relax(String),
    /// Go on, and tell the user.
    Tell(String),
}

impl Measured {
    /// Seconds to the end, by the method that iterates. `None`: the residual does not fall at present.
    fn rest(&self) -> Option<f64> {
        (self.fallen > 0.0).then(|| self.left / self.fallen * self.seconds)
    }

    /// The least of the times that workers compute, as part of the longest.
    fn shortest(&self) -> f64 {
        let least = self.computing.iter().copied().fold(f64::INFINITY, f64::min);
        least / self.longest()
    }

    fn longest(&self) -> f64 {
        self.computing.iter().copied().fold(0.0, f64::max)
    }

    /// Takes the judge's round trip, cut to the part of an iteration in which the slowest worker does not compute.
    pub(super) fn note_round_trip(&mut self, seconds: f64) {
        let waits = (self.seconds / self.iterations - self.longest()).max(0.0);
        self.round_trip = seconds.min(waits);
    }

    /// Seconds to the end by relaxation, where the residual falls by a factor of e in `laps`. A lap takes what it would with fair shares, for slow workers
    /// do fewer, but no less than half of the slowest worker's: its rows are renewed by itself only. And values must get across.
    fn relaxed(&self, laps: f64) -> f64 {
        let speeds: f64 = self.computing.iter().map(|seconds| 1.0 / seconds).sum();
        let fair = self.computing.len() as f64 / speeds;
        let lap = fair.max(self.longest() / 2.0) + self.round_trip / 2.0;
        self.left * laps * STALENESS / (1.0 - self.loss.min(0.99)) * lap
    }

    /// What the iterations wait for.
    fn cause(&self) -> String {
        if self.shortest() < SLOW {
            let all = || self.computing.iter().zip(&self.rows);
            let longest = all().max_by(|a, b| a.0.total_cmp(b.0));
            let each = longest.map_or(0.0, |(seconds, rows)| seconds / rows);
            let least = all().map(|(seconds, rows)| seconds / rows);
            let speed = least.fold(f64::INFINITY, f64::min) / each;
            return if speed < SLOW {
                format!("one worker runs at {speed:.2} of another's speed")
            } else {
                let fewest = self.rows.iter().copied().fold(f64::INFINITY, f64::min);
                let more = longest.map_or(0.0, |(_, rows)| rows / fewest);
                format!("one worker has {more:.1} times the rows of another")
            };
        }
        if self.loss > LOSSY {
            return format!("{:.0} % of the frames are lost", 100.0 * self.loss);
        }
        let waits = 1.0 - self.longest() * self.iterations / self.seconds;
        format!(
            "an iteration waits {:.0} % of its time for messages",
            100.0 * waits.max(0.0)
        )
    }

    /// What to do, where the residual falls by a factor of e in `laps` of relaxation, if that is known.
    pub(super) fn advice(&self, laps: Option<f64>) -> Option<Advice> {
        let rest = self.rest().filter(|rest| *rest > LEAST_SECONDS)?;
        let relaxed = laps.map(|laps| self.relaxed(laps));
        if let Some(relaxed) = relaxed.filter(|relaxed| *relaxed <= GAIN * rest) {
            return Some(Advice::Relax(format!(
                "{}; {relaxed:.1} s more are expected by relaxation, not {rest:.1}",
                self.cause()
            )));
        }
        let iteration = self.seconds / self.iterations;
        let alone: f64 = self.computing.iter().sum();
        if alone <= GAIN * iteration {
            return Some(Advice::Tell(format!(
                "{}: one process would be faster, for an iteration takes {:.0} us, and all workers together compute {:.0} us of it",
                self.cause(),
                1e6 * iteration,
                1e6 * alone
            )));
        }
        (self.shortest() < SLOW).then(|| {
            Advice::Tell(format!(
                "{}, and every iteration waits for it: --weights auto shares rows by speed",
                self.cause()
            ))
        })
    }
}

/// Where a window began.
#[derive(Debug)]
struct Begin {
    at: Instant,
    residual: f64,
    workers: Vec<Worked>,
}

/// Windows of measurements, one after the other.
#[derive(Debug, Default)]
pub(super) struct Choice {
    begin: Option<Begin>,
    /// Whether the window before ended with advice of this kind: to relax, or to tell.
    before: Option<bool>,
    /// The user was told.
    told: bool,
    /// Laps in which the residual falls by a factor of e, once they were asked for.
    laps: Option<Option<f64>>,
}

impl Choice {
    /// Nothing iterates, or rows are given out.
    pub(super) fn rest(&mut self) {
        (self.begin, self.before) = (None, None);
    }

    /// Takes the relative residual and what workers have done. At the end of a window: what was measured, but of the link.
    pub(super) fn observe(
        &mut self,
        now: Instant,
        (residual, tolerance): (f64, f64),
        workers: &[Worked],
    ) -> Option<Measured> {
        let begin = self.begin.get_or_insert_with(|| Begin {
            at: now,
            residual,
            workers: workers.to_vec(),
        });
        let team = || (workers.iter().zip(&begin.workers)).filter(|(worker, _)| worker.rows > 0);
        let done = |(now, then): (&Worked, &Worked)| now.laps - then.laps;
        let iterations = team().map(done).fold(f64::INFINITY, f64::min);
        if now - begin.at < WINDOW || iterations < ITERATIONS || iterations.is_infinite() {
            return None;
        }
        let computing = |(now, then): (&Worked, &Worked)| {
            let seconds = (now.busy? - then.busy?) / done((now, then));
            (seconds > 0.0).then_some(seconds)
        };
        let computing: Option<Vec<f64>> = team().map(computing).collect();
        let measured = computing.map(|computing| Measured {
            fallen: (begin.residual / residual).ln(),
            left: (residual / tolerance).ln(),
            seconds: (now - begin.at).as_secs_f64(),
            iterations,
            computing,
            rows: team().map(|(worker, _)| worker.rows as f64).collect(),
            round_trip: 0.0,
            loss: 0.0,
        });
        self.begin = None;
        measured
    }

    /// What is to be done after two windows that say so.
    pub(super) fn conclude(&mut self, measured: &Measured, source: &Source) -> Option<Advice> {
        let long = measured.rest().is_some_and(|rest| rest > LEAST_SECONDS);
        let laps = match long {
            true => *self.laps.get_or_insert_with(|| expected_laps(source)),
            false => None,
        };
        let advice = measured.advice(laps);
        let relaxes = advice
            .as_ref()
            .map(|advice| matches!(advice, Advice::Relax(_)));
        let advice = advice.filter(|_| self.before == relaxes);
        self.before = relaxes;
        let is_news = match &advice {
            Some(Advice::Tell(_)) => !std::mem::replace(&mut self.told, true),
            _ => true,
        };
        advice.filter(|_| is_news)
    }
}

/// Laps in which the residual falls by a factor of e. One pass over a matrix.
fn expected_laps(source: &Source) -> Option<f64> {
    let radius = match source {
        Source::System(system) => largest_ratio(&system.matrix),
        Source::Generated(_) if source.is_dense() => 1.0 / DENSE_DOMINANCE,
        Source::Generated(_) => return None,
    };
    (radius < 1.0).then(|| SWEEPS / -radius.ln())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two workers, a second of a hundred iterations of 10 ms, all of it computing; a half is done.
    fn even() -> Measured {
        Measured {
            fallen: 11.0,
            left: 11.0,
            seconds: 1.0,
            iterations: 100.0,
            computing: vec![9.9e-3, 9.9e-3],
            rows: vec![100.0, 100.0],
            round_trip: 50e-6,
            loss: 0.0,
        }
    }

    fn reason(advice: Option<Advice>) -> String {
        match advice {
            Some(Advice::Relax(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    /// On a healthy cluster a Krylov method that takes fewer steps goes on, and nothing is told.
    #[test]
    fn healthy_runs_go_on() {
        assert_eq!(even().advice(Some(10.0)), None);
        assert_eq!(even().advice(None), None);
    }

    /// Where one worker is slow relaxation follows if its laps are few; if they are unknown the user is told how rows are shared.
    #[test]
    fn stragglers_are_told() {
        let slow = Measured {
            computing: vec![9.9e-3, 0.99e-3],
            ..even()
        };
        let why = reason(slow.advice(Some(10.0)));
        assert!(why.starts_with("one worker runs at 0.10 of"), "{why}");
        let Some(Advice::Tell(told)) = slow.advice(None) else {
            panic!("it is told");
        };
        assert!(told.contains("--weights auto"), "{told}");
        assert_eq!(slow.advice(None), slow.advice(Some(100.0)));
    }

    /// A worker that has most of the rows is not called slow.
    #[test]
    fn shares_are_told() {
        let uneven = Measured {
            computing: vec![9.9e-3, 3.3e-3],
            rows: vec![300.0, 100.0],
            ..even()
        };
        let Some(Advice::Tell(told)) = uneven.advice(None) else {
            panic!("it is told");
        };
        assert!(
            told.starts_with("one worker has 3.0 times the rows"),
            "{told}"
        );
    }

    /// Losses and slow links are causes, too; where workers hardly compute one process is named.
    #[test]
    fn links_are_told() {
        let lossy = Measured {
            computing: vec![1e-3, 1e-3],
            loss: 0.2,
            ..even()
        };
        let why = reason(lossy.advice(Some(10.0)));
        assert!(why.starts_with("20 % of the frames"), "{why}");
        let far = Measured {
            round_trip: 1e-3,
            loss: 0.0,
            ..lossy
        };
        let why = reason(far.advice(Some(10.0)));
        assert!(why.starts_with("an iteration waits 90 %"), "{why}");
        let Some(Advice::Tell(told)) = far.advice(None) else {
            panic!("it is told");
        };
        assert!(told.contains("one process would be faster"), "{told}");
    }

    /// The last moments of a run, and residuals that do not fall, decide nothing.
    #[test]
    fn little_is_left_alone() {
        let slow = Measured {
            computing: vec![9.9e-3, 0.99e-3],
            ..even()
        };
        let last = Measured {
            left: 1.0,
            ..slow.clone()
        };
        assert_eq!(last.advice(Some(1.0)), None);
        let stands = Measured {
            fallen: 0.0,
            ..slow
        };
        assert_eq!(stands.advice(Some(1.0)), None);
    }

    /// It takes two windows to decide, and one is told once.
    #[test]
    fn two_windows_decide() {
        let begin = Instant::now();
        let [source, _] = Source::both("poisson2d:9");
        let mut choice = Choice::default();
        let mut advice = Vec::new();
        for period in 0..60 {
            let seconds = 0.1 * f64::from(period);
            let worked = [0.98, 0.1].map(|busy| Worked {
                rows: 40,
                laps: 100.0 * seconds,
                busy: Some(busy * seconds),
            });
            let residual = (-seconds / 2.0).exp();
            let now = begin + Duration::from_secs_f64(seconds);
            if let Some(measured) = choice.observe(now, (residual, 1e-10), &worked) {
                advice.push(choice.conclude(&measured, &source));
            }
        }
        let told: Vec<usize> = (0..advice.len()).filter(|&k| advice[k].is_some()).collect();
        assert!(advice.len() >= 4, "{advice:?}");
        assert_eq!(told, [1], "{advice:?}");
    }

    /// The laps of strictly dominant matrices are known.
    #[test]
    fn dominance_tells_laps() {
        let [said, seen] = Source::both("dense:50");
        let laps = expected_laps(&said).unwrap();
        assert!((laps - expected_laps(&seen).unwrap()).abs() < 1e-9);
        // To 1e-10.
        assert!((19.0..22.0).contains(&(laps * 1e10f64.ln())), "{laps}");
        for grid in &Source::both("poisson2d:9") {
            assert_eq!(expected_laps(grid), None);
        }
    }
}
