//! Any bytes read as a netlist give a circuit or one line, within bounds of memory; small circuits have voltages, or one line.

use std::cell::Cell;

use tsumuji_circuit::compute::{Options, compute};
use tsumuji_circuit::netlist::{Limits, from_bytes};

const LIMITS: Limits = Limits {
    memory_bytes: 64 << 20,
    unfolded_bytes: 1 << 18,
};
/// Circuits and sweeps beyond are read, but not computed.
const MOST_ELEMENTS: usize = 200;
const MOST_POINTS: usize = 10;
/// Linear solutions of one circuit, which are slow in this build.
const MOST_SOLUTIONS: u32 = 300;

/// The target.
pub fn netlist(bytes: &[u8]) {
    let netlist = match from_bytes("input", bytes, LIMITS) {
        Ok(netlist) => netlist,
        Err(error) => {
            assert!(!error.to_string().contains('\n'));
            return;
        }
    };
    let points = match &netlist.analysis {
        tsumuji_circuit::netlist::Analysis::Sweep { values, .. } => values.len(),
        _ => 1,
    };
    if netlist.elements() > MOST_ELEMENTS || points > MOST_POINTS {
        return;
    }
    let options = Options {
        parts: 2,
        tolerance: 1e-10,
    };
    let solutions = Cell::new(0);
    let stop = || solutions.replace(solutions.get() + 1) >= MOST_SOLUTIONS;
    match compute(&netlist, options, stop) {
        Ok(outcome) => assert!(
            outcome
                .voltages
                .iter()
                .all(|volts| volts.len() == netlist.nodes.len())
        ),
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
}
