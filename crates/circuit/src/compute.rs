//! What a netlist asks for: its operating point, or one for each point of its sweep.
//!
//! The command line makes a [`Computation`]: equations, divided into parts; then runs it, which solves them by `newton`. Factors are made once for
//! all points of a linear circuit.

use crate::equations::{Equations, EquationsError, Excitation};
use crate::netlist::{Analysis, Netlist};
use crate::newton::{NewtonError, Solver, Way};
use crate::substructure::{Sizes, SolveError, Substructure};
use std::time::{Duration, Instant};
use tsumuji_solve::system::memory;

/// Why nothing was computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ComputeError {
    /// The circuit has no equations.
    #[error(transparent)]
    Equations(#[from] EquationsError),
    /// There is no unique solution.
    #[error("nothing determines {what}: the equations are singular there")]
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
    /// Most parts, each of which has a thread.
    pub parts: usize,
    /// Relative residual to reach.
    pub tolerance: f64,
}

/// What was computed.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Values of the swept source; empty for an operating point.
    pub swept: Vec<f64>,
    /// For each point the voltage of every node, in volts.
    pub voltages: Vec<Vec<f64>>,
    /// The largest relative residual of all points, from the circuit's equations.
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

/// A computation whose equations are made.
#[derive(Debug)]
pub struct Computation<'a> {
    netlist: &'a Netlist,
    equations: Equations,
    substructure: Substructure,
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

    /// Unknowns of the equations.
    pub fn unknowns(&self) -> usize {
        self.equations.n()
    }

    /// Solves them. `stop` is asked before each linear solution.
    pub fn run(mut self, stop: impl Fn() -> bool) -> Result<Outcome, ComputeError> {
        let began = Instant::now();
        let mut outcome = Outcome {
            swept: self.points.iter().copied().flatten().collect(),
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
                    return Err(Stopped::Asked);
                }
                if linear.is_new_matrix {
                    let began = Instant::now();
                    outcome.sizes = self.substructure.factor(linear.matrix)?;
                    outcome.factor += began.elapsed();
                }
                Ok(self.substructure.solve(linear.rhs, tolerance).x)
            });
            let found =
                found.map_err(|error| explain(error, &self.equations, self.netlist, point))?;
            // `max` would forget what is not a number.
            if !(found.residual <= outcome.residual || outcome.residual.is_nan()) {
                outcome.residual = found.residual;
            }
            outcome.steps += found.steps;
            outcome.way = outcome.way.max(found.way);
            outcome.voltages.push(found.voltages);
        }
        outcome.solve = began.elapsed().saturating_sub(outcome.factor);
        Ok(outcome)
    }
}

/// Why the linear solver gave nothing.
enum Stopped {
    Asked,
    Failed(SolveError),
}

impl From<SolveError> for Stopped {
    fn from(error: SolveError) -> Self {
        Self::Failed(error)
    }
}

fn explain(
    error: NewtonError<Stopped>,
    equations: &Equations,
    netlist: &Netlist,
    point: Option<f64>,
) -> ComputeError {
    let place = point.map_or_else(String::new, |value| {
        format!(", at the point {value:e} of the sweep")
    });
    let error = match error {
        NewtonError::Linear(Stopped::Asked) => return ComputeError::Interrupted,
        NewtonError::Linear(Stopped::Failed(SolveError::Singular { unknown })) => {
            return ComputeError::Singular {
                what: equations.unknown_name(netlist, unknown),
            };
        }
        NewtonError::Linear(Stopped::Failed(error)) => return ComputeError::Solve(error),
        NewtonError::NotConverged { steps, diode } => NewtonError::NotConverged { steps, diode },
        NewtonError::Breakdown {
            diode,
            volts,
            limit,
        } => NewtonError::Breakdown {
            diode,
            volts,
            limit,
        },
    };
    ComputeError::Newton { error, place }
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
