//! Figures of a tuned profile: what `tsumuji tune` finds on this machine, beside the defaults.

use std::time::Duration;

use tsumuji_node::{LinkSpec, Tuning};

use super::messages::{exchanged, ours};
use super::{Log, Setting, Wanted, stands};
use crate::exchange::{Kind, Plan};
use crate::stats::size_name;
use crate::thresholds::{self, Wishes};
use crate::versus::alternate;

/// A profile makes nothing slower than by this factor.
const SLOWEST: f64 = 1.03;
/// So many times the usual number of exchanges: short disturbances count less.
const LONGER: u64 = 4;
/// What is compared: more than what the thresholds were chosen by.
const EXCHANGES: [(Kind, usize); 7] = [
    (Kind::Pingpong, 8),
    (Kind::Pingpong, 16 << 10),
    (Kind::Pingpong, 256 << 10),
    (Kind::Burst, 64),
    (Kind::Burst, 16 << 10),
    (Kind::Burst, 64 << 10),
    (Kind::Burst, 1 << 20),
];

/// Times with a profile found here and with the defaults, over the links that need no rights.
pub(super) fn tuned(setting: &Setting, log: &mut Log<'_>) {
    for link in [LinkSpec::Shm, LinkSpec::Udp(None)] {
        log.say(&format!(
            "thresholds of {link}, tuned and by default ({} rounds in turn)",
            setting.rounds
        ));
        let wishes = Wishes {
            rounds: setting.rounds,
            time: Duration::from_millis(setting.tried_or(1, 50)),
        };
        let measure = &mut |plan: &Plan| exchanged(setting, link, plan);
        let found = match thresholds::find(wishes, measure, &mut |_| {}) {
            Ok(found) => found,
            Err(reason) => {
                log.say(&format!("  not tuned: {reason}"));
                continue;
            }
        };
        for choice in &found.choices {
            log.say(&format!(
                "  {}: {} (default {}), at least {:+.1} % in three quarters of the rounds",
                choice.threshold,
                choice.value,
                choice.default,
                100.0 * (choice.sure_gain - 1.0)
            ));
        }
        if found.tuning == Tuning::default() {
            log.say("  the defaults are the fastest: nothing to compare");
            continue;
        }
        for (kind, size) in EXCHANGES {
            compare(setting, (link, kind, size), found.tuning, log);
        }
    }
}

fn compare(
    setting: &Setting,
    (link, kind, size): (LinkSpec, Kind, usize),
    tuning: Tuning,
    log: &mut Log<'_>,
) {
    let usual = Plan::new(kind, size);
    let few = usual.iterations.min(setting.round_trips);
    let iterations = setting.tried_or(few, LONGER * usual.iterations);
    let plans = [tuning, Tuning::default()].map(|tuning| Plan {
        iterations,
        spin: false, // as programs wait, and as the thresholds were measured
        tuning: Some(tuning),
        ..usual.clone()
    });
    let standings = alternate(setting.rounds, &["tuned", "defaults"], |one| {
        Ok(1e6 * thresholds::seconds(&ours(setting, link, &plans[one])?))
    });
    let name = match kind {
        Kind::Pingpong => "half round trip",
        Kind::Burst | Kind::Idle => "burst, a message",
    };
    log.add(
        format!("{link} {name}, {}", size_name(size)),
        stands(&standings[0], "us"),
        stands(&standings[1], "us"),
        standings[0].ratio_to(&standings[1]),
        Wanted::AtMost(SLOWEST),
    );
}
