//! Divisions of the rows: the first one, and new ones where a worker is lost, joins, or has become slow.
//!
//! A part of the judge. A division voids all orders and answers of the last one; workers keep what they have of their rows.

use super::{Best, Judge, JudgeFault, Order, Phase, RowSource, Setup, WorkerSlot};
use crate::distributed::ranges::{common, hand_over, in_proportion, without};
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

    /// A worker is lost, for the reason `cause`: its rows go to its neighbours.
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
        let mut ranges: Vec<Range<usize>> =
            self.slots.iter().map(|slot| slot.rows.clone()).collect();
        for gone in 0..ranges.len() {
            if !self.slots[gone].is_gone || ranges[gone].is_empty() {
                continue;
            }
            let lost = ranges[gone].len();
            let heirs = hand_over(&mut ranges, gone);
            if heirs.is_empty() {
                return Err(JudgeFault::Missed { worker });
            }
            self.notes.push(format!(
                "worker {} was lost after {:.1} laps ({}): {} took over its {lost} rows",
                gone + 1,
                self.slots[gone].laps,
                if gone == worker {
                    cause
                } else {
                    "with its results"
                },
                heirs.join(" and "),
            ));
        }
        self.moved |= self.begun;
        self.divide(ranges);
        Ok(())
    }

    /// Shares the rows anew in proportion to `speeds`, in rows a second, of each worker; only while workers iterate.
    pub(in crate::distributed) fn reshare(&mut self, speeds: &[f64]) {
        if self.phase != Phase::Iterating {
            return;
        }
        let mut order: Vec<usize> = (0..self.slots.len())
            .filter(|worker| self.takes_part(*worker))
            .collect();
        order.sort_by_key(|worker| self.slots[*worker].rows.start);
        let weights: Vec<f64> = order.iter().map(|worker| speeds[*worker]).collect();
        let mut ranges = vec![0..0; self.slots.len()];
        for (worker, rows) in order.iter().zip(in_proportion(self.x.len(), &weights)) {
            ranges[*worker] = rows;
        }
        let shares = order.iter().map(|worker| ranges[*worker].len().to_string());
        let shares: Vec<String> = shares.collect();
        self.notes.push(format!(
            "rows were shared anew by measured speed: {}",
            shares.join(", ")
        ));
        self.moved = true;
        self.divide(ranges);
    }

    /// A worker joins: it gets half of the rows of the one that has most. Too late, or more workers than rows: nothing happens.
    pub(in crate::distributed) fn joined(&mut self, worker: usize) {
        let is_gone = self.slots.get(worker).is_some_and(|slot| slot.is_gone);
        if self.takes_part(worker) || is_gone {
            return;
        }
        let is_late = matches!(self.phase, Phase::Collecting | Phase::Done);
        let mut ranges: Vec<Range<usize>> =
            self.slots.iter().map(|slot| slot.rows.clone()).collect();
        let donor = (0..ranges.len()).max_by_key(|other| ranges[*other].len());
        let Some(donor) = donor.filter(|donor| !is_late && ranges[*donor].len() >= 2) else {
            // No slot for it: the number of slots is that of the last division.
            self.out.push_back((worker, Order::Leave));
            return;
        };
        if worker >= ranges.len() {
            ranges.resize(worker + 1, 0..0);
            self.slots.resize_with(worker + 1, WorkerSlot::default);
        }
        let middle = ranges[donor].start + ranges[donor].len() / 2;
        ranges[worker] = middle..ranges[donor].end;
        ranges[donor].end = middle;
        self.notes.push(format!(
            "worker {} joined and took {} rows of worker {}",
            worker + 1,
            ranges[worker].len(),
            donor + 1
        ));
        self.moved |= self.begun;
        self.divide(ranges);
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
