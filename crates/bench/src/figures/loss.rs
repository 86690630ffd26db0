//! Figures under loss: 64 MiB and small messages between two hosts that both lose frames, compared with TCP.

use tsumuji_node::LinkSpec;

use super::{Log, Setting, Wanted, shown};
use crate::contest::Ours;
use crate::loss::{self, Line, Plan};
use crate::stats::{Rounds, size_name};

const LINKS: [LinkSpec; 2] = [LinkSpec::Udp(None), LinkSpec::Packet(None)];

/// All figures under loss.
pub(super) fn loss(setting: &Setting, log: &mut Log<'_>) {
    const TITLE: &str = "under loss";
    let plan = Plan {
        bytes: setting.tried_or(1 << 20, 64 << 20),
        trips: setting.tried_or(20, 5000),
        // Each turn already moves many bytes and makes many round trips, and TCP takes most of a minute for it.
        rounds: 1,
        losses: vec![0.01, 0.05],
    };
    log.on_testbed(TITLE, 2, None, 1500, |testbed, log| {
        let ours =
            LINKS.map(|link| Ours::between(link, setting.program.clone(), testbed.hosts_file()));
        log.say("64 MiB and small messages under loss, both hosts losing frames");
        match loss::run(&plan, testbed, &ours, log.say) {
            Ok(lines) => {
                for lines in lines.chunks(LINKS.len() + 1) {
                    if let Some((tcp, ours)) = lines.split_last() {
                        ours.iter()
                            .for_each(|ours| beside(plan.bytes, ours, tcp, log));
                    }
                }
            }
            Err(reason) => log.unmeasured(TITLE, &reason, Wanted::Nothing),
        }
    });
}

fn beside(bytes: usize, ours: &Line, tcp: &Line, log: &mut Log<'_>) {
    let told = |line: &Line, result: &Result<Rounds, String>, unit: &str| {
        shown(&line.name, result.as_ref().map_err(String::as_str), unit)
    };
    let median =
        |result: &Result<Rounds, String>| result.as_ref().map_or(f64::NAN, |rounds| rounds.median);
    for (what, unit, own, other) in [
        (size_name(bytes), "s", &ours.seconds, &tcp.seconds),
        (
            "p99.9 of half a round trip of 64 B".to_owned(),
            "us",
            &ours.p999_us,
            &tcp.p999_us,
        ),
    ] {
        let name = format!("{what} under {:.0} % loss", ours.loss * 100.0);
        let ratio = median(own) / median(other);
        let (own, other) = (told(ours, own, unit), told(tcp, other, unit));
        log.add(name, own, other, ratio, Wanted::AtMost(1.0));
    }
}
