//! Measures with how many elements in a frame relaxation had best begin, by runs of `tsumuji solve` with a profile each.

use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::Value;
use tsumuji_bench::thresholds::{Choice, Trial};
use tsumuji_bench::{machine, stop};
use tsumuji_collective::profile::Contents;
use tsumuji_node::Tuning;
use tsumuji_node::tuning::TUNE_VARIABLE;

use super::{Nodes, link_name};

/// Beside the default.
const VALUES: [usize; 3] = [1, 64, 512];
const SYSTEM: &str = "dense:2000";
const THRESHOLD: &str = "elements";

/// Chooses the number; `None`: one core, where workers only wait for each other.
pub(super) fn run(
    nodes: &Nodes,
    rounds: usize,
    tuning: &mut Tuning,
    progress: &mut dyn FnMut(&Trial),
) -> anyhow::Result<Option<(Choice, Vec<Trial>)>> {
    if nodes.hosts.is_some() || machine::two_cpus().is_none() {
        return Ok(None);
    }
    let default = Tuning::default().elements;
    let values: Vec<usize> = std::iter::once(default).chain(VALUES).collect();
    let folder = tempfile::tempdir().context("a temporary folder")?;
    let mut all = vec![Vec::new(); values.len()];
    for _ in 0..rounds {
        for (elements, times) in values.iter().zip(&mut all) {
            let mut contents = Contents::default();
            let tried = Tuning {
                elements: *elements,
                ..*tuning
            };
            contents.learn(&link_name(nodes), Some(tried), None);
            let path = folder.path().join("tune.toml");
            std::fs::write(&path, contents.to_toml()).context("a temporary profile")?;
            let link = nodes.link.to_string();
            let output = Command::new(&nodes.program)
                .args(["solve", "--generate", SYSTEM, "--workers", "2"])
                .args(["--mode", "async", "--rhs", "random", "--json"])
                .args(["--link", &link])
                .env(TUNE_VARIABLE, &path)
                .stdin(Stdio::null())
                .output()
                .context("tsumuji solve")?;
            ensure!(!stop::is_wanted(), crate::interrupt::Interrupted);
            let said: Value = serde_json::from_slice(&output.stdout)
                .ok()
                .filter(|_| output.status.success())
                .with_context(|| {
                    let complaint = String::from_utf8_lossy(&output.stderr);
                    format!("tsumuji solve failed: {}", complaint.trim_end())
                })?;
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
