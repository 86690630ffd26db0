//! What a netlist asks for: its operating point, or one for each point of its sweep.
//!
//! The command line makes a [`Computation`]: equations, divided into parts; then runs it, which solves them by `newton`. Threads compute the parts,
//! or another team does ([`Computation::by`]). Factors are made once for all points of a linear circuit.

use crate::equations::{Equations, EquationsError, Excitation};
use crate::netlist::{Analysis, Netlist};
use crate::newton::{NewtonError, Solver, Way};
use crate::substructure::{Sizes, SolveError, Substructure, Team};
use std::time::{Duration, Instant};
use tsumuji_numbers::memory;

/// Why nothing was computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ComputeError {
    /// The circuit has no equations.
    #[error(transparent)]
    Equations(#[from] EquationsError),
    /// There is no unique solution.
    #[error(
        "nothing determines {what}: the equations are singular there, or their conductances differ by more than 15 digits"
    )]
    Singular {
        /// An unknown, in words.
        what: String,
    },
    /// The equations are not solved.
    #[error(transparent)]
    Solve(SolveError),
    /// Newton's method failed.
    #[error("{error}{place}")]
    Newton {
        /// The cause.
        error: NewtonError<SolveError>,
        /// At which point of a sweep.
        place: String,
    },
    /// The points of a sweep do not fit into memory.
    #[error(
        "{points} points of {nodes} nodes need {needed_bytes} bytes, more than is available; make the steps of .dc longer"
    )]
    Memory {
        /// Points of the sweep.
        points: usize,
        /// Nodes.
        nodes: usize,
        /// Bytes of all voltages.
        needed_bytes: u128,
    },
    /// The caller wanted to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Options of a computation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Most parts, each of which has a thread or a process.
    pub parts: usize,
    /// Relative residual to reach.
    pub tolerance: f64,
}

/// What was computed.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Values of the swept source; empty for an operating point.
    pub swept: Vec<f64>,
    /// The caller wanted to stop: only the first points of the sweep are there.
    pub is_interrupted: bool,
    /// Which worker was lost, and how, or why a point cannot be computed: only the first points of the sweep are there.
    pub cut_short: Option<String>,
    /// For each point the voltage of every node, in volts.
    pub voltages: Vec<Vec<f64>>,
    /// The largest relative residual of all points, from the circuit's elements.
    pub residual: f64,
    /// Unknowns of the equations.
    pub unknowns: usize,
    /// Sizes of the last factors.
    pub sizes: Sizes,
    /// Steps of Newton's method for all points together; one for each point of a linear circuit.
    pub steps: usize,
    /// The least direct way in which a point was found.
    pub way: Way,
    /// Making the equations and dividing them.
    pub prepare: Duration,
    /// Factorising.
    pub factor: Duration,
    /// Substituting, and everything else.
    pub solve: Duration,
}

impl Outcome {
    /// Whether all points are there.
    pub fn is_whole(&self) -> bool {
        !self.is_interrupted && self.cut_short.is_none()
    }
}

/// A computation whose equations are made.
pub struct Computation<'a> {
    netlist: &'a Netlist,
    equations: Equations,
    substructure: Substructure<'a>,
    options: Options,
    points: Vec<Option<f64>>,
    prepare: Duration,
}

/// Computes what the netlist asks for. `stop` is asked before each linear solution.
pub fn compute(
    netlist: &Netlist,
    options: Options,
    stop: impl Fn() -> bool,
) -> Result<Outcome, ComputeError> {
    Computation::new(netlist, options)?.run(stop)
}

impl<'a> Computation<'a> {
    /// Makes the equations and divides them into parts.
    pub fn new(netlist: &'a Netlist, options: Options) -> Result<Self, ComputeError> {
        let began = Instant::now();
        let points: Vec<Option<f64>> = match &netlist.analysis {
            Analysis::OperatingPoint => vec![None],
            Analysis::Sweep { values, .. } => values.iter().copied().map(Some).collect(),
        };
        check_memory(points.len(), netlist.nodes.len())?;
        let equations = Equations::new(netlist)?;
        let substructure =
            Substructure::new(equations.matrix(), options.parts).map_err(ComputeError::Solve)?;
        Ok(Self {
            netlist,
            equations,
            substructure,
            options,
            points,
            prepare: began.elapsed(),
        })
    }

    /// The same computation, whose parts another team computes.
    pub fn by(self, team: impl Team + 'a) -> Self {
        Self {
            substructure: self.substructure.by(team),
            ..self
        }
    }

    /// Parts.
    pub fn parts(&self) -> usize {
        self.substructure.parts()
    }

    /// Points to compute.
    pub fn points(&self) -> usize {
        self.points.len()
    }

    /// Unknowns of the equations.
    pub fn unknowns(&self) -> usize {
        self.equations.n()
    }

    /// Solves them. `stop` is asked before each linear solution, and after each factorisation. Points that are done before an interrupt, the loss
    /// of a worker or a point without a solution are kept.
    pub fn run(mut self, stop: impl Fn() -> bool) -> Result<Outcome, ComputeError> {
        let began = Instant::now();
        let mut outcome = Outcome {
            swept: self.points.iter().copied().flatten().collect(),
            is_interrupted: false,
            cut_short: None,
            voltages: Vec::with_capacity(self.points.len()),
            residual: 0.0,
            unknowns: self.equations.n(),
            sizes: Sizes::default(),
            steps: 0,
            way: Way::Linear,
            prepare: self.prepare,
            factor: Duration::ZERO,
            solve: Duration::ZERO,
        };
        let tolerance = self.options.tolerance;
        let mut solver = Solver::new(self.netlist, &self.equations, tolerance);
        for &point in &self.points {
            let mut excitation = Excitation::new(self.netlist);
            if let (Some(value), Analysis::Sweep { source, .. }) = (point, &self.netlist.analysis) {
                excitation = excitation.with(*source, value);
            }
            let found = solver.solve(&excitation, |linear| {
                if stop() {
                    return Err(SolveError::Interrupted);
                }
                if linear.is_new_matrix {
                    let began = Instant::now();
                    outcome.sizes = self.substructure.factor(linear.matrix)?;
                    outcome.factor += began.elapsed();
                    if stop() {
                        return Err(SolveError::Interrupted);
                    }
                }
                // How near this comes to the solution matters little: `newton` refines it by the circuit's elements.
                self.substructure.solve(linear.rhs)
            });
            let has_points = !outcome.voltages.is_empty();
            let found = match found {
                Err(NewtonError::Linear(SolveError::Interrupted)) if has_points => {
                    outcome.is_interrupted = true;
                    break;
                }
                Err(NewtonError::Linear(SolveError::Worker { what })) if has_points => {
                    outcome.cut_short = Some(what);
                    break;
                }
                Err(error @ (NewtonError::NotConverged { .. } | NewtonError::Breakdown { .. }))
                    if has_points =>
                {
                    let error = explain(error, &self.equations, self.netlist, point);
                    outcome.cut_short = Some(error.to_string());
                    break;
                }
                found => {
                    found.map_err(|error| explain(error, &self.equations, self.netlist, point))?
                }
            };
            // `max` would forget what is not a number.
            if !(found.residual <= outcome.residual || outcome.residual.is_nan()) {
                outcome.residual = found.residual;
            }
            outcome.steps += found.steps;
            outcome.way = outcome.way.max(found.way);
            outcome.voltages.push(found.voltages);
        }
        outcome.swept.truncate(outcome.voltages.len());
        outcome.solve = began.elapsed().saturating_sub(outcome.factor);
        Ok(outcome)
    }
}

fn explain(
    error: NewtonError<SolveError>,
    equations: &Equations,
    netlist: &Netlist,
    point: Option<f64>,
) -> ComputeError {
    let place = point.map_or_else(String::new, |value| {
        format!(", at the point {value:e} of the sweep")
    });
    match error {
        NewtonError::Linear(SolveError::Interrupted) => ComputeError::Interrupted,
        NewtonError::Linear(SolveError::Singular { unknown }) => ComputeError::Singular {
            what: equations.unknown_name(netlist, unknown),
        },
        NewtonError::Linear(error) => ComputeError::Solve(error),
        error => ComputeError::Newton { error, place },
    }
}

fn check_memory(points: usize, nodes: usize) -> Result<(), ComputeError> {
    let needed_bytes = points as u128 * nodes as u128 * size_of::<f64>() as u128;
    let available = memory::available_bytes().unwrap_or(u64::MAX);
    if points > 1 && needed_bytes > u128::from(available / 2) {
        return Err(ComputeError::Memory {
            points,
            nodes,
            needed_bytes,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlist::{Limits, from_bytes};
    use crate::substructure::{PartFactors, PartInput, PartOutput, fill_limit};

    /// A team that is lost after so many substitutions.
    struct LostAfter {
        substitutions: usize,
        parts: Vec<PartFactors>,
    }

    impl Team for LostAfter {
        fn factor(&mut self, inputs: &[PartInput]) -> Result<Vec<PartOutput>, SolveError> {
            let limit = fill_limit(inputs.len());
            let made = inputs.iter().map(|input| input.factor(limit).unwrap());
            let (parts, outputs): (Vec<_>, Vec<_>) = made.unzip();
            self.parts = parts;
            Ok(outputs)
        }

        fn forward(&mut self, interiors: Vec<Vec<f64>>) -> Result<Vec<Vec<f64>>, SolveError> {
            let what = "worker 1 was lost".to_owned();
            let left = self.substitutions.checked_sub(1);
            self.substitutions = left.ok_or(SolveError::Worker { what })?;
            let pairs = self.parts.iter_mut().zip(interiors);
            Ok(pairs.map(|(part, b)| part.forward(b).unwrap()).collect())
        }

        fn backward(&mut self, borders: Vec<Vec<f64>>) -> Result<Vec<Vec<f64>>, SolveError> {
            let pairs = self.parts.iter_mut().zip(&borders);
            Ok(pairs.map(|(part, b)| part.backward(b).unwrap()).collect())
        }
    }

    /// The loss of a worker leaves the points before it, and is an error where there are none.
    #[test]
    fn a_lost_worker_leaves_the_finished_points() {
        let text = b"divider\nV1 in 0 1\nR1 in out 3k\nR2 out 0 1k\n.dc V1 1 5 1\n";
        let limits = Limits {
            memory_bytes: 1 << 20,
            unfolded_bytes: 1 << 20,
        };
        let netlist = from_bytes("divider.sp", text, limits).unwrap();
        let options = Options {
            parts: 1,
            tolerance: 1e-11,
        };
        let run = |substitutions| {
            let parts = Vec::new();
            let prepared = Computation::new(&netlist, options).unwrap();
            let prepared = prepared.by(LostAfter {
                substitutions,
                parts,
            });
            prepared.run(|| false)
        };
        let whole = run(usize::MAX).unwrap();
        assert!(whole.is_whole() && whole.voltages.len() == 5, "{whole:?}");
        let kept = run(4).unwrap();
        assert!(!kept.is_whole() && !kept.is_interrupted, "{kept:?}");
        assert_eq!(kept.cut_short.as_deref(), Some("worker 1 was lost"));
        let points = kept.voltages.len();
        assert!((1..5).contains(&points), "{points} points");
        assert_eq!(kept.swept, whole.swept[..points]);
        assert_eq!(kept.voltages, whole.voltages[..points]);
        let nothing = run(0);
        let is_lost = matches!(nothing, Err(ComputeError::Solve(SolveError::Worker { .. })));
        assert!(is_lost, "{nothing:?}");
    }
}
