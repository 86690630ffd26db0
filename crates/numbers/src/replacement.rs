//! Files that are written whole or not at all: beside the target under another name, flushed to the disk, then renamed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Lets `fill` write a temporary file beside `path`, then puts it in its place. Devices and pipes are written directly.
pub fn replace(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir()) {
        let mut out = BufWriter::new(OpenOptions::new().write(true).open(path)?);
        fill(&mut out)?;
        return out.flush();
    }
    if path.is_dir() {
        return Err(io::Error::other("it is a directory"));
    }
    // A link stays; what it leads to is replaced.
    let resolved = fs::canonicalize(path);
    let path = resolved.as_deref().unwrap_or(path);
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
    if path.file_name().is_none() {
        return Err(io::Error::other("it names no file"));
    }
    for attempt in 0..100 {
        let temporary = format!(".tsumuji-{}-{attempt}.tmp", std::process::id());
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A file is replaced whole, with the permissions of any new file; a failure leaves it as it was, and nothing beside it.
    #[test]
    fn files_are_replaced_or_left() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let plain = folder.path().join("plain");
        fs::write(&plain, "").unwrap();
        replace(&path, |out| out.write_all(b"old")).unwrap();
        let failed = replace(&path, |out| {
            out.write_all(b"new")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        replace(&path, |out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(replace(folder.path(), |_| Ok(())).is_err());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(&plain));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    /// What is no file is written to as it is.
    #[test]
    fn devices_are_written_to() {
        replace(Path::new("/dev/null"), |out| out.write_all(b"x")).unwrap();
        let full = replace(Path::new("/dev/full"), |out| out.write_all(b"x"));
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
