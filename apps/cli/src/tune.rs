//! `tsumuji tune`: measures the algorithms of collective operations, and writes the table by which programs choose.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use tsumuji_collective::Table;
use tsumuji_collective::tune::{self, Measurement, Wishes};
use tsumuji_node::{
    AnyLink, Endpoint, LaunchSpec, Launcher, LinkSpec, Options, Printing, endpoint_from_env,
    report_error,
};

use crate::interrupt::Interrupt;
use crate::meeting::meet;
use crate::output::{self, PendingFile};
use crate::{DONE, Outcome, hosts};

/// Grace time of members when the measurement is over, and again once they are told to end.
const GRACE: Duration = Duration::from_secs(2);
/// How long the last acknowledgements may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// Measure the algorithms of broadcast, reduce, all-reduce and all-gather, and make a table of the fastest.
///
/// Programs load it where TSUMUJI_TUNE names the file, on all nodes alike. Without it a table built in is used.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tsumuji tune -n 4 --link shm --output tune.toml\n  tsumuji tune --hosts lab.toml --link packet --output tune.toml\n  TSUMUJI_TUNE=$PWD/tune.toml tsumuji launch -n 4 -- ./program"
)]
pub(crate) struct Args {
    /// How many processes; groups of 2, 4, 8 … of them are measured, too
    #[arg(
        short = 'n',
        long = "nodes",
        value_name = "N",
        required_unless_present = "hosts",
        conflicts_with = "hosts",
        value_parser = clap::value_parser!(u16).range(2..=1024)
    )]
    nodes: Option<u16>,
    /// Several hosts, one process on each node of this file
    #[arg(long, value_name = "FILE", group = hosts::WITH_HOSTS)]
    hosts: Option<PathBuf>,
    #[command(flatten)]
    slots: hosts::Slots,
    /// Path of tsumuji on the other hosts [default: the same path as here]
    #[arg(long = "program", value_name = "PATH", requires = "hosts")]
    program_path: Option<PathBuf>,
    /// The link: shm (default) or udp; with --hosts udp, packet or xdp [default there: the file's]
    #[arg(long, value_name = "LINK")]
    link: Option<LinkSpec>,
    /// Longest message; K, M and G are powers of 1024
    #[arg(long, value_name = "BYTES", default_value = "4M", value_parser = longest)]
    max_bytes: u64,
    /// Time for each algorithm and length, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    time: u64,
    /// Write the table here instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the table and all measurements as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    security: crate::security::Flags,
    /// This process is the one behind node 0's command
    #[arg(long = "inside", hide = true)]
    inside: bool,
}

/// What `tune` starts. Not for people.
#[derive(Debug, clap::Args)]
pub(crate) struct MemberArgs {
    max_bytes: u64,
    time: u64,
}

fn longest(text: &str) -> Result<u64, String> {
    let bytes = crate::bench::size(text)? as u64;
    if (4..=1 << 30).contains(&bytes) {
        Ok(bytes)
    } else {
        Err("accepted are 4 bytes to 1G".to_owned())
    }
}

fn wishes(bytes_max: u64, time: u64) -> Wishes {
    Wishes {
        bytes_max,
        time: Duration::from_millis(time),
    }
}

fn measure(
    mut endpoint: Endpoint<AnyLink>,
    wishes: &Wishes,
    progress: impl FnMut(&Measurement),
) -> anyhow::Result<(Table, Vec<Measurement>)> {
    let result = tune::tune(&mut endpoint, wishes, progress)?;
    let _ = endpoint.close(FAREWELL);
    Ok(result)
}

/// One member.
pub(crate) fn member(args: MemberArgs) -> Outcome {
    let endpoint = match endpoint_from_env(Options::default()) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            report_error(&error);
            return Err(error.into());
        }
    };
    measure(endpoint, &wishes(args.max_bytes, args.time), |_| {})?;
    Ok(DONE)
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Outcome {
    let mut file_of_hosts = None;
    if let Some(path) = &args.hosts {
        let file = file_of_hosts.insert(hosts::read(path, args.link.as_ref(), args.slots)?);
        ensure!(
            file.hosts().len() > 1,
            "{}: one node has nothing to tune; name two at least",
            path.display()
        );
        if !args.inside {
            hosts::enter_node_0(file, path)?;
        }
    }
    let pending = args
        .output
        .as_deref()
        .map(PendingFile::create)
        .transpose()?;
    let (max_bytes, time) = (args.max_bytes, args.time);
    let own = hosts::program(args.program_path.as_ref())?;
    let command = [
        own.clone(),
        "tune-member".to_owned(),
        max_bytes.to_string(),
        time.to_string(),
    ];
    let mut spec = LaunchSpec::new(usize::from(args.nodes.unwrap_or(1)) - 1, command);
    spec.link = args.link.unwrap_or(LinkSpec::Shm);
    if let Some(file) = &file_of_hosts {
        spec.nodes = file.hosts().len() - 1;
        spec.hosts = Some(hosts::of(file, own));
        spec.join_timeout = hosts::ANSWER_WITHIN;
    }
    spec.with_self = true;
    (spec.stdout, spec.stdout_to_stderr) = (Printing::Tagged, true);
    let security = args
        .security
        .stated(args.link.as_ref(), file_of_hosts.as_ref())?;
    spec.env.extend(security.env());
    let options = Options {
        security,
        ..Options::default()
    };
    let mut launcher = Launcher::start(spec)?;
    let mut endpoint = launcher.endpoint(options, None, None)?;
    meet(&mut endpoint, &mut || launcher.check().is_some())?;
    let (link, nodes) = (endpoint.link_name(), endpoint.members().len());
    let measured = measure(endpoint, &wishes(max_bytes, time), |one| {
        let name = serde_json::to_value(one.operation).unwrap_or_default();
        eprintln!(
            "{:11} {:4} nodes {:10} B  {:9} {:12.2} µs",
            name.as_str().unwrap_or_default(),
            one.nodes,
            one.bytes,
            one.algorithm.to_string(),
            one.seconds * 1e6
        );
    });
    if measured.is_ok() {
        launcher.wait_all(GRACE); // they close their sessions, as we did
    }
    launcher.shutdown(GRACE);
    let (table, measurements) = measured.context("the measurement")?;
    for exit in launcher.exits().iter().filter(|exit| !exit.success()) {
        eprintln!("did not end well: {exit}");
    }
    let text = table.to_toml();
    if let Some(pending) = pending {
        let _interrupt = Interrupt::listen()?; // so that none comes between
        pending.finish(|file| file.write_all(text.as_bytes()))?;
    } else if !args.json {
        output::print_text(&text);
    }
    if args.json {
        output::print_json(&json!({
            "link": link,
            "nodes": nodes,
            "table": table,
            "measurements": measurements,
        }));
    }
    Ok(DONE)
}
