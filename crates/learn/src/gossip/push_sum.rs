//! Sums by push-sum with cumulative counters, for more workers than a table is good for.
//!
//! Of each version a worker holds mass: its statistic, some probes, and a weight of 1. It gives half of all its mass to a random peer, which gives half
//! of its own back, and so on. Everywhere mass over weight comes near to the mean. A message tells all that its sender has ever given to its receiver,
//! which takes what is new in it. So a repeat, or the next message, makes good for a lost one. (Plain push-sum tells only what is new: it loses mass, and
//! is wrong.) A worker gives to no other peer before the last one has answered; without an answer it repeats its message.
//!
//! Probes are numbers of each worker that all know, and so is their mean. Once the probes' means are right, mass of all workers is mixed evenly, and
//! the other means are as right. Their rounding differs between workers, but all must take the same step: the sum is that of one worker, the first
//! that counts, and whoever has it answers with it.
//!
//! Invariant: what all workers hold, and what was given and is not taken yet, is what they have put in, until the sum is known. A worker that ends takes
//! mass with it: then all begin anew. A worker is never more than one version ahead of another, for it needs the other's statistic to go on.

use super::message::finite;
use super::table::{Plausible, Taken};
use crate::tuning::TUNING;

/// Numbers of a worker that all know. By chance one of them may be right too early, several are not.
const PROBES: usize = 3;
/// Largest error of the probes' means of which a sum is made: below what Newton's method takes for rounding, and well above an f64's precision.
const EXACT: f64 = 1e-13;
/// Part of all that was given which may seem to be taken back, for differences are rounded.
const ROUNDING: f64 = 1e-6;
/// Larger numbers would overflow as they add up.
const LARGEST: f64 = 1e200;
/// Versions of which there is mass: a worker's own, and those next to it.
const PLACES: usize = 3;

/// What went one way between two workers.
#[derive(Debug, Clone, Default)]
struct Counter {
    /// Of the newest message.
    number: u64,
    /// Sum of all mass; empty: none.
    mass: Vec<f64>,
}

/// One version. Once its sum is known there is no mass.
#[derive(Debug, Clone, Default)]
struct Place {
    version: u64,
    /// Statistic, probes, weight.
    mass: Vec<f64>,
    /// To each worker.
    given: Vec<Counter>,
    /// From each worker.
    taken: Vec<Counter>,
    sum: Option<Vec<f64>>,
}

/// The mass of one worker.
#[derive(Debug)]
pub(super) struct PushSum {
    me: usize,
    plausible: Plausible,
    alive: Vec<bool>,
    /// The probes' means over all that count.
    means: [f64; PROBES],
    /// Of the own newest statistic. Versions count from 1.
    version: u64,
    /// The peer that mass was given to, and that has not answered.
    waits_for: Option<usize>,
    /// Exchanges that this worker has begun for its newest version.
    pushes: u32,
    places: Vec<Place>,
}

impl PushSum {
    pub(super) fn new(me: usize, plausible: Plausible) -> Self {
        let rows = plausible.rows.clone();
        let mut new = Self {
            me,
            plausible,
            alive: Vec::new(),
            means: [0.0; PROBES],
            version: 0,
            waits_for: None,
            pushes: 0,
            places: Vec::new(),
        };
        new.reset(&vec![true; rows.len()], &rows);
        new
    }

    /// Begins anew without mass. From now on these workers count, with so many rows.
    pub(super) fn reset(&mut self, alive: &[bool], rows: &[u64]) {
        self.plausible.rows = rows.to_vec();
        self.alive = alive.to_vec();
        (self.version, self.waits_for) = (0, None);
        self.places = vec![Place::default(); PLACES];
        let workers = self.workers();
        let mut means = [0.0; PROBES];
        for worker in self.counted() {
            let pairs = means.iter_mut().zip(probes(worker));
            pairs.for_each(|(mean, probe)| *mean += probe / workers);
        }
        self.means = means;
    }

    /// Workers that count.
    fn counted(&self) -> impl Iterator<Item = usize> {
        (0..self.alive.len()).filter(move |worker| self.is_alive(*worker))
    }

    fn workers(&self) -> f64 {
        self.counted().count() as f64
    }

    fn is_alive(&self, worker: usize) -> bool {
        self.alive.get(worker).copied().unwrap_or(false)
    }

    /// Rows of all workers that count.
    fn rows(&self) -> f64 {
        let rows = self.counted().map(|worker| self.plausible.rows[worker]);
        rows.sum::<u64>() as f64
    }

    /// Numbers of a statistic.
    pub(super) fn statistic(&self) -> usize {
        self.plausible.shape.statistic(true)
    }

    /// What there is of a version, if it is the own one or next to it.
    fn place(&mut self, version: u64) -> Option<&mut Place> {
        if version == 0 || version.abs_diff(self.version) > 1 {
            return None;
        }
        let (numbers, workers) = (self.statistic() + PROBES + 1, self.alive.len());
        let place = &mut self.places[slot(version)];
        if place.version != version {
            *place = Place {
                version,
                mass: vec![0.0; numbers],
                given: vec![Counter::default(); workers],
                taken: vec![Counter::default(); workers],
                sum: None,
            };
        }
        Some(place)
    }

    /// Puts the own statistic of the next version in.
    pub(super) fn put(&mut self, version: u64, statistic: &[f64]) -> Taken {
        if !self.plausible.statistic(self.me, statistic, true) {
            return Taken::Refused;
        }
        (self.version, self.waits_for, self.pushes) = (version, None, 0);
        let own = probes(self.me);
        let Some(place) = self.place(version) else {
            return Taken::Known;
        };
        let own = statistic.iter().chain(&own).chain(&[1.0]);
        let pairs = place.mass.iter_mut().zip(own);
        pairs.for_each(|(mass, own)| *mass += own);
        Taken::New
    }

    /// The peer whose answer is missing.
    pub(super) fn waits_for(&self) -> Option<usize> {
        self.waits_for
    }

    /// Mass of the own version is given to this peer next.
    pub(super) fn wait_for(&mut self, peer: usize) {
        self.waits_for = Some(peer);
        self.pushes = self.pushes.saturating_add(1);
    }

    /// Whether the next exchange begins at once.
    pub(super) fn is_free(&self) -> bool {
        self.pushes < TUNING.gossip.free_pushes
    }

    /// A peer has answered.
    pub(super) fn answered(&mut self, peer: usize, version: u64) {
        if version == self.version {
            self.waits_for.take_if(|waits_for| *waits_for == peer);
        }
    }

    /// Gives half of the mass of a version to a worker, or repeats what was given to it. Returns the message's number, and all that was given so far.
    pub(super) fn give(
        &mut self,
        to: usize,
        version: u64,
        is_repeat: bool,
    ) -> Option<(u64, Vec<f64>)> {
        if !self.is_alive(to) {
            return None;
        }
        let place = self.place(version)?;
        let counter = place.given.get_mut(to)?;
        counter.number += 1;
        counter.mass.resize(place.mass.len(), 0.0);
        if !is_repeat {
            for (given, mass) in counter.mass.iter_mut().zip(&mut place.mass) {
                // What the counter has taken in is gone, to the last bit.
                let before = *given;
                *given += *mass / 2.0;
                *mass -= *given - before;
            }
        }
        Some((counter.number, counter.mass.clone()))
    }

    /// Takes what is new in all that a worker has given to this one. Old messages, and repeats, have nothing new.
    pub(super) fn take(&mut self, from: usize, version: u64, number: u64, given: &[f64]) -> Taken {
        if !self.is_alive(from) || self.place(version).is_none() {
            return Taken::Known;
        }
        let before = self.places[slot(version)].taken.get(from);
        let Some(before) = before.filter(|before| before.number < number) else {
            return Taken::Known;
        };
        if !self.is_plausible(&before.mass, given) {
            return Taken::Refused;
        }
        // Nobody holds more than all weigh.
        let weight = |mass: &[f64]| mass.last().copied().unwrap_or(0.0);
        let own = weight(&self.places[slot(version)].mass);
        let heaviest = self.workers() + ROUNDING * weight(given);
        if own + (weight(given) - weight(&before.mass)) > heaviest * (1.0 + ROUNDING) {
            return Taken::Refused;
        }
        let place = &mut self.places[slot(version)];
        let counter = &mut place.taken[from];
        counter.number = number;
        counter.mass.resize(given.len(), 0.0);
        if counter.mass.last() == given.last() {
            return Taken::Known;
        }
        let pairs = counter.mass.iter_mut().zip(given);
        for (mass, (before, given)) in place.mass.iter_mut().zip(pairs) {
            *mass += given - *before;
            *before = *given;
        }
        Taken::New
    }

    /// Whether a worker can have given this in all, after what it had given before. Sums of parts of plausible statistics are plausible.
    fn is_plausible(&self, before: &[f64], given: &[f64]) -> bool {
        // False for what is no number, too.
        let is_small = given.iter().all(|given| given.abs() <= LARGEST);
        if given.len() != self.statistic() + PROBES + 1 || !is_small {
            return false;
        }
        let before = before.iter().copied().chain(std::iter::repeat(0.0));
        let pairs = given.iter().zip(before);
        let new: Vec<f64> = pairs
            .map(|(given, before)| given - before + ROUNDING * given)
            .collect();
        let (statistic, rest) = new.split_at(self.statistic());
        let (probes, weight) = (&rest[..PROBES], rest[PROBES]);
        let (mut least, mut most) = (f64::MAX, 0.0_f64);
        for rows in self.counted().map(|worker| self.plausible.rows[worker]) {
            (least, most) = (least.min(rows as f64), most.max(rows as f64));
        }
        // What is on its way cannot weigh more than all workers.
        let heaviest = self.workers() + ROUNDING * given[given.len() - 1];
        let slack = 1.0 + ROUNDING;
        (0.0..=slack * heaviest).contains(&weight)
            && probes.iter().all(|probe| probe.abs() <= slack * weight)
            && statistic[0] * slack >= least * weight
            && statistic[0] <= slack * most * weight
            && self.plausible.sums(statistic, true)
    }

    /// Whether mass of all workers is mixed evenly here.
    fn is_exact(&self) -> bool {
        let place = &self.places[slot(self.version)];
        let Some((weight, rest)) = place.mass.split_last() else {
            return false;
        };
        let probes = rest[self.statistic()..].iter().zip(&self.means);
        probes
            .map(|(probe, mean)| (probe / weight - mean).abs())
            .all(|error| error <= EXACT)
    }

    /// The sum of the own version over all workers that count; `None`: it is not known yet.
    pub(super) fn sum(&mut self) -> Option<Vec<f64>> {
        let version = self.version;
        let is_first = self.counted().next() == Some(self.me);
        if is_first && self.sum_of(version).is_none() && self.is_exact() {
            let (workers, rows, numbers) = (self.workers(), self.rows(), self.statistic());
            let place = self.place(version)?;
            let weight = place.mass.last()?;
            let values = place.mass[..numbers].iter();
            let mut sum: Vec<f64> = values.map(|mass| mass / weight * workers).collect();
            sum[0] = rows;
            self.know(sum);
        }
        self.sum_of(version).map(<[f64]>::to_vec)
    }

    /// The sum of a version, if it is known.
    pub(super) fn sum_of(&self, version: u64) -> Option<&[f64]> {
        let place = &self.places[slot(version)];
        let sum = place.sum.as_deref();
        sum.filter(|_| place.version == version)
    }

    /// Takes the sum of a version from a worker.
    pub(super) fn take_sum(&mut self, from: usize, version: u64, values: Vec<f64>) -> Taken {
        let is_own = version > 0 && version == self.version;
        if !is_own || !self.is_alive(from) || self.sum_of(version).is_some() {
            return Taken::Known;
        }
        let is_plausible = values.len() == self.statistic()
            && finite(&values)
            && values[0] == self.rows()
            && self.plausible.sums(&values, true);
        if !is_plausible {
            return Taken::Refused;
        }
        self.know(values);
        Taken::New
    }

    /// The sum of the own version is known.
    fn know(&mut self, sum: Vec<f64>) {
        let version = self.version;
        self.places[slot(version)] = Place {
            version,
            sum: Some(sum),
            ..Place::default()
        };
    }
}

/// Where a version lies.
fn slot(version: u64) -> usize {
    (version % PLACES as u64) as usize
}

/// A worker's numbers that all know, from −1 to 1.
fn probes(worker: usize) -> [f64; PROBES] {
    let mut random = fastrand::Rng::with_seed(worker as u64);
    std::array::from_fn(|_| 2.0 * random.f64() - 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Kind;
    use crate::data::Features;
    use crate::objective::{Shape, Share};

    const ROWS: usize = 10;

    /// Of rows of one class: of even workers the one, of odd workers the other.
    fn statistic(worker: usize) -> Vec<f64> {
        let mut random = fastrand::Rng::with_seed(worker as u64);
        let values = (0..2 * ROWS).map(|_| random.f64() * 2.0 - 1.0).collect();
        let share = Share {
            kind: Kind::Logistic,
            outputs: 1,
            features: Features::Dense { columns: 2, values },
            targets: vec![(worker % 2) as f64; ROWS],
        };
        share.statistic(&[0.1, 0.2, 0.3], true)
    }

    /// Workers of which the first so many have put their statistics in.
    fn team(workers: usize, ready: usize) -> Vec<PushSum> {
        let plausible = Plausible {
            shape: Shape {
                width: 3,
                outputs: 1,
            },
            kind: Kind::Logistic,
            rows: vec![ROWS as u64; workers],
            x_max: 1.0,
            y_max: 1.0,
        };
        let mut team: Vec<PushSum> = (0..workers)
            .map(|me| PushSum::new(me, plausible.clone()))
            .collect();
        for (me, one) in team.iter_mut().enumerate().take(ready) {
            assert_eq!(one.put(1, &statistic(me)), Taken::New);
        }
        team
    }

    /// A push and its answer; either may be lost.
    fn exchange(team: &mut [PushSum], (from, to): (usize, usize), lost: [bool; 2]) {
        let is_repeat = team[from].waits_for() == Some(to);
        team[from].wait_for(to);
        let (number, given) = team[from].give(to, 1, is_repeat).unwrap();
        if lost[0] {
            return;
        }
        let taken = team[to].take(from, 1, number, &given);
        let (number, given) = team[to].give(from, 1, taken == Taken::Known).unwrap();
        if lost[1] {
            return;
        }
        assert_ne!(taken, Taken::Refused);
        assert_ne!(team[from].take(to, 1, number, &given), Taken::Refused);
        team[from].answered(to, 1);
    }

    /// The same by plain push-sum: messages tell only what is new.
    fn exchange_plainly(team: &mut [Vec<f64>], (from, to): (usize, usize), lost: [bool; 2]) {
        for (from, to, is_lost) in [(from, to, lost[0]), (to, from, lost[1])] {
            team[from].iter_mut().for_each(|mass| *mass /= 2.0);
            if is_lost {
                return;
            }
            let half = team[from].clone();
            let pairs = team[to].iter_mut().zip(half);
            pairs.for_each(|(mass, half)| *mass += half);
        }
    }

    /// Each worker pushes once. Returns who pushed to whom, and what was lost.
    fn round(
        team: &mut [PushSum],
        random: &mut fastrand::Rng,
        loss_percent: u32,
    ) -> Vec<((usize, usize), [bool; 2])> {
        let workers = team.len();
        let mut done = Vec::new();
        for from in 0..workers {
            let other = (from + random.usize(1..workers)) % workers;
            let to = team[from].waits_for().unwrap_or(other);
            let lost = [(); 2].map(|()| random.u32(..100) < loss_percent);
            exchange(team, (from, to), lost);
            done.push(((from, to), lost));
        }
        done
    }

    /// A tenth of all messages is lost: the sum is right all the same. That of plain push-sum, of the same messages and losses, is not.
    #[test]
    fn lost_messages_are_made_good() {
        const WORKERS: usize = 16;
        let mut team = team(WORKERS, WORKERS);
        let mass = |one: &PushSum| one.places[slot(1)].mass.clone();
        let mut plain: Vec<Vec<f64>> = team.iter().map(mass).collect();
        let all: Vec<Vec<f64>> = (0..WORKERS).map(statistic).collect();
        let mut random = fastrand::Rng::with_seed(9);
        let mut rounds = 0;
        let sum = loop {
            if let Some(sum) = team[0].sum() {
                break sum;
            }
            rounds += 1;
            assert!(rounds < 500, "it does not end");
            for (pair, lost) in round(&mut team, &mut random, 10) {
                exchange_plainly(&mut plain, pair, lost);
            }
        };
        // Largest error, each number's as a part of the sum of its amounts.
        let error = |found: &[f64]| -> f64 {
            let errors = found.iter().enumerate().map(|(at, found)| {
                let wanted: f64 = all.iter().map(|one| one[at]).sum();
                let amount: f64 = all.iter().map(|one| one[at].abs()).sum();
                (found - wanted).abs() / amount
            });
            errors.fold(0.0, f64::max)
        };
        assert!(error(&sum) < 1e-10, "{:e}", error(&sum));
        let plain = &plain[0];
        let factor = WORKERS as f64 / plain[plain.len() - 1];
        let found: Vec<f64> = plain[..sum.len()]
            .iter()
            .map(|mass| mass * factor)
            .collect();
        assert!(error(&found) > 1e-3, "{:e}", error(&found));
    }

    /// However long the others mix, there is no sum without the last worker's statistic; then one worker has it, and tells the others.
    #[test]
    fn sums_need_all() {
        let mut random = fastrand::Rng::with_seed(2);
        let mut team = team(4, 3);
        for _ in 0..60 {
            round(&mut team, &mut random, 0);
            assert_eq!(team[0].sum(), None);
        }
        assert_eq!(team[3].put(1, &statistic(3)), Taken::New);
        let sum = (0..200).find_map(|_| {
            round(&mut team, &mut random, 0);
            team[0].sum()
        });
        let sum = sum.expect("all is mixed");
        assert_eq!(team[1].sum(), None);
        assert_eq!(sum[0], 4.0 * ROWS as f64);
        let mut spoilt = sum.clone();
        spoilt[0] -= 1.0;
        assert_eq!(team[1].take_sum(0, 1, spoilt), Taken::Refused);
        assert_eq!(team[1].take_sum(0, 2, sum.clone()), Taken::Known);
        assert_eq!(team[1].take_sum(0, 1, sum.clone()), Taken::New);
        assert_eq!(team[1].sum(), Some(sum));
        // A dead worker's mass is in what the others hold: they begin anew.
        team[0].reset(&[true, false, false, false], &[ROWS as u64; 4]);
        assert_eq!(team[0].sum(), None);
        assert_eq!(team[0].put(1, &statistic(0)), Taken::New);
        assert_eq!(team[0].sum(), Some(statistic(0)));
    }

    /// Mass that cannot be, or is taken back, is refused; what is old, or of nobody, changes nothing.
    #[test]
    fn impossible_mass_is_refused() {
        let mut team = team(2, 2);
        let (number, honest) = team[1].give(0, 1, false).unwrap();
        let weight = honest.len() - 1;
        for (place, value) in [
            (0, 50.0),
            (1, f64::NAN),
            (1, f64::INFINITY),
            (2, 1e6),
            (5, -1.0),
            (weight - 1, 9.0),
            (weight, 3.0),
            (weight, -1.0),
        ] {
            let mut spoilt = honest.clone();
            spoilt[place] = value;
            let taken = team[0].take(1, 1, number, &spoilt);
            assert_eq!(taken, Taken::Refused, "{place} {value}");
        }
        assert_eq!(team[0].take(1, 1, number, &honest[1..]), Taken::Refused);
        assert_eq!(team[0].take(2, 1, number, &honest), Taken::Known);
        assert_eq!(team[0].take(1, 3, number, &honest), Taken::Known);
        assert_eq!(team[0].take(1, 1, number, &honest), Taken::New);
        assert_eq!(team[0].take(1, 1, number, &honest), Taken::Known);
        assert_eq!(team[0].take(1, 1, number + 1, &honest), Taken::Known);
        let less: Vec<f64> = honest.iter().map(|mass| mass / 2.0).collect();
        assert_eq!(team[0].take(1, 1, number + 2, &less), Taken::Refused);
    }
}
