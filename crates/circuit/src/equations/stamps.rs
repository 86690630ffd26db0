//! What each element adds to the matrix.
//!
//! Called by `super`. Equations of nodes are sums of leaving currents; those of currents are voltages that sum up to 0.
//! `balance` goes through the same elements for what is left of these equations, and for their right-hand side.

use super::{Equations, EquationsError, Junction, KNOWN, Terminal};
use crate::netlist::{Netlist, Pair};
use tsumuji_solve::system::Csr;

/// Entries of a matrix in any order.
#[derive(Debug, Default)]
struct Entries(Vec<(u32, u32, f64)>);

impl Entries {
    /// An entry, unless its equation or its unknown is none.
    fn add(&mut self, row: u32, column: u32, value: f64) {
        if row != KNOWN && column != KNOWN {
            self.0.push((row, column, value));
        }
    }

    /// A current from `from` to `to` of `siemens` times the voltage from `plus` to `minus`.
    fn transconductance(&mut self, [from, to]: [u32; 2], [plus, minus]: [u32; 2], siemens: f64) {
        if from != to && plus != minus {
            self.add(from, plus, siemens);
            self.add(to, minus, siemens);
            self.add(from, minus, -siemens);
            self.add(to, plus, -siemens);
        }
    }
}

/// The matrix, and the junctions with their places in it. Numbers the unknowns within diodes and of currents.
pub(super) fn stamp(
    netlist: &Netlist,
    equations: &mut Equations,
) -> Result<(Csr, Vec<Junction>), EquationsError> {
    let mut entries = Entries::default();
    entries.0.reserve(4 * netlist.resistors.len());
    for resistor in &netlist.resistors {
        let ends = resistor.nodes.map(|node| equations.unknowns[node.index()]);
        entries.transconductance(ends, ends, 1.0 / resistor.ohms);
    }
    for element in &netlist.transconductances {
        let ends = element.nodes.map(|node| equations.unknowns[node.index()]);
        let control = element.control.map(|node| equations.unknowns[node.index()]);
        entries.transconductance(ends, control, element.gain);
    }
    let mut junctions = Vec::with_capacity(netlist.diodes.len());
    for (place, diode) in (0..).zip(&netlist.diodes) {
        let [mut anode, cathode] = diode.nodes.map(|node| equations.terminal(node));
        if diode.series_ohms > 0.0 {
            let unknown = equations.first_current;
            equations.first_current += 1;
            let ends = [anode.unknown, unknown];
            entries.transconductance(ends, ends, 1.0 / diode.series_ohms);
            anode = Terminal {
                unknown,
                node: None,
            };
        }
        let ends = [anode.unknown, cathode.unknown];
        // A diode between voltages that are constant takes part in nothing.
        if ends[0] != ends[1] {
            entries.transconductance(ends, ends, 0.0);
            junctions.push(Junction {
                diode: place,
                anode,
                cathode,
                places: [None; 4],
            });
        }
    }
    if netlist.nodes.len() <= 1 {
        return Err(EquationsError::Nothing);
    }
    let mut n = branches(netlist, equations, &mut entries);
    if n == 0 {
        // Sources fix all nodes. One equation, of a current that is 0, spares all others this case.
        n = 1;
        entries.add(0, 0, 1.0);
    }
    let matrix = Csr::from_triplets(n, n, &entries.0)?;
    for junction in &mut junctions {
        junction.places = places(&matrix, junction);
    }
    Ok((matrix, junctions))
}

/// Equations and unknowns of currents; returns the number of all unknowns.
fn branches(netlist: &Netlist, equations: &Equations, entries: &mut Entries) -> usize {
    let unknown = |place: usize| equations.first_current + place as u32;
    let current_of = |voltage_source: u32| {
        let branch = equations.branches.binary_search(&voltage_source);
        unknown(branch.expect("a controlling source has a branch"))
    };
    let mut branch = |nodes: Pair, place: usize| {
        let current = unknown(place);
        for (node, sign) in nodes.iter().zip([1.0, -1.0]) {
            let node = equations.unknowns[node.index()];
            entries.add(node, current, sign);
            entries.add(current, node, sign);
        }
    };
    for (place, &source) in equations.branches.iter().enumerate() {
        branch(netlist.voltages[source as usize].nodes, place);
    }
    let first_gain = equations.branches.len();
    for (place, element) in netlist.voltage_gains.iter().enumerate() {
        branch(element.nodes, first_gain + place);
    }
    let first_resistance = first_gain + netlist.voltage_gains.len();
    for (place, element) in netlist.transresistances.iter().enumerate() {
        branch(element.nodes, first_resistance + place);
    }
    for (place, element) in netlist.voltage_gains.iter().enumerate() {
        let current = unknown(first_gain + place);
        let [plus, minus] = element.control.map(|node| equations.unknowns[node.index()]);
        entries.add(current, plus, -element.gain);
        entries.add(current, minus, element.gain);
    }
    for (place, element) in netlist.transresistances.iter().enumerate() {
        let current = unknown(first_resistance + place);
        entries.add(current, current_of(element.control), -element.gain);
    }
    for element in &netlist.current_gains {
        let control = current_of(element.control);
        for (node, sign) in element.nodes.iter().zip([1.0, -1.0]) {
            entries.add(
                equations.unknowns[node.index()],
                control,
                sign * element.gain,
            );
        }
    }
    equations.first_current as usize + first_resistance + netlist.transresistances.len()
}

/// Where a junction's conductance stands among the values.
fn places(matrix: &Csr, junction: &Junction) -> [Option<usize>; 4] {
    let (a, c) = (junction.anode.unknown, junction.cathode.unknown);
    [(a, a), (c, c), (a, c), (c, a)].map(|(row, column)| {
        if row == KNOWN || column == KNOWN {
            return None;
        }
        let start = matrix.offsets()[row as usize];
        let place = matrix.row(row as usize).0.binary_search(&column);
        Some(start + place.expect("the entry was stamped"))
    })
}
