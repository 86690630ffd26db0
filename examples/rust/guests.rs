//! Guests: members that join a running program and leave it. Each node greets everyone whom it meets.
//!
//! ```sh
//! cargo build -p tsumuji-examples
//! tsumuji launch -n 2 --admit -- target/debug/guests 60     # prints where others join, for example shm:4711
//! tsumuji join --to shm:4711 -- target/debug/guests 10      # meanwhile, in another terminal
//! ```
//!
//! The argument is how many seconds a node stays. It prints who comes and goes: `node 2 (pc1 4711) is here; we are 3`, `node 2: "hello from node 2"`,
//! `node 2 is gone`.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tsumuji_node::{Channel, NodeId, Options, SendError, endpoint_from_env, report_error};

const CHANNEL: Channel = Channel::ordered(0);
/// Between two checks of who is there.
const CHECK_EVERY: Duration = Duration::from_millis(20);

fn main() -> ExitCode {
    let Err(error) = run() else {
        return ExitCode::SUCCESS;
    };
    report_error(&*error); // the launcher prints it, too
    eprintln!("guests: {error}");
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(10), |it| it.parse())?;
    let mut endpoint = endpoint_from_env(Options::default())?;
    let me = endpoint.me();
    let mut here = BTreeSet::from([me]);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        endpoint.update_members();
        let others: Vec<NodeId> = endpoint.members().iter().map(|member| member.id).collect();
        for id in others.into_iter().filter(|id| *id != me) {
            if endpoint.is_up(id) && here.insert(id) {
                println!(
                    "{id} ({}) is here; we are {}",
                    endpoint.name_of(id),
                    here.len()
                );
                match endpoint.send(id, CHANNEL, format!("hello from {me}").as_bytes()) {
                    // It may leave at any moment.
                    Ok(()) | Err(SendError::PeerDead { .. } | SendError::MessagesLost { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            } else if endpoint.is_dead(id) && here.remove(&id) {
                println!("{id} is gone");
            }
        }
        if let Some(message) = endpoint.recv(CHECK_EVERY)? {
            let text = String::from_utf8_lossy(&message.body);
            println!("{}: {text:?}", message.from);
        }
    }
    Ok(()) // dropping the endpoint tells the others
}
