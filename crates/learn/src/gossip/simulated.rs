//! Judge and worker without an endpoint and a clock, for the simulator and for fuzzing. Not a part of this crate's interface.
//!
//! The decisions are those of production (`judge`, `worker`). The caller carries messages, and lets time pass.

use std::convert::Infallible;

use crate::config::{LearnConfig, Mode};
use crate::problem::Problem;
use crate::report::Outcome;

use super::judge::{self, Stage};
use super::message::{Order, encode};
use super::run::{self, deal, setup};
use super::worker::{self, Step, To};

/// What a node wants to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The receiver: 0 is the judge, workers count from 1.
    pub to: usize,
    /// Its content.
    pub bytes: Vec<u8>,
    /// As a datagram: a newer one with this key replaces it. `None`: it must not be lost.
    pub key: Option<u32>,
    /// It makes good for a loss, and need not be sent where nothing is lost.
    pub is_repeat: bool,
}

/// The judge of a run.
#[derive(Debug)]
pub struct Judge(judge::Judge);

impl Judge {
    /// Begins a run; returns what the workers are to be sent first.
    pub fn new(problem: &Problem, config: &LearnConfig, workers: usize) -> (Self, Vec<Message>) {
        let setup = setup(problem, config, Mode::Gossip, workers, config.seed);
        let judge = run::judge(problem, &setup);
        let shares = problem.ranges(workers).into_iter();
        let shares = shares.map(|rows| vec![rows]).enumerate().collect();
        let mut messages = Vec::new();
        let Ok(()) = deal(problem, &setup, shares, &mut |worker, bytes| {
            messages.push(reliable(worker + 1, bytes.to_vec()));
            Ok::<(), Infallible>(())
        });
        (Self(judge), messages)
    }

    /// Takes a worker's message.
    pub fn take(&mut self, from: usize, bytes: &[u8]) {
        self.0.answer(from.wrapping_sub(1), bytes);
    }

    /// A worker's process has ended.
    pub fn lost(&mut self, node: usize) {
        self.0
            .drop_worker(node.wrapping_sub(1), "it ended".to_owned());
    }

    /// What is to be sent now.
    pub fn outgoing(&mut self) -> Vec<Message> {
        let orders: Vec<(usize, Order)> = self.0.out().drain(..).collect();
        let encoded = orders
            .iter()
            .map(|(worker, order)| (worker + 1, encode(order)));
        encoded.map(|(to, bytes)| reliable(to, bytes)).collect()
    }

    /// Why the run cannot go on, if it cannot.
    pub fn fault(&mut self) -> Option<String> {
        self.0.take_fault().map(|fault| format!("{fault:?}"))
    }

    /// The result, once the workers may leave; without times.
    pub fn result(&self) -> Option<Outcome> {
        (self.0.stage() == Stage::Done).then(|| self.0.outcome())
    }
}

/// What a worker does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// It goes on, after it has computed with so many rows.
    Computes(u64),
    /// It waits for messages.
    Waits,
    /// It waits for statistics of peers; [`Worker::ask`] asks for them again.
    WaitsForPeers,
    /// It leaves.
    Leaves,
}

/// A worker of a run.
#[derive(Debug)]
pub struct Worker {
    worker: worker::Worker,
    sent_bytes: u64,
}

impl Worker {
    /// The worker at a node, which counts from 1.
    pub fn new(node: usize) -> Self {
        Self {
            worker: worker::Worker::new(node.wrapping_sub(1), false),
            sent_bytes: 0,
        }
    }

    /// Takes a message of the judge or of a worker; the error says why it ends.
    pub fn take(&mut self, from: usize, bytes: &[u8]) -> Result<(), String> {
        match from.checked_sub(1) {
            None => self
                .worker
                .order(bytes)
                .map_err(|fault| fault.to_string())?,
            Some(peer) => self.worker.peer(peer, bytes),
        }
        if self.worker.is_finishing() {
            self.worker.finish(self.sent_bytes, 0);
        }
        Ok(())
    }

    /// A worker's process has ended.
    pub fn lost(&mut self, node: usize) {
        self.worker.peer_lost(node.wrapping_sub(1));
    }

    /// Does one piece of work.
    pub fn work(&mut self) -> Work {
        let before = self.worker.rows_done();
        match self.worker.step() {
            Step::Again => Work::Computes(self.worker.rows_done() - before),
            Step::Wait | Step::Reduce => Work::Waits,
            Step::WaitForPeers => Work::WaitsForPeers,
            Step::Leave => Work::Leaves,
        }
    }

    /// Statistics or parameters that were taken from others.
    pub fn exchanges(&self) -> u64 {
        self.worker.exchanges()
    }

    /// Asks peers again.
    pub fn ask(&mut self) {
        self.worker.ask();
    }

    /// What is to be sent now.
    pub fn outgoing(&mut self) -> Vec<Message> {
        let message = |out: worker::Out| match out.to {
            To::Judge => reliable(0, out.bytes),
            To::Worker(worker) => Message {
                to: worker + 1,
                bytes: out.bytes,
                key: Some(out.key),
                is_repeat: out.is_repeat,
            },
        };
        let messages: Vec<Message> = self.worker.out().drain(..).map(message).collect();
        self.sent_bytes += messages
            .iter()
            .map(|sent| sent.bytes.len() as u64)
            .sum::<u64>();
        messages
    }
}

fn reliable(to: usize, bytes: Vec<u8>) -> Message {
    Message {
        to,
        bytes,
        key: None,
        is_repeat: false,
    }
}
