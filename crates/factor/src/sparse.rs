//! Sparse square matrices by columns: an order that keeps factors sparse, and Cholesky by supernodes.
//!
//! The pattern of column k is `rows[offsets[k]..offsets[k + 1]]`.

use std::fmt::Debug;

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt::factor::LltRegularization;
use faer::linalg::solvers::Solve;
use faer::perm::PermRef;
use faer::sparse::linalg::cholesky::supernodal::SupernodalLltRef;
use faer::sparse::linalg::cholesky::{
    CholeskySymbolicParams, SymbolicCholesky, SymbolicCholeskyRaw, SymmetricOrdering,
    factorize_symbolic_cholesky,
};
use faer::sparse::linalg::solvers::{Llt, SymbolicLlt};
use faer::sparse::linalg::{SupernodalThreshold, amd};
use faer::sparse::{SparseColMatRef, SymbolicSparseColMatRef};
use faer::{MatMut, Par, Side, Spec};

/// An order of elimination, and what factors in it cost.
#[derive(Debug, Clone)]
pub struct Ordering {
    /// The k-th to be eliminated.
    pub columns: Vec<u64>,
    /// Of L and U, if the diagonal has all pivots.
    pub entries: f64,
    /// To compute them.
    pub multiplications: f64,
}

/// Approximate minimum degree on the pattern of A + Aᵀ. The error says why there is no order.
// Indices of 64 bits: the workspace counts entries of A + Aᵀ with them.
pub fn order(offsets: &[u64], rows: &[u64]) -> Result<Ordering, String> {
    let n = offsets.len() - 1;
    let pattern = SymbolicSparseColMatRef::new_checked(n, n, offsets, None, rows);
    let (mut columns, mut places) = (vec![0; n], vec![0; n]);
    let mut memory = memory(amd::order_scratch::<u64>(n, rows.len()))?;
    let flops = amd::order(
        &mut columns,
        &mut places,
        pattern,
        amd::Control::default(),
        MemStack::new(&mut memory),
    )
    .map_err(said)?;
    Ok(Ordering {
        columns,
        // One division for each entry of L.
        entries: 2.0 * flops.n_div + n as f64,
        multiplications: flops.n_mult_subs_lu,
    })
}

fn said(error: impl Debug) -> String {
    format!("{error:?}")
}

fn memory(scratch: faer::dyn_stack::StackReq) -> Result<MemBuffer, String> {
    MemBuffer::try_new(scratch).map_err(|_| "not enough memory".into())
}

/// Factors of a symmetric positive definite matrix.
#[derive(Debug, Clone)]
pub struct Cholesky(Llt<usize, f64>);

impl Cholesky {
    /// Factorises; the lower triangle is read. `Ok(None)`: the matrix is not positive definite. The error says why there is no order.
    pub fn new(offsets: &[usize], rows: &[usize], values: &[f64]) -> Result<Option<Self>, String> {
        let n = offsets.len() - 1;
        let pattern = SymbolicSparseColMatRef::new_checked(n, n, offsets, None, rows);
        let symbolic = SymbolicLlt::try_new(pattern, Side::Lower).map_err(said)?;
        let matrix = SparseColMatRef::new(pattern, values);
        let factors = Llt::try_new_with_symbolic(symbolic, matrix, Side::Lower).ok();
        Ok(factors.map(Self))
    }

    /// Replaces `vector` by A⁻¹ `vector`.
    pub fn solve(&self, vector: &mut [f64]) {
        let n = vector.len();
        (self.0).solve_in_place(MatMut::from_column_major_slice_mut(vector, n, 1));
    }
}

/// What Cholesky factors in a given order will look like.
#[derive(Debug)]
pub struct Symbolic(SymbolicCholesky<u64>);

impl Symbolic {
    /// Of a matrix whose lower triangle is read. `columns`: the k-th to be eliminated; `places`: the inverse. The error says what the memory lacks.
    pub fn new(
        (offsets, rows): (&[u64], &[u64]),
        columns: &[u64],
        places: &[u64],
    ) -> Result<Self, String> {
        let n = columns.len();
        let pattern = SymbolicSparseColMatRef::new_checked(n, n, offsets, None, rows);
        let parameters = CholeskySymbolicParams {
            supernodal_flop_ratio_threshold: SupernodalThreshold::FORCE_SUPERNODAL,
            ..CholeskySymbolicParams::default()
        };
        let ordering = SymmetricOrdering::Custom(PermRef::new_checked(columns, places, n));
        factorize_symbolic_cholesky(pattern, Side::Lower, ordering, parameters)
            .map(Self)
            .map_err(said)
    }

    /// Entries of L.
    pub fn entries(&self) -> usize {
        self.0.len_val()
    }
}

/// L of P A Pᵀ = L Lᵀ, column by column.
#[derive(Debug)]
pub struct Supernodes {
    symbolic: SymbolicCholesky<u64>,
    values: Vec<f64>,
}

impl Supernodes {
    /// Factorises the matrix of `symbolic`'s pattern. `Ok(None)`: it is not positive definite. The error says what the memory lacks.
    pub fn new(
        symbolic: Symbolic,
        (offsets, rows): (&[u64], &[u64]),
        matrix: &[f64],
    ) -> Result<Option<Self>, String> {
        let symbolic = symbolic.0;
        let n = offsets.len() - 1;
        let pattern = SymbolicSparseColMatRef::new_checked(n, n, offsets, None, rows);
        let mut values = vec![0.0; symbolic.len_val()];
        let scratch = symbolic.factorize_numeric_llt_scratch::<f64>(Par::Seq, Spec::default());
        let factored = symbolic.factorize_numeric_llt(
            &mut values,
            SparseColMatRef::new(pattern, matrix),
            Side::Lower,
            LltRegularization::default(),
            Par::Seq,
            MemStack::new(&mut memory(scratch)?),
            Spec::default(),
        );
        let is_definite = factored.is_ok();
        Ok(is_definite.then_some(Self { symbolic, values }))
    }

    /// Entries of L.
    pub fn entries(&self) -> usize {
        self.values.len()
    }

    /// Calls `visit(column, rows, rows, values)` for each column of L: the rows below the diagonal in two parts, and the values from the diagonal on.
    /// Columns ascend, or descend if `is_backward`.
    pub fn for_each_column(
        &self,
        is_backward: bool,
        mut visit: impl FnMut(usize, &[u64], &[u64], &[f64]),
    ) {
        let SymbolicCholeskyRaw::Supernodal(symbolic) = self.symbolic.raw() else {
            unreachable!("supernodal factors were asked for");
        };
        let factors = SupernodalLltRef::new(symbolic, &self.values);
        let count = symbolic.n_supernodes();
        let columns: Vec<u64> = (0..symbolic.ncols() as u64).collect();
        for step in 0..count {
            let supernode = factors.supernode(if is_backward { count - 1 - step } else { step });
            let (start, matrix) = (supernode.start(), supernode.val());
            for step in 0..matrix.ncols() {
                let within = if is_backward {
                    matrix.ncols() - 1 - step
                } else {
                    step
                };
                let column = matrix
                    .col(within)
                    .try_as_col_major()
                    .expect("supernodes are stored by columns");
                // Rows of the supernode's own columns, then those of its pattern.
                let own = &columns[start + within + 1..start + matrix.ncols()];
                visit(
                    start + within,
                    own,
                    supernode.pattern(),
                    &column.as_slice()[within..],
                );
            }
        }
    }
}
