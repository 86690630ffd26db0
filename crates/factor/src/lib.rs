//! Factorisations of matrices of `f64`, by `faer`.
//!
//! Called by the rooms that solve equations: `solve`, `circuit`, `learn`. `faer`'s functions are generic, so that each crate that calls them compiles
//! them, and its tests compile them again; here they are compiled once.
//!
//! Leaves out what a factorisation is for: limits of its cost, scaling, and refinement are its callers'.

#![forbid(unsafe_code)]

mod dense;
mod sparse;
mod squares;

pub use dense::{Lu, Square, solve_symmetric};
pub use sparse::{Cholesky, Ordering, Supernodes, Symbolic, order};
pub use squares::Squares;
