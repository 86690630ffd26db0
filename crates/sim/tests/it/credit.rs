//! The scenarios under the congestion control `credit`.

#[path = "scenarios/mod.rs"]
mod scenarios;

use tsumuji_proto::Congestion;

const CONGESTION: Congestion = Congestion::Credit;
