//! A private folder in which processes of one launch meet by a socket that the link itself makes (memif).
//!
//! Made and removed by `Launcher`; it stays only if the launcher is killed. Such a socket needs no secret, and DPDK does not check who connects. The
//! folder's mode 0700 lets only this user and root through.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::rendezvous;

/// Length limit: a socket's path has 107 bytes at most, and DPDK's device name, which contains it, 200.
const PATH_BYTES_MAX: usize = 100;
/// Name of the socket in the folder.
const SOCKET: &str = "memif";

/// The folder, removed when dropped.
#[derive(Debug)]
pub(super) struct Meeting {
    folder: PathBuf,
    socket: String,
}

impl Meeting {
    pub(super) fn create() -> io::Result<Self> {
        let name = rendezvous::random_name()?;
        // The first place is a user's own, and in memory.
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let places = runtime.into_iter().filter(|place| is_own(place));
        let places = places.chain([std::env::temp_dir(), PathBuf::from("/tmp")]);
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for place in places {
            let folder = place.join(&name);
            let socket = folder.join(SOCKET);
            let Some(socket) = socket.to_str().filter(|path| is_sound(path)) else {
                continue;
            };
            // An existing folder is not taken over.
            match DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => {
                    let socket = socket.to_owned();
                    return Ok(Self { folder, socket });
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// The path of the socket.
    pub(super) fn socket(&self) -> &str {
        &self.socket
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder); // what cannot be removed does no harm
    }
}

fn is_own(place: &Path) -> bool {
    let me = rustix::process::geteuid().as_raw();
    std::fs::metadata(place).is_ok_and(|found| found.is_dir() && found.uid() == me)
}

/// Whether DPDK's parser reads the path unchanged.
fn is_sound(path: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    path.len() <= PATH_BYTES_MAX && path.starts_with('/') && path.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other users cannot enter the folder, and nothing of it stays.
    #[test]
    fn folder_is_private_and_short_lived() {
        let meeting = Meeting::create().expect("a folder");
        let found = std::fs::metadata(&meeting.folder).expect("there");
        assert_eq!(found.mode() & 0o7777, 0o700);
        assert_eq!(found.uid(), rustix::process::geteuid().as_raw());
        let _socket = std::os::unix::net::UnixListener::bind(meeting.socket()).expect("bind");
        let folder = meeting.folder.clone();
        drop(meeting);
        assert!(!folder.exists());
    }
}
