//! Workers that join while the others learn: which rows they get, and when they take part.

use std::ops::Range;

use super::{Judge, Member, Order, Stage};
use crate::config::Mode;

/// A worker that has joined is getting its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Joining {
    pub(in super::super) worker: usize,
    /// Its rows.
    pub(in super::super) share: Vec<Range<usize>>,
    /// What all workers have once it takes part.
    shares: Vec<Vec<Range<usize>>>,
}

impl Joining {
    /// Rows of each worker.
    pub(in super::super) fn rows(&self) -> Vec<u64> {
        self.shares.iter().map(|share| count(share)).collect()
    }
}

/// Rows of a share.
pub(super) fn count(share: &[Range<usize>]) -> u64 {
    share.iter().map(|rows| rows.len() as u64).sum()
}

impl Judge {
    /// A process has become worker number `worker`, at most one beyond the last: it gets rows as soon as the others have theirs.
    pub(in super::super) fn joins(&mut self, worker: usize) {
        if self.is_alive(worker) {
            return; // it is known
        }
        if self.mode != Mode::Gossip || matches!(self.stage, Stage::Finishing | Stage::Done) {
            let why = "this run takes no more workers".to_owned();
            self.out.push_back((worker, Order::Abort { why }));
            return;
        }
        if worker == self.members.len() {
            self.members.push(Member::default());
            self.plausible.rows.push(0);
        } else {
            // What its former process was still to be told is not meant for this one.
            self.out.retain(|(to, _)| *to != worker);
            let gone = std::mem::take(&mut self.members[worker]);
            self.members[worker] = Member {
                rows: gone.rows,
                former: gone.former.or(gone.cause.filter(|_| gone.takes_part)),
                ..Member::default()
            };
        }
        self.waiting.push_back(worker);
        self.deal();
    }

    /// What the worker that joins is to be sent, once.
    pub(in super::super) fn take_dealt(&mut self) -> Option<Joining> {
        self.joining
            .clone()
            .filter(|_| std::mem::take(&mut self.is_dealt))
    }

    /// Chooses rows for the next worker that waits: those that nobody has, or as large a part of each other's.
    pub(super) fn deal(&mut self) {
        if self.joining.is_some()
            || !matches!(
                self.stage,
                Stage::Iterating | Stage::Collecting(false) | Stage::Verifying(false)
            )
        {
            return;
        }
        let Some(worker) = self.waiting.pop_front() else {
            return;
        };
        let mut shares: Vec<Vec<Range<usize>>> = self
            .members
            .iter()
            .map(|member| member.rows.clone())
            .collect();
        // Its own former rows first, if another process had its number.
        let mut share = std::mem::take(&mut shares[worker]);
        let largest = self.alive().map(|(_, member)| count(&member.rows)).max();
        for (shares, member) in shares.iter_mut().zip(&self.members) {
            let is_missing = member.cause.is_some() || !member.takes_part;
            if is_missing && Some(count(&share)) < largest {
                share.append(shares);
            }
        }
        if share.is_empty() {
            let others = self.alive().count() as u64;
            for (other, _) in self.alive() {
                let part = count(&shares[other]) / (others + 1);
                take_last(&mut shares[other], part as usize, &mut share);
            }
        }
        if share.is_empty() {
            let why = "there are no more rows than workers".to_owned();
            self.out.push_back((worker, Order::Abort { why }));
            return;
        }
        shares[worker].clone_from(&share);
        self.is_dealt = true;
        self.joining = Some(Joining {
            worker,
            share,
            shares,
        });
    }

    /// The worker that joins has its rows: from now on all sums count it.
    pub(super) fn admit(&mut self) {
        let Some(joining) = self.joining.take() else {
            return;
        };
        self.plausible.rows = joining.rows();
        // Others may wait to join by now.
        self.plausible.rows.resize(self.members.len(), 0);
        for (member, rows) in self.members.iter_mut().zip(joining.shares) {
            member.rows = rows;
        }
        let member = &mut self.members[joining.worker];
        (member.takes_part, member.former) = (true, None);
        self.outcome.joined += 1;
        self.begin();
    }

    /// Whether a worker that joins has all its rows.
    pub(super) fn is_joiner_ready(&self) -> bool {
        let joiner = self
            .joining
            .as_ref()
            .map(|joining| &self.members[joining.worker]);
        joiner.is_some_and(|member| member.is_ready)
    }
}

/// Moves the last so many rows of a share.
fn take_last(share: &mut Vec<Range<usize>>, mut rows: usize, to: &mut Vec<Range<usize>>) {
    while rows > 0 {
        let Some(last) = share.last_mut() else {
            return;
        };
        let cut = last.end - rows.min(last.len());
        rows -= last.end - cut;
        to.push(cut..last.end);
        last.end = cut;
        if last.start == last.end {
            share.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows go from the end of a share, also where it has several parts.
    #[test]
    fn last_rows_go() {
        let (mut share, mut to) = (vec![0..10, 40..45], Vec::new());
        take_last(&mut share, 7, &mut to);
        assert_eq!(share.as_slice(), std::slice::from_ref(&(0..8)));
        assert_eq!(to, [40..45, 8..10]);
    }
}
