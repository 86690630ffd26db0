//! The machine of a benchmark: its description, the cores that may be used, the processor time spent.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Description of the machine for readers of figures.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Version of the kernel.
    pub kernel: String,
    /// The kernel's source of time.
    pub clocksource: String,
    /// Runnable processes averaged over the last minute, before the benchmark began.
    pub load_1min: f64,
    /// Whether it reports to be a virtual machine.
    pub virtual_machine: bool,
    /// Version of this program.
    pub tsumuji: &'static str,
}

/// First line of a small kernel file.
pub fn line_of(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}

/// The kernel's source of time.
const CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Describes this machine.
pub fn describe() -> Machine {
    let line_or_dash = |path| line_of(path).unwrap_or_else(|| "-".to_owned());
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpuinfo.lines().find_map(|line| {
        line.strip_prefix("model name")?
            .split_once(':')
            .map(|(_, name)| name.trim().to_owned())
    });
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = meminfo.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?
            .split_whitespace()
            .next()?
            .parse::<u64>()
            .ok()
    });
    Machine {
        cpu: cpu.unwrap_or_else(|| "-".to_owned()),
        cores: cpus().len(),
        memory_bytes: kib.unwrap_or(0) * 1024,
        kernel: line_or_dash("/proc/sys/kernel/osrelease"),
        clocksource: line_or_dash(CLOCKSOURCE),
        load_1min: line_of("/proc/loadavg")
            .and_then(|line| line.split(' ').next()?.parse().ok())
            .unwrap_or(f64::NAN),
        virtual_machine: cpuinfo.lines().any(|line| {
            line.starts_with("flags") && line.split(' ').any(|flag| flag == "hypervisor")
        }),
        tsumuji: env!("CARGO_PKG_VERSION"),
    }
}

/// Number of runnable processes above which figures are unreliable.
const BUSY_LOAD: f64 = 0.5;

impl Machine {
    /// A warning for readers, if one is due.
    pub fn warning(&self) -> Option<String> {
        (self.load_1min > BUSY_LOAD).then(|| {
            format!(
                "warning: the load was {:.2} before this began; where other work goes on, figures are worse and uneven",
                self.load_1min
            )
        })
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}, {} cores{}, {:.0} GiB, Linux {}, clocksource {}, load {:.2}, tsumuji {}",
            self.cpu,
            self.cores,
            if self.virtual_machine {
                " (virtual machine)"
            } else {
                ""
            },
            self.memory_bytes as f64 / f64::from(1 << 30),
            self.kernel,
            self.clocksource,
            self.load_1min,
            self.tsumuji
        )
    }
}

/// The cores this thread may run on.
pub fn cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        return vec![0];
    };
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect()
}

/// Two different cores, or `None` where there is only one.
pub fn two_cpus() -> Option<[usize; 2]> {
    match cpus()[..] {
        [first, second, ..] => Some([first, second]),
        _ => None,
    }
}

/// Binds the calling thread (and those it starts later) to one core.
pub(crate) fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Restores the calling thread's former affinity when dropped.
#[derive(Debug)]
pub struct Pinned(CpuSet);

/// Binds the calling thread to `cpu` until the result is dropped; `None` pins nothing.
pub(crate) fn pinned(cpu: Option<usize>) -> io::Result<Option<Pinned>> {
    let Some(cpu) = cpu else { return Ok(None) };
    let before = sched_getaffinity(None)?;
    pin(cpu)?;
    Ok(Some(Pinned(before)))
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.0); // was allowed before, and a failure does no harm
    }
}

fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// Processor time of this process so far, user and system, all threads.
pub(crate) fn process_cpu() -> Duration {
    clock(ClockId::ProcessCPUTime)
}

/// Processor time of the calling thread so far, user and system.
pub(crate) fn thread_cpu() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The description has a processor and at least one core, and its line names both.
    #[test]
    fn describes_this_machine() {
        let machine = describe();
        assert!(machine.cores >= 1);
        assert!(machine.to_string().contains(&machine.kernel));
        let loaded = |load_1min| Machine {
            load_1min,
            ..machine.clone()
        };
        assert!(loaded(0.2).warning().is_none() && loaded(f64::NAN).warning().is_none());
        assert!(loaded(3.0).warning().unwrap().contains("3.00"));
    }

    /// Pinning lasts as long as its guard, and work costs processor time.
    #[test]
    fn pinning_ends_with_its_guard() {
        let before = cpus();
        let guard = pinned(Some(before[0])).unwrap();
        assert_eq!(cpus(), [before[0]]);
        drop(guard);
        assert_eq!(cpus(), before);
        let start = process_cpu();
        while process_cpu() == start {
            std::hint::spin_loop();
        }
    }
}
