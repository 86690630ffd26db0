//! Figures of real programs under load: redis, nginx and memcached through `tsumuji run` on this host, beside kernel TCP over loopback and between two hosts of
//! a testbed, in turn in one run.

use super::{Log, Setting, Wanted, stands};
use crate::peers::servers::{FILE_BYTES, Ground, Service};
use crate::streams::Path;
use crate::versus::{Standing, in_turn};

/// What is measured: the names of its rates, and the target of each.
const SERVICES: [(Service, &[&str], Wanted); 4] = [
    (
        Service::Redis { pipelining: 1 },
        &["redis SET", "redis GET"],
        Wanted::AtLeast(2.5),
    ),
    (
        Service::Redis { pipelining: 16 },
        &["redis SET, 16 at once", "redis GET, 16 at once"],
        Wanted::AtLeast(1.0),
    ),
    (Service::Nginx, &["nginx"], Wanted::AtLeast(2.0)),
    (Service::Memcached, &["memcached"], Wanted::AtLeast(4.0)),
];

/// All figures of real programs.
pub(super) fn programs(setting: &Setting, log: &mut Log<'_>) {
    let testbed = super::testbed(2, None, 1500);
    // Ours first.
    let mut ways = vec![Path::Carried, Path::Tcp];
    match &testbed {
        Ok(_) => ways.push(Path::TcpNs),
        Err(reason) => log.missing("real programs between hosts", reason),
    }
    let ground = Ground {
        program: &setting.program,
        testbed: testbed.as_ref().ok(),
        is_tried: setting.is_tried(),
    };
    log.say(&format!(
        "requests a second of real programs (medians of {} rounds in turn; 50 connections; nginx: a file of {FILE_BYTES} bytes; memcached: a tenth of them writes)",
        setting.rounds
    ));
    for (service, names, wanted) in SERVICES {
        if let Ok(version) = service.version()
            && !version.is_empty()
        {
            log.peer(&version);
        }
        let found = in_turn(setting.rounds, ways.len(), |way| {
            let rates = service.measure(&ground, ways[way]);
            rates.map_err(|error| error.to_string())
        });
        for (index, name) in names.iter().enumerate() {
            let standings = ways.iter().zip(&found);
            let standings: Vec<Standing> = standings
                .map(|(way, found)| standing(*way, found, index))
                .collect();
            for other in &standings[1..] {
                let (ours, beside) = (stands(&standings[0], "k/s"), stands(other, "k/s"));
                let ratio = standings[0].ratio_to(other);
                log.add(*name, ours, beside, ratio, wanted);
            }
        }
    }
    if let Ok(testbed) = testbed {
        log.down(testbed);
    }
}

/// The rates of each round, or why there are none.
type Found = Result<Vec<Vec<f64>>, String>;

/// One of the rates over a way, in thousands.
fn standing(way: Path, found: &Found, index: usize) -> Standing {
    let rates = found
        .as_ref()
        .map(|rounds| rounds.iter().map(|rates| rates[index] / 1e3).collect());
    Standing::of(way.name(), rates.map_err(Clone::clone))
}
