//! What carries the streams: the one place that knows each path's name, where its ends are, and how their programs are started.
//!
//! A further path is a variant here and a line in each function.

use std::ffi::{OsStr, OsString};

use serde::{Deserialize, Serialize};

use crate::serve::WORD;

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
    /// The same as `Tcp`, the clients alone started by `tsumuji run`: their connections fall back to TCP.
    Fallback,
    /// The same as `TcpNs`, both programs started by `tsumuji run`, with a gateway in each host, over UDP.
    Udp,
    /// Over raw Ethernet.
    Packet,
    /// Over AF_XDP.
    Xdp,
    /// Over DPDK, by a device that leaves the interface to the kernel as well.
    Dpdk,
}

impl Path {
    /// All, in the order of tables.
    pub const ALL: [Self; 9] = [
        Self::Tcp,
        Self::TcpNs,
        Self::Unix,
        Self::Carried,
        Self::Fallback,
        Self::Udp,
        Self::Packet,
        Self::Xdp,
        Self::Dpdk,
    ];

    /// The name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::TcpNs => "tcp-ns",
            Self::Unix => "unix",
            Self::Carried => "shm",
            Self::Fallback => "fallback",
            Self::Udp => "udp",
            Self::Packet => "packet",
            Self::Xdp => "xdp",
            Self::Dpdk => "dpdk",
        }
    }

    /// The link of its gateways.
    pub(super) fn link(self) -> &'static str {
        match self {
            Self::Dpdk => "dpdk:net_af_packet",
            _ => self.name(),
        }
    }

    /// Whether server and clients are in two hosts of a testbed; else both are in this one.
    pub fn is_between_hosts(self) -> bool {
        self == Self::TcpNs || self.has_gateways()
    }

    /// Whether a gateway in each host carries the streams.
    pub(super) fn has_gateways(self) -> bool {
        matches!(self, Self::Udp | Self::Packet | Self::Xdp | Self::Dpdk)
    }

    /// The words that start a server or client of this path; `program` is `tsumuji`. `node`: the options that say which node of
    /// which hosts file a host is.
    pub(super) fn started(
        self,
        program: &OsStr,
        node: &[OsString],
        is_client: bool,
    ) -> Vec<OsString> {
        let is_run = match self {
            Self::Fallback => is_client,
            _ => self == Self::Carried || self.has_gateways(),
        };
        let mut words: Vec<OsString> = Vec::new();
        if is_run {
            words.extend([program.to_owned(), "run".into()]);
            words.extend_from_slice(node);
            words.push("--".into());
        }
        words.extend([program.to_owned(), WORD.into()]);
        words
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// No two paths share a name, by which users choose them.
    #[test]
    fn names_differ() {
        let names = HashSet::from(Path::ALL.map(Path::name));
        assert_eq!(names.len(), Path::ALL.len());
    }

    /// A carried program is started by `tsumuji run`, all others as they are.
    #[test]
    fn carried_programs_are_run() {
        let program = OsStr::new("tsumuji");
        let plain = ["tsumuji", WORD];
        assert_eq!(Path::TcpNs.started(program, &[], true), plain);
        assert_eq!(Path::Fallback.started(program, &[], false), plain);
        let words = Path::Carried.started(program, &[], false);
        assert_eq!(Path::Fallback.started(program, &[], true), words);
        assert_eq!(words, ["tsumuji", "run", "--", "tsumuji", WORD]);
        let words = Path::Xdp.started(program, &["--id".into(), "1".into()], true);
        let expected = ["tsumuji", "run", "--id", "1", "--", "tsumuji", WORD];
        assert_eq!(words, expected);
    }
}
