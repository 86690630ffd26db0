//! Value iteration (Bellman): the value of each state of a Markov decision process under the best choices.
//!
//! x[s] = max over choices of (reward + γ Σ p(s') x[s']). The map shrinks distances in the maximum norm by γ at least, so |x − x*| ≤ |x − G(x)| / (1 − γ): that is
//! the certificate.

use std::ops::Range;

use super::FixedPoint;

/// What one may choose in a state.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Expected reward.
    pub reward: f64,
    /// Next states, and their probabilities.
    pub next: Vec<(u32, f64)>,
}

/// A process: the choices of each state. A state without choices is worth 0.
#[derive(Debug, Clone)]
pub struct ValueIteration {
    states: Vec<Vec<Choice>>,
    discount: f64,
}

impl ValueIteration {
    /// `discount` is γ. Panics unless it is in 0..1, rewards are finite, next states exist, and their probabilities sum up to 1.
    pub fn new(states: Vec<Vec<Choice>>, discount: f64) -> Self {
        let is_in = |discount: f64| (0.0..1.0).contains(&discount);
        assert!(is_in(discount), "γ is in 0..1, not {discount}");
        for choice in states.iter().flatten() {
            let all: f64 = choice.next.iter().map(|(_, probability)| probability).sum();
            let is_sound =
                |(next, p): &(u32, f64)| (*next as usize) < states.len() && (0.0..=1.0).contains(p);
            assert!(
                choice.reward.is_finite()
                    && choice.next.iter().all(is_sound)
                    && (all - 1.0).abs() < 1e-9,
                "{choice:?} is no choice of {} states",
                states.len()
            );
        }
        Self { states, discount }
    }

    /// The choices of each state.
    pub fn states(&self) -> &[Vec<Choice>] {
        &self.states
    }

    fn worth(&self, choice: &Choice, x: &[f64]) -> f64 {
        let next = choice.next.iter().map(|(state, p)| p * x[*state as usize]);
        choice.reward + self.discount * next.sum::<f64>()
    }

    fn renewed(&self, state: usize, x: &[f64]) -> f64 {
        let worths = self.states[state]
            .iter()
            .map(|choice| self.worth(choice, x));
        worths.reduce(f64::max).unwrap_or(0.0)
    }

    /// The best choice in a state, by x; `None`: it has none.
    pub fn best(&self, state: usize, x: &[f64]) -> Option<usize> {
        let choices = &self.states[state];
        let worth = |choice: &usize| self.worth(&choices[*choice], x);
        (0..choices.len()).max_by(|a, b| worth(a).total_cmp(&worth(b)))
    }
}

impl FixedPoint for ValueIteration {
    fn len(&self) -> usize {
        self.states.len()
    }

    fn start(&self, range: Range<usize>, x: &mut [f64]) {
        x[range].fill(0.0);
    }

    fn update(&mut self, range: Range<usize>, x: &mut [f64]) {
        for state in range {
            x[state] = self.renewed(state, x);
        }
    }

    fn certificate(&self, range: Range<usize>, x: &[f64]) -> f64 {
        let residual = |state: usize| (x[state] - self.renewed(state, x)).abs();
        range.map(residual).fold(0.0, f64::max) / (1.0 - self.discount)
    }

    fn reads(&self, range: Range<usize>) -> Option<Vec<u32>> {
        let choices = self.states[range].iter().flatten();
        let next = choices.flat_map(|choice| &choice.next);
        Some(next.map(|(state, _)| *state).collect())
    }
}
