//! A token goes round all nodes, and each says so. Run it on one host by
//!
//! ```sh
//! cargo build --release --example ring -p tsumuji-node
//! tsumuji launch -n 4 -- target/release/examples/ring 100000
//! ```
//!
//! or on several, with `TSUMUJI_CLUSTER=lab.toml TSUMUJI_NODE=0 ring` (1, 2 … on the others).

use std::time::{Duration, Instant};

use tsumuji_node::{Lane, NodeId, Options, endpoint_from_env, report_error};

/// A neighbour that is silent for longer than this is an error.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            report_error(&*error); // the launcher tells it, too
            eprintln!("ring: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let laps: u32 = std::env::args()
        .nth(1)
        .map_or(Ok(1000), |text| text.parse())?;
    let mut endpoint = endpoint_from_env(Options::default())?;
    let nodes = endpoint.members().len() as u16;
    let me = endpoint.me();
    let next = NodeId((me.0 + 1) % nodes);
    if nodes < 2 {
        return Err("a ring needs two nodes or more".into());
    }

    let start = Instant::now();
    for lap in 0..laps {
        if me == NodeId(0) {
            endpoint.send(next, Lane::ordered(0), &lap.to_le_bytes())?;
        }
        let token = endpoint.recv(PATIENCE)?.ok_or("the token got lost")?;
        if token.body != lap.to_le_bytes() {
            return Err(format!(
                "lap {lap}: {} sent a wrong token",
                endpoint.name_of(token.from)
            )
            .into());
        }
        if me != NodeId(0) {
            endpoint.send(next, Lane::ordered(0), &token.body)?;
        }
        endpoint.recycle(token);
    }
    if me == NodeId(0) {
        let hops = f64::from(laps) * f64::from(nodes);
        let us = start.elapsed().as_secs_f64() * 1e6;
        println!(
            "{laps} laps of {nodes} nodes over {}: {:.3} us a hop",
            endpoint.link_name(),
            us / hops
        );
    }
    let _ = endpoint.close(Duration::from_secs(5));
    Ok(())
}
