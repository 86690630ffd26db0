//! Systems in parts against the same systems in one part and against dense solutions.

use super::partition::tests::grid;
use super::*;
use proptest::prelude::*;

/// x, ‖b − A x‖₂ / ‖b‖₂, and sizes.
fn solved(matrix: &Csr, parts: usize, b: &[f64]) -> (Vec<f64>, f64, Sizes) {
    let mut substructure = Substructure::new(matrix, parts).unwrap();
    let sizes = substructure.factor(matrix).unwrap();
    let x = substructure.solve(b).unwrap();
    let rest = b.iter().enumerate();
    let rest: Vec<f64> = rest.map(|(row, b)| b - matrix.row_dot(row, &x)).collect();
    (x, norm(&rest) / norm(b), sizes)
}

/// A grid has the same solution in any number of parts.
#[test]
fn grid_is_solved_in_any_number_of_parts() {
    let matrix = grid(48);
    let b: Vec<f64> = (0..48 * 48).map(|row| f64::from(row % 17) - 8.0).collect();
    let (one, _, _) = solved(&matrix, 1, &b);
    let largest = one.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    for parts in [2, 3, 4, 7, 12] {
        let (x, residual, sizes) = solved(&matrix, parts, &b);
        assert_eq!(sizes.parts, parts);
        assert!(sizes.interface > 0);
        assert!(residual < 1e-12, "{residual}");
        for (a, b) in one.iter().zip(&x) {
            assert!((a - b).abs() < 1e-9 * largest);
        }
    }
}

/// Other values of the same pattern need no new division.
#[test]
fn factors_are_made_anew() {
    let matrix = grid(20);
    let doubled = Csr::new(
        400,
        matrix.offsets().to_vec(),
        matrix.indices().to_vec(),
        matrix.values().iter().map(|v| 2.0 * v).collect(),
    )
    .unwrap();
    let b = vec![1.0; 400];
    let mut substructure = Substructure::new(&matrix, 3).unwrap();
    substructure.factor(&matrix).unwrap();
    let first = substructure.solve(&b).unwrap();
    substructure.factor(&doubled).unwrap();
    let second = substructure.solve(&b).unwrap();
    assert!(
        first
            .iter()
            .zip(&second)
            .all(|(a, b)| (a - 2.0 * b).abs() < 1e-9 * a.abs().max(1.0))
    );
}

/// A part that nothing determines is found, in one part and in several.
#[test]
fn singular_systems_are_refused() {
    for parts in [1, 3] {
        let mut triplets: Vec<(u32, u32, f64)> = (0..300).map(|row| (row, row, 1.0)).collect();
        triplets.extend([(100, 101, -1.0), (101, 100, -1.0)]);
        let matrix = Csr::from_triplets(300, 300, &triplets).unwrap();
        let mut substructure = Substructure::new(&matrix, parts).unwrap();
        let error = substructure.factor(&matrix).unwrap_err();
        assert!(
            matches!(error, SolveError::Singular { unknown: 100 | 101 }),
            "{error}"
        );
    }
}

/// Currents of voltage sources, which have zeros on the diagonal, wherever the parts are cut.
#[test]
fn zeros_on_the_diagonal_join_the_interface() {
    let grid = grid(30);
    let mut triplets: Vec<(u32, u32, f64)> = Vec::new();
    for row in 0..900 {
        let (columns, values) = grid.row(row);
        triplets.extend(
            columns
                .iter()
                .zip(values)
                .map(|(&column, &value)| (row as u32, column, value)),
        );
    }
    // A voltage source between distant nodes for each of 40 currents.
    for branch in 0..40u32 {
        for (node, sign) in [(22 * branch, 1.0), (22 * branch + 11, -1.0)] {
            triplets.extend([(900 + branch, node, sign), (node, 900 + branch, sign)]);
        }
    }
    let matrix = Csr::from_triplets(940, 940, &triplets).unwrap();
    let b: Vec<f64> = (0..940)
        .map(|row| if row < 900 { 0.0 } else { f64::from(row % 7) })
        .collect();
    for parts in [1, 2, 5, 10] {
        let (_, residual, _) = solved(&matrix, parts, &b);
        assert!(residual < 1e-11, "{parts}: {residual}");
    }
}

proptest! {
    /// Random systems, unsymmetric and with zeros on the diagonal, are solved to a small residual in any number of parts.
    #[test]
    fn random_systems_are_solved(
        entries in prop::collection::vec((0u32..400, 0u32..400, -1.0f64..1.0), 0..600),
        parts in 1usize..6,
    ) {
        let mut triplets = entries;
        triplets.extend((0..400u32).map(|row| (row, row ^ 1, 6.0)));
        let matrix = Csr::from_triplets(400, 400, &triplets).unwrap();
        let b: Vec<f64> = (0..400).map(|row| f64::from(row % 9) - 4.0).collect();
        let (_, residual, _) = solved(&matrix, parts, &b);
        prop_assert!(residual < 1e-9, "{residual}");
    }
}

/// Parts that nobody asks for anything.
struct Untouched;

impl Team for Untouched {
    fn factor(&mut self, _: &[PartInput]) -> Result<Vec<PartOutput>, SolveError> {
        unreachable!("the interface is too large")
    }

    fn forward(&mut self, _: Vec<Vec<f64>>) -> Result<Vec<Vec<f64>>, SolveError> {
        unreachable!("there are no factors")
    }

    fn backward(&mut self, _: Vec<Vec<f64>>) -> Result<Vec<Vec<f64>>, SolveError> {
        unreachable!("there are no factors")
    }
}

/// An interface that is too large is refused before parts take memory for it.
#[test]
fn large_interfaces_are_refused_first() {
    let matrix = grid(20);
    let mut substructure = Substructure::new(&matrix, 4).unwrap().by(Untouched);
    substructure.interface_limit = 3;
    let error = substructure.factor(&matrix).unwrap_err();
    assert!(matches!(error, SolveError::Interface { limit: 3, .. }));
}
