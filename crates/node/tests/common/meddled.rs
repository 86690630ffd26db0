//! A link around another one, for tests: passes on everything, and lets a meddler decide what becomes of what is sent.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use tsumuji_link::{LinkCaps, LinkCounters, LinkError, RunRoom, SealCounters};
use tsumuji_node::{Link, LinkAddr};

/// What becomes of frames that are about to be sent.
pub(crate) enum Fate {
    Sent,
    /// The sender takes them for sent.
    Lost,
}

pub(crate) trait Meddler {
    /// Whether the link may send frames from where they lie, if it can.
    fn allows_runs(&self) -> bool {
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
    /// A frame as it is going to leave. Not called for what is sent from where it lies.
    fn change(&mut self, _frame: &mut [u8]) {}
}

pub(crate) struct Meddled<L, M> {
    pub(crate) link: L,
    pub(crate) meddler: M,
}

impl<L: Link, M: Meddler> Link for Meddled<L, M> {
    fn caps(&self) -> LinkCaps {
        self.meddler.amend(self.link.caps())
    }
    fn local_addr(&self) -> LinkAddr {
        self.link.local_addr()
    }
    fn recv_burst(
        &mut self,
        max: usize,
        on_frame: impl FnMut(LinkAddr, &[u8]),
    ) -> Result<usize, LinkError> {
        self.meddler.before_receiving();
        self.link.recv_burst(max, on_frame)
    }
    fn sends_runs(&self) -> bool {
        self.meddler.allows_runs() && self.link.sends_runs()
    }
    fn run_room(&mut self, to: LinkAddr) -> Result<Option<RunRoom>, LinkError> {
        self.link.run_room(to)
    }
    fn send_run<'a>(
        &mut self,
        to: LinkAddr,
        frames: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) -> Result<(), LinkError> {
        match self.meddler.decide(frames.clone().count())? {
            Fate::Sent => self.link.send_run(to, frames),
            Fate::Lost => Ok(()),
        }
    }
    fn send_with(
        &mut self,
        to: LinkAddr,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<bool, LinkError> {
        match self.meddler.decide(1)? {
            Fate::Sent => self.link.send_with(to, |slot| {
                let bytes = fill(slot);
                self.meddler.change(&mut slot[..bytes]);
                bytes
            }),
            Fate::Lost => {
                fill(&mut vec![0; self.caps().frame_bytes]);
                Ok(true)
            }
        }
    }
    fn flush(&mut self) -> Result<(), LinkError> {
        self.link.flush()
    }
    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        self.link.wait(timeout)
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.fd()
    }
    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        self.link.arm_fd()
    }
    fn counters(&self) -> LinkCounters {
        self.link.counters()
    }
    fn sealing(&self) -> Option<SealCounters> {
        self.link.sealing()
    }
}
