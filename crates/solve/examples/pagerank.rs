//! PageRank of an edge list, by one process or by all of a launch.
//!
//! ```sh
//! cargo build --release -p tsumuji-solve --examples
//! tsumuji launch -n 4 -- target/release/examples/pagerank edges.txt [D [TOLERANCE]]
//! ```
//!
//! A line of the file is `u v [weight]`: an edge from node u to node v. Node 0 of the launch prints the ten highest ranks, and a bound of Σ |error|.

use std::path::Path;
use std::process::ExitCode;

use tsumuji_solve::fixed_point::{Config, Edges, PageRank, run};

const USAGE: &str = "usage: pagerank FILE [D [TOLERANCE]], with D from 0 up to, but not including, 1 (0.85) and a tolerance of 0 or more (1e-9)";
const SHOWN: usize = 10;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, usual: f64| words.get(place).map_or(Ok(usual), |it| it.parse());
    let (Some(file), Ok(damping), Ok(tolerance)) =
        (words.first(), number(1, 0.85), number(2, 1e-9))
    else {
        return usage();
    };
    let is_tolerance = |it: f64| it >= 0.0;
    if words.len() > 3 || !(0.0..1.0).contains(&damping) || !is_tolerance(tolerance) {
        return usage();
    }
    let edges = match Edges::read(Path::new(file)) {
        Ok(edges) => edges,
        Err(error) => {
            eprintln!("pagerank: {error}");
            return ExitCode::from(2);
        }
    };
    let config = Config {
        tolerance,
        ..Config::default()
    };
    let outcome = match run(&mut PageRank::new(&edges, damping), &config) {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("pagerank: {error}");
            return ExitCode::FAILURE;
        }
    };
    if outcome.member == 0 {
        let mut nodes: Vec<usize> = (0..outcome.x.len()).collect();
        nodes.sort_by(|a, b| outcome.x[*b].total_cmp(&outcome.x[*a]));
        for node in nodes.into_iter().take(SHOWN) {
            println!("node {node}: {:.9}", outcome.x[node]);
        }
        println!("{outcome}");
    }
    match outcome.converged() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}
