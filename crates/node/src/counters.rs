//! What an endpoint counts.

use tsumuji_link::{LinkCounters, SealCounters};

/// Counters of an endpoint since it was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Counters of the engine: messages and frames, drops by reason.
    pub engine: tsumuji_proto::Counters,
    /// Counters of the link: frames and bytes.
    pub link: LinkCounters,
    /// Counters of the seal, if frames are sealed.
    pub seal: Option<SealCounters>,
    /// Frames dropped because they did not come from the address of their source.
    pub spoofed_source_frames: u64,
    /// Datagrams dropped because they arrived while there was no handler and their channel was full.
    pub dropped_datagrams: u64,
}
