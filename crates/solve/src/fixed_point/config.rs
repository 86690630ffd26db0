//! Settings of a run, its outcome, and why it can fail.

use std::ops::Range;

use tsumuji_board::BoardError;
use tsumuji_collective::{CollectiveError, TableError};
use tsumuji_node::{ChannelError, CloseError, EndpointError, NodeId, OpenError, SendError};

/// Settings of a run. `tolerance` and `max_laps` are the same on all members; each has its own `weight` and `stop`.
#[derive(Clone, Copy)]
pub struct Config<'a> {
    /// Greatest certificate that counts as converged; 0 or more.
    pub tolerance: f64,
    /// Laps after which a member that has not converged need not go on; 1 or more. A lap renews a member's range once.
    pub max_laps: u64,
    /// Size of this member's range beside those of others; more than 0.
    pub weight: f64,
    /// Calls of `update` in a lap, if the range is long enough; 1 or more. Values leave after each.
    pub parts: usize,
    /// Asked after each lap; `true` ends the run of all members.
    pub stop: &'a dyn Fn() -> bool,
}

impl Default for Config<'_> {
    fn default() -> Self {
        Self {
            tolerance: 1e-9,
            max_laps: 1_000_000,
            weight: 1.0,
            parts: 16,
            stop: &|| false,
        }
    }
}

impl std::fmt::Debug for Config<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("tolerance", &self.tolerance)
            .field("max_laps", &self.max_laps)
            .field("weight", &self.weight)
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

impl Config<'_> {
    pub(super) fn check(&self) -> Result<(), Error> {
        let wrong = |what| Err(Error::Config { what });
        if self.tolerance.is_nan() || self.tolerance < 0.0 {
            return wrong("`tolerance` must be 0 or more");
        }
        if self.max_laps == 0 {
            return wrong("`max_laps` must be 1 or more");
        }
        if !(self.weight.is_finite() && self.weight > 0.0) {
            return wrong("`weight` must be a finite number greater than 0");
        }
        if self.parts == 0 {
            return wrong("`parts` must be 1 or more");
        }
        Ok(())
    }
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The certificate is at most `tolerance`.
    Converged,
    /// All members have done `max_laps` laps.
    Laps,
    /// A member's `stop` said so.
    Stopped,
    /// Laps change nothing any more, on any member, and the certificate is still greater than `tolerance`.
    Stalled,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Converged => "converged",
            Self::Laps => "not converged within the laps allowed",
            Self::Stopped => "stopped",
            Self::Stalled => "stalled: laps change nothing any more",
        })
    }
}

/// Result of a run; the same on all members, to the bit, but for `member` and `range`.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// All elements.
    pub x: Vec<f64>,
    /// Why the run ended.
    pub reason: Reason,
    /// The certificate of this x.
    pub certificate: f64,
    /// Laps of each member.
    pub laps: Vec<u64>,
    /// Pauses, in each of which all members exchanged their ranges.
    pub pauses: u64,
    /// This member.
    pub member: usize,
    /// The elements that it renewed.
    pub range: Range<usize>,
}

impl Outcome {
    /// Whether the certificate is within the tolerance.
    pub fn converged(&self) -> bool {
        self.reason == Reason::Converged
    }
}

/// Certificate, laps and pauses in one line.
impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (reason, certificate, pauses) = (self.reason, self.certificate, self.pauses);
        let laps: Vec<String> = self.laps.iter().map(u64::to_string).collect();
        let laps = laps.join(" ");
        write!(
            f,
            "{reason}; certificate {certificate:.3e}; laps {laps}; pauses {pauses}"
        )
    }
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is out of its range.
    #[error("{what}")]
    Config {
        /// The setting, and what is accepted.
        what: &'static str,
    },
    /// Members do not solve the same problem.
    #[error("{member} has another {what} than node 0; all members must solve the same problem")]
    Disagreement {
        /// The member.
        member: NodeId,
        /// What differs.
        what: &'static str,
    },
    /// The problem computed NaN.
    #[error("{member} computed NaN for element {index}; the map must be defined there")]
    NotANumber {
        /// The member that computed it.
        member: NodeId,
        /// The element.
        index: usize,
    },
    /// A member died or left.
    #[error("{member} died or left; its range of x is lost: start the run again")]
    MemberDied {
        /// The member.
        member: NodeId,
    },
    /// The endpoint has collectives already.
    #[error("this endpoint has collectives already; pass them to `solve_with`")]
    CollectivesExist,
    /// An exchange between members failed, though none of them died.
    #[error(transparent)]
    Collective(CollectiveError),
    /// The table of algorithms of collectives cannot be read.
    #[error(transparent)]
    Table(#[from] TableError),
    /// x is too long for a board.
    #[error(transparent)]
    Board(#[from] BoardError),
    /// A channel of a run is open already.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// This node's link failed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A frame could not be sent.
    #[error(transparent)]
    Send(SendError),
    /// The endpoint that the environment describes could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Messages to other members were lost in the end.
    #[error(transparent)]
    Close(#[from] CloseError),
}

impl From<CollectiveError> for Error {
    fn from(error: CollectiveError) -> Self {
        match error {
            CollectiveError::MemberDead { member } => Self::MemberDied { member },
            CollectiveError::Endpoint(error) => Self::Endpoint(error),
            other => Self::Collective(other),
        }
    }
}

impl From<SendError> for Error {
    fn from(error: SendError) -> Self {
        match error {
            SendError::PeerDead { peer } => Self::MemberDied { member: peer },
            other => Self::Send(other),
        }
    }
}
