//! Time that a run spends in each stage.

use super::judge::Stage;
use crate::report::Seconds;
use std::time::Instant;

/// Owned by the judge's driver.
pub(super) struct StageClock {
    /// When the run began, then when workers first iterated: later divisions are a part of its time.
    pub(super) began: Instant,
    has_iterated: bool,
    pub(super) seconds: Seconds,
    stage: Stage,
    since: Instant,
}

impl StageClock {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            began: now,
            has_iterated: false,
            seconds: Seconds::default(),
            stage: Stage::Distributing,
            since: now,
        }
    }

    /// The run is in this stage now.
    pub(super) fn note(&mut self, stage: Stage) {
        if stage == self.stage {
            return;
        }
        let now = Instant::now();
        let spent = (now - self.since).as_secs_f64();
        match self.stage {
            Stage::Distributing => {
                self.seconds.distribute += spent;
                if !std::mem::replace(&mut self.has_iterated, true) {
                    self.began = now;
                }
            }
            Stage::Iterating => self.seconds.iterate += spent,
            Stage::Verifying => {
                self.seconds.verify += spent;
                self.seconds.verify_last = spent;
            }
            Stage::Collecting | Stage::Done => self.seconds.verify += spent,
        }
        (self.stage, self.since) = (stage, now);
    }
}
