//! Krylov methods by threads of this process, each with a part of the rows.
//!
//! What threads exchange lies twice: while a slower thread still reads the one copy, a faster one already writes the other, and it cannot get to the
//! first again without passing a barrier that the slower one enters later. So each exchange costs one barrier.
//!
//! Invariant: an element of the shared vector is written by its owner only. Elements are single words, written before and read after a barrier.

use super::{
    Ended, Iterated, Kind, Part, Patience, Preconditioner, Preconditioning, Space, iterate,
};
use crate::report::Progress;
use crate::system::{Matrix, PartitionError, RowBlock, System, partition};
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::Instant;

/// Most numbers in one sum: the products of a GMRES iteration.
const SUMS_MOST: usize = 64;
/// Looks at a barrier before the core is yielded: some microseconds, the usual difference between threads that have as much to do.
const LOOKS: u32 = 4_000;
/// Elements that differ between two readings of x, as ranges: gaps up to this many unneeded ones are read along.
const GAP: u32 = 16;

/// Result of a run.
#[derive(Debug, Clone)]
pub struct Solved {
    /// Why and how it ended.
    pub ended: Ended,
    /// The solution.
    pub x: Vec<f64>,
    /// Of the first part.
    pub preconditioner: &'static str,
    /// Seconds to make the preconditioners.
    pub setup_seconds: f64,
    /// Seconds to iterate and verify.
    pub iterate_seconds: f64,
}

/// Solves with `threads` threads, from x = `start`, or from 0.
pub fn solve(
    system: &System,
    threads: usize,
    (kind, preconditioning): (Kind, Preconditioning),
    start: Option<&[f64]>,
    patience: &Patience,
    progress: &mut dyn FnMut(Progress),
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Solved, PartitionError> {
    let ranges = partition(&system.matrix, threads)?;
    let blocks = ranges.into_iter().map(|rows| RowBlock::cut(system, rows));
    let blocks: Vec<RowBlock> = blocks.collect();
    Ok(solve_parts(
        blocks,
        (kind, preconditioning),
        start,
        patience,
        progress,
        stop,
    ))
}

/// As [`solve`], with the rows already divided. `blocks` cover the rows in order.
pub fn solve_parts(
    blocks: Vec<RowBlock>,
    (kind, preconditioning): (Kind, Preconditioning),
    start: Option<&[f64]>,
    patience: &Patience,
    progress: &mut dyn FnMut(Progress),
    stop: &(dyn Fn() -> bool + Sync),
) -> Solved {
    let began = Instant::now();
    let n = blocks[0].columns;
    let rows_most = blocks
        .iter()
        .map(|block| block.rhs.len())
        .max()
        .unwrap_or(0);
    let team = Team::new(n, blocks.len());
    let mut results: Vec<Option<Of>> = Vec::new();
    let mut blocks: Vec<(usize, RowBlock)> = blocks.into_iter().enumerate().collect();
    let others = blocks.split_off(1);
    let (_, first) = blocks.pop().expect("at least one part");
    let task = Task {
        team: &team,
        kind,
        preconditioning,
        rows_most,
        start,
        patience,
        stop,
        began,
    };
    let task = &task;
    std::thread::scope(|scope| {
        let threads: Vec<_> = others
            .into_iter()
            .map(|(me, block)| scope.spawn(move || task.work(me, block, None)))
            .collect();
        results.push(Some(task.work(0, first, Some(progress))));
        for thread in threads {
            results.push(thread.join().ok());
        }
    });
    let mut x = vec![0.0; n];
    for of in results.iter().flatten() {
        x[of.rows.clone()].copy_from_slice(&of.x);
    }
    let first = results.swap_remove(0).expect("made on this thread");
    Solved {
        ended: first.ended,
        x,
        preconditioner: first.preconditioner,
        setup_seconds: (first.prepared - began).as_secs_f64(),
        iterate_seconds: first.prepared.elapsed().as_secs_f64(),
    }
}

/// What all threads do.
struct Task<'a> {
    team: &'a Team,
    kind: Kind,
    preconditioning: Preconditioning,
    rows_most: usize,
    start: Option<&'a [f64]>,
    patience: &'a Patience,
    stop: &'a (dyn Fn() -> bool + Sync),
    began: Instant,
}

impl Task<'_> {
    fn work<'p>(
        &self,
        me: usize,
        block: RowBlock,
        progress: Option<&'p mut (dyn FnMut(Progress) + 'p)>,
    ) -> Of {
        let mut x = match self.start {
            Some(start) => start[block.rows.clone()].to_vec(),
            None => vec![0.0; block.rows.len()],
        };
        let foreign = if self.team.members > 1 {
            ranges_of(&block.foreign_columns(), &block.rows)
        } else {
            Vec::new()
        };
        let mut member = Member {
            team: self.team,
            me,
            rows: block.rows.clone(),
            foreign,
            vector: 0,
            sum: 0,
            progress,
            stop: self.stop,
            began: self.began,
        };
        let preconditioner = Preconditioner::new(&block, self.preconditioning);
        let mut part = Part::new(&block, &preconditioner, self.rows_most);
        member.wait(); // all are prepared
        let prepared = Instant::now();
        let Ok(ended) = iterate(self.kind, &mut part, &mut x, self.patience, &mut member);
        Of {
            rows: block.rows.clone(),
            x,
            ended,
            preconditioner: preconditioner.name(),
            prepared,
        }
    }
}

/// Result of one part.
struct Of {
    rows: Range<usize>,
    x: Vec<f64>,
    ended: Ended,
    preconditioner: &'static str,
    prepared: Instant,
}

/// Whether `threads` threads pay for a system of `stored` entries: below, barriers cost as much as they save.
pub(crate) fn threads_for(matrix: &Matrix, cores: usize) -> usize {
    /// Entries a thread multiplies in some tens of microseconds.
    const ENTRIES_EACH: usize = 60_000;
    (matrix.stored() / ENTRIES_EACH)
        .clamp(1, cores.max(1))
        .min(matrix.n().max(1))
}

/// What the threads share.
#[derive(Debug)]
struct Team {
    members: usize,
    vectors: [Box<[AtomicU64]>; 2],
    sums: [Vec<Slot>; 2],
    arrived: AtomicUsize,
    round: AtomicUsize,
    stop: AtomicBool,
}

/// The numbers of one member, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Slot([AtomicU64; SUMS_MOST]);

impl Team {
    fn new(n: usize, members: usize) -> Self {
        let length = if members > 1 { n } else { 0 };
        let vector = || (0..length).map(|_| AtomicU64::new(0)).collect();
        let slot = || Slot(std::array::from_fn(|_| AtomicU64::new(0)));
        let slots = || (0..members).map(|_| slot()).collect();
        Self {
            members,
            vectors: [vector(), vector()],
            sums: [slots(), slots()],
            arrived: AtomicUsize::new(0),
            round: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        }
    }
}

/// One thread of a team.
struct Member<'a, 'p> {
    team: &'a Team,
    me: usize,
    rows: Range<usize>,
    /// Elements of other members that this one reads.
    foreign: Vec<Range<usize>>,
    vector: usize,
    sum: usize,
    progress: Option<&'p mut (dyn FnMut(Progress) + 'p)>,
    stop: &'a (dyn Fn() -> bool + Sync),
    began: Instant,
}

impl Member<'_, '_> {
    /// Waits for all members.
    fn wait(&self) {
        let team = self.team;
        if team.members == 1 {
            return;
        }
        let round = team.round.load(Acquire);
        if team.arrived.fetch_add(1, AcqRel) + 1 == team.members {
            team.arrived.store(0, Relaxed);
            team.round.store(round.wrapping_add(1), Release);
            return;
        }
        let mut looks = 0;
        while team.round.load(Acquire) == round {
            looks += 1;
            if looks < LOOKS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

/// Ascending `columns` as ranges; none reaches into `own`.
fn ranges_of(columns: &[u32], own: &Range<usize>) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for &column in columns {
        let at = column as usize;
        match ranges.last_mut() {
            Some(last)
                if at - last.end <= GAP as usize && !(last.end <= own.start && own.start < at) =>
            {
                last.end = at + 1;
            }
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}

impl Space for Member<'_, '_> {
    type Error = std::convert::Infallible;

    fn sum(&mut self, values: &mut [f64]) -> Result<(), Self::Error> {
        if self.team.members == 1 {
            return Ok(());
        }
        let slots = &self.team.sums[self.sum];
        self.sum ^= 1;
        for (slot, value) in slots[self.me].0.iter().zip(values.iter()) {
            slot.store(value.to_bits(), Relaxed);
        }
        self.wait();
        for (k, value) in values.iter_mut().enumerate() {
            // In the same order everywhere, so that all get the same bits.
            let terms = slots
                .iter()
                .map(|slot| f64::from_bits(slot.0[k].load(Relaxed)));
            *value = terms.sum();
        }
        Ok(())
    }

    fn exchange(&mut self, vector: &mut [f64]) -> Result<(), Self::Error> {
        if self.team.members == 1 {
            return Ok(());
        }
        let shared = &self.team.vectors[self.vector];
        self.vector ^= 1;
        let own = self.rows.clone();
        for (shared, value) in shared[own.clone()].iter().zip(&vector[own]) {
            shared.store(value.to_bits(), Relaxed);
        }
        self.wait();
        for range in &self.foreign {
            let values = vector[range.clone()].iter_mut();
            for (value, shared) in values.zip(&shared[range.clone()]) {
                *value = f64::from_bits(shared.load(Relaxed));
            }
        }
        Ok(())
    }

    fn iterated(&mut self, now: Iterated<'_>) -> Result<bool, Self::Error> {
        if let Some(progress) = &mut self.progress {
            progress(Progress {
                distributed: 1.0,
                laps_min: now.iterations,
                laps_max: now.iterations,
                residual_estimate: now.residual,
                elapsed: self.began.elapsed(),
            });
            if (self.stop)() {
                self.team.stop.store(true, Relaxed);
            }
        }
        Ok(self.team.stop.load(Relaxed))
    }
}
