//! `tsumuji bench`: the measurements, one file each below.

mod away;
mod between;
pub(crate) mod compare;
mod cpu;
mod delay;
mod drop;
mod figures;
mod idle;
mod loss;
pub(crate) mod sizes;
mod solve;
pub(crate) mod streams;
mod sum32;
mod takeover;

pub(crate) use sizes::size;

use std::time::Duration;

use anyhow::{anyhow, bail, ensure};
use tsumuji_bench::ops::Op;
use tsumuji_bench::stop;
use tsumuji_bench::streams::Shape;
use tsumuji_testbed::Fraction;

use crate::interrupt::{Interrupt, Interrupted};
use crate::{DONE, Outcome};

/// Measure messages between processes or hosts, beside their peers, or print all figures the project promises.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  tsumuji bench pingpong --link shm --vs\n\nEach measurement has examples of its own: tsumuji bench MEASUREMENT --help."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
    /// This process is already where node 0 runs
    #[arg(long, hide = true)]
    inside: bool,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// One message at a time, each answered: half-round-trip times.
    #[command(
        after_help = "Examples:\n  tsumuji bench pingpong --link shm --size 8,1K,64K --vs\n  tsumuji bench pingpong --sizes 4..64M --link udp --testbed --vs mpich,openmpi,tcp --plot pingpong.svg\n  tsumuji bench pingpong --hosts lab.toml --link packet"
    )]
    Pingpong(compare::PairArgs),
    /// Messages one way as fast as they are taken: throughput.
    #[command(
        after_help = "Examples:\n  tsumuji bench burst --link udp --size 64,1500,64K,1M --json\n  tsumuji bench burst --sizes 4..64M --link packet --testbed --vs mpich,zeromq --csv burst.csv"
    )]
    Burst(compare::PairArgs),
    /// All nodes send to node 0, as fast as it receives.
    #[command(
        after_help = "Example:\n  tsumuji bench gather --nodes 8 --link udp --testbed --rate 100mbit --sizes 4..64K --vs mpich,openmpi"
    )]
    Gather(compare::GroupArgs),
    /// Node 0 sends each node a block of its own.
    #[command(
        after_help = "Example:\n  tsumuji bench scatter --nodes 4 --link shm --sizes 4..1M --vs mpich,openmpi"
    )]
    Scatter(compare::GroupArgs),
    /// Node 0 sends the same message to all nodes.
    #[command(
        after_help = "Example:\n  tsumuji bench bcast --nodes 5 --link packet --testbed --rate 100mbit --sizes 4..512K --vs mpich --plot bcast.svg"
    )]
    Bcast(compare::GroupArgs),
    /// All nodes get the sum of all nodes' numbers.
    #[command(
        after_help = "Example:\n  tsumuji bench allreduce --nodes 2 --link shm --sizes 8..4M --vs mpich,openmpi"
    )]
    Allreduce(compare::GroupArgs),
    /// Each node sends each other node a block of its own.
    #[command(
        after_help = "Example:\n  tsumuji bench alltoall --nodes 4 --link shm --sizes 4..64K --vs mpich,openmpi"
    )]
    Alltoall(compare::GroupArgs),
    /// A transfer and small messages under loss, beside TCP (in a testbed; root).
    #[command(after_help = "Example:\n  tsumuji bench loss --loss 1%,5% --link udp,packet,xdp")]
    Loss(loss::Args),
    /// No message for some seconds: the processor time of two processes that wait.
    #[command(after_help = "Example:\n  tsumuji bench idle --link udp")]
    Idle(idle::Args),
    /// A sender that computes nine tenths of the time: how late its messages beyond the window come, and what its progress assistant costs.
    #[command(
        after_help = "Examples:\n  tsumuji bench away --link udp\n  tsumuji bench away --link shm --laps 500 --json"
    )]
    Away(away::Args),
    /// Sums of 32 values a second: requests that an executor serves, beside TCP (L2RTC, figure 12).
    #[command(
        after_help = "Examples:\n  tsumuji bench sum32 --link dpdk:net_memif\n  tsumuji bench sum32 --link shm --loops 1,100 --executor rtc --outstanding 1\n  tsumuji bench sum32 --hosts /run/tsumuji/tsumuji.hosts.toml --link xdp --open"
    )]
    Sum32(sum32::Args),
    /// How much time a service may take before it cannot keep pace with a line, by executors (L2RTC, figure 10).
    #[command(
        after_help = "Examples:\n  tsumuji bench delay --link shm\n  tsumuji bench delay --link dpdk:net_memif --per frame --delay 0,200,400,600 --rate 1gbit\n  tsumuji bench delay --size 64 --executor rtc --count 100000000 --rounds 1 --rate 10gbit"
    )]
    Delay(delay::Args),
    /// Frames received and dropped a second over cores: the kernel's sockets, and links without engine (L2RTC, figure 5; in a testbed; root).
    #[command(
        after_help = "Examples:\n  tsumuji bench drop\n  tsumuji bench drop --link packet,xdp --cores 1,3 --size 46"
    )]
    Drop(drop::Args),
    /// Processor time of a receiver over the offered load: the kernel's sockets, and ours with and without sleep (L2RTC, figure 6).
    #[command(
        after_help = "Examples:\n  tsumuji bench cpu --link udp\n  tsumuji bench cpu --hosts /run/tsumuji/tsumuji.hosts.toml --link xdp --open --offered 1000,100000"
    )]
    Cpu(cpu::Args),
    /// `tsumuji solve` beside PETSc's GMRES and CG with several preconditioners, on the same files, reading and distributing included.
    #[command(
        after_help = "Examples:\n  tsumuji bench solve\n  tsumuji bench solve poisson2d:1000 A.mtx --rounds 5\n  tsumuji bench solve poisson2d:100 --testbed --loss 0,1% --slow 50% --rate 1gbit"
    )]
    Solve(solve::Args),
    /// A message each way, one after the other, over a stream of an unmodified program: kernel TCP, UNIX sockets, and through `tsumuji run`.
    #[command(
        after_help = "Examples:\n  tsumuji bench rr\n  tsumuji bench rr --size 1..64K --spin --plot rr.svg"
    )]
    Rr(streams::Args),
    /// A stream one way, over the same.
    #[command(
        after_help = "Examples:\n  tsumuji bench stream\n  tsumuji bench stream --size 64K --rounds 5 --json\n  tsumuji bench stream --path tcp,tcp-ns --congestion bbr"
    )]
    Stream(streams::Args),
    /// A connection for each message each way, over the same: what connecting and closing take.
    #[command(
        after_help = "Examples:\n  tsumuji bench crr\n  tsumuji bench crr --path tcp,shm,fallback --size 1,8K --rounds 5"
    )]
    Crr(streams::Args),
    /// Many clients and one server, over the same: requests, or streams one way.
    #[command(
        after_help = "Examples:\n  tsumuji bench manyclients\n  tsumuji bench manyclients --clients 1,16,64 --size 32,64K --path tcp,shm\n  tsumuji bench manyclients --shape stream --clients 64\n  tsumuji bench manyclients --server epoll --clients 64 --path tcp,shm"
    )]
    Manyclients(streams::ManyArgs),
    /// A solve in which one worker is killed, beside a solve that began without that worker.
    #[command(
        after_help = "Examples:\n  tsumuji bench takeover\n  tsumuji bench takeover --generate poisson2d:500 --method cg --link udp --rounds 3"
    )]
    Takeover(takeover::Args),
    /// The promised figures of messages, solvers, streams and programs beside limit or peer, in one run (many minutes; leave the machine alone).
    #[command(
        after_help = "Example:\n  tsumuji bench figures --output bench.json\n  tsumuji bench figures --part mpi,collectives,loss --rounds 3\n  tsumuji bench figures --part streams,programs"
    )]
    Figures(figures::Args),
}

/// The other side of a measurement.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// What it does, as JSON
    task: String,
}

/// `1.23M`, `45.6k`, `789`.
pub(crate) fn short(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{:.2}M", rate / 1e6),
        rate if rate >= 1e3 => format!("{:.1}k", rate / 1e3),
        rate => format!("{rate:.0}"),
    }
}

/// Time of one measurement.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=60.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("accepted are 0.01 to 60 seconds".to_owned()),
    }
}

fn check_losses(losses: &[Fraction]) -> anyhow::Result<()> {
    for Fraction(loss) in losses {
        ensure!(*loss <= 0.5, "--loss {loss}: at most 50 % are measured");
    }
    Ok(())
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Outcome {
    let inside = args.inside;
    interruptible(|| match args.what {
        What::Pingpong(what) => compare::run_pair(Op::Pingpong, &what, inside),
        What::Burst(what) => compare::run_pair(Op::Burst, &what, inside),
        What::Gather(what) => compare::run_group(Op::Gather, &what, inside),
        What::Scatter(what) => compare::run_group(Op::Scatter, &what, inside),
        What::Bcast(what) => compare::run_group(Op::Bcast, &what, inside),
        What::Allreduce(what) => compare::run_group(Op::Allreduce, &what, inside),
        What::Alltoall(what) => compare::run_group(Op::Alltoall, &what, inside),
        What::Loss(what) => loss::run(&what),
        What::Idle(what) => idle::run(&what, inside),
        What::Away(what) => away::run(&what, inside),
        What::Sum32(what) => sum32::run(&what, inside),
        What::Delay(what) => delay::run(&what, inside),
        What::Drop(what) => drop::run(&what),
        What::Cpu(what) => cpu::run(&what, inside),
        What::Solve(what) => solve::run(&what),
        What::Rr(what) => streams::single(Shape::Requests, &what),
        What::Stream(what) => streams::single(Shape::OneWay, &what),
        What::Crr(what) => streams::single(Shape::Connections, &what),
        What::Manyclients(what) => streams::many(&what),
        What::Takeover(what) => takeover::run(&what),
        What::Figures(args) => figures::run(&args),
    })
}

/// Runs a measurement so that Ctrl-C ends it cleanly: other processes are ended, testbeds and temporary files removed.
pub(crate) fn interruptible(measure: impl FnOnce() -> Outcome) -> Outcome {
    Interrupt::listen_for(&stop::flag())?;
    let outcome = measure();
    if stop::is_wanted() {
        bail!(Interrupted);
    }
    outcome
}

/// Runs the other side of a measurement.
pub(crate) fn serve(args: ServeArgs) -> Outcome {
    match tsumuji_bench::serve::serve(&args.task) {
        Ok(()) => Ok(DONE),
        Err(error) => {
            tsumuji_node::report_error(&error.to_string());
            Err(anyhow!(error))
        }
    }
}
