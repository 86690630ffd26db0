//! Which peers are up or dead, waiting for those that are not met and telling why, how often sessions ended, and reconnecting to a dead peer.

use std::time::{Duration, Instant};

use tsumuji_proto::{CongestionKind, NodeId};

use super::{Core, Endpoint};
use crate::absence::{Absence, AbsenceCause, Absent, QUIET, TOLD_EVERY};
use crate::error::{MeetError, SendError};
use crate::peers::Peers;

/// How often the caller of `meet` may end it.
const POLL_EVERY: Duration = Duration::from_millis(100);

impl Endpoint {
    /// Whether hello was exchanged with the peer's present incarnation.
    pub fn is_up(&self, peer: NodeId) -> bool {
        self.core.read().peers.is_up(peer)
    }

    /// Waits until hello was exchanged with all peers; returns those still missing after `timeout`.
    ///
    /// A peer that died or left is not waited for: [`SendError::PeerDead`] names it at once. If it may have been restarted, call `reconnect` first,
    /// even if it is about to be met again.
    pub fn wait_up(&mut self, timeout: Duration) -> Result<Vec<NodeId>, SendError> {
        let core = &mut *self.core.write();
        let peers: Vec<NodeId> = core.drive.table.peers().collect();
        let is_over = |known: &Peers| {
            let settled =
                |peer: &NodeId| known.is_up(*peer) || known.other_congestion(*peer).is_some();
            peers.iter().all(settled) || peers.iter().any(|peer| known.is_dead(*peer))
        };
        if !is_over(&core.peers) {
            core.run_until(timeout, |_, intake| is_over(intake.peers))?;
        }
        if let Some(&peer) = peers.iter().find(|peer| core.peers.is_dead(**peer)) {
            return Err(SendError::PeerDead { peer });
        }
        Ok(peers
            .into_iter()
            .filter(|peer| !core.peers.is_up(*peer))
            .collect())
    }

    /// Waits until all members are met, for `within` at most; `Duration::MAX`: as long as it takes. Members that died or left, and those that were
    /// never there, are waited for, too: they may be started yet.
    ///
    /// `meanwhile` is called every tenth of a second, and gets what is to be told to the user: who is missing, and why, after three seconds and then
    /// every ten. Its error ends the wait. A member of another congestion control ends it at once.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tsumuji_node::{MeetError, Options, endpoint_from_env};
    /// let mut endpoint = endpoint_from_env(Options::default())?;
    /// endpoint.meet(Duration::from_secs(120), |missing| -> Result<(), MeetError> {
    ///     if let Some(missing) = missing {
    ///         eprintln!("waiting for {missing}");
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn meet<E: From<MeetError>>(
        &mut self,
        within: Duration,
        mut meanwhile: impl FnMut(Option<&Absence>) -> Result<(), E>,
    ) -> Result<(), E> {
        let begun = Instant::now();
        let mut tell_at = begun + QUIET;
        loop {
            let left = within.saturating_sub(begun.elapsed());
            let mut differ = false;
            match self.wait_up(POLL_EVERY.min(left)) {
                Err(SendError::PeerDead { peer }) => {
                    self.reconnect(peer).map_err(MeetError::from)?;
                }
                Ok(missing) if missing.is_empty() => return Ok(()),
                // That will not change: it is told at once.
                Ok(missing) => {
                    let mut missing = missing.iter();
                    differ = missing.any(|peer| self.other_congestion(*peer).is_some());
                }
                Err(error) => return Err(MeetError::from(error).into()),
            }
            let (now, is_over) = (Instant::now(), begun.elapsed() >= within);
            let Some(absence) = (is_over || differ || now >= tell_at)
                .then(|| self.absence())
                .flatten()
            else {
                meanwhile(None)?;
                continue;
            };
            let differs =
                |member: &&Absent| matches!(member.cause, AbsenceCause::OtherCongestion(_));
            if let Some(member) = absence.members.iter().find(differs) {
                let member = member.clone();
                return Err(MeetError::Differs { member }.into());
            }
            if is_over {
                return Err(MeetError::Absent { within, absence }.into());
            }
            meanwhile(Some(&absence))?;
            tell_at = now + TOLD_EVERY;
        }
    }

    /// Which members are not met now, and what is known of the causes; `None`: all are. Asks the kernel about them, which takes up to a tenth of a
    /// second for each of the first eight.
    pub fn absence(&self) -> Option<Absence> {
        let missing: Vec<Absent> = {
            let peers = &self.core.read().peers;
            let absent = self
                .members()
                .iter()
                .filter(|member| member.id != self.me() && !peers.is_up(member.id));
            absent
                .map(|member| Absent {
                    peer: member.id,
                    name: format!("{} at {}", member.name, member.addr),
                    cause: match peers.other_congestion(member.id) {
                        Some(theirs) => AbsenceCause::OtherCongestion(theirs),
                        None => AbsenceCause::NoAnswer,
                    },
                })
                .collect()
        };
        if missing.is_empty() {
            return None;
        }
        let mut absence = Absence::of(missing, &self.counters());
        absence.ask(|peer| Some(self.members().get(usize::from(peer.0))?.addr));
        Some(absence)
    }

    /// Congestion control of a peer that is not met because this node uses another one.
    pub fn other_congestion(&self, peer: NodeId) -> Option<CongestionKind> {
        self.core.read().peers.other_congestion(peer)
    }

    /// Tries a dead peer again: its process may have been restarted. Error: [`SendError::UnknownPeer`].
    pub fn reconnect(&mut self, peer: NodeId) -> Result<(), SendError> {
        let core = &mut *self.core.write();
        core.known(peer)?;
        let now = core.drive.refresh_now();
        core.drive.engine.reconnect_peer(now, peer);
        if core.peers.is_lost(peer) {
            core.peers.reconnect(peer);
        }
        core.drive.mark_pending();
        Ok(())
    }

    /// Whether the peer died or left, and is not up again.
    pub fn is_dead(&self, peer: NodeId) -> bool {
        self.core.read().peers.is_dead(peer)
    }

    /// How often `peer` died or left, as of the last poll.
    pub fn ended_sessions(&self, peer: NodeId) -> u64 {
        self.core.read().peers.ended_sessions(peer)
    }

    /// Sum of `ended_sessions` of all peers: a cheap check for a change.
    pub fn all_ended_sessions(&self) -> u64 {
        self.core.read().peers.all_ended_sessions()
    }
}

impl Core {
    pub(super) fn me(&self) -> NodeId {
        self.channels.members.me()
    }

    pub(super) fn known(&self, peer: NodeId) -> Result<(), SendError> {
        let member = peer != self.me() && usize::from(peer.0) < self.channels.members.len();
        if member {
            Ok(())
        } else {
            Err(SendError::UnknownPeer { peer })
        }
    }

    pub(super) fn alive(&self, peer: NodeId) -> Result<(), SendError> {
        if let Some(theirs) = self.peers.other_congestion(peer) {
            Err(SendError::OtherCongestion { peer, theirs })
        } else if self.peers.is_dead(peer) {
            Err(SendError::PeerDead { peer })
        } else {
            Ok(())
        }
    }
}
