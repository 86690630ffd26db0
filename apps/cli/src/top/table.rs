//! A look at the nodes as a table for people.

use std::fmt::Write;
use std::time::Duration;

use super::nodes::{Look, Node, Peer};

/// A node that polls publishes ten times a second; one that computes long between polls is told from one that does not.
const QUIET_AFTER: Duration = Duration::from_secs(2);

/// Heading, and width of the column (at least its heading's).
const COLUMNS: [(&str, usize); 16] = [
    ("JOB", 7),
    ("PID", 7),
    ("NODE", 4),
    ("LINK", 6),
    ("UP", 7),
    ("CPU%", 5),
    ("SENT/s", 7),
    ("B/s", 7),
    ("RECV/s", 7),
    ("B/s", 7),
    ("MSG/s", 7),
    ("AGAIN/s", 7),
    ("LOST/s", 7),
    ("QUEUED", 7),
    ("RTT", 6),
    ("WINDOW", 7),
];

/// The table; with a line for each flow if wanted.
pub(super) fn of(look: &Look, flows: bool) -> String {
    let mut text = String::new();
    if look.nodes.is_empty() {
        return "no nodes run here (of this user, in this network namespace)\n".to_owned();
    }
    for (heading, width) in COLUMNS {
        let _ = write!(text, "{heading:>width$} ");
    }
    text.push_str("NAME\n");
    for node in look.in_order() {
        for (cell, (_, width)) in cells(node).iter().zip(COLUMNS) {
            let _ = write!(text, "{cell:>width$} ");
        }
        let _ = writeln!(text, "{}{}", node.name, remark(node));
        for peer in node.peers.iter().filter(|_| flows) {
            flow(&mut text, peer);
        }
    }
    text
}

fn cells(node: &Node) -> [String; 16] {
    let rate = |names: &[&str]| {
        let rates = names.iter().map(|name| node.rates.get(name));
        rates
            .sum::<Option<f64>>()
            .map_or_else(|| "-".to_owned(), short)
    };
    let over_peers = |name: &'static str| node.peers.iter().map(move |peer| peer.get(name));
    let up = over_peers("peer_up").filter(|up| *up > 0.0).count();
    // The worst of all peers: that is where to look.
    let rtt = over_peers("rtt_seconds").fold(0.0, f64::max);
    let window = over_peers("window_bytes").reduce(f64::min);
    [
        node.job.to_string(),
        node.pid.to_string(),
        node.id.to_string(),
        node.link.clone(),
        format!("{up}/{}", node.peers.len()),
        node.cpu_percent
            .map_or_else(|| "-".to_owned(), |percent| format!("{percent:.0}")),
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
        short(over_peers("queued_messages").sum()),
        time(rtt),
        window.map_or_else(|| "-".to_owned(), short),
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

fn flow(text: &mut String, peer: &Peer) {
    let state = if peer.get("peer_up") > 0.0 {
        "up"
    } else {
        "down"
    };
    let _ = writeln!(
        text,
        "{:>21} {} ({}) {state}: rtt {}, in flight {}, credit {}, window {}B, queued {} ({}B), again {}",
        "→",
        peer.id,
        peer.name,
        time(peer.get("rtt_seconds")),
        short(peer.get("in_flight_frames")),
        short(peer.get("credit_frames")),
        short(peer.get("window_bytes")),
        short(peer.get("queued_messages")),
        short(peer.get("queued_bytes")),
        short(peer.get("retransmitted_total")),
    );
}

/// At most six characters.
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

/// Of a round trip: `12us`, `3.4ms`, `1.2s`; `-` before the first sample.
fn time(seconds: f64) -> String {
    match seconds {
        s if !s.is_finite() || s <= 0.0 => "-".to_owned(),
        s if s < 999.5e-6 => format!("{:.0}us", s * 1e6),
        s if s < 0.9995 => format!("{:.1}ms", s * 1e3),
        s => format!("{s:.1}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::nodes::tests::{look, node, text};
    use super::*;

    /// Numbers stay within their columns, whatever they are.
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
            (12e-6, "12us"),
            (3.4e-3, "3.4ms"),
            (2.0, "2.0s"),
        ] {
            assert_eq!(time(seconds), expected);
        }
    }

    /// Each node has its line, and each flow where wanted; what is not known is a dash.
    #[test]
    fn table_has_all_nodes() {
        let look = look(vec![node(11, 1, &text(10.0, 1000)), node(12, 1, "")]);
        let plain = of(&look, false);
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
        let flows = of(&look, true);
        assert_eq!(flows.lines().count(), 4);
        assert!(flows.contains("→ 3 (x) up: rtt 12us"), "{flows}");
        assert!(!flows.contains('\u{1b}'));
    }
}
