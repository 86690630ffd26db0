//! Which processes live, where the kernel says so: sessions with the others end, when what those had sent is taken in.

use tsumuji_link::{Link, Rings};
use tsumuji_proto::{Event, NodeId};

use super::Drive;
use crate::clock::Clock;

/// Where the kernel says who lives, it is asked this often.
const LIVENESS_EVERY: tsumuji_proto::Duration = tsumuji_proto::Duration::from_millis(100);

/// While somebody is found dead, turns follow each other at least so fast.
const DYING_LOOK: tsumuji_proto::Duration = tsumuji_proto::Duration::from_millis(1);

/// A process in a dead one's place that has not said hello for so long is not waited for.
const NEWCOMER_PATIENCE: tsumuji_proto::Duration = tsumuji_proto::Duration::from_secs(1);

impl<L: Link, C: Clock> Drive<L, C> {
    /// The kernel says who lives, and is asked from now on.
    pub(crate) fn watch_liveness(&mut self) {
        self.liveness_at = self.now;
    }

    /// Asks the kernel whose process is no more. What the dead have sent is taken first: their sessions end when a later look at the link
    /// has found nothing more.
    #[cold]
    pub(super) fn check_liveness(&mut self) {
        self.liveness_at = self.now + LIVENESS_EVERY;
        let mut dying = std::mem::take(&mut self.dying);
        for (&peer, &process) in &self.processes {
            let known = dying.iter().any(|(other, _)| *other == peer);
            if !known && self.is_gone(peer, process) {
                dying.push((peer, self.now));
                self.dying_turns = 0;
            }
        }
        if !dying.is_empty() {
            self.liveness_at = self.now + DYING_LOOK; // so that turns follow
        }
        self.dying = dying;
    }

    #[cold]
    pub(super) fn end_dead_sessions(&mut self) {
        for (peer, since) in std::mem::take(&mut self.dying) {
            // It may have been met again meanwhile, as another process.
            let process = self.processes.get(&peer).copied();
            if !process.is_some_and(|process| self.is_gone(peer, process)) {
                continue;
            }
            // A process that took its place says hello, and is met in place of the old one. If the old session ended under it, what it
            // sends first would be lost.
            let is_vacant = self.process_of(peer) == Some(0);
            if is_vacant || self.now.since(since) >= NEWCOMER_PATIENCE {
                self.engine.abort(self.now, peer);
                self.backlog = true;
            } else {
                self.dying.push((peer, since));
            }
        }
    }

    /// The process with which a session is, of that number, is no more. 0: it was gone when the session began.
    pub(super) fn is_gone(&self, peer: NodeId, process: u64) -> bool {
        let now = self.process_of(peer);
        now.is_some_and(|now| now == 0 || now != process)
    }

    pub(super) fn process_of(&self, peer: NodeId) -> Option<u64> {
        self.link.rings()?.process_at(self.table.addr(peer)?)
    }

    /// Keeps in mind with whose process a session is.
    #[cold]
    pub(super) fn note_process(&mut self, event: &Event) {
        match event {
            Event::PeerUp { peer, .. } => {
                if let Some(process) = self.process_of(*peer) {
                    self.processes.insert(*peer, process);
                }
            }
            Event::PeerDead { peer, .. } => {
                self.processes.remove(peer);
            }
            _ => {}
        }
    }
}
