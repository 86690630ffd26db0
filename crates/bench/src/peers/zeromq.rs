//! ZeroMQ over TCP: a process for each node, on this host or in hosts of a testbed, with ZeroMQ's own threads and blocking calls.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

use super::{Ended, PeerError, patience, run};
use crate::limits::place::Place;
use crate::machine;
use crate::ops::{Job, Op, Sample};

const SOURCE: &str = include_str!("../../../../bench/zmq_bench.c");
const PROGRAM: &str = "zmq_bench";
/// Most bytes of a program's output that are read.
const OUTPUT_BYTES_MAX: u64 = 1 << 16;

/// The benchmark, compiled, in a temporary folder.
#[derive(Debug)]
pub struct ZeroMq {
    program: PathBuf,
    version: String,
    _folder: tempfile::TempDir,
}

fn failed(problem: impl ToString) -> PeerError {
    PeerError::failed(PROGRAM, problem)
}

impl ZeroMq {
    /// Compiles the benchmark.
    pub fn build() -> Result<Self, PeerError> {
        let missing = PeerError::NotInstalled {
            package: "libzmq3-dev pkg-config gcc",
        };
        let version = run(
            Command::new("pkg-config").args(["--modversion", "libzmq"]),
            "",
        );
        let Ok(version) = version else {
            return Err(missing);
        };
        let folder = tempfile::tempdir().map_err(failed)?;
        let source = folder.path().join("zmq_bench.c");
        let program = folder.path().join(PROGRAM);
        std::fs::write(&source, SOURCE).map_err(failed)?;
        let mut command = Command::new("gcc");
        command
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&program)
            .arg(&source)
            .arg("-lzmq");
        run(&mut command, "gcc")?;
        Ok(Self {
            program,
            version: format!("ZeroMQ {}", version.trim()),
            _folder: folder,
        })
    }

    /// Its name and version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether it supports this operation.
    pub fn has(op: Op) -> bool {
        matches!(op, Op::Pingpong | Op::Burst | Op::Gather)
    }

    fn start(&self, place: &Place, role: &str, job: &Job, node: usize) -> Command {
        let mut command = match &place.netns {
            None => Command::new(&self.program),
            Some(netns) => {
                let mut command = Command::new("nsenter");
                command
                    .arg(format!("--net={}", netns.display()))
                    .arg(&self.program);
                command
            }
        };
        let cores = machine::cpus();
        let core = cores.get(node).filter(|_| job.nodes <= cores.len());
        command.args([
            role,
            job.op.name(),
            &job.iterations.to_string(),
            &job.size.to_string(),
            &core.map_or("-1".to_owned(), ToString::to_string),
        ]);
        command.stdin(Stdio::null());
        command
    }

    /// Measures once, a node in each place.
    pub fn measure(&self, places: &[Place], job: &Job) -> Result<Sample, PeerError> {
        if !Self::has(job.op) || places.len() < job.nodes || job.nodes < 2 {
            return Err(failed(format!("no {} there", job.op)));
        }
        let root = &places[0];
        let mut command = self.start(root, "root", job, 0);
        command
            .arg(root.ip.to_string())
            .arg((job.nodes - 1).to_string())
            .stdout(Stdio::piped());
        let mut root = spawn(command)?;
        let output = root.0.stdout.take().ok_or_else(|| failed("no output"))?;
        let mut output = BufReader::new(output.take(OUTPUT_BYTES_MAX));
        let ends = line(&mut output)?;
        let mut leaves = Vec::new();
        for (node, place) in (1..job.nodes).zip(&places[1..]) {
            let mut command = self.start(place, "leaf", job, node);
            command.args(ends.split_whitespace()).stdout(Stdio::null());
            leaves.push(spawn(command)?);
        }
        let deadline = Instant::now() + patience(job);
        let status = root.wait_until(deadline);
        if !status.is_some_and(|status| status.success()) {
            return Err(failed(
                "it failed or did not end in time; see what it said above",
            ));
        }
        for leaf in &mut leaves {
            leaf.wait_until(deadline);
        }
        let text = line(&mut output)?;
        serde_json::from_str(&text).map_err(|error| PeerError::output(PROGRAM, error))
    }
}

fn spawn(mut command: Command) -> Result<Ended, PeerError> {
    use std::os::unix::process::CommandExt;
    let child: Child = command.process_group(0).spawn().map_err(failed)?;
    Ok(Ended(child))
}

fn line(output: &mut BufReader<std::io::Take<ChildStdout>>) -> Result<String, PeerError> {
    let mut text = String::new();
    match output.read_line(&mut text) {
        Ok(bytes) if bytes > 0 => Ok(text),
        Ok(_) => Err(failed("it ended without a word")),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If ZeroMQ is installed its program compiles without a warning and gives figures; if not, the package is named.
    #[test]
    fn gives_figures_or_names_the_package() {
        let zeromq = match ZeroMq::build() {
            Ok(zeromq) => zeromq,
            Err(error) => {
                assert!(error.to_string().contains("libzmq3-dev"), "{error}");
                eprintln!("SKIPPED gives_figures_or_names_the_package: {error}");
                return;
            }
        };
        let [here, _] = Place::LOOPBACK;
        for (op, nodes) in [(Op::Pingpong, 2), (Op::Burst, 2), (Op::Gather, 4)] {
            let job = Job {
                op,
                size: 100,
                iterations: 20,
                nodes,
            };
            let sample = zeromq.measure(&vec![here.clone(); nodes], &job).unwrap();
            assert!(
                sample.seconds > 0.0 && sample.cpu_seconds > 0.0,
                "{sample:?}"
            );
        }
    }
}
