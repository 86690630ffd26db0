//! Which part each unknown belongs to: METIS cuts the graph of the matrix into parts of equal size with few edges between them; unknowns at one end
//! of each cut edge become the interface.
//!
//! In large systems the few unknowns that make the matrix unsymmetric, or have no positive diagonal, join the interface from the start, so that the
//! interiors are symmetric and have the quicker factors.
//!
//! Called by `super`. Invariant: no entry of the matrix couples unknowns of two parts.

use std::sync::{Mutex, PoisonError};

use tsumuji_solve::system::Csr;

/// METIS has one source of random numbers for the process, which each call sets to its seed.
static METIS: Mutex<()> = Mutex::new(());

/// The interface, in place of a part.
pub(super) const INTERFACE: u32 = u32::MAX;
/// Fewest unknowns of a part: smaller ones cost more than they save.
const LEAST_UNKNOWNS: usize = 64;
/// Most parts: each has a thread.
const MOST_PARTS: usize = 256;
/// METIS's choices are random: the same matrix shall have the same parts.
const SEED: i32 = 1;
/// METIS cuts by recursive bisection into so many parts, by a k-way method into more, as its manual recommends.
const MOST_BISECTED: usize = 8;

/// Smaller systems are solved at once by factors of any kind.
const LEAST_SYMMETRIC: usize = 500;
/// Most unknowns that join the interface for the sake of symmetry: these equations are dense.
const MOST_UNSYMMETRIC: usize = 1000;

/// A partition of unknowns.
#[derive(Debug, Clone)]
pub(super) struct Partition {
    /// Part of each unknown, or [`INTERFACE`].
    pub(super) part_of: Vec<u32>,
    /// Parts; some may be empty.
    pub(super) parts: usize,
}

/// Divides the unknowns into at most `wanted` parts.
pub(super) fn partition(matrix: &Csr, wanted: usize) -> Result<Partition, String> {
    let n = matrix.rows();
    let parts = wanted.min(n / LEAST_UNKNOWNS).clamp(1, MOST_PARTS);
    let apart = if n < LEAST_SYMMETRIC {
        Vec::new()
    } else {
        unsymmetric(matrix)
    };
    let graph = match parts {
        1 => None,
        _ => Some(Graph::new(matrix)?),
    };
    let mut part_of = match &graph {
        None => vec![0; n],
        Some(graph) => graph.cut(parts)?,
    };
    for unknown in apart {
        part_of[unknown] = INTERFACE;
    }
    if let Some(graph) = graph {
        graph.separate(&mut part_of);
    }
    Ok(Partition { part_of, parts })
}

/// Unknowns without which the matrix is symmetric with a positive diagonal; none if these are too many.
fn unsymmetric(matrix: &Csr) -> Vec<usize> {
    let n = matrix.rows();
    let mut is_apart: Vec<bool> = (0..n).map(|row| matrix.get(row, row) <= 0.0).collect();
    for row in 0..n {
        let (columns, values) = matrix.row(row);
        for (&column, &value) in columns.iter().zip(values) {
            let column = column as usize;
            if !is_apart[row] && !is_apart[column] && matrix.get(column, row) != value {
                is_apart[row] = true;
            }
        }
    }
    let apart: Vec<usize> = (0..n).filter(|&unknown| is_apart[unknown]).collect();
    if apart.len() > MOST_UNSYMMETRIC {
        Vec::new()
    } else {
        apart
    }
}

/// The graph of A + Aᵀ without loops.
struct Graph {
    offsets: Vec<i32>,
    neighbours: Vec<i32>,
}

impl Graph {
    fn new(matrix: &Csr) -> Result<Self, String> {
        let n = matrix.rows();
        let mut degrees = vec![0usize; n];
        // Each pair from its smaller end, or from the other where only that has an entry.
        let for_each_edge = |visit: &mut dyn FnMut(usize, usize)| {
            for row in 0..n {
                for &column in matrix.row(row).0 {
                    let column = column as usize;
                    if row < column
                        || row > column
                            && matrix.row(column).0.binary_search(&(row as u32)).is_err()
                    {
                        visit(row, column);
                    }
                }
            }
        };
        for_each_edge(&mut |a, b| {
            degrees[a] += 1;
            degrees[b] += 1;
        });
        if degrees.iter().sum::<usize>() > i32::MAX as usize {
            return Err(
                "the circuit has more than 2^30 couplings, too many for METIS; use one worker"
                    .into(),
            );
        }
        let mut offsets = Vec::with_capacity(n + 1);
        offsets.push(0i32);
        let mut fill = Vec::with_capacity(n);
        let mut sum = 0;
        for degree in degrees {
            fill.push(sum);
            sum += degree;
            offsets.push(sum as i32);
        }
        let mut neighbours = vec![0i32; sum];
        for_each_edge(&mut |a, b| {
            for (from, to) in [(a, b), (b, a)] {
                neighbours[fill[from]] = to as i32;
                fill[from] += 1;
            }
        });
        Ok(Self {
            offsets,
            neighbours,
        })
    }

    fn neighbours(&self, unknown: usize) -> &[i32] {
        &self.neighbours[self.offsets[unknown] as usize..self.offsets[unknown + 1] as usize]
    }

    /// Parts of equal size with few edges between them.
    fn cut(&self, parts: usize) -> Result<Vec<u32>, String> {
        let n = self.offsets.len() - 1;
        if self.neighbours.is_empty() {
            return Ok((0..n).map(|unknown| (unknown * parts / n) as u32).collect());
        }
        let failed =
            |what: String| format!("METIS cannot divide the circuit: {what}; use one worker");
        let graph = metis::Graph::new(1, parts as i32, &self.offsets, &self.neighbours)
            .map_err(|error| failed(error.to_string()))?
            .set_option(metis::option::Seed(SEED));
        let mut found = vec![0i32; n];
        let _alone = METIS.lock().unwrap_or_else(PoisonError::into_inner);
        if parts <= MOST_BISECTED {
            graph.part_recursive(&mut found)
        } else {
            graph.part_kway(&mut found)
        }
        .map_err(|error| failed(error.to_string()))?;
        Ok(found.into_iter().map(|part| part as u32).collect())
    }

    /// Puts one end of every cut edge into the interface: those with most cut edges first, and among equals those of the first part.
    fn separate(&self, part_of: &mut [u32]) {
        // Neighbours of an unknown in other parts.
        let cut = |part_of: &[u32], unknown: usize| {
            let others = self.neighbours(unknown).iter();
            let others = others.map(|&other| part_of[other as usize]);
            let is_cut = |other: &u32| *other != part_of[unknown] && *other != INTERFACE;
            others.filter(is_cut).count()
        };
        let now: &[u32] = part_of;
        let mut ends: Vec<(usize, u32, usize)> = (0..now.len())
            .filter(|&unknown| now[unknown] != INTERFACE)
            .map(|unknown| (cut(now, unknown), now[unknown], unknown))
            .filter(|&(cut, ..)| cut > 0)
            .collect();
        ends.sort_unstable_by_key(|&(cut, part, unknown)| (std::cmp::Reverse(cut), part, unknown));
        for (.., unknown) in ends {
            if cut(part_of, unknown) > 0 {
                part_of[unknown] = INTERFACE;
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A K×K grid of resistors, and one to ground in a corner.
    pub(in super::super) fn grid(k: u32) -> Csr {
        let mut triplets = vec![(0, 0, 1.0)];
        let mut resistor = |a: u32, b: u32| {
            triplets.extend([(a, a, 1.0), (b, b, 1.0), (a, b, -1.0), (b, a, -1.0)])
        };
        for y in 0..k {
            for x in 0..k {
                if x + 1 < k {
                    resistor(y * k + x, y * k + x + 1);
                }
                if y + 1 < k {
                    resistor(y * k + x, y * k + x + k);
                }
            }
        }
        Csr::from_triplets((k * k) as usize, (k * k) as usize, &triplets).unwrap()
    }

    fn check(matrix: &Csr, partition: &Partition) {
        for row in 0..matrix.rows() {
            for &column in matrix.row(row).0 {
                let (a, b) = (partition.part_of[row], partition.part_of[column as usize]);
                assert!(
                    a == b || a == INTERFACE || b == INTERFACE,
                    "{row} and {column} are in parts {a} and {b}"
                );
            }
        }
    }

    /// A grid is cut along lines, into parts of about one size.
    #[test]
    fn grid_is_cut_along_lines() {
        let matrix = grid(40);
        for parts in [1, 2, 4, 9] {
            let partition = partition(&matrix, parts).unwrap();
            check(&matrix, &partition);
            assert_eq!(partition.parts, parts);
            let size = |part| {
                partition
                    .part_of
                    .iter()
                    .filter(|found| **found == part)
                    .count()
            };
            let interface = size(INTERFACE);
            assert!(
                interface <= 40 * (parts - 1),
                "{interface} of {parts} parts"
            );
            for part in 0..parts as u32 {
                let share = 1600 / parts;
                assert!(
                    (share * 7 / 10..=share * 12 / 10).contains(&size(part)),
                    "{} {parts}",
                    size(part)
                );
            }
        }
    }

    /// Unknowns without a positive diagonal, and those whose row is no column, are kept apart, unless they are too many.
    #[test]
    fn unsymmetric_unknowns_join_the_interface() {
        let mut triplets: Vec<(u32, u32, f64)> = (0..600).map(|row| (row, row, 2.0)).collect();
        triplets.extend((0..599).flat_map(|row| [(row, row + 1, -1.0), (row + 1, row, -1.0)]));
        triplets.extend([(17, 17, -2.0), (40, 300, 0.5), (500, 499, 0.25)]);
        let matrix = Csr::from_triplets(600, 600, &triplets).unwrap();
        assert_eq!(unsymmetric(&matrix), [17, 40, 499]);
        for parts in [1, 3] {
            let partition = partition(&matrix, parts).unwrap();
            check(&matrix, &partition);
            assert!(
                [17, 40, 499]
                    .iter()
                    .all(|&unknown: &usize| partition.part_of[unknown] == INTERFACE)
            );
        }
        let many: Vec<_> = (0..3000).map(|row| (row, row, -1.0)).collect();
        assert!(unsymmetric(&Csr::from_triplets(3000, 3000, &many).unwrap()).is_empty());
    }

    proptest! {
        /// No entry couples two parts, whatever the pattern.
        #[test]
        fn parts_are_separated(
            entries in prop::collection::vec((0u32..300, 0u32..300), 0..600),
            parts in 1usize..12,
        ) {
            let mut triplets: Vec<_> = entries.into_iter().map(|(row, column)| (row, column, 1.0)).collect();
            triplets.extend((0..300).map(|row| (row, row, 4.0)));
            let matrix = Csr::from_triplets(300, 300, &triplets).unwrap();
            check(&matrix, &partition(&matrix, parts).unwrap());
        }
    }
}
