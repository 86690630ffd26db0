//! Processor time of the whole machine by the kernel's idle clocks (`/proc/stat`), as netperf takes it on Linux.

/// The machine's clocks, in the kernel's ticks, summed over all CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Clocks {
    all: f64,
    idle: f64,
    softirq: f64,
    cpus: usize,
}

/// Parts of the time of all CPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Busy {
    /// Not idle.
    pub(super) share: f64,
    /// In soft interrupts: most of what the kernel does with frames that arrive.
    pub(super) softirq: f64,
    /// How many CPUs that is of.
    pub(super) cpus: f64,
}

impl Clocks {
    pub(super) fn now() -> Self {
        Self::of(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// The text of `/proc/stat`: user, nice, system, idle, waiting for disks, interrupts, soft interrupts, stolen. What follows is contained in user time.
    fn of(stat: &str) -> Self {
        let mut clocks = Self::default();
        for line in stat.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("cpu") => {
                    let ticks: Vec<f64> =
                        words.take(8).filter_map(|tick| tick.parse().ok()).collect();
                    let at = |place: usize| ticks.get(place).copied().unwrap_or(0.0);
                    clocks.all = ticks.iter().sum();
                    clocks.idle = at(3) + at(4);
                    clocks.softirq = at(6);
                }
                Some(word) if word.starts_with("cpu") => clocks.cpus += 1,
                _ => {}
            }
        }
        clocks
    }

    pub(super) fn since(&self, before: &Self) -> Busy {
        let all = (self.all - before.all).max(1.0);
        Busy {
            share: (1.0 - (self.idle - before.idle) / all).clamp(0.0, 1.0),
            softirq: (self.softirq - before.softirq) / all,
            cpus: self.cpus.max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is not idle is busy, of all CPUs together; time that the line counts twice is left out.
    #[test]
    fn idle_clocks_are_read() {
        let before = "cpu  100 0 50 800 20 0 10 0 40 0\ncpu0 50 0 25 400 10 0 5 0\ncpu1 50 0 25 400 10 0 5 0\nintr 1 2\n";
        let after = "cpu  130 0 70 840 20 0 20 0 70 0\ncpu0 65 0 35 420 10 0 10 0\ncpu1 65 0 35 420 10 0 10 0\n";
        let busy = Clocks::of(after).since(&Clocks::of(before));
        assert_eq!(busy.cpus, 2.0);
        assert!((busy.share - 0.6).abs() < 1e-9, "{busy:?}");
        assert!((busy.softirq - 0.1).abs() < 1e-9, "{busy:?}");
    }

    /// A machine whose clocks cannot be read, or have not moved, is not divided by zero.
    #[test]
    fn clocks_that_stand_still() {
        let none = Clocks::of("");
        let busy = none.since(&none);
        assert!(busy.share.is_finite() && busy.softirq == 0.0, "{busy:?}");
        assert!(Clocks::now().cpus >= 1);
    }
}
