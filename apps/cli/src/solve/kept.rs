//! The files that keep x.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use tsumuji_solve::report;
use tsumuji_solve::system::formats::write_vector;

use super::Args;
use crate::output::PendingFile;

/// Writes x to the file asked for. One that does not reach the tolerance goes beside it: it must not replace a solution that may be there.
pub(super) fn keep_x(args: &Args, outcome: &report::Outcome) -> anyhow::Result<()> {
    let Some(path) = args.output.as_ref().filter(|_| !outcome.x.is_empty()) else {
        return Ok(());
    };
    if outcome.converged {
        return Ok(write_vector(path, &outcome.x)?);
    }
    let beside = unfinished(path);
    write_vector(&beside, &outcome.x)?;
    tell!(
        "note: {} has the best x of this run, with a relative residual of {:.1e}",
        beside.display(),
        outcome.residual
    );
    Ok(())
}

/// `x.npy` becomes `x.unfinished.npy`.
pub(super) fn unfinished(path: &Path) -> PathBuf {
    let ending = path.extension().unwrap_or_default();
    path.with_extension(Path::new("unfinished").with_extension(ending))
}

/// Refuses files to which no solution can be written, or no x that does not reach the tolerance.
pub(super) fn check_output(path: &Path) -> anyhow::Result<()> {
    check_vector(path)?;
    PendingFile::create(&unfinished(path)).map(drop)
}

/// Refuses files to which no vector can be written.
pub(super) fn check_vector(path: &Path) -> anyhow::Result<()> {
    let ending = path.extension().and_then(|ending| ending.to_str());
    let ending = ending.unwrap_or_default();
    ensure!(
        ["npy", "mtx"]
            .iter()
            .any(|known| ending.eq_ignore_ascii_case(known)),
        "{}: solutions are written as .npy or .mtx; give a name that ends so",
        path.display()
    );
    PendingFile::create(path).map(drop)
}
