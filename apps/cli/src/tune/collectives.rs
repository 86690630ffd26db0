//! Measures the algorithms of collective operations among all nodes.

use std::time::Duration;

use anyhow::Context;
use tsumuji_collective::Table;
use tsumuji_collective::tune::{self, Measurement, Wishes};
use tsumuji_node::tuning::{NO_PROFILE, TUNE_VARIABLE};
use tsumuji_node::{LaunchSpec, Launcher, Options, Printing, Security, Tuning};

use super::Nodes;
use crate::meeting::meet;
use crate::{Outcome, hosts, team};

/// Grace time of members when the measurement is over, and again once they are told to end.
const GRACE: Duration = Duration::from_secs(2);
/// How long the last acknowledgements may take.
const FLUSH_WAIT: Duration = Duration::from_secs(1);

/// What `tune` starts. Not for people.
#[derive(Debug, clap::Args)]
pub(crate) struct MemberArgs {
    max_bytes: u64,
    time: u64,
}

impl MemberArgs {
    fn wishes(&self) -> Wishes {
        Wishes {
            bytes_max: self.max_bytes,
            time: Duration::from_millis(self.time),
        }
    }
}

/// One member.
pub(crate) fn member(args: MemberArgs) -> Outcome {
    team::work(|endpoint| tune::tune(endpoint, &args.wishes(), |_| {}).map(drop))
}

/// The table, and all that was measured.
pub(super) fn run(
    nodes: &Nodes,
    security: &Security,
    max_bytes: u64,
    time: u64,
) -> anyhow::Result<(Table, Vec<Measurement>)> {
    let command = [
        nodes.program.clone(),
        "tune-member".to_owned(),
        max_bytes.to_string(),
        time.to_string(),
    ];
    let mut spec = LaunchSpec::new(nodes.count - 1, command);
    spec.link = nodes.link;
    if let Some(file) = &nodes.hosts {
        spec.hosts = Some(hosts::of(file, nodes.program.clone()));
        spec.join_timeout = hosts::ANSWER_WITHIN;
    }
    spec.with_self = true;
    (spec.stdout, spec.stdout_to_stderr) = (Printing::Tagged, true);
    spec.env.extend(security.env());
    // What is in the present profile decides nothing here.
    spec.env.push((TUNE_VARIABLE.into(), NO_PROFILE.into()));
    let options = Options {
        security: security.clone(),
        tuning: Some(Tuning::default()),
        ..Options::default()
    };
    let mut launcher = Launcher::start(spec)?;
    let mut endpoint = launcher.endpoint(options, None, None, &|| false)?;
    meet(&mut endpoint, Some(crate::hosts::MET_WITHIN), &mut || {
        launcher.check().is_some()
    })?;
    let wishes = MemberArgs { max_bytes, time }.wishes();
    let measured = tune::tune(&mut endpoint, &wishes, |one| {
        let name = serde_json::to_value(one.operation).unwrap_or_default();
        tell!(
            "{:11} {:4} nodes {:10} B  {:9} {:12.2} µs",
            name.as_str().unwrap_or_default(),
            one.nodes,
            one.bytes,
            one.algorithm.to_string(),
            one.seconds * 1e6
        );
    });
    let _ = endpoint.close(FLUSH_WAIT);
    if measured.is_ok() {
        launcher.wait_all(GRACE); // they close their sessions, as we did
    }
    launcher.shutdown(GRACE);
    let measured = measured.context("the measurement")?;
    for exit in launcher.exits().iter().filter(|exit| !exit.success()) {
        tell!("did not end well: {exit}");
    }
    Ok(measured)
}
