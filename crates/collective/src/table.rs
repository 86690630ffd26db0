//! Tables that choose the algorithm of an operation: by link, size of the group and bytes.
//!
//! A table is a list of rules, of which the first that fits decides. `tsumuji tune` measures one; [`Table::default`] is built in. All members must
//! use the same: they compare hashes when they meet.

use std::fmt;
use std::path::Path;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tsumuji_node::text_file;
use tsumuji_node::tuning::{Found, Profile};

use crate::error::TableError;
use crate::group::Hash;
use crate::tuning::TUNING;

/// The link of groups whose members all read the machine's own profile, and so have the same table.
const ON_ONE_HOST: &str = "shm";

/// Algorithm of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Algorithm {
    /// One member sends to, or receives from, each of the others.
    Flat,
    /// Binomial tree.
    Tree,
    /// Each member forwards to the next as bytes arrive.
    Chain,
    /// The link's own broadcast, with repair.
    Native,
    /// In each round partners twice as far away exchange all they have. Only for messages that are sent without waiting for the receiver; longer ones
    /// take `halving`.
    Doubling,
    /// Pieces go round. Non-commutative operations take a chain instead, or a tree over `shm`.
    Ring,
    /// In each round partners twice as far away exchange halves of the rest, until each has a piece; then back.
    Halving,
    /// Within each host first, then between one member of each, then within each host again. Non-commutative operations take a tree instead, unless
    /// the members of each host have neighbouring ranks and all get the result. An all-gather that would take more than 16 MiB of extra memory takes
    /// `ring`.
    Hosts,
}

/// Operations with a choice of algorithms. The others have only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Operation {
    /// `flat`, `tree`, `chain`, `native`, `hosts`.
    Broadcast,
    /// `tree`, `chain`, `hosts`.
    Reduce,
    /// `doubling`, `halving`, `ring`, `tree`, `chain`, `hosts`. Rules of earlier versions that say `native` are passed over.
    AllReduce,
    /// `flat`, `ring`, `hosts`; parts of different lengths go as `flat` or `ring`.
    AllGather,
    /// `flat`. Rules of earlier versions that say `hosts` are passed over.
    Gather,
    /// As gather.
    Scatter,
    /// As gather.
    AllToAll,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 7] = [
        Self::Broadcast,
        Self::Reduce,
        Self::AllReduce,
        Self::AllGather,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
    ];

    /// Algorithms of the operation over a link.
    pub fn algorithms(self, can: Can) -> Vec<Algorithm> {
        let possible = |algorithm: &Algorithm| match algorithm {
            Algorithm::Native => can.broadcast,
            Algorithm::Hosts => can.hosts,
            _ => true,
        };
        let all = self.all_algorithms().iter().copied();
        all.filter(possible).collect()
    }

    fn all_algorithms(self) -> &'static [Algorithm] {
        use Algorithm::{Chain, Doubling, Flat, Halving, Hosts, Native, Ring, Tree};
        match self {
            Self::Broadcast => &[Flat, Tree, Chain, Native, Hosts],
            Self::Reduce => &[Tree, Chain, Hosts],
            Self::AllReduce => &[Doubling, Halving, Ring, Tree, Chain, Hosts],
            Self::AllGather => &[Flat, Ring, Hosts],
            Self::Gather | Self::Scatter | Self::AllToAll => &[Flat],
        }
    }

    /// Whether earlier versions had that algorithm. A rule for it is passed over.
    fn had(self, algorithm: Algorithm) -> bool {
        match algorithm {
            Algorithm::Hosts => matches!(self, Self::Gather | Self::Scatter | Self::AllToAll),
            Algorithm::Native => self == Self::AllReduce,
            _ => false,
        }
    }
}

/// Capabilities of a link and a group beside sending frames to one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Can {
    /// One transmission reaches all peers.
    pub broadcast: bool,
    /// Several members share a host, and others are on other hosts.
    pub hosts: bool,
}

impl Can {
    /// All capabilities.
    pub const ALL: Self = Self {
        broadcast: true,
        hosts: true,
    };
}

/// One rule of a table. A missing condition fits anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The operation.
    pub operation: Operation,
    /// The link's name: `shm`, `udp`, `packet`, `xdp`, `dpdk`, or `shm+udp` and its like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// Fits groups of at most so many members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_up_to: Option<usize>,
    /// Fits messages of at most so many bytes; for all-gather, parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_up_to: Option<u64>,
    /// The algorithm to use.
    pub algorithm: Algorithm,
}

/// Rules of which the first that fits decides; the operation's first algorithm if none does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Table {
    /// The rules in order.
    #[serde(rename = "rule")]
    pub rules: Vec<Rule>,
}

/// A file with a table: it may be a profile, whose thresholds endpoints read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default, rename = "rule")]
    rules: Vec<Rule>,
    #[serde(default, rename = "machine")]
    _machine: IgnoredAny,
    #[serde(default, rename = "link")]
    _thresholds: IgnoredAny,
}

/// A question to a table.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The operation.
    pub operation: Operation,
    /// The link's name.
    pub link: &'a str,
    /// Capabilities of the link.
    pub can: Can,
    /// Number of members.
    pub nodes: usize,
    /// Bytes of the message; for all-gather, of a part.
    pub bytes: u64,
}

fn rule(
    operation: Operation,
    link: Option<&str>,
    nodes_up_to: Option<usize>,
    bytes_up_to: Option<u64>,
    algorithm: Algorithm,
) -> Rule {
    Rule {
        operation,
        link: link.map(str::to_owned),
        nodes_up_to,
        bytes_up_to,
        algorithm,
    }
}

impl Default for Table {
    /// The best rules, or close to it, as measured with two cores and links within one machine.
    fn default() -> Self {
        use Algorithm::{Chain, Doubling, Flat, Halving, Hosts, Native, Ring, Tree};
        use Operation::{AllGather, AllReduce, Broadcast, Reduce};
        let eager = Some(TUNING.eager.bytes as u64);
        let rules = vec![
            rule(Broadcast, None, None, None, Hosts),
            rule(Reduce, None, None, None, Hosts),
            rule(AllReduce, None, None, None, Hosts),
            rule(AllGather, None, None, None, Hosts),
            // A short message costs the root a fraction of a microsecond; a long one is read from the root's memory by all at once.
            rule(Broadcast, Some("shm"), None, None, Flat),
            rule(Broadcast, None, Some(2), None, Flat),
            rule(Broadcast, None, None, eager, Tree),
            rule(Broadcast, Some("packet"), None, None, Native),
            rule(Broadcast, Some("xdp"), None, None, Native),
            // Of DPDK's devices, those that reach all stations by one frame.
            rule(Broadcast, Some("dpdk"), None, None, Native),
            rule(Broadcast, None, None, Some(64 << 10), Tree),
            rule(Broadcast, None, None, None, Chain),
            rule(Reduce, Some("shm"), None, None, Tree),
            rule(Reduce, None, None, Some(64 << 10), Tree),
            rule(Reduce, None, None, None, Chain),
            rule(AllReduce, None, None, eager, Doubling),
            rule(AllReduce, Some("shm"), Some(2), None, Ring),
            rule(AllReduce, Some("shm"), None, None, Tree),
            // Between hosts a message costs more than twice the bytes of a short one.
            rule(AllReduce, None, Some(4), Some(16 << 10), Doubling),
            rule(AllReduce, None, Some(2), None, Ring),
            // Halving has fewer messages than the ring; for groups other than powers of two it has two more, of the whole length.
            rule(AllReduce, None, None, Some(256 << 10), Halving),
            rule(AllReduce, None, None, None, Ring),
            rule(AllGather, None, None, eager, Flat),
            rule(AllGather, Some("shm"), None, None, Flat),
            rule(AllGather, None, None, None, Ring),
        ];
        Self { rules }
    }
}

impl Table {
    /// The table for a link of this name: that of the profile in force, or the built-in one. Between hosts, where all must have the same, the file
    /// that `TSUMUJI_TUNE` names counts, and a machine's own does not.
    pub fn in_force(link: &str) -> Result<Self, TableError> {
        let path = match Found::search()? {
            Found::Named(path, _) => path,
            Found::Own(path, _) if link == ON_ONE_HOST => path,
            Found::Own(..) | Found::None | Found::Foreign(..) => return Ok(Self::default()),
        };
        let table = Self::read(&path)?;
        Ok(if table.rules.is_empty() {
            Self::default()
        } else {
            table
        })
    }

    /// Reads and checks a table.
    pub fn read(path: &Path) -> Result<Self, TableError> {
        let text = Profile::text_of(path)?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Parses and checks a table from text that came from `origin`.
    pub fn parse(text: &str, origin: &str) -> Result<Self, TableError> {
        let bad = |problem: String| TableError::Parse {
            origin: origin.to_owned(),
            problem,
        };
        let file: File = toml::from_str(text).map_err(|error| {
            let line = text_file::line_of(text, error.span().map_or(0, |span| span.start));
            bad(format!(
                "line {line}: {}",
                error.message().replace('\n', " ")
            ))
        })?;
        let mut table = Self { rules: file.rules };
        (table.rules).retain(|rule| !rule.operation.had(rule.algorithm));
        for (number, rule) in (1..).zip(&table.rules) {
            let possible = rule.operation.all_algorithms();
            if !possible.contains(&rule.algorithm) {
                return Err(bad(format!(
                    "rule {number}: {:?} cannot be done by {}; accepted are {}",
                    rule.operation,
                    rule.algorithm,
                    possible
                        .iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join(", ")
                )));
            }
        }
        Ok(table)
    }

    /// The table as the text of a file.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default() // plain strings and numbers cannot fail
    }

    /// The algorithm for an operation.
    pub fn choose(&self, question: Question<'_>) -> Algorithm {
        let fits = |rule: &&Rule| {
            rule.operation == question.operation
                && rule
                    .link
                    .as_deref()
                    .is_none_or(|link| link == question.link)
                && rule.nodes_up_to.is_none_or(|nodes| question.nodes <= nodes)
                && rule.bytes_up_to.is_none_or(|bytes| question.bytes <= bytes)
                && (rule.algorithm != Algorithm::Native || question.can.broadcast)
                && (rule.algorithm != Algorithm::Hosts || question.can.hosts)
        };
        match self.rules.iter().find(fits) {
            Some(rule) => rule.algorithm,
            None => question.operation.all_algorithms()[0],
        }
    }

    /// The link whose rules count for a group, of which `is_near` says that all members are on one host. `link`: the endpoint's, which may lead to
    /// other hosts, too.
    pub(crate) fn link_of(&self, link: &'static str, is_near: bool) -> &'static str {
        let is_of_host = |rule: &Rule| rule.link.as_deref() == Some(ON_ONE_HOST);
        if is_near && link.starts_with("shm+") && self.rules.iter().any(is_of_host) {
            ON_ONE_HOST
        } else {
            link
        }
    }

    /// Hash of the table, the same on all machines.
    pub(crate) fn hash(&self) -> u64 {
        let mut hash = Hash::new(self.rules.len() as u64);
        for byte in self.to_toml().bytes() {
            hash.add(byte.into());
        }
        hash.0
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flat => "flat",
            Self::Tree => "tree",
            Self::Chain => "chain",
            Self::Native => "native",
            Self::Doubling => "doubling",
            Self::Halving => "halving",
            Self::Hosts => "hosts",
            Self::Ring => "ring",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups within a host count as of shared memory, where the table has rules for that.
    #[test]
    fn groups_within_a_host_are_near() {
        let table = Table::default();
        for (link, is_near, asked) in [
            ("shm+udp", true, "shm"),
            ("shm+udp", false, "shm+udp"),
            ("shm", false, "shm"),
            ("udp", true, "udp"),
        ] {
            assert_eq!(table.link_of(link, is_near), asked, "{link}");
        }
        let rules = table.rules.into_iter().filter(|rule| rule.link.is_none());
        let far = Table {
            rules: rules.collect(),
        };
        assert_eq!(far.link_of("shm+udp", true), "shm+udp");
    }

    /// A table is read as it was written, chooses by its first fitting rule, and has a hash different from others.
    #[test]
    fn tables_are_read_and_written() {
        let table = Table::default();
        let again = Table::parse(&table.to_toml(), "itself").expect("own text");
        assert_eq!((&again, again.hash()), (&table, table.hash()));
        let ask = |table: &Table, link, nodes, bytes| {
            let (link, broadcast) = match link {
                "a dead end" => ("dpdk", false),
                link => (link, link != "udp"),
            };
            table.choose(Question {
                operation: Operation::Broadcast,
                link,
                can: Can {
                    broadcast,
                    hosts: link == "shm+udp",
                },
                nodes,
                bytes,
            })
        };
        assert_eq!(ask(&table, "packet", 8, 1 << 20), Algorithm::Native);
        assert_eq!(ask(&table, "dpdk", 8, 1 << 20), Algorithm::Native);
        assert_eq!(ask(&table, "dpdk", 2, 1 << 20), Algorithm::Flat);
        assert_eq!(ask(&table, "a dead end", 8, 1 << 20), Algorithm::Chain);
        assert_eq!(ask(&table, "udp", 8, 1 << 20), Algorithm::Chain);
        assert_eq!(ask(&table, "shm", 8, 1 << 20), Algorithm::Flat);
        assert_eq!(ask(&table, "shm+udp", 8, 1 << 20), Algorithm::Hosts);
        let own = Table::parse(
            "[[rule]]\noperation = \"broadcast\"\nbytes_up_to = 10\nalgorithm = \"native\"\n",
            "test",
        )
        .expect("own");
        assert_ne!(own.hash(), table.hash());
        assert_eq!(ask(&own, "shm", 3, 10), Algorithm::Native);
        assert_eq!(ask(&own, "udp", 3, 10), Algorithm::Flat, "the link cannot");
        assert_eq!(ask(&own, "shm", 3, 11), Algorithm::Flat, "no rule fits");
    }

    /// Profiles of earlier versions are read.
    #[test]
    fn algorithms_of_earlier_versions_are_passed_over() {
        for (operation, algorithm, today) in [
            ("gather", "hosts", None),
            ("all-to-all", "hosts", None),
            ("all-gather", "hosts", Some(Algorithm::Hosts)),
            ("all-reduce", "native", None),
            ("broadcast", "native", Some(Algorithm::Native)),
        ] {
            let text =
                format!("[[rule]]\noperation = \"{operation}\"\nalgorithm = \"{algorithm}\"\n");
            let table = Table::parse(&text, "test").expect(&text);
            let first = table.rules.first().map(|rule| rule.algorithm);
            assert_eq!(first, today, "{text}");
        }
    }

    /// Errors are one line that names the place.
    #[test]
    fn bad_tables_are_refused() {
        for (text, part) in [
            ("rule = 1", "line 1"),
            (
                "[[rule]]\noperation = \"juggle\"\nalgorithm = \"tree\"",
                "line 2",
            ),
            (
                "[[rule]]\noperation = \"reduce\"\nalgorithm = \"native\"",
                "accepted are tree, chain, hosts",
            ),
            (
                "[[rule]]\noperation = \"reduce\"\nalgorithm = \"tree\"\nnodes = 3",
                "line 4",
            ),
        ] {
            let message = Table::parse(text, "t.toml").expect_err(text).to_string();
            assert!(message.contains(part), "{message}");
            assert!(
                !message.contains('\n') && message.starts_with("t.toml: "),
                "{message}"
            );
        }
    }
}
