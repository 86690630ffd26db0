//! Other people's programs doing the same exchange on the same machine: MPI over TCP, PETSc on the same system.
//!
//! Their sources lie in `bench/`, are carried in this crate, and run from a temporary folder. A peer that is not installed is
//! named with the package that brings it.

pub mod mpi;
pub mod petsc;

use std::process::Command;

/// Why a peer gave no figure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// Not on this machine.
    #[error("not installed: apt-get install {package}")]
    NotInstalled {
        /// Debian's package.
        package: &'static str,
    },
    /// It could not be run, or ended with an error.
    #[error("{program}: {problem}")]
    Failed {
        /// Which program.
        program: String,
        /// Its last line, or the kernel's answer.
        problem: String,
    },
    /// What it printed is no figure.
    #[error("{program} printed something else than agreed: {source}")]
    Output {
        /// Which program.
        program: String,
        /// Where it is wrong.
        source: serde_json::Error,
    },
}

/// Runs a command to its end and returns what it printed; its last line of complaint on failure.
fn run(command: &mut Command, package: &'static str) -> Result<String, PeerError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|error| {
            if error.kind() == std::io::ErrorKind::NotFound {
                PeerError::NotInstalled { package }
            } else {
                PeerError::Failed {
                    program: program.clone(),
                    problem: error.to_string(),
                }
            }
        })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let last = complaint
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("no message");
    Err(PeerError::Failed {
        program,
        problem: format!("{}: {last}", output.status),
    })
}
