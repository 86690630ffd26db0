//! PETSc's Krylov and stationary solvers, by Debian's `python3-petsc4py`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::mpi::{Library, Transport, launch};
use super::{PeerError, run, run_within};
use crate::limits::place::Place;
use crate::machine;

const SOURCE: &str = include_str!("../../../../bench/petsc_solve.py");
const SCRIPT: &str = "petsc_solve.py";
/// Debian's own interpreter, for which its packages are installed.
const PYTHON: &str = "/usr/bin/python3";

/// Result of one method.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Solved {
    /// Its name: of dense systems `gmres` or `richardson`, both with Jacobi preconditioning; of sparse ones with the preconditioner, as `cg+GAMG`.
    pub method: String,
    /// Time of the solve alone.
    pub seconds: f64,
    /// Time to read and distribute the system, where that was measured.
    #[serde(default)]
    pub read_seconds: f64,
    /// Iterations.
    pub laps: u64,
    /// ‖b − A x‖₂ / ‖b‖₂.
    pub residual: f64,
    /// Version of PETSc.
    pub version: String,
}

/// The script, in a temporary folder.
#[derive(Debug)]
pub struct Petsc {
    script: PathBuf,
    folder: tempfile::TempDir,
}

impl Petsc {
    /// Unpacks the script.
    pub fn new() -> Result<Self, PeerError> {
        let failed = |error| PeerError::failed(SCRIPT, error);
        let folder = tempfile::tempdir().map_err(failed)?;
        let script = folder.path().join(SCRIPT);
        std::fs::write(&script, SOURCE).map_err(failed)?;
        Ok(Self { script, folder })
    }

    /// Writes the dense test system of `n` rows to `matrix` and `rhs` (`.npy`). Needs NumPy only.
    pub(crate) fn make_system(&self, n: usize, matrix: &Path, rhs: &Path) -> Result<(), PeerError> {
        run(
            Command::new(PYTHON)
                .arg(&self.script)
                .arg("make")
                .arg(n.to_string())
                .arg(matrix)
                .arg(rhs),
            "python3-numpy",
        )
        .map(drop)
    }

    /// Solves a system with `ranks` processes of this host, each on a core of its own: `solve`, the dense one, or `sparse`, of two of PETSc's binary files.
    pub fn run(
        &self,
        what: &str,
        (matrix, rhs): (&Path, &Path),
        tolerance: f64,
        ranks: usize,
    ) -> Result<Vec<Solved>, PeerError> {
        let mut command = Command::new("mpiexec.openmpi");
        let options = format!("--allow-run-as-root --bind-to core --map-by core -n {ranks}");
        command.args(options.split(' '));
        self.finish(&mut command, what, (matrix, rhs), tolerance);
        parsed(&run(&mut command, "openmpi-bin python3-petsc4py")?)
    }

    /// As `run` of a sparse system, with a process in each of these places, over TCP. Also says why methods are missing, if some did not end within `patience`, or
    /// failed after others.
    pub fn solve_between(
        &self,
        places: &[Place],
        (matrix, rhs): (&Path, &Path),
        tolerance: f64,
        patience: Duration,
    ) -> Result<(Vec<Solved>, Option<PeerError>), PeerError> {
        let (folder, ranks) = (self.folder.path(), places.len());
        let words = launch(
            Library::OpenMpi,
            folder,
            Transport::Hosts(places),
            ranks,
            ranks > machine::cpus().len(),
        )?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        self.finish(&mut command, "sparse", (matrix, rhs), tolerance);
        let output = run_within(&mut command, patience, "mpiexec.openmpi")?;
        if output.status.is_some_and(|status| status.success()) {
            return Ok((parsed(&output.stdout)?, None));
        }
        // Of methods that ended before the lines are whole.
        let whole = output
            .stdout
            .rsplit_once('\n')
            .map_or("", |(whole, _)| whole);
        let unsolved = output.failure("mpiexec.openmpi");
        match parsed(whole)? {
            solved if solved.is_empty() => Err(unsolved),
            solved => Ok((solved, Some(unsolved))),
        }
    }

    /// Adds the script and its words to a launcher's.
    fn finish(
        &self,
        command: &mut Command,
        what: &str,
        (matrix, rhs): (&Path, &Path),
        tolerance: f64,
    ) {
        // One thread for each rank: the ranks are the parallelism that is compared.
        command.args(["env", "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1"]);
        command
            .arg(PYTHON)
            .arg(&self.script)
            .arg(what)
            .arg(matrix)
            .arg(rhs)
            .arg(tolerance.to_string());
    }
}

/// What the script printed.
fn parsed(text: &str) -> Result<Vec<Solved>, PeerError> {
    let parse = |line| serde_json::from_str(line).map_err(|error| PeerError::output(SCRIPT, error));
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines.map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If PETSc is installed both methods solve a small system to the tolerance; if not, that is reported.
    #[test]
    fn solves_a_small_system() {
        let petsc = Petsc::new().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (matrix, rhs) = (folder.path().join("A.npy"), folder.path().join("b.npy"));
        if petsc.make_system(60, &matrix, &rhs).is_err() {
            println!("SKIPPED PETSc: no NumPy for {PYTHON}");
            return;
        }
        match petsc.run("solve", (&matrix, &rhs), 1e-10, 1) {
            Ok(solved) => {
                assert_eq!(solved.len(), 2);
                assert!(solved.iter().all(|one| one.residual < 1e-9), "{solved:?}");
            }
            Err(error) => println!("SKIPPED PETSc: {error}"),
        }
    }
}
