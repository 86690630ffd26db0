//! The scenarios, run under each congestion control: `credit` and `suci` include this and say which.

mod chaos;
mod datagrams;
mod flow;
mod incast;
mod joins;
mod loss;
mod lossless;
mod patterns;
mod random_loss;
mod replay;
mod restarts;
mod sessions;
mod stalls;
mod unequal;

use super::CONGESTION;
use tsumuji_proto::{Config, Congestion};
use tsumuji_sim::{Net, Process};

/// As the simulator's, under the congestion control that is tested.
pub(crate) fn config() -> Config {
    Config {
        congestion: CONGESTION,
        ..tsumuji_sim::config()
    }
}

/// A figure that `credit` must reach. `suci` is what the paper made it: its figure is printed, and only what it delivers is held
/// to the same rules.
#[track_caller]
fn figure<E: Process>(net: &Net<E>, reached: bool, what: impl FnOnce() -> String) {
    match CONGESTION {
        Congestion::Credit => net.check(reached, what),
        Congestion::Suci { .. } if reached => {}
        Congestion::Suci { .. } => println!("suci: {}", what()),
    }
}
