//! Value iteration of a slippery grid, by one process or by all of a launch.
//!
//! ```sh
//! cargo build --release -p tsumuji-solve --examples
//! tsumuji launch -n 4 -- target/release/examples/value_iteration [SIDE [DISCOUNT]]
//! ```
//!
//! A step costs 0.04 and goes astray to either side with probability 0.1. The upper right corner pays 1 for each step there, the cell below takes 1. Node 0 of the
//! launch prints the best way from the cells of the upper right corner, and a bound of the greatest error.

use std::process::ExitCode;

use tsumuji_solve::fixed_point::{Choice, Config, ValueIteration, run};

const USAGE: &str = "usage: value_iteration [SIDE [DISCOUNT]], with 2 to 2000 cells a side (100) and a discount from 0 up to, but not including, 1 (0.99)";
/// Most cells a side that are shown.
const SHOWN: usize = 12;
/// Ways in the order of choices.
const ARROWS: [char; 4] = ['^', '>', 'v', '<'];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let side = words.first().map_or(Ok(100_usize), |it| it.parse());
    let discount = words.get(1).map_or(Ok(0.99_f64), |it| it.parse());
    let (Ok(side @ 2..=2000), Ok(discount), 0..=2) = (side, discount, words.len()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if !(0.0..1.0).contains(&discount) {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    let states = (0..side * side).map(|state| choices(state, side));
    let mut world = ValueIteration::new(states.collect(), discount);
    let config = Config {
        tolerance: 1e-6,
        ..Config::default()
    };
    let outcome = match run(&mut world, &config) {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("value_iteration: {error}");
            return ExitCode::FAILURE;
        }
    };
    if outcome.member == 0 {
        for row in 0..side.min(SHOWN) {
            let columns = side - side.min(SHOWN)..side;
            let best = columns.map(|column| world.best(row * side + column, &outcome.x));
            let arrows: String = best.flatten().map(|choice| ARROWS[choice]).collect();
            println!("{arrows}");
        }
        println!(
            "worth of the lower left corner: {:.6}",
            outcome.x[side * (side - 1)]
        );
        println!("{outcome}");
    }
    match outcome.converged() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// A step in each of four directions.
fn choices(state: usize, side: usize) -> Vec<Choice> {
    let (row, column) = (state / side, state % side);
    let to = |way: usize| {
        let (row, column) = match way % 4 {
            0 => (row.saturating_sub(1), column),
            1 => (row, (column + 1).min(side - 1)),
            2 => ((row + 1).min(side - 1), column),
            _ => (row, column.saturating_sub(1)),
        };
        (row * side + column) as u32 // at most 2000 × 2000
    };
    let reward = match (row, side - 1 - column) {
        (0, 0) => 1.0,
        (1, 0) => -1.0,
        _ => -0.04,
    };
    let choice = |way: usize| Choice {
        reward,
        next: vec![(to(way), 0.8), (to(way + 1), 0.1), (to(way + 3), 0.1)],
    };
    (0..4).map(choice).collect()
}
