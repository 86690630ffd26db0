//! What is known of direct messages between this node and one peer: who takes them, and how many there were.
//!
//! Owned by `Peer`; `engine::direct` decides by it.

/// Both directions of one session.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    /// The peer takes them.
    pub(crate) permitted: bool,
    /// This node takes them, as the peer was told last or is to be told.
    pub(crate) open: bool,
    /// It is to be told, in an ack of its own.
    pub(crate) word_due: bool,
    /// Nothing of this session has come from it: it may have missed the word.
    pub(crate) unheard: bool,
    /// Its session has ended, and only the link knows what the peer has read.
    pub(crate) unsettled: bool,
    /// Of the program, to the peer.
    pub(crate) sent: u32,
    /// Of the program, from the peer.
    pub(crate) taken: u32,
    /// The same in the session before.
    taken_before: u32,
    /// What the peer said of those sent to it.
    told: Option<u32>,
}

impl Direct {
    /// What hello and welcome say of the session before.
    pub(crate) fn taken_before(&self) -> u32 {
        self.taken_before
    }

    /// A session begins.
    pub(crate) fn begin(&mut self, open: bool) {
        (self.open, self.word_due, self.unheard) = (open, open, open);
    }

    /// The peer's last word about this session: it has taken so many.
    pub(crate) fn on_told(&mut self, taken: u32) {
        self.told = Some(taken);
    }

    /// The session is over; how many are lost by the peer's own word. Without one the link is to be asked.
    pub(crate) fn end(&mut self) -> usize {
        let told = self.told.take();
        // Nobody takes more than was sent.
        let lost = told.map_or(0, |taken| self.sent.saturating_sub(taken));
        *self = Self {
            unsettled: self.unsettled || told.is_none() && self.sent > 0,
            taken_before: self.taken,
            ..Self::default()
        };
        lost as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the peer says decides; without its word the link is asked, if anything was sent.
    #[test]
    fn who_knows_what_is_lost() {
        let mut direct = Direct::default();
        assert_eq!((direct.end(), direct.unsettled), (0, false));
        (direct.sent, direct.taken) = (5, 7);
        assert_eq!((direct.end(), direct.unsettled), (0, true));
        assert_eq!(
            (direct.taken_before(), direct.sent, direct.taken),
            (7, 0, 0)
        );
        for (told, lost) in [(3, 2), (5, 0), (u32::MAX, 0)] {
            direct.sent = 5;
            direct.on_told(told);
            direct.unsettled = false;
            assert_eq!((direct.end(), direct.unsettled), (lost, false), "{told}");
        }
    }
}
