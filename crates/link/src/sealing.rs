//! Modes and counters of a seal around a link, defined here so that the user of any link can name and show them.
//!
//! The crate `seal` fills them in. Each frame that was dropped is counted under exactly one reason.

use std::fmt;
use std::str::FromStr;

/// Protection that sealing gives. All nodes of a cluster use the same mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealMode {
    /// Nobody without the key can forge, change or repeat a frame; all can read it.
    Auth,
    /// As `Auth`, and nobody without the key can read a frame.
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

/// The text names no mode.
#[derive(Debug, thiserror::Error)]
#[error("no mode is called `{0}`; take auth or encrypt")]
pub struct SealModeError(String);

impl FromStr for SealMode {
    type Err = SealModeError;

    fn from_str(text: &str) -> Result<Self, SealModeError> {
        match text {
            "auth" => Ok(Self::Auth),
            "encrypt" => Ok(Self::Encrypt),
            // Cut to one line of readable length.
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
    /// Genuine handshake frames that advanced a handshake.
    pub handshake_frames: u64,
    /// Handshakes completed.
    pub handshakes: u64,
    /// Handshakes that replaced a session: its keys were used up, old or changed, or the peer was restarted.
    pub rekeys: u64,
    /// Addresses known now.
    pub peers: u64,
    /// Known addresses with a session.
    pub sessions: u64,

    /// Frames of the layer above dropped because there is no session yet; the handshake is under way.
    pub no_session: u64,
    /// Frames of the layer above dropped because a key is used up and no new one was agreed.
    pub exhausted: u64,
    /// The seal's own frames that were not sent: too many waited, or too many peers are known.
    pub unsent: u64,

    /// Received with a wrong tag: forged, damaged, or sealed by other keys.
    pub bad_tag: u64,
    /// Received a second time, or too late to tell.
    pub replayed: u64,
    /// Received for a session or group key that is not known (any more).
    pub unknown_session: u64,
    /// Received for a session of another address.
    pub wrong_source: u64,
    /// Received and not sealed.
    pub unsealed: u64,
    /// Received frames of no legal form.
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

    /// Frames that were to be sent and were not, by reason.
    pub fn unsent_by_reason(&self) -> [(&'static str, u64); 3] {
        [
            ("no_session", self.no_session),
            ("exhausted", self.exhausted),
            ("unsent", self.unsent),
        ]
    }
}
