//! Acceleration at pauses: the best combination of the steps of whole epochs (GCR; Eisenstat, Elman and Schultz, 1983).
//!
//! An epoch moves x by p and the residual r = b − A x by −q, and q = A p whatever happened in between: lost frames and unequal laps make an epoch a
//! poorer step, never a wrong one. At a pause all workers hold the same x, so each keeps the same p; it has q and r for its own rows. The judge sums
//! their dot products and computes the factors α that minimise ‖r − Σ αᵢ qᵢ‖; every worker adds Σ αᵢ pᵢ to its x. The cost: m + 1 vectors a worker, a
//! few hundred numbers a pause.
//!
//! Invariant: `combine` never predicts a larger residual than there is, and its factors are only a proposal for x: the exact residual at the next
//! pause decides. The loops over x are plain, so that all workers get the same bits.

use std::collections::VecDeque;

/// Epochs remembered: as many as usual Krylov methods keep between restarts.
pub(crate) const WINDOW: usize = 40;
/// Memory for remembered moves of x per worker; at least two are kept.
const WINDOW_BYTES: usize = 64 << 20;
/// An epoch that is a combination of newer ones up to this part of the square of its norm is left out.
const DEPENDENT: f64 = 1e-12;

/// A worker's memory of epochs. By default it keeps none, and gives no products.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Epochs that it keeps.
    window: usize,
    /// x and own r where the current epoch began.
    old: Option<(Vec<f64>, Vec<f64>)>,
    /// Newest first.
    moves: VecDeque<Move>,
    /// Own r at the last pause.
    residual: Vec<f64>,
}

/// The step of one epoch.
#[derive(Debug)]
struct Move {
    /// By how much x moved, all rows.
    p: Vec<f64>,
    /// By how much the residual fell, own rows.
    q: Vec<f64>,
    /// q · q of each newer epoch, newest first, and of this one.
    products: VecDeque<f64>,
}

impl History {
    /// For `n` unknowns, of which `rhs` belongs to the own rows: x = 0 has r = b. `moved`: x is not 0, and its residual not known before the first pause.
    pub(crate) fn new(n: usize, rhs: &[f64], moved: bool) -> Self {
        let window = WINDOW_BYTES / (size_of::<f64>() * n.max(1));
        Self {
            window: window.clamp(2, WINDOW),
            old: (!moved).then(|| (vec![0.0; n], rhs.to_vec())),
            moves: VecDeque::new(),
            residual: Vec::new(),
        }
    }

    /// Takes x and the exact residual of the own rows at a pause. Over the own rows: qᵢ·qⱼ for j ≤ i, then qᵢ·r.
    pub(crate) fn pause(&mut self, x: &[f64], residual: Vec<f64>) -> Vec<f64> {
        if self.window == 0 {
            return Vec::new();
        }
        if let Some((old_x, old_residual)) = self.old.take() {
            if self.moves.len() == self.window {
                self.moves.pop_back();
            }
            let q: Vec<f64> = difference(&old_residual, &residual);
            for earlier in &mut self.moves {
                earlier.products.push_front(dot(&q, &earlier.q));
            }
            self.moves.push_front(Move {
                p: difference(x, &old_x),
                products: VecDeque::from([dot(&q, &q)]),
                q,
            });
        }
        let known = self
            .moves
            .iter()
            .flat_map(|epoch| epoch.products.iter().copied());
        let new = self.moves.iter().map(|epoch| dot(&epoch.q, &residual));
        let dots = known.chain(new).collect();
        self.residual = residual;
        dots
    }

    /// Moves x to the combination; the next epoch begins there. Without factors x stays. False: there are more factors than epochs.
    pub(crate) fn resume(&mut self, x: &mut [f64], factors: &[f64]) -> bool {
        if self.residual.is_empty() {
            return factors.is_empty(); // no residual was asked for at this pause: the epoch goes on for `old`
        }
        for (epoch, factor) in self.moves.iter().zip(factors) {
            if *factor != 0.0 {
                for (x, p) in x.iter_mut().zip(&epoch.p) {
                    *x += factor * p;
                }
                for (residual, q) in self.residual.iter_mut().zip(&epoch.q) {
                    *residual -= factor * q;
                }
            }
        }
        self.old = Some((x.to_vec(), std::mem::take(&mut self.residual)));
        factors.len() <= self.moves.len()
    }
}

/// Of one process, which has all rows: moves `x`, whose exact residual is `residual`, to the best combination. Returns Σ r² of that.
pub(crate) fn combine_all(history: &mut History, x: &mut [f64], residual: Vec<f64>) -> f64 {
    let residual_sq = super::kernels::sum_of_squares(&residual);
    let dots = history.pause(x, residual);
    let (factors, least_sq) = combine(&dots, residual_sq).unwrap_or((Vec::new(), residual_sq));
    history.resume(x, &factors);
    least_sq
}

fn difference(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

/// The number of epochs that `dots` belongs to; `None` if no number of them has that many products.
fn epochs(dots: usize) -> Option<usize> {
    (0..=WINDOW).find(|count| count * (count + 1) / 2 + count == dots)
}

/// Factors that minimise ‖r − Σ αᵢ qᵢ‖², and this minimum, from the products over all rows; no factors where nothing is gained. `None`: `dots` is not
/// of this form.
pub(crate) fn combine(dots: &[f64], residual_sq: f64) -> Option<(Vec<f64>, f64)> {
    let count = epochs(dots.len())?;
    let gram = |i: usize, j: usize| dots[i.max(j) * (i.max(j) + 1) / 2 + i.min(j)];
    let with_residual = &dots[count * (count + 1) / 2..];
    // L D Lᵀ, newest first; a dependent epoch has no row of its own and the factor 0.
    let mut lower = vec![vec![0.0; count]; count];
    let mut pivots = vec![0.0; count];
    let mut forward = vec![0.0; count];
    for i in 0..count {
        for j in 0..i {
            if pivots[j] > 0.0 {
                let known: f64 = (0..j).map(|k| lower[i][k] * lower[j][k] * pivots[k]).sum();
                lower[i][j] = (gram(i, j) - known) / pivots[j];
            }
        }
        let pivot = gram(i, i)
            - (0..i)
                .map(|k| lower[i][k] * lower[i][k] * pivots[k])
                .sum::<f64>();
        pivots[i] = if pivot > DEPENDENT * gram(i, i) && pivot.is_finite() {
            pivot
        } else {
            0.0
        };
        forward[i] = with_residual[i] - (0..i).map(|k| lower[i][k] * forward[k]).sum::<f64>();
    }
    let mut factors = vec![0.0; count];
    let mut gain = 0.0;
    for i in (0..count).rev() {
        if pivots[i] > 0.0 {
            let later: f64 = (i + 1..count).map(|k| lower[k][i] * factors[k]).sum();
            factors[i] = forward[i] / pivots[i] - later;
            gain += forward[i] * forward[i] / pivots[i];
        }
    }
    let useful =
        gain > 0.0 && residual_sq.is_finite() && factors.iter().all(|factor| factor.is_finite());
    Some(if useful {
        (factors, (residual_sq - gain).max(0.0))
    } else {
        (Vec::new(), residual_sq)
    })
}

/// A plain loop, so that the sum does not depend on the processor.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fixed 6 × 6 system, its rows shared by two workers, moved by arbitrary epochs.
    fn residual(x: &[f64], rows: std::ops::Range<usize>) -> Vec<f64> {
        let entry = |i: usize, j: usize| {
            if i == j {
                4.0
            } else {
                -(((i * 7 + j * 3) % 5) as f64) / 4.0
            }
        };
        rows.map(|i| (i + 1) as f64 - (0..6).map(|j| entry(i, j) * x[j]).sum::<f64>())
            .collect()
    }

    fn norm(x: &[f64]) -> f64 {
        [residual(x, 0..3), residual(x, 3..6)]
            .concat()
            .iter()
            .map(|r| r * r)
            .sum::<f64>()
            .sqrt()
    }

    /// For any epochs, the combination is no worse than their end, both workers come to the same x, and as many independent epochs as there are
    /// unknowns solve the system.
    #[test]
    fn combination_is_least() {
        let mut x = [vec![0.0; 6], vec![0.0; 6]];
        let rhs = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let mut workers = [
            History::new(6, &rhs[..3], false),
            History::new(6, &rhs[3..], false),
        ];
        for epoch in 0..8 {
            for x in &mut x {
                for (place, value) in x.iter_mut().enumerate() {
                    *value += ((epoch * 5 + place * 3) % 7) as f64 / 7.0 - 0.3;
                }
            }
            let moved = norm(&x[0]);
            let first = workers[0].pause(&x[0], residual(&x[0], 0..3));
            let second = workers[1].pause(&x[1], residual(&x[1], 3..6));
            let dots: Vec<f64> = first.iter().zip(&second).map(|(a, b)| a + b).collect();
            let (factors, least_sq) = combine(&dots, moved * moved).unwrap();
            for (worker, x) in workers.iter_mut().zip(&mut x) {
                assert!(worker.resume(x, &factors));
            }
            assert_eq!(x[0], x[1]);
            assert!(
                (norm(&x[0]) - least_sq.sqrt()).abs() < 1e-6,
                "epoch {epoch}"
            );
            assert!(
                norm(&x[0]) <= moved * (1.0 + 1e-9),
                "epoch {epoch}: {} > {moved}",
                norm(&x[0])
            );
        }
        assert!(norm(&x[0]) < 1e-6, "{}", norm(&x[0]));
    }

    /// Repeated epochs, none, or NaN give no harmful factors.
    #[test]
    fn degenerate_products_are_harmless() {
        assert_eq!(combine(&[], 1.0), Some((vec![], 1.0)));
        assert_eq!(combine(&[4.0, 2.0], 1.0), Some((vec![0.5], 0.0)));
        let twice = [4.0, 4.0, 4.0, 2.0, 2.0];
        assert_eq!(
            combine(&twice, 1.0),
            Some((vec![0.5, 0.0], 0.0)),
            "the older of two equal epochs is left out"
        );
        assert_eq!(combine(&[0.0, 0.0], 1.0), Some((vec![], 1.0)));
        assert_eq!(combine(&[f64::NAN, 1.0], 1.0), Some((vec![], 1.0)));
        assert_eq!(combine(&[f64::INFINITY, 1.0], 1.0), Some((vec![], 1.0)));
        assert_eq!(combine(&[1.0, 2.0, 3.0], 1.0), None);
    }
}
