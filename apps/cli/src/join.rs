//! `tsumuji join`: runs a user's program as one more member of a running cluster.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use tsumuji_node::bootstrap::{
    ENV_CLUSTER, ENV_CONGESTION, ENV_JOIN, ENV_LINK, ENV_NODE, ENV_RENDEZVOUS, JoinAddress,
};
use tsumuji_node::{Congestion, LinkSpec, MetricsAt, Security};

use crate::{Outcome, metrics};

/// Run a program as a new member of a running cluster whose node 0 admits (`launch --admit`, or TSUMUJI_ADMIT=1).
///
/// The program's `endpoint_from_env` (C: `tsumuji_open_env`) becomes a member; the others learn of it, and messages pass at once. While node 0 does
/// not answer, or cannot admit it yet, it says so after 3 s and then every 10 s, and gives up after 30 s. Ends as the program does. A member that died
/// comes back by --id, also at another address.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tsumuji join --to udp:10.0.0.1:7000 --key lab.key -- ./ring\n  tsumuji join --to 02:00:00:00:00:01 --link packet:eth1 --open -- ./ring\n  tsumuji join --to shm:4711 -- ./ring"
)]
pub(crate) struct Args {
    /// Address of node 0: udp:ADDRESS:PORT, an Ethernet address, or shm:PROCESS of a launcher on this host
    #[arg(long, value_name = "ADDRESS")]
    to: JoinAddress,
    /// The link of the new member, of the same kind [default for udp: an address on the way to node 0, and a free port]
    #[arg(long, value_name = "LINK")]
    link: Option<LinkSpec>,
    /// Come back as this member, which died
    #[arg(long, value_name = "I")]
    id: Option<u16>,
    /// Congestion control, as that of the cluster: credit (default), suci or suci:K
    #[arg(long, value_name = "CONTROL")]
    congestion: Option<Congestion>,
    #[command(flatten)]
    security: crate::security::Flags,
    /// Show counters as with `launch`
    #[arg(long, value_name = "ADDR")]
    metrics: Option<MetricsAt>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM ARGS")]
    command: Vec<OsString>,
}

/// Runs the command. It returns only if the program cannot be started.
pub(crate) fn run(args: Args) -> Outcome {
    let security = args.security.stated(args.link.as_ref(), None)?;
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    // Those of a launch within which this runs would be wrong.
    for name in [ENV_RENDEZVOUS, ENV_CLUSTER, ENV_LINK, ENV_NODE] {
        command.env_remove(name);
    }
    let stated = security.env();
    if !stated.is_empty() {
        for name in Security::ENV {
            command.env_remove(name);
        }
    }
    command.envs(stated).env(ENV_JOIN, args.to.to_string());
    command.envs(args.link.map(|link| (ENV_LINK, link.to_string())));
    command.envs(args.id.map(|id| (ENV_NODE, id.to_string())));
    let congestion = args.congestion.map(|control| control.to_string());
    command.envs(congestion.map(|control| (ENV_CONGESTION, control)));
    command.envs([metrics::env(metrics::wanted(args.metrics)?)]);
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run `{}`", args.command[0].display()))
}
