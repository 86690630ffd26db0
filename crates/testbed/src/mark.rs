//! Ownership of namespaces: the mark that the testbed sets on its namespaces, and the search for them later.
//!
//! The mark is the alias of the loopback interface, so it exists exactly as long as the namespace: no file can disagree with the kernel. The switch's
//! mark also has the number of hosts, and the process that holds the testbed until it is finished.
//! Called by `up`, `down` and `Testbed::find`.
//!
//! Invariants: the switch's namespace has its mark before it has a name; hosts exist only with a marked switch. So an unmarked namespace with a
//! host's name is a half-made one of ours only if the switch is ours, the host is one of those to be made, and the namespace is bare; any other
//! belongs to somebody else and is never touched.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::commands::{CommandError, Tool, ask};
use crate::spec::Name;

/// Where `ip netns` keeps the names of namespaces.
const NETNS_FOLDER: &str = "/run/netns";
/// What every mark begins with.
const MARK: &str = "tsumuji testbed";

/// A process, identified by its number and its start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    /// In clock ticks since the machine started.
    start_ticks: u64,
}

impl Holder {
    /// This process.
    pub(crate) fn me() -> Option<Self> {
        let pid = std::process::id();
        start_ticks(pid).map(|start_ticks| Self { pid, start_ticks })
    }

    /// Whether it still runs.
    pub(crate) fn lives(self) -> bool {
        start_ticks(self.pid) == Some(self.start_ticks)
    }
}

/// Start time of a process; `None` if there is none of that number, or it is a zombie.
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain any characters, so fields are counted from behind it. The state is the third field of all, the start time
    // the twenty-second.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?;
    let start = fields.nth(18)?;
    if state == "Z" {
        None
    } else {
        start.parse().ok()
    }
}

/// The mark of the switch's namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SwitchMark {
    /// Number of hosts when finished.
    pub(crate) hosts: u16,
    /// The process that builds it, or removes it at its end; `None` once it is kept.
    pub(crate) holder: Option<Holder>,
}

impl SwitchMark {
    /// The text of the alias.
    pub(crate) fn text(&self, name: &Name) -> String {
        let hosts = self.hosts;
        match self.holder {
            None => format!("{MARK} {name}/{hosts}"),
            Some(Holder { pid, start_ticks }) => {
                format!("{MARK} {name}/{hosts}/{pid}.{start_ticks}")
            }
        }
    }

    fn parse(text: &str, name: &Name) -> Option<Self> {
        let mut parts = after_mark(text)?.split('/');
        if parts.next()? != name.as_str() {
            return None;
        }
        let hosts = parts.next()?.parse().ok()?;
        let holder = match parts.next() {
            None => None,
            Some(holder) => {
                let (pid, start_ticks) = holder.split_once('.')?;
                Some(Holder {
                    pid: pid.parse().ok()?,
                    start_ticks: start_ticks.parse().ok()?,
                })
            }
        };
        parts.next().is_none().then_some(Self { hosts, holder })
    }
}

/// The mark of a host's namespace.
pub(crate) fn host_mark(name: &Name) -> String {
    format!("{MARK} {name}")
}

fn after_mark(text: &str) -> Option<&str> {
    text.strip_prefix(MARK)?.strip_prefix(' ')
}

/// Kind of a namespace with one of the testbed's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finding {
    Switch(SwitchMark),
    Host,
    /// A name without a namespace: `ip` was killed between the two steps.
    Husk,
    /// No mark, and nothing in use.
    Bare,
    Foreign,
}

#[derive(Debug, Deserialize)]
struct Interface {
    ifname: String,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    ifalias: Option<String>,
}

/// All namespaces with a testbed's names.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The switch, if it is ours.
    pub(crate) switch: Option<SwitchMark>,
    /// Our namespaces, hosts first, the switch last (its mark is needed to judge the others).
    pub(crate) ours: Vec<String>,
    /// Namespaces of others.
    pub(crate) foreign: Vec<String>,
}

impl Survey {
    /// Reads all namespaces whose names a testbed of this name may use.
    pub(crate) fn of(name: &Name) -> Result<Self, CommandError> {
        let mut survey = Self::default();
        let mut hosts = Vec::new();
        for namespace in names() {
            if namespace == name.switch() {
                match examine(name, &namespace)? {
                    Finding::Switch(mark) => survey.switch = Some(mark),
                    Finding::Husk => {}
                    Finding::Host | Finding::Bare | Finding::Foreign => {
                        survey.foreign.push(namespace);
                        continue;
                    }
                }
                survey.ours.push(namespace);
            } else if let Some(id) = name.host_id(&namespace) {
                hosts.push((id, namespace));
            }
        }
        hosts.sort_unstable();
        let mut ours = Vec::new();
        for (id, namespace) in hosts {
            let was_to_be = survey.switch.is_some_and(|switch| id < switch.hosts);
            let is_ours = match examine(name, &namespace)? {
                Finding::Host | Finding::Husk => true,
                Finding::Bare => was_to_be,
                Finding::Switch(_) | Finding::Foreign => false,
            };
            if is_ours {
                &mut ours
            } else {
                &mut survey.foreign
            }
            .push(namespace);
        }
        ours.append(&mut survey.ours);
        survey.ours = ours;
        Ok(survey)
    }
}

/// The mark of the switch, if there is one and it is ours.
pub(crate) fn switch_mark(name: &Name) -> Result<Option<SwitchMark>, CommandError> {
    if !path(&name.switch()).exists() {
        return Ok(None);
    }
    Ok(match examine(name, &name.switch())? {
        Finding::Switch(mark) => Some(mark),
        _ => None,
    })
}

/// All testbeds, by name. One that vanishes meanwhile is left out.
pub(crate) fn all() -> Vec<(Name, SwitchMark)> {
    let mut found: Vec<_> = names()
        .iter()
        .filter_map(|namespace| {
            let name: Name = namespace.strip_suffix("-switch")?.parse().ok()?;
            let mark = switch_mark(&name).ok()??;
            Some((name, mark))
        })
        .collect();
    found.sort_unstable_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
    found
}

/// Testbeds whose holders died before they had finished or removed them.
pub(crate) fn abandoned() -> impl Iterator<Item = Name> {
    let is_abandoned = |mark: &SwitchMark| mark.holder.is_some_and(|holder| !holder.lives());
    all()
        .into_iter()
        .filter_map(move |(name, mark)| is_abandoned(&mark).then_some(name))
}

/// The file that is a namespace's name.
pub(crate) fn path(namespace: &str) -> PathBuf {
    Path::new(NETNS_FOLDER).join(namespace)
}

/// The names of all namespaces of the machine that have one.
fn names() -> Vec<String> {
    let entries = fs::read_dir(NETNS_FOLDER).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// Identity of a namespace for the kernel: device and inode of its file.
pub(crate) type NetnsKey = (u64, u64);

/// The namespaces behind these names.
pub(crate) fn keys(namespaces: &[String]) -> HashMap<NetnsKey, &str> {
    let key = |namespace: &String| key_of(&path(namespace));
    namespaces
        .iter()
        .filter_map(|namespace| Some((key(namespace)?, namespace.as_str())))
        .collect()
}

/// The namespace behind a file.
pub(crate) fn key_of(file: &Path) -> Option<NetnsKey> {
    fs::metadata(file)
        .ok()
        .map(|found| (found.dev(), found.ino()))
}

fn examine(name: &Name, namespace: &str) -> Result<Finding, CommandError> {
    let is_namespace = match (
        key_of(&path(namespace)),
        key_of(Path::new("/proc/self/ns/net")),
    ) {
        (Some((device, _)), Some((namespaces, _))) => device == namespaces,
        _ => false,
    };
    if !is_namespace {
        let is_empty_file =
            fs::metadata(path(namespace)).is_ok_and(|found| found.is_file() && found.len() == 0);
        return Ok(if is_empty_file {
            Finding::Husk
        } else {
            Finding::Foreign
        });
    }
    let interfaces: Vec<Interface> = ask(Tool::Ip, namespace, &["-json", "link", "show"])?;
    let loopback = interfaces.iter().find(|interface| interface.ifname == "lo");
    let alias = loopback.and_then(|loopback| loopback.ifalias.as_deref());
    Ok(match alias {
        Some(alias) if alias == host_mark(name) => Finding::Host,
        Some(alias) => SwitchMark::parse(alias, name).map_or(Finding::Foreign, Finding::Switch),
        // A new namespace has its loopback, and some tunnels where the kernel has their drivers: all of them down.
        None if interfaces
            .iter()
            .all(|interface| !interface.flags.iter().any(|flag| flag == "UP")) =>
        {
            Finding::Bare
        }
        None => Finding::Foreign,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mark is read as it was written, and only by the testbed that wrote it.
    #[test]
    fn marks_are_read_back() {
        let name: Name = "lab".parse().unwrap();
        let other: Name = "lab2".parse().unwrap();
        let me = Holder::me();
        assert!(me.is_some_and(Holder::lives));
        for holder in [None, me] {
            let mark = SwitchMark { hosts: 17, holder };
            let text = mark.text(&name);
            assert_eq!(SwitchMark::parse(&text, &name), Some(mark));
            assert_eq!(SwitchMark::parse(&text, &other), None);
        }
        assert_eq!(SwitchMark::parse(&host_mark(&name), &name), None);
    }

    /// Other aliases are never taken for a mark.
    #[test]
    fn foreign_marks_are_refused() {
        let name: Name = "lab".parse().unwrap();
        for text in [
            "",
            "lab/3",
            "tsumuji testbed",
            "tsumuji testbed lab/",
            "tsumuji testbed lab/3/",
            "tsumuji testbed lab/3/1.2/",
            "tsumuji testbed lab/3/x.y",
            "tsumuji testbed lab/70000",
        ] {
            assert_eq!(SwitchMark::parse(text, &name), None, "{text}");
        }
    }

    /// A process with the same number and another start time is not the holder.
    #[test]
    fn holder_is_known_by_its_start() {
        let me = Holder::me().unwrap();
        let earlier = Holder {
            start_ticks: me.start_ticks - 1,
            ..me
        };
        assert!(!earlier.lives());
    }
}
