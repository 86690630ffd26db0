//! Newton's method at a worker: statistics are published, asked for, and summed.

use super::super::message::{Answer, End, PeerMessage};
use super::super::table::Taken;
use super::{Phase, State, Step, Worker};
use crate::newton::Advance;

/// Statistics of each peer that are kept until their epoch begins here: so far can a peer be ahead.
const EARLY_PER_PEER: usize = 2;

impl Worker {
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
        let (State::Newton { epoch: own, .. }, Some(table)) = (&self.state, &mut self.table) else {
            return;
        };
        let own = *own;
        if epoch != own {
            return;
        }
        match table.take(from, version, values) {
            Taken::New => self.exchange.exchanges += 1,
            Taken::Known => {}
            Taken::Refused => self.refuse(from),
        }
    }

    /// Sends the own statistic of a version, if it is here.
    pub(super) fn publish(&mut self, to: usize, version: u64, is_repeat: bool) {
        let (State::Newton { epoch, .. }, Some(table)) = (&self.state, &self.table) else {
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

    /// Asks those whose newest statistic is missing for it.
    pub(in super::super) fn ask(&mut self) {
        let (State::Newton { epoch, version, .. }, Some(table)) = (&self.state, &self.table) else {
            return;
        };
        let (epoch, version) = (*epoch, *version);
        for peer in table.missing(version).collect::<Vec<_>>() {
            self.send(peer, PeerMessage::Ask { epoch, version }, true);
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
            Some(table),
            Some(share),
        ) = (&mut self.state, &mut self.table, &self.share)
        else {
            return Step::Wait;
        };
        if *version != newton.steps() + 1 {
            *version = newton.steps() + 1;
            let statistic = share.statistic(newton.theta(), true);
            if table.take(self.me, *version, statistic) == Taken::Refused {
                self.failed("its statistics are no finite numbers".to_owned());
            }
            return Step::Again;
        }
        // Published a poll later: whoever asked meanwhile gets it once.
        if *published != *version {
            *published = *version;
            let version = *version;
            for peer in self.peers.clone() {
                self.publish(peer, version, false);
            }
            return Step::Again;
        }
        let Some(sums) = table.sum(*version) else {
            return Step::WaitForPeers;
        };
        let end = match newton.advance(&sums) {
            Advance::Evaluate => None,
            Advance::Converged => Some(End::Converged),
            Advance::Stagnated => Some(End::Stagnated),
        };
        self.report_newton(end);
        Step::Again
    }

    pub(super) fn report_newton(&mut self, end: Option<End>) {
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
            end,
        };
        self.tell(&answer);
        if end.is_some() {
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
