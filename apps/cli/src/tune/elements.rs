//! Measures with how many elements in a frame relaxation had best begin, by runs of `tsumuji solve` with a profile each.

use std::process::Command;

use anyhow::{Context, Error, ensure};
use tsumuji_bench::thresholds::{Choice, Trial};
use tsumuji_bench::versus::order;
use tsumuji_bench::{machine, report, stop};
use tsumuji_collective::profile::Contents;
use tsumuji_node::tuning::TUNE_VARIABLE;
use tsumuji_node::{Security, Tuning};

use super::{Nodes, link_name};
use crate::security;

/// Numbers of elements that are measured beside the default.
const VALUES: [usize; 3] = [1, 64, 512];
const SYSTEM: &str = "dense:2000";
const THRESHOLD: &str = "elements";
/// So many exchange elements.
const WORKERS: usize = 2;

/// Chooses the number; `None`: there are not two workers that run at the same time.
pub(super) fn run(
    nodes: &Nodes,
    security: &Security,
    rounds: usize,
    tuning: &mut Tuning,
    progress: &mut dyn FnMut(&Trial),
) -> anyhow::Result<Option<(Choice, Vec<Trial>)>> {
    let exchange = match nodes.hosts {
        Some(_) => nodes.count > WORKERS, // beside node 0
        None => machine::two_cpus().is_some(),
    };
    if !exchange {
        tell!("{THRESHOLD}: not measured: it takes two workers that run at the same time");
        return Ok(None);
    }
    let default = Tuning::default().elements;
    let values: Vec<usize> = std::iter::once(default).chain(VALUES).collect();
    let program = std::env::current_exe().context("this program's own file")?;
    let folder = tempfile::tempdir().context("a temporary folder")?;
    let own = folder.path().join("tsumuji");
    std::fs::create_dir(&own).context("a temporary folder")?;
    let mut all = vec![Vec::new(); values.len()];
    for round in 0..rounds {
        for index in order(round, values.len()) {
            let (elements, times) = (&values[index], &mut all[index]);
            let mut contents = Contents::default();
            let tried = Tuning {
                elements: *elements,
                ..*tuning
            };
            contents.learn(&link_name(nodes), Some(tried), None);
            // The machine's own profile: one that the variable names would have to be there on the other hosts, too.
            std::fs::write(own.join("tune.toml"), contents.to_toml())
                .context("a temporary profile")?;
            let mut command = Command::new(&program);
            command
                .arg("solve")
                .args(["--generate", SYSTEM, "--mode", "async"])
                .args(["--rhs", "random"])
                .args(&nodes.words)
                .args(security::as_words(security));
            if nodes.hosts.is_none() {
                let link = nodes.link.to_string();
                command.args(["--workers", "2", "--link", &link]);
            }
            command.env("XDG_CONFIG_HOME", folder.path());
            let said = report::of(command.env_remove(TUNE_VARIABLE));
            ensure!(!stop::is_wanted(), crate::interrupt::Interrupted);
            let said = said.map_err(Error::msg).context("tsumuji solve failed")?;
            let why = said["explanation"].as_str().unwrap_or_default();
            ensure!(said["converged"] == true, "tsumuji solve failed: {why}");
            let seconds = said["seconds"]["iterate"].as_f64();
            times.push(seconds.context("tsumuji solve does not say how long it took")?);
        }
    }
    let mut trials = Vec::new();
    for (value, times) in values.iter().zip(&all).skip(1) {
        let trial = Trial::new(
            (THRESHOLD, *value),
            format!("solve {SYSTEM}"),
            [&all[0], times],
        );
        progress(&trial);
        trials.push(trial);
    }
    let candidates: Vec<_> = trials
        .iter()
        .map(|trial| (trial.value, vec![trial.sure_gain]))
        .collect();
    let choice = Choice::of(THRESHOLD, default, &candidates);
    tuning.elements = choice.value;
    Ok(Some((choice, trials)))
}
