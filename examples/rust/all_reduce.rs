//! All-reduce: every node adds its part of an integral, and all get the sum, to the last bit the same. A second reduction is under way while
//! the nodes compute.
//!
//! ```sh
//! cargo build -p tsumuji-examples
//! tsumuji launch -n 4 -- target/debug/all_reduce 1000000
//! ```
//!
//! The argument is how many rectangles approximate the area under 4 / (1 + x²), which is π. Every node prints a line such as
//! `node 2: pi is 3.141592653590, fewest rectangles 250000, most 250000`.

use std::process::ExitCode;
use std::time::Duration;

use tsumuji_collective::{Collectives, Op};
use tsumuji_node::{Options, endpoint_from_env, report_error};

const PATIENCE: Duration = Duration::from_secs(30);
/// A node looks after the reduction under way so often while it computes.
const RECTANGLES_BETWEEN: usize = 10_000;

fn main() -> ExitCode {
    let Err(error) = run() else {
        return ExitCode::SUCCESS;
    };
    report_error(&*error); // the launcher prints it, too
    eprintln!("all_reduce: {error}");
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let rectangles: usize = std::env::args()
        .nth(1)
        .map_or(Ok(1_000_000), |it| it.parse())?;
    let mut endpoint = endpoint_from_env(Options::default())?;
    let mut collectives = Collectives::new(&mut endpoint)?;
    let world = collectives.world();
    let (me, nodes) = (endpoint.me(), endpoint.members().len());

    let mine: Vec<usize> = (usize::from(me.0)..rectangles).step_by(nodes).collect();
    // The most, and by the minus the fewest, in one reduction. It takes the memory, and `wait` gives it back.
    let extremes = vec![mine.len() as i64, -(mine.len() as i64)];
    let request =
        collectives.start_all_reduce(&mut endpoint, world, extremes, &Op::<i64>::maximum())?;

    let width = 1.0 / rectangles as f64;
    let mut sum = [0.0];
    for some in mine.chunks(RECTANGLES_BETWEEN) {
        for rectangle in some {
            let x = (*rectangle as f64 + 0.5) * width;
            sum[0] += width * 4.0 / (1.0 + x * x);
        }
        collectives.progress(&mut endpoint)?; // carries on what is under way, and never waits
    }

    let extremes = collectives.wait(&mut endpoint, request)?;
    collectives.all_reduce(&mut endpoint, world, &mut sum, &Op::sum())?;
    let [most, fewest] = [extremes[0], -extremes[1]];
    println!(
        "{me}: pi is {:.12}, fewest rectangles {fewest}, most {most}",
        sum[0]
    );
    endpoint.close(PATIENCE)?;
    Ok(())
}
