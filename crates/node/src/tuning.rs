//! Thresholds that depend on the machine and the link, and the profile that states them: a TOML file that `tsumuji tune` writes.
//!
//! Read when an endpoint is opened. Without a profile the defaults hold. Each node may have its own: nothing here must be the same on both sides.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{Deserializer, IgnoredAny};
use serde::{Deserialize, Serialize};
use tsumuji_link::shm::ProcessMemory;

use crate::text_file;

/// Environment variable with the path of a profile, or [`NO_PROFILE`].
pub const TUNE_VARIABLE: &str = "TSUMUJI_TUNE";

/// Value of [`TUNE_VARIABLE`] with which no profile is read.
pub const NO_PROFILE: &str = "none";

/// Largest profile that is read, in bytes: some thousand rules.
pub const PROFILE_BYTES_MAX: u64 = 1 << 20;

/// The profile of all users of a machine.
const OF_ALL_USERS: &str = "/etc/tsumuji/tune.toml";

// Least and most that each threshold may be.
const REFERENCE_BYTES: [usize; 2] = [4096, 2_097_152]; // no ring of the usual size holds the most
const BORROW_BYTES: [usize; 2] = [1024, 32_768];
const FRAME_BYTES: [usize; 2] = [1024, 65_535];
const POLL_FRAMES: [usize; 2] = [4, 64];
const UNSCHEDULED_FRAMES: [usize; 2] = [1, 65_536];
const SPIN_US: [usize; 2] = [2, 1_000];
const ELEMENTS: [usize; 2] = [1, 8_192];

/// Thresholds of an endpoint over one link. What a program states beyond its bounds (docs/tuning.md) counts as the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tuning {
    /// Over shared memory, a shared message of this many bytes or more leaves by reference: its receiver's system call costs less than two copies.
    /// `usize::MAX`: none does, which an endpoint finds for itself if nothing is stated.
    #[serde(deserialize_with = "within::<_, { REFERENCE_BYTES[0] }, { REFERENCE_BYTES[1] }>")]
    pub reference_bytes: usize,
    /// Over links that gather, `send` leaves a message of this many bytes or more where the program has it, instead of copying it into the queue. From
    /// 32 KiB on it does so over every link, and in batches.
    #[serde(
        alias = "lend_bytes",
        deserialize_with = "within::<_, { BORROW_BYTES[0] }, { BORROW_BYTES[1] }>"
    )]
    pub borrow_bytes: usize,
    /// Largest frame between hosts, in bytes; the link's own size if that is less.
    #[serde(deserialize_with = "within::<_, { FRAME_BYTES[0] }, { FRAME_BYTES[1] }>")]
    pub frame_bytes: usize,
    /// Most frames taken from the link before answers are sent.
    #[serde(
        alias = "turn_frames",
        deserialize_with = "within::<_, { POLL_FRAMES[0] }, { POLL_FRAMES[1] }>"
    )]
    pub poll_frames: usize,
    /// Most frames that an idle peer may send at once without further permission.
    #[serde(
        deserialize_with = "within::<_, { UNSCHEDULED_FRAMES[0] }, { UNSCHEDULED_FRAMES[1] }>"
    )]
    pub unscheduled_frames: usize,
    /// Longest time, in microseconds, for which a wait spins before it yields, if a core is free.
    #[serde(deserialize_with = "within::<_, { SPIN_US[0] }, { SPIN_US[1] }>")]
    pub spin_us: usize,
    /// Elements of a board in one frame, with which the automatic setting begins.
    #[serde(deserialize_with = "within::<_, { ELEMENTS[0] }, { ELEMENTS[1] }>")]
    pub elements: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            reference_bytes: 32 << 10,
            borrow_bytes: 12 << 10,
            frame_bytes: 65_535,
            poll_frames: 64,
            unscheduled_frames: 256,
            spin_us: 50,
            elements: 8,
        }
    }
}

impl Tuning {
    /// Each within its bounds.
    pub(crate) fn bounded(self) -> Self {
        let within = |value: usize, [least, most]: [usize; 2]| value.clamp(least, most);
        Self {
            reference_bytes: within(self.reference_bytes, REFERENCE_BYTES),
            borrow_bytes: within(self.borrow_bytes, BORROW_BYTES),
            frame_bytes: within(self.frame_bytes, FRAME_BYTES),
            poll_frames: within(self.poll_frames, POLL_FRAMES),
            unscheduled_frames: within(self.unscheduled_frames, UNSCHEDULED_FRAMES),
            spin_us: within(self.spin_us, SPIN_US),
            elements: within(self.elements, ELEMENTS),
        }
    }
}

fn within<'de, D: Deserializer<'de>, const LEAST: usize, const MOST: usize>(
    deserializer: D,
) -> Result<usize, D::Error> {
    let value = i64::deserialize(deserializer)?;
    let found = usize::try_from(value).ok();
    found
        .filter(|value| (LEAST..=MOST).contains(value))
        .ok_or_else(|| serde::de::Error::custom(format!("{value}: accepted are {LEAST} to {MOST}")))
}

/// Facts by which machines of different speed are told apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Model of the processor, as the kernel names it.
    pub cpu: String,
    /// Number of processors.
    pub processors: usize,
}

impl Machine {
    /// This machine.
    pub fn here() -> Self {
        Self::of(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
    }

    fn of(cpuinfo: &str) -> Self {
        let value = |line: &str, name| {
            let (before, after) = line.split_once(':')?;
            (before.trim_end() == name).then(|| after.trim().to_owned())
        };
        // Processors of ARM have numbers instead of names.
        let model = ["model name", "CPU part"]
            .iter()
            .find_map(|name| cpuinfo.lines().find_map(|line| value(line, *name)));
        let processors = cpuinfo
            .lines()
            .filter(|line| value(line, "processor").is_some());
        Self {
            cpu: model.unwrap_or_else(|| "unknown".to_owned()),
            processors: processors.count(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} processors", self.cpu, self.processors)
    }
}

/// A profile: thresholds by link. The same file may hold the rules of collective operations, which others read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The machine it was measured on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// By the link's name: `shm`, `udp`, `packet`, `xdp`, `dpdk`.
    #[serde(default)]
    pub link: BTreeMap<String, Tuning>,
    /// The rules, which are `tsumuji_collective`'s.
    #[serde(default, skip_serializing, rename = "rule")]
    _rules: IgnoredAny,
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("cannot read the profile {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The file is too large.
    #[error("{} is larger than {PROFILE_BYTES_MAX} bytes; that is no profile of `tsumuji tune`", path.display())]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is no profile.
    #[error("{}: line {line}: {problem}", path.display())]
    Parse {
        /// Path of the file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
}

/// Result of the search for a profile.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// No profile, or none is wanted: the defaults hold.
    None,
    /// The file that [`TUNE_VARIABLE`] names.
    Named(PathBuf, Profile),
    /// The machine's own file, of this user or of all.
    Own(PathBuf, Profile),
    /// A file at the same place, measured on another machine: the defaults hold.
    Foreign(PathBuf, Machine),
}

impl Found {
    /// Finds and reads the profile of this process.
    pub fn search() -> Result<Self, ProfileError> {
        let value = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        match value(TUNE_VARIABLE) {
            Some(word) if word == NO_PROFILE => return Ok(Self::None),
            Some(path) => {
                let path = PathBuf::from(path);
                return Profile::read(&path).map(|profile| Self::Named(path, profile));
            }
            None => {}
        }
        for path in [Self::own_path(), Some(OF_ALL_USERS.into())] {
            let Some(path) = path.filter(|path| path.exists()) else {
                continue;
            };
            let profile = Profile::read(&path)?;
            return Ok(match profile.machine {
                Some(other) if other != Machine::here() => Self::Foreign(path, other),
                _ => Self::Own(path, profile),
            });
        }
        Ok(Self::None)
    }

    /// Where this user's profile of this machine lies, if the environment tells of a home.
    pub fn own_path() -> Option<PathBuf> {
        let value = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let folder = value("XDG_CONFIG_HOME").map(PathBuf::from);
        let folder = folder.or_else(|| Some(PathBuf::from(value("HOME")?).join(".config")));
        folder.map(|folder| folder.join("tsumuji/tune.toml"))
    }

    /// The profile, if one is in force.
    pub fn profile(&self) -> Option<&Profile> {
        match self {
            Self::Named(_, profile) | Self::Own(_, profile) => Some(profile),
            Self::None | Self::Foreign(..) => None,
        }
    }

    /// Thresholds for a link of this name. Without a profile of shared memory, nothing leaves by reference where two copies take less time.
    pub fn tuning(&self, link: &str) -> Tuning {
        let profile = self.profile();
        let mut tuning = profile.map_or_else(Tuning::default, |profile| profile.tuning(link));
        let is_measured = profile.is_some_and(|profile| profile.link.contains_key("shm"));
        let is_near = link.split('+').next() == Some("shm");
        if is_near && !is_measured && !ProcessMemory::pays() {
            tuning.reference_bytes = usize::MAX;
        }
        tuning
    }
}

impl Profile {
    /// Reads a profile.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        Self::parse(&Self::text_of(path)?, path)
    }

    /// The text of the file, within its limit.
    pub fn text_of(path: &Path) -> Result<String, ProfileError> {
        let path = path.to_owned();
        match text_file::read(&path, PROFILE_BYTES_MAX) {
            Ok(Some(text)) => Ok(text),
            Ok(None) => Err(ProfileError::TooLarge { path }),
            Err(source) => Err(ProfileError::Read { path, source }),
        }
    }

    /// Parses the text of a profile that lies at `path`.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ProfileError> {
        toml::from_str(text).map_err(|error| ProfileError::Parse {
            path: path.to_owned(),
            line: text_file::line_of(text, error.span().map_or(0, |span| span.start)),
            problem: error.message().replace('\n', " "),
        })
    }

    /// Thresholds for a link of this name. Of two links as one (`shm+udp`) the first is for peers of the same host, to whom only `reference_bytes`
    /// matters.
    pub fn tuning(&self, link: &str) -> Tuning {
        let of = |name: &str| self.link.get(name).copied();
        match link.split_once('+') {
            Some((near, far)) if near == "shm" => Tuning {
                reference_bytes: of(near).unwrap_or_default().reference_bytes,
                ..of(far).unwrap_or_default()
            },
            _ => of(link).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
[machine]
cpu = \"Some CPU\"
processors = 4

[link.shm]
reference_bytes = 65536

[link.udp]
poll_frames = 32
spin_us = 80

[[rule]]
operation = \"broadcast\"
algorithm = \"tree\"
";

    fn parse(text: &str) -> Result<Profile, String> {
        Profile::parse(text, Path::new("p")).map_err(|error| error.to_string())
    }

    /// What is not stated has its default; two links as one take from both.
    #[test]
    fn links_have_their_own() {
        let profile = parse(TEXT).expect("a profile");
        let default = Tuning::default();
        let shm = profile.tuning("shm");
        assert_eq!((shm.reference_bytes, shm.poll_frames), (65536, 64));
        let udp = profile.tuning("udp");
        assert_eq!((udp.poll_frames, udp.spin_us, udp.elements), (32, 80, 8));
        let both = profile.tuning("shm+udp");
        assert_eq!((both.reference_bytes, both.poll_frames), (65536, 32));
        assert_eq!(profile.tuning("xdp"), default);
        let again = toml::to_string(&profile).expect("text");
        assert_eq!(parse(&again).expect("own text").link, profile.link);
    }

    /// Without a profile of shared memory, messages leave by reference only where that takes less time.
    #[test]
    fn references_must_pay() {
        let path = || PathBuf::from("p");
        let measured = if ProcessMemory::pays() {
            Tuning::default().reference_bytes
        } else {
            usize::MAX
        };
        let of_udp = parse("[link.udp]\nspin_us = 80\n").expect("a profile");
        for found in [Found::None, Found::Own(path(), of_udp)] {
            for link in ["shm", "shm+udp"] {
                assert_eq!(found.tuning(link).reference_bytes, measured, "{found:?}");
            }
            let far = found.tuning("udp").reference_bytes;
            assert_eq!(far, Tuning::default().reference_bytes);
        }
        let stated = Found::Own(path(), parse(TEXT).expect("a profile"));
        for link in ["shm", "shm+udp"] {
            assert_eq!(stated.tuning(link).reference_bytes, 65536);
        }
    }

    /// Profiles that were written under the former names of two thresholds still count.
    #[test]
    fn former_names_are_read() {
        let former = parse("[link.udp]\nlend_bytes = 2048\nturn_frames = 8\n").expect("a profile");
        let tuning = former.tuning("udp");
        assert_eq!((tuning.borrow_bytes, tuning.poll_frames), (2048, 8));
        let again = toml::to_string(&former).expect("text");
        assert!(again.contains("borrow_bytes = 2048"), "{again}");
        assert!(!again.contains("lend_bytes"), "{again}");
    }

    /// What is no profile is refused with its line, and what is accepted.
    #[test]
    fn nonsense_is_refused() {
        for (text, wanted) in [
            (
                "\n[link.shm]\npoll_frames = 0\n",
                "p: line 3: 0: accepted are 4 to 64",
            ),
            (
                "[link.shm]\nspin_us = -1\n",
                "p: line 2: -1: accepted are 2 to 1000",
            ),
            (
                "[link.shm]\nspins = 1\n",
                "p: line 2: unknown field `spins`",
            ),
            ("links = 1\n", "p: line 1: unknown field `links`"),
            ("[link.shm]\nspin_us = true\n", "p: line 2: invalid type"),
            ("[link", "p: line 1: "),
        ] {
            let error = parse(text).expect_err("refused");
            assert!(error.starts_with(wanted), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    /// Model and number of processors come from the kernel's list.
    #[test]
    fn machines_are_told_apart() {
        let list = "processor\t: 0\nmodel name\t: A B\n\nprocessor\t: 1\nmodel name\t: A B\n";
        let machine = Machine::of(list);
        assert_eq!(machine.to_string(), "A B, 2 processors");
        assert_eq!(Machine::of("").cpu, "unknown");
        assert!(Machine::here().processors > 0);
    }
}
