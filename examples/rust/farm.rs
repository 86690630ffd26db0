//! Master and workers: node 0 hands out tasks, whoever has done one gets the next. Fast workers do more, and none waits for another.
//!
//! ```sh
//! cargo build -p tsumuji-examples
//! tsumuji launch -n 4 -- target/debug/farm 1000000
//! ```
//!
//! The workers count primes below the argument. Node 0 prints `78498 primes below 1000000, by 3 workers`, and how many tasks each did.

use std::process::ExitCode;
use std::time::Duration;

use tsumuji_node::{Channel, Endpoint, NodeId, Options, endpoint_from_env, report_error};

type Failure = Box<dyn std::error::Error>;

const PATIENCE: Duration = Duration::from_secs(30);
const CHANNEL: Channel = Channel::ordered(0);
const MASTER: NodeId = NodeId(0);
/// Numbers that a task looks at: milliseconds of work, so that the message costs nothing beside it.
const TASK_NUMBERS: u64 = 10_000;
/// Tasks that a worker has at a time: the next one is there when one is done.
const AHEAD: usize = 2;

fn main() -> ExitCode {
    let Err(error) = run() else {
        return ExitCode::SUCCESS;
    };
    report_error(&*error); // the launcher prints it, too
    eprintln!("farm: {error}");
    ExitCode::FAILURE
}

fn run() -> Result<(), Failure> {
    let end = std::env::args()
        .nth(1)
        .map_or(Ok(1_000_000), |it| it.parse())?;
    let mut endpoint = endpoint_from_env(Options::default())?;
    if endpoint.me() == MASTER {
        master(&mut endpoint, end)?;
    } else {
        work(&mut endpoint, end)?;
    }
    endpoint.close(PATIENCE)?;
    Ok(())
}

fn master(endpoint: &mut Endpoint, end: u64) -> Result<(), Failure> {
    let workers: Vec<NodeId> = (1..endpoint.members().len() as u16).map(NodeId).collect();
    if workers.is_empty() {
        return Err("a farm needs two nodes or more".into());
    }
    let mut tasks = (0..end).step_by(TASK_NUMBERS as usize);
    let mut open = 0;
    let mut batch = endpoint.batch();
    for task in tasks.by_ref().take(AHEAD * workers.len()) {
        batch.send(workers[open % workers.len()], CHANNEL, &task.to_le_bytes())?;
        open += 1;
    }
    drop(batch);
    let mut done = vec![0; workers.len()];
    let mut primes = 0;
    while open > 0 {
        let result = endpoint.recv(PATIENCE)?.ok_or("no worker answers")?;
        primes += u64::from_le_bytes(result.body[..].try_into()?);
        done[usize::from(result.from.0) - 1] += 1;
        match tasks.next() {
            Some(task) => endpoint.send(result.from, CHANNEL, &task.to_le_bytes())?,
            None => open -= 1,
        }
        endpoint.recycle(result);
    }
    for worker in &workers {
        endpoint.send(*worker, CHANNEL, b"")?; // an empty task is the last
    }
    println!("{primes} primes below {end}, by {} workers", workers.len());
    println!("tasks by worker: {done:?}");
    Ok(())
}

fn work(endpoint: &mut Endpoint, end: u64) -> Result<(), Failure> {
    loop {
        let task = endpoint.recv(PATIENCE)?.ok_or("the master is silent")?;
        if task.body.is_empty() {
            return Ok(());
        }
        let start = u64::from_le_bytes(task.body[..].try_into()?);
        let numbers = start..end.min(start + TASK_NUMBERS);
        let count = numbers.filter(|number| is_prime(*number)).count() as u64;
        endpoint.send(MASTER, CHANNEL, &count.to_le_bytes())?;
        endpoint.recycle(task);
    }
}

fn is_prime(number: u64) -> bool {
    let mut divisors = (2..).take_while(|divisor| divisor * divisor <= number);
    number > 1 && divisors.all(|divisor| !number.is_multiple_of(divisor))
}
