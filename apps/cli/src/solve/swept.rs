//! `tsumuji solve --sweep`: the same command at each value of one quantity.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail, ensure};
use serde_json::json;
use tsumuji_bench::compare::Listener;
use tsumuji_bench::report;
use tsumuji_solve::method::Method;

use super::{Args, ModeName};
use crate::bench::interruptible;
use crate::named::name_of;
use crate::output::Files;
use crate::sweep::{self, Sweep, Variable};
use crate::talk::Talk;
use crate::{NOT_REACHED, Outcome};

/// Runs at each value, as in the paper RELAX.
const REPEATS: u64 = 5;
/// Options of the sweep itself, which its runs do not get; the flag: whether a value follows.
const OWN: [(&str, bool); 5] = [
    ("--sweep", true),
    ("--repeat", true),
    ("--history", true),
    ("--plot", true),
    ("--json", false),
];

pub(super) fn run(sweep: &Sweep, args: &Args) -> Outcome {
    let varied = match sweep.variable {
        Variable::Elements => Some("--elements"),
        Variable::Workers => Some("--workers --hosts"),
        Variable::Threads => Some("--threads --workers --slots"),
        Variable::Rows => None,
    };
    let name = sweep.variable.name();
    ensure!(
        varied
            .and_then(|flags| args.given.first_of(flags))
            .is_none(),
        "--sweep {name}=…: leave {} out",
        varied.unwrap_or_default().replace(' ', ", ")
    );
    ensure!(
        sweep.variable != Variable::Rows || args.generate.is_some(),
        "--sweep n=…: give --generate, whose size is varied"
    );
    if let Some(flag) = without_effect(sweep.variable, args) {
        bail!("--sweep {name}=…: {name} would have no effect with {flag}; leave one of them out");
    }
    let words = words(std::env::args_os().skip(2), sweep.variable);
    let kind = args.generate.map(|what| what.to_string());
    let kind = kind
        .as_deref()
        .and_then(|what| what.split(':').next())
        .unwrap_or_default();
    let files = Files::of(args.history.as_ref(), args.plot.as_ref())?;
    interruptible(|| {
        let (mut talk, machine) = Talk::begin(args.json);
        let program = std::env::current_exe().context("this program's own file")?;
        let mut measure = |way: usize, value: u64| {
            let (value_text, is_among_hosts) = (value.to_string(), args.team.hosts.is_some());
            let mut command = Command::new(&program);
            command.arg("solve").args(&words);
            match sweep.variable {
                Variable::Elements => command.args(["--elements", &value.to_string()]),
                Variable::Workers => command.args(["--workers", &value.to_string()]),
                Variable::Rows => command.args(["--generate", &format!("{kind}:{value}")]),
                Variable::Threads => match (way, is_among_hosts) {
                    (0, true) => command.args(["--slots", "1", "--threads", &value_text]),
                    (0, false) => command.args(["--workers", "1", "--threads", &value_text]),
                    (_, true) => command.args(["--slots", &value_text]),
                    (_, false) => command.args(["--workers", &value_text]),
                },
            };
            report::of(&mut command)
        };
        let ways = match sweep.variable {
            Variable::Threads => &["a worker of so many threads", "so many workers"][..],
            _ => &["this command"],
        };
        let ways: Vec<String> = ways.iter().copied().map(str::to_owned).collect();
        let repeats = args.repeat.unwrap_or(REPEATS);
        let all = sweep::measure(&ways, sweep, repeats, &mut talk, &mut measure)?;
        talk.say(&sweep::table(sweep.variable, &all));
        let title = format!("time over {name}");
        let written = files.write(
            || sweep::csv(sweep.variable, &all),
            || sweep::draw(&title, sweep.variable, &all, &[]),
        );
        let report = json!({ "varied": name, "machine": machine, "results": all });
        let code = talk.end_with_files(report, written)?;
        let mut cells = all.iter().flat_map(|way| &way.cells);
        Ok(match cells.any(|cell| cell.missing.is_some()) {
            true => ExitCode::from(NOT_REACHED),
            false => code,
        })
    })
}

/// The option beside which the quantity has no effect, so that every run would be refused.
fn without_effect(variable: Variable, args: &Args) -> Option<String> {
    let (by_method, by_mode) = match variable {
        Variable::Elements => (
            args.method.is_global(),
            matches!(args.mode, ModeName::Threads | ModeName::Single),
        ),
        Variable::Workers => (args.method == Method::Direct, args.mode == ModeName::Single),
        Variable::Threads => (
            args.method == Method::Direct,
            matches!(args.mode, ModeName::Threads | ModeName::Single),
        ),
        Variable::Rows => (false, false),
    };
    match (by_method, by_mode) {
        (true, _) => Some(format!("--method {}", args.method)),
        (_, true) => Some(format!("--mode {}", name_of(args.mode))),
        _ => None,
    }
}

/// The words of the command without those of the sweep.
fn words(given: impl Iterator<Item = OsString>, variable: Variable) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut skips = false;
    let own = OWN.into_iter();
    let own: Vec<_> = own
        .chain((variable == Variable::Rows).then_some(("--generate", true)))
        .collect();
    for word in given {
        if std::mem::take(&mut skips) {
            continue;
        }
        let text = word.to_string_lossy();
        let name = text.split('=').next().unwrap_or_default();
        match own.iter().find(|(own, _)| *own == name) {
            Some((_, has_value)) => skips = *has_value && !text.contains('='),
            None => kept.push(word),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the sweep's own options are taken out, in both forms.
    #[test]
    fn own_words_are_left_out() {
        let given = "--generate dense:9 --sweep elements=1,2 --repeat=3 --json --link udp --plot a.svg --tol 1e-3";
        let kept = |variable| words(given.split(' ').map(OsString::from), variable);
        assert_eq!(
            kept(Variable::Elements),
            ["--generate", "dense:9", "--link", "udp", "--tol", "1e-3"]
        );
        assert_eq!(kept(Variable::Rows), ["--link", "udp", "--tol", "1e-3"]);
    }
}
