//! `tsumuji bench figures`: every figure with a target, compared with its limit or peer.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use tsumuji_bench::compare::Listener;
use tsumuji_bench::figures::{self, Part, Setting};
use tsumuji_bench::stop;

use crate::interrupt::Interrupted;
use crate::named::named;
use crate::talk::Talk;
use crate::{DONE, NOT_REACHED, Outcome, output};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only these parts; several by commas
    #[arg(
        long,
        value_name = "PART",
        value_delimiter = ',',
        default_value = "pingpong,burst,dense,ethernet,mpi,memory,collectives,loss,sealing,streams,programs,tuned",
        value_parser = named(PARTS)
    )]
    part: Vec<Part>,
    /// Times that each comparison is repeated in turn
    #[arg(long, value_name = "R", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Rows of the dense system
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(10..=100_000))]
    n: u64,
    /// Small sizes and few rounds: checks the benchmark, gives no figures worth quoting
    #[arg(long)]
    smoke: bool,
    /// Write everything as JSON to this file, too
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print one JSON object; the table goes to standard error
    #[arg(long)]
    json: bool,
}

const PARTS: [(&str, Part); 12] = [
    ("pingpong", Part::Pingpong),
    ("burst", Part::Burst),
    ("dense", Part::Dense),
    ("ethernet", Part::Ethernet),
    ("mpi", Part::Mpi),
    ("memory", Part::Memory),
    ("collectives", Part::Collectives),
    ("loss", Part::Loss),
    ("sealing", Part::Sealing),
    ("streams", Part::Streams),
    ("programs", Part::Programs),
    ("tuned", Part::Tuned),
];

/// Runs the command.
pub(super) fn run(args: &Args) -> Outcome {
    let pending = args
        .output
        .as_deref()
        .map(output::PendingFile::create)
        .transpose()?;
    let mut setting = Setting {
        program: std::env::current_exe().context("this program's own file")?,
        rounds: args.rounds as usize,
        n: args.n as usize,
        burst_bytes_max: 64 << 20,
        round_trips: 100_000,
        parts: args.part.clone(),
    };
    if args.smoke {
        setting = Setting {
            rounds: 1,
            n: 200,
            burst_bytes_max: 64 << 10,
            round_trips: 500,
            ..setting
        };
    }
    let mut talk = Talk::new(args.json);
    let report = figures::run(&setting, &mut |line| talk.say(line));
    anyhow::ensure!(!stop::is_wanted(), Interrupted);
    let value = serde_json::to_value(&report)?;
    if let Some(pending) = pending {
        pending.finish(|out| Ok(serde_json::to_writer_pretty(out, &value)?))?;
    }
    talk.end(&value)?;
    Ok(if report.missed() == 0 {
        DONE
    } else {
        ExitCode::from(NOT_REACHED)
    })
}
