//! Shared vector: every node owns some elements of a board, writes them again and again, and reads those of the others as they are, without
//! waiting. Copies may be behind; in the end each node waits for the last values of all.
//!
//! ```sh
//! cargo build -p tsumuji-examples
//! tsumuji launch -n 3 -- target/debug/board 200
//! ```
//!
//! The argument is how often each node writes. A node prints, for example, `node 1: 300 elements of lap 200; at most 4 laps behind before`.

use std::process::ExitCode;
use std::time::Duration;

use tsumuji_board::{Board, Elements, Feeding, Lap, wait_fresh};
use tsumuji_collective::Collectives;
use tsumuji_node::{Context, Delivery, Handler, NodeId, Options, endpoint_from_env, report_error};

const PATIENCE: Duration = Duration::from_secs(30);
/// After so long without what was waited for, own values are sent again: an update is best effort, and may be lost.
const REPAIR_AFTER: Duration = Duration::from_millis(2);
const CHANNEL: u16 = 1;
/// Of each node.
const ELEMENTS: usize = 100;

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
    eprintln!("board: {error}");
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let laps: u32 = std::env::args().nth(1).map_or(Ok(200), |it| it.parse())?;
    let last = Lap::new(laps).ok_or("write at least once")?;
    let mut endpoint = endpoint_from_env(Options::default())?;
    let mut collectives = Collectives::new(&mut endpoint)?;
    let (me, nodes) = (endpoint.me(), endpoint.members().len());
    let others = (0..nodes as u16).map(NodeId).filter(|node| *node != me);
    let owned = (0..nodes).map(|node| node * ELEMENTS..(node + 1) * ELEMENTS);
    let (board, rest) = (
        &mut Board::new(CHANNEL, me, owned.collect())?,
        &mut NoMessages,
    );
    let per_frame = Elements::Fixed(ELEMENTS);
    board.set_elements(per_frame, endpoint.datagram_capacity_bytes());
    endpoint.wait_up(PATIENCE)?;

    // Write, take what has come, read; nothing here waits.
    let (mut lap, mut behind_max) = (Lap::FIRST, 0);
    while !lap.is_newer_than(last) {
        let values = [f64::from(lap.get()); ELEMENTS];
        board.publish(&mut endpoint, board.own(), &values, lap)?;
        endpoint.poll(&mut Feeding { board, rest })?;
        for other in others.clone() {
            let behind = board.lap(other).map_or(lap.get(), |it| lap.since(it));
            behind_max = behind_max.max(behind);
        }
        lap = lap.next();
    }

    // Until every copy here is of the last lap, and everybody says the same. A node that waits repairs what others may miss.
    for other in others {
        while !wait_fresh(board, &mut endpoint, rest, other, last, REPAIR_AFTER)? {
            board.repair(&mut endpoint)?;
        }
    }
    let all_are_fresh = collectives.start_barrier(&mut endpoint, collectives.world())?;
    while !collectives.test(&mut endpoint, &all_are_fresh)? {
        board.repair(&mut endpoint)?;
        endpoint.poll_wait(&mut Feeding { board, rest }, REPAIR_AFTER)?;
    }
    collectives.wait(&mut endpoint, all_are_fresh)?;
    let fresh = (0..board.len()).filter(|index| board.get(*index) == f64::from(laps));
    let fresh = fresh.count();
    println!("{me}: {fresh} elements of lap {laps}; at most {behind_max} laps behind before");
    endpoint.close(PATIENCE)?;
    Ok(())
}
