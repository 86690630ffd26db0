//! Ranges of rows, one a worker: shares in proportion to weights, and what a worker lacks of its rows.

use std::ops::Range;

/// `n` rows in ranges that follow one another, in proportion to `weights`; none is empty if there are rows enough.
pub(crate) fn in_proportion(n: usize, weights: &[f64]) -> Vec<Range<usize>> {
    let all: f64 = weights.iter().sum();
    let (mut start, mut so_far) = (0, 0.0);
    let cut = |(place, weight): (usize, &f64)| {
        so_far += weight;
        let left = weights.len() - place - 1;
        let end = (n as f64 * (so_far / all)).round() as usize;
        let most = n.saturating_sub(left).max(start);
        let end = if left == 0 {
            n
        } else {
            end.clamp((start + 1).min(most), most)
        };
        let range = start..end;
        start = end;
        range
    };
    weights.iter().enumerate().map(cut).collect()
}

/// The rows of all workers, shared anew by `weights` among those that are in `order`, in which their rows follow one another; the others get none.
pub(super) fn among(
    (n, workers): (usize, usize),
    order: &[usize],
    weight: impl Fn(usize) -> f64,
) -> Vec<Range<usize>> {
    let weights: Vec<f64> = order.iter().map(|worker| weight(*worker)).collect();
    let mut ranges = vec![0..0; workers];
    for (worker, rows) in order.iter().zip(in_proportion(n, &weights)) {
        ranges[*worker] = rows;
    }
    ranges
}

/// What two ranges have in common; empty ranges begin anywhere.
pub(super) fn common(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    one.start.max(other.start)..one.end.min(other.end)
}

/// The parts of `rows` that are not in `had`.
pub(super) fn without(rows: &Range<usize>, had: &Range<usize>) -> Vec<Range<usize>> {
    let kept = common(rows, had);
    if kept.is_empty() {
        return vec![rows.clone()];
    }
    let parts = [rows.start..kept.start, kept.end..rows.end];
    parts.into_iter().filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Equal weights are equal shares, unequal ones are as unequal.
    #[test]
    fn shares_follow_weights() {
        assert_eq!(in_proportion(10, &[1.0, 1.0]), [0..5, 5..10]);
        assert_eq!(in_proportion(12, &[1.0, 2.0, 1.0]), [0..3, 3..9, 9..12]);
        assert_eq!(in_proportion(3, &[1e-9, 1.0, 1e-9]), [0..1, 1..2, 2..3]);
    }

    proptest! {
        /// All rows are owned once, before and after a loss, and a worker lacks just what it did not have; shares by what workers have leave it there.
        #[test]
        fn rows_stay_whole(
            weights in prop::collection::vec(0.01f64..10.0, 2..8),
            more in 0usize..50,
            gone in 0usize..8,
        ) {
            let n = weights.len() + more;
            let ranges = in_proportion(n, &weights);
            prop_assert!(ranges.iter().all(|rows| !rows.is_empty()));
            prop_assert_eq!(ranges.iter().map(Range::len).sum::<usize>(), n);
            let before = ranges.clone();
            let rows = |worker: usize| before[worker].len() as f64;
            let all: Vec<usize> = (0..ranges.len()).collect();
            prop_assert_eq!(&among((n, ranges.len()), &all, rows), &before, "nothing moves");
            let gone = gone % ranges.len();
            let left: Vec<usize> = all.into_iter().filter(|worker| *worker != gone).collect();
            let ranges = among((n, before.len()), &left, rows);
            prop_assert!(ranges[gone].is_empty());
            prop_assert_eq!(ranges.iter().map(Range::len).sum::<usize>(), n);
            for (rows, had) in ranges.iter().zip(&before) {
                let lacks: usize = without(rows, had).iter().map(Range::len).sum();
                prop_assert_eq!(lacks, rows.len() - common(rows, had).len());
            }
        }
    }
}
