//! Sends short messages between two endpoints over shared memory and nothing else, to be run under an instruction counter: from `send` to
//! the handler, links and all.
//!
//! `cargo run --release -p tsumuji-node --example short_messages -- 1000`: so many there and so many back, in turn, in one thread.
//! Under `valgrind --tool=callgrind` the functions below `send` and `poll` say what a message costs; what the clock's calibration takes at
//! the start differs from run to run.

use std::time::Duration;

use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_node::{
    Channel, Context, Delivery, Endpoint, Handler, Membership, NodeId, Options, ProgressBy,
};

const CHANNEL: Channel = Channel::ordered(0);

#[derive(Default)]
struct Counter(u64);

impl Handler for Counter {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        self.0 += 1;
        std::hint::black_box(delivery.body.bytes());
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let round_trips = std::env::args().nth(1).map_or(Ok(1000), |it| it.parse())?;
    let job = ShmJob::create(2, ShmConfig::for_nodes(2))?;
    let open = |me: u16| -> Result<_, Box<dyn std::error::Error>> {
        let options = Options {
            progress: ProgressBy::Program,
            ..Options::default()
        };
        let membership = Membership::local(NodeId(me), 2);
        Ok(Endpoint::new(Shm::attach(&job, me)?, membership, options)?)
    };
    let (mut one, mut other) = (open(0)?, open(1)?);
    while !(one.is_up(NodeId(1)) && other.is_up(NodeId(0))) {
        one.progress()?;
        other.progress()?;
    }
    // Who takes direct messages is told now.
    for _ in 0..100 {
        one.progress()?;
        other.progress()?;
    }
    let mut taken = Counter::default();
    let message = [7; 8];
    for number in 0..round_trips {
        one.send(NodeId(1), CHANNEL, &message)?;
        while taken.0 == 2 * number {
            other.poll(&mut taken)?;
        }
        other.send(NodeId(0), CHANNEL, &message)?;
        while taken.0 == 2 * number + 1 {
            one.poll(&mut taken)?;
        }
    }
    let direct = one.counters().engine.direct_messages;
    println!("{round_trips} round trips, {direct} messages sent directly");
    let _ = one.close(Duration::ZERO);
    let _ = other.close(Duration::ZERO);
    Ok(())
}
