//! L2RTC's figure 12: sums of 32 values a second, ours over each link and executor, beside TCP and the paper's words.
//!
//! Each link is measured by `tsumuji bench sum32` in a process of its own, because DPDK starts once in a process, and because node 0 runs in its host's
//! namespace.

use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::stop;
use tsumuji_bench::table;
use tsumuji_testbed::Testbed;

use super::Args;
use crate::bench::compare::testbed;
use crate::interrupt::Interrupted;
use crate::talk::Talk;
use crate::{DONE, Outcome, output};

const LOOPS: [u64; 4] = [1, 10, 100, 1000];
/// What the paper says of each number of loops: ours over TCP.
const PAPER: [&str; 4] = ["30x", "4x", "0.4x or 1.4x", "-"];
/// Requests on their way at a time: one, and many.
const OUTSTANDING: [u64; 2] = [1, 256];
/// Links within this host, and between hosts of a testbed.
const HERE: [&str; 3] = ["shm", "udp", "dpdk:net_memif"];
const BETWEEN: [&str; 4] = ["udp", "packet", "xdp", "dpdk:net_af_packet"];
const EXECUTORS: [&str; 3] = ["rtc", "pipeline", "adaptive"];

/// The result of one link: its place and name, and what `bench sum32` printed, or why it did not.
struct Measured {
    place: &'static str,
    link: &'static str,
    found: Result<Value, String>,
}

impl Measured {
    /// Sums a second of a contender.
    fn rate(&self, outstanding: u64, loops: u64, name: &str) -> Option<f64> {
        let results = self.found.as_ref().ok()?["results"].as_array()?;
        let result = results
            .iter()
            .find(|result| result["outstanding"] == outstanding && result["loops"] == loops)?;
        let contenders = result["contenders"].as_array()?;
        let contender = contenders.iter().find(|one| one["name"] == name)?;
        contender["sums_per_second"]["median"].as_f64()
    }

    fn ours(&self, outstanding: u64, loops: u64, executor: &str) -> Option<f64> {
        self.rate(outstanding, loops, &format!("ours, {executor}"))
    }

    /// The best of ours.
    fn best(&self, outstanding: u64, loops: u64) -> Option<f64> {
        let all = EXECUTORS.iter();
        all.filter_map(|executor| self.ours(outstanding, loops, executor))
            .reduce(f64::max)
    }
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Outcome {
    ensure!(
        args.nodes.is_empty()
            && args.link.is_none()
            && args.rate.is_none()
            && args.largest.is_none()
            && args.iterations.is_none()
            && args.csv.is_none()
            && args.plot.is_none(),
        "l2rtc-fig12 takes --rounds, --quick and --json only: it measures all links between two processes"
    );
    let mut talk = Talk::new(args.json);
    let machine = talk.machine();
    talk.say("the paper's: 2 machines, Ryzen 5 3400G, Intel X540 (10 Gbit/s), DPDK; a client sends 64 bytes at full rate, the server adds up the 32 numbers");
    talk.say("in them, as often as said, and answers; operations a second, over those of TCP. The paper's words for 100 loops can mean 0.4x or 1.4x.");
    let program = std::env::current_exe().context("this program's own file")?;
    let rounds = args
        .rounds
        .unwrap_or(if args.quick { 1 } else { 3 })
        .to_string();
    let time = if args.quick { "0.05" } else { "0.3" };
    let loops = if args.quick {
        "1,1000".to_owned()
    } else {
        LOOPS.map(|loops| loops.to_string()).join(",")
    };
    let outstanding = OUTSTANDING.map(|many| many.to_string()).join(",");
    let words = [
        "bench",
        "sum32",
        "--json",
        "--time",
        time,
        "--rounds",
        &rounds,
        "--loops",
        &loops,
        "--outstanding",
        &outstanding,
    ];
    let measure = |link: &'static str, testbed: Option<&Testbed>| {
        let mut command = Command::new(&program);
        command.args(words).args(["--link", link]);
        if let Some(testbed) = testbed {
            command
                .arg("--hosts")
                .arg(testbed.hosts_file())
                .arg("--open");
        }
        let output = match command.output() {
            Ok(output) => output,
            Err(error) => return Err(error.to_string()),
        };
        let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        match (output.status.success(), found["error"].as_str()) {
            (true, _) => Ok(found),
            (false, Some(error)) => Err(error.to_owned()),
            (false, None) => Err("it ended without a result".to_owned()),
        }
    };
    let mut all = Vec::new();
    let mut take = |place: &'static str, link: &'static str, testbed: Option<&Testbed>| {
        let found = measure(link, testbed);
        ensure!(!stop::is_wanted(), Interrupted);
        let measured = Measured { place, link, found };
        talk.say(&shown(&measured));
        all.push(measured);
        Ok(())
    };
    for link in HERE {
        take("one host", link, None)?;
    }
    match testbed(2, None, 1500) {
        Ok(testbed) => {
            let taken: anyhow::Result<()> = BETWEEN
                .into_iter()
                .try_for_each(|link| take("two hosts", link, Some(&testbed)));
            testbed.down()?;
            taken?;
        }
        Err(error) => {
            let reason = format!("no testbed: {error}");
            for link in BETWEEN {
                let found = Err(reason.clone());
                all.push(Measured {
                    place: "two hosts",
                    link,
                    found,
                });
            }
            talk.say(&format!("without links between hosts: {reason}"));
        }
    }
    let (beside, causes) = (beside(&all), causes(&all));
    talk.say(&table::aligned(&beside));
    talk.say("where the gain comes from, with many requests on their way:");
    talk.say(&table::aligned(&causes));
    drop(talk);
    if args.json {
        let links: Vec<Value> = all
            .iter()
            .map(|one| match &one.found {
                Ok(found) => json!({ "place": one.place, "link": one.link, "measured": found }),
                Err(reason) => json!({ "place": one.place, "link": one.link, "missing": reason }),
            })
            .collect();
        output::print_json(&json!({
            "figure": "l2rtc-fig12", "machine": machine, "loops": LOOPS, "paper": PAPER,
            "beside": beside, "causes": causes, "links": links,
        }));
    }
    Ok(DONE)
}

/// `1.23M`, `45.6k`.
fn short(rate: Option<f64>) -> String {
    match rate {
        None => "-".to_owned(),
        Some(rate) if rate >= 1e6 => format!("{:.2}M", rate / 1e6),
        Some(rate) if rate >= 1e3 => format!("{:.1}k", rate / 1e3),
        Some(rate) => format!("{rate:.0}"),
    }
}

fn times(one: Option<f64>, other: Option<f64>) -> String {
    one.zip(other).map_or_else(
        || "-".to_owned(),
        |(one, other)| format!("{:.2}x", one / other),
    )
}

/// All numbers of a link.
fn shown(measured: &Measured) -> String {
    let title = format!("{} over {}", measured.place, measured.link);
    if let Err(reason) = &measured.found {
        return format!("{title}: not measured: {reason}");
    }
    let mut rows = Vec::new();
    for outstanding in OUTSTANDING {
        let head = match outstanding {
            1 => "one request".to_owned(),
            many => format!("{many} requests"),
        };
        rows.push(row(head, |loops| format!("{loops} loops")));
        let names = EXECUTORS.map(|executor| format!("ours, {executor}"));
        let tcp = ["TCP", "TCP, NODELAY", "TCP, NODELAY, batched calls"].map(str::to_owned);
        for name in names.into_iter().chain(tcp) {
            let cell = |loops| short(measured.rate(outstanding, loops, &name));
            rows.push(row(name.clone(), cell));
        }
    }
    format!("{title}, sums a second:\n{}", table::aligned(&rows))
}

fn row(name: String, cell: impl Fn(u64) -> String) -> [String; 5] {
    let [a, b, c, d] = LOOPS.map(cell);
    [name, a, b, c, d]
}

/// The paper's words beside ours over each link, as times of TCP with NODELAY, one call a message.
fn beside(all: &[Measured]) -> Vec<[String; 5]> {
    let [a, b, c, d] = PAPER.map(str::to_owned);
    let mut rows = vec![
        row("over TCP".to_owned(), |loops| format!("{loops} loops")),
        ["paper".to_owned(), a, b, c, d],
    ];
    for measured in all.iter().filter(|measured| measured.found.is_ok()) {
        for outstanding in OUTSTANDING {
            let tcp = |loops| measured.rate(outstanding, loops, "TCP, NODELAY");
            let name = format!(
                "{}, {}, {outstanding} on the way",
                measured.link, measured.place
            );
            let cell = |loops| times(measured.best(outstanding, loops), tcp(loops));
            rows.push(row(name, cell));
        }
    }
    rows
}

/// Shares of the gain: each row divides one way by another that differs in one thing.
fn causes(all: &[Measured]) -> Vec<[String; 5]> {
    const MANY: u64 = OUTSTANDING[1];
    let find = |place: &str, link: &str| {
        all.iter()
            .find(|measured| measured.place == place && measured.link == link)
    };
    let rtc = |place: &'static str, link: &'static str| {
        move |loops| find(place, link)?.ours(MANY, loops, "rtc")
    };
    let kernel =
        |name: &'static str| move |loops| find("two hosts", "udp")?.rate(MANY, loops, name);
    let mut rows = vec![row("step".to_owned(), |loops| format!("{loops} loops"))];
    let mut step =
        |name: &str, one: &dyn Fn(u64) -> Option<f64>, other: &dyn Fn(u64) -> Option<f64>| {
            rows.push(row(name.to_owned(), |loops| {
                times(one(loops), other(loops))
            }));
        };
    let udp = rtc("two hosts", "udp");
    step(
        "one call for many messages (TCP)",
        &kernel("TCP, NODELAY, batched calls"),
        &kernel("TCP, NODELAY"),
    );
    step(
        "leaving TCP: ours over UDP, against TCP with batched calls",
        &udp,
        &kernel("TCP, NODELAY, batched calls"),
    );
    step(
        "leaving IP: packet against UDP",
        &rtc("two hosts", "packet"),
        &udp,
    );
    step(
        "leaving the kernel's network stack: xdp against packet",
        &rtc("two hosts", "xdp"),
        &rtc("two hosts", "packet"),
    );
    step(
        "leaving the kernel: dpdk (memif) against UDP on one host",
        &rtc("one host", "dpdk:net_memif"),
        &rtc("one host", "udp"),
    );
    step(
        "run-to-completion against pipeline, dpdk (memif)",
        &rtc("one host", "dpdk:net_memif"),
        &|loops| find("one host", "dpdk:net_memif")?.ours(MANY, loops, "pipeline"),
    );
    rows
}
