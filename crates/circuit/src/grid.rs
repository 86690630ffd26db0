//! Power grids of any size, as netlists: what supplies a chip, with the structure of real ones.
//!
//! The example `power_grid` writes them, tests and measurements read them. Layers of parallel strips run across each other, alternately along x and
//! along y; at each crossing a via joins a layer to the next one. Pads on the top layer supply the voltage, cells on the bottom layer draw
//! currents.
//!
//! Invariant: the same grid has the same text, and each node has a path to a pad.

use std::io::{self, Write};

/// Supply, in volts.
const SUPPLY_VOLTS: f64 = 1.8;
/// A pad stands at every crossing whose coordinates are multiples of this.
const PAD_PITCH: usize = 16;
/// Resistances in ohms: a strip between crossings, a via, a pad. Each is multiplied by a random factor from 0.5 to 1.5.
const STRIP_OHMS: f64 = 0.2;
const VIA_OHMS: f64 = 0.5;
const PAD_OHMS: f64 = 0.05;
/// One crossing in so many draws a current of up to so many amperes.
const CELL_PERIOD: usize = 4;
const CELL_AMPERES: f64 = 2e-4;
/// One via in so many is a voltage source of 0 V, as in the benchmarks of IBM.
const IDEAL_VIA_PERIOD: usize = 32;

/// A power grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PowerGrid {
    /// Crossings along x and along y.
    pub side: usize,
    /// Layers, at least 2.
    pub layers: usize,
    /// Of everything random.
    pub seed: u64,
}

impl PowerGrid {
    /// Nodes, those behind pads included, ground not.
    pub fn nodes(&self) -> usize {
        self.side * self.side * self.layers + self.side.div_ceil(PAD_PITCH).pow(2)
    }

    /// Writes the netlist.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { side, layers, seed } = *self;
        let mut random = fastrand::Rng::with_seed(seed);
        writeln!(
            out,
            "* power grid of {side} x {side} x {layers}, seed {seed}"
        )?;
        let mut number = 0;
        for layer in 1..=layers {
            writeln!(out, "* layer {layer}")?;
            let (along_x, along_y) = (layer % 2, 1 - layer % 2);
            for x in 0..side {
                for y in 0..side {
                    let (next_x, next_y) = (x + along_x, y + along_y);
                    if next_x < side && next_y < side {
                        let ohms = STRIP_OHMS * (0.5 + random.f64());
                        writeln!(
                            out,
                            "r{number} n{layer}_{x}_{y} n{layer}_{next_x}_{next_y} {ohms:.4}"
                        )?;
                        number += 1;
                    }
                    if layer < layers {
                        self.via(out, &mut random, number, [layer, x, y])?;
                        number += 1;
                    }
                }
            }
        }
        writeln!(out, "* pads")?;
        for x in (0..side).step_by(PAD_PITCH) {
            for y in (0..side).step_by(PAD_PITCH) {
                let ohms = PAD_OHMS * (0.5 + random.f64());
                writeln!(
                    out,
                    "r{number} _X_n{layers}_{x}_{y} n{layers}_{x}_{y} {ohms:.4}"
                )?;
                writeln!(out, "v{number} _X_n{layers}_{x}_{y} 0 {SUPPLY_VOLTS}")?;
                number += 1;
            }
        }
        writeln!(out, "* cells")?;
        for x in 0..side {
            for y in 0..side {
                if random.usize(..CELL_PERIOD) == 0 {
                    let amperes = CELL_AMPERES * random.f64();
                    writeln!(out, "i{number} n1_{x}_{y} 0 {amperes:.4e}")?;
                    number += 1;
                }
            }
        }
        writeln!(out, ".op\n.end")
    }

    fn via(
        &self,
        out: &mut impl Write,
        random: &mut fastrand::Rng,
        number: usize,
        [layer, x, y]: [usize; 3],
    ) -> io::Result<()> {
        let above = layer + 1;
        // In one step between layers only: others would close a loop of sources with those beneath.
        if layer == 1 && random.usize(..IDEAL_VIA_PERIOD) == 0 {
            return writeln!(out, "v{number} n{layer}_{x}_{y} n{above}_{x}_{y} 0");
        }
        let ohms = VIA_OHMS * (0.5 + random.f64());
        writeln!(out, "r{number} n{layer}_{x}_{y} n{above}_{x}_{y} {ohms:.4}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::{Options, compute};
    use crate::netlist::{Limits, Netlist, from_bytes};

    fn netlist(grid: PowerGrid) -> Netlist {
        let mut text = Vec::new();
        grid.write(&mut text).unwrap();
        let limits = Limits {
            memory_bytes: 1 << 30,
            unfolded_bytes: 0,
        };
        from_bytes("grid", &text, limits).unwrap()
    }

    /// A grid has the promised nodes, the same text each time, and voltages a little below the supply, in any number of parts.
    #[test]
    fn grids_are_supplied() {
        let grid = PowerGrid {
            side: 40,
            layers: 3,
            seed: 7,
        };
        let circuit = netlist(grid);
        assert_eq!(circuit.nodes.len(), grid.nodes() + 1);
        assert_eq!(netlist(grid).resistors, circuit.resistors);
        assert_ne!(
            netlist(PowerGrid { seed: 8, ..grid }).resistors,
            circuit.resistors
        );
        let solved = |parts| {
            compute(
                &circuit,
                Options {
                    parts,
                    tolerance: 1e-12,
                },
                || false,
            )
            .unwrap()
        };
        let (one, four) = (solved(1), solved(4));
        assert!(one.residual < 1e-12 && four.residual < 1e-12);
        assert_eq!(four.sizes.parts, 4);
        for (a, b) in one.voltages[0].iter().zip(&four.voltages[0]).skip(1) {
            assert!((a - b).abs() < 1e-10);
            assert!((0.9 * SUPPLY_VOLTS..=SUPPLY_VOLTS).contains(a), "{a}");
        }
    }
}
