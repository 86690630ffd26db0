//! Judge and worker of relaxation without an endpoint and a clock, for the simulator. Not a part of this crate's interface.
//!
//! The decisions and the numbers are those of production (`judge`, `worker`, `field`, the board). The caller carries messages and frames, and lets time
//! pass: as much as the work that a step reports would take. `machines` is such a caller, on the simulator's switch (feature `simulated`).

#[cfg(feature = "simulated")]
pub mod machines;

use std::convert::Infallible;

use tsumuji_board::Carrier;
use tsumuji_wire::{Datagram, NodeId};

use super::config::SolveConfig;
use super::feed::Feed;
use super::field::Outlet;
use super::message::{LapReport, Order, REPORT_CHANNEL, WorkerStats};
use super::ranges::in_proportion;
use super::step::{Step, To};
use super::{judge, worker};
use crate::local::{Limits, Sweeper};
use crate::report::Reason;
use crate::system::{Generated, RowValues, Source};

/// A message that must arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The receiver: 0 is the judge, workers count from 1.
    pub to: usize,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// A best-effort frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The receivers.
    pub to: Vec<NodeId>,
    /// Its channel.
    pub channel_id: u16,
    /// Its epoch.
    pub epoch: u32,
    /// Its lap.
    pub lap: u32,
    /// Its key.
    pub key: u32,
    /// Its values.
    pub payload: Vec<u8>,
}

/// The judge of a run of a generated system.
#[derive(Debug)]
pub struct Judge {
    judge: judge::Judge,
    source: Source,
}

/// The result.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Why it ended.
    pub reason: Reason,
    /// Exact relative residual.
    pub residual: f64,
    /// Laps of each worker.
    pub laps: Vec<u64>,
    /// Exact residuals computed.
    pub verifications: u64,
}

impl Judge {
    /// Begins a run. `None`: the tolerance or the laps are out of range, or there are more workers than rows.
    pub fn new(made: Generated, config: &SolveConfig, workers: usize) -> Option<Self> {
        let limits = Limits::new(config.tol, config.max_laps).ok()?;
        let n = made.what.n();
        let fits = (1..=n).contains(&workers);
        let ranges = fits.then(|| in_proportion(n, &vec![1.0; workers]))?;
        Some(Self {
            judge: judge::Judge::new(limits, config, (ranges, judge::Origin::default()), None),
            source: Source::Generated(made),
        })
    }

    /// What is to be sent now.
    pub fn outgoing(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        let mut put = |to: usize, bytes: Vec<u8>| messages.push(Message { to: to + 1, bytes });
        while let Some((to, mut order)) = self.judge.out().pop_front() {
            let mut rest = None;
            if let Order::Setup(setup) = &mut order {
                let x = self.judge.known_x();
                rest = Some(Feed::new(&self.source, setup, x, usize::MAX));
            }
            put(to, order.encode());
            while let Some((bytes, _)) = rest.as_mut().and_then(Feed::next) {
                put(to, bytes);
            }
        }
        messages
    }

    /// Takes a worker's message. The error says what is wrong with it.
    pub fn take(&mut self, from: usize, bytes: &[u8]) -> Result<(), String> {
        let taken = self.judge.answer(from.wrapping_sub(1), bytes);
        taken.map_err(|fault| format!("{fault:?}"))
    }

    /// Takes a worker's frame.
    pub fn frame(&mut self, from: usize, update: &Update) {
        if update.channel_id == REPORT_CHANNEL
            && let Some(report) = LapReport::parse(update.epoch, update.lap, &update.payload)
        {
            self.judge.report(from.wrapping_sub(1), report);
        }
    }

    /// Whether workers iterate now.
    pub fn is_iterating(&self) -> bool {
        self.judge.stage() == judge::Stage::Iterating
    }

    /// The result, once there is one.
    pub fn result(self) -> Result<Summary, Box<Self>> {
        if self.judge.stage() != judge::Stage::Done {
            return Err(Box::new(self));
        }
        let ended = self.judge.into_ended().expect("done");
        Ok(Summary {
            reason: ended.reason,
            residual: ended.residual,
            laps: ended.stats.iter().map(|worker| worker.laps).collect(),
            verifications: ended.verifications,
        })
    }
}

/// What a worker did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Work {
    /// It read so many entries of A.
    Read(f64),
    /// Nothing, until something arrives.
    Waits,
    /// It has left.
    Leaves,
}

/// What a worker's clock shows to its automatic settings.
#[derive(Debug, Clone, Copy, Default)]
pub struct Costs {
    /// A frame, sent.
    pub frame_ns: u64,
    /// Relaxing as many rows as in the last step.
    pub compute_ns: u64,
}

/// A worker.
#[derive(Debug)]
pub struct Worker {
    worker: worker::Worker,
    /// Stored entries of its rows.
    entries: f64,
}

/// Catches what a step sends.
struct Catch<'a> {
    updates: &'a mut Vec<Update>,
    now_ns: u64,
    costs: Costs,
    /// Whether the clock was asked: between the first and the second question rows are relaxed.
    asked: u32,
}

impl Carrier for Catch<'_> {
    type Error = Infallible;

    fn update(&mut self, readers: &[NodeId], update: Datagram<'_>) -> Result<usize, Infallible> {
        self.now_ns += self.costs.frame_ns;
        self.updates.push(Update {
            to: readers.to_vec(),
            channel_id: update.channel_id,
            epoch: update.epoch,
            lap: update.lap,
            key: update.key,
            payload: update.payload.to_vec(),
        });
        Ok(0)
    }
}

impl Outlet for Catch<'_> {
    fn report(&mut self, report: &LapReport) -> Result<(), Infallible> {
        let payload = report.payload();
        self.update(&[super::field::JUDGE], report.datagram(&payload))
            .map(drop)
    }

    fn now_ns(&mut self) -> u64 {
        self.asked += 1;
        if self.asked == 2 {
            self.now_ns += self.costs.compute_ns;
        }
        self.now_ns
    }
}

impl Worker {
    /// `me` counts workers from 0. `capacity_bytes`: values that one frame holds.
    pub fn new(me: usize, capacity_bytes: usize) -> Self {
        Self {
            worker: worker::Worker::new(me, capacity_bytes),
            entries: 0.0,
        }
    }

    /// Takes a message. The error says what is wrong with it.
    pub fn take(&mut self, from: usize, bytes: &[u8]) -> Result<(), String> {
        let taken = match from.checked_sub(1) {
            None => self.worker.order(bytes),
            Some(worker) => self.worker.note(worker, bytes),
        };
        taken.map_err(|fault| fault.to_string())
    }

    /// Takes a frame.
    pub fn frame(&mut self, from: NodeId, update: &Update) {
        self.worker.datagram(&Datagram {
            source: from,
            incarnation: 1,
            channel_id: update.channel_id,
            epoch: update.epoch,
            lap: update.lap,
            key: update.key,
            payload: &update.payload,
        });
    }

    /// Tells the time that was spent on receiving since the last step.
    pub fn exchanged(&mut self, spent_ns: u64) {
        self.worker.exchanged(spent_ns);
    }

    /// Does one step at `now_ns`. Frames to send are added to `updates`.
    pub fn step(
        &mut self,
        now_ns: u64,
        costs: Costs,
        updates: &mut Vec<Update>,
    ) -> Result<Work, String> {
        let progress =
            |worker: &worker::Worker| worker.relaxing().map_or(0.0, |field| field.laps());
        let before = progress(&self.worker);
        let mut catch = Catch {
            updates,
            now_ns,
            costs,
            asked: 0,
        };
        let Ok(step) = self.worker.step(&mut catch);
        match step {
            Step::Again(_) | Step::Lap => {
                let done = progress(&self.worker) - before;
                if matches!(step, Step::Lap) {
                    self.worker
                        .exchange_blocks()
                        .map_err(|fault| fault.to_string())?;
                }
                Ok(Work::Read(done * self.entries))
            }
            Step::Build(rows, relaxation) => {
                let block = rows.make().ok_or("rows that are not all of a block")?;
                self.entries = match &block.values {
                    RowValues::Dense(values) => values.len() as f64,
                    RowValues::Sparse(csr) => csr.stored() as f64,
                };
                let built = Sweeper::new(block, relaxation).map_err(|error| error.to_string())?;
                self.worker
                    .built(built)
                    .map_err(|fault| fault.to_string())?;
                Ok(Work::Read(0.0))
            }
            Step::Verify => {
                let exact = self.worker.exact_residual(&mut || ());
                self.worker.verified(exact);
                Ok(Work::Read(self.entries))
            }
            Step::Count => {
                self.worker.finish(WorkerStats::default());
                Ok(Work::Read(0.0))
            }
            Step::Rest | Step::Wait => Ok(Work::Waits),
            Step::Leave => Ok(Work::Leaves),
            Step::Iterate => Err("only relaxation is simulated".to_owned()),
        }
    }

    /// What is to be sent reliably now.
    pub fn outgoing(&mut self) -> Vec<Message> {
        let waiting = self.worker.out().drain(..);
        let message = |out: super::step::Out| Message {
            to: match out.to {
                To::Judge => 0,
                To::Worker(worker) => worker + 1,
            },
            bytes: out.bytes,
        };
        waiting.map(message).collect()
    }
}
