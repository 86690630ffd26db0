//! `tsumuji bench drop`: frames received and dropped a second, over cores, by links and by the kernel's sockets.

use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use tsumuji_bench::compare::Listener;
use tsumuji_bench::contest::testbed;
use tsumuji_bench::flood::{self, Flooded, Way};
use tsumuji_bench::stats::Rounds;
use tsumuji_bench::versus::in_turn;
use tsumuji_bench::{machine, stop, table};
use tsumuji_node::LinkSpec;

use crate::Outcome;
use crate::interrupt::Interrupted;
use crate::talk::Talk;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Links beside the kernel's sockets; several by commas
    #[arg(
        long,
        value_name = "LINKS",
        value_delimiter = ',',
        default_value = "udp,packet,xdp,dpdk:net_af_packet"
    )]
    link: Vec<LinkSpec>,
    /// Receiving cores; several by commas [default: 1 to all but the sender's]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64))]
    cores: Vec<u16>,
    /// Bytes in a frame, without headers; above 1400 the testbed has jumbo frames, which not every link can carry
    #[arg(long, value_name = "BYTES", default_value_t = 18, value_parser = clap::value_parser!(u16).range(2..=8900))]
    size: u16,
    /// Seconds of one measurement
    #[arg(long, value_name = "S", default_value = "0.5", value_parser = super::seconds)]
    time: Duration,
    /// Rounds in which all are measured in turn
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Outcome {
    let cores = machine::cpus().len();
    let receivers: Vec<usize> = match args.cores[..] {
        [] => (1..=cores.saturating_sub(1).max(1)).collect(),
        ref given => given.iter().map(|count| usize::from(*count)).collect(),
    };
    for link in &args.link {
        ensure!(
            matches!(
                link,
                LinkSpec::Udp(_) | LinkSpec::Packet(_) | LinkSpec::Xdp(_) | LinkSpec::Dpdk(_)
            ),
            "--link {link}: frames cross a network here; use udp, packet, xdp or dpdk"
        );
    }
    let mut ways = vec![Way(None)];
    ways.extend(args.link.iter().map(|link| Way(Some(*link))));
    let testbed = testbed(2, None, if args.size > 1400 { 9000 } else { 1500 })?;
    let (mut talk, machine) = Talk::begin(args.json);
    talk.say(&format!(
        "frames of {} bytes and headers, as fast as one core sends them, for {:?}; {} rounds in turn",
        args.size, args.time, args.rounds
    ));
    talk.say("between hosts of a testbed the sender's core also does the receiving kernel's work: where nothing is dropped, it is the limit");
    let mut results = Vec::new();
    for &count in &receivers {
        if count + 1 > cores {
            talk.say(&format!(
                "{count} receivers and a sender on {cores} cores take turns"
            ));
        }
        let mut rows =
            table::headed("received by | cores | offered/s | received/s | +-% | dropped/s | busy");
        let mut missing = Vec::new();
        let size = usize::from(args.size);
        let found = in_turn(args.rounds as usize, ways.len(), |way| {
            flood::measure(ways[way], &testbed, count, size, args.time)
        });
        ensure!(!stop::is_wanted(), Interrupted);
        for (way, found) in ways.iter().zip(found) {
            match found {
                Ok(list) => {
                    let of = |part: fn(&Flooded) -> f64| Rounds::over(&list, part);
                    let received = of(|one| one.received_per_second);
                    let [offered, dropped, busy] = [
                        of(|one| one.offered_per_second),
                        of(|one| one.dropped_per_second),
                        of(|one| one.receiver_cores),
                    ];
                    rows.push([
                        way.name(),
                        count.to_string(),
                        super::short(offered.median),
                        super::short(received.median),
                        received.half_spread(),
                        super::short(dropped.median),
                        format!("{:.0} %", 100.0 * busy.median),
                    ]);
                    results.push(json!({
                        "way": way.name(), "receivers": count, "offered_per_second": offered,
                        "received_per_second": received, "dropped_per_second": dropped, "receiver_cores": busy,
                    }));
                }
                Err(reason) => {
                    missing.push(format!("{}: not measured: {reason}", way.name()));
                    results
                        .push(json!({ "way": way.name(), "receivers": count, "missing": reason }));
                }
            }
        }
        talk.say(&table::aligned(&rows));
        missing.iter().for_each(|line| talk.say(line));
    }
    testbed.down()?;
    talk.end(&json!({
        "kind": "drop", "size": args.size, "seconds": args.time.as_secs_f64(), "machine": machine, "results": results,
    }))
}
