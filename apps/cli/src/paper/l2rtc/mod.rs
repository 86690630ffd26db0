//! The experiments of L2RTC, each beside the paper's words: `sums` is figure 12, `receiving` figures 5 and 6, `delays` figure 10, `learning` figure 14.
//!
//! Everything is measured by `tsumuji bench …` or `tsumuji learn` in a process of its own, because DPDK starts once in a process, and because node 0 runs in
//! its host's namespace.

mod delays;
mod learning;
mod receiving;
mod sums;

use std::ffi::OsStr;
use std::process::Command;

use anyhow::ensure;
use serde_json::{Value, json};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::contest::testbed;
use tsumuji_bench::{report, stop, table};
use tsumuji_testbed::Testbed;

use super::Args;
use super::figure::Figure;
use crate::Outcome;
use crate::interrupt::Interrupted;
use crate::talk::Talk;
pub(super) use receiving::dropped;

/// Links within this host, and between hosts of a testbed.
const HERE: [&str; 3] = ["shm", "udp", "dpdk:net_memif"];
const BETWEEN: [&str; 4] = ["udp", "packet", "xdp", "dpdk:net_af_packet"];
/// Executors, as users write them.
const EXECUTORS: [&str; 3] = ["rtc", "pipeline", "adaptive"];

/// Runs the command.
pub(super) fn run(figure: Figure, args: &Args) -> Outcome {
    let takes_link = figure.name() == "l2rtc-fig10";
    let (taken, what): (&[&str], &str) = if takes_link {
        (
            &["--rounds", "--link", "--rate", "--iterations"],
            "takes --rounds, --quick and --json, --link, --rate (of the line) and --iterations (messages of each measurement)",
        )
    } else {
        (
            &["--rounds"],
            "takes --rounds, --quick and --json only: it measures all links",
        )
    };
    args.check_taken(figure, taken, what)?;
    match figure.name() {
        "l2rtc-fig5" => receiving::drops(args),
        "l2rtc-fig6" => receiving::costs(args),
        "l2rtc-fig10" => delays::run(args),
        "l2rtc-fig14" => learning::run(args),
        _ => sums::run(args),
    }
}

/// What this program prints as JSON, or why it does not; between the hosts of a testbed, if one is given.
pub(super) fn child<W: AsRef<OsStr>>(
    words: impl IntoIterator<Item = W>,
    testbed: Option<&Testbed>,
) -> Result<Value, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(words);
    if let Some(testbed) = testbed {
        command
            .arg("--hosts")
            .arg(testbed.hosts_file())
            .arg("--open");
    }
    report::of(&mut command)
}

/// Measures over a link: within this host, or between the hosts of a testbed.
type Measure<'a> = &'a dyn Fn(&'static str, Option<&Testbed>) -> Result<Value, String>;

/// A place and a link, and what was found there.
type Found = (&'static str, &'static str, Result<Value, String>);

/// What `--json` has of a link.
fn entry((place, link, found): &Found) -> Value {
    match found {
        Ok(found) => json!({ "place": place, "link": link, "measured": found }),
        Err(reason) => json!({ "place": place, "link": link, "missing": reason }),
    }
}

/// Measures over all links, within this host and between two hosts of a testbed. `show` is called with each.
fn over_all_links(
    talk: &mut Talk,
    measure: Measure<'_>,
    show: &mut dyn FnMut(&mut Talk, &Found),
) -> anyhow::Result<Vec<Found>> {
    let mut all = Vec::new();
    let mut take = |place, link, testbed: Option<&Testbed>, talk: &mut Talk| {
        let found = (place, link, measure(link, testbed));
        ensure!(!stop::is_wanted(), Interrupted);
        show(talk, &found);
        all.push(found);
        Ok(())
    };
    for link in HERE {
        take("one host", link, None, talk)?;
    }
    match testbed(2, None, 1500) {
        Ok(testbed) => {
            let taken = BETWEEN
                .into_iter()
                .try_for_each(|link| take("two hosts", link, Some(&testbed), talk));
            testbed.down()?;
            taken?;
        }
        Err(error) => {
            let reason = format!("no testbed: {error}");
            talk.say(&format!("without links between hosts: {reason}"));
            for link in BETWEEN {
                all.push(("two hosts", link, Err(reason.clone())));
            }
        }
    }
    Ok(all)
}

fn times(one: Option<f64>, other: Option<f64>) -> String {
    table::number(one.zip(other).map(|(one, other)| one / other), 2, "x")
}

/// The median of a number that was measured in rounds.
pub(super) fn median(value: &Value) -> Option<f64> {
    value["median"].as_f64()
}
