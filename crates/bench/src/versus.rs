//! Contenders in turn within one run: A B C, B C A, …, so that disturbances of the machine affect all of them, and the place in a round favours none.

use serde::Serialize;

use crate::stats::Rounds;
use crate::stop;

/// Whether more or less of a number is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Rates.
    More,
    /// Times.
    Less,
}

impl Better {
    /// How many times better a number is that is so many times another.
    pub fn times(self, ratio: f64) -> f64 {
        match self {
            Self::More => ratio,
            Self::Less => 1.0 / ratio,
        }
    }
}

/// Result of a contender.
#[derive(Debug, Clone)]
pub struct Standing {
    /// Its name.
    pub name: String,
    /// Over all rounds, or why there are none.
    pub result: Result<Rounds, String>,
    /// Values round by round.
    values: Vec<f64>,
}

impl Standing {
    /// Results of its rounds, or why there are none.
    pub fn of(name: impl Into<String>, found: Result<Vec<f64>, String>) -> Self {
        let (name, result) = (name.into(), found.as_deref().map(Rounds::of));
        Self {
            name,
            result: result.map_err(Clone::clone),
            values: found.unwrap_or_default(),
        }
    }

    /// The median, NaN if there is none.
    pub fn median(&self) -> f64 {
        self.result
            .as_ref()
            .map_or(f64::NAN, |rounds| rounds.median)
    }

    /// Median of the ratios to `other`, round by round, which varies least on a machine that changes its speed. NaN if there are none.
    pub fn ratio_to(&self, other: &Self) -> f64 {
        median_ratio(&self.values, &other.values)
    }
}

/// Median of the ratios, round by round; NaN if there are none.
pub(crate) fn median_ratio(ours: &[f64], others: &[f64]) -> f64 {
    let ratios: Vec<f64> = ours
        .iter()
        .zip(others)
        .map(|(ours, other)| ours / other)
        .collect();
    Rounds::of(&ratios).median
}

/// The order of so many contenders in a round, the first of which is 0: each round begins with the next contender, so that none is always the first.
pub fn order(round: usize, many: usize) -> impl Iterator<Item = usize> {
    (0..many).map(move |place| (round + place) % many)
}

/// Measures the contenders of these names so many `rounds` in turn.
pub fn alternate(
    rounds: usize,
    names: &[impl AsRef<str>],
    measure: impl FnMut(usize) -> Result<f64, String>,
) -> Vec<Standing> {
    let found = in_turn(rounds, names.len(), measure);
    let named = names.iter().zip(found);
    named
        .map(|(name, found)| Standing::of(name.as_ref(), found))
        .collect()
}

/// Measures each of so many `rounds` times in turn, in [`order`]; one that fails is left out, with the reason. Results are in the order of the contenders.
pub fn in_turn<R>(
    rounds: usize,
    many: usize,
    mut measure: impl FnMut(usize) -> Result<R, String>,
) -> Vec<Result<Vec<R>, String>> {
    let mut all: Vec<Result<Vec<R>, String>> = (0..many).map(|_| Ok(Vec::new())).collect();
    for round in 0..rounds {
        for one in order(round, many) {
            let found = &mut all[one];
            if stop::is_wanted() {
                *found = Err(stop::REASON.to_owned());
            } else if let Ok(list) = found {
                match measure(one) {
                    Ok(result) => list.push(result),
                    Err(reason) => *found = Err(reason),
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each contender has each place once in as many rounds as there are contenders.
    #[test]
    fn places_rotate() {
        let rounds: Vec<Vec<usize>> = (0..4).map(|round| order(round, 3).collect()).collect();
        assert_eq!(rounds, [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]);
        assert_eq!(order(5, 0).count(), 0);
        let found = in_turn(3, 2, Ok);
        assert_eq!(found, [Ok(vec![0, 0, 0]), Ok(vec![1, 1, 1])]);
    }

    /// Rounds interleave, and a contender that fails does not affect the others.
    #[test]
    fn takes_turns() {
        let mut order = String::new();
        let names = ["a", "b", "c"];
        let standings = alternate(3, &names, |one| {
            order.push_str(names[one]);
            match one {
                1 => Err("no such program".to_owned()),
                one => Ok(one as f64 + 1.0),
            }
        });
        assert_eq!(order, "abccaca");
        assert_eq!(standings[0].median(), 1.0);
        assert!(standings[1].median().is_nan() && standings[1].result.is_err());
        assert_eq!(standings[2].result.as_ref().unwrap().rounds, 3);
        assert_eq!(standings[2].ratio_to(&standings[0]), 3.0);
        assert!(standings[2].ratio_to(&standings[1]).is_nan());
    }
}
