//! A problem of one's own: the temperature of a rod of a million points that is held at 1 at one end, held at 0 at the other, and cooled on its way.
//!
//! `tsumuji launch -n 4 -- target/debug/own_problem`, or alone: `target/debug/own_problem`. Node 0 prints the first points, and how it went.

use std::ops::Range;
use tsumuji_solve::fixed_point::{Config, Error, FixedPoint, run};

const POINTS: usize = 1_000_000;
/// Heat that a point passes on; the rest is lost. The map shrinks distances by this factor at least.
const KEPT: f64 = 0.95;

struct Rod;

/// x[i] = KEPT (x[i − 1] + x[i + 1]) / 2, with 1 before the first point and 0 beyond the last.
fn renewed(i: usize, x: &[f64]) -> f64 {
    let left = if i == 0 { 1.0 } else { x[i - 1] };
    let right = x.get(i + 1).copied().unwrap_or(0.0);
    KEPT * (left + right) / 2.0
}

impl FixedPoint for Rod {
    fn len(&self) -> usize {
        POINTS
    }
    fn start(&self, range: Range<usize>, x: &mut [f64]) {
        x[range].fill(0.0);
    }
    fn update(&mut self, range: Range<usize>, x: &mut [f64]) {
        range.for_each(|i| x[i] = renewed(i, x));
    }
    /// |x − x*| ≤ |x − G(x)| / (1 − KEPT), in the maximum norm.
    fn certificate(&self, range: Range<usize>, x: &[f64]) -> f64 {
        let residual = range.map(|i| (x[i] - renewed(i, x)).abs());
        residual.fold(0.0, f64::max) / (1.0 - KEPT)
    }
    /// A range reads the point before it and the one behind it.
    fn reads(&self, range: Range<usize>) -> Option<Vec<u32>> {
        let ends = [range.start.saturating_sub(1), range.end.min(POINTS - 1)];
        Some(ends.map(|i| i as u32).to_vec())
    }
}

fn main() -> Result<(), Error> {
    let outcome = run(&mut Rod, &Config::default())?;
    if outcome.member == 0 {
        println!("first points: {:.6?}", &outcome.x[..5]);
        println!("{outcome}");
    }
    Ok(())
}
