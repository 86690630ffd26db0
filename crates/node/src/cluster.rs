//! The cluster file: which nodes there are, on several hosts, and where.
//!
//! ```toml
//! [[node]]
//! id = 0
//! host = "pc1"
//! addr = "udp:10.0.0.1:7000"
//!
//! [[node]]
//! id = 1
//! host = "pc2"
//! addr = "udp:pc2.lab:7000"
//! ```
//!
//! Ids are 0, 1, 2 … without gap, in any order. `host` is a name for people (default: `node 0`). An address may name a
//! host; it is resolved when the file is read. Read by `bootstrap::worker` and by programs that take `--cluster`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use tsumuji_link::LinkAddr;
use tsumuji_proto::NodeId;

use crate::membership::{Member, Membership};

/// Larger files are refused: 65,536 nodes take less.
const FILE_LIMIT_BYTES: u64 = 16 << 20;

/// A cluster file that was read and found sound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterFile {
    members: Vec<Member>,
}

/// Why a cluster file cannot be used. Each names the file, and the line where there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterFileError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// It is larger than any cluster's.
    #[error("{}: {bytes} bytes; a cluster file has at most {limit}", path.display())]
    TooLarge {
        /// Which file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The most accepted.
        limit: u64,
    },
    /// It says something that is not accepted.
    #[error("{}:{line}: {problem}", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong and what is accepted.
        problem: String,
    },
    /// The wanted node is not in it.
    #[error("{}: there is no {node}; the file has nodes 0 to {last}", path.display())]
    NoSuchNode {
        /// Which file.
        path: PathBuf,
        /// Asked for.
        node: NodeId,
        /// The highest there is.
        last: usize,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    node: Vec<Spanned<RawNode>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    id: Spanned<u16>,
    #[serde(alias = "name")]
    host: Option<String>,
    addr: Spanned<String>,
}

impl ClusterFile {
    /// Reads and checks a file.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ClusterFileError> {
        let path = path.as_ref();
        let error = |source| ClusterFileError::Read {
            path: path.to_owned(),
            source,
        };
        let bytes = std::fs::metadata(path).map_err(error)?.len();
        if bytes > FILE_LIMIT_BYTES {
            return Err(ClusterFileError::TooLarge {
                path: path.to_owned(),
                bytes,
                limit: FILE_LIMIT_BYTES,
            });
        }
        let text = std::fs::read_to_string(path).map_err(error)?;
        Self::parse(&text, path)
    }

    /// Checks a file's text; `path` is for messages.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ClusterFileError> {
        let error = |span: Option<Range<usize>>, problem: String| ClusterFileError::Content {
            path: path.to_owned(),
            line: line_of(text, span.map_or(0, |span| span.start)),
            problem,
        };
        let raw: RawFile = toml::from_str(text).map_err(|found| {
            let accepted = "accepted are [[node]] tables with `id`, `host` and `addr`";
            error(
                found.span(),
                format!("{}; {accepted}", found.message().replace('\n', " ")),
            )
        })?;
        if raw.node.is_empty() {
            return Err(error(
                None,
                "no [[node]] in the file; at least one is needed".to_owned(),
            ));
        }
        let nodes = raw.node.len();
        let mut members: Vec<Option<Member>> = Vec::new();
        members.resize_with(nodes, || None);
        for node in raw.node {
            let node = node.into_inner();
            let id = *node.id.get_ref();
            let Some(place) = members.get_mut(usize::from(id)) else {
                let problem = format!(
                    "field `id`: {id} leaves a gap; the ids of {nodes} nodes are 0 to {}",
                    nodes - 1
                );
                return Err(error(Some(node.id.span()), problem));
            };
            if place.is_some() {
                return Err(error(
                    Some(node.id.span()),
                    format!("field `id`: {id} is there twice"),
                ));
            }
            let addr = parse_addr(node.addr.get_ref())
                .map_err(|problem| error(Some(node.addr.span()), problem))?;
            let name = node.host.unwrap_or_else(|| NodeId(id).to_string());
            *place = Some(Member {
                id: NodeId(id),
                name,
                addr: LinkAddr::Inet(addr),
            });
            let twins = members
                .iter()
                .flatten()
                .filter(|member| member.addr == LinkAddr::Inet(addr))
                .count();
            if twins > 1 {
                return Err(error(
                    Some(node.addr.span()),
                    format!("field `addr`: {addr} is there twice"),
                ));
            }
        }
        // As many places as nodes, and none taken twice: all are taken.
        Ok(Self {
            members: members.into_iter().flatten().collect(),
        })
    }

    /// All nodes, in order of their ids.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The table as node `me` sees it; `path` is for the message if there is no such node.
    pub fn membership(&self, me: NodeId, path: &Path) -> Result<Membership, ClusterFileError> {
        if usize::from(me.0) >= self.members.len() {
            let last = self.members.len() - 1;
            return Err(ClusterFileError::NoSuchNode {
                path: path.to_owned(),
                node: me,
                last,
            });
        }
        Ok(Membership {
            me,
            members: self.members.clone(),
        })
    }
}

fn parse_addr(text: &str) -> Result<SocketAddr, String> {
    let accepted = "accepted is \"udp:ADDRESS:PORT\", for example \"udp:10.0.0.1:7000\"";
    let Some(rest) = text.strip_prefix("udp:") else {
        return Err(format!("field `addr`: `{text}`: {accepted}"));
    };
    let addr = match rest.parse::<SocketAddr>() {
        Ok(addr) => addr,
        Err(_) => match rest.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                let found = rest
                    .to_socket_addrs()
                    .map_err(|error| format!("field `addr`: host `{host}`: {error}"))?;
                let mut found: Vec<SocketAddr> = found.collect();
                found.sort_by_key(SocketAddr::is_ipv6); // version 4 first, like most clusters
                *found
                    .first()
                    .ok_or_else(|| format!("field `addr`: host `{host}` has no address"))?
            }
            _ => return Err(format!("field `addr`: `{text}`: {accepted}")),
        },
    };
    if addr.port() == 0 || addr.ip().is_unspecified() || addr.ip().is_multicast() {
        return Err(format!(
            "field `addr`: `{text}`: peers cannot send to it; {accepted}"
        ));
    }
    Ok(addr)
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text
        .as_bytes()
        .iter()
        .take(offset)
        .filter(|byte| **byte == b'\n')
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ClusterFile, String> {
        ClusterFile::parse(text, Path::new("lab.toml")).map_err(|error| error.to_string())
    }

    const TWO: &str = "[[node]]\nid = 1\naddr = \"udp:10.0.0.2:7000\"\n\n[[node]]\nid = 0\nhost = \"pc1\"\naddr = \"udp:[fe80::1]:7000\"\n";

    /// Nodes may stand in any order; names are optional.
    #[test]
    fn sound_file_is_read() {
        let file = parse(TWO).expect("sound");
        let names: Vec<&str> = file
            .members()
            .iter()
            .map(|member| member.name.as_str())
            .collect();
        assert_eq!(names, ["pc1", "node 1"]);
        assert_eq!(
            file.members()[1].addr,
            LinkAddr::Inet("10.0.0.2:7000".parse().expect("addr"))
        );
        assert!(
            file.membership(NodeId(1), Path::new("lab.toml"))
                .expect("member")
                .check()
                .is_ok()
        );
        let error = file
            .membership(NodeId(2), Path::new("lab.toml"))
            .expect_err("no node 2");
        assert_eq!(
            error.to_string(),
            "lab.toml: there is no node 2; the file has nodes 0 to 1"
        );
    }

    /// Every refusal is one line that names file, line and field, and says what is accepted.
    #[test]
    fn refusals_name_the_place() {
        let cases = [
            ("", "lab.toml:1: no [[node]]"),
            (
                &TWO.replace("id = 0", "id = 2"),
                "lab.toml:6: field `id`: 2 leaves a gap; the ids of 2 nodes are 0 to 1",
            ),
            (
                &TWO.replace("id = 0", "id = 1"),
                "lab.toml:6: field `id`: 1 is there twice",
            ),
            (
                &TWO.replace("[fe80::1]", "10.0.0.2"),
                "lab.toml:8: field `addr`: 10.0.0.2:7000 is there twice",
            ),
            (
                &TWO.replace("udp:10.0.0.2:7000", "tcp:10.0.0.2:7000"),
                "lab.toml:3: field `addr`: `tcp:10.0.0.2:7000`: accepted is",
            ),
            (
                &TWO.replace("10.0.0.2:7000", "10.0.0.2"),
                "lab.toml:3: field `addr`: `udp:10.0.0.2`: accepted is",
            ),
            (
                &TWO.replace("10.0.0.2:7000", "0.0.0.0:7000"),
                "lab.toml:3: field `addr`: `udp:0.0.0.0:7000`: peers cannot",
            ),
            (&TWO.replace("id = 0", "id = 70000"), "lab.toml:6: "),
            (
                &TWO.replace("host =", "hots ="),
                "lab.toml:7: unknown field `hots`",
            ),
            (
                &TWO.replace("id = 1\n", ""),
                "lab.toml:1: missing field `id`",
            ),
            (&TWO.replace("id = 1\n", "id = \n"), "lab.toml:2: "),
        ];
        for (text, start) in cases {
            let message = parse(text).expect_err(start);
            assert!(
                message.starts_with(start) && !message.contains('\n'),
                "`{message}` does not start with `{start}`"
            );
        }
        let missing = ClusterFile::read("/no/such/file.toml")
            .expect_err("no file")
            .to_string();
        assert!(missing.starts_with("/no/such/file.toml: "), "{missing}");
    }
}
