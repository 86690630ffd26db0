//! Open MPI and MPICH: ranks of this host over TCP or their own shared memory, or one rank in each host of a testbed over TCP.
//!
//! Both libraries spin while they wait. Ranks are bound to cores of their own if there are enough; if not, Open MPI is told to yield, and the program
//! compiled for MPICH yields by itself (see `bench/mpi_bench.c`).

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{PeerError, patience, run, run_within};
use crate::limits::place::Place;
use crate::machine;
use crate::ops::{Job, Sample};

const SOURCE: &str = include_str!("../../../../bench/mpi_bench.c");

/// With more ranks on few cores, MPICH measures the scheduler.
pub const MPICH_RANKS_MOST: usize = 8;

/// An MPI library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// Open MPI, `ob1` over `btl/tcp`.
    OpenMpi,
    /// MPICH, UCX over `tcp`.
    Mpich,
}

/// Transport between the ranks.
#[derive(Debug, Clone, Copy)]
pub enum Transport<'a> {
    /// TCP over loopback.
    Tcp,
    /// The library's own shared memory.
    SharedMemory,
    /// TCP between hosts of a testbed, one rank in each.
    Hosts(&'a [Place]),
}

/// The benchmark, compiled for one library, in a temporary folder.
#[derive(Debug)]
pub struct Mpi {
    library: Library,
    program: PathBuf,
    /// The program that yields when it finds nothing to do.
    yielding: PathBuf,
    version: String,
    folder: tempfile::TempDir,
}

fn failed(program: &str) -> impl Fn(std::io::Error) -> PeerError + '_ {
    move |error| PeerError::failed(program, error)
}

impl Mpi {
    /// Compiles the benchmark.
    pub fn build(library: Library) -> Result<Self, PeerError> {
        let (compiler, package) = match library {
            Library::OpenMpi => ("mpicc.openmpi", "openmpi-bin libopenmpi-dev"),
            Library::Mpich => ("mpicc.mpich", "mpich libmpich-dev"),
        };
        let folder = tempfile::tempdir().map_err(failed(compiler))?;
        let source = folder.path().join("mpi_bench.c");
        std::fs::write(&source, SOURCE).map_err(failed(compiler))?;
        let compile = |name: &str, more: &[&str]| {
            let program = folder.path().join(name);
            let mut command = Command::new(compiler);
            command
                .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
                .arg(&program)
                .arg(&source)
                .args(more);
            run(&mut command, package).map(|_| program)
        };
        let program = compile("mpi_bench", &[])?;
        let yielding = match library {
            Library::OpenMpi => program.clone(), // has a setting for that
            Library::Mpich => compile("mpi_bench_yielding", &["-DYIELD", "-ldl", "-Wl,-E"])?,
        };
        let version = version(library);
        Ok(Self {
            library,
            program,
            yielding,
            version,
            folder,
        })
    }

    /// Its name and version, as its own tools print it.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Measures once.
    pub fn measure(&self, transport: Transport<'_>, job: &Job) -> Result<Sample, PeerError> {
        let cores = machine::cpus();
        let oversubscribed = job.nodes > cores.len();
        let folder = self.folder.path();
        let mut words = launch(self.library, folder, transport, job.nodes, oversubscribed)?;
        words.push(if oversubscribed {
            self.yielding.clone().into()
        } else {
            self.program.clone().into()
        });
        words.extend([
            job.op.name().into(),
            job.iterations.to_string().into(),
            job.size.to_string().into(),
        ]);
        if !oversubscribed {
            let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
            words.push(cores.join(",").into());
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        if self.library == Library::Mpich && !matches!(transport, Transport::SharedMemory) {
            let device = match transport {
                Transport::Hosts([place, ..]) => &place.interface,
                _ => "lo",
            };
            command.envs([
                ("UCX_TLS", "tcp"),
                ("UCX_NET_DEVICES", device),
                ("MPIR_CVAR_NOLOCAL", "1"),
            ]);
        }
        let program = match self.library {
            Library::OpenMpi => "mpiexec.openmpi",
            Library::Mpich => "mpiexec.mpich",
        };
        // Figures that were printed are complete, however the launcher ends.
        let output = run_within(&mut command, patience(job), program)?;
        let line = output.stdout.lines().find(|line| line.starts_with('{'));
        let Some(line) = line else {
            return Err(output.failure(program));
        };
        serde_json::from_str(line).map_err(|error| PeerError::output(program, error))
    }
}

/// The launcher and its options, up to the program. In `folder` it writes what it needs for that.
pub(super) fn launch(
    library: Library,
    folder: &Path,
    transport: Transport<'_>,
    ranks: usize,
    oversubscribed: bool,
) -> Result<Vec<OsString>, PeerError> {
    let mut words: Vec<OsString> = Vec::new();
    let add = |words: &mut Vec<OsString>, line: &str| {
        words.extend(line.split(' ').map(OsString::from));
    };
    let agent = match transport {
        Transport::Hosts(places) => {
            let (agent, first) = agent(folder, &places[..ranks.min(places.len())])?;
            words.extend([&agent, &first].map(OsString::from));
            Some((agent, places))
        }
        _ => None,
    };
    match library {
        Library::OpenMpi => {
            // Benchmarks in containers often run as root, which their ranks may.
            let line = format!(
                "mpiexec.openmpi --allow-run-as-root --oversubscribe --bind-to none -n {ranks} --mca pml ob1"
            );
            add(&mut words, &line);
            let device = match transport {
                Transport::SharedMemory => None,
                Transport::Tcp => Some("lo"),
                Transport::Hosts(places) => places.first().map(|place| &*place.interface),
            };
            let line = match device {
                Some(device) => format!("--mca btl tcp,self --mca btl_tcp_if_include {device}"),
                None => "--mca btl vader,self".to_owned(),
            };
            add(&mut words, &line);
            if oversubscribed {
                add(&mut words, "--mca mpi_yield_when_idle 1");
            }
            if let Some((agent, places)) = &agent {
                let hosts = names(&places[..ranks.min(places.len())], ":1");
                let device = device.unwrap_or("lo");
                words.extend(["--mca", "plm_rsh_agent", agent].map(OsString::from));
                let line = format!("--mca oob_tcp_if_include {device} -H {hosts}");
                add(&mut words, &line);
            }
        }
        Library::Mpich => {
            add(
                &mut words,
                &format!("mpiexec.mpich -bind-to none -n {ranks}"),
            );
            if let Some((agent, places)) = &agent {
                let hosts = names(&places[..ranks.min(places.len())], "");
                words.extend(["-launcher", "ssh", "-launcher-exec", agent].map(OsString::from));
                let line = format!("-localhost {} -hosts {hosts}", places[0].ip);
                add(&mut words, &line);
            }
        }
    }
    Ok(words)
}

/// Writes a script that enters a host as `ssh` would, and returns it with the first host's name. Hosts are named by address, which needs no
/// resolver; each has a host name of its own, or the libraries would take all of them for one host.
fn agent(folder: &Path, places: &[Place]) -> Result<(String, String), PeerError> {
    let mut script = String::from(
        "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nhost=$1; shift\ncase $host in\n",
    );
    for place in places {
        let netns = place
            .netns
            .as_deref()
            .unwrap_or(Path::new("/proc/1/ns/net"));
        let _ = writeln!(script, "{}) netns=\'{}\' ;;", place.ip, netns.display());
    }
    // Launchers pass one line for a shell; we pass words.
    script.push_str(
        "*) echo \"unknown host $host\" >&2; exit 2 ;;\nesac\n\
         [ $# -gt 1 ] && [ \"${1#mpiexec}\" != \"$1\" ] || set -- sh -c \"$*\"\n\
         exec nsenter --net=\"$netns\" unshare --uts sh -c \
         'hostname \"$(echo \"$0\" | tr . -)\"; exec \"$@\"' \"$host\" \"$@\"\n",
    );
    let path = folder.join("agent.sh");
    let io = failed("agent.sh");
    std::fs::write(&path, script).map_err(&io)?;
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).map_err(&io)?;
    let first = places.first().map(|place| place.ip.to_string());
    Ok((
        path.to_string_lossy().into_owned(),
        first.unwrap_or_default(),
    ))
}

fn names(places: &[Place], suffix: &str) -> String {
    let names: Vec<String> = places
        .iter()
        .map(|place| format!("{}{suffix}", place.ip))
        .collect();
    names.join(",")
}

fn version(library: Library) -> String {
    let (program, name) = match library {
        Library::OpenMpi => ("mpiexec.openmpi", "Open MPI"),
        Library::Mpich => ("mpichversion", "MPICH"),
    };
    let text = run(Command::new(program).arg("--version"), "").unwrap_or_default();
    let words = text
        .lines()
        .next()
        .unwrap_or("-")
        .rsplit([' ', '\t'])
        .next();
    format!("{name} {}", words.unwrap_or("-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Op;
    use tsumuji_testbed::{Spec, Testbed};

    fn job(op: Op, nodes: usize) -> Job {
        Job {
            op,
            size: 8,
            iterations: 10,
            nodes,
        }
    }

    /// If an MPI is installed its program compiles without a warning and gives figures; if not, the package is named.
    #[test]
    fn gives_figures_or_names_the_package() {
        for library in [Library::OpenMpi, Library::Mpich] {
            match Mpi::build(library) {
                Ok(mpi) => {
                    let found = mpi.measure(Transport::Tcp, &job(Op::Pingpong, 2)).unwrap();
                    let half = found.half_rtt_us.unwrap();
                    assert!(half.min > 0.0 && half.p50 >= half.min);
                    assert!(mpi.version().contains('.'), "{}", mpi.version());
                    for (op, nodes) in [(Op::Burst, 2), (Op::Gather, 3), (Op::Allreduce, 3)] {
                        let found = mpi.measure(Transport::SharedMemory, &job(op, nodes));
                        assert!(found.unwrap().seconds > 0.0);
                    }
                }
                Err(error) => {
                    assert!(error.to_string().contains("mpi"), "{error}");
                    eprintln!("SKIPPED gives_figures_or_names_the_package, {library:?}: {error}");
                }
            }
        }
    }

    /// Ranks in hosts of a testbed reach each other over its network, by every operation.
    #[test]
    fn runs_between_hosts() {
        if let Err(error) = tsumuji_testbed::check_rights() {
            eprintln!("SKIPPED runs_between_hosts: {error}");
            return;
        }
        let name = format!("bm{}", std::process::id()).parse().unwrap();
        let testbed = Testbed::up(&Spec::new(3).named(name)).unwrap();
        let places = crate::limits::place::of_testbed(&testbed);
        let mut measured = 0;
        for library in [Library::OpenMpi, Library::Mpich] {
            let mpi = match Mpi::build(library) {
                Ok(mpi) => mpi,
                Err(error) => {
                    eprintln!("SKIPPED runs_between_hosts, {library:?}: {error}");
                    continue;
                }
            };
            for (op, nodes) in [(Op::Pingpong, 2), (Op::Bcast, 3), (Op::Alltoall, 3)] {
                let found = mpi.measure(Transport::Hosts(&places), &job(op, nodes));
                assert!(found.unwrap().seconds > 0.0);
                measured += 1;
            }
        }
        let status = testbed.status().unwrap();
        assert!(measured == 0 || status.hosts[2].counters.received_frames > 0);
        testbed.down().unwrap();
    }
}
