//! Ring: a token goes round all nodes, and each of them passes it on. The smallest program that sends and receives.
//!
//! ```sh
//! cargo build -p tsumuji-examples
//! tsumuji launch -n 4 -- target/debug/ring 1000
//! ```
//!
//! The argument is how often the token goes round. Node 0 prints `1000 laps of 4 nodes over shm: 1.204 us a hop`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use tsumuji_node::{Channel, NodeId, Options, endpoint_from_env, report_error};

/// A neighbour that is silent for longer than this is an error.
const PATIENCE: Duration = Duration::from_secs(30);
const CHANNEL: Channel = Channel::ordered(0);

fn main() -> ExitCode {
    let Err(error) = run() else {
        return ExitCode::SUCCESS;
    };
    report_error(&*error); // the launcher prints it, too
    eprintln!("ring: {error}");
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let laps = std::env::args().nth(1).map_or(Ok(1000), |it| it.parse())?;
    let mut endpoint = endpoint_from_env(Options::default())?;
    let (me, nodes) = (endpoint.me(), endpoint.members().len() as u16);
    let next = NodeId((me.0 + 1) % nodes);
    if next == me {
        return Err("a ring needs two nodes or more".into());
    }

    let start = Instant::now();
    for lap in 0..laps {
        if me == NodeId(0) {
            endpoint.send(next, CHANNEL, &u32::to_le_bytes(lap))?;
        }
        let token = endpoint.recv(PATIENCE)?.ok_or("the token got lost")?;
        if token.body != lap.to_le_bytes() {
            let from = endpoint.name_of(token.from);
            return Err(format!("lap {lap}: {from} sent a wrong token").into());
        }
        if me != NodeId(0) {
            endpoint.send(next, CHANNEL, &token.body)?;
        }
        endpoint.recycle(token); // the next message arrives in its memory
    }
    if me == NodeId(0) {
        let hops = f64::from(laps) * f64::from(nodes);
        let hop_us = start.elapsed().as_secs_f64() * 1e6 / hops;
        let link = endpoint.link_name();
        println!("{laps} laps of {nodes} nodes over {link}: {hop_us:.3} us a hop");
    }
    endpoint.close(PATIENCE)?;
    Ok(())
}
