//! An iteration of one's own on the board: Jacobi's method without steps in common. Each node relaxes its rows of a linear system with whatever
//! values of the others have come, and tells its own. From time to time all gather, and judge the answer by the data.
//!
//! ```sh
//! cargo build -p tsumuji-examples
//! tsumuji launch -n 4 -- target/debug/jacobi 1e-10
//! ```
//!
//! The argument is the residual to reach. Node 0 prints, for example, `400 rows: residual 6.9e-11, error 3.4e-11, after 40 laps`. With `--loss 0.2`
//! it takes more laps, and ends all the same.

use std::process::ExitCode;
use std::time::Duration;

use tsumuji_board::{Board, Elements, Feeding, Lap};
use tsumuji_collective::Collectives;
use tsumuji_node::{Context, Delivery, Handler, Options, endpoint_from_env, report_error};

const PATIENCE: Duration = Duration::from_secs(30);
const CHANNEL: u16 = 1;
/// Of each node.
const ROWS: usize = 100;
/// Laps between two judgements: enough that these cost little.
const LAPS: usize = 20;
/// A residual that is not reached by then never will be.
const JUDGEMENTS_MAX: usize = 500;
/// On the diagonal; both neighbours have -1. Above 2 every order of relaxations converges.
const DIAGONAL: f64 = 4.0;

/// Takes messages that are not the board's: here there are none.
struct NoMessages;

impl Handler for NoMessages {
    fn message(&mut self, _: &mut Context<'_>, _: Delivery<'_>) {}
}

fn main() -> ExitCode {
    let Err(error) = run() else {
        return ExitCode::SUCCESS;
    };
    report_error(&*error); // the launcher prints it, too
    eprintln!("jacobi: {error}");
    ExitCode::FAILURE
}

/// What row `row` lacks, b - Ax. b is such that the answer is 1 everywhere: A times ones.
fn residual(row: usize, rows: usize, x: impl Fn(usize) -> f64) -> f64 {
    let neighbours = [row.checked_sub(1), Some(row + 1).filter(|it| *it < rows)];
    let own = DIAGONAL * (1.0 - x(row));
    (neighbours.into_iter().flatten()).fold(own, |sum, other| sum + x(other) - 1.0)
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let wanted: f64 = std::env::args().nth(1).map_or(Ok(1e-10), |it| it.parse())?;
    let mut endpoint = endpoint_from_env(Options::default())?;
    let mut collectives = Collectives::new(&mut endpoint)?;
    let (me, nodes) = (endpoint.me(), endpoint.members().len());
    let rows = nodes * ROWS;
    let owned = (0..nodes).map(|node| node * ROWS..(node + 1) * ROWS);
    let (board, rest) = (
        &mut Board::new(CHANNEL, me, owned.collect())?,
        &mut NoMessages,
    );
    board.set_elements(Elements::Fixed(ROWS), endpoint.datagram_capacity_bytes());
    let (own, world, mut lap) = (board.own(), collectives.world(), Lap::FIRST);
    let (mut mine, mut all) = (vec![0.0; ROWS], vec![0.0; rows]);

    for judgement in 1..=JUDGEMENTS_MAX {
        for _ in 0..LAPS {
            endpoint.poll(&mut Feeding { board, rest })?; // what has come; it never waits
            for (row, value) in own.clone().zip(&mut mine) {
                *value += residual(row, rows, |index| board.get(index)) / DIAGONAL;
            }
            board.publish(&mut endpoint, own.clone(), &mine, lap)?;
            lap = lap.next();
        }
        // Copies may be behind and prove nothing: what each node has itself travels reliably, and all judge alike.
        collectives.all_gather(&mut endpoint, world, &mine, &mut all)?;
        let residuals = (0..rows).map(|row| residual(row, rows, |index| all[index]).abs());
        let residual = residuals.fold(0.0, f64::max);
        if residual <= wanted {
            let error = all.iter().map(|x| (x - 1.0).abs()).fold(0.0, f64::max);
            let laps = judgement * LAPS;
            if me.0 == 0 {
                println!(
                    "{rows} rows: residual {residual:.1e}, error {error:.1e}, after {laps} laps"
                );
            }
            endpoint.close(PATIENCE)?;
            return Ok(());
        }
    }
    let laps = JUDGEMENTS_MAX * LAPS;
    Err(format!("no residual of {wanted:e} after {laps} laps").into())
}
