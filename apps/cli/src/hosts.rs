//! Common parts of commands over several hosts: the hosts file, the agents, and the move to node 0.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use tsumuji_node::bootstrap::{ENV_LOSS, ENV_SEED, Hosts};
use tsumuji_node::{ClusterFile, HostNode, LaunchError, LinkSpec};

use crate::agent;

/// Tells the program that it already runs in the host of node 0.
pub(crate) const INSIDE: &str = "--inside";

/// Hosts that are asked to join answer within this time, also behind a slow login.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// The longest wait that can be asked for: a day.
const JOIN_SECONDS_MAX: f64 = 86_400.0;

/// Options that say which hosts there are.
pub(crate) const WITH_HOSTS: &str = "with-hosts";

/// Nodes of each host, where a command takes them.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Slots {
    /// Nodes on each host of the hosts file [default: its `slots`, or 1] or testbed; those of one host reach each other over shared memory
    #[arg(long, value_name = "N", requires = WITH_HOSTS)]
    pub(crate) slots: Option<u16>,
}

impl Slots {
    /// So many on each.
    pub(crate) fn of(slots: u16) -> Self {
        Self { slots: Some(slots) }
    }
}

/// How long nodes of a hosts file are waited for.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Patience {
    /// Give up after so many seconds in which not all nodes of the hosts file have come [default: 30 for hosts that are asked to start one, and 120 until their nodes have met; none for a node started by hand]
    #[arg(long, value_name = "S", requires = WITH_HOSTS, value_parser = join_seconds)]
    pub(crate) join_timeout: Option<Duration>,
}

/// How long nodes that were started meet each other at most, if nothing is stated.
pub(crate) const MET_WITHIN: Duration = Duration::from_secs(120);

fn join_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=JOIN_SECONDS_MAX).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(format!("accepted are 0.01 to {JOIN_SECONDS_MAX} seconds")),
    }
}

/// Reads the file, over another link where one is asked for.
pub(crate) fn read(
    path: &Path,
    link: Option<&LinkSpec>,
    Slots { slots }: Slots,
) -> anyhow::Result<ClusterFile> {
    let file = match slots {
        Some(slots) => ClusterFile::read_with_slots(path, slots)?,
        None => ClusterFile::read(path)?,
    };
    Ok(match link {
        Some(link) => file.over(link, path)?,
        None => {
            file.check_links(path)?;
            file
        }
    })
}

/// The path of this program on every host.
pub(crate) fn program(given: Option<&PathBuf>) -> anyhow::Result<String> {
    let path = match given {
        Some(path) => path.clone(),
        None => std::env::current_exe().context("this program's own file")?,
    };
    let text = path.to_str().map(str::to_owned);
    text.with_context(|| {
        format!(
            "{}: the program's path must be readable text",
            path.display()
        )
    })
}

/// The nodes, and the program that runs the agents.
pub(crate) fn of(file: &ClusterFile, program: String) -> Hosts {
    Hosts {
        nodes: file.hosts().to_vec(),
        agent: vec![program, agent::WORDS.to_owned()],
    }
}

/// Passes losses on purpose, and the seed of what is random, to started nodes.
pub(crate) fn chances(
    loss: Option<f64>,
    seed: Option<u64>,
) -> impl Iterator<Item = (OsString, OsString)> {
    let loss = loss.map(|loss| (ENV_LOSS.into(), loss.to_string().into()));
    let seed = seed.map(|seed| (ENV_SEED.into(), seed.to_string().into()));
    loss.into_iter().chain(seed)
}

/// Refuses a link that joins hosts where all processes are of one.
pub(crate) fn check_one_host(link: Option<&LinkSpec>) -> anyhow::Result<()> {
    match link {
        Some(link @ (LinkSpec::Packet(_) | LinkSpec::Xdp(_) | LinkSpec::Relay(_))) => {
            let link = Box::new(*link);
            Err(LaunchError::OneHost { link }.into())
        }
        _ => Ok(()),
    }
}

/// Nodes that are reached by their host's name have one.
pub(crate) fn check_names(file: &ClusterFile, path: &Path) -> anyhow::Result<()> {
    // Without a name the file calls them `node 2`, which no host is called.
    let nameless =
        |node: &&HostNode| node.host.contains(' ') && node.via.is_none() && !node.is_this_host();
    match file.hosts().iter().find(nameless) {
        None => Ok(()),
        Some(node) => bail!(
            "{}: {} has no field `host`; state by which name ssh reaches it, or a command in `via`",
            path.display(),
            node.host
        ),
    }
}

/// Node 0 is this process. If it runs behind a command, this process becomes that command, which runs the same program again.
pub(crate) fn enter_node_0(file: &ClusterFile, path: &Path) -> anyhow::Result<()> {
    check_names(file, path)?;
    let node = &file.hosts()[0];
    match &node.via {
        Some(via) if via.is_empty() => Ok(()),
        None if node.is_this_host() => Ok(()),
        None => bail!(
            "{}: node 0 is the one that this command runs on, and `{}` is another host; run it there, or give node 0 a `via`",
            path.display(),
            node.host
        ),
        Some(_) => {
            let own = program(None)?;
            let mut words = vec![own];
            for word in std::env::args_os().skip(1) {
                let Ok(word) = word.into_string() else {
                    bail!(
                        "{}: arguments for node 0 must be readable text",
                        path.display()
                    );
                };
                words.push(word);
            }
            // Before a `--`, if there is one.
            words.insert(2, INSIDE.to_owned());
            let words = node.command_there(&words);
            let error = Command::new(&words[0]).args(&words[1..]).exec();
            Err(error).with_context(|| {
                format!(
                    "{}: field `via` of node 0: cannot run `{}`",
                    path.display(),
                    words[0]
                )
            })
        }
    }
}
