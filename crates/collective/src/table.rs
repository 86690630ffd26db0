//! Which algorithm an operation takes: by link, size of the group and bytes.
//!
//! A table is a list of rules, the first that fits decides. `tsumuji tune` measures one; [`Table::default`] is built in. All
//! members must use the same: they compare hashes when they meet.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tsumuji_node::text_file;

use crate::error::TableError;
use crate::group::Hash;
use crate::ledger::EAGER_BYTES;

/// Names the file with the table, for all programs of a cluster alike.
const TUNE_VARIABLE: &str = "TSUMUJI_TUNE";

/// Largest file that is read: some thousand rules.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// How an operation is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Algorithm {
    /// One member sends to, or takes from, each of the others.
    Flat,
    /// Binomial tree.
    Tree,
    /// Each passes on to the next what comes, as it comes.
    Chain,
    /// The link's own broadcast, with repair. All-reduce: up a chain or tree first.
    Native,
    /// Partners twice as far away each round exchange all they have. Only what is sent without waiting for its receiver; longer ones take
    /// `halving`.
    Doubling,
    /// Pieces go round. Operations whose operands may not be exchanged take a chain instead.
    Ring,
    /// Partners twice as far away each round exchange halves of what is left, until each has a piece; then back.
    Halving,
}

/// What is chosen for. The others have one way of being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Operation {
    /// `flat`, `tree`, `chain`, `native`.
    Broadcast,
    /// `tree`, `chain`.
    Reduce,
    /// `doubling`, `halving`, `ring`, `tree`, `chain`, `native`.
    AllReduce,
    /// `flat`, `ring`.
    AllGather,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Broadcast,
        Self::Reduce,
        Self::AllReduce,
        Self::AllGather,
    ];

    /// What it can be done by over a link.
    pub fn algorithms(self, can: Can) -> Vec<Algorithm> {
        let possible = |algorithm: &Algorithm| match algorithm {
            Algorithm::Native => can.broadcast,
            _ => true,
        };
        let all = self.all_algorithms().iter().copied();
        all.filter(possible).collect()
    }

    fn all_algorithms(self) -> &'static [Algorithm] {
        use Algorithm::{Chain, Doubling, Flat, Halving, Native, Ring, Tree};
        match self {
            Self::Broadcast => &[Flat, Tree, Chain, Native],
            Self::Reduce => &[Tree, Chain],
            Self::AllReduce => &[Doubling, Halving, Ring, Tree, Chain, Native],
            Self::AllGather => &[Flat, Ring],
        }
    }
}

/// What a link can do beside sending frames to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Can {
    /// One transmit reaches all.
    pub broadcast: bool,
}

impl Can {
    /// Everything.
    pub const ALL: Self = Self { broadcast: true };
}

/// One line of a table. What is left out fits anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Of which operation.
    pub operation: Operation,
    /// The link's name: `shm`, `udp`, `packet`, `xdp`, `dpdk`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// Groups of at most so many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_up_to: Option<usize>,
    /// Messages of at most so many bytes; of an all-gather, one member's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_up_to: Option<u64>,
    /// Is done like this.
    pub algorithm: Algorithm,
}

/// Rules; the first that fits decides, and the built-in ones where none does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// In order.
    #[serde(default, rename = "rule")]
    pub rules: Vec<Rule>,
}

/// What a table is asked.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Of which operation.
    pub operation: Operation,
    /// The link's name.
    pub link: &'a str,
    /// What it can do.
    pub can: Can,
    /// Members.
    pub nodes: usize,
    /// Of the message; of an all-gather, one member's.
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
    /// What was best, or close to it, where it was measured: two cores, links of one machine.
    fn default() -> Self {
        use Algorithm::{Chain, Doubling, Flat, Halving, Native, Ring, Tree};
        use Operation::{AllGather, AllReduce, Broadcast, Reduce};
        let eager = Some(EAGER_BYTES as u64);
        let rules = vec![
            // A short message costs the root a fraction of a microsecond; a long one is read from the root's memory by all at once.
            rule(Broadcast, Some("shm"), None, None, Flat),
            rule(Broadcast, None, Some(2), None, Flat),
            rule(Broadcast, None, None, eager, Tree),
            rule(Broadcast, Some("packet"), None, None, Native),
            rule(Broadcast, Some("xdp"), None, None, Native),
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
            // Fewer messages than the ring has; the two more that groups other than powers of two take are longer.
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
    /// The table that the variable names, or the one built in.
    pub fn from_env() -> Result<Self, TableError> {
        match std::env::var_os(TUNE_VARIABLE).filter(|path| !path.is_empty()) {
            Some(path) => Self::read(Path::new(&path)),
            None => Ok(Self::default()),
        }
    }

    /// Reads a table.
    pub fn read(path: &Path) -> Result<Self, TableError> {
        let text = text_file::read(path, FILE_BYTES_MAX).map_err(|source| TableError::Read {
            path: path.to_owned(),
            source,
        })?;
        let text = text.ok_or_else(|| TableError::TooLarge {
            path: path.to_owned(),
            limit: FILE_BYTES_MAX,
        })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads a table from text that came from `origin`.
    pub fn parse(text: &str, origin: &str) -> Result<Self, TableError> {
        let bad = |problem: String| TableError::Parse {
            origin: origin.to_owned(),
            problem,
        };
        let table: Self = toml::from_str(text).map_err(|error| {
            let line = text_file::line_of(text, error.span().map_or(0, |span| span.start));
            bad(format!(
                "line {line}: {}",
                error.message().replace('\n', " ")
            ))
        })?;
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

    /// As a file.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default() // plain strings and numbers: nothing to fail
    }

    /// What to do.
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
        };
        match self.rules.iter().find(fits) {
            Some(rule) => rule.algorithm,
            None => question.operation.all_algorithms()[0],
        }
    }

    /// Equal tables have equal hashes, on all machines.
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
            Self::Ring => "ring",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table reads back as it was written, chooses by its first fitting rule, and its hash tells it from others.
    #[test]
    fn tables_are_read_and_written() {
        let table = Table::default();
        let again = Table::parse(&table.to_toml(), "itself").expect("own text");
        assert_eq!((&again, again.hash()), (&table, table.hash()));
        let ask = |table: &Table, link, nodes, bytes| {
            table.choose(Question {
                operation: Operation::Broadcast,
                link,
                can: Can {
                    broadcast: link != "udp",
                },
                nodes,
                bytes,
            })
        };
        assert_eq!(ask(&table, "packet", 8, 1 << 20), Algorithm::Native);
        assert_eq!(ask(&table, "udp", 8, 1 << 20), Algorithm::Chain);
        assert_eq!(ask(&table, "shm", 8, 1 << 20), Algorithm::Flat);
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

    /// What is wrong is said in one line that names the place.
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
                "accepted are tree, chain",
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
