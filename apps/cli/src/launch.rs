//! `tsumuji launch`: runs a user's own program several times, each with an endpoint reachable by the environment.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use serde_json::json;
use std::os::unix::process::ExitStatusExt;
use tsumuji_node::bootstrap::{ENV_LINK, ENV_NODE, ENV_NODES, ENV_RENDEZVOUS};
use tsumuji_node::{
    Binding, Congestion, LaunchSpec, Launcher, LinkSpec, MetricsAt, Printing, Progress, WorkerExit,
    WorkerFailure, quantity,
};

use crate::interrupt::{INTERRUPTED, Interrupt, UserSignals};
use crate::{BAD_INPUT, DONE, Outcome, hosts, metrics, output};

/// Grace time of the remaining processes when one has failed, or the user wants to stop.
const GRACE: Duration = Duration::from_secs(2);
/// How often the flag of an interrupt is checked.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// Run a program N times, each with an endpoint (`endpoint_from_env`) to all the others.
///
/// What the programs print is passed on in whole lines (longer than 64 KiB: in pieces); they read nothing from standard input. Ends when all have ended, or as soon as one fails: the others are then ended, too, and the exit code is that of the first to
/// fail (128 + signal if it was killed, 2 if it could not be started).
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tsumuji launch -n 4 --link shm -- target/debug/ring\n  tsumuji launch --hosts lab.toml --link packet -- ./ring"
)]
pub(crate) struct Args {
    /// How many processes
    #[arg(
        short = 'n',
        long = "nodes",
        value_name = "N",
        required_unless_present = "hosts",
        conflicts_with = "hosts"
    )]
    nodes: Option<usize>,
    /// Several hosts, one process on each node of this file; started by ssh or the node's own command
    #[arg(long, value_name = "FILE", group = hosts::WITH_HOSTS)]
    hosts: Option<PathBuf>,
    #[command(flatten)]
    slots: hosts::Slots,
    #[command(flatten)]
    patience: hosts::Patience,
    /// Path of tsumuji on the other hosts [default: the same path as here]
    #[arg(long = "program", value_name = "PATH", requires = "hosts")]
    program_path: Option<PathBuf>,
    /// The link: shm (default), udp, udp:ADDRESS:PORT or dpdk:net_memif (two processes); with --hosts udp, packet, xdp or dpdk:DEVICE [default there: the file's]
    #[arg(long, value_name = "LINK")]
    link: Option<LinkSpec>,
    /// Fraction of received frames to drop on purpose: 0.2 or 20%
    #[arg(long, value_name = "P", value_parser = quantity::loss)]
    loss: Option<f64>,
    /// Seed of random choices
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Congestion control: credit (default), or suci, where the receiver permits what is sent again; suci:K: up to K frames need no permission [default: 16]
    #[arg(long, value_name = "CONTROL")]
    congestion: Option<Congestion>,
    #[command(flatten)]
    security: crate::security::Flags,
    /// Show counters as Prometheus text at ADDRESS:PORT (node i: PORT + i; `GET /metrics`); local: to `tsumuji top` only (default); off
    #[arg(long, value_name = "ADDR")]
    metrics: Option<MetricsAt>,
    /// Node 0 admits processes that join later; where they ask is printed to standard error (see `tsumuji join`)
    #[arg(long)]
    admit: bool,
    /// Pass this variable of the environment on to the programs, also on other hosts; TSUMUJI_* are always passed on
    #[arg(short = 'x', value_name = "VAR[=VALUE]", value_parser = variable)]
    variables: Vec<(OsString, OsString)>,
    /// core: each program runs on a core of its own, where its host has as many; none: the kernel chooses
    #[arg(long, value_name = "WHAT", default_value = "none")]
    bind: Binding,
    /// Put `node I: ` before each line that the programs print
    #[arg(long)]
    tag: bool,
    /// Print one JSON object in the end (the programs' own output then goes to standard error)
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM ARGS")]
    command: Vec<OsString>,
}

const SIGPIPE: i32 = 13;

/// A variable that is set here, or that is given with its value.
fn variable(text: &str) -> Result<(OsString, OsString), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.into())),
        None => (text, std::env::var_os(text)),
    };
    if name.is_empty() || name.contains('\0') || text.contains('\0') {
        return Err("accepted are VAR and VAR=VALUE".to_owned());
    }
    if [ENV_RENDEZVOUS, ENV_NODE, ENV_NODES, ENV_LINK].contains(&name) {
        return Err(format!("the launch itself sets {name}"));
    }
    let value = value.ok_or_else(|| format!("it is not set here; write {name}=VALUE"))?;
    Ok((name.into(), value))
}

/// For a command line without `--`, the one that is meant: `complaint` is about the program, or about that there is none.
pub(crate) fn hint(complaint: &clap::Error, words: &[OsString]) -> Option<String> {
    let is_launch = words
        .get(1)
        .is_some_and(|word| word == "launch" || word == "run");
    let Some(ContextValue::String(program)) = complaint.get(ContextKind::InvalidArg) else {
        return None;
    };
    let is_unknown = complaint.kind() == ErrorKind::UnknownArgument && !program.starts_with('-');
    if !is_launch || !is_unknown || words.iter().any(|word| word == "--") {
        return None;
    }
    let at = words.iter().position(|word| word == program.as_str())?;
    let mut meant: Vec<_> = words[1..]
        .iter()
        .map(|word| word.to_string_lossy())
        .collect();
    meant.insert(at - 1, "--".into());
    Some(format!(
        "; write `--` before the program: tsumuji {}",
        meant.join(" ")
    ))
}

/// Exit code of a shell: its own, or 128 + signal.
fn code_of(exit: &WorkerExit) -> i32 {
    exit.status
        .code()
        .unwrap_or_else(|| 128 + exit.status.signal().unwrap_or(0))
}

fn code_of_failure(failure: &WorkerFailure) -> u8 {
    match failure {
        WorkerFailure::Ended { exit, .. } => u8::try_from(code_of(exit)).unwrap_or(1).max(1),
        WorkerFailure::CouldNotStart { .. } => BAD_INPUT,
        _ => crate::NOT_REACHED,
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let signals = UserSignals::take()?;
    let mut spec = LaunchSpec::new(args.nodes.unwrap_or(0), args.command);
    spec.link = args.link.unwrap_or(LinkSpec::Shm);
    spec.congestion = args.congestion;
    spec.admits = args.admit;
    spec.binding = args.bind;
    spec.env = args.variables; // what follows wins
    let mut link_name = spec.link.to_string();
    let mut file_of_hosts = None;
    if let Some(path) = &args.hosts {
        let file = file_of_hosts.insert(hosts::read(path, args.link.as_ref(), args.slots)?);
        hosts::check_names(file, path)?;
        link_name = file.link_name();
        spec.nodes = file.hosts().len();
        spec.join_timeout = args.patience.join_timeout.unwrap_or(hosts::ANSWER_WITHIN);
        spec.hosts = Some(hosts::of(file, hosts::program(args.program_path.as_ref())?));
    }
    let security = args
        .security
        .stated(args.link.as_ref(), file_of_hosts.as_ref())?;
    spec.env.extend(security.env());
    let nodes = spec.nodes;
    spec.name_prefix = "node".to_owned();
    let printing = if args.tag {
        Printing::Tagged
    } else {
        Printing::Lines
    };
    (spec.stdout, spec.stderr) = (printing, printing);
    spec.stdout_to_stderr = args.json;
    spec.env.push(metrics::env(metrics::wanted(args.metrics)?));
    spec.env.extend(hosts::chances(args.loss, args.seed));

    let mut awaits_join = args.admit;
    let (failure, exits) = match Launcher::start(spec) {
        Ok(mut launcher) => {
            let failure = loop {
                match launcher.wait(CHECK_EVERY) {
                    Progress::Failed(failure) => break Some(failure),
                    Progress::Finished => break None,
                    Progress::Running if interrupt.is_set() => break None,
                    Progress::Running => signals.come().for_each(|signal| launcher.signal(signal)),
                }
                if awaits_join && let Some(address) = launcher.join_address() {
                    let of_hosts = file_of_hosts.as_ref().map(|file| file.hosts()[0].link);
                    let link = match of_hosts.unwrap_or(launcher.link()) {
                        LinkSpec::Shm | LinkSpec::Udp(_) => String::new(),
                        LinkSpec::Multicast { group, .. } => {
                            let link = LinkSpec::Multicast { own: None, group };
                            format!(" --link {link}")
                        }
                        link => format!(" --link {}:INTERFACE", link.kind()),
                    };
                    let security = crate::security::as_flags(&security);
                    tell!(
                        "tsumuji: others join by: tsumuji join --to {address}{link}{security} -- PROGRAM"
                    );
                    awaits_join = false;
                }
            };
            launcher.shutdown(GRACE);
            if let Some(error) = launcher.stdout_error() {
                output::note(error);
                // A process ended by SIGPIPE is a consequence of another failure, and is not reported again.
                let consequence = |failure: &WorkerFailure| matches!(failure, WorkerFailure::Ended { exit, .. } if exit.status.signal() == Some(SIGPIPE));
                (
                    failure.filter(|failure| !consequence(failure)),
                    launcher.exits(),
                )
            } else {
                (failure, launcher.exits())
            }
        }
        Err(tsumuji_node::LaunchError::Worker(failure)) => (Some(failure), Vec::new()),
        Err(error) => return Err(error.into()),
    };
    if let Some(failure) = &failure {
        tell!("tsumuji: {failure}");
    } else if interrupt.is_set() {
        tell!("tsumuji: interrupted; all processes were ended");
    }
    if args.json {
        let exits: Vec<_> = exits
            .iter()
            .map(|exit| json!({ "node": exit.node.0, "name": exit.name, "pid": exit.pid, "code": exit.status.code(), "signal": exit.status.signal() }))
            .collect();
        output::print_json(&json!({
            "nodes": nodes,
            "link": link_name,
            "ok": failure.is_none() && !interrupt.is_set(),
            "failure": failure.as_ref().map(ToString::to_string),
            "exits": exits,
        }));
    }
    Ok(match failure {
        Some(failure) => ExitCode::from(code_of_failure(&failure)),
        None if interrupt.is_set() => ExitCode::from(INTERRUPTED),
        None => DONE,
    })
}
