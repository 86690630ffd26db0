//! The team that computes the parts: threads of this process, or other processes (`crate::remote`).
//!
//! Called by `super`, which needs a part's Schur complement and the two halves of its substitution, and keeps none of its factors.

use super::part::{PartFactors, PartInput, PartOutput};
use super::{SolveError, fill_limit};
use tsumuji_solve::local::{FillLimit, on_threads};

/// Eliminates and substitutes the interiors of all parts. All vectors have an item for each part.
pub trait Team {
    /// Eliminates the interiors; earlier factors are void. In all calls the blocks have the same patterns.
    fn factor(&mut self, inputs: &[PartInput]) -> Result<Vec<PartOutput>, SolveError>;

    /// From the right-hand sides of the interiors: what each part adds to that of the interface, in the order of its Schur complement.
    fn forward(&mut self, interiors: Vec<Vec<f64>>) -> Result<Vec<Vec<f64>>, SolveError>;

    /// The interiors of the solution that `forward` began, from the interface's solution in the order of each Schur complement.
    fn backward(&mut self, borders: Vec<Vec<f64>>) -> Result<Vec<Vec<f64>>, SolveError>;
}

/// Threads of this process, one for each part.
#[derive(Debug)]
pub struct Threads {
    /// Of each part's factors.
    limit: FillLimit,
    parts: Vec<PartFactors>,
}

impl Threads {
    /// For so many parts.
    pub(super) fn new(parts: usize) -> Self {
        Self {
            limit: fill_limit(parts),
            parts: Vec::new(),
        }
    }
}

impl Team for Threads {
    fn factor(&mut self, inputs: &[PartInput]) -> Result<Vec<PartOutput>, SolveError> {
        self.parts.clear();
        let limit = self.limit;
        let inputs: Vec<&PartInput> = inputs.iter().collect();
        let made = on_threads(inputs, |input| input.factor(limit));
        let mut outputs = Vec::with_capacity(made.len());
        for (part, made) in made.into_iter().enumerate() {
            let (factors, output) = made.map_err(|source| SolveError::Part { part, source })?;
            self.parts.push(factors);
            outputs.push(output);
        }
        Ok(outputs)
    }

    fn forward(&mut self, interiors: Vec<Vec<f64>>) -> Result<Vec<Vec<f64>>, SolveError> {
        let pairs: Vec<_> = self.parts.iter_mut().zip(interiors).collect();
        Ok(on_threads(pairs, |(part, interior)| {
            part.forward(interior).expect("the whole interior")
        }))
    }

    fn backward(&mut self, borders: Vec<Vec<f64>>) -> Result<Vec<Vec<f64>>, SolveError> {
        let pairs: Vec<_> = self.parts.iter_mut().zip(borders).collect();
        Ok(on_threads(pairs, |(part, border)| {
            part.backward(&border)
                .expect("the whole border, after `forward`")
        }))
    }
}
