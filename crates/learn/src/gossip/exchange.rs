//! Push and pull of parameters between two random workers: both take the mean.
//!
//! Nobody waits. Whoever pushed goes on stepping, and moves by half of the difference once the other's parameters come; a push whose answer is lost
//! is forgotten. So the mean of two is kept except under loss, and then it is off by half of a difference that shrinks. A node that has answered a
//! push in a period does not push in it: one exchange of a pair is enough.

use super::message::finite;

/// Parameters that lie further away than this, relative to one's own and in units of scaled data, are refused.
const FURTHEST: f64 = 1e3;

/// Exchanges of one worker.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    number: u64,
    /// The last push: whom it went to, and the parameters then.
    pending: Option<(usize, Vec<f64>)>,
    /// Periods since that push.
    put_off: u32,
    /// After this many periods its answer is taken for lost.
    patience: u32,
    /// A peer's push was answered in this period.
    has_answered: bool,
    pub(super) exchanges: u64,
    pub(super) rejected: u64,
}

impl Exchange {
    /// Whether it is time for the next exchange; asked once a period. No peer was answered in it, and the answer to the last push has come, or seems to
    /// be lost. Where answers take longer than a period, a new exchange would undo each one before it.
    pub(super) fn may_push(&mut self) -> bool {
        self.put_off += 1;
        let has_answered = std::mem::take(&mut self.has_answered);
        !has_answered && (self.pending.is_none() || self.put_off >= self.patience)
    }

    /// Begins an exchange with a worker; returns its number.
    pub(super) fn push(&mut self, to: usize, theta: &[f64]) -> u64 {
        self.number += 1;
        self.put_off = 0;
        self.pending = Some((to, theta.to_vec()));
        self.number
    }

    /// Begins anew: answers that are still to come are too late. After `patience` periods an answer is taken for lost.
    pub(super) fn begin(&mut self, patience: u64) {
        (self.pending, self.has_answered) = (None, false);
        self.patience = patience.clamp(1, u32::MAX.into()) as u32;
    }

    /// Takes the mean with parameters that were pushed; returns one's own from before, to be sent back. `None`: they were refused.
    pub(super) fn pushed(&mut self, theta: &mut [f64], theirs: &[f64]) -> Option<Vec<f64>> {
        if !is_plausible(theta, theirs) {
            self.rejected += 1;
            return None;
        }
        let before = theta.to_vec();
        theta
            .iter_mut()
            .zip(theirs)
            .for_each(|(own, theirs)| *own += (theirs - *own) / 2.0);
        self.exchanges += 1;
        self.has_answered = true;
        Some(before)
    }

    /// Takes the answer to a push.
    pub(super) fn pulled(&mut self, from: usize, number: u64, theta: &mut [f64], theirs: &[f64]) {
        if number != self.number || self.pending.as_ref().is_none_or(|(to, _)| *to != from) {
            return; // too late, or twice
        }
        let Some((_, sent)) = self.pending.take() else {
            return;
        };
        if !is_plausible(theta, theirs) {
            self.rejected += 1;
            return;
        }
        for ((own, sent), theirs) in theta.iter_mut().zip(&sent).zip(theirs) {
            *own += (theirs - sent) / 2.0;
        }
        self.exchanges += 1;
    }
}

/// Whether parameters can be those of a peer that learns the same.
pub(super) fn is_plausible(own: &[f64], theirs: &[f64]) -> bool {
    if own.len() != theirs.len() || !finite(theirs) {
        return false;
    }
    let square: f64 = own.iter().map(|own| own * own).sum();
    let apart: f64 = own.iter().zip(theirs).map(|(a, b)| (a - b) * (a - b)).sum();
    apart.sqrt() <= FURTHEST * (1.0 + square.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both end at the mean, also where one has stepped on meanwhile.
    #[test]
    fn both_take_the_mean() {
        let (mut a, mut b) = (Exchange::default(), Exchange::default());
        let (mut theta_a, mut theta_b) = (vec![1.0, 4.0], vec![3.0, 0.0]);
        let number = a.push(1, &theta_a);
        let pushed = theta_a.clone();
        theta_a[0] += 0.5;
        let back = b.pushed(&mut theta_b, &pushed).unwrap();
        a.pulled(1, number, &mut theta_a, &back);
        assert_eq!((theta_a.clone(), theta_b), (vec![2.5, 2.0], vec![2.0, 2.0]));
        a.pulled(1, number, &mut theta_a, &back); // a repeat
        assert_eq!((theta_a[0], a.exchanges), (2.5, 1));
    }

    /// The next push waits for the answer, or until it seems lost.
    #[test]
    fn one_exchange_at_a_time() {
        let mut exchange = Exchange::default();
        exchange.begin(20);
        let mut theta = vec![1.0];
        assert!(exchange.may_push());
        let number = exchange.push(1, &theta);
        assert!(!exchange.may_push());
        exchange.pulled(1, number, &mut theta, &[2.0]);
        assert!(exchange.may_push());
        exchange.push(1, &theta);
        let waits = (1..).find(|_| exchange.may_push());
        assert_eq!(waits, Some(20));
    }

    /// A node that has answered a push does not push in the same period, but in the next one.
    #[test]
    fn who_answers_does_not_push() {
        let mut exchange = Exchange::default();
        exchange.begin(20);
        assert!(exchange.pushed(&mut [1.0], &[2.0]).is_some());
        assert!(!exchange.may_push());
        assert!(exchange.may_push());
    }

    /// Corrupt parameters change nothing and are counted.
    #[test]
    fn corrupt_parameters_are_refused() {
        let mut exchange = Exchange::default();
        let mut theta = vec![1.0, 2.0];
        for theirs in [
            vec![f64::NAN, 0.0],
            vec![1e9, 0.0],
            vec![1.0],
            vec![f64::INFINITY; 2],
        ] {
            assert_eq!(exchange.pushed(&mut theta, &theirs), None);
            let number = exchange.push(3, &theta);
            exchange.pulled(3, number, &mut theta, &theirs);
        }
        assert_eq!(
            (theta, exchange.rejected, exchange.exchanges),
            (vec![1.0, 2.0], 8, 0)
        );
    }
}
