//! Rows under way to a worker, as a setup announces them: messages of rows, then the last known x of them.
//!
//! Owned by `worker`. Invariant: no more memory is taken than the setup announces.

use super::message::{RowSource, Setup};
use super::step::{Fresh, WorkerFault};
use crate::system::{Generated, RowBlock};

#[derive(Debug, Default)]
pub(super) struct Loading {
    /// Ranges of `fresh` still to come.
    ranges: usize,
    /// The one under way.
    begun: Option<RowBlock>,
    blocks: Vec<RowBlock>,
    /// Elements of x still to come.
    values: usize,
}

impl Loading {
    /// Begins to load what `setup` announces.
    pub(super) fn begin(setup: &Setup) -> Self {
        let ranges = match &setup.rows {
            RowSource::Stream { .. } => setup.fresh.len(),
            RowSource::Generate { .. } => 0,
        };
        Self {
            ranges,
            values: setup.values,
            ..Self::default()
        }
    }

    /// Whether all has arrived.
    pub(super) fn is_whole(&self) -> bool {
        self.ranges == 0 && self.values == 0
    }

    /// Takes the next rows.
    pub(super) fn rows(&mut self, setup: &Setup, message: &[u8]) -> Result<(), WorkerFault> {
        let bad = WorkerFault::of_judge;
        let place = setup.fresh.len() - self.ranges;
        let (RowSource::Stream { bytes }, Some(range)) = (&setup.rows, setup.fresh.get(place))
        else {
            return Err(bad("rows that no setup announced"));
        };
        let mut block = RowBlock::from_message(message)?;
        let begun = self.begun.as_ref();
        let next = begun.map_or(range.start, |begun| begun.rows.end);
        let is_own = block.rows.start == next && block.rows.end <= range.end;
        if !is_own || block.columns != setup.n() {
            return Err(bad("rows that are not this worker's"));
        }
        let all = begun.map_or(0, RowBlock::bytes) + block.bytes();
        let fits = all <= bytes[place]
            && match &mut self.begun {
                Some(begun) => begun.append(block),
                None => {
                    let has_room = block.reserve(range.len(), bytes[place]);
                    self.begun = Some(block);
                    has_room
                }
            };
        if !fits {
            return Err(bad("rows beyond what the setup announced or memory holds"));
        }
        if let Some(whole) = self.begun.take_if(|begun| begun.rows.end == range.end) {
            self.blocks.push(whole);
            self.ranges -= 1;
        }
        Ok(())
    }

    /// Takes values of `x` from `start` on.
    pub(super) fn values(
        &mut self,
        x: &mut [f64],
        start: usize,
        values: &[f64],
    ) -> Result<(), WorkerFault> {
        let end = start.saturating_add(values.len());
        let fits = self.ranges == 0 && values.len() <= self.values && !values.is_empty();
        let place = x.get_mut(start..end).filter(|_| fits);
        let place = place.ok_or(WorkerFault::of_judge("values that no setup announced"))?;
        place.copy_from_slice(values);
        self.values -= values.len();
        Ok(())
    }

    /// The rows that are new, or how to make them.
    pub(super) fn take(&mut self, setup: &Setup) -> Fresh {
        match &setup.rows {
            RowSource::Stream { .. } => Fresh::Here(std::mem::take(&mut self.blocks)),
            &RowSource::Generate {
                ref what,
                seed,
                solution,
            } => {
                let what = what.parse().expect("parsed when the setup came");
                Fresh::Made(Generated::new(what, seed, solution), setup.fresh.clone())
            }
        }
    }
}
