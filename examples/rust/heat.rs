//! Halo exchange: the heat equation on a rod, whose cells are divided among the nodes. Each step needs one value of each neighbour.
//!
//! ```sh
//! cargo build -p tsumuji-examples
//! tsumuji launch -n 4 -- target/debug/heat 500
//! ```
//!
//! The argument is the number of steps. A sine stays a sine in the explicit scheme, and shrinks by the same factor in each step: so
//! the nodes know what must come out. Node 0 prints `400 cells, 500 steps: error 1.1e-14`.

use std::process::ExitCode;
use std::time::Duration;

use tsumuji_collective::{Collectives, Op};
use tsumuji_node::{Channel, NodeId, Options, endpoint_from_env, report_error};

const PATIENCE: Duration = Duration::from_secs(30);
const CHANNEL: Channel = Channel::ordered(0);
/// Of each node.
const CELLS: usize = 100;
/// Time step over the square of a cell's width; the scheme is stable up to 1/2.
const RATIO: f64 = 0.4;
/// Rounding errors of some thousand steps are far below this.
const ERROR_MAX: f64 = 1e-10;

fn main() -> ExitCode {
    let Err(error) = run() else {
        return ExitCode::SUCCESS;
    };
    report_error(&*error); // the launcher prints it, too
    eprintln!("heat: {error}");
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let steps: i32 = std::env::args().nth(1).map_or(Ok(500), |it| it.parse())?;
    let mut endpoint = endpoint_from_env(Options::default())?;
    let mut collectives = Collectives::new(&mut endpoint)?;
    let (me, nodes) = (endpoint.me().0, endpoint.members().len() as u16);
    // The owners of the cells before our first and behind our last, and where their values go.
    let left = (me > 0).then(|| (NodeId(me - 1), 0));
    let right = (me + 1 < nodes).then(|| (NodeId(me + 1), CELLS + 1));
    let width = std::f64::consts::PI / (f64::from(nodes) * CELLS as f64 + 1.0);
    let sine = |cell: usize| (width * (usize::from(me) * CELLS + cell) as f64).sin();

    // Cells 0 and CELLS + 1 are the neighbours', or the cold ends of the rod.
    let mut heat = vec![0.0; CELLS + 2];
    let mut next = heat.clone();
    (1..=CELLS).for_each(|cell| heat[cell] = sine(cell));
    let step = |heat: &[f64], cell: usize| {
        heat[cell] + RATIO * (heat[cell - 1] - 2.0 * heat[cell] + heat[cell + 1])
    };
    for _ in 0..steps {
        let mut batch = endpoint.batch();
        for (neighbour, cell) in [left.map(|it| (it.0, 1)), right.map(|it| (it.0, CELLS))]
            .into_iter()
            .flatten()
        {
            batch.send(neighbour, CHANNEL, &heat[cell].to_le_bytes())?;
        }
        drop(batch); // both leave
        // Values travel while the cells that do not need them are computed.
        (2..CELLS).for_each(|cell| next[cell] = step(&heat, cell));
        for (neighbour, cell) in [left, right].into_iter().flatten() {
            let value =
                (endpoint.recv_from(neighbour, PATIENCE)?).ok_or("a neighbour is silent")?;
            heat[cell] = f64::from_le_bytes(value.body[..].try_into()?);
            endpoint.recycle(value);
        }
        next[1] = step(&heat, 1);
        next[CELLS] = step(&heat, CELLS);
        std::mem::swap(&mut heat, &mut next);
    }

    let factor = (1.0 - 4.0 * RATIO * (width / 2.0).sin().powi(2)).powi(steps);
    let errors = (1..=CELLS).map(|cell| (heat[cell] - factor * sine(cell)).abs());
    let mut worst = [errors.fold(0.0, f64::max)];
    let world = collectives.world();
    collectives.all_reduce(&mut endpoint, world, &mut worst, &Op::maximum())?;
    if worst[0] > ERROR_MAX {
        return Err(format!("the error is {:.1e}", worst[0]).into());
    }
    if me == 0 {
        let cells = CELLS * usize::from(nodes);
        println!("{cells} cells, {steps} steps: error {:.1e}", worst[0]);
    }
    endpoint.close(PATIENCE)?;
    Ok(())
}
