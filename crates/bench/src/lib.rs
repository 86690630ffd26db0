//! Benchmarks of tsumuji compared with the limits of the machine and with its peers, always within one run.
//!
//! [`exchange`] is our own ping-pong and burst between two processes, [`group`] our operations among several; [`flood`], [`cpu`], [`delay`] and [`sum32`]
//! are the experiments of the paper L2RTC, [`video`] is one that the paper Suci names; [`streams`] are byte streams of unmodified programs, [`away`] and
//! [`loss`] measure a sender that computes, and cables that lose frames. [`limits`] are the same exchanges without any protocol; [`peers`] are programs of
//! other libraries and of the system. [`contest`] chooses contenders and their places, [`compare`] runs them in turn over many sizes, [`versus`] at one;
//! `processes` starts ours, [`serve`] is what their other sides do, [`misses`] counts those of a cache, [`report`] reads what our own program tells, [`plot`] draws the results; [`figures`] prints the table of all figures with targets; [`thresholds`] finds what is fastest here.
//! Called by `tsumuji bench`, `tsumuji paper` and `tsumuji tune`.
//!
//! Results depend on a quiet machine: everything prints medians, spreads and ratios, and describes the machine.

mod alone;
pub mod away;
pub mod brake;
pub mod compare;
pub mod contest;
pub mod cpu;
pub mod delay;
pub mod exchange;
pub mod figures;
pub mod flood;
pub mod group;
pub mod limits;
pub mod loss;
pub mod machine;
pub mod misses;
pub mod ops;
pub mod peers;
pub mod plot;
mod processes;
pub mod report;
pub mod serve;
pub mod stats;
pub mod stop;
pub mod streams;
pub mod sum32;
pub mod table;
pub mod thresholds;
pub mod versus;
pub mod video;

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadmeExamples;
