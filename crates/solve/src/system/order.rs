//! An order of the unknowns in which strongly coupled ones are adjacent, so that one worker owns them.
//!
//! Blocks converge in as many laps as the couplings *between* them demand, and the order of real matrices often cuts through the strongest. Called
//! before rows are partitioned among several workers; `partition` then cuts where the cost is least.
//!
//! The coupling of i and j is s = |aᵢⱼ| / √|aᵢᵢ aⱼⱼ|; a pair that is cut apart converges by s² a lap, so the cost of a cut is taken as s² / (1 − s²),
//! the laps it takes. Clusters grow along the strongest couplings first, held to sizes that double from [`FIRST_SHARE`] of the rows to all; the order
//! is that of the clusters' growth.
//!
//! Invariant: rows and columns are permuted alike, so diagonals, symmetry and dominance do not change.

use super::partition::cut;
use super::{Csr, Matrix, Source, System};

/// The smallest clusters are this part of the rows: no worker's block should be much smaller.
const FIRST_SHARE: usize = 256;
/// Upper limit of s²: systems with stronger couplings relax badly in any order.
const SQUARE_LIMIT: f64 = 1.0 - 1e-9;

/// A permutation of the unknowns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The original number of the unknown at each place.
    original: Vec<u32>,
}

/// One entry in so many, at most, may couple rows of different workers.
const NEAR: usize = 50;

impl Order {
    /// An order for `workers` workers that cuts through weaker couplings than the present one, and the system in it; `None` if there is no
    /// such order, or nothing to gain: dense systems, one worker.
    pub fn for_workers(system: &System, workers: usize) -> Option<(Self, System)> {
        let (Matrix::Sparse(csr), 2..) = (&system.matrix, workers) else {
            return None;
        };
        let least = |matrix: &Matrix, costs: &[f64]| -> Option<f64> {
            let ranges = cut(matrix, &vec![1.0; workers], costs).ok()?;
            Some(ranges[1..].iter().map(|range| costs[range.start]).sum())
        };
        let present = least(&system.matrix, &cut_costs(csr))?;
        let order = Self::by_coupling(csr);
        let ordered = order.permute(csr);
        let costs = cut_costs(&ordered);
        let ordered = Matrix::Sparse(ordered);
        (least(&ordered, &costs)? < present).then(|| {
            let system = order.system(ordered, system);
            (order, system)
        })
    }

    /// Whether workers that divide the rows in their present order read few elements of each other: then a Krylov method has nothing to gain by another
    /// order, which takes about as long as reading the file.
    pub fn is_near(source: &Source, workers: usize) -> bool {
        let matrix = match source {
            Source::System(system) => &system.matrix,
            // In its natural order, known from its kind.
            Source::Generated(made) => {
                let cuts = workers.saturating_sub(1) as f64;
                return cuts * made.what.crossing() <= made.what.stored() as f64 / NEAR as f64;
            }
        };
        // Where exactly they are cut is looked for when it is known that this order stays.
        let ranges = cut(matrix, &vec![1.0; workers], &[]);
        let (Matrix::Sparse(csr), Ok(ranges)) = (matrix, ranges) else {
            return false;
        };
        let between = |rows: &std::ops::Range<usize>| -> usize {
            let foreign = |row| {
                let (columns, _) = csr.row(row);
                columns.len() - csr.row_within(row, rows).0.len()
            };
            rows.clone().map(foreign).sum()
        };
        ranges.iter().map(between).sum::<usize>() <= csr.stored() / NEAR
    }

    /// Clusters along the strongest couplings.
    fn by_coupling(csr: &Csr) -> Self {
        let n = csr.rows();
        let mut couplings: Vec<(f64, u32, u32)> = Vec::with_capacity(csr.stored());
        // Both entries of a pair say the same.
        let is_symmetric = csr.is_symmetric();
        for_each_coupling(csr, |row, column, square| {
            if row < column || !is_symmetric {
                couplings.push((square, row as u32, column as u32));
            }
        });
        // Stable, so that equal couplings are taken in the order of the rows.
        couplings.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut clusters = Clusters::new(n);
        let mut size = (n / FIRST_SHARE).max(2);
        loop {
            size = size.min(n);
            couplings.retain(|&(_, row, column)| clusters.join(row, column, size));
            if size == n {
                break;
            }
            size *= 2;
        }
        Self {
            original: clusters.into_order(),
        }
    }

    /// The system in this order, of which `matrix` is in it.
    fn system(&self, matrix: Matrix, system: &System) -> System {
        System {
            matrix,
            rhs: self.arrange(&system.rhs),
            name: system.name.clone(),
            scaling: (system.scaling.as_ref()).map(|scaling| scaling.in_order(&self.original)),
            was_symmetric: system.was_symmetric,
        }
    }

    /// A vector of the original system in this order.
    pub fn arrange(&self, x: &[f64]) -> Vec<f64> {
        self.original.iter().map(|&row| x[row as usize]).collect()
    }

    /// A vector of the ordered system in the order of the original.
    pub fn restore(&self, ordered: &[f64]) -> Vec<f64> {
        let mut x = vec![0.0; ordered.len()];
        for (value, &row) in ordered.iter().zip(&self.original) {
            x[row as usize] = *value;
        }
        x
    }

    fn permute(&self, csr: &Csr) -> Csr {
        let mut place = vec![0u32; self.original.len()];
        for (position, &row) in self.original.iter().enumerate() {
            place[row as usize] = position as u32;
        }
        let mut entries = Vec::new();
        let rows = &self.original;
        Csr::by_rows(
            csr.columns(),
            csr.stored(),
            rows,
            |&row, indices, values| {
                let (columns, row_values) = csr.row(row as usize);
                entries.clear();
                entries.extend(columns.iter().map(|&c| place[c as usize]).zip(row_values));
                entries.sort_unstable_by_key(|&(column, _)| column);
                indices.extend(entries.iter().map(|&(column, _)| column));
                values.extend(entries.iter().map(|&(_, value)| value));
            },
        )
    }
}

/// The cost of a cut before each row: element k is the cost of separating rows 0 to k − 1 from the rest.
pub(super) fn cut_costs(csr: &Csr) -> Vec<f64> {
    let mut costs = vec![0.0; csr.rows() + 1];
    for_each_coupling(csr, |row, column, square| {
        let cost = square / (1.0 - square.min(SQUARE_LIMIT));
        let (first, last) = (row.min(column), row.max(column));
        costs[first + 1] += cost;
        costs[last + 1] -= cost;
    });
    let mut sum = 0.0f64;
    for cost in &mut costs {
        sum += *cost;
        // The rounding errors of sums that cancel must not move a cut.
        *cost = sum.max(0.0);
    }
    costs
}

/// Calls `visit(row, column, s²)` for every entry beside the diagonal.
fn for_each_coupling(csr: &Csr, mut visit: impl FnMut(usize, usize, f64)) {
    let inverse = |row| 1.0 / csr.get(row, row).abs();
    let inverse: Vec<f64> = (0..csr.rows()).map(inverse).collect();
    for (row, (columns, values)) in csr.rows_in(0..csr.rows()).enumerate() {
        for (&column, value) in columns.iter().zip(values) {
            let column = column as usize;
            if column != row {
                let square = value * inverse[row] * (value * inverse[column]);
                visit(row, column, square.abs().min(f64::MAX));
            }
        }
    }
}

/// Disjoint sets with the order in which their members came together.
struct Clusters {
    parent: Vec<u32>,
    size: Vec<u32>,
    /// For a root, its last member; for a member, the next one, or `END`.
    last: Vec<u32>,
    next: Vec<u32>,
    /// For a root, its first member.
    first: Vec<u32>,
}

const END: u32 = u32::MAX;

impl Clusters {
    fn new(n: usize) -> Self {
        let own: Vec<u32> = (0..n as u32).collect();
        Self {
            size: vec![1; n],
            next: vec![END; n],
            first: own.clone(),
            last: own.clone(),
            parent: own,
        }
    }

    fn root(&mut self, mut node: u32) -> u32 {
        while self.parent[node as usize] != node {
            let above = self.parent[self.parent[node as usize] as usize];
            self.parent[node as usize] = above;
            node = above;
        }
        node
    }

    /// Joins the clusters of `a` and `b` if they have at most `limit` members together; returns whether they are still apart.
    fn join(&mut self, a: u32, b: u32, limit: usize) -> bool {
        let (a, b) = (self.root(a), self.root(b));
        if a == b {
            return false;
        }
        let together = self.size[a as usize] + self.size[b as usize];
        if together as usize > limit {
            return true;
        }
        let (large, small) = if self.size[a as usize] < self.size[b as usize] {
            (b as usize, a as usize)
        } else {
            (a as usize, b as usize)
        };
        self.next[self.last[large] as usize] = self.first[small];
        self.last[large] = self.last[small];
        self.size[large] = together;
        self.parent[small] = large as u32;
        false
    }

    /// All members, cluster by cluster.
    fn into_order(mut self) -> Vec<u32> {
        let n = self.parent.len() as u32;
        let mut order = Vec::with_capacity(n as usize);
        for node in 0..n {
            if self.root(node) == node {
                let mut member = self.first[node as usize];
                while member != END {
                    order.push(member);
                    member = self.next[member as usize];
                }
            }
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Generate, partition};
    use super::*;
    use crate::local::{Inner, Limits, Relaxation, threads};
    use proptest::prelude::*;

    /// A chain of strongly coupled pairs whose members are far apart.
    fn torn_pairs(n: u32) -> System {
        let half = n / 2;
        let mut triplets = Vec::new();
        for row in 0..half {
            let twin = row + half;
            triplets.extend([(row, row, 1.011), (twin, twin, 1.011)]);
            triplets.extend([(row, twin, -1.0), (twin, row, -1.0)]);
            if row + 1 < half {
                triplets.extend([(row, row + 1, -0.005), (row + 1, row, -0.005)]);
            }
        }
        let csr = Csr::from_triplets(n as usize, n as usize, &triplets).unwrap();
        System::new(Matrix::Sparse(csr), None, "pairs".into()).unwrap()
    }

    fn in_order(order: &Order, system: &System) -> System {
        let Matrix::Sparse(csr) = &system.matrix else {
            panic!("orders are made for sparse systems")
        };
        order.system(Matrix::Sparse(order.permute(csr)), system)
    }

    /// Members of a pair become adjacent, and blocks then need a fraction of the laps.
    #[test]
    fn strong_couplings_are_kept_together() {
        let system = torn_pairs(400);
        let (order, ordered) = Order::for_workers(&system, 4).unwrap();
        let ranges = partition(&ordered.matrix, 4).unwrap();
        let worker = |place: usize| ranges.iter().position(|range| range.contains(&place));
        let mut place = vec![0; 400];
        for (position, &row) in order.original.iter().enumerate() {
            place[row as usize] = position;
        }
        assert!((0..200).all(|row| worker(place[row]) == worker(place[row + 200])));
        let relaxation = Relaxation::new(Inner::Lu, 1.0).unwrap();
        let limits = Limits::new(1e-10, 100_000).unwrap();
        let outcome =
            threads::solve(system, 4, (relaxation, false), limits, |_| (), || false).unwrap();
        assert!(outcome.converged);
        assert!(outcome.x.iter().all(|x| (x - 1.0).abs() < 1e-7));
    }

    /// An order that is as good is kept; dense systems and single workers have nothing to gain.
    #[test]
    fn good_orders_are_kept() {
        let is_kept = |system: &System, workers| Order::for_workers(system, workers).is_none();
        let chain: Vec<_> = (0..100u32)
            .flat_map(|row| [(row, row, 2.0), (row, (row + 1).min(99), -1.0)])
            .collect();
        let chain = Matrix::Sparse(Csr::from_triplets(100, 100, &chain).unwrap());
        let chain = System::new(chain, None, "chain".into()).unwrap();
        let dense = "dense:20".parse::<Generate>().unwrap().system(1).unwrap();
        assert!(is_kept(&chain, 4) && is_kept(&dense, 4));
        assert!(is_kept(&torn_pairs(40), 1) && is_kept(&torn_pairs(4), 5));
    }

    proptest! {
        /// An order is a permutation, a permuted system has the permuted products, and restoring undoes it.
        #[test]
        fn orders_are_permutations(
            n in 1u32..30,
            entries in prop::collection::vec((0u32..30, 0u32..30, -1.0f64..1.0), 0..90),
        ) {
            let mut triplets: Vec<_> = (0..n).map(|row| (row, row, 2.0)).collect();
            triplets.extend(entries.into_iter().filter(|e| e.0 < n && e.1 < n && e.0 != e.1));
            let n = n as usize;
            let csr = Csr::from_triplets(n, n, &triplets).unwrap();
            let order = Order::by_coupling(&csr);
            let mut seen = order.original.clone();
            seen.sort_unstable();
            prop_assert!(seen.iter().enumerate().all(|(k, &row)| k == row as usize));
            let system = System::new(Matrix::Sparse(csr), None, "random".into()).unwrap();
            let ordered = in_order(&order, &system);
            let x: Vec<f64> = (0..n).map(|k| k as f64 - 3.0).collect();
            prop_assert_eq!(&order.arrange(&order.restore(&x)), &x);
            let expected = system.matrix.times(&order.restore(&x));
            let found = order.restore(&ordered.matrix.times(&x));
            for (found, expected) in found.iter().zip(expected) {
                prop_assert!((found - expected).abs() < 1e-12);
            }
        }

        /// The cost of each cut is that of the couplings across it.
        #[test]
        fn cut_costs_agree_with_the_oracle(
            entries in prop::collection::vec((0u32..12, 0u32..12, -1.0f64..1.0), 0..40),
        ) {
            let mut triplets: Vec<_> = (0..12).map(|row| (row, row, 2.0)).collect();
            triplets.extend(entries.into_iter().filter(|e| e.0 != e.1));
            let csr = Csr::from_triplets(12, 12, &triplets).unwrap();
            let costs = cut_costs(&csr);
            for (cut, found) in costs.iter().enumerate() {
                let mut expected = 0.0;
                for_each_coupling(&csr, |row, column, square| {
                    if (row < cut) != (column < cut) {
                        expected += square / (1.0 - square.min(SQUARE_LIMIT));
                    }
                });
                prop_assert!((found - expected).abs() < 1e-6 * expected.max(1.0), "{} {}", found, expected);
            }
        }
    }

    /// Of generated systems it is known without their entries whether they are near.
    #[test]
    fn made_systems_are_as_near_as_said() {
        for (text, workers, is_near) in [
            ("poisson2d:60", 2, true),
            ("poisson2d:60", 30, false),
            ("poisson3d:20", 2, true),
            ("poisson3d:12", 2, false),
            ("circuit:2000", 2, true),
            ("dense:30", 2, false),
        ] {
            for source in &Source::both(text) {
                assert_eq!(Order::is_near(source, workers), is_near, "{text}");
            }
        }
    }

    /// A grid in its natural order is near; the same in a random order is not.
    #[test]
    fn natural_grids_are_near() {
        let system = "poisson2d:60"
            .parse::<Generate>()
            .unwrap()
            .system(1)
            .unwrap();
        assert!(Order::is_near(&system.clone().into(), 2));
        let mut original: Vec<u32> = (0..3600).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut original);
        let shuffled = in_order(&Order { original }, &system);
        assert!(!Order::is_near(&shuffled.into(), 2));
    }
}
