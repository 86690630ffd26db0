//! Writes vectors, whole or not at all.

use super::Format;
use std::io::{self, Write};
use std::path::Path;
use tsumuji_numbers::{npy, replace};

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
        Format::Npy => npy::write(out, x),
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
