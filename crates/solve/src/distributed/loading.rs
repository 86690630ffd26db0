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
            RowSource::Messages { .. } => setup.fresh.len(),
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
        let (RowSource::Messages { bytes }, Some(range)) = (&setup.rows, setup.fresh.get(place))
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
            return Err(bad(
                "rows of another kind, beyond what the setup announced, or beyond what memory holds",
            ));
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
            RowSource::Messages { .. } => Fresh::Here(std::mem::take(&mut self.blocks)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributed::SolveConfig;
    use crate::system::{Generate, System};
    use std::ops::Range;

    fn system(what: &str) -> System {
        what.parse::<Generate>().unwrap().system(1).unwrap()
    }

    /// Only rows in their order, of one kind and within what was announced make a block.
    #[test]
    fn rows_come_as_announced() {
        let [dense, sparse, wide] = ["dense:9", "poisson2d:3", "dense:10"].map(system);
        let exact = RowBlock::bytes_of(&dense, 2..6);
        type Case<'a> = (&'a [(&'a System, Range<usize>)], u64, bool);
        let cases: [Case<'_>; 8] = [
            (&[(&dense, 2..4), (&dense, 4..6)], exact, true),
            (&[(&dense, 2..6)], exact, true),
            (&[(&dense, 4..6)], exact, false),
            (&[(&dense, 2..4), (&dense, 2..4)], exact, false),
            (&[(&dense, 2..7)], exact + 1000, false),
            (&[(&dense, 2..4), (&sparse, 4..6)], exact, false),
            (&[(&wide, 2..6)], exact + 1000, false),
            (&[(&dense, 2..6)], exact - 1, false),
        ];
        for (number, (messages, announced, wanted)) in cases.into_iter().enumerate() {
            let setup = Setup {
                config: SolveConfig::default(),
                division: 1,
                anew: true,
                epoch: 1,
                ranges: vec![0..2, 2..9],
                fresh: std::iter::once(2..6).collect(),
                rows: RowSource::Messages {
                    bytes: vec![announced],
                },
                values: 0,
                exchanges: false,
                system: 0,
                first_elements: None,
            };
            let mut loading = Loading::begin(&setup);
            let mut take = |(system, rows): &(&System, Range<usize>)| {
                let mut made = RowBlock::messages(system, rows.clone(), usize::MAX, 0);
                let (message, _) = made.next().unwrap();
                loading.rows(&setup, &message[1..])
            };
            let taken = messages.iter().all(|message| take(message).is_ok());
            assert_eq!(taken, wanted, "case {number}");
            if wanted {
                assert!(
                    take(&messages[0]).is_err(),
                    "case {number}: nothing is missing"
                );
                assert!(loading.is_whole());
                let Fresh::Here(blocks) = loading.take(&setup) else {
                    panic!("case {number}: rows came");
                };
                assert_eq!(blocks, [RowBlock::cut(&dense, 2..6)], "case {number}");
            }
        }
    }
}
