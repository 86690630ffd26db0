//! Flow control in the program's hands: bulk blocks go to node 0, which does not take them yet. The senders see that, ask when they may go
//! on, and an urgent message overtakes what waits.
//!
//! ```sh
//! cargo build -p tsumuji-examples
//! tsumuji launch -n 3 --link udp -- target/debug/flow 1000
//! ```
//!
//! The argument is how many blocks each sender has. A sender prints when it may not send, and what its flow shows then; node 0 prints who
//! was urgent, and in the end `2000 blocks of 2 senders`.

use std::process::ExitCode;
use std::time::Duration;

use tsumuji_node::{
    Channel, ChannelOptions, DeliveryClass, Endpoint, NodeId, Options, Priority, SendError,
    endpoint_from_env, report_error,
};

type Failure = Box<dyn std::error::Error>;

const PATIENCE: Duration = Duration::from_secs(30);
const RECEIVER: NodeId = NodeId(0);
const BULK: u16 = 1;
const BULK_CHANNEL: Channel = Channel::new(DeliveryClass::Ordered, Priority::BULK, BULK);
const URGENT_CHANNEL: Channel = Channel::new(DeliveryClass::Ordered, Priority::URGENT, 0);
const BLOCK_BYTES: usize = 16 << 10;
/// What may wait at the receiver; when half of it does, senders are told to stop.
const BUDGET_BYTES: usize = 1 << 20;
/// Frames that all senders together may have on the way.
const WINDOW_FRAMES: usize = 64;

fn main() -> ExitCode {
    let Err(error) = run() else {
        return ExitCode::SUCCESS;
    };
    report_error(&*error); // the launcher prints it, too
    eprintln!("flow: {error}");
    ExitCode::FAILURE
}

fn run() -> Result<(), Failure> {
    let blocks = std::env::args().nth(1).map_or(Ok(1000), |it| it.parse())?;
    let mut endpoint = endpoint_from_env(Options::default())?;
    match endpoint.me() {
        RECEIVER => receive(&mut endpoint, blocks)?,
        me => send(&mut endpoint, me, blocks)?,
    }
    endpoint.close(PATIENCE)?;
    Ok(())
}

fn send(endpoint: &mut Endpoint, me: NodeId, blocks: usize) -> Result<(), Failure> {
    let (block, mut stops) = (vec![7; BLOCK_BYTES], 0);
    for sent in 0..blocks {
        loop {
            match endpoint.try_send(RECEIVER, BULK_CHANNEL, &block) {
                Ok(()) => break,
                Err(SendError::WouldBlock { .. }) => stops += 1,
                Err(error) => return Err(error.into()),
            }
            if stops == 1 {
                let flow = endpoint.flow(RECEIVER).ok_or("no such peer")?;
                let (queued, credit) = (flow.queued_messages, flow.credit_frames);
                println!("{me}: block {sent} waits; {queued} queued, credit for {credit} frames");
                endpoint.send(RECEIVER, URGENT_CHANNEL, b"please take them")?;
            }
            // A program with something to compute would do that here.
            if !endpoint.wait_writable(RECEIVER, BULK, BLOCK_BYTES, PATIENCE)? {
                return Err("the receiver takes nothing".into());
            }
        }
    }
    Ok(())
}

fn receive(endpoint: &mut Endpoint, blocks: usize) -> Result<(), Failure> {
    let senders = endpoint.members().len() - 1;
    endpoint.open(BULK, ChannelOptions::default())?;
    endpoint.set_channel_budget(BULK, BUDGET_BYTES)?;
    endpoint.set_window(WINDOW_FRAMES);
    for _ in 0..senders {
        let urgent = endpoint.recv(PATIENCE)?.ok_or("no sender had to wait")?;
        println!("{} is in a hurry", urgent.from);
    }
    let waits = endpoint.channel(BULK).ok_or("the channel is open")?;
    println!("{} blocks wait here", waits.messages);
    for _ in 0..senders * blocks {
        let block = (endpoint.recv_on(BULK, None, PATIENCE)?).ok_or("a block is missing")?;
        endpoint.recycle(block);
    }
    println!("{} blocks of {senders} senders", senders * blocks);
    Ok(())
}
