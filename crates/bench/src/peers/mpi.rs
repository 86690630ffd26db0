//! Open MPI and MPICH, two ranks of this host over TCP, bound to different cores, spinning as both libraries do.
//!
//! Their shared-memory paths are switched off: the peer of our UDP link is what their programs get between hosts.

use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;

use super::{PeerError, run};
use crate::stats::HalfRtt;

const SOURCE: &str = include_str!("../../../../bench/mpi_pingpong.c");

/// Which MPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// Open MPI, `ob1` over `btl/tcp`.
    OpenMpi,
    /// MPICH, UCX over `tcp`.
    Mpich,
}

/// How the ranks reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP over loopback.
    Tcp,
    /// The library's own shared memory.
    SharedMemory,
}

/// The benchmark, compiled against one library, in a folder that goes with it.
#[derive(Debug)]
pub struct Mpi {
    library: Library,
    program: PathBuf,
    _folder: tempfile::TempDir,
}

#[derive(Deserialize)]
struct Latency {
    #[serde(flatten)]
    half: HalfRtt,
}

#[derive(Deserialize)]
struct Rate {
    messages_per_second: f64,
}

impl Mpi {
    /// Compiles the benchmark.
    pub fn build(library: Library) -> Result<Self, PeerError> {
        let (compiler, package) = match library {
            Library::OpenMpi => ("mpicc.openmpi", "openmpi-bin libopenmpi-dev"),
            Library::Mpich => ("mpicc.mpich", "mpich libmpich-dev"),
        };
        let failed = |error: std::io::Error| PeerError::Failed {
            program: compiler.to_owned(),
            problem: error.to_string(),
        };
        let folder = tempfile::tempdir().map_err(failed)?;
        let source = folder.path().join("mpi_pingpong.c");
        let program = folder.path().join("mpi_pingpong");
        std::fs::write(&source, SOURCE).map_err(failed)?;
        run(
            Command::new(compiler)
                .args(["-O2", "-o"])
                .arg(&program)
                .arg(&source),
            package,
        )?;
        Ok(Self {
            library,
            program,
            _folder: folder,
        })
    }

    /// Its version, as its own tools print it.
    pub fn version(&self) -> String {
        let (program, argument) = match self.library {
            Library::OpenMpi => ("mpiexec.openmpi", "--version"),
            Library::Mpich => ("mpichversion", "--version"),
        };
        let text = run(Command::new(program).arg(argument), "").unwrap_or_default();
        let version = text
            .lines()
            .next()
            .unwrap_or("-")
            .rsplit([' ', '\t'])
            .next()
            .unwrap_or("-")
            .to_owned();
        match self.library {
            Library::OpenMpi => format!("Open MPI {version}"),
            Library::Mpich => format!("MPICH {version}"),
        }
    }

    fn command(&self, transport: Transport) -> Command {
        match self.library {
            Library::OpenMpi => {
                let mut command = Command::new("mpiexec.openmpi");
                // Benchmarks in containers often run as root; two ranks of a ping-pong harm nobody.
                command.args([
                    "--allow-run-as-root",
                    "--bind-to",
                    "core",
                    "--map-by",
                    "core",
                    "-n",
                    "2",
                    "--mca",
                    "pml",
                    "ob1",
                ]);
                match transport {
                    Transport::Tcp => command.args([
                        "--mca",
                        "btl",
                        "tcp,self",
                        "--mca",
                        "btl_tcp_if_include",
                        "lo",
                    ]),
                    Transport::SharedMemory => command.args(["--mca", "btl", "vader,self"]),
                };
                command.arg(&self.program);
                command
            }
            Library::Mpich => {
                let mut command = Command::new("mpiexec.mpich");
                command
                    .args(["-bind-to", "core", "-n", "2"])
                    .arg(&self.program);
                if transport == Transport::Tcp {
                    command.envs([
                        ("UCX_TLS", "tcp"),
                        ("UCX_NET_DEVICES", "lo"),
                        ("MPIR_CVAR_NOLOCAL", "1"),
                    ]);
                }
                command
            }
        }
    }

    fn figure<T: for<'a> Deserialize<'a>>(
        &self,
        transport: Transport,
        arguments: [String; 3],
    ) -> Result<T, PeerError> {
        let mut command = self.command(transport);
        let program = command.get_program().to_string_lossy().into_owned();
        let text = run(command.args(arguments), "")?;
        serde_json::from_str(text.lines().next().unwrap_or(""))
            .map_err(|source| PeerError::Output { program, source })
    }

    /// Half-round-trip of `size` bytes.
    pub fn pingpong(
        &self,
        transport: Transport,
        size: usize,
        iterations: u64,
    ) -> Result<HalfRtt, PeerError> {
        let arguments = [
            "pingpong".to_owned(),
            iterations.to_string(),
            size.to_string(),
        ];
        Ok(self.figure::<Latency>(transport, arguments)?.half)
    }

    /// Messages a second of `size` bytes one way.
    pub fn burst(
        &self,
        transport: Transport,
        size: usize,
        messages: u64,
    ) -> Result<f64, PeerError> {
        let arguments = ["burst".to_owned(), messages.to_string(), size.to_string()];
        Ok(self
            .figure::<Rate>(transport, arguments)?
            .messages_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where an MPI is installed both shapes give figures; where it is not, the package is named.
    #[test]
    fn gives_figures_or_names_the_package() {
        for library in [Library::OpenMpi, Library::Mpich] {
            match Mpi::build(library) {
                Ok(mpi) if crate::machine::two_cpus().is_some() => {
                    let half = mpi.pingpong(Transport::Tcp, 8, 10).unwrap();
                    assert!(half.min > 0.0 && half.p50 >= half.min);
                    assert!(mpi.burst(Transport::Tcp, 8, 10).unwrap() > 0.0);
                    assert!(mpi.version().contains('.'), "{}", mpi.version());
                }
                Ok(_) => {}
                Err(error) => assert!(error.to_string().contains("mpi"), "{error}"),
            }
        }
    }
}
