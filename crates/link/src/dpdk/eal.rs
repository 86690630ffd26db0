//! DPDK's environment layer (EAL): started once in a process, and left running until its end.
//!
//! Called by `Dpdk::open` before a device is made. Every start is private to the process: no files, no sockets, no telemetry, no threads but DPDK's
//! own service threads. It runs on a thread made for it, so that no thread of the program changes its CPU affinity or becomes DPDK's.
//!
//! Memory: hugepages if enough are free, taken as needed; otherwise ordinary memory, which suffices for all virtual devices.

use std::ffi::CString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::errors::DpdkOpenError;
use super::spec::Device;
use super::sys;
use crate::tuning::TUNING;

/// The kernel's state of hugepages, a folder for each size.
const HUGEPAGES: &str = "/sys/kernel/mm/hugepages";
/// Prefix of the process id in the name of DPDK's folder.
const PREFIX: &str = "tsumuji-";
/// Lines of DPDK's log that an error shows, and characters of each.
const LOG_LINES: usize = 3;
const LOG_CHARS: usize = 160;

/// How the EAL of this process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Running {
    pub(super) pci: bool,
    /// Bytes of ordinary memory, or of the hugepages that were free.
    pub(super) memory_bytes: u64,
}

#[derive(Debug)]
enum State {
    Never,
    Running(Running),
    /// DPDK cannot be started a second time: its error, and its log.
    Failed(io::ErrorKind, String),
}

static STATE: Mutex<State> = Mutex::new(State::Never);

/// Starts the EAL for that device, if it is not running; for a virtual one it scans no bus.
pub(super) fn require(device: Device<'_>) -> Result<Running, DpdkOpenError> {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    match &*state {
        State::Running(running) => {
            return match device {
                Device::Pci(_) if !running.pci => Err(DpdkOpenError::StartedWithoutPci),
                _ => Ok(*running),
            };
        }
        State::Failed(kind, log) => {
            return Err(DpdkOpenError::Start {
                source: (*kind).into(),
                log: format!("{log} (an earlier attempt; DPDK needs a new process)"),
            });
        }
        State::Never => {}
    }
    sys::describe()?;
    remove_stale_folders();
    let pages = Hugepages::read();
    let pci = matches!(device, Device::Pci(_));
    let least_bytes = if pci {
        TUNING.dpdk.huge_bytes_min
    } else {
        TUNING.dpdk.memory_bytes
    };
    let huge = pages.bytes() >= least_bytes;
    if pci && !huge {
        return Err(pages.too_few());
    }
    let mebibytes = TUNING.dpdk.memory_bytes >> 20;
    let arguments = arguments(device, huge, mebibytes, &allowed_cpus());
    let answer = std::thread::scope(|scope| {
        let thread = scope.spawn(|| sys::start(&arguments));
        thread.join()
    });
    let answer = answer.unwrap_or_else(|_| Ok(Err(io::ErrorKind::Other.into())))?;
    if let Err(source) = answer {
        let log = said();
        *state = State::Failed(source.kind(), log.clone());
        return Err(DpdkOpenError::Start { source, log });
    }
    let running = Running {
        pci,
        memory_bytes: if huge { pages.bytes() } else { mebibytes << 20 },
    };
    *state = State::Running(running);
    Ok(running)
}

fn arguments(device: Device<'_>, huge: bool, mebibytes: u64, cpus: &[usize]) -> Vec<CString> {
    let cpus: Vec<_> = cpus.iter().map(usize::to_string).collect();
    let mut texts = vec![
        "tsumuji".to_owned(),
        // One DPDK thread, allowed on every CPU that we may use: then its service threads are, too.
        format!("--lcores=0@({})", cpus.join(",")),
        format!("--file-prefix={PREFIX}{}", std::process::id()),
        "--no-telemetry".to_owned(),
        "--log-level=error".to_owned(),
    ];
    if huge {
        texts.extend(["--in-memory", "--single-file-segments"].map(str::to_owned));
    } else {
        texts.extend(["--no-huge", "--no-shconf", "-m"].map(str::to_owned));
        texts.push(mebibytes.to_string());
    }
    match device {
        Device::Virtual(_) => texts.push("--no-pci".to_owned()),
        Device::Pci(address) => texts.push(format!("--allow={address}")),
    }
    texts
        .into_iter()
        .map(|text| CString::new(text).expect("no zero byte in it"))
        .collect()
}

/// Removes folders of killed processes. Each start makes a folder and removes it, empty, in a fraction of a second.
fn remove_stale_folders() {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("dpdk"));
    let fixed = ["/var/run/dpdk", "/tmp/dpdk"].map(PathBuf::from);
    for folder in own.into_iter().chain(fixed) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            let pid = pid.and_then(|pid| pid.parse::<u32>().ok());
            if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                // Fails, as it should, if the folder is not empty.
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

/// CPUs that this thread may use, as DPDK counts them.
fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return vec![0];
    };
    let cpus: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// The last lines of DPDK's log, joined in one.
pub(super) fn said() -> String {
    let log = sys::take_log();
    let lines: Vec<String> = log
        .lines()
        .map(|line| {
            line.trim()
                .chars()
                .filter(|c| !c.is_control())
                .take(LOG_CHARS)
                .collect()
        })
        .filter(|line: &String| !line.is_empty())
        .collect();
    let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
    if last.is_empty() {
        "DPDK says no more".to_owned()
    } else {
        last.join("; ")
    }
}

/// Hugepages of the size with the most free bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hugepages {
    pub(super) page_kib: u64,
    pub(super) free: u64,
}

impl Hugepages {
    pub(super) fn read() -> Self {
        let none = Self {
            page_kib: 2048,
            free: 0,
        };
        let folders = fs::read_dir(HUGEPAGES).into_iter().flatten().flatten();
        folders
            .filter_map(|folder| {
                let name = folder.file_name().into_string().ok()?;
                let page_kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
                let free = fs::read_to_string(folder.path().join("free_hugepages")).ok()?;
                Some(Self {
                    page_kib: page_kib.parse().ok()?,
                    free: free.trim().parse().ok()?,
                })
            })
            .max_by_key(Self::bytes)
            .filter(|pages| pages.free > 0)
            .unwrap_or(none)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.free.saturating_mul(self.page_kib).saturating_mul(1024)
    }

    /// A command that reserves enough.
    pub(super) fn command() -> String {
        format!(
            "sysctl -w vm.nr_hugepages={}",
            TUNING.dpdk.huge_bytes_min >> 21
        )
    }

    fn too_few(self) -> DpdkOpenError {
        DpdkOpenError::Hugepages {
            needed: TUNING.dpdk.huge_bytes_min / (self.page_kib << 10).max(1),
            page_kib: self.page_kib,
            free: self.free,
            command: Self::command(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIRTUAL: Device<'_> = Device::Virtual("net_tap");

    fn texts(device: Device<'_>, huge: bool) -> String {
        let all = arguments(device, huge, 512, &[0, 3]);
        let texts = all.iter().map(|text| text.to_str().expect("text"));
        texts.collect::<Vec<_>>().join(" ")
    }

    /// A start leaves no files, exclusive options are not mixed, and a network card is the only one scanned.
    #[test]
    fn a_start_is_private() {
        let plain = texts(VIRTUAL, false);
        assert!(
            plain.contains("--lcores=0@(0,3) ") && plain.contains("--no-pci"),
            "{plain}"
        );
        assert!(plain.contains("--no-huge --no-shconf -m 512") && !plain.contains("--in-memory"));
        let huge = texts(VIRTUAL, true);
        assert!(
            huge.contains("--in-memory") && !huge.contains("--no-huge"),
            "{huge}"
        );
        let card = texts(Device::Pci("0000:03:00.0"), true);
        assert!(
            card.contains("--allow=0000:03:00.0") && !card.contains("--no-pci"),
            "{card}"
        );
        for text in [plain, huge, card] {
            assert!(text.contains("--no-telemetry") && text.contains("--file-prefix=tsumuji-"));
        }
    }

    /// A card without hugepages is refused with the command that reserves them.
    #[test]
    fn too_few_hugepages() {
        let pages = Hugepages {
            page_kib: 2048,
            free: 3,
        };
        assert_eq!(pages.bytes(), 6 << 20);
        let text = pages.too_few().to_string();
        assert!(
            text.contains("64 free hugepages of 2048 KiB, 3 are there"),
            "{text}"
        );
        assert!(text.contains("`sysctl -w vm.nr_hugepages=64`"), "{text}");
    }
}
