//! A policy of one's own: node 0 gives one sender three quarters of what it can take, and shows how much comes from each.
//!
//! ```sh
//! cargo build -p tsumuji-examples
//! tsumuji launch -n 4 --link udp -- target/debug/favour 1
//! ```
//!
//! The argument is the favoured node. Node 0 prints a line for each sender, such as `node 1: 412.70 MB/s, 71.2 % of all`. How near
//! the favoured one comes to its share depends on what limits: over shared memory, or where processes wait for a core, windows seldom do.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use tsumuji_node::{
    Channel, Context, Delivery, FlowPolicy, Handler, NodeId, Options, Room, SendError, Sender,
    endpoint_from_env, report_error,
};

/// How long all send.
const SPAN: Duration = Duration::from_secs(2);
const MESSAGE_BYTES: usize = 64 << 10;

/// One peer gets three quarters of the window while it wants to send, the others share the rest as they always would.
#[derive(Debug)]
struct Favour(NodeId);

impl FlowPolicy for Favour {
    fn window_frames(&mut self, room: &Room, sender: &Sender) -> u64 {
        if sender.peer == self.0 {
            room.pool_frames * 3 / 4
        } else {
            (sender.usual_frames / 4).max(1)
        }
    }

    /// Where memory is scarce, it also goes first.
    fn memory_rank(&mut self, _: &Room, sender: &Sender) -> u64 {
        if sender.peer == self.0 {
            0
        } else {
            1 + sender.memory_bytes as u64
        }
    }
}

/// Bytes by sender.
struct Tally(Vec<u64>);

impl Handler for Tally {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        let Delivery { from, body, .. } = delivery;
        self.0[usize::from(from.0)] += body.bytes().len() as u64;
    }
}

fn main() -> ExitCode {
    let Err(error) = run() else {
        return ExitCode::SUCCESS;
    };
    report_error(&*error); // the launcher prints it, too
    eprintln!("favour: {error}");
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let favoured = std::env::args().nth(1).map_or(Ok(1), |text| text.parse())?;
    let mut endpoint = endpoint_from_env(Options::default())?;
    let receiver = NodeId(0);
    if endpoint.me() != receiver {
        let body = vec![0; MESSAGE_BYTES];
        loop {
            match endpoint.send(receiver, Channel::ordered(0), &body) {
                Ok(()) => {}
                // The receiver has seen enough, and has left.
                Err(SendError::PeerDead { .. } | SendError::MessagesLost { .. }) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
    endpoint.set_policy(Some(Box::new(Favour(NodeId(favoured)))));
    endpoint.wait_up(Duration::from_secs(30))?;
    let mut tally = Tally(vec![0; endpoint.members().len()]);
    let start = Instant::now();
    while start.elapsed() < SPAN {
        endpoint.poll_wait(&mut tally, Duration::from_millis(10))?;
    }
    let all: u64 = tally.0.iter().sum();
    for (node, bytes) in tally.0.iter().enumerate().skip(1) {
        println!(
            "node {node}: {:6.2} MB/s, {:4.1} % of all",
            *bytes as f64 / SPAN.as_secs_f64() / 1e6,
            *bytes as f64 * 100.0 / all.max(1) as f64
        );
    }
    Ok(())
}
