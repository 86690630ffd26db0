//! Which core a program runs on (`--bind core`): node *i* of a host on the *i*-th core that the host allows.
//!
//! Used by `launcher` and `agent`, each for the programs that it starts: every host decides by its own cores. A core with several hardware threads
//! counts once; the first of them that is allowed is taken. Where the kernel does not tell which threads share a core, each counts as one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};

use crate::text_file;

/// Longest list of a core's threads: 4 digits and a comma for each, with room to spare.
const LIST_BYTES_MAX: u64 = 256;
/// Threads of a core; the most that processors have is 8.
const CORE_THREADS_MAX: usize = 16;

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
pub(super) struct CoreSlot {
    /// Its number on the host, from 0.
    pub(super) index: u16,
    /// Number of programs on the host.
    pub(super) of: u16,
}

impl CoreSlot {
    /// Its core, if this process is allowed as many cores as there are programs; otherwise why it has none.
    pub(super) fn core(self) -> Result<usize, String> {
        let cores = cores(self.of.into())?;
        let core = cores.get(usize::from(self.index)).copied();
        core.ok_or_else(|| format!("not bound to cores: there is no process {}", self.index))
    }
}

/// A CPU of each of the first `wanted` cores that this process may use, in ascending order; otherwise why there are none.
pub(super) fn cores(wanted: usize) -> Result<Vec<usize>, String> {
    let allowed = sched_getaffinity(None)
        .map_err(|error| format!("not bound to cores: cannot ask for the cores: {error}"))?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .collect();
    chosen(wanted, &cpus, siblings)
}

/// The CPUs that share the core of `cpu`, as the kernel lists them.
fn siblings(cpu: usize) -> Option<String> {
    let folder = PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/topology"));
    let list = text_file::read(&folder.join("thread_siblings_list"), LIST_BYTES_MAX);
    list.ok().flatten()
}

fn chosen(
    wanted: usize,
    cpus: &[usize],
    siblings: impl Fn(usize) -> Option<String>,
) -> Result<Vec<usize>, String> {
    let mut cores = first_threads(cpus, siblings);
    let (count, threads) = (cores.len(), cpus.len());
    if count < wanted {
        let of_threads = if threads > count {
            format!(" (with {threads} hardware threads)")
        } else {
            String::new()
        };
        return Err(format!(
            "not bound to cores: {wanted} processes, but {count} allowed on this host{of_threads}"
        ));
    }
    cores.truncate(wanted);
    Ok(cores)
}

/// The first of the CPUs of each core; all of them where `siblings` tells no sound division into cores.
fn first_threads(cpus: &[usize], siblings: impl Fn(usize) -> Option<String>) -> Vec<usize> {
    let lists: Option<BTreeMap<usize, Vec<usize>>> = cpus
        .iter()
        .map(|&cpu| Some((cpu, cpu_list(&siblings(cpu)?)?)))
        .collect();
    let Some(lists) = lists else {
        return cpus.to_vec();
    };
    let agree = |list: &Vec<usize>| {
        let mut known = list.iter().filter_map(|cpu| lists.get(cpu));
        known.all(|theirs| theirs == list)
    };
    let is_sound = lists
        .iter()
        .all(|(cpu, list)| list.contains(cpu) && agree(list));
    if !is_sound {
        return cpus.to_vec();
    }
    let mut seen = BTreeSet::new();
    let firsts = lists.iter().filter(|&(_, list)| seen.insert(list));
    firsts.map(|(cpu, _)| *cpu).collect()
}

/// Reads the kernel's lists of CPUs, such as `0-3` and `0,64`; `None`: it is not one of a core.
fn cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last - first >= CORE_THREADS_MAX || cpus.len() >= CORE_THREADS_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cores of a made-up host: each text is what its CPU says of its core.
    fn firsts(cpus: &[usize], lists: &[&str]) -> Vec<usize> {
        first_threads(cpus, |cpu| lists.get(cpu).map(|list| format!("{list}\n")))
    }

    /// A core counts once, whichever way its threads are numbered, and by the first of them that is allowed.
    #[test]
    fn threads_of_a_core_count_once() {
        let [near, far] = [["0-1", "0-1", "2-3", "2-3"], ["0,2", "1,3", "0,2", "1,3"]];
        let all = [0, 1, 2, 3];
        assert_eq!(firsts(&all, &near), [0, 2]);
        assert_eq!(firsts(&all, &far), [0, 1]);
        assert_eq!(firsts(&[1, 2, 3], &near), [1, 2]);
        assert_eq!(firsts(&[2, 3], &far), [2, 3]);
        assert_eq!(firsts(&all, &["0", "1", "2", "3"]), all);
        assert!(firsts(&[], &[]).is_empty());
    }

    /// Where the division into cores is absent or makes no sense, each CPU counts as a core.
    #[test]
    fn unsound_topologies_are_ignored() {
        let (all, none): (_, &[&str]) = ([0, 1], &[]);
        for lists in [
            none,
            &["0-1"],
            &["", ""],
            &["0-1", "x"],
            &["0-1", "1"],
            &["1", "0"],
            &["0-1", "1-0"],
            &["0-1", "0-1-2"],
            &["0-1023", "0-1023"],
            &["0-18446744073709551615", "1"],
            &["0,1,99999999999999999999", "0-1"],
            &["0,+", "0,+"],
        ] {
            assert_eq!(firsts(&all, lists), all, "{lists:?}");
        }
    }

    /// Programs get different cores; more programs than cores get none, and it is said how many there are.
    #[test]
    fn cores_are_shared_out_once() {
        let lists = ["0-1", "0-1", "2-3", "2-3"];
        let siblings = |cpu: usize| lists.get(cpu).map(|list| (*list).to_owned());
        let chosen = |wanted| chosen(wanted, &[0, 1, 2, 3], siblings);
        assert_eq!(chosen(1), Ok(vec![0]));
        assert_eq!(chosen(2), Ok(vec![0, 2]));
        let refused =
            "not bound to cores: 3 processes, but 2 allowed on this host (with 4 hardware threads)";
        assert_eq!(chosen(3), Err(refused.to_owned()));
    }

    /// This host's own cores are some of the allowed ones.
    #[test]
    fn own_cores_are_allowed() {
        let allowed = sched_getaffinity(None).expect("affinity");
        let core = |index, of| CoreSlot { index, of }.core();
        assert!(allowed.is_set(core(0, 1).expect("a core")));
        let refused = core(0, u16::MAX).expect_err("too many");
        assert!(refused.starts_with("not bound to cores: "), "{refused}");
        assert!(core(1, 1).is_err());
    }
}
