//! Writes the netlist of a power grid to standard output: `power_grid K [LAYERS [SEED]]`, K x K crossings on each of 3 layers.

use std::io::{BufWriter, Write};
use tsumuji_circuit::grid::PowerGrid;

/// Beyond, the netlist alone has some 10 GB.
const MOST_SIDE: u64 = 10_000;

fn main() -> std::process::ExitCode {
    let mut words = std::env::args().skip(1);
    let mut number = |default, range: std::ops::RangeInclusive<u64>| match words.next() {
        Some(word) => word.parse().ok().filter(|number| range.contains(number)),
        None => default,
    };
    let side = number(None, 1..=MOST_SIDE);
    let layers = number(Some(3), 2..=100);
    let seed = number(Some(1), 0..=u64::MAX);
    let (Some(side), Some(layers), Some(seed)) = (side, layers, seed) else {
        eprintln!(
            "usage: power_grid K [LAYERS [SEED]], with K from 1 to {MOST_SIDE} and 2 to 100 layers"
        );
        return std::process::ExitCode::from(2);
    };
    let grid = PowerGrid {
        side: side as usize,
        layers: layers as usize,
        seed,
    };
    let mut out = BufWriter::new(std::io::stdout().lock());
    match grid.write(&mut out).and_then(|()| out.flush()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("power_grid: cannot write: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
