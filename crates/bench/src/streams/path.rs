//! What carries the streams: the one place that knows each path's name, where its ends are, and how their programs are started.
//!
//! A further path is a variant here and a line in each function.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

/// What carries a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Path {
    /// TCP over the loopback interface.
    Tcp,
    /// TCP between two hosts of a testbed.
    TcpNs,
    /// A UNIX socket.
    Unix,
    /// The same as `Tcp`, both programs started by `tsumuji run`.
    Carried,
}

impl Path {
    /// All, in the order of tables.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::TcpNs, Self::Unix, Self::Carried];

    /// The name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::TcpNs => "tcp-ns",
            Self::Unix => "unix",
            Self::Carried => "shm",
        }
    }

    /// The path of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|path| path.name() == name)
    }

    /// Whether server and clients are in two hosts of a testbed; else both are in this one.
    pub fn is_between_hosts(self) -> bool {
        match self {
            Self::TcpNs => true,
            Self::Tcp | Self::Unix | Self::Carried => false,
        }
    }

    /// The link of `tsumuji run` that its programs are started with, if they are.
    fn link(self) -> Option<&'static str> {
        match self {
            Self::Carried => Some("shm"),
            Self::Tcp | Self::TcpNs | Self::Unix => None,
        }
    }

    /// The words that start a program of this path; the program's first word is `tsumuji` itself.
    pub(super) fn started(self, program: &[OsString]) -> Vec<OsString> {
        let Some(link) = self.link() else {
            return program.to_vec();
        };
        let run = ["run", "--link", link, "--"].map(OsString::from);
        let own = program.first().cloned();
        (own.into_iter().chain(run))
            .chain(program.iter().cloned())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every path is found by its name, and no two share one.
    #[test]
    fn names_are_read_back() {
        for path in Path::ALL {
            assert_eq!(Path::named(path.name()), Some(path));
        }
        assert_eq!(Path::named("sctp"), None);
    }

    /// A carried program is started by `tsumuji run`, all others as they are.
    #[test]
    fn carried_programs_are_run() {
        let program = ["tsumuji", "serve"].map(OsString::from);
        assert_eq!(Path::TcpNs.started(&program), program);
        let words = Path::Carried.started(&program);
        let expected = ["tsumuji", "run", "--link", "shm", "--", "tsumuji", "serve"];
        assert_eq!(words, expected.map(OsString::from));
    }
}
