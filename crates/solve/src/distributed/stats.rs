//! Counters of a node: frames and bytes from its endpoint, memory from the kernel.

use super::message::WorkerStats;
use tsumuji_link::LinkCounters;
use tsumuji_node::Counters;

/// Counters for a report. `overruns`: broadcast frames that this node missed count as lost; false for the judge, which does not read them.
pub(super) fn count(counters: &Counters, overruns: bool) -> WorkerStats {
    let link = &counters.link;
    WorkerStats {
        frames_sent: link.sent_frames,
        frames_lost: link.impaired_frames
            + link.dropped_frames
            + if overruns { link.overrun_frames } else { 0 },
        bytes_sent: link.sent_bytes,
        peak_rss_bytes: peak_rss_bytes(),
        ..WorkerStats::default()
    }
}

/// Counts what the link sends while a worker iterates.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Frames and bytes when the present epoch began.
    since: Option<(u64, u64)>,
    frames: u64,
    bytes: u64,
}

impl Meter {
    /// Notes whether the worker iterates now.
    pub(super) fn note(&mut self, runs: bool, link: impl FnOnce() -> LinkCounters) {
        if runs == self.since.is_some() {
            return;
        }
        let link = link();
        let now = (
            link.sent_frames - link.near_frames,
            link.sent_bytes - link.near_bytes,
        );
        match self.since.take() {
            None => self.since = Some(now),
            Some(since) => {
                self.frames += now.0 - since.0;
                self.bytes += now.1 - since.1;
            }
        }
    }

    /// Frames and bytes in all.
    pub(super) fn total(&self) -> (u64, u64) {
        (self.frames, self.bytes)
    }
}

/// Largest resident memory of this process so far; 0 if the kernel does not tell.
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(parse).unwrap_or(0)
}

fn parse(line: &str) -> Option<u64> {
    let kib: u64 = line
        .strip_prefix("VmHWM:")?
        .trim()
        .strip_suffix("kB")?
        .trim()
        .parse()
        .ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames that stay on the host of a worker are not counted, nor what leaves while it does not iterate.
    #[test]
    fn wires_are_metered() {
        let mut meter = Meter::default();
        let link = |frames: u64| LinkCounters {
            sent_frames: 3 * frames,
            sent_bytes: 300 * frames,
            near_frames: 2 * frames,
            near_bytes: 250 * frames,
            ..LinkCounters::default()
        };
        for (runs, frames) in [(true, 10), (false, 14), (true, 20), (false, 21)] {
            meter.note(runs, || link(frames));
        }
        assert_eq!(meter.total(), (5, 250));
    }

    /// The kernel's line is parsed, and this process has used some memory.
    #[test]
    fn peak_is_read() {
        assert_eq!(parse("VmHWM:\t    1664 kB"), Some(1664 * 1024));
        assert_eq!(parse("VmRSS:\t    1664 kB"), None);
        assert!(peak_rss_bytes() > 100_000);
    }
}
