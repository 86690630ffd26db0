//! Files that are written whole or not at all: beside the target under another name, flushed to the disk, then renamed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Most links that lead to each other: as many as the kernel follows.
const LINKS_MOST: usize = 40;

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
    let path = target_of(path)?;
    let (temporary, file) = create_beside(&path)?;
    let written = write_through(file, fill).and_then(|()| fs::rename(&temporary, &path));
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

/// The file that [`replace`] makes: `path`, or what a link of that name leads to, which may not be there yet. The link stays. An error if no file can
/// have the name.
pub fn target_of(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_owned();
    for _ in 0..LINKS_MOST {
        let name = target.as_os_str().as_encoded_bytes();
        if name.ends_with(b"/") || name.ends_with(b"/.") {
            return Err(io::Error::other("it is the name of a folder"));
        }
        match fs::symlink_metadata(&target) {
            Ok(found) if found.is_symlink() => {
                target = target.with_file_name(fs::read_link(&target)?)
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => return Ok(target),
        }
    }
    Err(io::Error::other("it is a link that leads nowhere"))
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

    /// Links stay, also those to files that are not there yet; names that no file can have are refused.
    #[test]
    fn links_stay() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let within = |name: &str| folder.path().join(name);
        fs::create_dir(within("kept")).unwrap();
        symlink("kept/x", within("second")).unwrap();
        symlink(within("second"), within("first")).unwrap();
        for content in ["old", "new"] {
            replace(&within("first"), |out| out.write_all(content.as_bytes())).unwrap();
            assert_eq!(fs::read_to_string(within("kept/x")).unwrap(), content);
            assert!(within("first").is_symlink() && within("second").is_symlink());
        }
        symlink("round", within("round")).unwrap();
        let long = "x".repeat(300);
        for name in ["round", "new/", "new/.", &long] {
            assert!(replace(&within(name), |_| Ok(())).is_err(), "{name}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
    }

    /// What is no file is written to as it is.
    #[test]
    fn devices_are_written_to() {
        replace(Path::new("/dev/null"), |out| out.write_all(b"x")).unwrap();
        let full = replace(Path::new("/dev/full"), |out| out.write_all(b"x"));
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
