//! Contenders in turn within one run: A B C, A B C, …, so that disturbances of the machine affect all of them.

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

/// Something that is measured repeatedly.
pub struct Contender<'a> {
    /// Its name in tables.
    pub name: String,
    /// Makes one measurement; an error takes this contender out, with the reason.
    pub run: Box<dyn FnMut() -> Result<f64, String> + 'a>,
}

impl<'a> Contender<'a> {
    /// A contender with this measurement.
    pub fn new(name: impl Into<String>, run: impl FnMut() -> Result<f64, String> + 'a) -> Self {
        Self {
            name: name.into(),
            run: Box::new(run),
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

/// Runs all contenders `rounds` times in turn.
pub fn alternate(rounds: usize, contenders: &mut [Contender<'_>]) -> Vec<Standing> {
    let found = in_turn(rounds, contenders.len(), |one| (contenders[one].run)());
    let names = contenders.iter().map(|contender| &contender.name);
    names
        .zip(found)
        .map(|(name, found)| Standing::of(name, found))
        .collect()
}

/// Measures each of so many `rounds` times in turn; one that fails is left out, with the reason.
pub fn in_turn<R>(
    rounds: usize,
    many: usize,
    mut measure: impl FnMut(usize) -> Result<R, String>,
) -> Vec<Result<Vec<R>, String>> {
    let mut all: Vec<Result<Vec<R>, String>> = (0..many).map(|_| Ok(Vec::new())).collect();
    for _ in 0..rounds {
        for (one, found) in all.iter_mut().enumerate() {
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
    use std::cell::RefCell;

    /// Rounds interleave, and a contender that fails does not affect the others.
    #[test]
    fn takes_turns() {
        let order = RefCell::new(String::new());
        let step = |name: &'static str, value: f64, fails: bool| {
            let order = &order;
            Contender::new(name, move || {
                order.borrow_mut().push_str(name);
                if fails {
                    Err("no such program".to_owned())
                } else {
                    Ok(value)
                }
            })
        };
        let standings = alternate(
            3,
            &mut [
                step("a", 1.0, false),
                step("b", 2.0, true),
                step("c", 3.0, false),
            ],
        );
        assert_eq!(*order.borrow(), "abcacac");
        assert_eq!(standings[0].median(), 1.0);
        assert!(standings[1].median().is_nan() && standings[1].result.is_err());
        assert_eq!(standings[2].result.as_ref().unwrap().rounds, 3);
        assert_eq!(standings[2].ratio_to(&standings[0]), 3.0);
        assert!(standings[2].ratio_to(&standings[1]).is_nan());
    }
}
