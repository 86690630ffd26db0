//! `tsumuji testbed`: a cluster in a box, made of network namespaces on this machine.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::ops::ControlFlow;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, anyhow, bail};
use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tsumuji_bench::table::aligned;
use tsumuji_testbed::{
    Fraction, Host, Impairment, Name, Rate, Spec, Status, Stream, Testbed, UpError,
};

use crate::interrupt::{INTERRUPTED, Interrupt, Interrupted};
use crate::{DONE, NOT_REACHED, Outcome, output};

/// Fewer hosts are built in a moment, without showing progress.
const HOSTS_WORTH_PROGRESS: u16 = 17;

/// Try several hosts on one machine: namespaces joined by a Linux bridge.
///
/// Broadcast, frame sizes, rates and loss are real: frames cross real interfaces and a real switch. Needs root, or a user namespace (docs/testbed.md).
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  tsumuji testbed up -n 4 --rate 1gbit --mtu 9000\n  tsumuji testbed run -- tsumuji doctor\n  tsumuji testbed down"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(UpArgs),
    Exec(ExecArgs),
    Run(RunArgs),
    Impair(ImpairArgs),
    Status(ShowArgs),
    List(ListArgs),
    Down(DownArgs),
}

/// Which testbed is meant.
#[derive(Debug, clap::Args)]
struct Which {
    /// The testbed's name: several may stand side by side
    #[arg(long, value_name = "NAME", default_value_t)]
    name: Name,
}

/// Build hosts NAME-0, NAME-1 … with addresses 10.77.0.1, 10.77.0.2 … on a switch of their own.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tsumuji testbed up -n 4 --rate 1gbit --mtu 9000")]
struct UpArgs {
    /// How many hosts, 1 to 253
    #[arg(short = 'n', long = "hosts", value_name = "N")]
    hosts: u16,
    /// Rate of every cable each way, such as 100mbit or 1gbit [default: no limit]
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// Bytes of the largest IP packet, 576 to 65535
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u32,
    #[command(flatten)]
    which: Which,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Run a command in one host; its exit code is passed on.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tsumuji testbed exec 0 -- ip address show eth0")]
struct ExecArgs {
    #[command(flatten)]
    which: Which,
    /// The host's number
    #[arg(value_name = "HOST")]
    host: u16,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM ARGS")]
    command: Vec<OsString>,
}

/// Run a command in all hosts at once; the exit code is the highest of all.
///
/// Each line of output begins with the host's name. Nothing is left running when it ends or is interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tsumuji testbed run -- ip address show eth0")]
struct RunArgs {
    #[command(flatten)]
    which: Which,
    /// Print one JSON object in the end (the programs' own output then goes to standard error)
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM ARGS")]
    command: Vec<OsString>,
}

/// Lose, repeat or change frames on their way to a host, whatever link or protocol they belong to.
///
/// Replaces what was set before. Shares are given as 0 to 1, or 0% to 100%.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  tsumuji testbed impair all --loss 5% --duplicate 1%\n  tsumuji testbed impair all --clear"
)]
struct ImpairArgs {
    /// The host's number, or `all`
    #[arg(value_name = "HOST")]
    host: Target,
    /// Share of frames that are lost
    #[arg(long, value_name = "P", required_unless_present_any = ["duplicate", "corrupt", "clear"])]
    loss: Option<Fraction>,
    /// Share of frames that arrive twice
    #[arg(long, value_name = "P")]
    duplicate: Option<Fraction>,
    /// Share of frames in which one bit is changed
    #[arg(long, value_name = "P")]
    corrupt: Option<Fraction>,
    /// End all impairment
    #[arg(long, conflicts_with_all = ["loss", "duplicate", "corrupt"])]
    clear: bool,
    #[command(flatten)]
    which: Which,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Show hosts, addresses, impairments and counters.
///
/// Exit code 1 if there is no such testbed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tsumuji testbed status --json")]
struct ShowArgs {
    #[command(flatten)]
    which: Which,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Show all testbeds of this machine: their names, hosts and hosts files, and which processes remove them at their end.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tsumuji testbed list --json")]
struct ListArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Remove a testbed and all that runs in it, whatever state it is in.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tsumuji testbed down")]
struct DownArgs {
    #[command(flatten)]
    which: Which,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One host, or all.
#[derive(Debug, Clone, Copy)]
enum Target {
    One(u16),
    All,
}

impl FromStr for Target {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "all" => Ok(Self::All),
            number => number
                .parse()
                .map(Self::One)
                .map_err(|_| "use a host's number, or `all`"),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Outcome {
    match args.command {
        Command::Up(args) => up(args),
        Command::Exec(args) => exec(&args),
        Command::Run(args) => run_all(&args),
        Command::Impair(args) => impair(&args),
        Command::Status(args) => show(&args),
        Command::List(args) => list(&args),
        Command::Down(args) => down(&args),
    }
}

fn up(args: UpArgs) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let spec = Spec {
        name: args.which.name,
        hosts: args.hosts,
        mtu_bytes: args.mtu,
        rate: args.rate,
    };
    let bar = progress(args.hosts);
    let testbed = Testbed::up_watched(&spec, &mut |done| {
        bar.set_position(done.into());
        if interrupt.is_set() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    bar.finish_and_clear();
    if let Err(UpError::Interrupted) = testbed {
        bail!(Interrupted);
    }
    let testbed = testbed?.keep()?;
    let status = testbed.status()?;
    if args.json {
        output::print_json(&serde_json::to_value(&status)?);
    } else {
        output::print_text(&summary(&status, &testbed));
    }
    Ok(DONE)
}

fn progress(hosts: u16) -> ProgressBar {
    if hosts < HOSTS_WORTH_PROGRESS || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(hosts.into());
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} hosts") {
        bar.set_style(style);
    }
    bar
}

fn summary(status: &Status, testbed: &Testbed) -> String {
    let hosts = testbed.hosts();
    let range = |show: &dyn Fn(&Host) -> String| match hosts {
        [] => String::new(),
        [only] => show(only),
        [first, .., last] => format!("{} to {}", show(first), show(last)),
    };
    let rate = status
        .rate
        .map_or(String::new(), |rate| format!(", {rate} each way"));
    format!(
        "hosts: {} ({})\ncables: MTU {}{rate}\nhosts file: {}\n",
        range(&|host| host.name().to_owned()),
        range(&|host| host.ip().to_string()),
        status.mtu,
        testbed.hosts_file().display(),
    )
}

/// The testbed, or an error that says how to make it.
fn find(name: &Name) -> anyhow::Result<Testbed> {
    tsumuji_testbed::check_rights()?;
    Testbed::find(name)?.ok_or_else(|| {
        let option = option(name);
        anyhow!("there is no testbed {name}; build it first: tsumuji testbed up -n 4{option}")
    })
}

fn option(name: &Name) -> String {
    if *name == Name::default() {
        String::new()
    } else {
        format!(" --name {name}")
    }
}

fn host_of(testbed: &Testbed, id: u16) -> anyhow::Result<&Host> {
    let hosts = testbed.hosts();
    hosts.get(usize::from(id)).ok_or_else(|| {
        let last = hosts.len().saturating_sub(1);
        anyhow!(
            "testbed {} has no host {id}; its hosts are 0 to {last}",
            testbed.name()
        )
    })
}

fn exec(args: &ExecArgs) -> Outcome {
    let Some((program, arguments)) = args.command.split_first() else {
        bail!("no program to run");
    };
    let testbed = find(&args.which.name)?;
    let mut command = host_of(&testbed, args.host)?.command(program);
    // Replaces this process, so that signals and the exit code need not be passed on.
    let error = command.args(arguments).exec();
    Err(error).context("ip")
}

fn run_all(args: &RunArgs) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let testbed = find(&args.which.name)?;
    let is_unread = AtomicBool::new(false);
    let on_line = |host: &Host, stream: Stream, line: &[u8]| {
        let whole = [host.name().as_bytes(), b": ", line, b"\n"].concat();
        if stream == Stream::Output && !args.json {
            is_unread.fetch_or(!output::print_bytes(&whole), Ordering::Relaxed);
        } else {
            let _ = std::io::stderr().lock().write_all(&whole); // there is nowhere to report it
        }
    };
    let ends = || interrupt.is_set() || is_unread.load(Ordering::Relaxed);
    let exits = testbed.run_all(&args.command, &on_line, &ends)?;
    let worst = exits.iter().map(|exit| exit.code()).max().unwrap_or(0);
    if args.json {
        let exits: Vec<_> = exits
            .iter()
            .map(|exit| json!({ "id": exit.id, "code": exit.code() }))
            .collect();
        output::print_json(&json!({ "name": testbed.name(), "code": worst, "exits": exits }));
    } else {
        for exit in exits.iter().filter(|exit| exit.code() != 0) {
            tell!(
                "tsumuji: {}: exit code {}",
                testbed.name().host(exit.id),
                exit.code()
            );
        }
    }
    Ok(ExitCode::from(if interrupt.is_set() {
        INTERRUPTED
    } else {
        worst
    }))
}

fn impair(args: &ImpairArgs) -> Outcome {
    let testbed = find(&args.which.name)?;
    let ids: Vec<_> = match args.host {
        Target::All => testbed.hosts().iter().map(Host::id).collect(),
        Target::One(id) => vec![host_of(&testbed, id)?.id()],
    };
    let share = |given: Option<Fraction>| given.map_or(0.0, |Fraction(share)| share);
    let impairment = Impairment {
        loss: share(args.loss),
        duplicate: share(args.duplicate),
        corrupt: share(args.corrupt),
    };
    testbed.impair(&ids, impairment)?;
    if args.json {
        output::print_json(
            &json!({ "name": testbed.name(), "hosts": ids, "impairment": impairment }),
        );
    }
    Ok(DONE)
}

fn show(args: &ShowArgs) -> Outcome {
    tsumuji_testbed::check_rights()?;
    let name = &args.which.name;
    let Some(testbed) = Testbed::find(name)? else {
        if args.json {
            output::print_json(&json!({ "name": name, "hosts_file": null, "hosts": [] }));
        }
        tell!("tsumuji: there is no testbed {name}");
        return Ok(ExitCode::from(NOT_REACHED));
    };
    let status = testbed.status()?;
    if args.json {
        output::print_json(&serde_json::to_value(&status)?);
    } else {
        output::print_text(&(summary(&status, &testbed) + &table(&status)));
    }
    Ok(DONE)
}

fn list(args: &ListArgs) -> Outcome {
    tsumuji_testbed::check_rights()?;
    let testbeds = Testbed::list();
    if args.json {
        let testbeds: Vec<_> = testbeds
            .iter()
            .map(|(testbed, holder)| {
                json!({
                    "name": testbed.name(),
                    "hosts": testbed.hosts().len(),
                    "hosts_file": testbed.hosts_file(),
                    "holder": holder.map(|(pid, lives)| json!({ "pid": pid, "lives": lives })),
                })
            })
            .collect();
        output::print_json(&json!({ "testbeds": testbeds }));
        return Ok(DONE);
    }
    let mut rows = vec![["name", "hosts", "hosts file", "until"].map(str::to_owned)];
    for (testbed, holder) in &testbeds {
        let until = match holder {
            None => "testbed down".to_owned(),
            Some((pid, true)) => format!("process {pid} ends"),
            Some((pid, false)) => format!("the next testbed (process {pid} is dead)"),
        };
        rows.push([
            testbed.name().to_string(),
            testbed.hosts().len().to_string(),
            testbed.hosts_file().display().to_string(),
            until,
        ]);
    }
    output::print_text(&if testbeds.is_empty() {
        "there are no testbeds\n".to_owned()
    } else {
        aligned(&rows)
    });
    Ok(DONE)
}

fn table(status: &Status) -> String {
    let width = status
        .hosts
        .iter()
        .map(|host| host.host.len())
        .max()
        .unwrap_or(0)
        .max(4);
    let mut text = format!(
        "\n{:<width$}  {:<12} {:<4} {:>10} {:>10} {:>8} {:>8}\n",
        "host", "ip", "link", "sent", "received", "overflow", "lost"
    );
    for host in &status.hosts {
        let counters = host.counters;
        let _ = writeln!(
            text,
            "{:<width$}  {:<12} {:<4} {:>10} {:>10} {:>8} {:>8}",
            host.host,
            host.ip.to_string(),
            if host.up { "up" } else { "down" },
            counters.sent_frames,
            counters.received_frames,
            counters.queue_overflows,
            counters.lost_on_purpose,
        );
        if host.impairment != Impairment::NONE {
            let _ = writeln!(text, "{:<width$}  impaired: {}", "", host.impairment);
        }
    }
    text.push_str("Sent, received: frames. Overflow: frames that found the switch's queue full.\nLost: on purpose. The hosts file has the Ethernet addresses.\n");
    text
}

fn down(args: &DownArgs) -> Outcome {
    let name = &args.which.name;
    let removed = Testbed::remove(name)?;
    if args.json {
        output::print_json(&json!({
            "name": name,
            "namespaces": removed.namespaces,
            "processes": removed.processes,
        }));
    } else if removed.namespaces == 0 {
        output::print_text(&format!("there is no testbed {name}; nothing to remove\n"));
    } else {
        let processes = match removed.processes {
            0 => String::new(),
            count => format!(", and ended {count} processes that ran in them"),
        };
        output::print_text(&format!(
            "removed {} namespaces of testbed {name}{processes}\n",
            removed.namespaces
        ));
    }
    Ok(DONE)
}
