//! Output of results: to standard output, or to a file that is either whole or absent.
//!
//! Every command prints through this module. A reader that closes the pipe is no failure; any other error of the output, such as a full disk, is
//! reported once, at the end, and then the command fails (`close`).

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail, ensure};
use tsumuji_bench::plot::PlotError;

use crate::{DONE, NOT_REACHED};

/// The first error of standard output.
static REFUSED: Mutex<Option<std::io::Error>> = Mutex::new(None);

/// Another output is incomplete, and that was reported.
static IS_PARTIAL: AtomicBool = AtomicBool::new(false);

/// Prints a line to standard error, as `eprintln!` does. If that takes no more, such as on a full disk, the command goes on.
macro_rules! tell {
    ($($word:tt)*) => {
        $crate::output::tell(&format!($($word)*))
    };
}

/// For [`tell!`].
pub(crate) fn tell(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Prints the one object of `--json`.
pub(crate) fn print_json(value: &serde_json::Value) {
    let mut text = format!("{value:#}");
    text.push('\n');
    print_text(&text);
}

/// Prints text for people. `false`: standard output takes no more.
pub(crate) fn print_text(text: &str) -> bool {
    print_bytes(text.as_bytes())
}

/// Prints the output of programs.
pub(crate) fn print_bytes(bytes: &[u8]) -> bool {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => true,
        Err(error) => {
            note(error);
            false
        }
    }
}

/// Records an error of standard output.
pub(crate) fn note(error: std::io::Error) {
    if error.kind() != ErrorKind::BrokenPipe {
        let mut refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
        refused.get_or_insert(error);
    }
}

/// Records that another output is incomplete, which was reported.
pub(crate) fn note_partial() {
    IS_PARTIAL.store(true, Ordering::Relaxed);
}

/// The exit code of a command that would end with `code`: success only if all its output was written.
pub(crate) fn close(code: ExitCode) -> ExitCode {
    let mut refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut whole = !tsumuji_link::capture::has_failed() && !IS_PARTIAL.load(Ordering::Relaxed);
    if let Some(error) = refused.take() {
        tell!(
            "tsumuji: standard output is not whole: cannot write: {}",
            plain(&error)
        );
        whole = false;
    }
    if code == DONE && !whole {
        ExitCode::from(NOT_REACHED)
    } else {
        code
    }
}

/// Files of a measurement, where they are wanted: its numbers as CSV, and its plot as SVG.
#[derive(Debug)]
pub(crate) struct Files {
    csv: Option<PendingFile>,
    plot: Option<PendingFile>,
}

impl Files {
    /// Makes sure that both can be written later.
    pub(crate) fn of(csv: Option<&PathBuf>, plot: Option<&PathBuf>) -> anyhow::Result<Self> {
        if let Some(path) = plot {
            let ending = path.extension();
            ensure!(
                ending.is_some_and(|ending| ending.eq_ignore_ascii_case("svg")),
                "--plot {}: plots are written as SVG; give a name that ends in .svg",
                path.display()
            );
        }
        let pending = |path: Option<&PathBuf>| path.map(|path| PendingFile::create(path));
        Ok(Self {
            csv: pending(csv).transpose()?,
            plot: pending(plot).transpose()?,
        })
    }

    /// Writes what is wanted.
    pub(crate) fn write(
        self,
        csv: impl FnOnce() -> String,
        svg: impl FnOnce() -> Result<String, PlotError>,
    ) -> anyhow::Result<()> {
        let written = self.csv.map_or(Ok(()), |file| file.write(&csv()));
        let drawn = (self.plot).map_or(Ok(()), |file| file.write(&svg().context("--plot")?));
        written.and(drawn) // both were tried
    }
}

/// A file that appears under its name only when it is complete. Until then there is nothing, so that a program that is killed leaves nothing.
#[derive(Debug)]
pub(crate) struct PendingFile {
    path: PathBuf,
}

impl PendingFile {
    /// Makes sure that `path` can be written later, without touching a present file. Devices and pipes are accepted.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        use std::os::unix::fs::FileTypeExt;
        let is_stream = std::fs::metadata(path)
            .is_ok_and(|found| found.file_type().is_char_device() || found.file_type().is_fifo());
        if is_stream {
            return Ok(Self {
                path: path.to_owned(),
            });
        }
        if path.is_dir() {
            bail!(
                "{}: is a directory; give the name of a file",
                path.display()
            );
        }
        let impossible = |error: std::io::Error| {
            anyhow::anyhow!("{}: cannot write there: {}", path.display(), plain(&error))
        };
        let target = tsumuji_numbers::target_of(path).map_err(impossible)?;
        let folder = folder_of(&target);
        tempfile::tempfile_in(folder).map_err(|error| match error.kind() {
            ErrorKind::NotFound => anyhow::anyhow!(
                "{}: the folder {} does not exist",
                path.display(),
                folder.display()
            ),
            _ => impossible(error),
        })?;
        Ok(Self {
            path: path.to_owned(),
        })
    }

    /// Writes `text` and gives it its name.
    pub(crate) fn write(self, text: &str) -> anyhow::Result<()> {
        self.finish(|out| out.write_all(text.as_bytes()))
    }

    /// Writes the content and gives it its name.
    pub(crate) fn finish(
        self,
        write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> anyhow::Result<()> {
        tsumuji_numbers::replace(&self.path, write).map_err(|error| {
            anyhow::anyhow!(
                "{}: cannot write: {}; nothing was left behind",
                self.path.display(),
                plain(&error)
            )
        })
    }
}

/// Refuses to write a file that is read, or that another option writes: one of both would be lost. Each has the name that a user knows it by.
pub(crate) fn check_apart(
    read: &[(&str, Option<&Path>)],
    written: &[(&str, Option<&Path>)],
) -> anyhow::Result<()> {
    let mut known: Vec<(&str, PathBuf)> = Vec::new();
    for (place, (name, path)) in read.iter().chain(written).enumerate() {
        let Some(path) = path else { continue };
        let identity = match path.canonicalize() {
            Ok(found) if !found.is_file() => continue, // devices and pipes
            Ok(found) => found,
            Err(_) => {
                let Ok(target) = tsumuji_numbers::target_of(path) else {
                    continue;
                };
                match (folder_of(&target).canonicalize(), target.file_name()) {
                    (Ok(folder), Some(name)) => folder.join(name),
                    _ => continue,
                }
            }
        };
        let is_written = place >= read.len();
        if let Some((other, _)) = known
            .iter()
            .find(|(_, known)| is_written && *known == identity)
        {
            bail!(
                "{name} {}: it is the file of {other}, too; give another one",
                path.display()
            );
        }
        known.push((name, identity));
    }
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// An error of the operating system without its number.
pub(crate) fn plain(error: &std::io::Error) -> String {
    without_numbers(innermost(error))
}

/// Words of the operating system are enough, its numbers help nobody.
pub(crate) fn without_numbers(mut text: String) -> String {
    while let Some((before, rest)) = text.split_once(" (os error ") {
        let (_, after) = rest.split_once(')').unwrap_or_default();
        text = format!("{before}{after}");
    }
    text
}

/// The inner error: `tempfile` wraps errors with the temporary name, which does not help the user.
fn innermost(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => std::io::Error::from_raw_os_error(code).to_string(),
        None => match error.get_ref().and_then(|inner| inner.source()) {
            Some(source) => source.to_string(),
            None => error.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    /// A failed or forgotten file leaves the folder as it was.
    #[test]
    fn failed_file_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        let error = PendingFile::create(&path)
            .unwrap()
            .finish(|_| Err(std::io::Error::from_raw_os_error(28)))
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("No space left on device; nothing"),
            "{error}"
        );
        drop(PendingFile::create(&path).unwrap());
        assert!(names(folder.path()).is_empty());
    }

    /// Paths that cannot become a file are refused at the start, by the name that the user gave.
    #[test]
    fn impossible_places_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = PendingFile::create(&folder.path().join("no/x.npy"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no/x.npy") && error.contains("does not exist"),
            "{error}"
        );
        let error = PendingFile::create(folder.path()).unwrap_err().to_string();
        assert!(error.contains("is a directory"), "{error}");
    }
}
