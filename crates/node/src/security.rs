//! Who may take part: frames sealed with a cluster key, or a network that is said to be trusted.
//!
//! Called by `bootstrap` for every endpoint it opens. A link that leaves this host is opened only if one or the other is stated
//! (`docs/security.md`); shared memory and loopback need neither. `Keyed` is a sealed link that looks at its key file now and then, so
//! that keys change while it runs.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tsumuji_link::{
    Capacity, Frame, Link, LinkAddr, LinkCaps, LinkCounters, LinkError, Receiver, SealCounters,
};
use tsumuji_seal::{Keys, SealMode, Sealed};

use crate::any_link::{AnyLink, Unsealed};
use crate::bootstrap::{ENV_KEY, ENV_OPEN, ENV_SEAL};
use crate::error::OpenError;

/// What is stated about a link's safety.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Security {
    /// Nothing: only links that stay on this host are opened.
    #[default]
    Unstated,
    /// The network is trusted: frames are neither authenticated nor encrypted.
    Open,
    /// Every frame is sealed with the cluster's key.
    Sealed {
        /// Keys, one a line; the first is used, the others are accepted. Read again when the file changes.
        key_file: PathBuf,
        /// Authenticated, or encrypted as well.
        mode: SealMode,
    },
}

impl Security {
    /// Seals the link, or refuses one that leaves the host without a word about it.
    pub fn apply(&self, link: Unsealed) -> Result<AnyLink, OpenError> {
        match self {
            Self::Sealed { key_file, mode } => Ok(AnyLink::Sealed(Box::new(Keyed::new(
                link,
                key_file.clone(),
                *mode,
            )?))),
            Self::Unstated if link.leaves_host() => Err(OpenError::Unprotected {
                link: link.caps().name,
            }),
            Self::Open | Self::Unstated => Ok(AnyLink::Open(link)),
        }
    }

    /// What tells launched processes the same (see [`LaunchSpec::env`](crate::LaunchSpec::env)).
    pub fn env(&self) -> Vec<(OsString, OsString)> {
        match self {
            Self::Unstated => Vec::new(),
            Self::Open => vec![(ENV_OPEN.into(), "1".into())],
            Self::Sealed { key_file, mode } => vec![
                (ENV_KEY.into(), key_file.into()),
                (ENV_SEAL.into(), mode.to_string().into()),
            ],
        }
    }
}

/// Can another host send to this address?
pub fn leaves_host(addr: LinkAddr) -> bool {
    match addr {
        LinkAddr::Local(_) => false,
        LinkAddr::Inet(addr) => !addr.ip().is_loopback(),
        _ => true,
    }
}

/// Time between two looks at the key file.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Receives between two looks at the clock, for programs that never wait.
const RECEIVES_PER_LOOK: u32 = 1 << 16;

/// A sealed link whose key file may change.
#[derive(Debug)]
pub struct Keyed {
    sealed: Sealed<Unsealed>,
    key_file: PathBuf,
    changed: Option<SystemTime>,
    looked: std::time::Instant,
    receives: u32,
}

impl Keyed {
    fn new(link: Unsealed, key_file: PathBuf, mode: SealMode) -> Result<Self, OpenError> {
        // The time first: a change in between is seen later.
        let changed = modified(&key_file);
        let keys = Keys::read(&key_file)?;
        Ok(Self {
            sealed: Sealed::new(link, &keys, mode)?,
            key_file,
            changed,
            looked: std::time::Instant::now(),
            receives: 0,
        })
    }

    /// Takes the keys anew if their file changed. A file that cannot be used changes nothing.
    #[cold]
    fn look(&mut self) {
        self.receives = 0;
        if self.looked.elapsed() < LOOK_EVERY {
            return;
        }
        self.looked = std::time::Instant::now();
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
        self.receives += 1;
        if self.receives >= RECEIVES_PER_LOOK {
            self.look();
        }
        self.sealed.receive(max, receiver)
    }

    #[inline]
    fn flush(&mut self) -> Result<(), LinkError> {
        self.sealed.flush()
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        self.look();
        self.sealed.wait(timeout)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.sealed.fd()
    }

    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        self.look();
        self.sealed.arm_fd()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Only what other hosts can reach needs a word about safety.
    #[test]
    fn what_leaves_the_host() {
        let inet = |text: &str| LinkAddr::Inet(text.parse().expect(text));
        for (addr, leaves) in [
            (LinkAddr::Local(3), false),
            (inet("127.0.0.1:1"), false),
            (inet("[::1]:1"), false),
            (inet("10.0.0.1:1"), true),
            (inet("0.0.0.0:1"), true),
            (LinkAddr::Ether(tsumuji_link::ether::MacAddr([2; 6])), true),
        ] {
            assert_eq!(leaves_host(addr), leaves, "{addr}");
        }
    }
}
