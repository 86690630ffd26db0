//! Sessions by key id. An id has an index and a random half, so that finding a session is an array access, and the id of an ended session is not used
//! again soon.
//!
//! Called by `peers`.

use tsumuji_link::LinkAddr;

use crate::key::KeyPrint;
use crate::random;
use crate::session::{Opener, Sealer};

/// Most sessions. A peer has at most three: the current one, the previous one, and one that is being agreed on.
pub(crate) const SESSIONS_MAX: usize = 1 << 14;

/// Keys for both directions between us and one address.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) addr: LinkAddr,
    /// The cluster key it was agreed under.
    pub(crate) print: KeyPrint,
    /// Sessions are numbered as they begin.
    pub(crate) number: u64,
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
    /// The peer has not yet shown that it has the keys: nothing was opened.
    pub(crate) fresh: bool,
    /// A frame was opened since `upkeep` last checked.
    pub(crate) heard: bool,
}

#[derive(Debug, Default)]
struct Slot {
    half: u16,
    taken: bool,
    session: Option<Session>,
}

#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
}

impl Slots {
    /// Reserves an id for a future session; `None`: all are taken, or there is no randomness.
    pub(crate) fn reserve(&mut self) -> Option<u32> {
        let half = random::number().ok()? as u16;
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < SESSIONS_MAX => {
                self.slots.push(Slot::default());
                (self.slots.len() - 1) as u16
            }
            None => return None,
        };
        let slot = &mut self.slots[usize::from(index)];
        slot.taken = true;
        slot.half = half;
        Some(u32::from(half) << 16 | u32::from(index))
    }

    /// Stores the session of a reserved id.
    pub(crate) fn fill(&mut self, id: u32, session: Session) {
        if let Some(slot) = self.slot(id) {
            slot.session = Some(session);
        }
    }

    #[inline]
    fn slot(&mut self, id: u32) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::from(id as u16))?;
        (slot.taken && slot.half == (id >> 16) as u16).then_some(slot)
    }

    #[inline]
    pub(crate) fn get(&mut self, id: u32) -> Option<&mut Session> {
        self.slot(id)?.session.as_mut()
    }

    /// Ends the session, or returns the reserved id.
    pub(crate) fn release(&mut self, id: u32) {
        if let Some(slot) = self.slot(id) {
            *slot = Slot::default();
            self.free.push(id as u16);
        }
    }

    /// Number of ids in use.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KEY_BYTES;

    fn session(number: u64) -> Session {
        Session {
            addr: LinkAddr::Local(1),
            print: KeyPrint([0; 8]),
            number,
            sealer: Sealer::new(&[1; KEY_BYTES], 1),
            opener: Opener::new(&[2; KEY_BYTES], 0),
            fresh: true,
            heard: false,
        }
    }

    /// A session is found by its whole id while it lasts, and by nothing else.
    #[test]
    fn found_by_its_id_only() {
        let mut slots = Slots::default();
        let id = slots.reserve().expect("room");
        assert!(slots.get(id).is_none(), "reserved only");
        slots.fill(id, session(7));
        assert_eq!(slots.get(id).map(|session| session.number), Some(7));
        assert!(slots.get(id ^ 1 << 16).is_none() && slots.get(id ^ 1).is_none());
        slots.release(id ^ 1 << 16);
        assert!(slots.get(id).is_some());
        slots.release(id);
        slots.release(id);
        assert!(slots.get(id).is_none());
        assert_eq!(slots.taken(), 0);
        let ids = [slots.reserve(), slots.reserve()].map(|id| id.expect("room") as u16);
        assert_ne!(ids[0], ids[1], "released once");
    }

    /// Their number is limited.
    #[test]
    fn limited() {
        let mut slots = Slots::default();
        let ids: Vec<_> = std::iter::from_fn(|| slots.reserve()).collect();
        assert_eq!(ids.len(), SESSIONS_MAX);
        slots.release(ids[5]);
        assert!(slots.reserve().is_some() && slots.reserve().is_none());
    }
}
