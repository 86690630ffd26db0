//! Push and pull of parameters between two random workers: both take the mean.
//!
//! Nobody waits. Whoever pushed goes on stepping, and moves by half of the difference once the other's parameters come; a push whose answer is lost is
//! forgotten. So the mean of two is kept except under loss, and then it is off by half of a difference that shrinks.

use super::message::finite;

/// Parameters that lie further away than this, relative to one's own and in units of scaled data, are refused.
const FURTHEST: f64 = 1e3;

/// Exchanges of one worker.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    number: u64,
    /// The last push: whom it went to, and the parameters then.
    pending: Option<(usize, Vec<f64>)>,
    pub(super) exchanges: u64,
    pub(super) rejected: u64,
}

impl Exchange {
    /// Begins an exchange with a worker; returns its number.
    pub(super) fn push(&mut self, to: usize, theta: &[f64]) -> u64 {
        self.number += 1;
        self.pending = Some((to, theta.to_vec()));
        self.number
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
