//! State of each peer as Prometheus text.
//!
//! Used by `text`. One metric after the other, each for all peers, as the format requires.

use tsumuji_proto::{Flow, Pace};

use super::PeerSnapshot;
use super::text::Page;

/// A metric of each peer: name, help, and value. Bytes and frames stay exact: they are far below 2^53.
type Metric = (&'static str, &'static str, fn(&Flow) -> f64);

const GAUGES: [Metric; 11] = [
    ("rtt_seconds", "Smoothed round-trip time.", |flow| {
        flow.rtt.as_nanos() as f64 / 1e9
    }),
    (
        "rtt_deviation_seconds",
        "Mean deviation of the round-trip time.",
        |flow| flow.rttvar.as_nanos() as f64 / 1e9,
    ),
    (
        "in_flight_frames",
        "Frames sent and neither acknowledged nor lost.",
        |flow| flow.in_flight_frames as f64,
    ),
    (
        "window_bytes",
        "Bytes that the peer's program still has room for.",
        |flow| flow.window_bytes as f64,
    ),
    (
        "queued_messages",
        "Messages submitted and not yet acknowledged.",
        |flow| flow.queued_messages as f64,
    ),
    ("queued_bytes", "Their bytes.", |flow| {
        flow.queued_bytes as f64
    }),
    (
        "credit_frames",
        "Frames that may still be sent before the peer must grant more.",
        |flow| flow.credit_frames as f64,
    ),
    (
        "incoming_granted_frames",
        "Frames that the peer may still send to us.",
        |flow| flow.granted_frames as f64,
    ),
    (
        "incoming_window_frames",
        "Frames that the peer is granted ahead: its share of our window.",
        |flow| flow.incoming_window_frames as f64,
    ),
    (
        "incoming_memory_bytes",
        "Memory that the peer's messages take here.",
        |flow| flow.incoming_bytes as f64,
    ),
    (
        "incoming_backlog",
        "1 if the peer's last frame said that it has more for us.",
        |flow| f64::from(u8::from(flow.incoming_backlog)),
    ),
];

const COUNTERS: [Metric; 5] = [
    (
        "retransmitted_total",
        "Frames sent to the peer again.",
        |flow| flow.retransmitted_frames as f64,
    ),
    (
        "datagrams_superseded_total",
        "Datagrams that a newer one replaced before they began to leave.",
        |flow| flow.superseded_datagrams as f64,
    ),
    (
        "datagrams_late_total",
        "Datagrams dropped because their deadline had passed.",
        |flow| flow.late_datagrams as f64,
    ),
    (
        "datagrams_lost_total",
        "Datagrams of several frames of which one was lost.",
        |flow| flow.lost_datagrams as f64,
    ),
    (
        "paced_frames_total",
        "Frames that left later than the peer allowed, to keep its pace.",
        |flow| flow.paced_frames as f64,
    ),
];

pub(super) fn peers(page: &mut Page, peers: &[PeerSnapshot]) {
    let help = "1 if hello was exchanged with the peer and it is not dead.";
    each(page, peers, ("peer_up", "gauge", help), |peer| {
        Some(f64::from(u8::from(peer.up)))
    });
    let help = "Rate that the program wants frames to leave at; 0: as the peer drains them. Absent where it wants none.";
    each(
        page,
        peers,
        ("pace_bytes_per_second", "gauge", help),
        |peer| match peer.flow?.pace {
            Pace::BytesPerSecond(rate) => Some(rate as f64),
            Pace::Drain => Some(0.0),
            _ => None,
        },
    );
    for (kind, metrics) in [("gauge", &GAUGES[..]), ("counter", &COUNTERS[..])] {
        for &(name, help, value) in metrics {
            let value = |peer: &PeerSnapshot| peer.flow.as_ref().map(value);
            each(page, peers, (name, kind, help), value);
        }
    }
}

/// One metric for all peers that have it.
fn each(
    page: &mut Page,
    peers: &[PeerSnapshot],
    (name, kind, help): (&str, &str, &str),
    value: impl Fn(&PeerSnapshot) -> Option<f64>,
) {
    page.metric(name, kind, help);
    for peer in peers {
        if let Some(value) = value(peer) {
            let id = peer.id.0.to_string();
            page.sample(name, &[("peer", &id), ("peer_name", &peer.name)], value);
        }
    }
}
