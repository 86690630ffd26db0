//! A reading of the nodes as a table for people.

use std::fmt::Write;
use std::time::Duration;

use tsumuji_bench::table::{cell, number};

use super::nodes::{Executor, Node, Peer, Reading};

/// A node that polls publishes ten times a second; one that is silent for longer computes between polls.
const QUIET_AFTER: Duration = Duration::from_secs(2);

/// A column of the table.
struct Column {
    heading: &'static str,
    /// At least the heading's width.
    width: usize,
    /// Columns with the highest number are left out first where the table is too wide.
    spare: u8,
}

const fn column(heading: &'static str, width: usize, spare: u8) -> Column {
    Column {
        heading,
        width,
        spare,
    }
}

/// Without the columns whose `spare` is not 0, and with a name of [`NAME_CHARS`], the table fits 80 characters.
const COLUMNS: [Column; 19] = [
    column("JOB", 7, 4),
    column("PID", 7, 5),
    column("NODE", 4, 0),
    column("LINK", 6, 1),
    column("UP", 5, 0),
    column("CPU%", 4, 0),
    column("SENT/s", 6, 7),
    column("OUT B/s", 7, 0),
    column("RECV/s", 6, 7),
    column("IN B/s", 6, 0),
    column("MSG/s", 6, 0),
    column("AGAIN/s", 7, 0),
    column("LOST/s", 6, 0),
    column("LATE/s", 6, 3),
    column("QUEUED", 6, 0),
    column("RTT", 6, 0),
    column("WINDOW", 6, 2),
    column("GRANT%", 6, 6),
    column("MEM%", 4, 3),
];

/// Least width of a name where the table is narrow.
const NAME_CHARS: usize = 10;

/// The table, at most `width` characters wide but no narrower than 80; with lines for each flow if wanted.
pub(super) fn of(reading: &Reading, flows: bool, width: usize) -> String {
    let mut text = String::new();
    if reading.nodes.is_empty() {
        return "no nodes run here (of this user, in this network namespace)\n".to_owned();
    }
    let spare = spare_below(width);
    let shown = |column: &Column| column.spare < spare;
    for Column { heading, width, .. } in COLUMNS.iter().filter(|column| shown(column)) {
        let _ = write!(text, "{heading:>width$} ");
    }
    text.push_str("NAME\n");
    let nodes = reading.in_order();
    let several = nodes.windows(2).any(|pair| pair[0].job != pair[1].job);
    let mut job = None;
    for node in nodes {
        if several && !shown(&COLUMNS[0]) && job.replace(node.job) != Some(node.job) {
            let _ = writeln!(text, "job {}", node.job);
        }
        for (cell, column) in cells(node).iter().zip(&COLUMNS) {
            if shown(column) {
                let _ = write!(text, "{cell:>width$} ", width = column.width);
            }
        }
        let _ = writeln!(text, "{}{}", node.name, remark(node));
        for executor in &node.executors {
            served(&mut text, executor);
        }
        for peer in node.peers.iter().filter(|_| flows) {
            flow(&mut text, peer);
        }
    }
    text
}

/// Columns whose `spare` is lower than this fit.
fn spare_below(width: usize) -> u8 {
    let needed = |spare: u8| -> usize {
        let shown = COLUMNS.iter().filter(|column| column.spare < spare);
        shown.map(|column| column.width + 1).sum::<usize>() + NAME_CHARS
    };
    let all = COLUMNS.iter().map(|column| column.spare + 1).max();
    (1..=all.unwrap_or(1))
        .rev()
        .find(|&spare| needed(spare) <= width)
        .unwrap_or(1)
}

fn cells(node: &Node) -> [String; COLUMNS.len()] {
    let rate = |names: &[&str]| {
        let rates = names.iter().map(|name| node.rates.get(name));
        cell(rates.sum(), short)
    };
    let part = |used: &str, whole: &str| {
        let part = node.gauges.get(used).zip(node.gauges.get(whole));
        let part = part.filter(|(_, whole)| **whole > 0.0);
        number(part.map(|(used, whole)| 100.0 * used / whole), 0, "")
    };
    let over_peers = |name: &'static str| node.peers.iter().map(move |peer| peer.get(name));
    let up = over_peers("peer_up").filter(|up| *up > 0.0).count();
    // The worst of all peers is the most interesting one.
    let rtt = over_peers("rtt_seconds").fold(0.0, f64::max);
    let window = over_peers("window_bytes").reduce(f64::min);
    [
        node.job.to_string(),
        node.pid.to_string(),
        node.id.to_string(),
        node.link.clone(),
        format!("{up}/{}", node.peers.len()),
        number(node.cpu_percent, 0, ""),
        rate(&["frames_sent"]),
        rate(&["sent_bytes"]),
        rate(&["frames_received"]),
        rate(&["received_bytes"]),
        rate(&["messages_delivered"]),
        rate(&["frames_retransmitted"]),
        rate(&[
            "frames_dropped",
            "link_frames_dropped",
            "link_frames_overrun",
            "link_frames_impaired",
            "seal_frames_dropped",
            "seal_frames_unsent",
        ]),
        rate(&["datagrams_superseded", "datagrams_late", "datagrams_lost"]),
        short(over_peers("queued_messages").sum()),
        time(rtt),
        cell(window, short),
        part("granted_frames", "window_frames"),
        part("budget_used_bytes", "budget_bytes"),
    ]
}

fn remark(node: &Node) -> String {
    match node.age {
        None => " (does not answer)".to_owned(),
        Some(age) if age >= QUIET_AFTER => {
            format!(" (has not polled for {} s)", age.as_secs())
        }
        Some(_) => String::new(),
    }
}

/// An executor in one line: who serves a channel now, and why.
fn served(text: &mut String, executor: &Executor) {
    let place = match executor.place.as_str() {
        "workers" if executor.workers == "1" => "1 worker".to_owned(),
        "workers" => format!("{} workers", executor.workers),
        _ => "the driving thread".to_owned(),
    };
    let _ = writeln!(
        text,
        "   channel {} ({}): {place}, {}; {} a call, {} wait, moved {} times",
        executor.channel,
        executor.executor,
        executor.reason,
        time(executor.call_seconds),
        short(executor.waiting_messages),
        short(executor.moves),
    );
}

/// A flow in three lines of at most 80 characters, except for long names: state of the peer, what waits for it, what it may send here.
fn flow(text: &mut String, peer: &Peer) {
    let state = if peer.get("peer_up") > 0.0 {
        "up"
    } else {
        "down"
    };
    let number = |name: &str| short(peer.get(name));
    let _ = writeln!(
        text,
        "   → {} ({}) {state}: rtt {}, in flight {}, credit {}, window {}B",
        peer.id,
        peer.name,
        time(peer.get("rtt_seconds")),
        number("in_flight_frames"),
        number("credit_frames"),
        number("window_bytes"),
    );
    let pace = match peer.find("pace_bytes_per_second") {
        None => "free".to_owned(),
        Some(rate) if rate > 0.0 => format!("{}B/s", short(rate)),
        Some(_) => "drain".to_owned(),
    };
    let _ = writeln!(
        text,
        "     queued {} ({}B), again {}, replaced {}, late {}, lost {}",
        number("queued_messages"),
        number("queued_bytes"),
        number("retransmitted_total"),
        number("datagrams_superseded_total"),
        number("datagrams_late_total"),
        number("datagrams_lost_total"),
    );
    let more = if peer.get("incoming_backlog") > 0.0 {
        ", more to come"
    } else {
        ""
    };
    let _ = writeln!(
        text,
        "     pace {pace} ← granted {} of {}, memory {}B{more}",
        number("incoming_granted_frames"),
        number("incoming_window_frames"),
        number("incoming_memory_bytes"),
    );
}

/// A number in at most six characters.
fn short(value: f64) -> String {
    const UNITS: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    let mut value = if value.is_finite() { value } else { 0.0 };
    let mut unit = 0;
    while value >= 9999.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    let digits = usize::from(unit > 0 && value < 99.95);
    format!("{value:.digits$}{}", UNITS[unit])
}

/// A time: `700ns`, `12us`, `3.4ms`, `1.2s`; `-` before the first sample.
fn time(seconds: f64) -> String {
    match seconds {
        s if !s.is_finite() || s <= 0.0 => "-".to_owned(),
        s if s < 999.5e-9 => format!("{:.0}ns", s * 1e9),
        s if s < 999.5e-6 => format!("{:.0}us", s * 1e6),
        s if s < 0.9995 => format!("{:.1}ms", s * 1e3),
        s => format!("{s:.1}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::nodes::tests::{node, reading, text};
    use super::*;

    /// Numbers of any size stay within their columns.
    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (999.6, "1000"),
            (9999.4, "9999"),
            (9999.6, "10.0k"),
            (123_456.0, "123k"),
            (12_345_678.0, "12.3M"),
            (f64::INFINITY, "0"),
        ];
        for (value, expected) in cases {
            assert_eq!(short(value), expected);
        }
        for power in 0..18 {
            assert!(short(9.999 * 10_f64.powi(power)).len() <= 6);
        }
        for (seconds, expected) in [
            (0.0, "-"),
            (2.4e-7, "240ns"),
            (12e-6, "12us"),
            (3.4e-3, "3.4ms"),
            (2.0, "2.0s"),
        ] {
            assert_eq!(time(seconds), expected);
        }
    }

    /// Each node has its line, and each flow its lines where wanted; unknown values are a dash.
    #[test]
    fn table_has_all_nodes() {
        let reading = reading(vec![node(11, 1, &text(10.0, 1000)), node(12, 1, "")]);
        let plain = of(&reading, false, usize::MAX);
        let lines: Vec<&str> = plain.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].trim_start().starts_with("JOB") && lines[0].ends_with("NAME"));
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(words[..5], ["11", "11", "1", "shm", "1/1"]);
        assert!(
            lines[1].contains(" 12us ") && lines[1].ends_with(" w?1"),
            "{}",
            lines[1]
        );
        assert!(lines[2].ends_with("? (does not answer)"));
        let flows = of(&reading, true, usize::MAX);
        assert_eq!(flows.lines().count(), 6);
        assert!(flows.contains("→ 3 (x) up: rtt 12us"), "{flows}");
        assert!(flows.contains("pace free ← granted 0 of 0"), "{flows}");
        assert!(!flows.contains('\u{1b}'));
    }

    /// An executor has a line below its node: where its service is, and why.
    #[test]
    fn executors_are_shown() {
        let info = |place: &str, reason: &str| {
            format!(
                "{}tsumuji_executor_info{{channel=\"7\",executor=\"adaptive\",place=\"{place}\",reason=\"{reason}\",workers=\"3\"}} 1\n\
                 tsumuji_executor_call_seconds{{channel=\"7\"}} 1.2e-5\ntsumuji_executor_waiting_messages{{channel=\"7\"}} 34\n\
                 tsumuji_executor_waiting_messages{{channel=\"8\"}} 99\ntsumuji_executor_moves_total{{channel=\"7\"}} 2\n",
                text(10.0, 1000)
            )
        };
        for (place, reason, wanted) in [
            ("workers", "heavy", "3 workers, heavy"),
            ("driver", "light", "the driving thread, light"),
        ] {
            let reading = reading(vec![node(11, 1, &info(place, reason))]);
            let shown = of(&reading, false, 80);
            let line = shown.lines().nth(2).unwrap();
            let line = line.trim_start();
            let wanted =
                format!("channel 7 (adaptive): {wanted}; 12us a call, 34 wait, moved 2 times");
            assert_eq!(line, wanted);
            let executors = &reading.json()["nodes"][0]["executors"];
            assert_eq!(executors[0]["reason"], reason);
            assert_eq!(executors[0]["waiting_messages"], 34.0);
        }
    }

    /// At a width of 80 the table is no wider, whatever the numbers are, and jobs can still be told apart.
    #[test]
    fn table_fits_a_small_terminal() {
        let busy = format!(
            "{}tsumuji_pace_bytes_per_second{{peer=\"3\"}} 123456789\ntsumuji_incoming_backlog{{peer=\"3\"}} 1\n",
            text(10.0, 1000)
        );
        let large: String = [
            "in_flight_frames",
            "credit_frames",
            "window_bytes",
            "queued_messages",
            "queued_bytes",
            "retransmitted_total",
            "datagrams_superseded_total",
            "datagrams_late_total",
            "datagrams_lost_total",
            "incoming_granted_frames",
            "incoming_window_frames",
            "incoming_memory_bytes",
        ]
        .map(|name| format!("tsumuji_{name}{{peer=\"3\"}} 123456789012\n"))
        .concat();
        let reading = reading(vec![
            node(11, 5, &(busy.clone() + &large)),
            node(12, 6, &busy),
        ]);
        for width in [0, 80, 100, 120, 140, 170] {
            let table = of(&reading, true, width);
            let widest = table.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(width.max(80)), "{width}:\n{table}");
            let jobs = table.lines().filter(|line| line.starts_with("job "));
            assert_eq!(jobs.count(), if table.contains("JOB") { 0 } else { 2 });
        }
        for heading in COLUMNS.map(|column| column.heading) {
            assert!(of(&reading, false, 170).contains(heading), "{heading}");
        }
        let headings = of(&reading, false, 80);
        for heading in ["NODE", "UP", "CPU%", "MSG/s", "LOST/s", "QUEUED", "RTT"] {
            assert!(headings.contains(heading), "{heading}");
        }
    }
}
