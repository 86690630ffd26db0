//! What a seal around a link gives and counts: known here, so that whoever holds any link can name and show it.
//!
//! Filled by the crate `seal`. Each frame that was not passed on is counted under exactly one reason.

use std::fmt;
use std::str::FromStr;

/// What sealing gives. All nodes of a cluster run the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealMode {
    /// Nobody without the key can forge, change or repeat a frame; all can read it.
    Auth,
    /// Nor read it.
    Encrypt,
}

impl fmt::Display for SealMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auth => "auth",
            Self::Encrypt => "encrypt",
        })
    }
}

/// No such mode.
#[derive(Debug, thiserror::Error)]
#[error("no mode is called `{0}`; take auth or encrypt")]
pub struct SealModeError(String);

impl FromStr for SealMode {
    type Err = SealModeError;

    fn from_str(text: &str) -> Result<Self, SealModeError> {
        match text {
            "auth" => Ok(Self::Auth),
            "encrypt" => Ok(Self::Encrypt),
            // One line, and no more of it than anybody reads.
            other => Err(SealModeError(
                other
                    .chars()
                    .filter(|c| !c.is_control())
                    .take(100)
                    .collect(),
            )),
        }
    }
}

/// Counts since the link was sealed; `peers` and `sessions` are of now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SealCounters {
    /// Frames of the layer above that left sealed.
    pub sealed: u64,
    /// Frames that were opened and given to the layer above.
    pub opened: u64,
    /// Frames between the seals of two nodes (confirmations, group keys) that were opened.
    pub control: u64,
    /// Handshake frames that were genuine and led on.
    pub handshake_frames: u64,
    /// Handshakes completed.
    pub handshakes: u64,
    /// Those of them that replaced a session: its keys were worn, old or changed, or the peer was restarted.
    pub rekeys: u64,
    /// Addresses remembered now.
    pub peers: u64,
    /// Those of them with a session.
    pub sessions: u64,

    /// Frames of the layer above dropped because there is no session yet; the handshake is under way.
    pub no_session: u64,
    /// Frames of the layer above dropped because a key is used up and no new one was agreed.
    pub exhausted: u64,
    /// Frames of the seal's own that were not sent: too many waited, or too many peers are remembered.
    pub unsent: u64,

    /// Received, and the tag is wrong: forged, damaged, or sealed by other keys.
    pub bad_tag: u64,
    /// Received a second time, or too late to tell.
    pub replayed: u64,
    /// Received for a session or group key that is not known (any more).
    pub unknown_session: u64,
    /// Received for a session of another address.
    pub wrong_source: u64,
    /// Received and not sealed.
    pub unsealed: u64,
    /// Received, and no legal frame.
    pub malformed: u64,
    /// Received from a node that runs the other mode (`auth` against `encrypt`).
    pub other_mode: u64,
    /// Handshake frames that name a key we do not have, or whose proof of the key is wrong.
    pub wrong_key: u64,
    /// Genuine handshake frames that came too late, twice, or when not asked for.
    pub stale_handshake: u64,
    /// Received handshake frames turned away by a limit of work or memory.
    pub limited: u64,
}

impl SealCounters {
    /// Received frames that were dropped, by reason.
    pub fn drops_by_reason(&self) -> [(&'static str, u64); 10] {
        [
            ("bad_tag", self.bad_tag),
            ("replayed", self.replayed),
            ("unknown_session", self.unknown_session),
            ("wrong_source", self.wrong_source),
            ("unsealed", self.unsealed),
            ("malformed", self.malformed),
            ("other_mode", self.other_mode),
            ("wrong_key", self.wrong_key),
            ("stale_handshake", self.stale_handshake),
            ("limited", self.limited),
        ]
    }

    /// All of them.
    pub fn received_drops(&self) -> u64 {
        self.drops_by_reason().iter().map(|(_, count)| count).sum()
    }

    /// Frames that were to be sent and were not, by reason.
    pub fn unsent_by_reason(&self) -> [(&'static str, u64); 3] {
        [
            ("no_session", self.no_session),
            ("exhausted", self.exhausted),
            ("unsent", self.unsent),
        ]
    }
}
