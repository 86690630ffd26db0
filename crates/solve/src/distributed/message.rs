//! Reliable messages between judge and workers, and the lap report, which may be lost.
//!
//! Postcard writes a message's kind and fields; rows and parts of x follow raw. Both ends are the same program, but the bytes are treated as
//! untrusted: a message that does not parse is an error of the run, never a panic.

use super::codec;
use super::config::SolveConfig;
use super::watch::{Cause, Watch};
use super::worker::PIECE_VALUES;
use crate::system::Solution;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use tsumuji_board::{Elements, Reads};
use tsumuji_wire::Datagram;

/// Channel of the board's updates; packed ones use the next.
pub(super) const BOARD_CHANNEL: u16 = 1;
/// Channel of lap reports, sent to the judge alone.
pub(super) const REPORT_CHANNEL: u16 = 3;

/// Whether one epoch or division comes before another. They begin anywhere, and go round.
pub(super) fn is_older(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) < 0
}

/// From the judge to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Order {
    /// The run's configuration and a division of the rows: the first order, and again whenever workers are lost, join or are given other rows.
    Setup(Box<Setup>),
    /// The next of the rows that the setup announced. They follow this head ([`Order::ROWS`]), and are put and taken without this type.
    Rows,
    /// The last known x of such rows.
    Values {
        /// The first row.
        start: usize,
        #[serde(skip)]
        values: Vec<f64>,
    },
    /// Iterate in this epoch until `watch` says otherwise (sync) or `Pause` comes (async).
    Begin {
        /// Greater than any before.
        epoch: u32,
        /// ‖b‖₂².
        rhs_sq: f64,
        /// What ends the epoch.
        watch: Watch,
        /// The x of the last pause is the best so far: keep it.
        keeps: bool,
        /// Combination of former epochs to begin with; see `local::accelerate`.
        factors: Vec<f64>,
    },
    /// Stop iterating, send the own block to all others, answer `Frozen`. In synchronous runs: tell all others with the next block that the run is to
    /// stop; all do after the same lap.
    Pause {
        /// The epoch that ends.
        epoch: u32,
    },
    /// All workers hold the same x: answer `Residual`.
    Verify {
        /// The epoch that has ended.
        epoch: u32,
        /// Whether `magnitude_sq` is wanted: another pass over A.
        magnitude: bool,
    },
    /// Answer `Solution` and `Final`.
    Finish {
        /// The epoch that has ended.
        epoch: u32,
        /// With the x that was kept, which is better than the last.
        is_kept: bool,
    },
    /// Of a judge that takes the place of another: answer `Standing`.
    AskState,
    /// The judge has received everything: leave.
    Leave,
    /// The run has failed: leave.
    Abort {
        /// For the worker's own log.
        why: String,
    },
}

/// A division of the rows, as one worker is told of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Setup {
    pub(super) config: SolveConfig,
    /// Rising with each division.
    pub(super) division: u32,
    /// The first of a run: what a worker has of another one is void.
    pub(super) anew: bool,
    /// What belongs to older epochs is void.
    pub(super) epoch: u32,
    /// Rows of each worker; empty for one that takes no part.
    pub(super) ranges: Vec<Range<usize>>,
    /// Rows of this worker that it does not have yet, in order.
    pub(super) fresh: Vec<Range<usize>>,
    /// Where they come from.
    pub(super) rows: RowSource,
    /// Elements of x that follow, for rows of `fresh`.
    pub(super) values: usize,
    /// Workers begin by exchanging their blocks: x is not 0.
    pub(super) exchanges: bool,
    /// Tells the system from others (`succession::fingerprint`).
    pub(super) system: u64,
    /// Elements in one frame with which the automatic setting begins, if not with the board's own.
    pub(super) first_elements: Option<usize>,
}

/// Source of a worker's rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum RowSource {
    /// Sent as `Order::Rows`, one range of `fresh` after the other.
    Messages {
        /// For each range, what its numbers take in messages.
        bytes: Vec<u64>,
    },
    /// Made by the worker.
    Generate {
        /// Specification of the system.
        what: String,
        /// Of its random numbers.
        seed: u64,
        /// To which b belongs.
        solution: Solution,
    },
}

impl Setup {
    /// Rows of worker `worker`, counted from 0; empty for one that takes no part.
    pub(super) fn rows_of(&self, worker: usize) -> Range<usize> {
        self.ranges.get(worker).cloned().unwrap_or(0..0)
    }

    /// Workers, whether or not they take part.
    pub(super) fn workers(&self) -> usize {
        self.ranges.len()
    }

    /// Workers that have rows.
    pub(super) fn team(&self) -> impl Iterator<Item = usize> {
        let has_rows =
            |(worker, rows): (usize, &Range<usize>)| (!rows.is_empty()).then_some(worker);
        self.ranges.iter().enumerate().filter_map(has_rows)
    }

    pub(super) fn n(&self) -> usize {
        self.ranges.iter().map(|rows| rows.end).max().unwrap_or(0)
    }

    /// Whether its fields keep their invariants; the sender is not trusted.
    fn is_sound(&self) -> bool {
        let mut ranges: Vec<&Range<usize>> =
            self.ranges.iter().filter(|rows| !rows.is_empty()).collect();
        ranges.sort_by_key(|rows| rows.start);
        let covers = ranges.first().is_some_and(|rows| rows.start == 0)
            && ranges.windows(2).all(|pair| pair[0].end == pair[1].start);
        let announced = match &self.rows {
            RowSource::Messages { bytes } => bytes.len(),
            RowSource::Generate { .. } => self.fresh.len(),
        };
        covers
            && announced == self.fresh.len()
            && self.fresh.iter().all(|rows| !rows.is_empty())
            && self.fresh.is_sorted_by(|a, b| a.end <= b.start)
            && self.config.elements != Elements::Fixed(0)
            && (1..=SolveConfig::THREADS_MOST).contains(&self.config.threads)
    }
}

/// From a worker to the judge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The rows have arrived and are ready to be relaxed.
    Ready {
        /// Of the setup.
        division: u32,
        /// Σ b² over the own rows.
        rhs_sq: f64,
        /// Notes for the user.
        notes: Vec<String>,
    },
    /// This worker cannot go on.
    Failed {
        /// One line.
        why: String,
    },
    /// This worker lost contact with another one.
    PeerLost {
        /// Counted from 0.
        worker: usize,
    },
    /// What this worker holds.
    Standing(Standing),
    /// This worker has stopped iterating.
    Frozen(Frozen),
    /// Exact residual of the own rows.
    Residual {
        /// The epoch that has ended.
        epoch: u32,
        /// Σ (b − A x)².
        residual_sq: f64,
        /// Σ (|b| + |A| |x|)², or 0 if it was not wanted.
        magnitude_sq: f64,
        /// Products for `local::accelerate::combine`, over the own rows.
        dots: Vec<f64>,
    },
    /// Part of the own block of x, in case this worker is lost.
    Snapshot {
        /// Of the present setup.
        division: u32,
        /// First row of the part.
        start: usize,
        #[serde(skip)]
        values: Vec<f64>,
    },
    /// Part of the own block of x, which is the result.
    Solution {
        /// The epoch that has ended.
        epoch: u32,
        /// First row of the part.
        start: usize,
        /// x from there on.
        #[serde(skip)]
        values: Vec<f64>,
    },
    /// The last answer: this worker's counters.
    Final {
        /// The epoch that has ended.
        epoch: u32,
        stats: WorkerStats,
    },
}

/// What a worker holds, as it tells a new judge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Standing {
    /// Of its last setup; 0: it had none.
    pub(super) division: u32,
    pub(super) epoch: u32,
    /// Rows of the whole system.
    pub(super) n: usize,
    /// Rows that it has in full, with their x.
    pub(super) rows: Range<usize>,
    /// Of its last setup.
    pub(super) system: u64,
    /// Laps done.
    pub(super) laps: f64,
}

/// State of a worker that has stopped iterating.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Frozen {
    pub(super) epoch: u32,
    /// Lap stamp of what is read of each worker's block; 0 where it is of different laps, `None` where nothing is read.
    pub(super) held: Vec<Option<u32>>,
    /// Laps done since the beginning, to the nearest whole one.
    pub(super) laps: u64,
    /// Why it stopped by itself (sync).
    pub(super) cause: Option<Cause>,
}

/// Counters of a worker over the whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WorkerStats {
    /// Laps, rounded to the nearest whole number.
    pub laps: u64,
    /// Frames given to the link, of any kind.
    pub frames_sent: u64,
    /// Frames known to be lost on the way here: dropped by impairment, overwritten before they were read, dropped by the
    /// kernel; and frames for which there was no transmit slot.
    pub frames_lost: u64,
    /// Bytes given to the link.
    pub bytes_sent: u64,
    /// Largest resident memory.
    pub peak_rss_bytes: u64,
    /// Elements per frame at the end.
    pub elements: u64,
    /// Frames given to the link while iterating: updates and reports; of a link that leaves the host those that left it.
    pub wire_frames: u64,
    /// Their bytes, without the link's own headers.
    pub wire_bytes: u64,
    /// Laps of these that a thread beside the polling one computed.
    pub laps_beside: u64,
}

/// From a worker to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Note {
    /// What the sender reads of the receiver's elements: all, or a list in parts.
    Reads {
        /// Of the sender's setup.
        division: u32,
        /// Whether only the elements that are listed.
        packed: bool,
        /// Whether this is the last part.
        last: bool,
        #[serde(skip)]
        elements: Vec<u32>,
    },
    /// Part of the sender's block.
    Piece(Piece),
}

/// Part of a worker's block of x at the end of an epoch (async) or of a lap (sync), as far as the receiver reads it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Piece {
    pub(super) epoch: u32,
    /// Stamp of the whole block.
    pub(super) lap: u32,
    /// Estimate of the sender for its rows, squared (sync).
    pub(super) estimate: Estimate,
    /// The sender was told to stop (sync).
    pub(super) stops: bool,
    /// The first element; where the receiver's list is packed, its place in that.
    pub(super) start: usize,
    #[serde(skip)]
    pub(super) values: Vec<f64>,
}

/// Σ r² over a worker's rows, with each row's r from just before it was last relaxed.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Estimate {
    /// As measured.
    pub(super) measured_sq: f64,
    /// Expected one lap later, if it goes on shrinking as it did.
    pub(super) expected_sq: f64,
}

impl Estimate {
    /// Of a residual that is not known yet, or beyond all bounds.
    pub(super) const UNBOUNDED: Self = Self {
        measured_sq: f64::INFINITY,
        expected_sq: f64::INFINITY,
    };
}

/// Progress of a worker. Sent as a datagram to the judge: it may be lost, and the next one is newer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LapReport {
    pub(super) epoch: u32,
    /// Rising with each report of a worker.
    pub(super) number: u32,
    /// Laps done since the beginning, with the fraction of the current one.
    pub(super) laps: f64,
    /// Seconds since the beginning in which it computed; `None`: it never waits for others.
    pub(super) busy: Option<f64>,
    pub(super) estimate: Estimate,
}

impl LapReport {
    /// Tells only that its sender lives: of no epoch.
    pub(super) const HEARTBEAT: Self = Self {
        epoch: 0,
        number: 0,
        laps: 0.0,
        busy: None,
        estimate: Estimate::UNBOUNDED,
    };

    /// Payload of the datagram; epoch and number travel in its header.
    pub(super) fn payload(&self) -> Vec<u8> {
        codec::to_bytes(&(self.laps, self.busy, self.estimate), &[])
    }

    /// As a datagram to the judge, with [`payload`](Self::payload).
    pub(super) fn datagram<'a>(&self, payload: &'a [u8]) -> Datagram<'a> {
        Datagram {
            channel_id: REPORT_CHANNEL,
            epoch: self.epoch,
            lap: self.number,
            payload,
            ..Datagram::EMPTY
        }
    }

    /// `None`: not a report.
    pub(super) fn parse(epoch: u32, number: u32, payload: &[u8]) -> Option<Self> {
        let (laps, busy, estimate): (f64, Option<f64>, _) = codec::from_bytes(payload)?;
        let report = Self {
            epoch,
            number,
            laps,
            busy,
            estimate,
        };
        let is_count = |number: f64| number.is_finite() && number >= 0.0;
        (is_count(laps) && busy.is_none_or(is_count)).then_some(report)
    }
}

impl Order {
    /// The head of `Rows`.
    pub(super) const ROWS: u8 = 1;

    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Order::Values { values, .. } => codec::to_bytes(self, values),
            _ => codec::to_bytes(self, &[]),
        }
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (mut order, rest) = codec::head_from_bytes(bytes)?;
        let is_sound = match &mut order {
            Order::Values { values, .. } => {
                *values = codec::f64s(rest)?;
                true
            }
            Order::Setup(setup) => setup.is_sound() && rest.is_empty(),
            _ => rest.is_empty(),
        };
        is_sound.then_some(order)
    }
}

impl Answer {
    /// x of the rows from `start` on, in parts.
    pub(super) fn snapshot(division: u32, start: usize, x: &[f64]) -> impl Iterator<Item = Self> {
        let parts = x.chunks(PIECE_VALUES).enumerate();
        parts.map(move |(part, values)| Self::Snapshot {
            division,
            start: start + part * PIECE_VALUES,
            values: values.to_vec(),
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Answer::Solution { values, .. } | Answer::Snapshot { values, .. } => {
                codec::to_bytes(self, values)
            }
            _ => codec::to_bytes(self, &[]),
        }
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (mut answer, rest) = codec::head_from_bytes(bytes)?;
        match &mut answer {
            Answer::Solution { values, .. } | Answer::Snapshot { values, .. } => {
                *values = codec::f64s(rest)?;
            }
            _ if !rest.is_empty() => return None,
            _ => {}
        }
        Some(answer)
    }
}

/// Elements in one part of a list.
const LIST_PART: usize = 64 << 10;

impl Note {
    /// What is read, as messages.
    pub(super) fn of_reads(division: u32, reads: &Reads) -> Vec<Vec<u8>> {
        let (packed, list) = match reads {
            Reads::Whole => (false, &[][..]),
            Reads::Packed(list) => (true, &list[..]),
        };
        // A list of nothing has a part, too.
        let count = list.len().div_ceil(LIST_PART).max(1);
        let part = |part: usize| {
            let elements = list.iter().skip(part * LIST_PART).take(LIST_PART);
            let note = Note::Reads {
                division,
                packed,
                last: part + 1 == count,
                elements: elements.copied().collect(),
            };
            note.encode()
        };
        (0..count).map(part).collect()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Note::Reads { elements, .. } => {
                let mut bytes = codec::head_to_bytes(self, 4 * elements.len());
                codec::put_u32s(&mut bytes, elements);
                bytes
            }
            Note::Piece(piece) => codec::to_bytes(self, &piece.values),
        }
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (mut note, rest) = codec::head_from_bytes(bytes)?;
        match &mut note {
            Note::Reads { elements, .. } => *elements = codec::u32s(rest)?,
            Note::Piece(piece) => piece.values = codec::f64s(rest)?,
        }
        Some(note)
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
