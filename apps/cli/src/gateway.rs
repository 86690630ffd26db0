//! `tsumuji gateway`: carries the TCP connections of this host's unmodified programs to other hosts.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::json;
use tsumuji_gateway::Gateway;
use tsumuji_node::{
    ClusterFile, IdlePolicy, LinkSpec, NodeId, Options, ProgressBy, open_in_cluster,
};

use crate::hosts::Slots;
use crate::interrupt::Interrupt;
use crate::{DONE, Outcome, hosts, output};

/// How long it waits for the other hosts' gateways before it says whom it misses. It serves all the same, and meets them when they come.
const MEET: Duration = Duration::from_secs(1);
/// Longest time that a gateway started at the same time needs from opening its link to serving.
const OVERTAKEN: Duration = Duration::from_secs(1);

/// Carry TCP connections of programs under `tsumuji run --hosts` to other hosts.
///
/// One for each user and host of the hosts file; `tsumuji run --hosts` starts it if there is none. Programs reach it over shared memory, it reaches the
/// gateways of the other hosts by messages over the link of the hosts file. A connection is carried if both programs run so, of the same user; all
/// others stay with kernel TCP. Ends with Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tsumuji gateway --hosts lab.toml --key lab.key\n  tsumuji gateway --hosts lab.toml --link xdp --key lab.key"
)]
pub(crate) struct Args {
    /// The hosts file: one node for each host
    #[arg(long, value_name = "FILE", id = hosts::WITH_HOSTS)]
    hosts: PathBuf,
    /// Which node of the hosts file this host is [default: the one whose name or address is this host's]
    #[arg(long, value_name = "I")]
    id: Option<u16>,
    /// Another link than that of the hosts file: udp, packet, xdp or dpdk
    #[arg(long, value_name = "LINK")]
    link: Option<LinkSpec>,
    /// Sleep as soon as there is nothing to do, instead of spinning and yielding for a moment
    #[arg(long)]
    no_spin: bool,
    #[command(flatten)]
    security: crate::security::Flags,
    /// End ten seconds after the last program has left
    #[arg(long)]
    until_unused: bool,
    /// For tests: stand for a host with these addresses
    #[arg(long, hide = true, value_name = "IP,IP", value_delimiter = ',')]
    stands_for: Option<Vec<IpAddr>>,
    /// For tests: beside the gateway of this host
    #[arg(long, hide = true)]
    second: bool,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

/// The node that this host is: as stated, or the only one whose name or address is this host's.
pub(crate) fn own_node(
    file: &ClusterFile,
    path: &Path,
    stated: Option<u16>,
) -> anyhow::Result<u16> {
    if let Some(id) = stated {
        return Ok(id);
    }
    let nodes = file.hosts().iter().enumerate();
    let own: Vec<usize> = nodes
        .filter(|(_, node)| node.is_this_host())
        .map(|(id, _)| id)
        .collect();
    match own[..] {
        [id] => Ok(id as u16),
        [] => bail!(
            "{}: no node is of this host, by name or address; say which one it is by --id",
            path.display()
        ),
        _ => bail!(
            "{}: several nodes are of this host ({own:?}); say which one it is by --id",
            path.display()
        ),
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let path = &args.hosts;
    let file = hosts::read(path, args.link.as_ref(), Slots::of(1))?;
    let id = own_node(&file, path, args.id)?;
    let security = args.security.stated(args.link.as_ref(), Some(&file))?;
    if Gateway::is_there() && !args.second {
        bail!("another gateway of this user serves this host already");
    }
    let options = Options {
        security,
        progress: ProgressBy::Program,
        ..Options::default()
    };
    let endpoint = open_in_cluster(&file, path, NodeId(id), options, None)?;
    let idle = if args.no_spin {
        IdlePolicy::Sleep
    } else {
        IdlePolicy::Adaptive
    };
    let mut gateway = match &args.stands_for {
        Some(addresses) => Gateway::open_for(endpoint, idle, addresses, args.second)?,
        None => Gateway::open(endpoint, idle)?,
    };
    let missing = gateway.meet(MEET, || interrupt.is_set())?;
    let link = gateway.endpoint().link_name();
    let mut line = format!("node {id} carries connections over {link}");
    if !missing.is_empty() {
        let names: Vec<&str> = missing
            .iter()
            .map(|peer| gateway.endpoint().name_of(*peer))
            .collect();
        line += &format!("; not there yet: {}", names.join(", "));
    }
    // The process that has started it may be gone.
    let _ = writeln!(std::io::stderr(), "{line}");
    let counters = gateway.serve(args.until_unused, || interrupt.is_set())?;
    let (asked, not_there) = (counters.asked, counters.not_there);
    let (carried, broken) = (counters.carried, counters.broken);
    if args.json {
        output::print_json(&json!({
            "link": link,
            "asked": asked,
            "not_there": not_there,
            "carried": carried,
            "broken": broken,
            "refused": counters.refused,
            "sent_bytes": counters.sent_bytes,
        }));
    } else {
        let _ = writeln!(
            std::io::stderr(),
            "{carried} connections carried, {} bytes sent; {asked} asked for here, {not_there} of them stayed with TCP; {broken} broken",
            counters.sent_bytes
        );
    }
    Ok(DONE)
}

/// Starts a gateway, and waits until it serves, or another one does.
pub(crate) fn start(words: &[OsString]) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("this program's own file")?;
    let mut child = Command::new(own)
        .arg("gateway")
        .args(words)
        .arg("--until-unused")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // It outlives the program that was the first to need it.
        .process_group(0)
        .spawn()
        .context("cannot start the gateway")?;
    let mut lines = BufReader::new(child.stderr.take().context("no pipe")?).lines();
    let mut told = String::new();
    for line in &mut lines {
        let line = line?;
        if line.starts_with("node ") {
            return Ok(());
        }
        told = line;
    }
    child.wait()?;
    // Another one may have been faster, and on its way from its link to its mailbox.
    let failed = Instant::now();
    while failed.elapsed() < OVERTAKEN {
        if Gateway::is_there() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // The message of that process begins with the program's name, and so does ours.
    bail!("no gateway: {}", told.trim_start_matches("tsumuji: "))
}
