//! Whose a namespace is: the mark that the testbed leaves on its namespaces, and what is found of it later.
//!
//! The mark is the alias of the loopback interface, so it lives and dies with the namespace: no file can disagree with the
//! kernel. The switch's mark also says how many hosts there are to be, and who holds the testbed until it is finished.
//! Called by `up`, `down` and `Testbed::find`.
//!
//! Invariants: the switch's namespace bears its mark before it has a name; hosts exist only under a marked switch. So an
//! unmarked namespace with a host's name is a half-made one of ours only if the switch is ours, the host is one of those to be
//! made, and the namespace is bare; anything else belongs to somebody else and is never touched.

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

/// A process, told apart from later ones of the same number by when it was started.
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

/// When a process was started; nothing if there is none of that number, or it is dead and only waited for.
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything: fields are counted from behind it. The state is the third field of
    // all, the time of start the twenty-second.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?;
    let start = fields.nth(18)?;
    if state == "Z" {
        None
    } else {
        start.parse().ok()
    }
}

/// What the switch's namespace says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SwitchMark {
    /// How many hosts there are, or are to be.
    pub(crate) hosts: u16,
    /// Who builds it, or has it removed at its end; nobody once it is kept.
    pub(crate) holder: Option<Holder>,
}

impl SwitchMark {
    /// As it stands in the alias.
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

/// What a host's namespace says.
pub(crate) fn host_mark(name: &Name) -> String {
    format!("{MARK} {name}")
}

fn after_mark(text: &str) -> Option<&str> {
    text.strip_prefix(MARK)?.strip_prefix(' ')
}

/// What is known of a namespace that bears a name of the testbed's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finding {
    Switch(SwitchMark),
    Host,
    /// A name without a namespace: `ip` was killed between the two.
    Husk,
    /// No mark, and nothing that anybody has put into use.
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

/// Everything there is under a testbed's names.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The switch, if it is ours.
    pub(crate) switch: Option<SwitchMark>,
    /// Namespaces that are ours, hosts first, the switch last (it says what the others are).
    pub(crate) ours: Vec<String>,
    /// Namespaces that are somebody else's.
    pub(crate) foreign: Vec<String>,
}

impl Survey {
    /// Looks at all namespaces whose names a testbed of this name may use.
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

/// Testbeds whose holders died before they had finished or removed them.
pub(crate) fn abandoned() -> Vec<Name> {
    let mut found = Vec::new();
    for namespace in names() {
        let Some(name) = namespace
            .strip_suffix("-switch")
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // One that vanishes while we look is no longer abandoned.
        if let Ok(Some(SwitchMark {
            holder: Some(holder),
            ..
        })) = switch_mark(&name)
            && !holder.lives()
        {
            found.push(name);
        }
    }
    found
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

/// How the kernel tells namespaces apart: device and number of their files.
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
        // The kernel gives a new namespace its loopback, and some tunnels where it has their drivers: all of them down.
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

    /// A mark is read as it was written, and by the testbed that wrote it only.
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

    /// What others write into an alias is never taken for a mark.
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

    /// A process number that was given to another process since is not the holder.
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
