//! The scenarios under the congestion control `credit`.

mod scenarios;

use tsumuji_proto::Congestion;

const CONGESTION: Congestion = Congestion::Credit;
