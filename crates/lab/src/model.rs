//! What a send takes: stages begin when those before them have ended, and the last end is the total.
//!
//! Called by whoever prints or compares. Two stages of which one passes on the other's data by chunks overlap: the second begins when the first chunk is there,
//! and ends no earlier than one chunk after the first has ended.

use serde::Serialize;

use crate::description::{By, Description, Improved, Rate, Stage, Variant};

/// The clock and the bursts for which to compute; by default those of the description.
pub type Setting = Improved;

/// A stage, computed.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// The worker.
    pub by: By,
    /// When it begins, in microseconds.
    pub start_us: f64,
    /// What it takes.
    pub us: f64,
    /// Whether the total would be less if it took less.
    pub is_critical: bool,
    /// The source does not state it.
    pub is_assumed: bool,
}

impl Step {
    /// When it ends, in microseconds.
    pub fn end_us(&self) -> f64 {
        self.start_us + self.us
    }
}

/// A send, computed.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The variant.
    pub variant: String,
    /// Bytes of data.
    pub bytes: u64,
    /// Until the sender knows that the send is over.
    pub total_us: f64,
    /// Bytes over that time, in MB/s (10^6 bytes a second).
    pub bandwidth: f64,
    /// From the end of the last stage of user or kernel on.
    pub wait_us: f64,
    /// All stages, in the order of the description.
    pub stages: Vec<Step>,
}

impl Outcome {
    /// The stage of this name.
    pub fn stage(&self, name: &str) -> Option<&Step> {
        self.stages.iter().find(|step| step.name == name)
    }

    /// The sum of what one of the three does.
    pub fn sum_us(&self, by: By) -> f64 {
        let steps = self.stages.iter().filter(|step| step.by == by);
        steps.map(|step| step.us).sum()
    }
}

impl Description {
    /// Refuses a setting that changes nothing here.
    pub fn check(&self, setting: &Setting) -> Result<(), String> {
        let has_bursts = self.rates.values().any(|rate| rate.burst_bytes.is_some());
        setting.check(self.clock.is_some(), has_bursts)
    }

    /// A send of `bytes`.
    pub fn outcome(&self, variant: &Variant, bytes: u64, setting: &Setting) -> Outcome {
        let data = bytes as f64;
        let mut steps: Vec<Step> = Vec::with_capacity(variant.stages.len());
        // Of each stage, the one for which it waited last.
        let mut waited_for: Vec<Option<usize>> = Vec::with_capacity(variant.stages.len());
        let place = |name: &String| variant.stages.iter().position(|stage| stage.name == *name);
        for (index, stage) in variant.stages.iter().enumerate() {
            let us = self.stage_us(stage, data, setting);
            let (start_us, end_us, cause) = match stage.overlaps.as_ref().and_then(place) {
                Some(first) => {
                    let chunk = data.min(stage.chunk_bytes.unwrap_or(data));
                    let first_chunk = self.stage_us(&variant.stages[first], chunk, setting);
                    let last_chunk = self.stage_us(stage, chunk, setting);
                    let start = steps[first].start_us + first_chunk.min(steps[first].us);
                    let end = (start + us).max(steps[first].end_us() + last_chunk);
                    (start, end, Some(first))
                }
                None => {
                    let before = match &stage.after {
                        Some(names) => names.iter().filter_map(place).collect(),
                        None => index.checked_sub(1).into_iter().collect::<Vec<_>>(),
                    };
                    let cause = last_to_end(&steps, before.into_iter());
                    let start = cause.map_or(0.0, |cause| steps[cause].end_us());
                    (start, start + us, cause)
                }
            };
            waited_for.push(cause);
            steps.push(Step {
                name: stage.name.clone(),
                by: stage.by,
                start_us,
                us: end_us - start_us,
                is_critical: false,
                is_assumed: stage.assumed,
            });
        }
        let mut next = last_to_end(&steps, 0..steps.len());
        let total_us = next.map_or(0.0, |last| steps[last].end_us());
        while let Some(index) = next {
            steps[index].is_critical = true;
            next = waited_for[index];
        }
        let host = steps.iter().filter(|step| step.by != By::Interface);
        let host_end = host.map(Step::end_us).fold(0.0, f64::max);
        Outcome {
            variant: variant.name.clone(),
            bytes,
            total_us,
            bandwidth: if total_us > 0.0 { data / total_us } else { 0.0 },
            wait_us: total_us - host_end,
            stages: steps,
        }
    }

    /// A rate in MB/s: what long transfers reach.
    pub fn rate_mb_per_s(&self, rate: &Rate, setting: &Setting) -> f64 {
        let Some(per_clock) = rate.bytes_per_clock else {
            return rate.mb_per_s.unwrap_or(f64::INFINITY);
        };
        let burst = burst_bytes(rate, setting);
        let data_clocks = burst.map_or(1.0, |burst| burst / per_clock);
        let share = data_clocks / (data_clocks + burst.map_or(0.0, |_| rate.gap_clocks));
        self.mhz(rate, setting) * per_clock * share
    }

    /// The smallest number of bytes, up to `most`, from which on `first` takes longer than `second` by more than `percent`.
    pub fn crossover(
        &self,
        [first, second]: [&Variant; 2],
        percent: f64,
        most: u64,
        setting: &Setting,
    ) -> Option<u64> {
        let is_slower = |bytes: u64| {
            let us = |variant| self.outcome(variant, bytes, setting).total_us;
            us(first) > us(second) * (1.0 + percent / 100.0)
        };
        // Powers of two, then between the last where it was not and the first where it is.
        let powers = std::iter::successors(Some(1_u64), |bytes| bytes.checked_mul(2));
        let mut above = powers
            .take_while(|bytes| *bytes <= most)
            .find(|bytes| is_slower(*bytes))?;
        let mut below = above / 2;
        while above - below > 1 {
            let middle = below + (above - below) / 2;
            if is_slower(middle) {
                above = middle;
            } else {
                below = middle;
            }
        }
        Some(above)
    }

    fn stage_us(&self, stage: &Stage, data: f64, setting: &Setting) -> f64 {
        let clocks = self.clock.zip(setting.mhz).filter(|_| stage.clocked);
        let slower = clocks.map_or(1.0, |(clock, mhz)| clock.mhz / mhz);
        let words = (data / self.word_bytes).ceil();
        let further_pages = ((data / self.page_bytes).ceil() - 1.0).max(0.0);
        stage.us * slower
            + stage.us_per_word * words
            + stage.us_per_further_page * further_pages
            + self.passage_us(stage, data, setting)
    }

    /// The time of the data at the stage's rates.
    fn passage_us(&self, stage: &Stage, data: f64, setting: &Setting) -> f64 {
        let slowest = |data: f64, setting: &Setting| {
            let rates = stage.rates.iter().filter_map(|name| self.rates.get(name));
            let times = rates.map(|rate| self.transfer_us(rate, data, setting));
            times.fold(0.0, f64::max)
        };
        let correction = stage.took.map_or(1.0, |point| {
            point.us / slowest(point.bytes, &Setting::default())
        });
        slowest(data, setting) * correction
    }

    fn transfer_us(&self, rate: &Rate, data: f64, setting: &Setting) -> f64 {
        match (rate.mb_per_s, rate.bytes_per_clock) {
            (Some(mb_per_s), _) => data / mb_per_s,
            (None, Some(per_clock)) => {
                let bursts = burst_bytes(rate, setting).map_or(1.0, |burst| (data / burst).ceil());
                let gaps = (bursts - 1.0).max(0.0) * rate.gap_clocks;
                (data / per_clock + gaps) / self.mhz(rate, setting)
            }
            (None, None) => 0.0,
        }
    }

    fn mhz(&self, rate: &Rate, setting: &Setting) -> f64 {
        let clock = self.clock.map_or(1.0, |clock| clock.mhz);
        rate.mhz.unwrap_or(setting.mhz.unwrap_or(clock))
    }
}

fn burst_bytes(rate: &Rate, setting: &Setting) -> Option<f64> {
    rate.burst_bytes
        .map(|usual| setting.burst_bytes.unwrap_or(usual))
}

/// Which of these stages ends last; of several the first.
fn last_to_end(steps: &[Step], among: impl Iterator<Item = usize>) -> Option<usize> {
    among.fold(None, |last: Option<usize>, index| match last {
        Some(last) if steps[last].end_us() >= steps[index].end_us() => Some(last),
        _ => Some(index),
    })
}
