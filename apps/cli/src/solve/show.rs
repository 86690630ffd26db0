//! Display of a run: a bar while it iterates, a table for people, one object for scripts.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use tsumuji_bench::stats::counted;
use tsumuji_bench::table::report;
use tsumuji_solve::outlook::Outlook;
use tsumuji_solve::plan::Plan;
use tsumuji_solve::report::{Outcome, Progress, RELAXATION};

use super::planned::Compared;

/// Steps of the bar.
const STEPS: u64 = 1000;
/// Time between two readings of the clock while nothing else moves the bar.
const TICK: Duration = Duration::from_millis(200);
/// Redraws a second.
const REDRAWS: u8 = 10;

/// A progress bar on standard error, where that is a terminal. It advances with the exponent of the residual.
#[derive(Debug)]
pub(super) struct Bar {
    bar: ProgressBar,
    tolerance: f64,
    first: Option<f64>,
}

impl Bar {
    pub(super) fn new(tolerance: f64) -> Self {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr_with_hz(REDRAWS)
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(STEPS), target);
        Self {
            bar,
            tolerance,
            first: None,
        }
    }

    /// Shows the progress of the run.
    pub(super) fn update(&mut self, progress: &Progress) {
        if progress.distributed < 1.0 {
            self.moves_to((progress.distributed * STEPS as f64) as u64);
            self.bar.set_message("giving workers their rows");
            return;
        }
        if progress.laps_max == 0 {
            self.moves_to(0);
            self.bar.set_message("workers prepare their rows");
            return;
        }
        let residual = progress.residual_estimate;
        if residual.is_finite() && residual > 0.0 {
            let first = *self.first.get_or_insert(residual);
            self.moves_to(position(first, residual, self.tolerance));
        }
        self.bar.set_message(format!(
            "residual ~{residual:.1e} of {:.0e}, laps {}",
            self.tolerance,
            range(progress.laps_min, progress.laps_max)
        ));
    }

    /// Shows how far something before the first lap is, from 0 to 1; beyond: unknown.
    pub(super) fn prepare(&self, what: &str, part: f64) {
        self.moves_to((part * STEPS as f64) as u64);
        self.bar.set_message(what.to_owned());
        self.bar.enable_steady_tick(TICK);
    }

    /// At the beginning nothing is known of what is left.
    fn moves_to(&self, position: u64) {
        let template = match position {
            0 => "[{elapsed_precise}] {wide_bar} {msg}",
            _ => "[{elapsed_precise}] {wide_bar} {msg}, {eta} left",
        };
        let style = ProgressStyle::with_template(template);
        self.bar
            .set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        self.bar.set_position(position);
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// How far the exponent has come from `first` to `tolerance`, in steps.
fn position(first: f64, residual: f64, tolerance: f64) -> u64 {
    let whole = (first / tolerance).ln();
    let part = (first / residual).ln();
    if whole <= 0.0 {
        STEPS
    } else {
        (part / whole * STEPS as f64).clamp(0.0, STEPS as f64) as u64
    }
}

fn range(min: u64, max: u64) -> String {
    if min == max {
        min.to_string()
    } else {
        format!("{min}-{max}")
    }
}

/// Traffic and memory of the workers.
#[derive(Debug, Clone, Default)]
pub(super) struct Traffic {
    /// Frames given to the link, by all processes together.
    pub(super) frames_sent: u64,
    /// Frames that were lost, dropped on purpose or overwritten.
    pub(super) frames_lost: u64,
    /// Bytes given to the link.
    pub(super) bytes_sent: u64,
    /// Workers that were lost on the way.
    pub(super) lost_workers: usize,
    /// Workers that joined on the way and got rows.
    pub(super) joined: usize,
    /// Frames that workers gave to the link while they iterated; where several share a host, those that left it.
    pub(super) wire_frames: u64,
    /// Their bytes, with the headers of the link (Ethernet; IP and UDP).
    pub(super) wire_bytes: u64,
    /// Elements in a frame at the end, of each worker.
    pub(super) elements: Vec<u64>,
    /// Peak memory of each worker.
    pub(super) peak_rss_bytes: Vec<u64>,
    /// Laps of each worker that a thread beside its polling one computed.
    pub(super) laps_beside: Vec<u64>,
}

impl Traffic {
    /// Of a run without messages, in this process alone.
    pub(super) fn of_this_process() -> Self {
        Self {
            peak_rss_bytes: vec![tsumuji_solve::distributed::peak_rss_bytes()],
            ..Self::default()
        }
    }
}

/// Bytes of headers before a frame's own: Ethernet's, and IPv4's and UDP's within.
const ETHERNET_BYTES: u64 = 14;
const IP_UDP_BYTES: u64 = 28;

/// Bytes of headers that `link`, as the report names it, puts before a frame's own.
pub(crate) fn header_bytes(link: &str) -> u64 {
    let kind = link.strip_prefix("shm+").unwrap_or(link);
    match kind.split(':').next().unwrap_or(kind) {
        "shm" => 0,
        "udp" | "udp+multicast" => ETHERNET_BYTES + IP_UDP_BYTES,
        _ => ETHERNET_BYTES,
    }
}

impl Traffic {
    /// Adds the headers of `link` to the bytes of the frames.
    pub(super) fn with_headers(mut self, link: &str) -> Self {
        self.wire_bytes += header_bytes(link) * self.wire_frames;
        self
    }

    fn wire_bits_per_second(&self, seconds: f64) -> f64 {
        if seconds > 0.0 {
            8.0 * self.wire_bytes as f64 / seconds
        } else {
            0.0
        }
    }
}

/// Options of the run, as the report names them.
#[derive(Debug, Clone, Default)]
pub(super) struct Run {
    pub(super) system: String,
    pub(super) rows: usize,
    pub(super) mode: String,
    /// None for modes that use no link.
    pub(super) link: Option<String>,
    /// Which thread of a worker computes; none as `link`.
    pub(super) executor: Option<String>,
    pub(super) workers: usize,
    /// Threads of each worker; none as `link`.
    pub(super) threads: Option<usize>,
    /// The expected convergence, in one sentence.
    pub(super) outlook: Option<Outlook>,
    /// What `--plan` said of all methods and numbers of workers.
    pub(super) planned: Option<Plan>,
    /// What it said of the method that was used, and how it came.
    pub(super) plan: Option<Compared>,
}

/// The one object of `--json`. `errors`: of files that were not written.
pub(super) fn json_of(
    run: &Run,
    outcome: &Outcome,
    traffic: &Traffic,
    errors: &[String],
) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(outcome)?;
    let more = json!({
        "explanation": outcome.reason.to_string(),
        "workers": run.workers,
        "threads": run.threads,
        "link": run.link,
        "mode": run.mode,
        "executor": run.executor,
        "system": run.system,
        "rows": run.rows,
        "outlook": run.outlook,
        "planned": run.planned,
        "plan": run.plan,
        "frames_sent": traffic.frames_sent,
        "frames_lost": traffic.frames_lost,
        "bytes_sent": traffic.bytes_sent,
        "lost_workers": traffic.lost_workers,
        "joined": traffic.joined,
        "wire_frames": traffic.wire_frames,
        "wire_bits_per_second": traffic.wire_bits_per_second(outcome.seconds.iterate),
        "elements": traffic.elements,
        "peak_rss_bytes": traffic.peak_rss_bytes,
        "laps_beside": traffic.laps_beside,
    });
    if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
        value.extend(more);
        if !errors.is_empty() {
            value.insert("error".to_owned(), errors.join("; ").into());
        }
    }
    Ok(value)
}

/// The table for people.
pub(super) fn table(run: &Run, outcome: &Outcome, traffic: &Traffic) -> String {
    let seconds = |seconds: f64| format!("{:.3?}", Duration::from_secs_f64(seconds.max(0.0)));
    let each = match run.threads {
        Some(threads) if threads > 1 => format!(" of {threads} threads"),
        _ => String::new(),
    };
    let workers = counted(run.workers, "worker", "s") + &each;
    let where_to = run
        .link
        .as_ref()
        .map_or_else(String::new, |link| format!(" over {link}"));
    let (fewest, most) = (
        outcome.laps.iter().min().copied().unwrap_or(0),
        outcome.laps.iter().max().copied().unwrap_or(0),
    );
    let is_relaxation = outcome.method == RELAXATION;
    let mut rows = vec![
        ("result", outcome.reason.to_string()),
        (
            "residual",
            format!("{:.3e}  (|b - A x| / |b|, from the data)", outcome.residual),
        ),
        if is_relaxation {
            (
                "laps",
                format!(
                    "{} by {workers}{where_to}, {}; verified {} times",
                    range(fewest, most),
                    run.mode,
                    outcome.verifications
                ),
            )
        } else {
            let by = match (&run.link, run.workers) {
                (Some(_), _) => format!("{workers}{where_to}"),
                (None, 1) => "1 thread of this process".to_owned(),
                (None, threads) => format!("{threads} threads of this process"),
            };
            (
                "method",
                format!(
                    "{} by {by}, {most} iterations; verified {} times",
                    outcome.method, outcome.verifications
                ),
            )
        },
        (
            "time",
            format!(
                "load {}, distribute {}, iterate {}, verify {}",
                seconds(outcome.seconds.load),
                seconds(outcome.seconds.distribute),
                seconds(outcome.seconds.iterate),
                seconds(outcome.seconds.verify)
            ),
        ),
    ];
    if let Some(plan) = &run.plan {
        rows.push(("plan", plan.text()));
    }
    if let Some(executor) = &run.executor {
        let beside: u64 = traffic.laps_beside.iter().sum();
        let all: u64 = outcome.laps.iter().sum();
        rows.push((
            "executor",
            format!("{executor}; {beside} of {all} laps beside the polling threads"),
        ));
    }
    if run.link.is_some() {
        let megabytes = traffic.bytes_sent as f64 / 1e6;
        rows.push((
            "traffic",
            format!(
                "{} frames, {megabytes:.1} MB, {} frames lost; {:.1} Mbit/s on the wire while iterating",
                traffic.frames_sent,
                traffic.frames_lost,
                traffic.wire_bits_per_second(outcome.seconds.iterate) / 1e6
            ),
        ));
    }
    if let Some(most) = traffic.peak_rss_bytes.iter().max() {
        rows.push((
            "memory",
            format!("at most {:.1} MB a worker", *most as f64 / 1e6),
        ));
    }
    rows.extend(outcome.notes.iter().map(|note| ("note", note.clone())));
    report(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsumuji_solve::report::{Reason, Seconds};

    /// The bar advances with the exponent, and stays within its ends.
    #[test]
    fn bar_follows_the_exponent() {
        assert_eq!(position(1.0, 1.0, 1e-10), 0);
        assert_eq!(position(1.0, 1e-5, 1e-10), 500);
        assert_eq!(position(1.0, 1e-12, 1e-10), STEPS);
        assert_eq!(position(1.0, 10.0, 1e-10), 0);
        assert_eq!(position(1e-11, 1e-11, 1e-10), STEPS);
    }

    /// Headers are counted for each frame, by the kind of link.
    #[test]
    fn headers_are_counted() {
        let traffic = Traffic {
            wire_frames: 10,
            wire_bytes: 1000,
            ..Traffic::default()
        };
        for (link, bytes) in [
            ("shm", 1000),
            ("udp:10.0.0.1:7000", 1420),
            ("packet", 1140),
            ("xdp:eth0", 1140),
            ("shm+udp", 1420),
            ("shm+udp+multicast", 1420),
            ("shm+packet", 1140),
        ] {
            let counted = traffic.clone().with_headers(link);
            assert_eq!(counted.wire_bytes, bytes, "{link}");
            assert_eq!(counted.wire_bits_per_second(2.0), 4.0 * bytes as f64);
        }
    }

    /// JSON has the documented fields beside those of the outcome, and the table has the main ones.
    #[test]
    fn reports_are_complete() {
        let run = Run {
            system: "A.mtx".into(),
            rows: 3,
            mode: "async".into(),
            link: Some("shm".into()),
            executor: Some("adaptive".into()),
            workers: 2,
            threads: Some(3),
            outlook: None,
            planned: None,
            plan: None,
        };
        let outcome = Outcome {
            converged: true,
            reason: Reason::Converged,
            method: "relaxation".into(),
            residual: 3e-11,
            laps: vec![18, 20],
            verifications: 1,
            seconds: Seconds {
                load: 0.1,
                distribute: 0.2,
                iterate: 0.3,
                verify: 0.01,
                verify_last: 0.01,
            },
            notes: vec!["something to know".into()],
            x: vec![1.0; 3],
        };
        let traffic = Traffic {
            frames_sent: 10,
            frames_lost: 1,
            bytes_sent: 4000,
            lost_workers: 0,
            joined: 0,
            wire_frames: 9,
            wire_bytes: 3000,
            elements: vec![16, 16],
            peak_rss_bytes: vec![5_000_000, 6_000_000],
            laps_beside: vec![7, 0],
        };
        let value = json_of(&run, &outcome, &traffic, &[]).unwrap();
        assert!(value.get("error").is_none());
        let errors = ["x.npy: the disk is full", "a.csv: too"].map(str::to_owned);
        let failed = json_of(&run, &outcome, &traffic, &errors).unwrap();
        assert_eq!(failed["error"], "x.npy: the disk is full; a.csv: too");
        for field in [
            "converged",
            "reason",
            "residual",
            "laps",
            "verifications",
            "seconds",
            "workers",
            "threads",
            "link",
            "frames_sent",
            "frames_lost",
            "bytes_sent",
            "peak_rss_bytes",
            "executor",
            "laps_beside",
            "lost_workers",
            "joined",
            "wire_frames",
            "wire_bits_per_second",
            "elements",
            "method",
        ] {
            assert!(!value[field].is_null(), "{field} is missing");
        }
        let text = table(&run, &outcome, &traffic);
        for word in [
            "3.000e-11",
            "18-20 by 2 workers of 3 threads over shm",
            "iterate 300.000ms",
            "1 frames lost",
            "adaptive; 7 of 38 laps",
            "6.0 MB",
            "something to know",
        ] {
            assert!(text.contains(word), "{word} is missing in\n{text}");
        }
    }
}
