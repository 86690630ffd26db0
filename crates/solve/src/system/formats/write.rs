//! Writes vectors, whole or not at all: beside the target under another name, flushed to the disk, then renamed.

use super::Format;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Why no file was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The name does not tell the format.
    #[error("{file}: solutions are written as .npy or .mtx; give a name that ends so")]
    UnknownFormat {
        /// The target.
        file: String,
    },
    /// The disk is full.
    #[error("{file}: the disk is full ({needed_bytes} bytes are needed); nothing was left behind")]
    DiskFull {
        /// The target.
        file: String,
        /// Bytes of the whole file.
        needed_bytes: u64,
    },
    /// Any other error.
    #[error("{file}: cannot be written: {source}; nothing was left behind")]
    Io {
        /// The target.
        file: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Writes `x` to `path`, as NumPy array of shape (n,) or as Matrix Market array n×1 by the ending of its name. An
/// existing file is replaced at once or, on failure, left as it was.
pub fn write_vector(path: &Path, x: &[f64]) -> Result<(), WriteError> {
    let file = path.display().to_string();
    let format = match path.extension().and_then(|ending| ending.to_str()) {
        Some(ending) if ending.eq_ignore_ascii_case("npy") => Format::Npy,
        Some(ending) if ending.eq_ignore_ascii_case("mtx") => Format::MatrixMarket,
        _ => return Err(WriteError::UnknownFormat { file }),
    };
    replace(path, |out| emit_vector(format, x, out)).map_err(|source| {
        if source.kind() == io::ErrorKind::StorageFull
            || source.kind() == io::ErrorKind::QuotaExceeded
        {
            let mut counter = Counter(0);
            // Counting cannot fail; a format that can be written has a size.
            let _ = emit_vector(format, x, &mut counter);
            return WriteError::DiskFull {
                file,
                needed_bytes: counter.0,
            };
        }
        WriteError::Io { file, source }
    })
}

/// Writes `x` in `format` ([`Format::Npy`] or [`Format::MatrixMarket`]; others give an error of kind `Unsupported`).
pub fn emit_vector(format: Format, x: &[f64], out: &mut dyn Write) -> io::Result<()> {
    match format {
        Format::Npy => {
            out.write_all(&npy_header(x.len()))?;
            x.iter()
                .try_for_each(|value| out.write_all(&value.to_le_bytes()))
        }
        Format::MatrixMarket => {
            writeln!(
                out,
                "%%MatrixMarket matrix array real general\n{} 1",
                x.len()
            )?;
            // The shortest digits that read back to the same number.
            x.iter().try_for_each(|value| writeln!(out, "{value:e}"))
        }
        Format::HarwellBoeing | Format::Petsc => Err(io::Error::from(io::ErrorKind::Unsupported)),
    }
}

/// Version 1 header, padded with blanks so that the data begins at a multiple of 64.
fn npy_header(length: usize) -> Vec<u8> {
    let dictionary = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({length},), }}");
    let unpadded = 10 + dictionary.len() + 1;
    let padding = unpadded.next_multiple_of(64) - unpadded;
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend_from_slice(&((dictionary.len() + padding + 1) as u16).to_le_bytes());
    header.extend_from_slice(dictionary.as_bytes());
    header.resize(header.len() + padding, b' ');
    header.push(b'\n');
    header
}

/// Lets `fill` write a temporary file beside `path`, then puts it in its place. Devices and pipes are written directly.
pub(super) fn replace(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir()) {
        let mut out = BufWriter::new(OpenOptions::new().write(true).open(path)?);
        fill(&mut out)?;
        return out.flush();
    }
    if path.is_dir() {
        return Err(io::Error::other("it is a directory"));
    }
    let (temporary, file) = create_beside(path)?;
    let written = write_through(file, fill).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
        return written;
    }
    // The new name is safe only once its directory is synced; some directories cannot be, and that is no error.
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    if let Ok(directory) = File::open(directory.unwrap_or(Path::new("."))) {
        let _ = directory.sync_all();
    }
    Ok(())
}

fn write_through(
    file: File,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 18, file);
    fill(&mut out)?;
    out.flush()?;
    out.get_ref().sync_all()
}

/// A new file in the same directory, hence on the same disk.
fn create_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::other("it names no file"))?;
    for attempt in 0..100 {
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}-{attempt}.tmp", std::process::id()));
        let temporary = path.with_file_name(temporary);
        match OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary)
        {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Ok(file) => return Ok((temporary, file)),
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(
        "temporary files of earlier runs are in the way",
    ))
}

/// Counts the bytes that would be written.
struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
