//! Whether frames are sealed with a cluster key, or the network is trusted.
//!
//! Used by `bootstrap` for every endpoint that it opens. A link that leaves this host is opened only if one of the two is stated
//! (`docs/security.md`); shared memory and loopback need neither. `keyed` is a sealed link that rereads its key file, so that keys can change while
//! it runs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use tsumuji_link::impair::ImpairConfig;
use tsumuji_link::{Link, SealMode};

#[cfg(feature = "seal")]
use self::keyed::Keyed;
use crate::any_link::{AnyLink, Base};
use crate::error::OpenError;

#[cfg(feature = "seal")]
mod keyed;

/// File with the cluster's keys: all frames are sealed.
pub const ENV_KEY: &str = "TSUMUJI_KEY";
/// How frames are sealed: `encrypt` (default) or `auth`.
pub const ENV_SEAL: &str = "TSUMUJI_SEAL";
/// `1`: the network is trusted, and frames that leave the host need no key.
pub const ENV_OPEN: &str = "TSUMUJI_OPEN";

/// What is stated about the security of a link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Security {
    /// Nothing: only links that stay on this host are opened.
    #[default]
    Unstated,
    /// The network is trusted: frames are neither authenticated nor encrypted.
    Open,
    /// Every frame is sealed with the cluster's key.
    Sealed {
        /// File of keys, one a line; the first is used, the others are accepted. Read again when it changes.
        key_file: PathBuf,
        /// Authenticated, or encrypted as well.
        mode: SealMode,
    },
}

impl Security {
    /// Variables that state it. Where some are set for a process, they replace all that it would inherit.
    pub const ENV: [&str; 3] = [ENV_KEY, ENV_SEAL, ENV_OPEN];

    /// Adds wrappers to the link as [`AnyLink::open`] does, and seals it if so stated; refuses one that leaves the host if nothing is stated.
    pub fn open(
        &self,
        base: Base,
        impair: Option<ImpairConfig>,
        capture: Option<&Path>,
    ) -> Result<AnyLink, OpenError> {
        if *self == Self::Unstated && base.leaves_host() {
            return Err(OpenError::Unprotected(base.caps().name));
        }
        let link = AnyLink::open(base, impair, capture)?;
        match self {
            #[cfg(feature = "seal")]
            Self::Sealed { key_file, mode } => {
                let sealed = Keyed::new(link, key_file.clone(), *mode)?;
                Ok(AnyLink::own(sealed))
            }
            #[cfg(not(feature = "seal"))]
            Self::Sealed { .. } => Err(OpenError::NotBuilt("seal")),
            Self::Open | Self::Unstated => Ok(link),
        }
    }

    /// Environment that states the same to launched processes (see [`LaunchSpec::env`](crate::LaunchSpec::env)).
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
