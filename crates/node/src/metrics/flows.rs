//! What a snapshot says of each peer, as Prometheus text.
//!
//! Called by `text`. One metric after the other, each for all peers, as the format wants it.

use tsumuji_proto::Pace;

use super::PeerSnapshot;
use super::text::Page;

type Value = fn(&PeerSnapshot) -> Option<f64>;

/// Bytes and frames stay exact: they are far below 2^53.
const PER_PEER: [(&str, &str, &str, Value); 18] = [
    (
        "peer_up",
        "gauge",
        "1 if hello was exchanged with the peer and it is not dead.",
        |peer| Some(f64::from(u8::from(peer.up))),
    ),
    (
        "rtt_seconds",
        "gauge",
        "Smoothed round-trip time.",
        |peer| peer.flow.map(|flow| flow.rtt.as_nanos() as f64 / 1e9),
    ),
    (
        "rtt_deviation_seconds",
        "gauge",
        "Mean deviation of the round-trip time.",
        |peer| peer.flow.map(|flow| flow.rttvar.as_nanos() as f64 / 1e9),
    ),
    (
        "in_flight_frames",
        "gauge",
        "Frames sent and neither acknowledged nor lost.",
        |peer| peer.flow.map(|flow| flow.in_flight_frames as f64),
    ),
    (
        "window_bytes",
        "gauge",
        "Bytes that the peer's program still has room for.",
        |peer| peer.flow.map(|flow| flow.window_bytes as f64),
    ),
    (
        "queued_messages",
        "gauge",
        "Messages submitted and not yet acknowledged.",
        |peer| peer.flow.map(|flow| flow.queued_messages as f64),
    ),
    ("queued_bytes", "gauge", "Their bytes.", |peer| {
        peer.flow.map(|flow| flow.queued_bytes as f64)
    }),
    (
        "retransmitted_total",
        "counter",
        "Frames sent to the peer again.",
        |peer| peer.flow.map(|flow| flow.retransmitted_frames as f64),
    ),
    (
        "credit_frames",
        "gauge",
        "Frames that may still be sent before the peer must grant more.",
        |peer| peer.flow.map(|flow| flow.credit_frames as f64),
    ),
    (
        "latest_superseded_total",
        "counter",
        "Messages of latest lanes that a newer one replaced before they began to leave.",
        |peer| peer.flow.map(|flow| flow.superseded_messages as f64),
    ),
    (
        "latest_late_total",
        "counter",
        "Messages of latest lanes dropped because their deadline had passed.",
        |peer| peer.flow.map(|flow| flow.late_messages as f64),
    ),
    (
        "latest_lost_total",
        "counter",
        "Messages of latest lanes of which a frame was lost.",
        |peer| peer.flow.map(|flow| flow.lost_messages as f64),
    ),
    (
        "pace_bytes_per_second",
        "gauge",
        "Rate that the program wants frames to leave at; 0: as the peer drains them. Absent where it wants none.",
        |peer| match peer.flow?.pace {
            Pace::BytesPerSecond(rate) => Some(rate as f64),
            Pace::Drain => Some(0.0),
            _ => None,
        },
    ),
    (
        "paced_frames_total",
        "counter",
        "Frames that left later than the peer allowed, to keep that pace.",
        |peer| peer.flow.map(|flow| flow.paced_frames as f64),
    ),
    (
        "incoming_granted_frames",
        "gauge",
        "Frames that the peer may still send to us.",
        |peer| peer.flow.map(|flow| flow.granted_frames as f64),
    ),
    (
        "incoming_window_frames",
        "gauge",
        "Frames that the peer is granted ahead: its share of our window.",
        |peer| peer.flow.map(|flow| flow.incoming_window_frames as f64),
    ),
    (
        "incoming_memory_bytes",
        "gauge",
        "Memory that the peer's messages take here.",
        |peer| peer.flow.map(|flow| flow.incoming_bytes as f64),
    ),
    (
        "incoming_backlog",
        "gauge",
        "1 if the peer's last frame said that it has more for us.",
        |peer| {
            let flow = peer.flow?;
            Some(f64::from(u8::from(flow.incoming_backlog)))
        },
    ),
];

pub(super) fn peers(page: &mut Page, peers: &[PeerSnapshot]) {
    for (name, kind, help, value) in PER_PEER {
        page.metric(name, kind, help);
        for peer in peers {
            if let Some(value) = value(peer) {
                let id = peer.id.0.to_string();
                page.sample(name, &[("peer", &id), ("peer_name", &peer.name)], value);
            }
        }
    }
}
