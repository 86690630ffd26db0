//! The result of a run, in any mode.

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The gradient's norm at the result, computed from all rows, is below the tolerance.
    Converged,
    /// All epochs are done.
    Epochs,
    /// No step lessens the objective further.
    Stagnated,
    /// Parameters are no finite numbers.
    Diverged,
    /// The user wanted it to end.
    Interrupted,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Converged => "converged: the gradient's norm is below the tolerance",
            Self::Epochs => "all epochs are done, and the gradient's norm is above the tolerance",
            Self::Stagnated => "rounding permits no better parameters, and the gradient's norm is above the tolerance",
            Self::Diverged => "diverged: parameters are no finite numbers any more; with --method sgd use a lower --rate",
            Self::Interrupted => "interrupted",
        })
    }
}

/// A moment of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    /// Seconds since the run began.
    pub seconds: f64,
    /// Newton steps, or epochs.
    pub iteration: u64,
    /// The objective.
    pub loss: f64,
    /// Norm of its gradient.
    pub gradient_norm: f64,
}

/// A worker whose share is missing in the result.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Dropped {
    /// Its name.
    pub worker: String,
    /// Rows of its share.
    pub rows: usize,
    /// The cause.
    pub cause: String,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Why it ended.
    pub reason: Reason,
    /// The parameters, for scaled data.
    pub theta: Vec<f64>,
    /// The objective at the result, from all rows that take part.
    pub loss: f64,
    /// Norm of its gradient there.
    pub gradient_norm: f64,
    /// Newton steps, or epochs, of the node that did most.
    pub iterations: u64,
    /// Statistics or parameters that nodes have taken from others.
    pub exchanges: u64,
    /// Statistics or parameters of peers that were refused as implausible.
    pub rejected: u64,
    /// Bytes that all nodes have given to their links or sockets while they learned, without the rows.
    pub bytes_sent: u64,
    /// Rows that a second thread of a node has computed with: each as often as a step had it.
    pub rows_beside: u64,
    /// Workers that joined and took part.
    pub joined: usize,
    /// Largest Euclidean distance between the parameters of two nodes in the end.
    pub disagreement: f64,
    /// Seconds from the first step to the certified result, without distributing rows.
    pub seconds: f64,
    /// Rows that take part in the result.
    pub rows: usize,
    /// Workers whose shares are missing.
    pub dropped: Vec<Dropped>,
    /// What happened when.
    pub history: Vec<Moment>,
}

impl Outcome {
    /// Of a run that has done nothing yet.
    pub(crate) fn begun() -> Self {
        Self {
            reason: Reason::Interrupted,
            theta: Vec::new(),
            loss: f64::NAN,
            gradient_norm: f64::NAN,
            iterations: 0,
            exchanges: 0,
            rejected: 0,
            bytes_sent: 0,
            rows_beside: 0,
            joined: 0,
            disagreement: 0.0,
            seconds: 0.0,
            rows: 0,
            dropped: Vec::new(),
            history: Vec::new(),
        }
    }
}

/// Largest Euclidean distance between two of several vectors.
pub(crate) fn disagreement(vectors: &[&[f64]]) -> f64 {
    let mut largest: f64 = 0.0;
    for (place, a) in vectors.iter().enumerate() {
        for b in &vectors[..place] {
            let square: f64 = a.iter().zip(*b).map(|(a, b)| (a - b) * (a - b)).sum();
            largest = largest.max(square.sqrt());
        }
    }
    largest
}
