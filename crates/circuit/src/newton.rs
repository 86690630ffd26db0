//! Operating points: one linear solution for linear circuits, Newton's method for circuits with diodes; and sweeps.
//!
//! The command line calls [`Solver::solve`], which asks a callback for the solution of each linear system, so that any solver does. A diode is the
//! ideal one of Shockley, I = IS (exp(V / (N Vt)) − 1), beside a conductance ([`Netlist::gmin`]). Steps of a junction's voltage are limited as in SPICE2
//! (Nagel, 1975): logarithmically above the critical voltage. Where Newton's method fails, larger conductances beside the diodes are taken away one
//! after the other, then the sources are raised from 0 by steps.
//!
//! Invariant: [`Point::residual`] is computed from the circuit's equations with the diodes' true currents, never from the linearised ones.

use crate::equations::{Equations, Excitation, Excited, Junction};
use crate::netlist::{Diode, Netlist};
use crate::substructure::norm;
use tsumuji_solve::local::relative;
use tsumuji_solve::system::Csr;

/// Vt = k T / q in volts at 27 °C.
pub const THERMAL_VOLTS: f64 = 1.380_649e-23 * 300.15 / 1.602_176_634e-19;

/// Most steps of Newton's method from one beginning.
const MOST_STEPS: usize = 100;
/// Longest last step of a junction's voltage in volts. The residual alone is not enough: beside a source behind a small resistor, or where b is 0, a
/// diode's current may be far off and yet little.
const CALM_VOLTS: f64 = 1e-6;
/// After a step below this one rounding is all that is left of the residual.
const STANDSTILL_VOLTS: f64 = 1e-12;
/// Conductances beside the diodes when Newton's method is helped, in siemens.
const FIRST_GMIN: f64 = 1e-2;
/// Smallest step of the sources' scale.
const LEAST_SCALE_STEP: f64 = 1e-7;
/// Most steps for one point, from all beginnings together.
const MOST_STEPS_ALTOGETHER: usize = 2000;
/// Beyond this current in amperes the exponential goes on as its tangent: no solution lies there, and nothing overflows.
const LARGEST_AMPERES: f64 = 1e20;

/// A linear system to be solved.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a> {
    /// A. Its pattern is the same in all calls.
    pub matrix: &'a Csr,
    /// b.
    pub rhs: &'a [f64],
    /// Whether A differs from that of the last call: otherwise its factors may be used again.
    pub is_new_matrix: bool,
}

/// How an operating point was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// By one linear solution.
    Linear,
    /// By Newton's method.
    Newton,
    /// By Newton's method with conductances beside the diodes, which were taken away.
    Conductances,
    /// By Newton's method with sources that were raised from 0.
    Sources,
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Linear => "linear",
            Self::Newton => "Newton's method",
            Self::Conductances => "Newton's method with conductances that were taken away",
            Self::Sources => "Newton's method with sources that were raised",
        })
    }
}

/// An operating point.
#[derive(Debug, Clone)]
pub struct Point {
    /// Voltage of every node, in volts.
    pub voltages: Vec<f64>,
    /// The unknowns.
    pub x: Vec<f64>,
    /// ‖b − A x − currents of diodes‖₂ / ‖b‖₂.
    pub residual: f64,
    /// Steps of Newton's method altogether: 1 for a linear circuit.
    pub steps: usize,
    /// How it was found.
    pub way: Way,
}

/// Why there is no operating point.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NewtonError<E> {
    /// The linear solver failed.
    #[error("{0}")]
    Linear(E),
    /// Nothing helped.
    #[error(
        "Newton's method did not converge in {steps} steps, neither with conductances beside the diodes nor with sources raised from 0; \
         the diode '{diode}' moved most"
    )]
    NotConverged {
        /// Steps altogether.
        steps: usize,
        /// The diode whose voltage moved most in the last step.
        diode: String,
    },
    /// A diode is beyond what its model describes here.
    #[error(
        "the diode '{diode}' has {volts:.3} V in reverse, beyond its breakdown at {limit} V, which is not computed; leave BV out to ignore it"
    )]
    Breakdown {
        /// The diode.
        diode: String,
        /// Its reverse voltage.
        volts: f64,
        /// BV.
        limit: f64,
    },
}

/// Finds operating points of one circuit, each from where the last one ended.
#[derive(Debug)]
pub struct Solver<'a> {
    netlist: &'a Netlist,
    equations: &'a Equations,
    /// Voltage at which each junction is linearised.
    volts: Vec<f64>,
    /// Tolerance of the residual.
    tolerance: f64,
    is_first: bool,
    steps: usize,
    moved_most: u32,
}

/// Current of an ideal diode in amperes and its derivative in siemens, with `gmin` beside it.
pub fn diode_current(diode: &Diode, volts: f64, gmin: f64) -> (f64, f64) {
    let slope = 1.0 / (diode.emission * THERMAL_VOLTS);
    let argument = volts * slope;
    let bounded = argument.min((LARGEST_AMPERES / diode.saturation_amperes).ln());
    let power = bounded.exp();
    let current = diode.saturation_amperes * (bounded.exp_m1() + power * (argument - bounded));
    let conductance = diode.saturation_amperes * power * slope;
    (current + gmin * volts, conductance + gmin)
}

/// Voltage above which a step must be limited: where the exponential bends most.
fn critical_volts(diode: &Diode) -> f64 {
    let scale = diode.emission * THERMAL_VOLTS;
    scale * (scale / (std::f64::consts::SQRT_2 * diode.saturation_amperes)).ln()
}

/// A step from `old` to `new`, shortened so that the current grows by a bounded factor.
fn limited(diode: &Diode, old: f64, new: f64) -> f64 {
    let scale = diode.emission * THERMAL_VOLTS;
    if new <= critical_volts(diode) || (new - old).abs() <= 2.0 * scale {
        return new;
    }
    if old <= 0.0 {
        return scale * (new / scale).max(1.0).ln();
    }
    let growth = 1.0 + (new - old) / scale;
    if growth > 0.0 {
        old + scale * growth.ln()
    } else {
        critical_volts(diode)
    }
}

/// One run of Newton's method that has converged.
struct Converged {
    x: Vec<f64>,
    residual: f64,
}

impl<'a> Solver<'a> {
    /// For the circuit of `netlist`, whose equations are `equations`; Newton's method goes on until the residual is within `tolerance`, or rounding
    /// keeps it above.
    pub fn new(netlist: &'a Netlist, equations: &'a Equations, tolerance: f64) -> Self {
        let mut solver = Self {
            netlist,
            equations,
            volts: Vec::new(),
            tolerance,
            is_first: true,
            steps: 0,
            moved_most: 0,
        };
        solver.begin_conducting();
        solver
    }

    /// All junctions at their critical voltage.
    fn begin_conducting(&mut self) {
        let junctions = self.equations.junctions().iter();
        self.volts = junctions
            .map(|junction| critical_volts(self.diode(junction)))
            .collect();
    }

    fn diode(&self, junction: &Junction) -> &'a Diode {
        &self.netlist.diodes[junction.diode as usize]
    }

    /// The operating point for given values of the sources. `solve` gives x of A x = b.
    pub fn solve<E>(
        &mut self,
        excitation: &Excitation<'_>,
        mut solve: impl FnMut(Linear<'_>) -> Result<Vec<f64>, E>,
    ) -> Result<Point, NewtonError<E>> {
        self.steps = 0;
        let excited = self.equations.excite(excitation);
        let found = self.find(excitation, &excited, &mut solve);
        let Some((found, way)) = found.map_err(NewtonError::Linear)? else {
            let diode = &self.netlist.diodes[self.moved_most as usize];
            let diode = self.netlist.sources.get(diode.name).to_owned();
            return Err(NewtonError::NotConverged {
                steps: self.steps,
                diode,
            });
        };
        let Converged { x, residual } = found;
        let voltages = self.equations.voltages(&excited, &x);
        self.check_breakdown(&excited, &x)?;
        Ok(Point {
            voltages,
            x,
            residual,
            steps: self.steps,
            way,
        })
    }

    /// The unknowns, by the first way that leads to them. `None`: no way does.
    fn find<E>(
        &mut self,
        excitation: &Excitation<'_>,
        excited: &Excited,
        solve: &mut impl FnMut(Linear<'_>) -> Result<Vec<f64>, E>,
    ) -> Result<Option<(Converged, Way)>, E> {
        if self.equations.junctions().is_empty() {
            return Ok(Some((self.linear(excited, solve)?, Way::Linear)));
        }
        if let Some(found) = self.newton(excited, self.netlist.gmin, solve)? {
            return Ok(Some((found, Way::Newton)));
        }
        if let Some(found) = self.with_conductances(excited, solve)? {
            return Ok(Some((found, Way::Conductances)));
        }
        let found = self.with_sources(excitation, excited, solve)?;
        Ok(found.map(|found| (found, Way::Sources)))
    }

    fn linear<E>(
        &mut self,
        excited: &Excited,
        solve: &mut impl FnMut(Linear<'_>) -> Result<Vec<f64>, E>,
    ) -> Result<Converged, E> {
        let matrix = self.equations.matrix();
        let is_new_matrix = std::mem::replace(&mut self.is_first, false);
        let x = solve(Linear {
            matrix,
            rhs: &excited.rhs,
            is_new_matrix,
        })?;
        self.steps += 1;
        let residual = self.residual(excited, &x, 0.0);
        Ok(Converged { x, residual })
    }

    /// Newton's method from the present voltages of the junctions. `None`: it does not converge.
    fn newton<E>(
        &mut self,
        excited: &Excited,
        gmin: f64,
        solve: &mut impl FnMut(Linear<'_>) -> Result<Vec<f64>, E>,
    ) -> Result<Option<Converged>, E> {
        let base = self.equations.matrix();
        let most = MOST_STEPS.min(MOST_STEPS_ALTOGETHER.saturating_sub(self.steps));
        for _ in 0..most {
            let mut values = base.values().to_vec();
            let mut rhs = excited.rhs.clone();
            for (junction, &volts) in self.equations.junctions().iter().zip(&self.volts) {
                let (current, conductance) = diode_current(self.diode(junction), volts, gmin);
                junction.add_conductance(&mut values, conductance);
                // What the tangent says where the unknowns of both ends are 0.
                let at_zero = current - conductance * (volts - junction.offset(excited));
                junction.add_current(&mut rhs, -at_zero);
            }
            let matrix = Csr::new(
                base.columns(),
                base.offsets().to_vec(),
                base.indices().to_vec(),
                values,
            )
            .expect("the pattern is that of a matrix");
            let x = solve(Linear {
                matrix: &matrix,
                rhs: &rhs,
                is_new_matrix: true,
            })?;
            self.steps += 1;
            if x.iter().any(|value| !value.is_finite()) {
                return Ok(None);
            }
            let (moved, is_limited) = self.step(excited, &x);
            let residual = self.residual(excited, &x, gmin);
            let is_calm = !is_limited && moved <= CALM_VOLTS;
            if is_calm && (residual <= self.tolerance || moved <= STANDSTILL_VOLTS) {
                return Ok(Some(Converged { x, residual }));
            }
        }
        Ok(None)
    }

    /// Moves the junctions to the voltages of `x`, as far as limits let them. Returns the longest step in volts, and whether any was limited.
    fn step(&mut self, excited: &Excited, x: &[f64]) -> (f64, bool) {
        let mut moved = 0.0;
        let mut is_limited = false;
        for (junction, volts) in self.equations.junctions().iter().zip(&mut self.volts) {
            let wanted = junction.volts(excited, x);
            let next = limited(
                &self.netlist.diodes[junction.diode as usize],
                *volts,
                wanted,
            );
            is_limited |= next != wanted;
            // A voltage's own rounding is no step.
            let step = (next - *volts).abs() / next.abs().max(1.0);
            if step > moved {
                moved = step;
                self.moved_most = junction.diode;
            }
            *volts = next;
        }
        (moved, is_limited)
    }

    /// ‖b − A x − currents of diodes‖₂ / ‖b‖₂.
    fn residual(&self, excited: &Excited, x: &[f64], gmin: f64) -> f64 {
        let matrix = self.equations.matrix();
        let mut sums: Vec<f64> = (0..matrix.rows())
            .map(|row| matrix.row_dot(row, x) - excited.rhs[row])
            .collect();
        for junction in self.equations.junctions() {
            let volts = junction.volts(excited, x);
            let (current, _) = diode_current(self.diode(junction), volts, gmin);
            junction.add_current(&mut sums, current);
        }
        relative(norm(&sums), norm(&excited.rhs))
    }

    /// Newton's method beside conductances that are taken away by tenths.
    fn with_conductances<E>(
        &mut self,
        excited: &Excited,
        solve: &mut impl FnMut(Linear<'_>) -> Result<Vec<f64>, E>,
    ) -> Result<Option<Converged>, E> {
        self.begin_conducting();
        let (mut gmin, least) = (FIRST_GMIN, self.netlist.gmin);
        loop {
            let Some(found) = self.newton(excited, gmin.max(least), solve)? else {
                return Ok(None);
            };
            if gmin <= least {
                return Ok(Some(found));
            }
            gmin /= 10.0;
        }
    }

    /// Newton's method with sources that are raised from 0, where all junctions are at 0 V.
    fn with_sources<E>(
        &mut self,
        excitation: &Excitation<'_>,
        excited: &Excited,
        solve: &mut impl FnMut(Linear<'_>) -> Result<Vec<f64>, E>,
    ) -> Result<Option<Converged>, E> {
        self.volts.fill(0.0);
        let (mut scale, mut step) = (0.0, 0.1f64);
        while scale < 1.0 {
            let next = f64::min(1.0, scale + step);
            let present = self.volts.clone();
            let found = if next < 1.0 {
                let part = self.equations.excite(&excitation.scaled(next));
                self.newton(&part, self.netlist.gmin, solve)?
            } else {
                self.newton(excited, self.netlist.gmin, solve)?
            };
            match found {
                Some(found) if next >= 1.0 => return Ok(Some(found)),
                Some(_) => {
                    scale = next;
                    step *= 1.5;
                }
                None => {
                    self.volts = present;
                    step /= 8.0;
                    if step < LEAST_SCALE_STEP {
                        return Ok(None);
                    }
                }
            }
        }
        Ok(None)
    }

    fn check_breakdown<E>(&self, excited: &Excited, x: &[f64]) -> Result<(), NewtonError<E>> {
        for junction in self.equations.junctions() {
            let diode = self.diode(junction);
            let volts = -junction.volts(excited, x);
            if volts > diode.breakdown_volts {
                return Err(NewtonError::Breakdown {
                    diode: self.netlist.sources.get(diode.name).to_owned(),
                    volts,
                    limit: diode.breakdown_volts,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
