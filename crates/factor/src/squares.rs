//! Σ c x xᵀ over dense rows, by products of matrices: a block of rows at a time is far faster than row by row.

use faer::linalg::matmul::triangular::{BlockStructure, matmul};
use faer::{Accum, Mat, MatRef, Par};

/// Rows of one product.
const BLOCK_ROWS: usize = 128;

/// The sum, and rows that are not in it yet. Each row gets a 1 at its end.
#[derive(Debug)]
pub struct Squares {
    width: usize,
    rows: Vec<f64>,
    /// The same rows, each times its factor.
    scaled: Vec<f64>,
    /// Upper triangle.
    sum: Mat<f64>,
}

impl Squares {
    /// Of nothing; `width` counts the 1 at the end of a row.
    pub fn new(width: usize) -> Self {
        Self {
            width,
            rows: Vec::with_capacity(BLOCK_ROWS * width),
            scaled: Vec::with_capacity(BLOCK_ROWS * width),
            sum: Mat::zeros(width, width),
        }
    }

    /// Adds `factor · x xᵀ`.
    pub fn add(&mut self, x: &[f64], factor: f64) {
        self.rows.extend_from_slice(x);
        self.rows.push(1.0);
        self.scaled.extend(x.iter().map(|x| factor * x));
        self.scaled.push(factor);
        if self.rows.len() >= BLOCK_ROWS * self.width {
            self.multiply();
        }
    }

    fn multiply(&mut self) {
        let count = self.rows.len() / self.width;
        let rows = MatRef::from_row_major_slice(&self.rows, count, self.width);
        let scaled = MatRef::from_row_major_slice(&self.scaled, count, self.width);
        matmul(
            self.sum.as_mut(),
            BlockStructure::TriangularUpper,
            Accum::Add,
            scaled.transpose(),
            BlockStructure::Rectangular,
            rows,
            BlockStructure::Rectangular,
            1.0,
            Par::Seq,
        );
        self.rows.clear();
        self.scaled.clear();
    }

    /// The upper triangle, row after row.
    pub fn write(mut self, triangle: &mut [f64]) {
        self.multiply();
        let mut entries = triangle.iter_mut();
        for i in 0..self.width {
            for (j, entry) in (i..self.width).zip(&mut entries) {
                *entry = self.sum[(i, j)];
            }
        }
    }
}
