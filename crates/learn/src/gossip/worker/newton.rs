//! Newton's method at a worker: statistics are published, asked for, and summed, by a table or by push-sum.

use super::super::message::{Answer, Mass, PeerMessage};
use super::super::push_sum::PushSum;
use super::super::table::{Plausible, Table, Taken};
use super::{Phase, State, Step, Worker};
use crate::config::{Average, Mode};
use crate::newton::Advance;

/// Statistics of each peer that are kept until their epoch begins here: so far can a peer be ahead.
const EARLY_PER_PEER: usize = 2;

/// How statistics become a sum.
#[derive(Debug)]
pub(super) enum Averages {
    Table(Table),
    PushSum(PushSum),
}

impl Averages {
    /// The judge has decided for one of the two.
    pub(super) fn new(average: Average, me: usize, plausible: Plausible) -> Self {
        match average {
            Average::PushSum => Self::PushSum(PushSum::new(me, plausible)),
            Average::Table | Average::Auto => Self::Table(Table::new(plausible)),
        }
    }

    /// Begins anew. From now on these workers count, with so many rows.
    pub(super) fn reset(&mut self, alive: &[bool], rows: &[u64]) {
        match self {
            Self::Table(table) => table.reset(alive, rows),
            Self::PushSum(push_sum) => push_sum.reset(alive, rows),
        }
    }

    /// Takes the own statistic.
    fn put(&mut self, me: usize, version: u64, statistic: Vec<f64>) -> Taken {
        match self {
            Self::Table(table) => table.take(me, version, statistic),
            Self::PushSum(push_sum) => push_sum.put(version, &statistic),
        }
    }
}

impl Worker {
    /// Whether an epoch has not begun here.
    pub(super) fn is_ahead(&self, epoch: u32) -> bool {
        matches!(self.state, State::Newton { epoch: own, .. } if epoch > own)
    }

    /// Keeps the newest messages of a peer whose epoch has not begun here.
    pub(super) fn keep_early(&mut self, from: usize, bytes: &[u8]) {
        let same = || self.early.iter().filter(|early| early.0 == from);
        if same().any(|early| early.1 == bytes) {
            return; // a repeat
        }
        if same().count() == EARLY_PER_PEER
            && let Some(oldest) = self.early.iter().position(|early| early.0 == from)
        {
            self.early.remove(oldest);
        }
        self.early.push((from, bytes.to_vec()));
    }

    pub(super) fn statistic(&mut self, from: usize, epoch: u32, version: u64, values: Vec<f64>) {
        let (State::Newton { epoch: own, .. }, Some(Averages::Table(table))) =
            (&self.state, &mut self.averages)
        else {
            return;
        };
        if epoch == *own {
            let taken = table.take(from, version, values);
            self.note(from, taken);
        }
    }

    /// Counts what has come, or refuses its sender.
    fn note(&mut self, from: usize, taken: Taken) {
        match taken {
            Taken::New => self.exchange.exchanges += 1,
            Taken::Known => {}
            Taken::Refused => self.refuse(from),
        }
    }

    /// A peer has given mass to this worker, and wants some back if that is no answer; or the sum, if it is here.
    pub(super) fn mass(&mut self, from: usize, mass: &Mass) {
        let (State::Newton { epoch, .. }, Some(Averages::PushSum(push_sum))) =
            (&self.state, &mut self.averages)
        else {
            return;
        };
        if mass.epoch != *epoch {
            return;
        }
        let (epoch, version) = (mass.epoch, mass.version);
        let taken = push_sum.take(from, version, mass.number, &mass.given);
        if taken == Taken::Refused {
            return self.refuse(from);
        }
        self.exchange.exchanges += u64::from(taken == Taken::New);
        if mass.is_answer {
            return push_sum.answered(from, version);
        }
        match push_sum.sum_of(version) {
            None => self.give(from, version, true, taken == Taken::Known),
            Some(values) => {
                let sum = PeerMessage::Sum {
                    epoch,
                    version,
                    values: values.to_vec(),
                };
                self.send(from, sum, false);
            }
        }
    }

    /// A peer has the sum of this version.
    pub(super) fn sum(&mut self, from: usize, epoch: u32, version: u64, values: Vec<f64>) {
        let (State::Newton { epoch: own, .. }, Some(Averages::PushSum(push_sum))) =
            (&self.state, &mut self.averages)
        else {
            return;
        };
        if epoch == *own {
            let taken = push_sum.take_sum(from, version, values);
            self.note(from, taken);
        }
    }

    /// Gives mass to a peer, or repeats what was given to it.
    fn give(&mut self, to: usize, version: u64, is_answer: bool, is_repeat: bool) {
        let (State::Newton { epoch, .. }, Some(Averages::PushSum(push_sum))) =
            (&self.state, &mut self.averages)
        else {
            return;
        };
        let Some((number, given)) = push_sum.give(to, version, is_repeat) else {
            return;
        };
        let mass = Mass {
            epoch: *epoch,
            version,
            number,
            is_answer,
            given,
        };
        self.send(to, PeerMessage::Mass(mass), is_repeat);
    }

    /// Gives mass of the newest version to a random peer; false: by a table, or while the last one's answer is missing.
    fn push(&mut self) -> bool {
        let (State::Newton { version, .. }, Some(Averages::PushSum(push_sum))) =
            (&self.state, &mut self.averages)
        else {
            return false;
        };
        if push_sum.waits_for().is_some() {
            return false;
        }
        let Some(peer) = self.random.choice(&self.peers).copied() else {
            return false;
        };
        push_sum.wait_for(peer);
        let version = *version;
        self.give(peer, version, false, false);
        true
    }

    /// Sends the own statistic of a version, if it is here.
    pub(super) fn publish(&mut self, to: usize, version: u64, is_repeat: bool) {
        let (State::Newton { epoch, .. }, Some(Averages::Table(table))) =
            (&self.state, &self.averages)
        else {
            return;
        };
        let Some(values) = table.of(self.me, version) else {
            return;
        };
        let message = PeerMessage::Statistic {
            epoch: *epoch,
            version,
            values: values.to_vec(),
        };
        self.send(to, message, is_repeat);
    }

    /// Asks those whose newest statistic is missing for it; by push-sum, the peer that has not answered.
    pub(in super::super) fn ask(&mut self) {
        let State::Newton { epoch, version, .. } = self.state else {
            return;
        };
        if version == 0 {
            return; // all have begun again while this worker waited, and it has nothing of its own yet
        }
        // Over TCP nothing is lost.
        let repeats = self.mode() != Some(Mode::Tcp);
        match &self.averages {
            Some(Averages::Table(table)) if repeats => {
                for peer in table.missing(version).collect::<Vec<_>>() {
                    self.send(peer, PeerMessage::Ask { epoch, version }, true);
                }
            }
            Some(Averages::PushSum(push_sum)) => match push_sum.waits_for() {
                Some(peer) if repeats => self.give(peer, version, false, true),
                Some(_) => {}
                None => drop(self.push()),
            },
            _ => {}
        }
    }

    /// Bytes that may have to come and go before a step is done.
    pub(in super::super) fn bytes_of_step(&self) -> usize {
        match &self.averages {
            Some(Averages::Table(table)) => 8 * table.statistic() * self.peers.len(),
            Some(Averages::PushSum(push_sum)) => 16 * push_sum.statistic(),
            None => 0,
        }
    }

    /// Tells the judge that statistics of others have been missing for long.
    pub(in super::super) fn waits(&mut self) {
        if let State::Newton { epoch, .. } = &self.state {
            let answer = Answer::Waits { epoch: *epoch };
            self.tell(&answer);
        }
    }

    pub(super) fn step_newton(&mut self) -> Step {
        let (
            State::Newton {
                newton,
                version,
                published,
                ..
            },
            Some(averages),
            Some(share),
        ) = (&mut self.state, &mut self.averages, &self.share)
        else {
            return Step::Wait;
        };
        if *version != newton.steps() + 1 {
            *version = newton.steps() + 1;
            let statistic = share.statistic(newton.theta(), true);
            if averages.put(self.me, *version, statistic) == Taken::Refused {
                self.failed("its statistics are no finite numbers".to_owned());
            }
            return Step::Again;
        }
        let mut is_free = true;
        let sums = match averages {
            // Published a poll later: whoever asked meanwhile gets it once.
            Averages::Table(_) if *published != *version => {
                *published = *version;
                let version = *version;
                for peer in self.peers.clone() {
                    self.publish(peer, version, false);
                }
                return Step::Again;
            }
            Averages::Table(table) => table.sum(*version),
            Averages::PushSum(push_sum) => {
                is_free = push_sum.is_free();
                push_sum.sum()
            }
        };
        let Some(sums) = sums else {
            return if is_free && self.push() {
                Step::Again
            } else {
                Step::WaitForPeers
            };
        };
        let is_last = newton.advance(&sums) != Advance::Evaluate;
        self.report_newton(is_last);
        Step::Again
    }

    pub(super) fn report_newton(&mut self, is_last: bool) {
        let State::Newton { newton, epoch, .. } = &self.state else {
            return;
        };
        let (loss, gradient_norm) = newton.progress();
        let answer = Answer::Step {
            epoch: *epoch,
            steps: newton.steps(),
            loss,
            gradient_norm,
            theta: newton.theta().to_vec(),
            is_last,
        };
        self.tell(&answer);
        if is_last {
            self.phase = Phase::Ended;
        }
    }

    /// A peer lacks a statistic of this worker. What was not published yet is about to be, to all.
    pub(super) fn asked(&mut self, from: usize, epoch: u32, version: u64) {
        if matches!(self.state, State::Newton { epoch: own, published, .. } if epoch == own && version <= published)
        {
            self.publish(from, version, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Method;
    use crate::gossip::beside::tests::{begin, begun_by};
    use crate::gossip::message::encode;
    use crate::gossip::worker::To;

    /// A worker whose epoch begins anew while it waits asks nobody before it has a statistic of its own: an order to itself could never be sent.
    #[test]
    fn one_that_begins_again_does_not_ask_itself() {
        for average in [Average::Table, Average::PushSum] {
            let mut worker = begun_by((Method::Newton, average), 1, 1);
            for epoch in 2..4 {
                while worker.step() != Step::WaitForPeers {}
                worker.out().clear();
                worker.ask();
                let asked: Vec<To> = worker.out().iter().map(|out| out.to).collect();
                assert_eq!(asked, [To::Worker(1)], "{average:?}");
                worker.out().clear();
                worker.order(&encode(&begin(epoch))).expect("it fits");
                worker.ask();
                assert!(worker.out().is_empty(), "{average:?}: {:?}", worker.out());
            }
        }
    }
}
