//! L2RTC's figure 12: sums of 32 values a second, ours over each link and executor, beside TCP and the paper's words.

use serde_json::{Value, json};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::sum32::Tcp;
use tsumuji_bench::sum32::verdict::{self, Against, Verdict};
use tsumuji_bench::table;
use tsumuji_testbed::Testbed;

use super::super::Args;
use super::{EXECUTORS, Found, child, entry, median, over_all_links, times};
use crate::Outcome;
use crate::bench::short;
use crate::talk::Talk;

const LOOPS: [u64; 4] = [1, 10, 100, 1000];
/// What the paper says of each number of loops: ours over TCP.
const PAPER: [&str; 4] = ["30x", "4x", "0.4x or 1.4x", "-"];
/// Requests on their way at a time: one, and many.
const OUTSTANDING: [u64; 2] = [1, 256];

/// What `bench sum32` printed over a link, or why it did not.
struct Measured(Found);

impl Measured {
    fn found(&self) -> Result<&Value, &str> {
        self.0.2.as_ref().map_err(String::as_str)
    }

    fn name(&self) -> String {
        let (place, link, _) = &self.0;
        format!("{link}, {place}")
    }

    /// Requests on their way at a time that were measured.
    fn outstanding(&self) -> Vec<u64> {
        let results = self
            .found()
            .ok()
            .and_then(|found| found["results"].as_array());
        let is_there = |many: &u64| {
            let mut all = results.into_iter().flatten();
            all.any(|result| result["outstanding"] == *many)
        };
        OUTSTANDING.into_iter().filter(is_there).collect()
    }

    fn result(&self, outstanding: u64, loops: u64) -> Option<&Value> {
        let mut results = self.found().ok()?["results"].as_array()?.iter();
        results.find(|result| result["outstanding"] == outstanding && result["loops"] == loops)
    }

    /// Sums a second of a contender.
    fn rate(&self, outstanding: u64, loops: u64, name: &str) -> Option<f64> {
        self.told(outstanding, loops, name, "sums_per_second")
    }

    /// Median of what is told of a contender.
    fn told(&self, outstanding: u64, loops: u64, name: &str, what: &str) -> Option<f64> {
        let contenders = self.result(outstanding, loops)?["contenders"].as_array()?;
        let contender = contenders.iter().find(|one| one["name"] == name)?;
        median(&contender[what])
    }

    /// What is said of the adaptive executor.
    fn verdict(&self, outstanding: u64, loops: u64, against: Against) -> Option<Verdict> {
        let verdicts = self.result(outstanding, loops)?["verdicts"].clone();
        let verdicts: Vec<Verdict> = serde_json::from_value(verdicts).ok()?;
        verdicts.into_iter().find(|one| one.against == against)
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
    let (mut talk, machine) = Talk::begin(args.json);
    talk.say("the paper's: 2 machines, Ryzen 5 3400G, Intel X540 (10 Gbit/s), DPDK; a client sends 64 bytes at full rate, the server adds up the 32 numbers");
    talk.say("in them, as often as said, and answers; operations a second, over those of TCP. The paper's words for 100 loops can mean 0.4x or 1.4x.");
    let rounds = args.rounds(3);
    let time = if args.quick { "0.05" } else { "0.3" };
    let loops = if args.quick {
        "1,1000".to_owned()
    } else {
        LOOPS.map(|loops| loops.to_string()).join(",")
    };
    let outstanding = if args.quick {
        OUTSTANDING[1].to_string()
    } else {
        OUTSTANDING.map(|many| many.to_string()).join(",")
    };
    let measure = |link: &'static str, testbed: Option<&Testbed>| {
        let line = format!(
            "bench sum32 --time {time} --rounds {rounds} --loops {loops} --outstanding {outstanding} --link {link}"
        );
        child(line.split(' '), testbed)
    };
    let mut show = |talk: &mut Talk, found: &Found| talk.say(&shown(&Measured(found.clone())));
    let all = over_all_links(&mut talk, &measure, &mut show)?;
    let all: Vec<Measured> = all.into_iter().map(Measured).collect();
    talk.say(&verdict::rule());
    let (beside, causes) = (beside(&all), causes(&all));
    talk.say(&table::aligned(&beside));
    talk.say("where the gain comes from, with many requests on their way, as ratios:");
    talk.say(&table::aligned(&causes));
    talk.say("the paper's claim on the caches: requests and other data of the server side by side (one host, shm, 256 requests, loop 1)");
    let sweep = sweep(rounds, time, args.quick);
    talk.say(&table::aligned(&sweep));
    let mut found = all.iter().filter_map(|one| one.found().ok()).peekable();
    let uncounted = match found.peek() {
        None => Some("no link was measured"),
        Some(_) => found.find_map(|found| found["cache_misses_reason"].as_str()),
    };
    let misses = match uncounted {
        Some(reason) => {
            talk.say(reason);
            Value::Null
        }
        None => {
            talk.say("misses of the nearest data cache for each sum, of client and server, 256 requests, loop 1");
            let misses = misses(&all);
            talk.say(&table::aligned(&misses));
            json!(misses)
        }
    };
    let links: Vec<Value> = all.iter().map(|Measured(found)| entry(found)).collect();
    talk.end(&json!({
        "figure": "l2rtc-fig12", "machine": machine, "loops": LOOPS, "paper": PAPER,
        "beside": beside, "causes": causes, "working_sets": sweep, "cache_misses": misses,
        "cache_misses_reason": uncounted, "links": links,
    }))
}

/// All numbers of a link.
fn shown(measured: &Measured) -> String {
    let title = measured.name();
    if let Err(reason) = measured.found() {
        return format!("{title}: not measured: {reason}");
    }
    let mut rows = Vec::new();
    for outstanding in measured.outstanding() {
        let head = match outstanding {
            1 => "one request".to_owned(),
            many => format!("{many} requests"),
        };
        rows.push(row(head, |loops| format!("{loops} loops")));
        let names = EXECUTORS.map(|executor| format!("ours, {executor}"));
        let tcp = ["TCP", "TCP, NODELAY", "TCP, NODELAY, batched calls"].map(str::to_owned);
        for name in names.into_iter().chain(tcp) {
            let cell = |loops| table::cell(measured.rate(outstanding, loops, &name), short);
            rows.push(row(name.clone(), cell));
        }
        rows.push(row("limit: one core".to_owned(), |loops| {
            let result = measured.result(outstanding, loops);
            let limit = result.and_then(|result| result["compute_per_second"].as_f64());
            table::cell(limit, short)
        }));
        for against in Against::ALL {
            rows.push(row(against.name().to_owned(), |loops| {
                let verdict = measured.verdict(outstanding, loops, against);
                table::cell(verdict, |verdict| verdict.text())
            }));
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
        row("over TCP, by loops".to_owned(), |loops| loops.to_string()),
        ["paper".to_owned(), a, b, c, d],
    ];
    for measured in all.iter().filter(|one| one.found().is_ok()) {
        for outstanding in measured.outstanding() {
            let tcp = |loops| measured.rate(outstanding, loops, "TCP, NODELAY");
            let many = if outstanding == 1 { "one" } else { "many" };
            let name = format!("{}, {many}", measured.name());
            let cell = |loops| times(measured.best(outstanding, loops), tcp(loops));
            rows.push(row(name, cell));
        }
    }
    rows
}

/// Sums a second with other data of the server, which take the caches from the requests: were the nearest cache the cause of the gain, it would shrink
/// when those data exceed it.
fn sweep(rounds: u64, time: &str, quick: bool) -> Vec<[String; 6]> {
    let mut rows =
        table::headed("other data | rtc | pipeline | TCP, batched | rtc/pipeline | rtc/TCP");
    let sizes: &[&str] = if quick {
        &["0"]
    } else {
        &["0", "16K", "256K", "4M", "64M"]
    };
    for size in sizes {
        let line = format!(
            "bench sum32 --link shm --loops 1 --outstanding 256 --executor rtc,pipeline --rounds {rounds} --time {time} --working-set {size}"
        );
        let one = Measured(("one host", "shm", child(line.split(' '), None)));
        let rate = |name| one.rate(256, 1, name);
        let (rtc, pipeline) = (rate("ours, rtc"), rate("ours, pipeline"));
        let tcp = rate("TCP, NODELAY, batched calls");
        let told = |rate: Option<f64>| table::cell(rate, short);
        rows.push([
            format!("{size}B"),
            told(rtc),
            told(pipeline),
            told(tcp),
            times(rtc, pipeline),
            times(rtc, tcp),
        ]);
    }
    rows
}

/// Misses of the nearest data cache for each sum, where they were counted.
fn misses(all: &[Measured]) -> Vec<[String; 4]> {
    let mut rows = table::headed("link | rtc | pipeline | TCP, batched");
    rows.extend(all.iter().filter(|one| one.found().is_ok()).map(|one| {
        let cell = |name| {
            let misses = one.told(OUTSTANDING[1], 1, name, "cache_misses_per_sum");
            table::number(misses, 2, "")
        };
        let tcp = Tcp::Batched.name();
        let [rtc, pipeline, tcp] = ["ours, rtc", "ours, pipeline", tcp].map(cell);
        [one.name(), rtc, pipeline, tcp]
    }));
    rows
}

/// Shares of the gain: each row divides one way by another that differs in one thing.
fn causes(all: &[Measured]) -> Vec<[String; 5]> {
    const MANY: u64 = OUTSTANDING[1];
    let find = |place: &str, link: &str| all.iter().find(|one| (one.0.0, one.0.1) == (place, link));
    let rtc = |place: &'static str, link: &'static str| {
        move |loops| find(place, link)?.ours(MANY, loops, "rtc")
    };
    let kernel =
        |name: &'static str| move |loops| find("two hosts", "udp")?.rate(MANY, loops, name);
    let mut rows = vec![row("step, by loops".to_owned(), |loops| loops.to_string())];
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
        "leaving TCP: ours over UDP / TCP, batched calls",
        &udp,
        &kernel("TCP, NODELAY, batched calls"),
    );
    step(
        "leaving IP: packet / UDP",
        &rtc("two hosts", "packet"),
        &udp,
    );
    step(
        "leaving the kernel's stack: xdp / packet",
        &rtc("two hosts", "xdp"),
        &rtc("two hosts", "packet"),
    );
    step(
        "leaving the kernel: dpdk (memif) / UDP, one host",
        &rtc("one host", "dpdk:net_memif"),
        &rtc("one host", "udp"),
    );
    step(
        "rtc / pipeline, dpdk (memif)",
        &rtc("one host", "dpdk:net_memif"),
        &|loops| find("one host", "dpdk:net_memif")?.ours(MANY, loops, "pipeline"),
    );
    rows
}
