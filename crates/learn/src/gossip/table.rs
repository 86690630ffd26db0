//! The version-stamped table: the newest statistics of every worker, and their sum once all of one version are there.
//!
//! Sums are made in the order of workers, so that they have the same bits wherever they are made. A worker is never more than one version ahead of
//! another, for it needs the other's statistic to go on: two places for each are enough.

use serde::{Deserialize, Serialize};

use crate::config::Kind;
use crate::objective::Shape;

use super::message::finite;

/// Rounding that sums of many rows may have, relative.
const ROUNDING: f64 = 1e-6;

/// Bounds of the statistics that these data can have. A statistic beyond them is refused before it spoils a sum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Plausible {
    pub(super) shape: Shape,
    pub(super) kind: Kind,
    /// Rows of each worker.
    pub(super) rows: Vec<u64>,
    /// Largest |x|, at least 1 for the intercept.
    pub(super) x_max: f64,
    /// Largest |y|, at least 1.
    pub(super) y_max: f64,
}

impl Plausible {
    /// Whether worker `from` can have sent this.
    pub(super) fn statistic(&self, from: usize, values: &[f64], hessian: bool) -> bool {
        let Some(&rows) = self.rows.get(from) else {
            return false;
        };
        values.len() == self.shape.statistic(hessian)
            && finite(values)
            && values[0] == rows as f64
            && self.sums(values, hessian)
    }

    /// Whether these can be sums over as many rows as they say, or over parts of rows.
    pub(super) fn sums(&self, values: &[f64], hessian: bool) -> bool {
        let rows = values[0];
        (0..self.shape.outputs).all(|output| {
            let (loss, gradient, triangle) = self.shape.parts(values, hessian, output);
            loss >= 0.0 && self.gradient(rows, loss, gradient) && self.triangle(rows, triangle)
        })
    }

    /// By Cauchy and Schwarz a gradient is bounded by the loss: |Σ x s| ≤ x_max √rows √(Σ s²), and s² is bounded by the loss of its row.
    fn gradient(&self, rows: f64, loss: f64, gradient: &[f64]) -> bool {
        let slopes = match self.kind {
            Kind::Linear | Kind::Ridge => 2.0 * loss,
            Kind::Logistic => loss.min(rows), // s² ≤ |s| ≤ loss, and |s| ≤ 1
            Kind::Svm => 4.0 * loss,
        };
        let most = self.x_max * (rows * slopes).sqrt() * (1.0 + ROUNDING) + ROUNDING * self.y_max;
        gradient.iter().all(|slope| slope.abs() <= most)
    }

    fn triangle(&self, rows: f64, triangle: &[f64]) -> bool {
        let most = rows * self.kind.curvature() * self.x_max * self.x_max * (1.0 + ROUNDING);
        let width = self.shape.width;
        let diagonal = |i: usize| triangle[i * width - i * i.saturating_sub(1) / 2];
        if triangle.is_empty() {
            return true;
        }
        let mut entries = triangle.iter();
        (0..width).all(|i| {
            (i..width).all(|j| {
                let (square, bound) =
                    (diagonal(i) * diagonal(j), most * most * ROUNDING * ROUNDING);
                entries.next().is_some_and(|entry| {
                    entry.abs() <= most
                        && entry * entry <= square * (1.0 + ROUNDING) + bound
                        && (i != j || *entry >= 0.0)
                })
            })
        })
    }
}

/// What became of a statistic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    New,
    /// It was here already, or is too old.
    Known,
    Refused,
}

#[derive(Debug, Clone, Default)]
struct Place {
    version: u64,
    values: Vec<f64>,
}

/// The table of one worker.
#[derive(Debug)]
pub(super) struct Table {
    plausible: Plausible,
    alive: Vec<bool>,
    /// Of each worker, the newest statistics with even and with odd versions. Versions count from 1.
    places: Vec<[Place; 2]>,
}

impl Table {
    /// Numbers of a statistic.
    pub(super) fn statistic(&self) -> usize {
        self.plausible.shape.statistic(true)
    }

    pub(super) fn new(plausible: Plausible) -> Self {
        let workers = plausible.rows.len();
        Self {
            plausible,
            alive: vec![true; workers],
            places: vec![Default::default(); workers],
        }
    }

    /// Empties the table. From now on these workers count, with so many rows.
    pub(super) fn reset(&mut self, alive: &[bool], rows: &[u64]) {
        self.plausible.rows = rows.to_vec();
        self.places.resize(rows.len(), Default::default());
        self.alive.clear();
        self.alive.extend_from_slice(alive);
        for places in &mut self.places {
            places.iter_mut().for_each(|place| place.version = 0);
        }
    }

    /// Whether a worker counts.
    pub(super) fn is_alive(&self, worker: usize) -> bool {
        self.alive.get(worker).copied().unwrap_or(false)
    }

    /// Takes a statistic.
    pub(super) fn take(&mut self, from: usize, version: u64, values: Vec<f64>) -> Taken {
        if !self.is_alive(from) {
            return Taken::Known;
        }
        let place = &mut self.places[from][version as usize % 2];
        if version <= place.version {
            return Taken::Known;
        }
        if !self.plausible.statistic(from, &values, true) {
            return Taken::Refused;
        }
        *place = Place { version, values };
        Taken::New
    }

    /// A worker's statistic of this version, if it is here.
    pub(super) fn of(&self, worker: usize, version: u64) -> Option<&[f64]> {
        let place = &self.places.get(worker)?[version as usize % 2];
        (place.version == version && version > 0).then_some(&place.values)
    }

    /// Workers that count, and whose statistic of this version is missing.
    pub(super) fn missing(&self, version: u64) -> impl Iterator<Item = usize> {
        (0..self.places.len())
            .filter(move |worker| self.alive[*worker] && self.of(*worker, version).is_none())
    }

    /// The sum over all workers that count; `None`: some are missing.
    pub(super) fn sum(&self, version: u64) -> Option<Vec<f64>> {
        // Asked at each poll: nothing is added up in vain.
        if self.missing(version).next().is_some() {
            return None;
        }
        let workers = (0..self.places.len()).filter(|worker| self.alive[*worker]);
        let mut all = workers.filter_map(|worker| self.of(worker, version));
        let mut sum = all.next()?.to_vec();
        for values in all {
            let pairs = sum.iter_mut().zip(values);
            pairs.for_each(|(sum, value)| *sum += value);
        }
        Some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Features;
    use crate::objective::Share;

    fn shares() -> [Share; 2] {
        let share = |seed: u64| {
            let mut random = fastrand::Rng::with_seed(seed);
            Share {
                kind: Kind::Logistic,
                outputs: 1,
                features: Features::Dense {
                    columns: 2,
                    values: (0..20).map(|_| random.f64() * 2.0 - 1.0).collect(),
                },
                targets: (0..10)
                    .map(|_| f64::from(u8::from(random.bool())))
                    .collect(),
            }
        };
        [share(1), share(2)]
    }

    fn table() -> Table {
        Table::new(Plausible {
            shape: Shape {
                width: 3,
                outputs: 1,
            },
            kind: Kind::Logistic,
            rows: vec![10, 10],
            x_max: 1.0,
            y_max: 1.0,
        })
    }

    /// The sum is there once all versions are equal, whatever the order, repeats and old ones.
    #[test]
    fn sums_need_one_version_of_all() {
        let [a, b] = shares().map(|share| share.statistic(&[0.1, 0.2, 0.3], true));
        let mut table = table();
        assert_eq!(table.take(0, 1, a.clone()), Taken::New);
        assert_eq!(table.sum(1), None);
        assert_eq!(table.missing(1).collect::<Vec<_>>(), [1]);
        assert_eq!(table.take(1, 2, b.clone()), Taken::New); // ahead
        assert_eq!(table.sum(1), None);
        assert_eq!(table.take(1, 1, b.clone()), Taken::New);
        assert_eq!(table.take(1, 1, a.clone()), Taken::Known);
        let wanted: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        assert_eq!(table.sum(1), Some(wanted));
        assert_eq!(table.take(0, 3, a.clone()), Taken::New);
        assert_eq!(table.sum(1), None); // overwritten
        // A dead worker's share drops out.
        table.reset(&[true, false], &[10, 10]);
        assert_eq!(table.take(1, 1, b), Taken::Known);
        table.take(0, 1, a.clone());
        assert_eq!(table.sum(1), Some(a));
    }

    /// Honest statistics pass; those that no rows can have are refused.
    #[test]
    fn implausible_statistics_are_refused() {
        for kind in [Kind::Logistic, Kind::Svm, Kind::Linear] {
            for share in shares() {
                let share = Share { kind, ..share };
                let plausible = Plausible {
                    kind,
                    ..table().plausible
                };
                for theta in [[0.0; 3], [3.0, -1.0, 7.0], [-40.0, 0.0, 1e3]] {
                    let honest = share.statistic(&theta, true);
                    assert!(
                        plausible.statistic(0, &honest, true),
                        "{kind:?} {theta:?} {honest:?}"
                    );
                    let spoilt = |place: usize, value: f64| {
                        let mut spoilt = honest.clone();
                        spoilt[place] = value;
                        plausible.statistic(0, &spoilt, true)
                    };
                    assert!(
                        !spoilt(0, 11.0) && !spoilt(1, f64::NAN) && !spoilt(2, 1e6),
                        "{kind:?}"
                    );
                    assert!(
                        !spoilt(5, -1.0) && !spoilt(5, 1e3) && !spoilt(6, 50.0),
                        "{kind:?}"
                    );
                    assert!(!plausible.statistic(0, &honest[1..], true));
                    assert!(!plausible.statistic(2, &honest, true));
                }
            }
        }
    }
}
