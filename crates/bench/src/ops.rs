//! The operations that are compared, and the result of one measurement of any contender.
//!
//! Used by [`compare`](crate::compare), [`group`](crate::group) and every peer. This module measures nothing.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::exchange::Ends;
use crate::stats::HalfRtt;
use crate::versus::Better;

/// Payload of one measurement by default: bounds the time of large sizes.
const DEFAULT_BYTES: u64 = 256 << 20;
/// Measurements over limited cables per second.
const CABLES_PER_SECOND: u64 = 2;
/// Fewest and most repetitions of an operation.
const PINGPONGS: (u64, u64) = (20, 50_000);
const BURSTS: (u64, u64) = (16, 300_000);
const GROUPS: (u64, u64) = (4, 5_000);

/// An operation between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// One message at a time, each answered, between two.
    Pingpong,
    /// Messages one way between two, as fast as they are taken.
    Burst,
    /// All nodes send to node 0.
    Gather,
    /// Node 0 sends to all nodes, to each a different message.
    Scatter,
    /// Node 0 sends the same message to all nodes.
    Bcast,
    /// The sum of all nodes' numbers, to all nodes.
    Allreduce,
    /// All nodes send to all nodes.
    Alltoall,
}

impl Op {
    /// Its name in commands.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pingpong => "pingpong",
            Self::Burst => "burst",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Bcast => "bcast",
            Self::Allreduce => "allreduce",
            Self::Alltoall => "alltoall",
        }
    }

    /// Whether it is for two nodes only.
    pub fn is_pair(self) -> bool {
        matches!(self, Self::Pingpong | Self::Burst)
    }

    /// Whether times or rates are compared.
    pub fn better(self) -> Better {
        if self == Self::Burst {
            Better::More
        } else {
            Better::Less
        }
    }

    /// The unit of [`Sample::headline`].
    pub fn unit(self) -> &'static str {
        if self == Self::Burst { "MB/s" } else { "us" }
    }

    /// Messages that one repetition delivers: a broadcast one to each of the others, an all-reduce one result to each node.
    pub fn deliveries(self, nodes: usize) -> u64 {
        let nodes = nodes as u64;
        match self {
            Self::Pingpong => 2,
            Self::Burst => 1,
            Self::Gather | Self::Scatter | Self::Bcast => nodes.saturating_sub(1),
            Self::Allreduce => nodes,
            Self::Alltoall => nodes * nodes.saturating_sub(1),
        }
    }

    /// Repetitions over cables of that rate: as many as take half a second, and two at least.
    pub(crate) fn iterations_on_cables(
        self,
        size: usize,
        nodes: usize,
        bits_per_second: u64,
    ) -> u64 {
        // Load of the busiest cable; a ping-pong goes both ways, one after the other.
        let crossings = match self {
            Self::Pingpong => 2,
            Self::Burst | Self::Bcast => 1,
            _ => nodes.saturating_sub(1).max(1) as u64,
        };
        let bytes = (size.max(1) as u64).saturating_mul(crossings);
        let within = bits_per_second / 8 / CABLES_PER_SECOND / bytes;
        within.clamp(2, self.iterations(size, nodes).max(2))
    }

    /// A reasonable number of repetitions.
    pub fn iterations(self, size: usize, nodes: usize) -> u64 {
        let moved = size.max(1) as u64 * self.deliveries(nodes).max(1);
        let (least, most) = match self {
            Self::Pingpong => PINGPONGS,
            Self::Burst => BURSTS,
            _ => GROUPS,
        };
        (DEFAULT_BYTES / moved).clamp(least, most)
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// One measurement to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// The operation.
    pub op: Op,
    /// Bytes of a message, or of each node's block.
    pub size: usize,
    /// Repetitions.
    pub iterations: u64,
    /// Nodes that take part.
    pub nodes: usize,
}

/// Result of one measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Wall-clock time of all repetitions, as node 0 sees it.
    pub seconds: f64,
    /// Processor time of all nodes meanwhile.
    pub cpu_seconds: f64,
    /// Half of the round-trip times, of a ping-pong.
    #[serde(default)]
    pub half_rtt_us: Option<HalfRtt>,
    /// Frames lost at the receiver because there was no room, if that is counted.
    #[serde(default)]
    pub receive_drops: Option<u64>,
    /// Frames sent again, if that is counted.
    #[serde(default)]
    pub retransmitted_frames: Option<u64>,
    /// Repetitions done, where they differ from the job's.
    #[serde(default)]
    pub iterations: Option<u64>,
    /// Of an exchange of ours.
    #[serde(flatten)]
    pub ends: Option<Ends>,
}

impl Sample {
    /// A sample with this time and this processor time of all nodes.
    pub fn new(span: Duration, cpu: Duration) -> Self {
        Self {
            seconds: span.as_secs_f64(),
            cpu_seconds: cpu.as_secs_f64(),
            ..Self::default()
        }
    }

    /// Repetitions.
    pub fn iterations(&self, job: &Job) -> u64 {
        self.iterations.unwrap_or(job.iterations)
    }

    /// Microseconds of one repetition; of a ping-pong the median of half the round trip.
    pub fn micros(&self, job: &Job) -> f64 {
        match (job.op, self.half_rtt_us) {
            (Op::Pingpong, Some(half)) => half.p50,
            _ => self.seconds * 1e6 / self.iterations(job) as f64,
        }
    }

    /// Payload delivered, to all nodes together, a second, over the time of all repetitions. Of a ping-pong: one way, so over the mean of half its
    /// round trips, which slow cables determine even where the median is that of frames that found them free.
    pub fn bytes_per_second(&self, job: &Job) -> f64 {
        let delivered = job.op.deliveries(job.nodes) * self.iterations(job);
        delivered as f64 * job.size as f64 / self.seconds
    }

    /// Payload a second of one receiving node (of a gather: of one sending node), as the papers give it.
    pub fn bytes_per_second_and_node(&self, job: &Job) -> f64 {
        let nodes = match job.op {
            Op::Pingpong | Op::Burst => 1,
            Op::Gather | Op::Scatter | Op::Bcast => job.nodes.saturating_sub(1).max(1),
            Op::Allreduce | Op::Alltoall => job.nodes.max(1),
        };
        self.bytes_per_second(job) / nodes as f64
    }

    /// Messages delivered a second.
    pub fn messages_per_second(&self, job: &Job) -> f64 {
        job.op.deliveries(job.nodes) as f64 * self.iterations(job) as f64 / self.seconds
    }

    /// Processor time of all nodes for one message delivered.
    pub fn cpu_us_per_message(&self, job: &Job) -> f64 {
        let messages = job.op.deliveries(job.nodes) * self.iterations(job);
        self.cpu_seconds * 1e6 / messages as f64
    }

    /// Service demand: processor time of all nodes for 1000 bytes of payload; none for empty messages.
    pub fn cpu_us_per_kb(&self, job: &Job) -> Option<f64> {
        (job.size > 0).then(|| self.cpu_us_per_message(job) / (job.size as f64 / 1e3))
    }

    /// The number by which rounds and contenders are compared: MB/s of a burst, microseconds of everything else.
    pub fn headline(&self, job: &Job) -> f64 {
        match job.op.better() {
            Better::More => self.bytes_per_second(job) / 1e6,
            Better::Less => self.micros(job),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(op: Op, nodes: usize) -> Job {
        Job {
            op,
            size: 1000,
            iterations: 10,
            nodes,
        }
    }

    fn sample() -> Sample {
        Sample::new(Duration::from_millis(1), Duration::from_millis(2))
    }

    /// Time, throughput and processor time per message follow from the same three numbers.
    #[test]
    fn derived_numbers() {
        let gather = job(Op::Gather, 8);
        assert!((sample().micros(&gather) - 100.0).abs() < 1e-9);
        assert!((sample().bytes_per_second(&gather) - 70e6).abs() < 1e-3);
        assert!((sample().bytes_per_second_and_node(&gather) - 10e6).abs() < 1e-3);
        assert!((sample().cpu_us_per_message(&gather) - 2000.0 / 70.0).abs() < 1e-9);
        assert_eq!(
            sample().cpu_us_per_kb(&gather),
            Some(sample().cpu_us_per_message(&gather))
        );
        let burst = job(Op::Burst, 2);
        assert!((sample().headline(&burst) - 10.0).abs() < 1e-9);
    }

    /// A ping-pong's time is reported by its median, its throughput by its mean.
    #[test]
    fn pingpong_by_its_median() {
        let half = HalfRtt {
            min: 1.0,
            p50: 2.0,
            p99: 3.0,
            p999: 4.0,
        };
        let sample = Sample {
            half_rtt_us: Some(half),
            ..sample()
        };
        assert_eq!(sample.headline(&job(Op::Pingpong, 2)), 2.0);
        assert!((sample.bytes_per_second(&job(Op::Pingpong, 2)) - 20e6).abs() < 1e-3);
    }

    /// Repetitions follow from the bytes that all nodes together move, and are at least one.
    #[test]
    fn repetitions() {
        assert_eq!(Op::Pingpong.iterations(4, 2), 50_000);
        assert_eq!(Op::Burst.iterations(64 << 20, 2), 16);
        assert_eq!(Op::Bcast.iterations(1 << 20, 5), 64);
        assert_eq!(Op::Alltoall.iterations(usize::MAX >> 20, 2), 4);
        let slow = 100_000_000;
        assert_eq!(Op::Burst.iterations_on_cables(1 << 20, 2, slow), 5);
        assert_eq!(Op::Gather.iterations_on_cables(64 << 10, 8, slow), 13);
        assert_eq!(Op::Pingpong.iterations_on_cables(64 << 20, 2, slow), 2);
        assert_eq!(Op::Bcast.iterations_on_cables(4, 5, slow), 5_000);
    }
}
