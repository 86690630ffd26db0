//! Finds the thresholds of an endpoint ([`Tuning`]) that are fastest over one link of this machine.
//!
//! Values take turns, each in a fresh pair of processes, as programs would run with them. Another value than the default is chosen only if it is
//! clearly faster, and slower nowhere: what noise prefers is not worth a profile. Called by `tsumuji tune`.

use serde::Serialize;
use std::time::Duration;

use tsumuji_node::{LinkSpec, Tuning};

use crate::exchange::{ExchangeError, Kind, Measured, Plan};
use crate::machine;
use crate::stats::{Rounds, size_name};
use crate::versus::{median_ratio, order};

/// A value is chosen if it makes what it changes faster by this factor on average …
const WORTH_IT: f64 = 1.05;
/// … and nothing slower than by this one. Both in three quarters of the rounds, so that not every disturbance chooses.
const AT_WORST: f64 = 0.97;

/// Exchanges by which the time of one is guessed.
const TRIED: u64 = 32;
/// Most exchanges of a measurement.
const EXCHANGES_MAX: u64 = 1_000_000;

/// Lengths of messages that are shared, and either copied or read by reference.
const SHARED: [usize; 6] = [8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Lengths of messages that are either copied into the queue or borrowed.
const BORROWED: [usize; 4] = [4 << 10, 8 << 10, 12 << 10, 16 << 10];
/// Sizes of frames, if the link has larger ones.
const FRAMES: [usize; 3] = [8 << 10, 16 << 10, 32 << 10];
/// Frames taken in one poll.
const POLL_FRAMES: [usize; 2] = [16, 32];
/// Frames sent without permission.
const UNSCHEDULED: [usize; 3] = [16, 64, 1024];
/// Longest times of spinning, in microseconds. None is shorter than the default: until then a wait yields, which takes as much processor time.
const SPINS: [usize; 2] = [100, 200];
/// Answers that take so long, in microseconds, are waited for with each: some come while all spin, some while one does. What counts is the time and the processor time of
/// who waits, together: else the longest spinning would always be the best.
const PAUSES_US: [u64; 3] = [15, 70, 140];

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Wishes {
    /// Times that values take turns.
    pub rounds: usize,
    /// Time of each measurement, beside starting its processes.
    pub time: Duration,
}

/// One value of a threshold beside the default.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trial {
    /// Name of the threshold, as in the profile.
    pub threshold: &'static str,
    /// The value.
    pub value: usize,
    /// What was done with it, such as `burst 64 KiB`.
    pub what: String,
    /// Time with the default over time with the value: median of the rounds. More is better.
    pub gain: f64,
    /// The same, exceeded in three quarters of the rounds.
    pub sure_gain: f64,
    /// Microseconds of one exchange with the value, of a wait with the processor time of who waits: median of the rounds.
    pub us: f64,
}

/// A threshold's chosen value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Choice {
    /// Its name, as in the profile.
    pub threshold: &'static str,
    /// The value.
    pub value: usize,
    /// The default.
    pub default: usize,
    /// Time with the default over time with the value, exceeded in three quarters of the rounds: geometric mean over what it changes. 1: the default.
    pub sure_gain: f64,
}

/// Result of [`find`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Found {
    /// All thresholds.
    pub tuning: Tuning,
    /// Those that were measured.
    pub choices: Vec<Choice>,
    /// Everything that was measured.
    pub trials: Vec<Trial>,
}

/// Measures, and chooses. `measure` makes one measurement in a fresh pair; `progress` is called with each trial.
pub fn find(
    wishes: Wishes,
    measure: &mut dyn FnMut(&Plan) -> Result<Measured, ExchangeError>,
    progress: &mut dyn FnMut(&Trial),
) -> Result<Found, ExchangeError> {
    let mut search = Search {
        wishes,
        measure,
        progress,
        trials: Vec::new(),
        choices: Vec::new(),
        tuning: Tuning::default(),
    };
    let first = search.once((Kind::Pingpong, 8, 0), TRIED, Tuning::default())?;
    if first.link == LinkSpec::Shm {
        search.boundary("reference_bytes", Kind::Burst, &SHARED, |tuning| {
            &mut tuning.reference_bytes
        })?;
    } else {
        search.boundary("borrow_bytes", Kind::Pingpong, &BORROWED, |tuning| {
            &mut tuning.borrow_bytes
        })?;
        let frames: Vec<usize> = FRAMES
            .into_iter()
            .filter(|bytes| *bytes < first.ends.frame_bytes)
            .collect();
        let long = [(Kind::Burst, 1 << 20, 0), (Kind::Pingpong, 64 << 10, 0)];
        search.values("frame_bytes", &long, &frames, |tuning| {
            &mut tuning.frame_bytes
        })?;
        let calls = [(Kind::Pingpong, 256 << 10, 0), (Kind::Pingpong, 2 << 20, 0)];
        search.values("unscheduled_frames", &calls, &UNSCHEDULED, |tuning| {
            &mut tuning.unscheduled_frames
        })?;
    }
    let short = [(Kind::Burst, 64, 0), (Kind::Burst, 1 << 10, 0)];
    search.values("poll_frames", &short, &POLL_FRAMES, |tuning| {
        &mut tuning.poll_frames
    })?;
    // With one core nobody spins.
    if machine::two_cpus().is_some() {
        let pauses = PAUSES_US.map(|pause_us| (Kind::Pingpong, 64, pause_us));
        search.values("spin_us", &pauses, &SPINS, |tuning| &mut tuning.spin_us)?;
    }
    Ok(Found {
        tuning: search.tuning,
        choices: search.choices,
        trials: search.trials,
    })
}

struct Search<'a> {
    wishes: Wishes,
    measure: &'a mut dyn FnMut(&Plan) -> Result<Measured, ExchangeError>,
    progress: &'a mut dyn FnMut(&Trial),
    trials: Vec<Trial>,
    choices: Vec<Choice>,
    /// What is chosen so far.
    tuning: Tuning,
}

impl Trial {
    /// Of a value of a threshold, by the seconds of each round with the default and with the value.
    pub fn new(
        (threshold, value): (&'static str, usize),
        what: String,
        [default, own]: [&[f64]; 2],
    ) -> Self {
        Self {
            threshold,
            value,
            what,
            gain: median_ratio(default, own),
            sure_gain: sure_ratio(default, own),
            us: Rounds::of(own).median * 1e6,
        }
    }
}

impl Choice {
    /// Chooses by the sure gains of each value at all that it changes.
    pub fn of(threshold: &'static str, default: usize, candidates: &[(usize, Vec<f64>)]) -> Self {
        let (value, sure_gain) = best(candidates).unwrap_or((default, 1.0));
        Self {
            threshold,
            value,
            default,
            sure_gain,
        }
    }
}

/// What is measured: kind of exchange, bytes of a message, and microseconds that the receiver computes before each answer.
type Exchange = (Kind, usize, u64);

/// A threshold in a [`Tuning`].
type Field = fn(&mut Tuning) -> &mut usize;

impl Search<'_> {
    fn once(
        &mut self,
        (kind, size, pause_us): Exchange,
        iterations: u64,
        tuning: Tuning,
    ) -> Result<Measured, ExchangeError> {
        (self.measure)(&Plan {
            iterations,
            tuning: Some(tuning),
            spin: false, // as programs wait
            pause_us,
            ..Plan::new(kind, size)
        })
    }

    /// What is chosen so far, with this value of one threshold.
    fn with(&self, field: Field, value: usize) -> Tuning {
        let mut tuning = self.tuning;
        *field(&mut tuning) = value;
        tuning
    }

    /// Seconds of an exchange with each of these thresholds, by round.
    fn in_turn(
        &mut self,
        exchange: Exchange,
        tunings: &[Tuning],
    ) -> Result<Vec<Vec<f64>>, ExchangeError> {
        let tried = self.once(exchange, TRIED, tunings[0])?;
        let exchanges = self.wishes.time.as_secs_f64() / seconds(&tried).max(1e-9);
        let exchanges = (exchanges as u64).clamp(TRIED, EXCHANGES_MAX);
        let mut all = vec![Vec::new(); tunings.len()];
        for round in 0..self.wishes.rounds {
            for index in order(round, tunings.len()) {
                let measured = self.once(exchange, exchanges, tunings[index])?;
                all[index].push(match exchange {
                    (_, _, 0) => seconds(&measured),
                    _ => waiting_seconds(&measured),
                });
            }
        }
        Ok(all)
    }

    fn tried(&mut self, trial: Trial) {
        (self.progress)(&trial);
        self.trials.push(trial);
    }

    /// Finds the length from which messages are better sent the one way than the other: both ways are measured at each length.
    fn boundary(
        &mut self,
        threshold: &'static str,
        kind: Kind,
        sizes: &[usize],
        field: Field,
    ) -> Result<(), ExchangeError> {
        let default = *field(&mut Tuning::default());
        let mut lengths = Vec::new();
        for &size in sizes {
            // The default's way first.
            let (way, other) = if size < default {
                (size + 1, size)
            } else {
                (size, size + 1)
            };
            let exchange = (kind, size, 0);
            let tunings = [way, other].map(|value| self.with(field, value));
            let times = self.in_turn(exchange, &tunings)?;
            let trial = Trial::new(
                (threshold, other),
                name_of(exchange),
                [&times[0], &times[1]],
            );
            lengths.push((size, trial.sure_gain));
            self.tried(trial);
        }
        let beyond_all = sizes.last().map_or(default, |last| 2 * last);
        let places = sizes.iter().copied().chain([beyond_all]);
        let candidates = places.map(|value| {
            let changed = lengths
                .iter()
                .filter(|(size, _)| (*size >= value) != (*size >= default));
            (value, changed.map(|(_, gain)| *gain).collect())
        });
        let candidates: Vec<_> = candidates.collect();
        self.choose(threshold, default, &candidates, field);
        Ok(())
    }

    /// Finds the best value for these exchanges.
    fn values(
        &mut self,
        threshold: &'static str,
        exchanges: &[Exchange],
        values: &[usize],
        field: Field,
    ) -> Result<(), ExchangeError> {
        let default = *field(&mut Tuning::default());
        let mut tunings = vec![self.tuning];
        tunings.extend(values.iter().map(|value| self.with(field, *value)));
        if values.is_empty() {
            return Ok(());
        }
        let mut candidates: Vec<(usize, Vec<f64>)> =
            values.iter().map(|value| (*value, Vec::new())).collect();
        for &exchange in exchanges {
            let times = self.in_turn(exchange, &tunings)?;
            for ((value, gains), own) in candidates.iter_mut().zip(&times[1..]) {
                let trial = Trial::new((threshold, *value), name_of(exchange), [&times[0], own]);
                gains.push(trial.sure_gain);
                self.tried(trial);
            }
        }
        self.choose(threshold, default, &candidates, field);
        Ok(())
    }

    fn choose(
        &mut self,
        threshold: &'static str,
        default: usize,
        candidates: &[(usize, Vec<f64>)],
        field: Field,
    ) {
        let choice = Choice::of(threshold, default, candidates);
        *field(&mut self.tuning) = choice.value;
        self.choices.push(choice);
    }
}

fn name_of((kind, size, pause_us): Exchange) -> String {
    match pause_us {
        0 => format!("{} {}", format!("{kind:?}").to_lowercase(), size_name(size)),
        _ => format!("wait of {pause_us} us"),
    }
}

/// Seconds of one exchange: of a ping-pong the half round trip.
pub(crate) fn seconds(measured: &Measured) -> f64 {
    match measured.kind {
        Kind::Pingpong => measured.half_rtt_us.p50 * 1e-6,
        Kind::Burst | Kind::Idle => 1.0 / measured.messages_per_second,
    }
}

/// Seconds of a round trip and of the sender's processor in it.
fn waiting_seconds(measured: &Measured) -> f64 {
    let cpu = measured.ends.sender.cpu_seconds / measured.iterations.max(1) as f64;
    2.0 * measured.half_rtt_us.p50 * 1e-6 + cpu
}

/// What the ratios exceed in three quarters of the rounds.
fn sure_ratio(above: &[f64], below: &[f64]) -> f64 {
    let mut ratios: Vec<f64> = above.iter().zip(below).map(|(a, b)| a / b).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    ratios.get(ratios.len() / 4).copied().unwrap_or(f64::NAN)
}

/// The candidate that makes everything together fastest and nothing slow, with its mean gain; `None`: the default stays.
fn best(candidates: &[(usize, Vec<f64>)]) -> Option<(usize, f64)> {
    let worth = candidates.iter().filter_map(|(value, gains)| {
        let product: f64 = gains.iter().product();
        let mean = product.powf(1.0 / gains.len().max(1) as f64);
        let is_worth = mean >= WORTH_IT && gains.iter().all(|gain| *gain >= AT_WORST);
        is_worth.then_some((*value, mean, product))
    });
    let best = worth.max_by(|a, b| a.2.total_cmp(&b.2));
    best.map(|(value, mean, _)| (value, mean))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::{Ends, Side};
    use crate::stats::HalfRtt;

    /// A machine on which an exchange takes as long as the function says.
    fn simulated(us: impl Fn(&Plan, Tuning) -> f64, link: &str) -> Found {
        simulated_with(us, |_, _| 1.0, link)
    }

    /// `cpu_us`: of the sender, for an exchange.
    fn simulated_with(
        us: impl Fn(&Plan, Tuning) -> f64,
        cpu_us: impl Fn(&Plan, Tuning) -> f64,
        link: &str,
    ) -> Found {
        let mut measure = |plan: &Plan| {
            let tuning = plan.tuning.expect("stated");
            let us = us(plan, tuning);
            let cpu_us = cpu_us(plan, tuning);
            let side = Side {
                cpu_seconds: cpu_us * 1e-6 * plan.iterations as f64,
                cpu_us_per_message: cpu_us,
                cpu_us_per_kb: None,
            };
            Ok(Measured {
                kind: plan.kind,
                link: link.parse().expect("a link"),
                iterations: plan.iterations,
                seconds: us * 1e-6 * plan.iterations as f64,
                half_rtt_us: HalfRtt {
                    min: us,
                    p50: us,
                    p99: us,
                    p999: us,
                },
                messages_per_second: 1e6 / us,
                bytes_per_second: 0.0,
                retransmitted_frames: 0,
                ends: Ends {
                    frame_bytes: 9000,
                    sender: side,
                    receiver: side,
                    cpus: None,
                },
            })
        };
        let wishes = Wishes {
            rounds: 5,
            time: Duration::from_millis(50),
        };
        find(wishes, &mut measure, &mut |_| {}).expect("found")
    }

    /// Where nothing makes a difference, or only a small one, all defaults stay.
    #[test]
    fn defaults_stay() {
        for link in ["shm", "udp"] {
            let found = simulated(
                |plan, tuning| 10.0 + plan.size as f64 / 1e3 - tuning.poll_frames as f64 / 1e3,
                link,
            );
            assert_eq!(found.tuning, Tuning::default());
            assert!(found.choices.iter().all(|choice| choice.sure_gain == 1.0));
        }
    }

    /// A boundary moves to where the two ways take equal times, in both directions.
    #[test]
    fn boundaries_move() {
        for (equal, wanted) in [
            (20_000.0, 32 << 10),
            (6_000.0, 8 << 10),
            (1e9, 2 << 20),
            (100_000.0, 256 << 10),
        ] {
            let found = simulated(
                |plan, tuning| {
                    let size = plan.size as f64;
                    if plan.size >= tuning.reference_bytes {
                        2.0 * equal + size
                    } else {
                        3.0 * size
                    }
                },
                "shm",
            );
            assert_eq!(found.tuning.reference_bytes, wanted, "{found:?}");
        }
    }

    /// A longer time of spinning is chosen where wake-ups cost more than it.
    #[test]
    fn spinning_is_tried() {
        for (wake_us, wanted) in [(200.0, 200), (60.0, 50), (25.0, 50), (0.0, 50)] {
            let found = simulated_with(
                |plan, tuning| {
                    let is_slept_through = plan.pause_us > tuning.spin_us as u64;
                    (plan.pause_us as f64 + wake_us * is_slept_through as u8 as f64) / 2.0 + 1.0
                },
                |plan, tuning| plan.pause_us.min(tuning.spin_us as u64) as f64,
                "shm",
            );
            let wanted = match machine::two_cpus() {
                Some(_) => wanted,
                None => Tuning::default().spin_us,
            };
            assert_eq!(found.tuning.spin_us, wanted, "{wake_us}: {found:?}");
        }
    }

    /// What is faster in one exchange and slower in another is not chosen; what is faster in all is.
    #[test]
    fn nothing_becomes_slower() {
        let found = simulated(
            |plan, tuning| {
                let frames = (tuning.frame_bytes == 8 << 10) as u8 as f64;
                let unscheduled = if tuning.unscheduled_frames == 64 {
                    0.8
                } else {
                    1.0
                };
                match plan.size {
                    0x10_0000 => 100.0 - 50.0 * frames,
                    0x1_0000 => 100.0 + 5.0 * frames,
                    _ => 100.0 * unscheduled,
                }
            },
            "packet",
        );
        assert_eq!(found.tuning.frame_bytes, Tuning::default().frame_bytes);
        assert_eq!(found.tuning.unscheduled_frames, 64);
        // The link's frames are no larger than 9000.
        let frames = found
            .trials
            .iter()
            .filter(|trial| trial.threshold == "frame_bytes");
        assert!(frames.clone().all(|trial| trial.value == 8 << 10) && frames.count() == 2);
    }
}
