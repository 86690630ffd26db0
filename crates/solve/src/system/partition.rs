//! Partition of the rows among workers: contiguous ranges of nearly equal work.

use super::Matrix;
use std::ops::Range;

/// Why rows cannot be partitioned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// Each worker must own at least one row.
    #[error("{workers} workers for {rows} rows: use at most {rows} workers, each must own a row")]
    MoreWorkersThanRows {
        /// Number of workers asked for.
        workers: usize,
        /// Number of rows.
        rows: usize,
    },
    /// There is no worker.
    #[error("0 workers: at least 1 is needed")]
    NoWorkers,
}

/// A cut may move from the place of equal work by this part of a worker's work, if the couplings cut there are weaker.
const LEEWAY: f64 = 0.1;

/// Cuts the rows into `workers` contiguous, non-empty ranges so that the largest work is near the mean. Work of a row
/// is its stored entries plus one for the row itself (dense rows are all alike). Sparse matrices are cut near the place
/// of equal work where the couplings across the cut are weakest.
pub fn partition(matrix: &Matrix, workers: usize) -> Result<Vec<Range<usize>>, PartitionError> {
    partition_by(matrix, &vec![1.0; workers])
}

/// As [`partition`], with work in proportion to `weights`, which are positive.
pub fn partition_by(matrix: &Matrix, weights: &[f64]) -> Result<Vec<Range<usize>>, PartitionError> {
    let costs = match matrix {
        Matrix::Sparse(csr) if weights.len() > 1 => super::order::cut_costs(csr),
        _ => Vec::new(),
    };
    cut(matrix, weights, &costs)
}

/// Cuts at the places of equal work, or near them where `costs`, of a cut before each row, are given and less.
pub(super) fn cut(
    matrix: &Matrix,
    weights: &[f64],
    costs: &[f64],
) -> Result<Vec<Range<usize>>, PartitionError> {
    let workers = weights.len();
    let all: f64 = weights.iter().sum();
    let mut so_far = 0.0;
    let rows = matrix.n();
    if workers == 0 {
        return Err(PartitionError::NoWorkers);
    }
    if workers > rows {
        return Err(PartitionError::MoreWorkersThanRows { workers, rows });
    }
    // Work of the rows before `row`.
    let work_before = |row: usize| match matrix {
        Matrix::Dense(_) => row,
        Matrix::Sparse(csr) => csr.offsets()[row] + row,
    };
    let total = work_before(rows);
    let leeway = LEEWAY * total as f64 / workers as f64;
    let mut ranges = Vec::with_capacity(workers);
    let mut start = 0;
    for (worker, weight) in weights.iter().enumerate() {
        // Leave a row for each worker still to come.
        let latest_end = rows - (workers - worker - 1);
        so_far += weight;
        let goal = (total as f64 * (so_far / all)).round() as usize;
        let beyond = |row: usize| work_before(row) as f64 - goal as f64;
        let mut end = lower_bound(start + 1, latest_end, |row| work_before(row) >= goal);
        if end > start + 1 && -beyond(end - 1) < beyond(end) {
            end -= 1;
        }
        if worker + 1 == workers {
            end = rows;
        } else if !costs.is_empty() {
            // At the edge of the leeway a cost counts twice as much as at the place of equal work.
            let weight = |row: usize| costs[row] * (1.0 + beyond(row).abs() / leeway);
            let first = lower_bound(start + 1, end, |row| beyond(row) >= -leeway);
            let candidates =
                (first..=latest_end).take_while(|&row| row <= end || beyond(row) <= leeway);
            end = candidates.fold(end, |best, row| {
                if weight(row) < weight(best) {
                    row
                } else {
                    best
                }
            });
        }
        ranges.push(start..end);
        start = end;
    }
    Ok(ranges)
}

/// Least `row` in `low..=high` for which `reached` holds, `high` if none; `reached` must be monotone.
fn lower_bound(mut low: usize, mut high: usize, reached: impl Fn(usize) -> bool) -> usize {
    while low < high {
        let middle = low + (high - low) / 2;
        if reached(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::super::{Csr, Dense};
    use super::*;

    fn covers(ranges: &[Range<usize>], rows: usize) {
        assert_eq!(ranges[0].start, 0);
        assert_eq!(ranges[ranges.len() - 1].end, rows);
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert!(ranges.iter().all(|range| !range.is_empty()));
    }

    /// Dense rows are divided evenly.
    #[test]
    fn dense_rows_are_even() {
        let matrix = Matrix::Dense(Dense::new(10, vec![1.0; 100]).unwrap());
        for workers in 1..=10 {
            let ranges = partition(&matrix, workers).unwrap();
            covers(&ranges, 10);
            assert_eq!(ranges.len(), workers);
            let lengths: Vec<_> = ranges.iter().map(Range::len).collect();
            assert!(
                lengths.iter().max().unwrap() - lengths.iter().min().unwrap() <= 1,
                "{lengths:?}"
            );
        }
    }

    /// One heavy row counts as much as many light ones, and every worker still owns a row.
    #[test]
    fn heavy_rows_count() {
        let mut triplets: Vec<(u32, u32, f64)> = (0..100).map(|row| (row, row, 1.0)).collect();
        triplets.extend((1..100).map(|column| (0, column, 1.0)));
        let matrix = Matrix::Sparse(Csr::from_triplets(100, 100, &triplets).unwrap());
        let ranges = partition(&matrix, 2).unwrap();
        covers(&ranges, 100);
        assert!((20..40).contains(&ranges[0].end), "{ranges:?}");
        for workers in [3, 50, 99, 100] {
            covers(&partition(&matrix, workers).unwrap(), 100);
        }
    }

    /// More workers than rows is an error that says how many are possible.
    #[test]
    fn too_many_workers() {
        let matrix = Matrix::Dense(Dense::new(2, vec![1.0; 4]).unwrap());
        let error = partition(&matrix, 3).unwrap_err();
        assert_eq!(
            error,
            PartitionError::MoreWorkersThanRows {
                workers: 3,
                rows: 2
            }
        );
        assert!(error.to_string().contains("at most 2"));
        assert_eq!(partition(&matrix, 0), Err(PartitionError::NoWorkers));
    }
}
