//! Several paths, message sizes and numbers of clients, measured in turn: at each size and number the paths take turns, round after round, each round
//! beginning with another.

use std::ffi::OsStr;

use serde_json::{Value, json};
use tsumuji_testbed::Testbed;

use super::{Measured, Part, Path, Plan, StreamError, measure};
use crate::compare::{Listener, Step};
use crate::stats::Rounds;
use crate::stop;
use crate::versus::order;

/// What is measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Each measurement, but for the path, the size and the number of clients.
    pub each: Plan,
    /// What carries it.
    pub paths: Vec<Path>,
    /// Of a message.
    pub sizes: Vec<usize>,
    /// Numbers of clients.
    pub clients: Vec<usize>,
    /// Rounds of all paths in turn.
    pub rounds: usize,
}

/// What was found at one size and number of clients: the rounds of each path.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Of a message.
    pub bytes: usize,
    /// How many.
    pub clients: usize,
    /// In the order of the series.
    pub paths: Vec<(Path, Vec<Measured>)>,
}

impl Series {
    /// Measurements in all.
    pub fn count(&self) -> usize {
        self.sizes.len() * self.clients.len() * self.paths.len() * self.rounds
    }

    /// Measures all; `told` makes the text of a row, which the listener says as soon as it is known.
    pub fn run(
        &self,
        program: &OsStr,
        testbed: Option<&Testbed>,
        told: &dyn Fn(&Row) -> String,
        listener: &mut dyn Listener,
    ) -> Result<Vec<Row>, StreamError> {
        let mut rows = Vec::new();
        let mut done = 0;
        for &clients in &self.clients {
            for &bytes in &self.sizes {
                let none = self.paths.iter().map(|path| (*path, Vec::new()));
                let mut paths: Vec<(Path, Vec<Measured>)> = none.collect();
                for round in 1..=self.rounds {
                    for index in order(round - 1, self.paths.len()) {
                        let (path, column) = &mut paths[index];
                        listener.step(Step {
                            size: bytes,
                            round,
                            who: path.name(),
                            done,
                            of: self.count(),
                        });
                        let plan = self.plan(*path, bytes, clients);
                        column.push(measure(program, &plan, testbed)?);
                        done += 1;
                        if stop::is_wanted() {
                            return Err(StreamError::Stopped);
                        }
                    }
                }
                let row = Row {
                    bytes,
                    clients,
                    paths,
                };
                listener.say(&told(&row));
                rows.push(row);
            }
        }
        Ok(rows)
    }

    fn plan(&self, path: Path, bytes: usize, clients: usize) -> Plan {
        Plan {
            path,
            bytes,
            clients,
            ..self.each.clone()
        }
    }
}

impl Row {
    /// A number of one path over its rounds, if that path was measured.
    pub fn rounds(&self, path: Path, part: Part) -> Option<Rounds> {
        let (_, column) = self.paths.iter().find(|(other, _)| *other == path)?;
        Some(Rounds::over(column, part))
    }

    /// Its median.
    pub fn median(&self, path: Path, part: Part) -> Option<f64> {
        Some(self.rounds(path, part)?.median)
    }

    /// How many times as fast as TCP over loopback, if both were measured.
    pub fn over_tcp(&self, path: Path) -> Option<f64> {
        let rate = |path| self.median(path, |one| one.per_second);
        Some(rate(path)? / rate(Path::Tcp)?)
    }

    /// As `--json` prints it.
    pub fn report(&self) -> Value {
        let one = |(path, _): &(Path, Vec<Measured>)| {
            let mut told = json!({ "path": path.name(), "ratio": self.over_tcp(*path) });
            for (name, part) in Measured::PARTS {
                told[name] = json!(self.rounds(*path, part));
            }
            told
        };
        let paths: Vec<Value> = self.paths.iter().map(one).collect();
        json!({ "bytes": self.bytes, "clients": self.clients, "paths": paths })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Shape;
    use super::*;

    fn measured(per_second: f64) -> Measured {
        Measured {
            per_second,
            mbits: 1.0,
            p50: 2.0,
            p99: 3.0,
            client_cpu: 4.0,
            server_cpu: 5.0,
            machine_cpu: 6.0,
            softirq: 7.0,
            us_per_kb: 8.0,
            client_us_per_kb: 9.0,
            machine_us_per_kb: 10.0,
        }
    }

    /// Medians are over the rounds, ratios are of TCP over loopback; a path that was not measured has neither.
    #[test]
    fn rows_are_summed_up() {
        let row = Row {
            bytes: 32,
            clients: 4,
            paths: vec![
                (Path::Tcp, [10.0, 30.0, 20.0].map(measured).to_vec()),
                (Path::Carried, [60.0, 50.0, 70.0].map(measured).to_vec()),
            ],
        };
        assert_eq!(row.over_tcp(Path::Carried), Some(3.0));
        assert_eq!(row.over_tcp(Path::Unix), None);
        assert_eq!(row.median(Path::TcpNs, |one| one.p50), None);
        let report = row.report();
        assert_eq!(report["clients"], 4);
        let paths = report["paths"].as_array().unwrap();
        assert_eq!(paths.len(), 2);
        assert_eq!(paths[1]["path"], "shm");
        assert_eq!(paths[1]["per_second"]["median"], 60.0);
        assert_eq!(paths[1]["machine_us_per_kb"]["rounds"], 3);
    }

    /// A program that cannot be started ends a series with its error, and one that says nothing is named.
    #[test]
    fn failures_are_told() {
        let series = Series {
            each: Plan::of(Shape::Requests, 0.01),
            paths: vec![Path::Tcp],
            sizes: vec![1],
            clients: vec![1, 2],
            rounds: 3,
        };
        assert_eq!(series.count(), 6);
        let run = |program: &str| {
            let told = |_: &Row| String::new();
            let failed = series.run(OsStr::new(program), None, &told, &mut |_: &str| {});
            failed.unwrap_err().to_string()
        };
        assert!(run("/no-such-program").contains("No such file"));
        assert_eq!(run("/bin/true"), "the server ended early: exit status: 0");
    }
}
