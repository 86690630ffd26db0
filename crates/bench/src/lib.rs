//! Benchmarks of tsumuji beside the limits of the machine and beside its peers, always within one run.
//!
//! [`exchange`] is our own ping-pong and burst between two processes, [`group`] our operations among several; [`limits`] are the
//! same things done bare, without any protocol; [`peers`] are other people's programs. [`contest`] says who takes part where,
//! [`compare`] runs them in turn over many sizes, [`plot`] draws that; [`figures`] prints the table of all figures the project
//! promises. Called by `tsumuji bench` and `tsumuji paper`.
//!
//! Numbers are only as good as the quiet of the machine: everything prints medians, spreads and ratios, and the machine.

mod alone;
pub mod away;
pub mod compare;
pub mod contest;
pub mod exchange;
pub mod figures;
pub mod group;
pub mod limits;
pub mod loss;
pub mod machine;
pub mod ops;
pub mod peers;
pub mod plot;
pub mod stats;
pub mod stop;
pub mod table;
pub mod versus;

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadmeExamples;
