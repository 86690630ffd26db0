//! How the residual fell: `--history` as CSV, `--plot` as SVG.

use std::fmt::Write as _;

use tsumuji_bench::plot::{self, PlotError};
use tsumuji_solve::report::{Outcome, Progress};

/// A moment of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Moment {
    seconds: f64,
    laps_min: u64,
    laps_max: u64,
    residual: f64,
    is_verified: bool,
}

/// All moments that were told of; the last one is the verified end.
#[derive(Debug, Default)]
pub(super) struct History(Vec<Moment>);

impl History {
    pub(super) fn note(&mut self, progress: &Progress) {
        self.0.push(Moment {
            seconds: progress.elapsed.as_secs_f64(),
            laps_min: progress.laps_min,
            laps_max: progress.laps_max,
            residual: progress.residual_estimate,
            is_verified: false,
        });
    }

    pub(super) fn end(&mut self, outcome: &Outcome) {
        if outcome.laps.is_empty() {
            return; // there is no result
        }
        // The last estimate may have been told of after the clocks of the outcome had stopped.
        let last = self.0.last().map_or(0.0, |moment| moment.seconds);
        self.0.push(Moment {
            seconds: last.max(outcome.seconds.iterate + outcome.seconds.verify),
            laps_min: outcome.laps.iter().copied().min().unwrap_or(0),
            laps_max: outcome.laps.iter().copied().max().unwrap_or(0),
            residual: outcome.residual,
            is_verified: true,
        });
    }

    /// The moments as CSV.
    pub(super) fn csv(&self) -> String {
        let mut text = String::from("seconds,laps_min,laps_max,residual,verified\n");
        for one in &self.0 {
            let Moment {
                seconds,
                laps_min,
                laps_max,
                residual,
                is_verified,
            } = one;
            let _ = writeln!(
                text,
                "{seconds:.6},{laps_min},{laps_max},{residual:e},{is_verified}"
            ); // into memory
        }
        text
    }

    /// Draws the residual over time.
    pub(super) fn draw(&self, title: &str) -> Result<String, PlotError> {
        let points = self.0.iter().filter(|one| one.residual.is_finite());
        let points = points.map(|one| (one.seconds, one.residual));
        let line = plot::Line::new("residual (the last one is verified)", points);
        plot::over_time(title, "relative residual", &[line])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A residual of 0 is drawn, too, at the bottom.
    #[test]
    fn zeros_are_drawn() {
        let mut history = History::default();
        history.note(&Progress {
            distributed: 1.0,
            laps_min: 1,
            laps_max: 1,
            residual_estimate: 0.0,
            elapsed: Duration::ZERO,
        });
        assert!(history.draw("exact").unwrap().contains("svg"));
    }

    /// Estimates come first, in CSV a line each.
    #[test]
    fn moments_are_lines() {
        let mut history = History::default();
        history.note(&Progress {
            distributed: 1.0,
            laps_min: 3,
            laps_max: 4,
            residual_estimate: 0.5,
            elapsed: Duration::from_millis(20),
        });
        assert_eq!(
            history.csv(),
            "seconds,laps_min,laps_max,residual,verified\n0.020000,3,4,5e-1,false\n"
        );
    }
}
