//! Measures all algorithms that can be chosen, and makes a table of the fastest.
//!
//! Called by `tsumuji tune` on every member, with the same wishes. Not for a program that does something else meanwhile.

use std::time::{Duration, Instant};

use serde::Serialize;
use tsumuji_node::{Endpoint, NodeId};

use crate::collectives::Collectives;
use crate::element::Op;
use crate::error::CollectiveError;
use crate::group::Group;
use crate::table::{Algorithm, Operation, Rule, Table};
use crate::tuning::TUNING;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// Longest message in bytes; lengths are the powers of four from 4 bytes on.
    pub bytes_max: u64,
    /// Time for each algorithm and length.
    pub time: Duration,
}

impl Default for Wishes {
    fn default() -> Self {
        Self {
            bytes_max: 4 << 20,
            time: Duration::from_millis(50),
        }
    }
}

/// Time of one algorithm.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Measurement {
    /// The operation.
    pub operation: Operation,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Number of members of the group.
    pub nodes: usize,
    /// Bytes of the message; for all-gather, of a part.
    pub bytes: u64,
    /// Seconds: the lower quartile of runs on the slowest member. Disturbances by other programs hardly count.
    pub seconds: f64,
}

/// Sizes of groups that are measured among `nodes`: powers of two, and all.
fn sizes(nodes: usize) -> Vec<usize> {
    let powers = (1..usize::BITS).map(|power| 1 << power);
    powers
        .take_while(|size| *size < nodes)
        .chain([nodes])
        .collect()
}

/// Measures all algorithms. Every member calls it and gets the same table; rank 0's `progress` is called with each result.
pub fn tune(
    endpoint: &mut Endpoint,
    wishes: &Wishes,
    mut progress: impl FnMut(&Measurement),
) -> Result<(Table, Vec<Measurement>), CollectiveError> {
    let mut collectives = Collectives::with_table(endpoint, Table::default());
    let world = collectives.world();
    let ids: Vec<NodeId> = endpoint.members().iter().map(|member| member.id).collect();
    let mut found = Vec::new();
    for size in sizes(ids.len()) {
        let member = usize::from(endpoint.me().0) < size;
        let group = member
            .then(|| collectives.group(endpoint, &ids[..size], 0x7475_6e65)) // "tune"
            .and_then(Result::ok);
        let group = if size == ids.len() {
            Some(world)
        } else {
            group
        };
        for operation in Operation::ALL {
            let mut bench = Bench {
                collectives: &mut collectives,
                endpoint,
                group,
                world,
                size,
                operation,
                time: wishes.time,
            };
            bench.measure(wishes.bytes_max, &mut found, &mut progress)?;
        }
    }
    let table = table_of(&found, endpoint.link_name());
    Ok((table, found))
}

struct Bench<'a> {
    collectives: &'a mut Collectives,
    endpoint: &'a mut Endpoint,
    /// `None`: this node only waits.
    group: Option<Group>,
    world: Group,
    size: usize,
    operation: Operation,
    time: Duration,
}

impl Bench<'_> {
    /// Measures all algorithms of one operation at all lengths.
    fn measure(
        &mut self,
        bytes_max: u64,
        found: &mut Vec<Measurement>,
        progress: &mut impl FnMut(&Measurement),
    ) -> Result<(), CollectiveError> {
        let algorithms = self
            .operation
            .algorithms(self.collectives.can(self.endpoint));
        if algorithms.len() == 1 {
            return Ok(()); // there is no choice
        }
        let mut behind = vec![0; algorithms.len()];
        let mut bytes = 4;
        while bytes <= bytes_max {
            let mut times = vec![f64::INFINITY; algorithms.len()];
            for (place, &algorithm) in algorithms.iter().enumerate() {
                // It is not used for longer messages: the time would be another algorithm's.
                let cannot = algorithm == Algorithm::Doubling
                    && bytes > self.collectives.core.ledger.eager_bytes as u64;
                if behind[place] >= 2 || cannot {
                    continue;
                }
                let seconds = self.time_one(algorithm, bytes as usize)?;
                times[place] = seconds;
                let measurement = Measurement {
                    operation: self.operation,
                    algorithm,
                    nodes: self.size,
                    bytes,
                    seconds,
                };
                progress(&measurement);
                found.push(measurement);
            }
            let best = times.iter().copied().fold(f64::INFINITY, f64::min);
            for (behind, seconds) in behind.iter_mut().zip(&times) {
                let hopeless = bytes >= TUNING.measuring.telling_bytes
                    && *seconds > TUNING.measuring.hopeless * best;
                *behind = if hopeless { *behind + 1 } else { 0 };
            }
            bytes *= 4;
        }
        Ok(())
    }

    /// Seconds of one run, the same number on all nodes.
    fn time_one(&mut self, algorithm: Algorithm, bytes: usize) -> Result<f64, CollectiveError> {
        let mut data = vec![1_u32; bytes / 4]; // not zero, so that it has pages of its own
        let parts = match self.operation {
            Operation::AllGather => self.size,
            _ => 1,
        };
        let mut all = vec![1_u32; bytes / 4 * parts];
        let mut seconds = 0.0;
        if let Some(group) = self.group {
            // All members are in here and choose nothing else, so the table may be replaced.
            let rule = Rule {
                operation: self.operation,
                link: None,
                nodes_up_to: None,
                bytes_up_to: None,
                algorithm,
            };
            let others = self.collectives.exchange_table(Table { rules: vec![rule] });
            let outcome = self.runs(group, &mut data, &mut all);
            self.collectives.exchange_table(others);
            seconds = outcome?;
        }
        let mut slowest = [seconds];
        self.collectives
            .all_reduce(self.endpoint, self.world, &mut slowest, &Op::maximum())?;
        Ok(slowest[0])
    }

    /// The lower quartile of the times of some runs on this member.
    fn runs(
        &mut self,
        group: Group,
        data: &mut [u32],
        all: &mut [u32],
    ) -> Result<f64, CollectiveError> {
        self.once(group, data, all)?; // touches the memory
        let first = self.once(group, data, all)?;
        let mut runs = [0_u64];
        if self.collectives.rank(group) == Some(0) {
            let fits = self.time.as_secs_f64() / first.max(1e-7);
            runs = [(fits as u64).clamp(TUNING.measuring.runs_min, TUNING.measuring.runs_max) | 1];
        }
        self.collectives
            .broadcast(self.endpoint, group, 0, &mut runs)?;
        let mut times = Vec::new();
        for _ in 0..runs[0] {
            times.push(self.once(group, data, all)?);
        }
        times.sort_unstable_by(f64::total_cmp);
        Ok(times[times.len() / 4])
    }

    fn once(
        &mut self,
        group: Group,
        data: &mut [u32],
        all: &mut [u32],
    ) -> Result<f64, CollectiveError> {
        let (collectives, endpoint) = (&mut *self.collectives, &mut *self.endpoint);
        collectives.barrier(endpoint, group)?;
        let start = Instant::now();
        match self.operation {
            Operation::Broadcast => collectives.broadcast(endpoint, group, 0, data)?,
            Operation::Reduce => {
                collectives.reduce(endpoint, group, 0, data, all, &Op::sum())?;
            }
            Operation::AllReduce => collectives.all_reduce(endpoint, group, data, &Op::sum())?,
            Operation::AllGather => collectives.all_gather(endpoint, group, data, all)?,
            Operation::Gather | Operation::Scatter | Operation::AllToAll => {} // no choice
        }
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Rules for the fastest algorithms, followed by the built-in ones for other links.
fn table_of(found: &[Measurement], link: &str) -> Table {
    let mut rules: Vec<Rule> = Vec::new();
    let mut nodes: Vec<usize> = found.iter().map(|one| one.nodes).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let largest = nodes.last().copied();
    for operation in Operation::ALL {
        for &size in &nodes {
            let of_size = |one: &&Measurement| one.operation == operation && one.nodes == size;
            let mut lengths: Vec<u64> = found.iter().filter(of_size).map(|one| one.bytes).collect();
            lengths.dedup();
            let nodes_up_to = (Some(size) != largest).then_some(size);
            let mut of_this: Vec<Rule> = Vec::new();
            for &bytes in &lengths {
                let here = found
                    .iter()
                    .filter(of_size)
                    .filter(|one| one.bytes == bytes);
                let fastest = here.clone().min_by(|a, b| a.seconds.total_cmp(&b.seconds));
                let Some(fastest) = fastest else { continue };
                let last = of_this.last_mut().filter(|last| {
                    let stays = here
                        .clone()
                        .find(|one| one.algorithm == last.algorithm)
                        .is_some_and(|one| {
                            fastest.seconds > TUNING.measuring.worth_it * one.seconds
                        });
                    stays || last.algorithm == fastest.algorithm
                });
                match last {
                    Some(last) => last.bytes_up_to = Some(bytes),
                    None => of_this.push(Rule {
                        operation,
                        link: Some(link.to_owned()),
                        nodes_up_to,
                        bytes_up_to: Some(bytes),
                        algorithm: fastest.algorithm,
                    }),
                }
            }
            // Between two lengths the limit is their geometric mean; beyond the longest there is none if that is long.
            let is_long = lengths
                .last()
                .is_some_and(|bytes| *bytes >= TUNING.measuring.long_bytes);
            let count = of_this.len();
            for (place, rule) in of_this.iter_mut().enumerate() {
                rule.bytes_up_to = if is_long && place + 1 == count {
                    None
                } else {
                    rule.bytes_up_to.map(|bytes| 2 * bytes)
                };
            }
            rules.append(&mut of_this);
        }
    }
    rules.extend(Table::default().rules);
    Table { rules }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Can, Question};

    fn measured(algorithm: Algorithm, nodes: usize, bytes: u64, seconds: f64) -> Measurement {
        Measurement {
            operation: Operation::Broadcast,
            algorithm,
            nodes,
            bytes,
            seconds,
        }
    }

    /// The fastest is chosen for each size; a hardly faster algorithm does not replace another one.
    #[test]
    fn table_has_the_fastest() {
        use Algorithm::{Flat, Native, Tree};
        let found = [
            measured(Flat, 2, 4, 1.0),
            measured(Tree, 2, 4, 2.0),
            measured(Flat, 2, 16, 1.0),
            measured(Tree, 2, 16, 0.98),
            measured(Flat, 2, 1 << 20, 3.0),
            measured(Tree, 2, 1 << 20, 1.0),
            measured(Native, 8, 4, 1.0),
            measured(Flat, 8, 4, 2.0),
        ];
        let table = table_of(&found, "shm");
        let again = Table::parse(&table.to_toml(), "itself").expect("readable");
        let question = |nodes, bytes| Question {
            operation: Operation::Broadcast,
            link: "shm",
            can: Can::ALL,
            nodes,
            bytes,
        };
        // Nothing is known of messages so much longer than the longest.
        let built_in = Table::default().choose(question(100, 1 << 20));
        for (nodes, bytes, want) in [
            (2, 4, Flat),
            (2, 16, Flat),
            (2, 33, Tree),
            (2, 1 << 30, Tree),
            (3, 4, Native),
            (100, 8, Native),
            (100, 1 << 20, built_in),
        ] {
            let choice = again.choose(question(nodes, bytes));
            assert_eq!(choice, want, "{nodes} nodes, {bytes} bytes");
        }
    }
}
