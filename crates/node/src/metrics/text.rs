//! A snapshot as Prometheus text, format 0.0.4.
//!
//! Called by `serve`. Names end in their unit, counters in `_total`; every sample bears `node` and `link`.

use std::fmt::{Display, Write};

use tsumuji_link::SealCounters;
use tsumuji_proto::{Drop, Window};

use super::flows::peers;
use super::{Metric, Snapshot, ValueOf};
use crate::executor::ExecutorState;

/// Approximate bytes of one sample line, to reserve memory.
const LINE_BYTES: usize = 96;

pub(super) struct Page {
    text: String,
    /// Labels of all samples.
    base: String,
}

impl Page {
    /// Begins a metric. `kind` is `counter` or `gauge`; `help` is ours and needs no escapes.
    pub(super) fn metric(&mut self, name: &str, kind: &str, help: &str) {
        self.put(format_args!(
            "# HELP tsumuji_{name} {help}\n# TYPE tsumuji_{name} {kind}\n"
        ));
    }

    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.put(format_args!("tsumuji_{name}{{"));
        let base = std::mem::take(&mut self.base);
        self.text.push_str(&base);
        self.base = base;
        for (label, value) in labels {
            self.put(format_args!(",{label}=\"{}\"", Escaped(value)));
        }
        self.put(format_args!("}} {value}\n"));
    }

    /// Metrics of the node as a whole.
    fn all<V: Display>(&mut self, metrics: impl IntoIterator<Item = Metric<V>>) {
        for (name, kind, help, value) in metrics {
            self.metric(name, kind, help);
            self.sample(name, &[], value);
        }
    }

    fn put(&mut self, what: std::fmt::Arguments<'_>) {
        let _ = self.text.write_fmt(what); // a `String` takes everything
    }
}

/// A label's value: backslash, quote and newline are escaped, other control characters left out.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                c if c.is_control() => {}
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// All metrics of one node.
pub(super) fn render(snapshot: &Snapshot) -> String {
    let mut page = Page {
        text: String::with_capacity(LINE_BYTES * (90 + 20 * snapshot.peers.len())),
        base: format!(
            "node=\"{}\",link=\"{}\"",
            snapshot.node.0,
            Escaped(snapshot.link)
        ),
    };
    page.metric("node_info", "gauge", "The node itself; always 1.");
    page.sample(
        "node_info",
        &[
            ("name", &snapshot.name),
            ("pid", &snapshot.pid.to_string()),
            ("version", env!("CARGO_PKG_VERSION")),
        ],
        1,
    );
    page.all(table! {
        gauge uptime_seconds = snapshot.born.elapsed().as_secs_f64(), "Time since the endpoint was opened.";
        gauge snapshot_age_seconds = snapshot.published.elapsed().as_secs_f64(), "How old these numbers are: a node that does not poll does not publish.";
    });
    engine(&mut page, snapshot);
    window(&mut page, &snapshot.window);
    link(&mut page, snapshot);
    if let Some(counters) = &snapshot.counters.seal {
        seal(&mut page, counters);
    }
    executors(&mut page, snapshot);
    peers(&mut page, &snapshot.peers);
    page.text
}

/// Metrics of each executor.
const OF_EXECUTORS: [Metric<ValueOf<ExecutorState>>; 6] = table! {
    gauge executor_call_seconds = |state| state.call_ns as f64 / 1e9, "Mean time of a call of the channel's service.";
    counter executor_driver_messages_total = |state| state.driver_messages as f64, "Messages served on the driving thread.";
    counter executor_worker_messages_total = |state| state.worker_messages as f64, "Messages served by workers.";
    gauge executor_waiting_messages = |state| state.waiting_messages as f64, "Messages that wait for workers.";
    counter executor_datagrams_dropped_total = |state| state.dropped_datagrams as f64, "Datagrams dropped because too many waited for workers.";
    counter executor_moves_total = |state| state.moves as f64, "How often the service was moved between driving thread and workers.";
};

fn executors(page: &mut Page, snapshot: &Snapshot) {
    if snapshot.executors.is_empty() {
        return;
    }
    let all = snapshot.executors.iter();
    let states: Vec<_> = all
        .map(|(channel, shared)| (channel.to_string(), shared.state()))
        .collect();
    page.metric(
        "executor_info",
        "gauge",
        "The executor of a channel, where its service is now, and why; always 1.",
    );
    for (channel, state) in &states {
        let place = if state.with_workers {
            "workers"
        } else {
            "driver"
        };
        let labels = [
            ("channel", channel.as_str()),
            ("executor", state.executor.name()),
            ("place", place),
            ("reason", state.reason.name()),
            ("workers", &state.workers.to_string()),
        ];
        page.sample("executor_info", &labels, 1);
    }
    for (name, kind, help, value) in OF_EXECUTORS {
        page.metric(name, kind, help);
        for (channel, state) in &states {
            page.sample(name, &[("channel", channel)], value(state));
        }
    }
}

fn engine(page: &mut Page, snapshot: &Snapshot) {
    let engine = &snapshot.counters.engine;
    page.all(table! {
        counter frames_sent_total = engine.sent_frames, "Frames written, of every kind.";
        counter sent_bytes_total = engine.sent_bytes, "Bytes of the frames written.";
        counter frames_received_total = engine.received_frames, "Frames received, of every kind, dropped ones included.";
        counter received_bytes_total = engine.received_bytes, "Bytes of the frames received.";
        counter frames_retransmitted_total = engine.retransmitted_frames, "Fragments sent again.";
        counter spurious_losses_total = engine.spurious_losses, "Fragments declared lost whose acknowledgement came after all.";
        counter probes_total = engine.probes, "Times that silence was probed.";
        counter nacks_total = engine.nacks, "Times that a number was called missing (congestion control suci).";
        counter asks_total = engine.asks, "Times that permission to send again, or the window, was asked for (suci).";
        counter grants_total = engine.grants, "Answers to such questions (suci).";
        counter granted_frames_total = engine.granted_frames, "Frames that peers were permitted to send again (suci).";
        counter messages_delivered_total = engine.delivered_messages, "Messages handed to the program.";
        counter direct_messages_total = engine.direct_messages, "Messages sent without numbers, over shared memory (R-96).";
        counter stalled_sessions_total = engine.stalled_sessions, "Sessions ended because a message could not go on though its peer was heard (R-93).";
        counter timer_checks_total = engine.timer_checks, "Times that a peer was looked at because a deadline of its had come.";
        counter spoofed_source_frames_total = snapshot.counters.spoofed_source_frames, "Frames dropped because they did not come from where their source lives.";
        counter datagrams_dropped_total = snapshot.counters.dropped_datagrams, "Datagrams dropped because their channel held enough.";
    });
    let name = "frames_dropped_total";
    page.metric(name, "counter", "Frames received and not used, by reason.");
    for reason in Drop::ALL {
        page.sample(name, &[("reason", reason.name())], engine.drops.get(reason));
    }
    // Refused by the link, below the engine.
    let link = &snapshot.counters.link;
    for (reason, frames) in [
        ("damaged", link.damaged_frames),
        ("unchecked", link.unchecked_frames),
    ] {
        page.sample(name, &[("reason", reason)], frames);
    }
}

/// The window that this node grants to its peers.
fn window(page: &mut Page, window: &Window) {
    page.all(table! {
        gauge receive_window_frames = window.frames, "Frames that may be granted to all peers together.";
        gauge receive_window_limit_frames = window.frames_limit, "Most that this window can be: what the link's receive side holds.";
        gauge receive_granted_frames = window.granted_frames, "Of the window: granted and not used yet.";
        gauge receive_budget_bytes = window.budget_bytes, "Memory that messages which arrived and were not consumed may take.";
        gauge receive_budget_used_bytes = window.budget_used_bytes, "Of that, taken.";
        gauge policy_active = usize::from(window.policy), "1 if a policy of the program's own decides who may send how much.";
    });
    page.all(table! {
        counter policy_decisions_total = window.policy_decisions, "Times that such a policy was asked.";
    });
}

fn link(page: &mut Page, snapshot: &Snapshot) {
    let link = &snapshot.counters.link;
    page.all(table! {
        counter link_frames_sent_total = link.sent_frames, "Frames handed to the medium.";
        counter link_sent_bytes_total = link.sent_bytes, "Bytes handed to the medium.";
        counter link_frames_received_total = link.received_frames, "Frames taken from the medium.";
        counter link_received_bytes_total = link.received_bytes, "Bytes taken from the medium.";
        counter link_frames_overrun_total = link.overrun_frames, "Broadcast frames overwritten before they were read.";
        counter link_frames_impaired_total = link.impaired_frames, "Frames dropped on purpose.";
        counter link_refused_total = link.refused, "Times that no transmit slot was free.";
        counter link_frames_dropped_total = link.dropped_frames, "Frames that the medium or the kernel reported dropped.";
    });
}

fn seal(page: &mut Page, seal: &SealCounters) {
    page.all(table! {
        counter seal_frames_sealed_total = seal.sealed, "Frames of the node that left sealed.";
        counter seal_frames_opened_total = seal.opened, "Sealed frames opened and passed on.";
        counter seal_control_frames_total = seal.control, "Frames between seals that were opened: confirmations, broadcast keys.";
        counter seal_handshake_frames_total = seal.handshake_frames, "Handshake frames that were genuine and led on.";
        counter seal_handshakes_total = seal.handshakes, "Handshakes completed.";
        counter seal_rekeys_total = seal.rekeys, "Handshakes that replaced a session: keys worn, old or changed, or the peer restarted.";
    });
    let by_reason = [
        (
            "seal_frames_dropped_total",
            "Frames received and not opened, by reason.",
            &seal.drops_by_reason()[..],
        ),
        (
            "seal_frames_unsent_total",
            "Frames not sent because they could not be sealed, by reason.",
            &seal.unsent_by_reason()[..],
        ),
    ];
    for (name, help, reasons) in by_reason {
        page.metric(name, "counter", help);
        for (reason, count) in reasons {
            page.sample(name, &[("reason", reason)], count);
        }
    }
    page.all(table! {
        gauge seal_peers = seal.peers, "Addresses that the seal remembers.";
        gauge seal_sessions = seal.sessions, "Addresses with agreed keys.";
    });
}

#[cfg(test)]
mod tests {
    use super::super::PeerSnapshot;
    use super::super::parse::parse;
    use super::*;
    use std::collections::HashSet;
    use std::time::Instant;
    use tsumuji_proto::{Duration, Flow, NodeId, Pace};

    fn snapshot(name: &str) -> Snapshot {
        let mut counters = crate::Counters::default();
        counters.engine.sent_frames = u64::MAX;
        counters.link.refused = 7;
        counters.seal = Some(SealCounters {
            replayed: 3,
            ..SealCounters::default()
        });
        let flow = Flow {
            rtt: Duration::from_micros(12),
            rttvar: Duration::from_nanos(500),
            in_flight_frames: 3,
            window_bytes: 64 << 20,
            queued_messages: 2,
            queued_bytes: 100,
            retransmitted_frames: 9,
            credit_frames: 256,
            late_datagrams: 4,
            pace: Pace::BytesPerSecond(5_000),
            incoming_backlog: true,
            ..Flow::default()
        };
        let mut window = Window::default();
        (window.frames, window.policy) = (64, true);
        Snapshot {
            executors: Vec::new(),
            node: NodeId(2),
            name: name.to_owned(),
            link: "shm",
            pid: 99,
            born: Instant::now(),
            published: Instant::now(),
            counters,
            window,
            peers: vec![PeerSnapshot {
                id: NodeId(0),
                name: name.to_owned(),
                up: true,
                flow: Some(flow),
            }],
        }
    }

    /// Each metric is announced once, before its samples; counters and units are named as the format requires.
    #[test]
    fn text_keeps_the_format() {
        let text = render(&snapshot("worker 2"));
        let (mut helped, mut typed) = (HashSet::new(), HashSet::new());
        let mut current = ("", "");
        for line in text.lines() {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            match words[..] {
                ["#", "HELP", name, help] => {
                    assert!(helped.insert(name) && !help.is_empty(), "{line}");
                }
                ["#", "TYPE", name, kind] => {
                    assert!(helped.contains(name) && typed.insert(name), "{line}");
                    assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
                    current = (name, kind);
                }
                _ => {
                    let name = line.split('{').next().expect("name");
                    assert_eq!(name, current.0, "{line}");
                    assert!(name.starts_with("tsumuji_"), "{line}");
                    assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
                    assert!(line.contains("{node=\"2\",link=\"shm\""), "{line}");
                }
            }
        }
        assert!(text.ends_with('\n'));
        assert!(
            text.contains(
                "tsumuji_frames_sent_total{node=\"2\",link=\"shm\"} 18446744073709551615\n"
            )
        );
        assert!(text.contains("tsumuji_rtt_seconds{node=\"2\",link=\"shm\",peer=\"0\",peer_name=\"worker 2\"} 0.000012\n"));
        assert!(text.contains("tsumuji_window_bytes{node=\"2\",link=\"shm\",peer=\"0\",peer_name=\"worker 2\"} 67108864\n"));
        assert!(text.contains("link=\"shm\",reason=\"misdirected\"} 0\n"));
        for (name, value) in [
            ("datagrams_late_total", 4),
            ("pace_bytes_per_second", 5_000),
            ("incoming_backlog", 1),
        ] {
            let line = format!(
                "tsumuji_{name}{{node=\"2\",link=\"shm\",peer=\"0\",peer_name=\"worker 2\"}} {value}\n"
            );
            assert!(text.contains(&line), "{line}");
        }
        assert!(text.contains("tsumuji_receive_window_frames{node=\"2\",link=\"shm\"} 64\n"));
        assert!(text.contains("tsumuji_policy_active{node=\"2\",link=\"shm\"} 1\n"));
        assert!(text.contains(
            "tsumuji_seal_frames_dropped_total{node=\"2\",link=\"shm\",reason=\"replayed\"} 3\n"
        ));
    }

    /// A name with quotes or newlines cannot break out of its label, and is read back unchanged.
    #[test]
    fn labels_are_escaped() {
        let evil = "a\\b\"} 1\nevil{x=\"c\",é";
        let text = render(&snapshot(evil));
        assert!(
            text.lines()
                .all(|line| line.starts_with("tsumuji_") || line.starts_with("# "))
        );
        let samples = parse(&text);
        let info = samples
            .iter()
            .find(|sample| sample.name == "tsumuji_node_info");
        let info = info.expect("node_info");
        assert_eq!(info.label("name"), Some(evil));
        assert_eq!(info.label("pid"), Some("99"));
        assert_eq!(info.value, 1.0);
        assert_eq!(
            samples.len(),
            text.lines().filter(|line| !line.starts_with('#')).count()
        );
        assert!(!render(&snapshot("bell\u{7}\u{1b}[2J")).contains('\u{1b}'));
    }
}
