//! Rows under way to a worker, as a setup announces them: streams of rows, then the last known x of them.
//!
//! Owned by `worker`. Invariant: no more memory is taken than the setup announces.

use super::message::{RowSource, Setup};
use super::step::{Fresh, WorkerFault};
use crate::system::{Generated, RowBlock, RowBlockBuilder};

/// Memory per row that a block needs beyond its stream.
const BYTES_PER_ROW: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Loading {
    /// The range of `fresh` under way.
    builder: Option<RowBlockBuilder>,
    blocks: Vec<RowBlock>,
    /// Elements of x still to come.
    values: usize,
}

impl Loading {
    /// Begins to load what `setup` announces.
    pub(super) fn begin(setup: &Setup) -> Self {
        let mut loading = Self {
            values: setup.values,
            ..Self::default()
        };
        loading.await_rows(setup);
        loading
    }

    /// Whether all has arrived.
    pub(super) fn is_whole(&self) -> bool {
        self.builder.is_none() && self.values == 0
    }

    /// Prepares for the next range of rows, if any is to come.
    fn await_rows(&mut self, setup: &Setup) {
        if let RowSource::Stream { bytes } = &setup.rows
            && let Some(bytes) = bytes.get(self.blocks.len())
        {
            let rows = &setup.fresh[self.blocks.len()];
            // The block takes its stream's bytes, more per row (offsets, factors of relaxation), and x.
            let more = BYTES_PER_ROW * rows.len() + size_of::<f64>() * setup.n();
            let limit = (*bytes as usize).saturating_add(more);
            self.builder = Some(RowBlockBuilder::new(limit));
        }
    }

    /// Takes the next bytes of rows.
    pub(super) fn rows(&mut self, setup: &Setup, bytes: &[u8]) -> Result<(), WorkerFault> {
        let builder = self.builder.as_mut();
        let builder = builder.ok_or(WorkerFault::of_judge("rows that no setup announced"))?;
        builder.push(bytes)?;
        if let Some(builder) = self.builder.take_if(|builder| builder.is_complete()) {
            let block = builder.finish()?;
            if block.rows != setup.fresh[self.blocks.len()] || block.columns != setup.n() {
                return Err(WorkerFault::of_judge("rows that are not this worker's"));
            }
            self.blocks.push(block);
            self.await_rows(setup);
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
        let fits = self.builder.is_none() && values.len() <= self.values && !values.is_empty();
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
