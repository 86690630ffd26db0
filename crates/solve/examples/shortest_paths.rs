//! Shortest paths from one node of an edge list to all others, by one process or by all of a launch.
//!
//! ```sh
//! cargo build --release -p tsumuji-solve --examples
//! tsumuji launch -n 4 -- target/release/examples/shortest_paths edges.txt [SOURCE]
//! ```
//!
//! A line of the file is `u v [weight]`: an edge from node u to node v, of length 1 if it has no weight. Node 0 of the launch prints the ten farthest nodes;
//! a certificate of 0 says that no edge is violated.

use std::path::Path;
use std::process::ExitCode;

use tsumuji_solve::fixed_point::{Config, Edges, ShortestPaths, UNREACHED, run};

const USAGE: &str = "usage: shortest_paths FILE [SOURCE], with a node of the file as source (0)";
const SHOWN: usize = 10;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let source = words.get(1).map_or(Ok(0_usize), |it| it.parse());
    let (Some(file), Ok(source), 1..=2) = (words.first(), source, words.len()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let edges = match Edges::read(Path::new(file)) {
        Ok(edges) => edges,
        Err(error) => {
            eprintln!("shortest_paths: {error}");
            return ExitCode::from(2);
        }
    };
    if source >= edges.nodes {
        let last = edges.nodes - 1;
        eprintln!("shortest_paths: {file}: it has no node {source}; accepted are 0 to {last}");
        return ExitCode::from(2);
    }
    // Sums of whole numbers are exact, and so is the result: nothing but 0 is accepted.
    let config = Config {
        tolerance: 0.0,
        ..Config::default()
    };
    let outcome = match run(&mut ShortestPaths::new(&edges, source), &config) {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("shortest_paths: {error}");
            return ExitCode::FAILURE;
        }
    };
    if outcome.member == 0 {
        let reached = (0..outcome.x.len()).filter(|node| outcome.x[*node] < UNREACHED);
        let mut reached: Vec<usize> = reached.collect();
        let (count, all) = (reached.len(), outcome.x.len());
        reached.sort_by(|a, b| outcome.x[*b].total_cmp(&outcome.x[*a]));
        for node in reached.into_iter().take(SHOWN) {
            println!("node {node}: {}", outcome.x[node]);
        }
        println!("{count} of {all} nodes are reached from node {source}");
        println!("{outcome}");
    }
    match outcome.converged() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
