//! Operating points: one linear solution for linear circuits, Newton's method for circuits with diodes; and sweeps.
//!
//! The command line calls [`Solver::solve`], which asks a callback for the solution of each linear system, so that any solver does. A diode is the
//! ideal one of Shockley, I = IS (exp(V / (N Vt)) − 1), beside a conductance ([`Netlist::gmin`]). Steps of a junction's voltage are limited as in SPICE2
//! (Nagel, 1975): logarithmically above the critical voltage. Where Newton's method fails, larger conductances beside the diodes are taken away one
//! after the other, then the sources are raised from 0 by steps.
//!
//! Unknowns have twice the precision of 64 bits, and so has the computation of what they leave of the equations (`equations::balance`). The callback
//! solves for corrections, whose own precision does not matter as long as each makes the rest smaller: iterative refinement. So voltages are exact
//! also where the matrix, rounded, has lost small conductances beside large ones.
//!
//! Invariant: [`Point::residual`] is computed from the circuit's elements with the diodes' true currents, never from the linearised ones, nor from the
//! matrix.

use crate::equations::{Balance, Equations, Excitation, Excited, Junction};
use crate::netlist::{Diode, Netlist};
use crate::twofold::Twofold;
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
/// Most corrections by the same factors: some are enough where the matrix holds most digits, more where rounding has taken half of its least ones.
const MOST_CORRECTIONS: usize = 40;
/// Beyond this current in amperes the exponential goes on as its tangent, so that nothing overflows. A solution there is refused.
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
    /// ‖b − A x − currents of diodes‖₂ / ‖flows‖₂: what is left of each equation's sum, and the magnitudes that are summed up there. Or the same of the
    /// worst equation alone, if that is more.
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
    /// Numbers grew too large.
    #[error("voltages or currents are beyond the largest number of 64 bits")]
    Overflow,
    /// A diode would carry what none can, and what numbers cannot tell from more.
    #[error(
        "the diode '{diode}' would carry more than 1e20 A, at {volts:.3} V; put a resistance in series with it"
    )]
    Current {
        /// The diode.
        diode: String,
        /// Its voltage.
        volts: f64,
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
    /// The unknowns.
    x: Vec<Twofold>,
    /// Voltage at which each junction is linearised.
    volts: Vec<f64>,
    /// The last matrix with conductances of diodes.
    jacobian: Option<Csr>,
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
    let bounded = argument.min(largest_argument(diode));
    let power = bounded.exp();
    let current = diode.saturation_amperes * (bounded.exp_m1() + power * (argument - bounded));
    let conductance = diode.saturation_amperes * power * slope;
    (current + gmin * volts, conductance + gmin)
}

/// The exponent beyond which the current goes on as its tangent.
fn largest_argument(diode: &Diode) -> f64 {
    (LARGEST_AMPERES / diode.saturation_amperes).ln()
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

impl<'a> Solver<'a> {
    /// For the circuit of `netlist`, whose equations are `equations`; Newton's method goes on until the residual is within `tolerance`, or rounding
    /// keeps it above.
    pub fn new(netlist: &'a Netlist, equations: &'a Equations, tolerance: f64) -> Self {
        let mut solver = Self {
            netlist,
            equations,
            x: Vec::new(),
            volts: Vec::new(),
            jacobian: None,
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
        self.x = vec![Twofold::ZERO; self.equations.n()];
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
        let Some(way) = found.map_err(NewtonError::Linear)? else {
            let diode = &self.netlist.diodes[self.moved_most as usize];
            let diode = self.netlist.sources.get(diode.name).to_owned();
            return Err(NewtonError::NotConverged {
                steps: self.steps,
                diode,
            });
        };
        let residual = self
            .refine(&excited, &mut solve)
            .map_err(NewtonError::Linear)?;
        if !residual.is_finite() || !self.x.iter().all(|value| value.is_finite()) {
            return Err(NewtonError::Overflow);
        }
        self.check_diodes(&excited)?;
        let rounded = |values: &[Twofold]| -> Vec<f64> {
            values.iter().map(|value| value.rounded()).collect()
        };
        Ok(Point {
            voltages: rounded(&self.equations.node_volts(&excited, &self.x)),
            x: rounded(&self.x),
            residual,
            steps: self.steps,
            way,
        })
    }

    /// Finds the unknowns, and returns the first way that leads to them. `None`: no way does.
    fn find<E>(
        &mut self,
        excitation: &Excitation<'_>,
        excited: &Excited<'_>,
        solve: &mut impl FnMut(Linear<'_>) -> Result<Vec<f64>, E>,
    ) -> Result<Option<Way>, E> {
        if self.equations.junctions().is_empty() {
            self.linear(excited, solve)?;
            return Ok(Some(Way::Linear));
        }
        if self.newton(excited, self.netlist.gmin, solve)? {
            return Ok(Some(Way::Newton));
        }
        if self.with_conductances(excited, solve)? {
            return Ok(Some(Way::Conductances));
        }
        let found = self.with_sources(excitation, excited, solve)?;
        Ok(found.then_some(Way::Sources))
    }

    fn linear<E>(
        &mut self,
        excited: &Excited<'_>,
        solve: &mut impl FnMut(Linear<'_>) -> Result<Vec<f64>, E>,
    ) -> Result<(), E> {
        let matrix = self.equations.matrix();
        let is_new_matrix = std::mem::replace(&mut self.is_first, false);
        let x = solve(Linear {
            matrix,
            rhs: &excited.rhs,
            is_new_matrix,
        })?;
        self.x = x.into_iter().map(Twofold::from).collect();
        self.steps += 1;
        Ok(())
    }

    /// Newton's method from the present unknowns and voltages of the junctions. Returns whether it converges.
    fn newton<E>(
        &mut self,
        excited: &Excited<'_>,
        gmin: f64,
        solve: &mut impl FnMut(Linear<'_>) -> Result<Vec<f64>, E>,
    ) -> Result<bool, E> {
        let base = self.equations.matrix();
        let most = MOST_STEPS.min(MOST_STEPS_ALTOGETHER.saturating_sub(self.steps));
        for _ in 0..most {
            let mut values = base.values().to_vec();
            let mut tangents = Vec::with_capacity(self.volts.len());
            for (junction, &volts) in self.equations.junctions().iter().zip(&self.volts) {
                let (current, conductance) = diode_current(self.diode(junction), volts, gmin);
                junction.add_conductance(&mut values, conductance);
                tangents.push((volts, current, conductance));
            }
            let matrix = Csr::new(
                base.columns(),
                base.offsets().to_vec(),
                base.indices().to_vec(),
                values,
            )
            .expect("the pattern is that of a matrix");
            // Limits may have kept the junctions from the voltages that the unknowns give them.
            let balance = self.equations.balance(excited, &self.x, |place, present| {
                let (volts, current, conductance) = tangents[place];
                let beyond = present - Twofold::from(volts);
                let tangent = Twofold::from(current) + beyond * conductance;
                (tangent, conductance)
            });
            let correction = solve(Linear {
                matrix: self.jacobian.insert(matrix),
                rhs: &balance.rest,
                is_new_matrix: true,
            })?;
            self.steps += 1;
            self.correct(&correction);
            if !self.x.iter().all(|value| value.is_finite()) {
                return Ok(false);
            }
            let (moved, is_limited) = self.step(excited);
            let residual = self.balance(excited, gmin).whole();
            let is_calm = !is_limited && moved <= CALM_VOLTS;
            if is_calm && (residual <= self.tolerance || moved <= STANDSTILL_VOLTS) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn correct(&mut self, correction: &[f64]) {
        for (value, &correction) in self.x.iter_mut().zip(correction) {
            *value += Twofold::from(correction);
        }
    }

    /// Moves the junctions to the voltages of the unknowns, as far as limits let them. Returns the longest step in volts, and whether any was limited.
    fn step(&mut self, excited: &Excited<'_>) -> (f64, bool) {
        let mut moved = 0.0;
        let mut is_limited = false;
        for (junction, volts) in self.equations.junctions().iter().zip(&mut self.volts) {
            let wanted = junction.volts(excited, &self.x).rounded();
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

    /// What the unknowns leave of the equations, with the diodes' true currents.
    fn balance(&self, excited: &Excited<'_>, gmin: f64) -> Balance {
        let junctions = self.equations.junctions();
        self.equations.balance(excited, &self.x, |place, volts| {
            let diode = self.diode(&junctions[place]);
            let (current, conductance) = diode_current(diode, volts.rounded(), gmin);
            let more = Twofold::from(conductance * volts.rest());
            (Twofold::from(current) + more, conductance)
        })
    }

    /// Corrects the unknowns by the last factors until the whole residual and that of each equation are within the tolerance, or two corrections in a
    /// row make neither the rest nor the residual half as large: beside a diode whose current rounding keeps from falling further, equations of
    /// small currents may still be far from solved. Returns the residual.
    fn refine<E>(
        &mut self,
        excited: &Excited<'_>,
        solve: &mut impl FnMut(Linear<'_>) -> Result<Vec<f64>, E>,
    ) -> Result<f64, E> {
        let gmin = self.netlist.gmin;
        let mut balance = self.balance(excited, gmin);
        let mut best = (balance.residual(), self.x.clone());
        let mut slow = 0;
        for _ in 0..MOST_CORRECTIONS {
            let is_within = balance.residual() <= self.tolerance;
            if is_within || slow == 2 || !balance.norm().is_finite() {
                break;
            }
            let correction = solve(Linear {
                matrix: self.jacobian.as_ref().unwrap_or(self.equations.matrix()),
                rhs: &balance.rest,
                is_new_matrix: false,
            })?;
            self.correct(&correction);
            let better = self.balance(excited, gmin);
            let fallen = |measure: fn(&Balance) -> f64| measure(&better) / measure(&balance);
            let fallen = fallen(Balance::norm).min(fallen(Balance::residual));
            slow = if fallen <= 0.5 { 0 } else { slow + 1 };
            balance = better;
            if balance.residual() < best.0 {
                best = (balance.residual(), self.x.clone());
            }
        }
        let (residual, x) = best;
        self.x = x;
        Ok(residual)
    }

    /// Newton's method beside conductances that are taken away by tenths.
    fn with_conductances<E>(
        &mut self,
        excited: &Excited<'_>,
        solve: &mut impl FnMut(Linear<'_>) -> Result<Vec<f64>, E>,
    ) -> Result<bool, E> {
        self.begin_conducting();
        let (mut gmin, least) = (FIRST_GMIN, self.netlist.gmin);
        loop {
            if !self.newton(excited, gmin.max(least), solve)? {
                return Ok(false);
            }
            if gmin <= least {
                return Ok(true);
            }
            gmin /= 10.0;
        }
    }

    /// Newton's method with sources that are raised from 0, where all junctions are at 0 V.
    fn with_sources<E>(
        &mut self,
        excitation: &Excitation<'_>,
        excited: &Excited<'_>,
        solve: &mut impl FnMut(Linear<'_>) -> Result<Vec<f64>, E>,
    ) -> Result<bool, E> {
        self.volts.fill(0.0);
        self.x.fill(Twofold::ZERO);
        let (mut scale, mut step) = (0.0, 0.1f64);
        while scale < 1.0 {
            let next = f64::min(1.0, scale + step);
            let present = (self.volts.clone(), self.x.clone());
            let found = if next < 1.0 {
                let part = self.equations.excite(&excitation.scaled(next));
                self.newton(&part, self.netlist.gmin, solve)?
            } else {
                self.newton(excited, self.netlist.gmin, solve)?
            };
            if found {
                scale = next;
                step *= 1.5;
            } else {
                (self.volts, self.x) = present;
                step /= 8.0;
                if step < LEAST_SCALE_STEP {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn check_diodes<E>(&self, excited: &Excited<'_>) -> Result<(), NewtonError<E>> {
        for junction in self.equations.junctions() {
            let diode = self.diode(junction);
            let volts = junction.volts(excited, &self.x).rounded();
            let name = || self.netlist.sources.get(diode.name).to_owned();
            if -volts > diode.breakdown_volts {
                return Err(NewtonError::Breakdown {
                    diode: name(),
                    volts: -volts,
                    limit: diode.breakdown_volts,
                });
            }
            if volts > largest_argument(diode) * diode.emission * THERMAL_VOLTS {
                return Err(NewtonError::Current {
                    diode: name(),
                    volts,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
