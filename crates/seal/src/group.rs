//! Broadcast keys: our own, and those of one peer.
//!
//! A broadcast frame is sealed once, with the sender's group key, and opened by each receiver that the sender told the key in
//! their common session. Called by `peers`.
//!
//! Invariants: a key of a peer is accepted at most once, so its window never begins anew and no frame is opened twice; messages about an
//! earlier incarnation of the peer, or an earlier key, change nothing.

use std::time::Duration;

use zeroize::Zeroizing;

use crate::control::GroupNews;
use crate::key::KEY_BYTES;
use crate::random;
use crate::session::{Opener, Sealer};

/// How long frames under the previous key are still opened.
const BEFORE_LIFETIME: Duration = Duration::from_secs(10);

/// The key we seal broadcast frames with.
#[derive(Debug)]
pub(crate) struct OwnGroup {
    pub(crate) sealer: Sealer,
    key: Zeroizing<[u8; KEY_BYTES]>,
    instance: u64,
    pub(crate) generation: u32,
}

impl OwnGroup {
    pub(crate) fn new() -> Result<Self, getrandom::Error> {
        let mut group = Self {
            sealer: Sealer::new(&[0; KEY_BYTES], 0),
            key: Zeroizing::new([0; KEY_BYTES]),
            instance: random::number()?,
            generation: 0,
        };
        group.renew()?;
        Ok(group)
    }

    /// A new key.
    pub(crate) fn renew(&mut self) -> Result<(), getrandom::Error> {
        let id = random::number()? as u32;
        random::fill(&mut *self.key)?;
        self.sealer = Sealer::new(&self.key, id);
        self.generation += 1;
        Ok(())
    }

    pub(crate) fn news(&self) -> GroupNews {
        GroupNews {
            instance: self.instance,
            generation: self.generation,
            key_id: self.sealer.key_id(),
            counter: self.sealer.next_counter(),
            key: *self.key,
        }
    }
}

/// The broadcast keys of one peer: the newest, and the previous one for frames that were overtaken.
#[derive(Debug, Default)]
pub(crate) struct PeerGroup {
    newest: Option<Known>,
    /// Valid until then.
    before: Option<(Known, Duration)>,
}

#[derive(Debug)]
struct Known {
    key_id: u32,
    instance: u64,
    generation: u32,
    /// Number of the session in which the peer told it.
    session: u64,
    opener: Opener,
}

impl PeerGroup {
    /// Learns a key that the peer told in its session number `session`; sessions are numbered as they begin.
    pub(crate) fn learn(&mut self, news: &GroupNews, session: u64, now: Duration) {
        if let Some(newest) = &self.newest {
            let newer = if newest.instance == news.instance {
                news.generation > newest.generation
            } else {
                session > newest.session
            };
            if !newer {
                return;
            }
        }
        // A key of an earlier incarnation is useless: nobody seals with it.
        self.before = self
            .newest
            .take()
            .filter(|known| known.instance == news.instance)
            .map(|known| (known, now + BEFORE_LIFETIME));
        self.newest = Some(Known {
            key_id: news.key_id,
            instance: news.instance,
            generation: news.generation,
            session,
            opener: Opener::new(&news.key, news.counter),
        });
    }

    #[inline]
    pub(crate) fn opener(
        &mut self,
        key_id: u32,
        now: impl Fn() -> Duration,
    ) -> Option<&mut Opener> {
        if let Some(newest) = self.newest.as_mut().filter(|known| known.key_id == key_id) {
            return Some(&mut newest.opener);
        }
        // A holder of a cluster key that was removed may know this one, so it must not be kept.
        if self
            .before
            .as_ref()
            .is_some_and(|(_, until)| *until <= now())
        {
            self.before = None;
        }
        let (before, _) = self.before.as_mut()?;
        (before.key_id == key_id).then_some(&mut before.opener)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    /// Only newer keys of the same incarnation, or an incarnation told in a newer session, replace the known one; a repetition changes nothing.
    #[test]
    fn old_news_change_nothing() {
        let mut own = OwnGroup::new().expect("random");
        let mut peer = PeerGroup::default();
        let first = own.news();
        peer.learn(&first, 1, NOW);
        own.renew().expect("random");
        let second = own.news();
        assert_ne!(first.key_id, second.key_id);
        peer.learn(&second, 1, NOW);
        assert!(
            peer.opener(first.key_id, || NOW).is_some()
                && peer.opener(second.key_id, || NOW).is_some()
        );
        let late = NOW + BEFORE_LIFETIME;
        assert!(peer.opener(second.key_id, || late).is_some());
        assert!(
            peer.opener(first.key_id, || late).is_none(),
            "it has expired"
        );
        own.renew().expect("random");
        let third = own.news();
        peer.learn(&third, 1, NOW);
        assert!(peer.opener(first.key_id, || NOW).is_none());
        peer.learn(&first, 1, NOW);
        peer.learn(&first, 2, NOW);
        assert!(peer.opener(first.key_id, || NOW).is_none());

        let reborn = OwnGroup::new().expect("random").news();
        peer.learn(&reborn, 1, NOW);
        assert!(peer.opener(reborn.key_id, || NOW).is_none());
        peer.learn(&reborn, 3, NOW);
        assert!(
            peer.opener(reborn.key_id, || NOW).is_some()
                && peer.opener(third.key_id, || NOW).is_none()
        );
        peer.learn(&third, 2, NOW);
        peer.learn(&third, 3, NOW);
        assert!(peer.opener(third.key_id, || NOW).is_none());
    }
}
