//! Which processes are alive, where the kernel can tell: the session with a dead one ends once its last frames were received.

use tsumuji_link::{LinkAddr, MayHaveRings, Process, Rings};
use tsumuji_proto::Instant;

use super::Drive;
use crate::clock::Clock;
use crate::metrics::NEVER;

/// Interval of asking the kernel which processes are alive.
const LIVENESS_EVERY: tsumuji_proto::Duration = tsumuji_proto::Duration::from_millis(100);

/// Longest time between polls while a process was found dead and its session has not ended.
const DYING_POLL: tsumuji_proto::Duration = tsumuji_proto::Duration::from_millis(1);

/// Time for which a session is kept for a new process in a dead one's place that does not say hello.
const NEWCOMER_PATIENCE: tsumuji_proto::Duration = tsumuji_proto::Duration::from_secs(1);

impl<L: MayHaveRings, C: Clock> Drive<L, C> {
    /// Begins to ask the kernel which processes are alive.
    pub(crate) fn watch_liveness(&mut self) {
        self.liveness_at = self.now;
    }

    /// When the kernel is asked next.
    pub(crate) fn next_liveness_check(&self) -> Option<Instant> {
        (self.liveness_at != NEVER).then_some(self.liveness_at)
    }

    /// Asks the kernel which processes have ended. Their last frames are received first: their sessions end when a later poll has found nothing more.
    #[cold]
    pub(super) fn check_liveness(&mut self) {
        self.liveness_at = self.now + LIVENESS_EVERY;
        let mut dying = std::mem::take(&mut self.dying);
        for (peer, process) in self.direct.met() {
            let known = dying.iter().any(|(other, _)| *other == peer);
            if !known && self.is_gone(process) {
                dying.push((peer, self.now));
                self.dying_polls = 0;
            }
        }
        if !dying.is_empty() {
            self.liveness_at = self.now + DYING_POLL; // so that more polls follow
        }
        self.dying = dying;
    }

    #[cold]
    pub(super) fn end_dead_sessions(&mut self) {
        for (peer, since) in std::mem::take(&mut self.dying) {
            // The peer may have been met again meanwhile, as another process.
            let process = self.direct.of(peer);
            let Some(process) = process.filter(|process| self.is_gone(*process)) else {
                continue;
            };
            // A new process in its place says hello, and then replaces the old session. If the old session ended after that hello, the first messages
            // of the new process would be lost.
            let is_vacant = self.live_generation(process.index) == Some(0);
            if is_vacant || self.now.since(since) >= NEWCOMER_PATIENCE {
                self.engine.abort(self.now, peer);
                self.backlog = true;
            } else {
                self.dying.push((peer, since));
            }
        }
    }

    /// Whether `process`, with which a session began, has ended.
    fn is_gone(&self, process: Process) -> bool {
        let now = self.live_generation(process.index);
        now.is_some_and(|now| now != process.generation)
    }

    /// As `Rings::process_at`.
    fn live_generation(&self, index: u16) -> Option<u64> {
        self.link.rings()?.process_at(LinkAddr::Local(index))
    }
}
