//! A link around another one, for tests: passes on everything, and lets a meddler decide what becomes of what is sent.

use tsumuji_link::{Capacity, Frame, LinkCaps, LinkError, Receiver, each, hand_over, pass_on};
use tsumuji_node::{Link, LinkAddr};

/// What becomes of frames that are about to be sent.
pub(crate) enum Fate {
    Sent,
    /// The sender takes them for sent.
    Lost,
}

pub(crate) trait Meddler {
    /// How many frames the link takes by one call, at most.
    fn most_frames(&self) -> usize {
        usize::MAX
    }
    /// Whether `change` is to be called.
    fn changes(&self) -> bool {
        false
    }
    /// Before so many frames are sent; an error is what the link then returns.
    fn decide(&mut self, _frames: usize) -> Result<Fate, LinkError> {
        Ok(Fate::Sent)
    }
    /// What the link says of itself.
    fn amend(&self, caps: LinkCaps) -> LinkCaps {
        caps
    }
    /// Frames are about to be received.
    fn before_receiving(&mut self) {}
    /// A frame as it is going to leave.
    fn change(&mut self, _frame: &mut [u8]) {}
}

pub(crate) struct Meddled<L, M> {
    pub(crate) link: L,
    pub(crate) meddler: M,
}

impl<L: Link, M: Meddler> Link for Meddled<L, M> {
    pass_on!((link): local_addr flush wait fd arm_fd note_time counters sealing);

    fn caps(&self) -> LinkCaps {
        self.meddler.amend(self.link.caps())
    }
    fn capacity(&mut self, to: LinkAddr) -> Result<Capacity, LinkError> {
        let mut capacity = self.link.capacity(to)?;
        capacity.frames = capacity.frames.min(self.meddler.most_frames());
        Ok(capacity)
    }
    fn send(&mut self, to: LinkAddr, frames: &[Frame<'_>]) -> Result<usize, LinkError> {
        let count = frames.len();
        match self.meddler.decide(count)? {
            Fate::Lost => Ok(count),
            Fate::Sent if !self.meddler.changes() => self.link.send(to, frames),
            Fate::Sent => {
                let mut changed = Vec::new();
                for frame in frames {
                    let mut bytes = [frame.head, frame.body].concat();
                    self.meddler.change(&mut bytes);
                    changed.push(bytes);
                }
                let changed: Vec<_> = changed.iter().map(|frame| Frame::whole(frame)).collect();
                self.link.send(to, &changed)
            }
        }
    }
    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        self.meddler.before_receiving();
        self.link.receive(
            max,
            &mut each(|from, frame| hand_over(receiver, from, frame)),
        )
    }
}
