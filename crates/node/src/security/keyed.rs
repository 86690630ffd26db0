//! A sealed link whose keys may change while it runs.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tsumuji_link::{
    Capacity, Frame, Link, LinkAddr, LinkCaps, LinkCounters, LinkError, Receiver, SealCounters,
    SealMode,
};
use tsumuji_seal::{Keys, Sealed};

use crate::any_link::Unsealed;
use crate::error::OpenError;

/// Nanoseconds between two checks of the key file.
const LOOK_EVERY_NS: u64 = 1_000_000_000;

/// A sealed link whose key file may change.
#[derive(Debug)]
pub struct Keyed {
    sealed: Sealed<Unsealed>,
    key_file: PathBuf,
    changed: Option<SystemTime>,
    /// When it is checked next, by the clock of `note_time`.
    look_at_ns: u64,
}

impl Keyed {
    pub(super) fn new(
        link: Unsealed,
        key_file: PathBuf,
        mode: SealMode,
    ) -> Result<Self, OpenError> {
        // The time is read first, so that a change in between is noticed later.
        let changed = modified(&key_file);
        let keys = Keys::read(&key_file)?;
        Ok(Self {
            sealed: Sealed::new(link, &keys, mode)?,
            key_file,
            changed,
            look_at_ns: 0,
        })
    }

    /// Reads the keys again if their file has changed. An invalid file changes nothing.
    #[cold]
    fn look(&mut self) {
        let changed = modified(&self.key_file);
        if changed.is_none() || changed == self.changed {
            return;
        }
        self.changed = changed;
        let taken = Keys::read(&self.key_file)
            .map_err(|error| error.to_string())
            .and_then(|keys| self.sealed.reload(&keys).map_err(|error| error.to_string()));
        match taken {
            Ok(()) => tracing::info!(file = %self.key_file.display(), "cluster keys changed"),
            Err(error) => tracing::warn!("the cluster keys in use stay: {error}"),
        }
    }
}

fn modified(path: &PathBuf) -> Option<SystemTime> {
    std::fs::metadata(path)
        .and_then(|meta| meta.modified())
        .ok()
}

impl Link for Keyed {
    fn caps(&self) -> LinkCaps {
        self.sealed.caps()
    }

    fn local_addr(&self) -> LinkAddr {
        self.sealed.local_addr()
    }

    #[inline]
    fn capacity(&mut self, to: LinkAddr) -> Result<Capacity, LinkError> {
        self.sealed.capacity(to)
    }

    #[inline]
    fn send<'a>(
        &mut self,
        to: LinkAddr,
        frames: impl Iterator<Item = Frame<'a>> + Clone,
    ) -> Result<usize, LinkError> {
        self.sealed.send(to, frames)
    }

    #[inline]
    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        self.sealed.receive(max, receiver)
    }

    #[inline]
    fn flush(&mut self) -> Result<(), LinkError> {
        self.sealed.flush()
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        self.sealed.wait(timeout)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.sealed.fd()
    }

    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        self.sealed.arm_fd()
    }

    #[inline]
    fn note_time(&mut self, now_ns: u64) {
        if now_ns >= self.look_at_ns {
            self.look_at_ns = now_ns.saturating_add(LOOK_EVERY_NS);
            self.look();
        }
    }

    fn set_reach(&mut self, to: LinkAddr, frame_bytes: usize) {
        self.sealed.set_reach(to, frame_bytes);
    }

    fn counters(&self) -> LinkCounters {
        self.sealed.counters()
    }

    fn sealing(&self) -> Option<SealCounters> {
        self.sealed.sealing()
    }
}
