//! Which core a program runs on (`--bind core`): node *i* of a host on the *i*-th core that the host allows.
//!
//! Used by `child` and `agent`, each for the programs that it starts: every host decides by its own cores.

use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};

/// Whether programs are bound to cores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Binding {
    /// The kernel moves them as it likes.
    #[default]
    None,
    /// Each runs on a core of its own, on hosts that have as many as nodes.
    Core,
}

impl std::str::FromStr for Binding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self::None),
            "core" => Ok(Self::Core),
            _ => Err("accepted are core and none".to_owned()),
        }
    }
}

/// A program among those of its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Seat {
    /// Its number on the host, from 0.
    pub(super) index: u16,
    /// Number of programs on the host.
    pub(super) of: u16,
}

impl Seat {
    /// Its core, if this process is allowed as many cores as there are programs; otherwise why it has none.
    pub(super) fn core(self) -> Result<usize, String> {
        let allowed = sched_getaffinity(None)
            .map_err(|error| format!("not bound to cores: cannot ask for the cores: {error}"))?;
        let count = usize::try_from(allowed.count()).unwrap_or(0);
        if count < usize::from(self.of) {
            return Err(format!(
                "not bound to cores: {} processes, but {count} allowed on this host",
                self.of
            ));
        }
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        cores
            .nth(self.index.into())
            .ok_or_else(|| format!("not bound to cores: there is no process {}", self.index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs get different cores of those allowed; more programs than cores get none.
    #[test]
    fn cores_are_shared_out_once() {
        let allowed = sched_getaffinity(None).expect("affinity");
        let count = u16::try_from(allowed.count()).expect("few cores");
        let core = |index, of| Seat { index, of }.core();
        let cores: Vec<_> = (0..count)
            .map(|index| core(index, count).expect("a core"))
            .collect();
        assert!(cores.windows(2).all(|pair| pair[0] < pair[1]), "{cores:?}");
        assert!(cores.iter().all(|core| allowed.is_set(*core)));
        let refused = core(0, count + 1).expect_err("too many");
        assert!(refused.starts_with("not bound to cores: "), "{refused}");
        assert!(core(count, count).is_err());
    }
}
