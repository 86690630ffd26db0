//! Krylov methods by threads of one process, each with a strip of the rows: of a whole system, or of a worker's rows.
//!
//! What threads exchange lies twice: while a slower thread still reads the one copy, a faster one already writes the other, and it cannot get to the
//! first again without passing a barrier that the slower one enters later. So each exchange costs one barrier. Where others have rows, too, the first
//! thread speaks with them through a [`Space`] of its own, between two barriers.
//!
//! Invariants: an element of the shared vector is written by its owner only, those of others by the first thread. Elements are single words, written
//! before and read after a barrier. Once a thread has failed every barrier fails.

use super::{
    Ended, Iterated, Kind, Part, Patience, Preconditioner, Preconditioning, Space, iterate,
};
use crate::local::{on_threads, ranges_of};
use crate::report::Progress;
use crate::system::{Matrix, RowBlock};
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// Most numbers in one sum: the products of a GMRES iteration.
const SUMS_MOST: usize = 64;
/// Polls of a barrier before the core is yielded: some microseconds, the usual difference between threads that have as much to do.
const POLLS_MOST: u32 = 4_000;
/// Elements that differ between two readings of x, as ranges: gaps up to this many unneeded ones are read along.
const GAP: usize = 16;
/// So often the first thread gathers x for others.
const GATHER_EVERY: Duration = if cfg!(test) {
    Duration::ZERO
} else {
    Duration::from_millis(500)
};

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

/// Solves with a thread for each of `ranges`, which cover the rows of a whole system in order; from x = `start`, or from 0. Of a matched system x is
/// that of the scaled matrix.
pub fn solve(
    block: &RowBlock,
    ranges: Vec<Range<usize>>,
    (kind, preconditioning): (Kind, Preconditioning),
    start: Option<&[f64]>,
    patience: &Patience,
    progress: &mut dyn FnMut(Progress),
    stop: &(dyn Fn() -> bool + Sync),
) -> Solved {
    let began = Instant::now();
    let rows_most = ranges.iter().map(Range::len).max().unwrap_or(0);
    let made = on_threads(ranges, |rows| {
        let preconditioner = Preconditioner::new(block, &rows, preconditioning);
        (rows, preconditioner)
    });
    let strips = Strips {
        block,
        strips: &made,
        rows_most,
        has_all_rows: true,
    };
    let mut x = start.map_or_else(|| vec![0.0; block.columns], <[f64]>::to_vec);
    let prepared = Instant::now();
    let mut reporter = Reporter {
        progress,
        stop,
        began,
    };
    let Ok(ended) = iterate_strips(&strips, kind, &mut x, patience, &mut reporter);
    Solved {
        ended,
        x,
        preconditioner: made[0].1.name(),
        setup_seconds: (prepared - began).as_secs_f64(),
        iterate_seconds: prepared.elapsed().as_secs_f64(),
    }
}

/// Tells progress, where the threads have all rows.
struct Reporter<'a> {
    progress: &'a mut dyn FnMut(Progress),
    stop: &'a (dyn Fn() -> bool + Sync),
    began: Instant,
}

impl Space for Reporter<'_> {
    type Error = std::convert::Infallible;

    fn sum(&mut self, _: &mut [f64]) -> Result<(), Self::Error> {
        Ok(())
    }

    fn exchange(&mut self, _: &mut [f64]) -> Result<(), Self::Error> {
        Ok(())
    }

    fn iterated(&mut self, now: Iterated<'_>) -> Result<bool, Self::Error> {
        (self.progress)(Progress {
            distributed: 1.0,
            laps_min: now.iterations,
            laps_max: now.iterations,
            residual_estimate: now.residual,
            elapsed: self.began.elapsed(),
        });
        Ok((self.stop)())
    }
}

/// Rows that threads share, with what is made for each strip of them.
pub(crate) struct Strips<'a> {
    /// All rows that are here.
    pub(crate) block: &'a RowBlock,
    /// Cover the rows in order.
    pub(crate) strips: &'a [(Range<usize>, Preconditioner)],
    /// Of the largest part anywhere, so that all restart alike.
    pub(crate) rows_most: usize,
    /// Whether no others have rows, nor are told x.
    pub(crate) has_all_rows: bool,
}

/// Iterates with a thread for each strip; others, who may have the remaining rows, are reached through `outside`. `x`: of the rows that are here.
pub(crate) fn iterate_strips<O: Space>(
    Strips {
        block,
        strips,
        rows_most,
        has_all_rows,
    }: &Strips<'_>,
    kind: Kind,
    x: &mut [f64],
    patience: &Patience,
    outside: &mut O,
) -> Result<Ended, O::Error> {
    let (block, rows_most) = (*block, *rows_most);
    if let [(rows, preconditioner)] = strips {
        let mut part = Part::new(block, rows, preconditioner, rows_most);
        return iterate(kind, &mut part, x, patience, outside);
    }
    let team = &Team::new(block, strips.len(), *has_all_rows);
    let mut rest = x;
    std::thread::scope(|scope| {
        let (mut first, mut running) = (None, Vec::new());
        for (me, (rows, preconditioner)) in strips.iter().enumerate() {
            let (own, others) = rest.split_at_mut(rows.len());
            rest = others;
            let mut work = move |outside: Option<&mut O>| {
                let mut member = Member::new(team, me, (block, rows), outside);
                let mut part = Part::new(block, rows, preconditioner, rows_most);
                iterate(kind, &mut part, own, patience, &mut member)
            };
            if me == 0 {
                first = Some(work);
            } else {
                // How it ended the first thread knows, too.
                running.push(scope.spawn(move || drop(work(None))));
            }
        }
        let mut work = first.expect("at least one strip");
        match work(Some(outside)) {
            Ok(ended) => Ok(ended),
            Err(Apart::Outside(error)) => Err(error),
            Err(Apart::Elsewhere) => {
                let mut ended = running.into_iter().map(ScopedJoinHandle::join);
                let panic = ended.find_map(Result::err);
                resume_unwind(panic.expect("only the first thread fails otherwise"))
            }
        }
    })
}

/// Whether `threads` threads pay for a system of `stored` entries: below, barriers cost as much as they save.
pub(crate) fn threads_for(matrix: &Matrix, cores: usize) -> usize {
    /// Entries a thread multiplies in some tens of microseconds.
    const ENTRIES_EACH: usize = 60_000;
    (matrix.stored() / ENTRIES_EACH)
        .clamp(1, cores.max(1))
        .min(matrix.n().max(1))
}

/// What the threads share: two at least.
#[derive(Debug)]
struct Team {
    members: usize,
    /// Whether no others have rows.
    has_all_rows: bool,
    vectors: [Box<[AtomicU64]>; 2],
    sums: [Vec<Slot>; 2],
    /// Sums over all threads here and the others.
    totals: Slot,
    arrived: AtomicUsize,
    round: AtomicUsize,
    stop: AtomicBool,
    failed: AtomicBool,
    /// x of all rows here, gathered while `gathers` is set.
    kept: Box<[AtomicU64]>,
    gathers: AtomicBool,
    first_row: usize,
}

/// The numbers of one member, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Slot([AtomicU64; SUMS_MOST]);

impl Slot {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    fn put(&self, values: &[f64]) {
        for (slot, value) in self.0.iter().zip(values) {
            slot.store(value.to_bits(), Relaxed);
        }
    }

    fn get(&self, place: usize) -> f64 {
        f64::from_bits(self.0[place].load(Relaxed))
    }
}

fn zeros(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

impl Team {
    fn new(block: &RowBlock, members: usize, has_all_rows: bool) -> Self {
        let length = block.columns;
        let kept = if has_all_rows { 0 } else { block.rows.len() };
        let slots = || (0..members).map(|_| Slot::new()).collect();
        Self {
            members,
            has_all_rows,
            vectors: [zeros(length), zeros(length)],
            sums: [slots(), slots()],
            totals: Slot::new(),
            arrived: AtomicUsize::new(0),
            round: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            kept: zeros(kept),
            gathers: AtomicBool::new(false),
            first_row: block.rows.start,
        }
    }
}

/// Why a thread of a team can go on no more.
#[derive(Debug)]
enum Apart<E> {
    /// It could not reach the others.
    Outside(E),
    /// Another thread failed.
    Elsewhere,
}

/// One thread of a team. The first has `outside`.
struct Member<'a, O> {
    team: &'a Team,
    me: usize,
    rows: Range<usize>,
    /// Elements that this thread reads of other threads, and of the others outside.
    foreign: Vec<Range<usize>>,
    vector: usize,
    sum: usize,
    outside: Option<Outside<'a, O>>,
}

/// What the first thread needs to speak with others.
struct Outside<'a, O> {
    space: &'a mut O,
    /// All rows here, and the elements that they read of others. Empty where there are none.
    rows: Range<usize>,
    foreign: Vec<Range<usize>>,
    whole: Vec<f64>,
    gathered: Instant,
    /// Iterations since gathering began.
    gathering: Option<u32>,
}

impl<'a, O> Member<'a, O> {
    fn new(
        team: &'a Team,
        me: usize,
        (block, rows): (&RowBlock, &Range<usize>),
        outside: Option<&'a mut O>,
    ) -> Self {
        let others = !team.has_all_rows;
        Self {
            team,
            me,
            rows: rows.clone(),
            foreign: ranges_of(&block.read_outside(rows), GAP, rows),
            vector: 0,
            sum: 0,
            outside: outside.map(|space| Outside {
                space,
                rows: block.rows.clone(),
                foreign: match others {
                    true => ranges_of(&block.foreign_columns(), GAP, &block.rows),
                    false => Vec::new(),
                },
                whole: vec![0.0; if others { block.columns } else { 0 }],
                gathered: Instant::now(),
                gathering: None,
            }),
        }
    }

    /// Waits for all members.
    fn wait<E>(&self) -> Result<(), Apart<E>> {
        let team = self.team;
        let round = team.round.load(Acquire);
        if team.arrived.fetch_add(1, AcqRel) + 1 == team.members {
            team.arrived.store(0, Relaxed);
            team.round.store(round.wrapping_add(1), Release);
            return Ok(());
        }
        let mut polls = 0;
        while team.round.load(Acquire) == round {
            if team.failed.load(Relaxed) {
                return Err(Apart::Elsewhere);
            }
            polls += 1;
            if polls < POLLS_MOST {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// What came of speaking with the others.
    fn spoke<T, E>(&self, result: Result<T, E>) -> Result<T, Apart<E>> {
        result.map_err(|error| {
            self.team.failed.store(true, Relaxed);
            Apart::Outside(error)
        })
    }
}

impl<O> Drop for Member<'_, O> {
    /// The others must not wait for a thread that panicked.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.team.failed.store(true, Relaxed);
        }
    }
}

impl<O> Outside<'_, O> {
    /// x of all rows here, from time to time; otherwise nothing.
    fn gather(&mut self, team: &Team) -> Vec<f64> {
        match &mut self.gathering {
            None if self.gathered.elapsed() >= GATHER_EVERY => {
                team.gathers.store(true, Relaxed);
                self.gathering = Some(0);
            }
            None => {}
            // By now every thread has passed a barrier after it put its elements in.
            Some(2) => {
                team.gathers.store(false, Relaxed);
                (self.gathered, self.gathering) = (Instant::now(), None);
                let kept = team.kept.iter();
                return kept.map(|x| f64::from_bits(x.load(Relaxed))).collect();
            }
            Some(iterations) => *iterations += 1,
        }
        Vec::new()
    }
}

impl<O: Space> Space for Member<'_, O> {
    type Error = Apart<O::Error>;

    fn sum(&mut self, values: &mut [f64]) -> Result<(), Self::Error> {
        let team = self.team;
        let slots = &team.sums[self.sum];
        self.sum ^= 1;
        slots[self.me].put(values);
        self.wait()?;
        if team.has_all_rows || self.me == 0 {
            for (place, value) in values.iter_mut().enumerate() {
                // In the same order everywhere, so that all get the same bits.
                *value = slots.iter().map(|slot| slot.get(place)).sum();
            }
        }
        if team.has_all_rows {
            return Ok(());
        }
        if let Some(outside) = &mut self.outside {
            let summed = outside.space.sum(values);
            self.spoke(summed)?;
            team.totals.put(values);
        }
        self.wait()?;
        for (place, value) in values.iter_mut().enumerate() {
            *value = team.totals.get(place);
        }
        Ok(())
    }

    fn exchange(&mut self, vector: &mut [f64]) -> Result<(), Self::Error> {
        let team = self.team;
        let shared = &team.vectors[self.vector];
        self.vector ^= 1;
        let own = self.rows.clone();
        for (shared, value) in shared[own.clone()].iter().zip(&vector[own]) {
            shared.store(value.to_bits(), Relaxed);
        }
        self.wait()?;
        if !team.has_all_rows {
            if let Some(outside) = &mut self.outside {
                take(&mut outside.whole, shared, outside.rows.clone());
                let exchanged = outside.space.exchange(&mut outside.whole);
                for range in &outside.foreign {
                    let values = &outside.whole[range.clone()];
                    for (value, shared) in values.iter().zip(&shared[range.clone()]) {
                        shared.store(value.to_bits(), Relaxed);
                    }
                }
                self.spoke(exchanged)?;
            }
            self.wait()?;
        }
        for range in &self.foreign {
            take(vector, shared, range.clone());
        }
        Ok(())
    }

    fn iterated(&mut self, now: Iterated<'_>) -> Result<bool, Self::Error> {
        let team = self.team;
        if team.gathers.load(Relaxed) {
            let own = self.rows.start - team.first_row..self.rows.end - team.first_row;
            for (kept, x) in team.kept[own].iter().zip(now.x) {
                kept.store(x.to_bits(), Relaxed);
            }
        }
        if let Some(outside) = &mut self.outside {
            let gathered = match team.has_all_rows {
                true => Vec::new(),
                false => outside.gather(team),
            };
            let x = &gathered;
            let stops = outside.space.iterated(Iterated { x, ..now });
            if self.spoke(stops)? {
                team.stop.store(true, Relaxed);
            }
        }
        Ok(team.stop.load(Relaxed))
    }
}

/// Elements `range` of the shared vector.
fn take(vector: &mut [f64], shared: &[AtomicU64], range: Range<usize>) {
    let values = vector[range.clone()].iter_mut();
    for (value, shared) in values.zip(&shared[range]) {
        *value = f64::from_bits(shared.load(Relaxed));
    }
}
