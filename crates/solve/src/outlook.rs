//! The expected convergence of a system, before the first lap.
//!
//! Called by the program before a run. Costs a few passes over A. Convergence is proven by:
//!
//! - strict diagonal dominance, or weak dominance of an irreducible matrix with one strict row: any order of relaxation
//!   converges, also the asynchronous one, since ρ(|D⁻¹(L+U)|) < 1 (Chazan and Miranker, 1969), for ω in (0, 1];
//! - ρ(|D⁻¹(L+U)|) < 1 found by a positive vector v with |D⁻¹(L+U)| v < v in every row (Collatz–Wielandt): the same;
//! - symmetric with positive diagonal: sequential Gauss–Seidel converges for ω in (0, 2) if A is positive definite
//!   (Ostrowski–Reich). That says nothing of asynchronous relaxation, and definiteness is not checked here.

use serde::Serialize;

use crate::system::{Generate, Matrix, Source, System};

/// Most steps of the power method: enough to separate 0.9 from 1; of a radius close to 1 it may stay unknown on which side it is.
const POWER_STEPS: usize = 30;
/// Most entries that the power method visits, about a second's worth; never fewer than five steps.
const POWER_ENTRIES: usize = 500_000_000;

/// The text states no larger number of laps: it is a bound, and no run does so many laps.
const LAPS_TOLD: u64 = 1_000_000;

/// Expected convergence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Proven, for asynchronous relaxation too.
    Assured,
    /// Sequential relaxation converges if A is positive definite; of another order nothing is known.
    Likely,
    /// The bounds of ρ(|D⁻¹(L+U)|) lie on both sides of 1, or there are none.
    Unknown,
    /// ρ(|D⁻¹(L+U)|) is 1 or more: some order of asynchronous steps diverges, but another one may converge.
    NotAssured,
}

/// The convergence outlook of a system.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outlook {
    /// Expected convergence.
    pub verdict: Verdict,
    /// Why, in words.
    pub why: String,
    /// Upper bound of ρ(|D⁻¹(L+U)|), if one below infinity is known.
    pub radius_at_most: Option<f64>,
    /// Laps of point relaxation to `tolerance` at that radius; block relaxation needs fewer.
    pub laps_at_most: Option<u64>,
}

impl std::fmt::Display for Outlook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verdict = match self.verdict {
            Verdict::Assured => "convergence assured",
            Verdict::Likely => "convergence likely by one process",
            Verdict::Unknown => "convergence unknown",
            Verdict::NotAssured => "convergence not assured",
        };
        write!(f, "{verdict}: {}", self.why)?;
        match self.laps_at_most {
            Some(laps) if laps > LAPS_TOLD => {
                write!(f, "; laps of point relaxation alone may take millions")
            }
            Some(laps) => write!(f, "; at most about {laps} laps of point relaxation"),
            None => Ok(()),
        }
    }
}

impl Outlook {
    /// The outlook of a system. `omega` and `tolerance` as for the run.
    pub fn of(source: &Source, omega: f64, tolerance: f64) -> Self {
        match source {
            Source::System(system) => Self::of_system(system, omega, tolerance),
            Source::Generated(made) => Self::of_generated(&made.what, omega, tolerance),
        }
    }

    /// The outlook of a system in memory.
    pub fn of_system(system: &System, omega: f64, tolerance: f64) -> Self {
        let mut outlook = Self::of_matrix(&system.matrix, omega, tolerance);
        if system.scaling.is_some() {
            outlook.why += ", matched and scaled first";
        }
        outlook
    }

    /// The outlook of a matrix in memory. `omega` and `tolerance` as for the run.
    pub fn of_matrix(matrix: &Matrix, omega: f64, tolerance: f64) -> Self {
        let rows = Rows::of(matrix);
        if omega > 1.0 {
            return Self::over_relaxed(omega);
        }
        if rows.strict == matrix.n() {
            let radius = rows.largest_ratio;
            let why = format!(
                "strictly diagonally dominant, off-diagonal at most {radius:.3} of the diagonal"
            );
            return Self::assured(why, radius, omega, tolerance);
        }
        if rows.weak == matrix.n() && rows.strict > 0 && is_irreducible(matrix) {
            let why = "weakly diagonally dominant and irreducible".to_owned();
            return Self::assured(why, radius_bounds(matrix).1, omega, tolerance);
        }
        let (low, high) = radius_bounds(matrix);
        if high < 1.0 {
            let why = format!("spectral radius of |D^-1(L+U)| at most {high:.6}");
            return Self::assured(why, high, omega, tolerance);
        }
        let estimate = format!("spectral radius of |D^-1(L+U)| between {low:.6} and {high:.6}");
        let symmetric = is_symmetric(matrix) && may_be_definite(matrix);
        let (verdict, why) = match (low < 1.0, symmetric) {
            (_, true) => (
                Verdict::Likely,
                format!(
                    "{estimate}; symmetric: assured for it if positive definite, not for several"
                ),
            ),
            (true, false) => (Verdict::Unknown, estimate),
            (false, false) => (
                Verdict::NotAssured,
                format!("{estimate}: some orders of asynchronous steps diverge"),
            ),
        };
        Self {
            verdict,
            why,
            radius_at_most: None,
            laps_at_most: None,
        }
    }

    /// The outlook of a system that each worker generates, known from its kind.
    fn of_generated(what: &Generate, omega: f64, tolerance: f64) -> Self {
        if omega > 1.0 {
            return Self::over_relaxed(omega);
        }
        match *what {
            Generate::Dense { .. } => {
                let radius = 1.0 / crate::system::DENSE_DOMINANCE;
                let why = format!(
                    "strictly diagonally dominant, off-diagonal {radius:.3} of the diagonal"
                );
                Self::assured(why, radius, omega, tolerance)
            }
            Generate::Poisson2d { k } | Generate::Poisson3d { k } => {
                let radius = (std::f64::consts::PI / (k as f64 + 1.0)).cos();
                let why = "weakly diagonally dominant and irreducible".to_owned();
                Self::assured(why, radius, omega, tolerance)
            }
            Generate::Circuit { .. } => {
                let why =
                    "weakly diagonally dominant and irreducible, spectral radius just below 1";
                Self {
                    verdict: Verdict::Assured,
                    why: why.to_owned(),
                    radius_at_most: Some(1.0),
                    laps_at_most: None,
                }
            }
        }
    }

    fn over_relaxed(omega: f64) -> Self {
        Self {
            verdict: Verdict::Unknown,
            why: format!(
                "with omega {omega} nothing is known beforehand; up to 1 dominance would assure it"
            ),
            radius_at_most: None,
            laps_at_most: None,
        }
    }

    fn assured(why: String, radius: f64, omega: f64, tolerance: f64) -> Self {
        // Relaxation by ω ≤ 1 contracts by 1 − ω + ωρ.
        let contraction = 1.0 - omega + omega * radius;
        let laps = (tolerance.ln() / contraction.ln()).ceil();
        let finite = contraction < 1.0 && laps.is_finite() && laps < 1e15;
        Self {
            verdict: Verdict::Assured,
            why,
            radius_at_most: Some(radius.min(1.0)),
            laps_at_most: finite.then_some(laps as u64),
        }
    }
}

/// Dominance, row by row.
struct Rows {
    strict: usize,
    weak: usize,
    /// Largest Σ|off-diagonal| / |diagonal|.
    largest_ratio: f64,
}

impl Rows {
    fn of(matrix: &Matrix) -> Self {
        let mut rows = Self {
            strict: 0,
            weak: 0,
            largest_ratio: 0.0,
        };
        for row in 0..matrix.n() {
            let (diagonal, sum) = magnitudes(matrix, row);
            rows.strict += usize::from(sum < diagonal);
            // Rows that sum to zero but for rounding count as weak.
            rows.weak += usize::from(sum <= diagonal * (1.0 + 1e-12));
            rows.largest_ratio = rows.largest_ratio.max(sum / diagonal);
        }
        rows
    }
}

/// Largest Σ|off-diagonal| / |diagonal| of a row.
pub(crate) fn largest_ratio(matrix: &Matrix) -> f64 {
    Rows::of(matrix).largest_ratio
}

/// |diagonal| and Σ|off-diagonal| of a row.
fn magnitudes(matrix: &Matrix, row: usize) -> (f64, f64) {
    let mut sum = 0.0;
    matrix.for_each_in_row(row, |column, value| {
        if column != row {
            sum += value.abs();
        }
    });
    (matrix.diagonal(row).abs(), sum)
}

/// Collatz–Wielandt: for any positive v, ρ lies between the least and the largest of (|D⁻¹(L+U)| v)ᵢ / vᵢ.
fn radius_bounds(matrix: &Matrix) -> (f64, f64) {
    let n = matrix.n();
    let diagonal: Vec<f64> = (0..n).map(|row| matrix.diagonal(row).abs()).collect();
    let (mut v, mut next) = (vec![1.0; n], vec![0.0; n]);
    let (mut low, mut high) = (0.0f64, f64::INFINITY);
    let steps = (POWER_ENTRIES / matrix.stored().max(1)).clamp(5, POWER_STEPS);
    for _ in 0..steps {
        let (mut least, mut largest) = (f64::INFINITY, 0.0f64);
        for row in 0..n {
            let mut sum = 0.0;
            matrix.for_each_in_row(row, |column, value| {
                if column != row {
                    sum += value.abs() * v[column];
                }
            });
            let image = sum / diagonal[row];
            let growth = image / v[row];
            least = least.min(growth);
            largest = largest.max(growth);
            // The average with v keeps all entries positive and keeps bipartite matrices from oscillating.
            next[row] = 0.5 * (v[row] + image);
        }
        low = low.max(least);
        high = high.min(largest);
        let scale = next.iter().fold(0.0f64, |most, &value| most.max(value));
        if !scale.is_finite() || scale == 0.0 {
            break;
        }
        next.iter_mut()
            .for_each(|value| *value = (*value / scale).max(f64::MIN_POSITIVE));
        std::mem::swap(&mut v, &mut next);
    }
    (low, high)
}

/// Whether every unknown depends on every other, over any number of steps: the graph of A is strongly connected.
fn is_irreducible(matrix: &Matrix) -> bool {
    let n = matrix.n();
    let reads = |row: usize, visit: &mut dyn FnMut(usize)| {
        matrix.for_each_in_row(row, |column, value| {
            if value != 0.0 {
                visit(column);
            }
        });
    };
    if !reaches_all(n, reads) {
        return false;
    }
    if is_symmetric(matrix) {
        return true;
    }
    let mut read_by = vec![Vec::new(); n];
    for row in 0..n {
        reads(row, &mut |column| read_by[column].push(row as u32));
    }
    reaches_all(n, |row, visit| {
        read_by[row].iter().for_each(|&other| visit(other as usize));
    })
}

/// Whether all of `n` nodes are reached from the first one, each leading to those that `next` visits.
fn reaches_all(n: usize, next: impl Fn(usize, &mut dyn FnMut(usize))) -> bool {
    let mut seen = vec![false; n];
    seen[0] = true;
    let (mut waiting, mut count) = (vec![0], 1);
    while count < n {
        let Some(node) = waiting.pop() else {
            return false;
        };
        next(node, &mut |other| {
            if !std::mem::replace(&mut seen[other], true) {
                waiting.push(other);
                count += 1;
            }
        });
    }
    true
}

/// Whether a symmetric matrix passes what every positive definite one does: the diagonal is positive, and aᵢⱼ² < aᵢᵢ aⱼⱼ.
fn may_be_definite(matrix: &Matrix) -> bool {
    let root = |row| matrix.diagonal(row).sqrt(); // NaN below 0, which is smaller than nothing
    (0..matrix.n()).all(|row| {
        let mut may_be = matrix.diagonal(row) > 0.0;
        matrix.for_each_in_row(row, |column, value| {
            may_be &= column == row || value.abs() < root(row) * root(column);
        });
        may_be
    })
}

pub(crate) fn is_symmetric(matrix: &Matrix) -> bool {
    match matrix {
        Matrix::Dense(dense) => {
            let n = dense.n();
            (0..n)
                .all(|row| (0..row).all(|column| dense.row(row)[column] == dense.row(column)[row]))
        }
        Matrix::Sparse(csr) => csr.is_symmetric(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::Dense;

    fn dense(n: usize, values: &[f64]) -> Matrix {
        Matrix::Dense(Dense::new(n, values.to_vec()).unwrap())
    }

    fn outlook_of(matrix: &Matrix) -> Outlook {
        Outlook::of_matrix(matrix, 1.0, 1e-10)
    }

    /// A singular ring is not taken for one that converges, whatever its numbers are.
    #[test]
    fn singular_rings_are_not_assured() {
        for diagonal in [1.0, 49.0, 103.0] {
            let triplets = (0..5u32).flat_map(|row| {
                let beside = |other| (row, other % 5, -0.5 * diagonal);
                [(row, row, diagonal), beside(row + 1), beside(row + 4)]
            });
            let triplets: Vec<_> = triplets.collect();
            let csr = crate::system::Csr::from_triplets(5, 5, &triplets).unwrap();
            let outlook = outlook_of(&Matrix::Sparse(csr));
            assert_eq!(outlook.verdict, Verdict::Likely, "{outlook}");
        }
    }

    /// Strict dominance is assured, with the laps that its factor gives.
    #[test]
    fn strict_dominance() {
        let outlook = outlook_of(&dense(2, &[2.0, -1.0, 1.0, 2.0]));
        assert_eq!(outlook.verdict, Verdict::Assured);
        assert_eq!(outlook.radius_at_most, Some(0.5));
        assert_eq!(outlook.laps_at_most, Some(34)); // ln 1e-10 / ln 0.5 = 33.2
    }

    /// Weak dominance proves convergence only for irreducible matrices.
    #[test]
    fn weak_dominance_needs_irreducibility() {
        let chain = dense(3, &[2.0, -1.0, 0.0, -1.0, 2.0, -1.0, 0.0, -1.0, 2.0]);
        assert_eq!(outlook_of(&chain).verdict, Verdict::Assured);
        let apart = dense(3, &[1.0, -1.0, 0.0, -1.0, 1.0, 0.0, 0.0, 0.0, 2.0]);
        assert_ne!(outlook_of(&apart).verdict, Verdict::Assured);
        // Bounds of two parts that have nothing to do with each other: between 0 and 5.
        let parts = dense(3, &[1.0, 5.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 2.0]);
        let outlook = outlook_of(&parts);
        assert_eq!(outlook.verdict, Verdict::Unknown, "{outlook}");
    }

    /// A radius below 1 is found without dominance, by scaling.
    #[test]
    fn radius_without_dominance() {
        // Column scaling of a dominant matrix: dominance is lost, the radius stays 0.5.
        let outlook = outlook_of(&dense(2, &[2.0, -10.0, -0.1, 2.0]));
        assert_eq!(outlook.verdict, Verdict::Assured, "{outlook}");
        assert!(outlook.radius_at_most.unwrap() < 0.51);
    }

    /// Divergent systems are not expected to converge.
    #[test]
    fn divergent_systems_are_told() {
        assert_eq!(
            outlook_of(&dense(2, &[1.0, 3.0, 2.0, 1.0])).verdict,
            Verdict::NotAssured
        );
        for indefinite in [&[1.0, 2.0, 2.0, 1.0], &[1.0; 4]] {
            assert_eq!(
                outlook_of(&dense(2, indefinite)).verdict,
                Verdict::NotAssured
            );
        }
        let third = [1.0, 0.6, 0.6, 0.6, 1.0, 0.6, 0.6, 0.6, 1.0];
        let symmetric = outlook_of(&dense(3, &third));
        assert_eq!(symmetric.verdict, Verdict::Likely, "{symmetric}");
        assert!(symmetric.why.contains("positive definite"));
    }

    /// The outlook of generated systems agrees with that of their matrices.
    #[test]
    fn generated_systems_agree_with_their_matrices() {
        for text in ["dense:50", "poisson2d:9", "poisson3d:5", "circuit:200"] {
            for source in &Source::both(text) {
                let outlook = Outlook::of(source, 1.0, 1e-10);
                assert_eq!(outlook.verdict, Verdict::Assured, "{text}");
            }
        }
    }
}
