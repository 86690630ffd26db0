//! How far unknowns are from solving the equations, as the elements tell it, not the matrix.
//!
//! Called by `newton`, and at 0 for the right-hand side; goes through the elements that `stamps` goes through. The diagonal of the matrix has rounded
//! away conductances that are small beside others at their node, and the unknowns of both ends of a small resistor may differ by less than their last
//! digit. Here the voltage across each element is made first, in twice the precision, and then multiplied.
//!
//! Invariant: [`Balance::residual`] depends on the voltages of nodes alone, not on which node stands for others that sources join to it.

use super::{Equations, Excited, KNOWN};
use crate::netlist::Pair;
use crate::substructure::norm;
use crate::twofold::Twofold;

/// What rounding may leave of a voltage, relative to those at the ends it lies between: more than twice the precision leaves, and far less than
/// voltages that are told have. Where no current flows at all, that of rounding would be measured by itself otherwise.
const ROUNDING: f64 = 1.0 / (1u128 << 70) as f64;
/// Amperes or volts that count as nothing.
const LEAST_FLOW: f64 = 1e-40;

/// What is left of each equation, and what flows there.
#[derive(Debug, Clone)]
pub(crate) struct Balance {
    /// b − A x − currents of diodes: currents that enter a node in amperes, or volts that are missing around a loop.
    pub(crate) rest: Vec<f64>,
    /// Magnitudes of the same currents or voltages, summed up before they cancel.
    flows: Vec<f64>,
}

impl Balance {
    /// ‖rest‖₂.
    pub(crate) fn norm(&self) -> f64 {
        norm(&self.rest)
    }

    /// ‖rest‖₂ / ‖flows‖₂.
    pub(crate) fn whole(&self) -> f64 {
        self.norm() / norm(&self.flows).max(LEAST_FLOW)
    }

    /// The larger one of `whole` and `worst`; infinite where something is no number.
    pub(crate) fn residual(&self) -> f64 {
        let mut all = self.rest.iter().chain(&self.flows);
        if all.all(|number| number.is_finite()) {
            self.whole().max(self.worst())
        } else {
            f64::INFINITY
        }
    }

    /// The largest of |rest| / flows of single equations: small currents far from large ones count in it.
    fn worst(&self) -> f64 {
        let largest = self.flows.iter().copied().fold(0.0, f64::max);
        let pairs = self.rest.iter().zip(&self.flows);
        let parts = pairs.map(|(rest, flow)| {
            let flow = flow + ROUNDING * largest;
            rest.abs() / flow.max(LEAST_FLOW)
        });
        parts.fold(0.0, f64::max)
    }
}

/// A voltage or a current, and how much of it may be rounding.
#[derive(Debug, Clone, Copy)]
struct Term {
    value: Twofold,
    rounding: f64,
}

impl Term {
    /// The voltage between two others.
    fn between(plus: Twofold, minus: Twofold) -> Self {
        let ends = plus.rounded().abs() + minus.rounded().abs();
        Self {
            value: plus - minus,
            rounding: ROUNDING * ends,
        }
    }

    /// What needs no voltage.
    fn exact(value: Twofold) -> Self {
        Self {
            value,
            rounding: 0.0,
        }
    }

    fn reversed(self) -> Self {
        Self {
            value: -self.value,
            ..self
        }
    }

    fn times(self, factor: f64) -> Self {
        Self {
            value: self.value * factor,
            rounding: self.rounding * factor.abs(),
        }
    }
}

/// Sums of all equations.
#[derive(Debug)]
struct Sums {
    sums: Vec<Twofold>,
    flows: Vec<f64>,
}

impl Sums {
    /// Adds to the left side of an equation, unless it is none.
    fn add(&mut self, row: u32, term: Term) {
        if row != KNOWN {
            self.sums[row as usize] += term.value;
            self.flows[row as usize] += term.value.rounded().abs() + term.rounding;
        }
    }

    /// A current that leaves the first equation's nodes and enters the second's.
    fn leave(&mut self, [from, to]: [u32; 2], amperes: Term) {
        if from != to {
            self.add(from, amperes);
            self.add(to, amperes.reversed());
        }
    }
}

impl Equations {
    /// What `x` leaves of the equations. `current` tells the current of a junction in amperes and its derivative in siemens, from the junction's place
    /// among [`Self::junctions`] and its voltage.
    pub(crate) fn balance(
        &self,
        excited: &Excited<'_>,
        x: &[Twofold],
        current: impl Fn(usize, Twofold) -> (Twofold, f64),
    ) -> Balance {
        let netlist = excited.excitation.netlist;
        let volts = self.node_volts(excited, x);
        let across = |[a, b]: Pair| Term::between(volts[a.index()], volts[b.index()]);
        let ends = |nodes: Pair| nodes.map(|node| self.unknowns[node.index()]);
        let mut sums = Sums {
            sums: vec![Twofold::ZERO; self.n()],
            flows: vec![0.0; self.n()],
        };
        for resistor in &netlist.resistors {
            let amperes = across(resistor.nodes).times(1.0 / resistor.ohms);
            sums.leave(ends(resistor.nodes), amperes);
        }
        for element in &netlist.transconductances {
            let amperes = across(element.control).times(element.gain);
            sums.leave(ends(element.nodes), amperes);
        }
        for (place, source) in (0..).zip(&netlist.currents) {
            let amperes = Twofold::from(excited.excitation.amperes(place));
            sums.leave(ends(source.nodes), Term::exact(amperes));
        }
        for (place, junction) in self.junctions.iter().enumerate() {
            let [anode, cathode] = [junction.anode, junction.cathode];
            if anode.node.is_none() {
                let diode = &netlist.diodes[junction.diode as usize];
                let node = diode.nodes[0].index();
                let series = Term::between(volts[node], anode.volts(excited, x));
                let outer = [self.unknowns[node], anode.unknown];
                sums.leave(outer, series.times(1.0 / diode.series_ohms));
            }
            let inner = Term::between(anode.volts(excited, x), cathode.volts(excited, x));
            let (amperes, siemens) = current(place, inner.value);
            let amperes = Term {
                value: amperes,
                rounding: inner.rounding * siemens,
            };
            sums.leave([anode.unknown, cathode.unknown], amperes);
        }
        let is_empty = self.balance_branches(excited, x, &mut sums, across, ends);
        if is_empty {
            // The one equation of a circuit whose nodes are all fixed.
            sums.add(0, Term::exact(x[0]));
        }
        let rest = sums.sums.iter().map(|sum| 0.0 - sum.rounded()).collect(); // never −0
        Balance {
            rest,
            flows: sums.flows,
        }
    }

    /// Adds the equations of currents, and these currents to those of nodes. Returns whether there are no unknowns at all.
    fn balance_branches(
        &self,
        excited: &Excited<'_>,
        x: &[Twofold],
        sums: &mut Sums,
        across: impl Fn(Pair) -> Term,
        ends: impl Fn(Pair) -> [u32; 2],
    ) -> bool {
        let netlist = excited.excitation.netlist;
        let current_of = |source: u32| {
            let branch = self.branches.binary_search(&source);
            let branch = branch.expect("a controlling source has a branch");
            x[self.first_current as usize + branch]
        };
        let mut row = self.first_current;
        // The voltage between the ends of a source less what the source says; its current goes through both.
        let mut branch = |sums: &mut Sums, nodes: Pair, wanted: Term| {
            sums.add(row, across(nodes));
            sums.add(row, wanted.reversed());
            sums.leave(ends(nodes), Term::exact(x[row as usize]));
            row += 1;
        };
        for &place in &self.branches {
            let volts = Twofold::from(excited.excitation.volts(place));
            let source = &netlist.voltages[place as usize];
            branch(sums, source.nodes, Term::exact(volts));
        }
        for element in &netlist.voltage_gains {
            let volts = across(element.control).times(element.gain);
            branch(sums, element.nodes, volts);
        }
        for element in &netlist.transresistances {
            let volts = Term::exact(current_of(element.control)).times(element.gain);
            branch(sums, element.nodes, volts);
        }
        for element in &netlist.current_gains {
            let amperes = Term::exact(current_of(element.control)).times(element.gain);
            sums.leave(ends(element.nodes), amperes);
        }
        row == 0
    }
}
