//! What a setup announces, as a sequence of messages: the rows that a worker lacks, and the last known x of them.
//!
//! Called by the judge's driver (`run`) and its simulation (`net`). Rows leave in messages of bounded size, or of one row;
//! the matrix is never copied as a whole.

use super::message::{Order, RowSource, Setup};
use crate::system::{Messages, RowBlock, Source};
use std::collections::VecDeque;
use std::ops::Range;

/// Values in one message.
const PIECE_VALUES: usize = 32 << 10;

#[derive(Debug)]
pub(super) struct Feed<'a> {
    rows: VecDeque<Messages<'a>>,
    values: VecDeque<(usize, Vec<f64>)>,
    /// An order that was put back.
    first: Option<(Vec<u8>, usize)>,
}

impl<'a> Feed<'a> {
    /// Completes `setup` by where its fresh rows come from. `x`: last known values, if any are.
    pub(super) fn new(
        source: &'a Source,
        setup: &mut Setup,
        x: Option<&[f64]>,
        most_bytes: usize,
    ) -> Self {
        let mut rows = VecDeque::new();
        setup.rows = match source {
            Source::System(system) => {
                for range in &setup.fresh {
                    let range = range.clone();
                    rows.push_back(RowBlock::messages(system, range, most_bytes, Order::ROWS));
                }
                let bytes = setup.fresh.iter();
                let bytes = bytes.map(|range| RowBlock::bytes_of(system, range.clone()));
                RowSource::Messages {
                    bytes: bytes.collect(),
                }
            }
            Source::Generated(made) => RowSource::Generate {
                what: made.what.to_string(),
                seed: made.seed,
                solution: made.solution,
            },
        };
        let mut values = VecDeque::new();
        if let Some(x) = x {
            let pieces = |range: &Range<usize>| {
                let range = range.clone();
                let starts = range.clone().step_by(PIECE_VALUES);
                starts
                    .map(|start| {
                        (
                            start,
                            x[start..range.end.min(start + PIECE_VALUES)].to_vec(),
                        )
                    })
                    .collect::<Vec<_>>()
            };
            values.extend(setup.fresh.iter().flat_map(pieces));
        }
        setup.values = values.iter().map(|(_, values)| values.len()).sum();
        Self {
            rows,
            values,
            first: None,
        }
    }

    /// The next order as it is sent, and how many bytes of rows it has; `None`: all were sent.
    pub(super) fn next(&mut self) -> Option<(Vec<u8>, usize)> {
        if self.first.is_some() {
            return self.first.take();
        }
        while let Some(messages) = self.rows.front_mut() {
            match messages.next() {
                None => drop(self.rows.pop_front()),
                message => return message,
            }
        }
        let (start, values) = self.values.pop_front()?;
        Some((Order::Values { start, values }.encode(), 0))
    }

    /// Has the next call return this order again.
    pub(super) fn put_back(&mut self, order: (Vec<u8>, usize)) {
        self.first = Some(order);
    }
}
