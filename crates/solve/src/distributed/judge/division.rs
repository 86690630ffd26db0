//! Divisions of the rows: the first one, and new ones where a worker is lost, joins, or has become slow.
//!
//! A part of the judge. A division voids all orders and answers of the last one; workers keep what they have of their rows.

use super::{Best, Judge, JudgeFault, Order, Phase, RowSource, Setup, WorkerSlot};
use crate::distributed::ranges::{among, common, without};
use std::ops::Range;

impl Judge {
    /// As [`lost`](Self::lost), of a worker that may still live: it is told to end.
    pub(in crate::distributed) fn unheard_of(
        &mut self,
        worker: usize,
        cause: &str,
    ) -> Result<(), JudgeFault> {
        let tells = self.counts_on(worker) && !self.has_all_of(worker);
        self.lost(worker, cause)?;
        if tells {
            let why = "it was taken for lost".to_owned();
            self.out.push_back((worker, Order::Abort { why }));
        }
        Ok(())
    }

    /// A worker is lost, for the reason `cause`: the others share its rows, each in proportion to what it has.
    pub(in crate::distributed) fn lost(
        &mut self,
        worker: usize,
        cause: &str,
    ) -> Result<(), JudgeFault> {
        if !self.counts_on(worker) || self.phase == Phase::Done {
            return Ok(());
        }
        self.slots[worker].is_gone = true;
        if self.has_all_of(worker) {
            return Ok(()); // its results are here; they are only lost with those of another worker
        }
        let (gone, left): (Vec<usize>, Vec<usize>) =
            (self.in_order().into_iter()).partition(|other| self.slots[*other].is_gone);
        let heirs = match left[..] {
            [] => return Err(JudgeFault::Missed { worker }),
            [heir] => format!("worker {} took over", heir + 1),
            _ => "the others share".to_owned(),
        };
        for gone in gone {
            self.notes.push(format!(
                "worker {} was lost after {:.1} laps ({}): {heirs} its {} rows",
                gone + 1,
                self.slots[gone].laps,
                if gone == worker {
                    cause
                } else {
                    "with its results"
                },
                self.slots[gone].rows.len(),
            ));
        }
        let ranges = self.share(&left, |heir| self.slots[heir].rows.len() as f64);
        self.moved |= self.begun;
        self.divide(ranges);
        Ok(())
    }

    /// Shares the rows anew in proportion to `speeds`, in rows a second, of each worker; only while workers iterate.
    pub(in crate::distributed) fn reshare(&mut self, speeds: &[f64]) {
        if self.phase != Phase::Iterating {
            return;
        }
        let order = self.in_order();
        let ranges = self.share(&order, |worker| speeds[worker]);
        let shares = order.iter().map(|worker| ranges[*worker].len().to_string());
        let shares: Vec<String> = shares.collect();
        self.notes.push(format!(
            "rows were shared anew by measured speed: {}",
            shares.join(", ")
        ));
        self.moved = true;
        self.divide(ranges);
    }

    /// A worker joins: it gets as many rows as the others have on average. Too late, or more workers than rows: nothing happens.
    pub(in crate::distributed) fn joined(&mut self, worker: usize) {
        let is_gone = self.slots.get(worker).is_some_and(|slot| slot.is_gone);
        if self.takes_part(worker) || is_gone {
            return;
        }
        let is_late = matches!(self.phase, Phase::Collecting | Phase::Done);
        let n = self.x.len();
        let mut order = self.in_order();
        let others = order.len();
        if is_late || others == 0 || others >= n {
            // No slot for it: the number of slots is that of the last division.
            self.out.push_back((worker, Order::Leave));
            return;
        }
        if worker >= self.slots.len() {
            self.slots.resize_with(worker + 1, WorkerSlot::default);
        }
        // In the middle, so that the others keep most of their rows.
        order.insert(others.div_ceil(2), worker);
        let mean = n as f64 / others as f64;
        let ranges = self.share(&order, |other| match self.slots[other].rows.len() {
            _ if other == worker => mean,
            rows => rows as f64,
        });
        self.notes.push(format!(
            "worker {} joined and took {} rows",
            worker + 1,
            ranges[worker].len(),
        ));
        self.joined += 1;
        self.moved |= self.begun;
        self.divide(ranges);
    }

    /// Workers that have rows, in the order of these.
    fn in_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.slots.len())
            .filter(|worker| self.takes_part(*worker))
            .collect();
        order.sort_by_key(|worker| self.slots[*worker].rows.start);
        order
    }

    /// Rows of all workers if those of `order` share them.
    fn share(&self, order: &[usize], weight: impl Fn(usize) -> f64) -> Vec<Range<usize>> {
        among((self.x.len(), self.slots.len()), order, weight)
    }

    /// Divides the rows anew: `ranges` are those of each worker.
    pub(super) fn divide(&mut self, ranges: Vec<Range<usize>>) {
        self.division = self.division.wrapping_add(1);
        self.epoch = self.epoch.wrapping_add(1);
        self.phase = Phase::Loading;
        (self.reason, self.relaxes) = (None, None);
        self.ends_with_zero = false;
        self.best = Best::none();
        if let Some(failed) = &mut self.failed {
            failed.residual = f64::INFINITY; // its x is gone
        }
        self.policy.restart();
        // Orders of the last division are void, but not those to workers that take no part in any.
        self.out
            .retain(|(_, order)| matches!(order, Order::Leave | Order::Abort { .. }));
        for (worker, rows) in ranges.iter().enumerate() {
            let slot = &mut self.slots[worker];
            let had = slot.held.clone();
            *slot = WorkerSlot {
                rows: rows.clone(),
                held: common(rows, &had),
                laps: slot.laps,
                busy: slot.busy,
                is_known: slot.is_known,
                is_gone: slot.is_gone,
                ..WorkerSlot::default()
            };
            if rows.is_empty() {
                continue;
            }
            let setup = Setup {
                config: self.config.clone(),
                division: self.division,
                epoch: self.epoch,
                ranges: ranges.clone(),
                fresh: without(rows, &had),
                rows: RowSource::Messages { bytes: Vec::new() },
                values: 0,
                anew: !std::mem::replace(&mut slot.is_known, true),
                exchanges: self.moved,
                system: self.origin.system,
                first_elements: self.origin.first_elements,
            };
            self.out.push_back((worker, Order::Setup(Box::new(setup))));
        }
    }
}
