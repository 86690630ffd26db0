//! Removes a testbed in any state: ends the processes in its namespaces, then removes the namespaces, the switch last.
//!
//! Called by `Testbed::down`, by a handle that is dropped, and by `up` for a testbed that it could not finish. Touches only namespaces and processes
//! that are ours according to `mark`.

use crate::commands::{CommandError, Tool, batch};
use crate::hosts_file;
use crate::mark::{self, Survey};
use crate::processes;
use crate::spec::Name;

/// A command of a killed `up` may still be running, and new processes may appear while the old are ended.
const ROUNDS: usize = 5;

/// Why a testbed could not be removed completely.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DownError {
    /// Rights are missing.
    #[error(transparent)]
    Rights(#[from] crate::rights::RightsError),
    /// A command failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The hosts file could not be removed.
    #[error("{}: {source}", path.display())]
    HostsFile {
        /// Its path.
        path: std::path::PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Namespaces reappear repeatedly.
    #[error("{namespace} is made again as often as it is removed; end what makes it")]
    Reappears {
        /// The first of them.
        namespace: String,
    },
}

/// What was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    /// Namespaces, the switch's included.
    pub namespaces: usize,
    /// Processes that ran in them and were ended.
    pub processes: usize,
}

/// Removes everything of this name that is ours; returns what was removed.
pub(crate) fn remove_all(name: &Name) -> Result<Removed, DownError> {
    let mut removed = Removed::default();
    for _ in 0..ROUNDS {
        let ours = Survey::of(name)?.ours;
        if ours.is_empty() {
            return remove_hosts_file(name).map(|()| removed);
        }
        let namespaces = mark::keys(&ours);
        removed.processes += processes::end(&|pid| processes::is_in(pid, &namespaces));
        let lines: Vec<_> = ours
            .iter()
            .map(|namespace| format!("netns delete {namespace}"))
            .collect();
        batch(Tool::Ip, None, &lines)?;
        removed.namespaces += ours.len();
    }
    match Survey::of(name)?.ours.into_iter().next() {
        Some(namespace) => Err(DownError::Reappears { namespace }),
        None => remove_hosts_file(name).map(|()| removed),
    }
}

fn remove_hosts_file(name: &Name) -> Result<(), DownError> {
    hosts_file::remove(name).map_err(|source| DownError::HostsFile {
        path: hosts_file::path(name),
        source,
    })
}
