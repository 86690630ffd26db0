//! A judge that takes the place of one that died: asks the workers what they hold, and goes on from there.
//!
//! Called by `run` before there is a judge, and by its simulation (`net`). Workers that lost their judge go on iterating for as long as
//! `SolveConfig::outlive_ms` says. They keep their rows and x; the new judge reads the system again, and sends rows only in place of workers that died, too.
//!
//! Invariant: rows of the first division are disjoint and cover the system, whatever the workers told.

use super::error::SolveError;
use super::field::node;
use super::message::{Answer, Order, Standing, is_older};
use super::ranges::among;
use super::run::CONTROL;
use crate::system::{Matrix, Source};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::time::{Duration, Instant};
use tsumuji_node::{Context, Delivery, Endpoint, Handler, NodeId};

/// Divisions and epochs that workers which died may have heard of, beyond what the others were told.
const UNTOLD: u32 = 1000;
/// Between two polls.
const WAIT: Duration = Duration::from_millis(5);

/// A number that tells a system from others, down to each entry: the same for workers of a judge and for one that wants to take its place.
pub(super) fn fingerprint(source: &Source) -> u64 {
    let mut hasher = DefaultHasher::new();
    match source {
        Source::Generated(made) => {
            (made.what.to_string(), made.seed).hash(&mut hasher);
            (made.solution as u8).hash(&mut hasher);
        }
        Source::System(system) => {
            system.n().hash(&mut hasher);
            let values = match &system.matrix {
                Matrix::Dense(dense) => dense.values(),
                Matrix::Sparse(csr) => {
                    (csr.offsets(), csr.indices()).hash(&mut hasher);
                    csr.values()
                }
            };
            let all = values.iter().chain(&system.rhs);
            all.for_each(|value| value.to_bits().hash(&mut hasher));
        }
    }
    hasher.finish()
}

/// What workers told of themselves; `None`: nothing, or they died.
#[derive(Debug)]
pub(super) struct Survey {
    told: Vec<Option<Standing>>,
    lost: Vec<bool>,
    /// Workers that are up and were not asked since.
    up: Vec<usize>,
}

impl Survey {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            told: vec![None; workers],
            lost: vec![false; workers],
            up: (0..workers).collect(),
        }
    }

    /// Takes a message; what was meant for the former judge is void.
    pub(super) fn answer(&mut self, worker: usize, bytes: &[u8]) {
        if let (Some(told), Some(Answer::Standing(standing))) =
            (self.told.get_mut(worker), Answer::parse(bytes))
        {
            *told = Some(standing);
        }
    }

    pub(super) fn lost(&mut self, worker: usize) {
        if let (Some(told), Some(lost)) = (self.told.get_mut(worker), self.lost.get_mut(worker)) {
            (*told, *lost) = (None, true);
        }
    }

    /// Whether all that are not lost have answered.
    #[cfg(test)]
    pub(super) fn is_whole(&self) -> bool {
        let mut workers = self.told.iter().zip(&self.lost);
        workers.all(|(told, lost)| told.is_some() || *lost)
    }

    pub(super) fn into_standings(self) -> Vec<Option<Standing>> {
        self.told
    }
}

impl Handler for Survey {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        if delivery.channel.id() == CONTROL.id() {
            let worker = usize::from(delivery.from.0).wrapping_sub(1);
            self.answer(worker, delivery.body.bytes());
        }
    }

    fn peer_up(&mut self, peer: NodeId) {
        let worker = usize::from(peer.0).wrapping_sub(1);
        if let Some(lost) = self.lost.get_mut(worker) {
            *lost = false;
            self.up.push(worker);
        }
    }

    fn peer_dead(&mut self, peer: NodeId, _: usize) {
        self.lost(usize::from(peer.0).wrapping_sub(1));
    }
}

/// Asks all workers what they hold, also those that come up meanwhile. Ends when all have told, or after `within`. Those that have other rows than those of `system` end the run.
pub(super) fn survey(
    endpoint: &mut Endpoint,
    (n, system): (usize, u64),
    within: Duration,
) -> Result<Vec<Option<Standing>>, SolveError> {
    let mut survey = Survey::new(endpoint.members().len() - 1);
    let began = Instant::now();
    while !survey.told.iter().all(Option::is_some) && began.elapsed() < within {
        for worker in std::mem::take(&mut survey.up) {
            // One that cannot be told is noticed to be dead.
            let _ = endpoint.try_send(node(worker), CONTROL, &Order::AskState.encode());
        }
        endpoint.poll_wait(&mut survey, WAIT)?;
        // A session with the former judge may end as one with this begins.
        for (worker, lost) in survey.lost.iter_mut().enumerate() {
            if std::mem::take(lost) {
                let _ = endpoint.reconnect(node(worker));
            }
        }
    }
    let told = survey.into_standings();
    for (worker, standing) in told.iter().enumerate() {
        if let Some(standing) = standing
            && !standing.rows.is_empty()
            && ((standing.n, standing.system) != (n, system) || standing.rows.end > n)
        {
            return Err(SolveError::OtherSystem {
                worker: endpoint.name_of(node(worker)).to_owned(),
            });
        }
    }
    if told
        .iter()
        .flatten()
        .all(|standing| standing.rows.is_empty())
    {
        return Err(SolveError::NothingToTakeOver);
    }
    Ok(told)
}

/// The number from which divisions and epochs of the new judge count: its clock's, or above what workers were told, if that clock is behind.
pub(super) fn first(clock: u32, standings: &[Option<Standing>]) -> u32 {
    let told = standings
        .iter()
        .flatten()
        .filter(|told| !told.rows.is_empty())
        .flat_map(|told| [told.division, told.epoch]);
    told.map(|number| number.wrapping_add(UNTOLD))
        .fold(clock, |newest, number| {
            if is_older(newest, number) {
                number
            } else {
                newest
            }
        })
}

/// Rows of each worker, in proportion to what it has: if nobody is missing, just that. Workers that overlap, because one was told of a division that another
/// was not, get equal shares. Without rows: those that died, or never had any.
pub(super) fn ranges(standings: &[Option<Standing>], n: usize) -> Vec<Range<usize>> {
    let rows = |worker: usize| {
        standings[worker]
            .as_ref()
            .map_or(0..0, |told| told.rows.clone())
    };
    let mut order: Vec<usize> = (0..standings.len())
        .filter(|&worker| !rows(worker).is_empty())
        .collect();
    order.sort_by_key(|&worker| (rows(worker).start, rows(worker).end));
    let overlap = |pair: &[usize]| rows(pair[0]).end > rows(pair[1]).start;
    let is_torn = order.windows(2).any(overlap);
    among((n, standings.len()), &order, |worker| {
        if is_torn {
            1.0
        } else {
            rows(worker).len() as f64
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn standing(rows: Range<usize>) -> Option<Standing> {
        Some(Standing {
            division: 3,
            epoch: 5,
            n: 10,
            rows,
            system: 1,
            laps: 2.0,
        })
    }

    /// No entry differs unseen.
    #[test]
    fn systems_are_told_apart() {
        let what: crate::system::Generate = "circuit:200".parse().unwrap();
        let system = what.system(1).unwrap();
        fn print(system: &crate::system::System) -> u64 {
            fingerprint(&system.clone().into())
        }
        let Matrix::Sparse(csr) = &system.matrix else {
            panic!("circuits are sparse")
        };
        for entry in 0..csr.stored() {
            let (offsets, indices) = (csr.offsets().to_vec(), csr.indices().to_vec());
            let mut values = csr.values().to_vec();
            values[entry] *= 1.5;
            let csr = crate::system::Csr::new(csr.columns(), offsets, indices, values).unwrap();
            let mut other = system.clone();
            other.matrix = Matrix::Sparse(csr);
            assert_ne!(print(&system), print(&other), "{entry}");
        }
    }

    /// Where nobody is missing all keep their rows; gaps are shared by all; overlaps are shared anew.
    #[test]
    fn rows_are_kept_where_possible() {
        let told = [standing(6..10), None, standing(0..2), standing(0..0)];
        assert_eq!(ranges(&told, 10), [3..10, 0..0, 0..3, 0..0]);
        let told = [standing(3..10), None, standing(0..3)];
        assert_eq!(ranges(&told, 10), [3..10, 0..0, 0..3]);
        let told = [standing(0..6), standing(5..10)];
        assert_eq!(ranges(&told, 10), [0..5, 5..10]);
        assert_eq!(ranges(&[standing(3..4)], 10).first(), Some(&(0..10)));
    }

    /// Numbers of the former judge are never reached again, whatever the clock says; they may have gone round.
    #[test]
    fn numbers_go_on() {
        let told = [standing(0..6), None, standing(0..0)];
        assert_eq!(first(1 << 20, &told), 1 << 20);
        for clock in [0, 4, u32::MAX - 5] {
            assert_eq!(first(clock, &told), 5 + UNTOLD, "{clock}");
        }
        let late = Standing {
            division: u32::MAX - 1,
            epoch: u32::MAX,
            ..standing(0..6).unwrap()
        };
        assert_eq!(first(u32::MAX - 9, &[Some(late)]), UNTOLD - 1);
        assert_eq!(first(7, &[standing(0..0)]), 7);
    }

    proptest! {
        /// Whatever workers tell, every row has one owner.
        #[test]
        fn every_row_has_an_owner(
            told in prop::collection::vec((0usize..40, 1usize..20, any::<bool>()), 1..6),
        ) {
            let n = 60;
            let told: Vec<_> = told
                .iter()
                .map(|&(start, count, there)| there.then(|| standing(start..start + count)).flatten())
                .collect();
            prop_assume!(told.iter().any(Option::is_some));
            let mut ranges = ranges(&told, n);
            ranges.retain(|rows| !rows.is_empty());
            ranges.sort_by_key(|rows| rows.start);
            prop_assert_eq!(ranges.first().map(|rows| rows.start), Some(0));
            prop_assert_eq!(ranges.last().map(|rows| rows.end), Some(n));
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }
}
