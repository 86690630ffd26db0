//! What judge and workers tell each other reliably, and the lap report, which may be lost.
//!
//! A message is one byte that says which, then its fields, little-endian. Both ends are the same program, but the bytes
//! are parsed as if they were not: what does not parse is an error of the run, never a panic.

use super::codec::{Reader, Writer};
use super::config::{Mode, SolveConfig};
use super::watch::{Cause, Watch};
use crate::local::Inner;
use std::ops::Range;
use tsumuji_board::Elements;

/// Channel of the board's updates.
pub(super) const BOARD_CHANNEL: u16 = 1;
/// Port of lap reports, sent to the judge alone.
pub(super) const REPORT_CHANNEL: u16 = 2;

/// From the judge to a worker.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Order {
    /// The first: what the run is and who owns which rows.
    Setup(Box<Setup>),
    /// The next bytes of the worker's row block.
    Rows(Vec<u8>),
    /// Iterate in this epoch until `watch` says otherwise (sync) or `Pause` comes (async).
    Begin {
        /// Greater than any before.
        epoch: u32,
        /// ‖b‖₂².
        rhs_sq: f64,
        /// What ends the epoch.
        watch: Watch,
        /// Combination of former epochs to begin from; see `accelerate`.
        factors: Vec<f64>,
    },
    /// Freeze, send the own block to all others, answer `Frozen`.
    Pause {
        /// Which epoch ends.
        epoch: u32,
    },
    /// Everyone holds the same x: answer `Residual`.
    Verify {
        /// Which epoch has ended.
        epoch: u32,
        /// Whether `magnitude_sq` is wanted: another pass over A.
        magnitude: bool,
    },
    /// Answer `Solution` and `Final`.
    Finish,
    /// Everything has been received: leave.
    Leave,
    /// The run has failed: leave.
    Abort {
        /// For the worker's own log.
        why: String,
    },
}

/// What a worker is told first.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Setup {
    pub(super) config: SolveConfig,
    /// First row of each worker, then the number of rows: strictly rising from 0.
    pub(super) bounds: Vec<usize>,
    pub(super) rows: RowSource,
}

/// Where a worker's rows come from.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RowSource {
    /// As `Order::Rows`, together this many bytes.
    Stream {
        /// Of the whole stream.
        bytes: u64,
    },
    /// Made by the worker, under the seed of the configuration.
    Generate {
        /// Specification.
        what: String,
    },
}

impl Setup {
    /// Rows of worker `worker`, counted from 0.
    pub(super) fn rows_of(&self, worker: usize) -> Range<usize> {
        self.bounds[worker]..self.bounds[worker + 1]
    }

    pub(super) fn workers(&self) -> usize {
        self.bounds.len() - 1
    }

    pub(super) fn n(&self) -> usize {
        self.bounds[self.bounds.len() - 1]
    }
}

/// From a worker to the judge.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Answer {
    /// The rows are here and ready to be relaxed.
    Ready {
        /// Σ b² over the own rows.
        rhs_sq: f64,
        /// What the user should know.
        notes: Vec<String>,
    },
    /// This worker cannot go on.
    Failed {
        /// One line.
        why: String,
    },
    /// Another worker fell silent.
    PeerLost {
        /// Counted from 0.
        worker: usize,
    },
    /// Iteration stands still here.
    Frozen(Frozen),
    /// Exact residual of the own rows.
    Residual {
        /// Epoch that has ended.
        epoch: u32,
        /// Σ (b − A x)².
        residual_sq: f64,
        /// Σ (|b| + |A| |x|)², or 0 if it was not wanted.
        magnitude_sq: f64,
        /// Products for `accelerate::combine`, over the own rows.
        dots: Vec<f64>,
    },
    /// Part of the own block of x.
    Solution {
        /// First row of the part.
        start: usize,
        /// x from there on.
        values: Vec<f64>,
    },
    /// The last: what this worker counted.
    Final(WorkerStats),
}

/// State of a worker that stands still.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Frozen {
    pub(super) epoch: u32,
    /// Lap stamp of each worker's block as held here; 0 where the block is not all of one lap.
    pub(super) held: Vec<u32>,
    /// Laps done since the beginning, to the nearest whole one.
    pub(super) laps: u64,
    /// Why it stopped by itself (sync).
    pub(super) cause: Option<Cause>,
}

/// What a worker counted over the whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerStats {
    /// Laps to the nearest whole one.
    pub laps: u64,
    /// Frames handed to the link, of any kind.
    pub frames_sent: u64,
    /// Frames known to be lost on the way here: dropped by impairment, overwritten before they were read, dropped by the
    /// kernel; and frames for which there was no transmit slot.
    pub frames_lost: u64,
    /// Bytes handed to the link.
    pub bytes_sent: u64,
    /// Largest resident memory.
    pub peak_rss_bytes: u64,
    /// Datagrams whose values were taken.
    pub shares_taken: u64,
    /// Elements per frame at the end.
    pub elements: u64,
}

/// From a worker to another: part of its block of x at the end of an epoch (async) or of a lap (sync).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Piece {
    pub(super) epoch: u32,
    /// Stamp of the whole block.
    pub(super) lap: u32,
    /// Estimate of the sender for its rows, squared (sync).
    pub(super) estimate: Estimate,
    pub(super) start: usize,
    pub(super) values: Vec<f64>,
}

/// Σ r² over a worker's rows, each row's r as met when it was last relaxed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Estimate {
    /// As met.
    pub(super) measured_sq: f64,
    /// As expected now, one lap later, if it goes on shrinking as it did.
    pub(super) expected_sq: f64,
}

/// How a worker is getting on. Sent as a datagram to the judge: may be lost, the next one says more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LapReport {
    pub(super) epoch: u32,
    /// Rising with each report of a worker.
    pub(super) number: u32,
    /// Laps done since the beginning, with the fraction of the current one.
    pub(super) laps: f64,
    pub(super) estimate: Estimate,
}

impl LapReport {
    /// Payload of the datagram; epoch and number travel in its header.
    pub(super) fn payload(&self) -> [u8; 24] {
        let mut payload = [0; 24];
        payload[..8].copy_from_slice(&self.laps.to_le_bytes());
        payload[8..16].copy_from_slice(&self.estimate.measured_sq.to_le_bytes());
        payload[16..].copy_from_slice(&self.estimate.expected_sq.to_le_bytes());
        payload
    }

    /// `None`: not a report.
    pub(super) fn parse(epoch: u32, number: u32, payload: &[u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        let report = Self {
            epoch,
            number,
            laps: reader.f64()?,
            estimate: estimate(&mut reader)?,
        };
        reader.end()?;
        (report.laps.is_finite() && report.laps >= 0.0).then_some(report)
    }
}

fn estimate(reader: &mut Reader<'_>) -> Option<Estimate> {
    Some(Estimate {
        measured_sq: reader.f64()?,
        expected_sq: reader.f64()?,
    })
}

impl Order {
    /// First byte of `Rows`.
    pub(super) const ROWS: u8 = 1;

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        match self {
            Order::Setup(setup) => {
                to.u8(0);
                setup.encode(&mut to);
            }
            Order::Rows(bytes) => {
                to.0.reserve(bytes.len() + 1);
                to.u8(Self::ROWS).0.extend_from_slice(bytes);
            }
            Order::Begin {
                epoch,
                rhs_sq,
                watch,
                factors,
            } => {
                to.u8(2).u32(*epoch).f64(*rhs_sq);
                watch.encode(&mut to);
                to.f64s(factors);
            }
            Order::Pause { epoch } => {
                to.u8(3).u32(*epoch);
            }
            Order::Verify { epoch, magnitude } => {
                to.u8(4).u32(*epoch).u8(u8::from(*magnitude));
            }
            Order::Finish => {
                to.u8(5);
            }
            Order::Leave => {
                to.u8(6);
            }
            Order::Abort { why } => {
                to.u8(7).text(why);
            }
        }
        to.0
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let order = match from.u8()? {
            0 => Order::Setup(Box::new(Setup::parse(&mut from)?)),
            Self::ROWS => Order::Rows(from.rest().to_vec()),
            2 => Order::Begin {
                epoch: from.u32()?,
                rhs_sq: from.f64()?,
                watch: Watch::parse(&mut from)?,
                factors: from.rest_f64s()?,
            },
            3 => Order::Pause { epoch: from.u32()? },
            4 => Order::Verify {
                epoch: from.u32()?,
                magnitude: from.u8()? != 0,
            },
            5 => Order::Finish,
            6 => Order::Leave,
            7 => Order::Abort { why: from.text()? },
            _ => return None,
        };
        from.end()?;
        Some(order)
    }
}

impl Setup {
    fn encode(&self, to: &mut Writer) {
        let config = &self.config;
        to.u8(match config.mode {
            Mode::Async => 0,
            Mode::Sync => 1,
        });
        to.u64(match config.elements {
            Elements::Auto => 0,
            Elements::Fixed(count) => count as u64,
        });
        to.u8(match config.inner {
            Inner::Sweep => 0,
            Inner::Lu => 1,
            Inner::Auto => 2,
        });
        to.f64(config.omega)
            .f64(config.tol)
            .u64(config.max_laps)
            .u64(config.seed);
        to.u32(self.bounds.len() as u32);
        for bound in &self.bounds {
            to.u64(*bound as u64);
        }
        match &self.rows {
            RowSource::Stream { bytes } => {
                to.u8(0).u64(*bytes);
            }
            RowSource::Generate { what } => {
                to.u8(1).text(what);
            }
        }
    }

    fn parse(from: &mut Reader<'_>) -> Option<Self> {
        let mode = match from.u8()? {
            0 => Mode::Async,
            1 => Mode::Sync,
            _ => return None,
        };
        let elements = match from.usize()? {
            0 => Elements::Auto,
            count => Elements::Fixed(count),
        };
        let inner = match from.u8()? {
            0 => Inner::Sweep,
            1 => Inner::Lu,
            2 => Inner::Auto,
            _ => return None,
        };
        let config = SolveConfig {
            mode,
            elements,
            inner,
            omega: from.f64()?,
            tol: from.f64()?,
            max_laps: from.u64()?,
            seed: from.u64()?,
        };
        let bounds = from.many(Reader::usize)?;
        if bounds.len() < 2 || bounds[0] != 0 || !bounds.is_sorted_by(|a, b| a < b) {
            return None;
        }
        let rows = match from.u8()? {
            0 => RowSource::Stream { bytes: from.u64()? },
            1 => RowSource::Generate { what: from.text()? },
            _ => return None,
        };
        Some(Self {
            config,
            bounds,
            rows,
        })
    }
}

impl Answer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        match self {
            Answer::Ready { rhs_sq, notes } => {
                to.u8(0).f64(*rhs_sq).u32(notes.len() as u32);
                for note in notes {
                    to.text(note);
                }
            }
            Answer::Failed { why } => {
                to.u8(1).text(why);
            }
            Answer::PeerLost { worker } => {
                to.u8(2).u64(*worker as u64);
            }
            Answer::Frozen(frozen) => {
                to.u8(3)
                    .u32(frozen.epoch)
                    .u64(frozen.laps)
                    .u8(Cause::code(frozen.cause));
                to.u32(frozen.held.len() as u32);
                for stamp in &frozen.held {
                    to.u32(*stamp);
                }
            }
            Answer::Residual {
                epoch,
                residual_sq,
                magnitude_sq,
                dots,
            } => {
                to.u8(4)
                    .u32(*epoch)
                    .f64(*residual_sq)
                    .f64(*magnitude_sq)
                    .f64s(dots);
            }
            Answer::Solution { start, values } => {
                to.u8(5).u64(*start as u64).f64s(values);
            }
            Answer::Final(stats) => {
                to.u8(6);
                for count in stats.counts() {
                    to.u64(count);
                }
            }
        }
        to.0
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let answer = match from.u8()? {
            0 => Answer::Ready {
                rhs_sq: from.f64()?,
                notes: from.many(Reader::text)?,
            },
            1 => Answer::Failed { why: from.text()? },
            2 => Answer::PeerLost {
                worker: from.usize()?,
            },
            3 => Answer::Frozen(Frozen {
                epoch: from.u32()?,
                laps: from.u64()?,
                cause: Cause::from_code(from.u8()?)?,
                held: from.many(Reader::u32)?,
            }),
            4 => Answer::Residual {
                epoch: from.u32()?,
                residual_sq: from.f64()?,
                magnitude_sq: from.f64()?,
                dots: from.rest_f64s()?,
            },
            5 => Answer::Solution {
                start: from.usize()?,
                values: from.rest_f64s()?,
            },
            6 => {
                let mut counts = [0; 7];
                for count in &mut counts {
                    *count = from.u64()?;
                }
                Answer::Final(WorkerStats::from_counts(counts))
            }
            _ => return None,
        };
        from.end()?;
        Some(answer)
    }
}

impl WorkerStats {
    fn counts(&self) -> [u64; 7] {
        [
            self.laps,
            self.frames_sent,
            self.frames_lost,
            self.bytes_sent,
            self.peak_rss_bytes,
            self.shares_taken,
            self.elements,
        ]
    }

    fn from_counts(counts: [u64; 7]) -> Self {
        let [
            laps,
            frames_sent,
            frames_lost,
            bytes_sent,
            peak_rss_bytes,
            shares_taken,
            elements,
        ] = counts;
        Self {
            laps,
            frames_sent,
            frames_lost,
            bytes_sent,
            peak_rss_bytes,
            shares_taken,
            elements,
        }
    }
}

impl Piece {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Writer(Vec::with_capacity(32 + size_of_val(self.values.as_slice())));
        to.u32(self.epoch).u32(self.lap);
        to.f64(self.estimate.measured_sq)
            .f64(self.estimate.expected_sq);
        to.u64(self.start as u64).f64s(&self.values);
        to.0
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        Some(Self {
            epoch: from.u32()?,
            lap: from.u32()?,
            estimate: estimate(&mut from)?,
            start: from.usize()?,
            values: from.rest_f64s()?,
        })
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
