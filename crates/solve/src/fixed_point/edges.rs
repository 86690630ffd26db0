//! Edge lists: `u v [weight]` a line. The text may be anything; every length has a limit.

use std::io::Read;
use std::path::Path;
use tsumuji_numbers::{FileError, Lines, Place, Source, shown};

/// Most nodes, and so the greatest number of a node is one less: a run of that many needs some gigabytes.
pub const NODES_MAX: u32 = 1 << 26;
/// Most edges: they need 16 GiB.
pub const EDGES_MAX: usize = 1 << 30;
/// Longest line. Two numbers of nodes and a weight need much less.
const LINE_BYTES_MAX: u64 = 1024;
/// Greatest weight: sums of any path stay finite.
const WEIGHT_MAX: f64 = 1e290;

/// A directed edge.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Edge {
    /// Where it begins.
    pub from: u32,
    /// Where it ends.
    pub to: u32,
    /// 1 if the list says nothing.
    pub weight: f64,
}

/// A directed graph. Nodes count from 0.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Edges {
    /// One more than the greatest number of a node.
    pub nodes: usize,
    /// In the order of the list.
    pub list: Vec<Edge>,
}

impl Edges {
    /// Reads a file, compressed by gzip or not.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let (source, reader) = Source::open(path, |_| ())?;
        Self::of_lines(&source, reader)
    }

    /// Reads a list from anywhere; errors call it `name`.
    pub fn parse(name: &str, text: impl Read) -> Result<Self, FileError> {
        let source = Source {
            file: name.into(),
            length_bytes: u64::MAX,
            memory_limit_bytes: u64::MAX,
        };
        Self::of_lines(&source, text)
    }

    fn of_lines(source: &Source, text: impl Read) -> Result<Self, FileError> {
        let mut edges = Self::default();
        let mut lines = Lines::new(source, text, LINE_BYTES_MAX);
        while let Some(line) = lines.next_line()? {
            let edge = edge_of(line).and_then(|edge| match edges.list.len() < EDGES_MAX {
                true => Ok(edge),
                false => Err(format!("there are more than {EDGES_MAX} edges")),
            });
            match edge {
                Ok(Some(edge)) => {
                    edges.nodes = edges.nodes.max(edge.from.max(edge.to) as usize + 1);
                    let held = edges.list.len();
                    if held == edges.list.capacity() {
                        // The list twice as long, and the edges sorted by their ends.
                        let bytes = 4 * held as u128 * size_of::<Edge>() as u128;
                        source.check_memory(lines.place(), bytes)?;
                    }
                    edges.list.push(edge);
                }
                Ok(None) => {}
                Err(problem) => {
                    return Err(lines.error(format!(
                        "{problem}; accepted are `u v [weight]` with nodes 0 to {} and a weight of 0 to 1e290, and comments after `#`",
                        NODES_MAX - 1
                    )));
                }
            }
        }
        if edges.list.is_empty() {
            let what = "it has no edges; accepted are lines `u v [weight]`, and comments after `#`";
            return Err(source.error(Place::Whole, what));
        }
        Ok(edges)
    }

    /// Edges by the node in which they end: for each a source and a weight.
    pub(super) fn incoming(&self) -> Incoming {
        let mut starts = vec![0_usize; self.nodes + 1];
        for edge in &self.list {
            starts[edge.to as usize + 1] += 1;
        }
        for node in 0..self.nodes {
            starts[node + 1] += starts[node];
        }
        let mut next = starts.clone();
        let mut entries = vec![(0, 0.0); self.list.len()];
        for edge in &self.list {
            let place = &mut next[edge.to as usize];
            entries[*place] = (edge.from, edge.weight);
            *place += 1;
        }
        Incoming { starts, entries }
    }
}

/// Edges sorted by where they end.
#[derive(Debug, Clone)]
pub(super) struct Incoming {
    starts: Vec<usize>,
    pub(super) entries: Vec<(u32, f64)>,
}

impl Incoming {
    pub(super) fn of(&self, node: usize) -> &[(u32, f64)] {
        &self.entries[self.starts[node]..self.starts[node + 1]]
    }

    /// Sources of the edges that end in a range of nodes.
    pub(super) fn sources(&self, nodes: std::ops::Range<usize>) -> Vec<u32> {
        let entries = &self.entries[self.starts[nodes.start]..self.starts[nodes.end]];
        entries.iter().map(|(source, _)| *source).collect()
    }
}

/// The edge of a line, if it has one, or what is wrong.
fn edge_of(line: &[u8]) -> Result<Option<Edge>, String> {
    let line = line.split(|byte| *byte == b'#').next().unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_| "the line is not UTF-8".to_string())?;
    let mut words = line.split_whitespace();
    let Some(from) = words.next() else {
        return Ok(None);
    };
    let from = node_of(from)?;
    let to = node_of(words.next().ok_or("there is one node only")?)?;
    let weight = words.next().map_or(Ok(1.0), weight_of)?;
    match words.next() {
        Some(word) => Err(format!("{} is one word too many", shown(word))),
        None => Ok(Some(Edge { from, to, weight })),
    }
}

fn node_of(word: &str) -> Result<u32, String> {
    let node = word.parse().ok().filter(|node| *node < NODES_MAX);
    node.ok_or_else(|| format!("{} is no node", shown(word)))
}

fn weight_of(word: &str) -> Result<f64, String> {
    let weight = word.parse().ok();
    let weight = weight.filter(|weight| (0.0..=WEIGHT_MAX).contains(weight));
    weight.ok_or_else(|| format!("{} is no weight", shown(word)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &[u8]) -> Result<Edges, String> {
        Edges::parse("e", text).map_err(|error| error.to_string())
    }

    /// Comments, empty lines, weights, and a last line without an end.
    #[test]
    fn lists_are_read() {
        let edges = parse(b"# a graph\n0 1\n\n 2\t0 2.5 # back\r\n1 2 0").unwrap();
        let edge = |from, to, weight| Edge { from, to, weight };
        assert_eq!(edges.nodes, 3);
        assert_eq!(
            edges.list,
            [edge(0, 1, 1.0), edge(2, 0, 2.5), edge(1, 2, 0.0)]
        );
        assert_eq!(edges.incoming().of(2), [(1, 0.0)]);
        assert_eq!(edges.incoming().sources(0..2), [2, 0]);
    }

    /// What is wrong is named by its line, in one line.
    #[test]
    fn faults_are_named() {
        for (text, expected) in [
            (
                &b"0 1\n0 x\n"[..],
                "e: line 2: 'x' is no node; accepted are",
            ),
            (b"0\n", "e: line 1: there is one node only"),
            (b"0 -1", "e: line 1: '-1' is no node"),
            (b"0 67108864", "e: line 1: '67108864' is no node"),
            (b"0 1 -2", "e: line 1: '-2' is no weight"),
            (b"0 1 nan", "e: line 1: 'nan' is no weight"),
            (b"0 1 inf", "e: line 1: 'inf' is no weight"),
            (b"0 1 2 3", "e: line 1: '3' is one word too many"),
            (b"0 1 \x1b[2J", "e: line 1: '\\u{1b}[2J' is no weight"),
            (b"\xff 1", "e: line 1: the line is not UTF-8"),
            (b"# nothing\n", "e: it has no edges"),
            (
                &[b'1'; 2000],
                "e: line 1: the line is longer than 1024 bytes",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
            assert!(!error.contains('\n'));
        }
        let missing = Edges::read(Path::new("/no/such/file")).unwrap_err();
        assert!(missing.to_string().starts_with("/no/such/file: cannot"));
    }

    proptest! {
        /// Any bytes are a graph or an error, and errors have one line.
        #[test]
        fn any_bytes(bytes in prop::collection::vec(prop::sample::select(b"0123 \n#.-e\xff\x1b".to_vec()), 0..200)) {
            match parse(&bytes) {
                Ok(edges) => prop_assert!(edges.list.iter().all(|edge| (edge.from.max(edge.to) as usize) < edges.nodes)),
                Err(error) => prop_assert!(!error.contains('\n')),
            }
        }
    }
}
