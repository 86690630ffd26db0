//! Number of elements in one frame: fixed by the user, or adapted to the machine and the link.
//!
//! Small frames sent often keep copies fresh, and stale copies cost laps; but each frame has a fixed cost at both ends. A frame that holds the part *p*
//! of its owner's elements delays each of them by *p*/2 of a lap on average. Where each lap multiplies the error by ρ near 1, the laps become 1 + *p*
//! times as many (fewer where ρ is small). Exchange (publishing, receiving) takes a share *s* of the time for computing, in inverse proportion to
//! *p*. The loss *p* + *s* is least where both are the same: there the automatic setting goes, by powers of two, and to larger frames when the link has no
//! slot.

use std::str::FromStr;

use crate::tuning::TUNING;

/// Setting of the number of elements in one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Elements {
    /// Adapted while running.
    #[default]
    Auto,
    /// Always this many (or as many as a frame holds, if that is less).
    Fixed(usize),
}

/// The text is no number of elements.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("elements per frame must be `auto` or a whole number from 1 on, not `{0}`")]
pub struct ElementsError(String);

impl FromStr for Elements {
    type Err = ElementsError;

    fn from_str(text: &str) -> Result<Self, ElementsError> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            (_, Ok(count)) if count > 0 => Ok(Self::Fixed(count)),
            _ => Err(ElementsError(text.into())),
        }
    }
}

impl std::fmt::Display for Elements {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(count) => write!(f, "{count}"),
        }
    }
}

/// Finds the number of elements per frame.
#[derive(Debug, Clone)]
pub struct ElementsTuner {
    setting: Elements,
    current: usize,
    capacity: usize,
    /// Elements of a lap.
    lap: usize,
    compute_ns: u64,
    exchange_ns: u64,
    refused: u64,
    usual_compute_ns: u64,
    usual_exchange_ns: u64,
}

impl Default for ElementsTuner {
    fn default() -> Self {
        Self::new(Elements::Auto, TUNING.elements, TUNING.elements)
    }
}

impl ElementsTuner {
    /// `capacity`: elements that one frame holds, at least 1; `lap`: elements of which each lap renews all.
    pub fn new(setting: Elements, capacity: usize, lap: usize) -> Self {
        let (start, capacity) = match setting {
            Elements::Auto => (TUNING.elements, capacity.max(1)),
            // Repairs, too, are frames of so many elements.
            Elements::Fixed(count) => (count, count.clamp(1, capacity.max(1))),
        };
        Self {
            setting,
            current: start.clamp(1, capacity),
            capacity,
            lap: lap.max(1),
            compute_ns: 0,
            exchange_ns: 0,
            refused: 0,
            usual_compute_ns: 0,
            usual_exchange_ns: 0,
        }
    }

    /// The automatic setting goes on from `elements`, or the power of two below.
    pub fn start_from(&mut self, elements: usize) {
        if self.setting == Elements::Auto {
            self.current = 1 << elements.clamp(1, self.capacity).ilog2();
        }
    }

    /// Elements that the next frames should hold.
    pub fn current(&self) -> usize {
        self.current
    }

    /// Elements that one frame holds at most: those that are fixed, or what fits.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Records time just spent on computing some rows and on exchange for them, and frames for which the link had no slot.
    pub fn record(&mut self, compute_ns: u64, exchange_ns: u64, refused: u64) {
        if self.setting != Elements::Auto {
            return;
        }
        self.compute_ns += usual(&mut self.usual_compute_ns, compute_ns);
        self.exchange_ns += usual(&mut self.usual_exchange_ns, exchange_ns);
        self.refused += refused;
        if self.compute_ns + self.exchange_ns < TUNING.window_ns {
            return;
        }
        // Frames twice as large halve the share and double the part: better where the share is more than two parts; and the other way round.
        let share = self.exchange_ns as f64 / self.compute_ns.max(1) as f64;
        let part = self.current as f64 / self.lap as f64;
        if self.refused > 0 || share > 2.0 * part {
            self.current = (self.current * 2).min(self.capacity);
        } else if share < part / 2.0 {
            self.current = (self.current / 2).max(1);
        }
        (self.compute_ns, self.exchange_ns, self.refused) = (0, 0, 0);
    }
}

/// Limits `sample` to a multiple of `usual`, and updates `usual`.
fn usual(usual: &mut u64, sample: u64) -> u64 {
    if *usual == 0 {
        *usual = sample;
    }
    let taken = sample.min(usual.saturating_mul(TUNING.usual_times));
    // Rounded up, so that it can rise from small numbers.
    *usual = (*usual * (TUNING.usual_weight - 1) + taken).div_ceil(TUNING.usual_weight);
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAP: usize = 5000;

    /// A cost model of `row` ns of computing per element and `frame` ns of exchange per frame.
    fn settle(row: u64, frame: u64, capacity: usize, refused: u64) -> usize {
        let mut tuner = ElementsTuner::new(Elements::Auto, capacity, LAP);
        for _ in 0..200_000 {
            tuner.record(row * tuner.current() as u64, frame, refused);
        }
        tuner.current()
    }

    /// Expensive rows are sent one by one, cheap ones in full frames, and others so that a lap loses least to exchange and delay.
    #[test]
    fn automatic_setting_follows_the_cost() {
        assert_eq!(settle(3_000_000, 500, 180, 0), 1);
        assert_eq!(settle(10, 500, 180, 0), 180);
        for (row, frame) in [(500, 500), (3_000, 400), (60_000, 500), (10_000, 12_000)] {
            let loss = |elements: usize| {
                let elements = elements as f64;
                elements / LAP as f64 + frame as f64 / (row as f64 * elements)
            };
            let least = (0..8)
                .map(|power| loss(1 << power))
                .fold(f64::INFINITY, f64::min);
            let settled = settle(row, frame, 180, 0);
            assert!(loss(settled) <= 1.3 * least, "{row} {frame}: {settled}");
        }
    }

    /// Interruptions now and then do not make frames larger.
    #[test]
    fn interruptions_do_not_make_frames_larger() {
        let mut tuner = ElementsTuner::new(Elements::Auto, 4000, LAP);
        for step in 0..200_000u64 {
            let gone = if step % 50 == 0 { 3_000_000 } else { 0 };
            tuner.record(20_000 * tuner.current() as u64, 300 + gone, 0);
        }
        assert!(tuner.current() <= 16, "{}", tuner.current());
    }

    /// A link without free slots gets fewer, larger frames.
    #[test]
    fn refusals_make_frames_larger() {
        assert_eq!(settle(60_000, 500, 180, 1), 180);
    }

    /// A fixed setting stays, within what a frame holds.
    #[test]
    fn fixed_stays_fixed() {
        let mut tuner = ElementsTuner::new(Elements::Fixed(500), 180, LAP);
        tuner.record(0, TUNING.window_ns, 1);
        assert_eq!(tuner.current(), 180);
    }

    /// Only `auto` and positive numbers are accepted, and are written as they were read.
    #[test]
    fn settings_parse() {
        for text in ["auto", "1", "184"] {
            assert_eq!(text.parse::<Elements>().unwrap().to_string(), text);
        }
        for text in ["0", "-1", "few", ""] {
            assert!(text.parse::<Elements>().is_err(), "{text}");
        }
    }
}
