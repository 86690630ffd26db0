//! The end of an epoch: all workers hold the same x, whose exact residual decides.

use super::{Best, Cause, Failed, Judge, JudgeFault, Phase};
use crate::distributed::config::{Krylov, Mode};
use crate::distributed::message::{Frozen, Order};
use crate::krylov::{End, Kind, Preconditioning};
use crate::local::accelerate::combine;
use crate::report::Reason;

/// Exchanges in a row after which workers may hold different blocks. Blocks are sent reliably, so one should be enough.
pub(super) const DISAGREEMENTS: u32 = 3;

/// Most rows of a system that one process is said to factorise, perhaps: more take their time.
const FACTORISED_ROWS: usize = 100_000;

impl Judge {
    pub(super) fn frozen(&mut self, worker: usize, frozen: Frozen) -> Result<(), JudgeFault> {
        let by_workers = self.config.mode != Mode::Async;
        let unasked = JudgeFault::of(worker, "a standstill that was not asked for");
        if frozen.cause.is_some() != by_workers || frozen.held.len() != self.slots.len() {
            return Err(unasked);
        }
        match (self.phase, frozen.cause) {
            (Phase::Iterating | Phase::Freezing(Cause::Interrupt), Some(cause)) => {
                self.phase = Phase::Freezing(cause);
            }
            (Phase::Freezing(known), Some(cause)) if known != cause => {
                return Err(JudgeFault::Disagreement);
            }
            (Phase::Iterating, None) => return Err(unasked),
            _ => {}
        }
        self.slots[worker].frozen = Some(frozen);
        if self.team().any(|slot| slot.frozen.is_none()) {
            return Ok(());
        }
        let all: Vec<Option<&Frozen>> =
            self.slots.iter().map(|slot| slot.frozen.as_ref()).collect();
        // Every worker holds, of what it reads of another's block, the stamp that the other has itself.
        let same = all.iter().enumerate().all(|(owner, own)| {
            let Some(own) = own else { return true };
            let agrees = |held: Option<u32>| held.is_none() || held == own.held[owner];
            own.held[owner].is_some_and(|stamp| stamp != 0)
                && all
                    .iter()
                    .flatten()
                    .all(|frozen| agrees(frozen.held[owner]))
        });
        if same {
            self.disagreements = 0;
            let Phase::Freezing(cause) = self.phase else {
                unreachable!("set above")
            };
            self.phase = Phase::Verifying(cause);
            self.verifications += 1;
            let magnitude = self.policy.wants_rounding(cause);
            self.all(&Order::Verify {
                epoch: self.epoch,
                magnitude,
            });
        } else {
            self.disagreements += 1;
            if self.disagreements >= DISAGREEMENTS {
                return Err(JudgeFault::Disagreement);
            }
            self.begin(Vec::new());
        }
        Ok(())
    }

    /// Ends the run or begins an epoch, once every exact residual has arrived. `None`: products that do not fit each other.
    pub(super) fn decide_if_exact(&mut self, cause: Cause) -> Option<()> {
        let (mut residual_sq, mut magnitude_sq) = (0.0, 0.0);
        let mut dots: Option<Vec<f64>> = None;
        for slot in self.team() {
            let Some((residual, magnitude, own)) = &slot.exact else {
                return Some(());
            };
            residual_sq += residual;
            magnitude_sq += magnitude;
            match &mut dots {
                None => dots = Some(own.clone()),
                Some(dots) if dots.len() == own.len() => {
                    dots.iter_mut().zip(own).for_each(|(sum, own)| *sum += own)
                }
                Some(_) => return None,
            }
        }
        let (factors, least_sq) = combine(&dots?, residual_sq)?;
        let norm = self.policy.rhs_norm();
        self.residual = residual_sq.sqrt() / norm;
        self.best.see(self.residual);
        let rounding = f64::EPSILON * magnitude_sq.sqrt() / norm;
        let laps = self
            .slots
            .iter()
            .filter_map(|slot| Some(slot.frozen.as_ref()?.laps))
            .min()
            .unwrap_or(0);
        self.reason =
            self.policy
                .verified(cause, laps, self.residual, least_sq.sqrt() / norm, rounding);
        if self.interrupted {
            self.reason.get_or_insert(Reason::Interrupted);
        } else if self.changes_method(cause) {
            return Some(());
        }
        if self.reason.is_some() {
            self.phase = Phase::Collecting;
            // A residual within the tolerance need not be the least.
            let is_kept = self.reason != Some(Reason::Converged)
                && !self.best.is_last
                && self.best.residual.is_finite();
            if is_kept {
                self.residual = self.best.residual;
            }
            let zero = self.residual_of_zero();
            let is_worse = self.residual.is_nan() || self.residual > zero;
            if self.from_zero && is_worse {
                (self.residual, self.ends_with_zero) = (zero, true);
            }
            self.explain_both();
            self.all(&Order::Finish {
                epoch: self.epoch,
                is_kept,
            });
        } else {
            let combines = self.config.combines;
            self.begin(if combines { factors } else { Vec::new() });
        }
        Some(())
    }

    /// Where relaxation followed a method that had failed, and did no better, the run ended for that first failure.
    fn explain_both(&mut self) {
        let (Some(failed), Some(reason)) = (&self.failed, &self.reason) else {
            return;
        };
        let ending = match reason {
            Reason::Diverged { .. } => "diverged, too",
            Reason::Stalled { .. } => "stood still, too",
            Reason::MaxLaps { .. } => "did not reach the tolerance in all laps",
            _ => return,
        };
        let advice = match self.x.len() {
            ..=FACTORISED_ROWS => ": one process, without --workers, may factorise the system",
            _ => "",
        };
        let after = self.config.method_name();
        let first = failed.end.reason(self.limits, self.residual);
        self.notes.push(format!("{after} {ending}{advice}"));
        if matches!(reason, Reason::Diverged { .. }) {
            self.reason = Some(first);
        }
    }

    /// Goes on with another method where a Krylov method has failed, or relaxation is expected to take less time, if that is allowed.
    fn changes_method(&mut self, cause: Cause) -> bool {
        let relaxes = self.relaxes.take();
        if self.reason == Some(Reason::Converged) {
            return false;
        }
        let (Cause::Krylov(end), Mode::Krylov(krylov), true) =
            (cause, self.config.mode, self.config.may_change)
        else {
            return false;
        };
        let (next, why) = match (end, krylov.kind) {
            (End::Indefinite, Kind::Cg) => (
                Mode::Krylov(Krylov {
                    kind: Kind::Gmres,
                    preconditioning: match krylov.preconditioning {
                        Preconditioning::Jacobi => Preconditioning::Jacobi,
                        _ => Preconditioning::Ilu,
                    },
                }),
                "the matrix is not positive definite".to_owned(),
            ),
            (End::Stopped, _) => match relaxes {
                Some(why) => (Mode::Async, why),
                None => return false,
            },
            (End::Stalled, _) => {
                let why = format!("the residual stood still at {:.1e}", self.residual);
                (Mode::Async, why)
            }
            (End::Overflow, _) => (Mode::Async, "numbers overflowed".to_owned()),
            _ => return false,
        };
        if matches!(end, End::Stalled | End::Overflow) {
            self.failed = Some(Failed {
                method: self.config.method_name(),
                end,
                residual: self.residual,
            });
        }
        // Workers keep their rows, and with them the x of this pause.
        let best = Some(self.best).filter(|best| best.is_last);
        self.go_on_by(next, &why);
        self.best = best.unwrap_or(Best::none());
        true
    }
}
