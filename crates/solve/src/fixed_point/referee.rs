//! Node 0's decision to pause, by reports that may be lost or old. It may pause too early, which costs an exchange; it never decides the result.

use super::Combine;
use super::report::Report;

/// Most laps of every member between two pauses by estimates.
const MOST_LAPS_BETWEEN: u64 = 64;

#[derive(Debug)]
pub(super) struct Referee {
    tolerance: f64,
    max_laps: u64,
    combine: Combine,
    /// Newest report of each member in this epoch, and its number.
    reports: Vec<Option<(u32, Report)>>,
    /// Laps that every member must do before the next pause by estimates: twice as many after each that came too early.
    laps_between: u64,
}

impl Referee {
    pub(super) fn new(tolerance: f64, max_laps: u64, combine: Combine, members: usize) -> Self {
        Self {
            tolerance,
            max_laps,
            combine,
            reports: vec![None; members],
            laps_between: 1,
        }
    }

    /// Takes a report, unless a newer one is known. The source is not trusted.
    pub(super) fn report(&mut self, member: usize, number: u32, report: Report) {
        if let Some(known) = self.reports.get_mut(member)
            && known.is_none_or(|(newest, _)| number.wrapping_sub(newest) as i32 > 0)
        {
            *known = Some((number, report));
        }
    }

    /// Whether to pause now.
    pub(super) fn pauses(&self) -> bool {
        let known = || self.reports.iter().flatten().map(|(_, report)| report);
        if known().any(|report| report.state.stops || report.state.failed) {
            return true;
        }
        if known().count() < self.reports.len() {
            return false;
        }
        if known().all(|report| report.laps >= self.max_laps) {
            return true;
        }
        let estimate = self.combine.of(known().map(|report| report.estimate));
        known().all(|report| report.in_epoch >= self.laps_between)
            && (estimate <= self.tolerance || known().all(|report| report.state.is_still))
    }

    /// A pause did not end the run: the next epoch begins.
    pub(super) fn begin_epoch(&mut self) {
        self.reports.fill(None);
        self.laps_between = (self.laps_between * 2).min(MOST_LAPS_BETWEEN);
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::State;
    use super::*;

    fn report(laps: u64, estimate: f64) -> Report {
        Report {
            laps,
            in_epoch: laps,
            estimate,
            state: State::default(),
        }
    }

    /// All members must have reported low; older reports change nothing; after a pause too early it takes longer.
    #[test]
    fn pauses_by_all_reports() {
        let mut referee = Referee::new(1.0, 100, Combine::Sum, 2);
        referee.report(0, 1, report(1, 0.4));
        assert!(!referee.pauses(), "one is missing");
        referee.report(1, 2, report(1, 0.7));
        assert!(!referee.pauses(), "the sum is too large");
        referee.report(1, 1, report(1, 0.1));
        assert!(!referee.pauses(), "an older report");
        referee.report(1, 3, report(1, 0.1));
        assert!(referee.pauses());
        referee.report(7, 3, report(1, 0.1));
        referee.begin_epoch();
        assert!(!referee.pauses());
        referee.report(0, 4, report(1, 0.1));
        referee.report(1, 4, report(2, 0.1));
        assert!(!referee.pauses(), "two laps each");
        referee.report(0, 5, report(2, 0.1));
        assert!(referee.pauses());
    }

    /// A stop and a failure need nobody else; laps that are done, and members that are still, need all.
    #[test]
    fn other_causes() {
        let state = |is_still, stops, failed| State {
            is_still,
            stops,
            failed,
        };
        for state in [state(false, true, false), state(false, false, true)] {
            let mut referee = Referee::new(1.0, 100, Combine::Max, 3);
            let told = Report {
                state,
                ..report(0, f64::INFINITY)
            };
            referee.report(2, 1, told);
            assert!(referee.pauses());
        }
        let mut referee = Referee::new(1.0, 100, Combine::Max, 2);
        let still = Report {
            state: state(true, false, false),
            ..report(9, 5.0)
        };
        referee.report(0, 1, still);
        referee.report(1, 1, report(100, f64::NAN));
        assert!(!referee.pauses());
        referee.report(1, 2, still);
        assert!(referee.pauses());
        referee.report(0, 3, report(100, 5.0));
        referee.report(1, 3, report(100, 5.0));
        assert!(referee.pauses());
    }
}
