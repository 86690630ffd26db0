//! State of each peer as Prometheus text.
//!
//! Used by `text`. One metric after the other, each for all peers, as the format requires.

use tsumuji_proto::{Flow, Pace};

use super::text::Page;
use super::{Metric, PeerSnapshot, ValueOf};

/// Metrics of each peer. Bytes and frames stay exact: they are far below 2^53.
const METRICS: [Metric<ValueOf<Flow>>; 16] = table! {
    gauge rtt_seconds = |flow| flow.rtt.as_nanos() as f64 / 1e9, "Smoothed round-trip time.";
    gauge rtt_deviation_seconds = |flow| flow.rttvar.as_nanos() as f64 / 1e9, "Mean deviation of the round-trip time.";
    gauge in_flight_frames = |flow| flow.in_flight_frames as f64, "Frames sent and neither acknowledged nor lost.";
    gauge window_bytes = |flow| flow.window_bytes as f64, "Bytes that the peer's program still has room for.";
    gauge queued_messages = |flow| flow.queued_messages as f64, "Messages submitted and not yet acknowledged.";
    gauge queued_bytes = |flow| flow.queued_bytes as f64, "Their bytes.";
    gauge credit_frames = |flow| flow.credit_frames as f64, "Frames that may still be sent before the peer must grant more.";
    gauge incoming_granted_frames = |flow| flow.granted_frames as f64, "Frames that the peer may still send to us.";
    gauge incoming_window_frames = |flow| flow.incoming_window_frames as f64, "Frames that the peer is granted ahead: its share of our window.";
    gauge incoming_memory_bytes = |flow| flow.incoming_bytes as f64, "Memory that the peer's messages take here.";
    gauge incoming_backlog = |flow| f64::from(u8::from(flow.incoming_backlog)), "1 if the peer's last frame said that it has more for us.";
    counter retransmitted_total = |flow| flow.retransmitted_frames as f64, "Frames sent to the peer again.";
    counter datagrams_superseded_total = |flow| flow.superseded_datagrams as f64, "Datagrams that a newer one replaced before they began to leave.";
    counter datagrams_late_total = |flow| flow.late_datagrams as f64, "Datagrams dropped because their deadline had passed.";
    counter datagrams_lost_total = |flow| flow.lost_datagrams as f64, "Datagrams of several frames of which one was lost.";
    counter paced_frames_total = |flow| flow.paced_frames as f64, "Frames that left later than the peer allowed, to keep its pace.";
};

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
    for (name, kind, help, value) in METRICS {
        let value = |peer: &PeerSnapshot| peer.flow.as_ref().map(value);
        each(page, peers, (name, kind, help), value);
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
