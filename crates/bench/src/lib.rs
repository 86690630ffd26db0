//! Benchmarks of tsumuji beside the limits of the machine and beside its peers, always within one run.
//!
//! [`exchange`] is our own ping-pong and burst between two processes; [`limits`] are the same things done bare, without any
//! protocol; [`peers`] are other people's programs; [`versus`] runs two of them in turn; [`figures`] prints the table of all
//! figures the project promises. Called by `tsumuji bench`.
//!
//! Numbers are only as good as the quiet of the machine: everything prints medians, spreads and ratios, and the machine.

pub mod exchange;
pub mod figures;
pub mod limits;
pub mod machine;
pub mod peers;
pub mod stats;
pub mod versus;

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadmeExamples;
