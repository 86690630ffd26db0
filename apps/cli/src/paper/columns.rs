//! The contenders of Suci's figures: ours in the forms that a figure compares, and the MPI libraries.

use std::io::Write as _;

use anyhow::Context;
use tempfile::NamedTempFile;
use tsumuji_bench::contest::{Ours, Peer};
use tsumuji_collective::Table;
use tsumuji_node::Congestion;

use super::figure::Figure;

/// One of ours: its name in the tables of statements, and how it differs from the usual.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) name: &'static str,
    congestion: Congestion,
    /// Senders wait for the receiver, as the paper's program for its figure 8.
    slow_write: bool,
    /// Broadcasts take the binomial tree at every size, as the paper's program for its figure 9.
    tree: bool,
}

const fn column(name: &'static str, congestion: Congestion) -> Column {
    Column {
        name,
        congestion,
        slow_write: false,
        tree: false,
    }
}

/// In every figure. The paper's congestion control with the default K, and with K = 0, where nothing is sent again unasked.
const ALWAYS: [Column; 3] = [
    column("credit", Congestion::Credit),
    column("suci", Congestion::SUCI),
    column("suci, K = 0", Congestion::SUCI_ASKING),
];
const SLOW: [Column; 2] = [
    Column {
        slow_write: true,
        ..column("credit, slow write", Congestion::Credit)
    },
    Column {
        slow_write: true,
        ..column("suci, slow write", Congestion::SUCI)
    },
];
const TREE: [Column; 2] = [
    Column {
        tree: true,
        ..column("credit, binomial tree", Congestion::Credit)
    },
    Column {
        tree: true,
        ..column("suci, binomial tree", Congestion::SUCI)
    },
];

/// The peers, where there are few enough ranks; MPICH is the one that the paper has.
pub(super) const PEERS: [(Peer, &str); 2] = [(Peer::Mpich, "MPICH"), (Peer::OpenMpi, "Open MPI")];

/// Ours in this figure, in order.
pub(super) fn of(figure: Figure) -> Vec<Column> {
    let more: &[Column] = match figure.name() {
        "suci-fig8" => &SLOW,
        "suci-fig9" => &TREE,
        _ => &[],
    };
    [&ALWAYS, more].concat()
}

/// The table of algorithms that has broadcasts take the binomial tree, as a file.
pub(super) fn tree_table() -> anyhow::Result<NamedTempFile> {
    let mut file = NamedTempFile::new().context("a temporary file")?;
    let rule = "[[rule]]\noperation = \"broadcast\"\nalgorithm = \"tree\"\n\n";
    let usual = Table::default().to_toml();
    file.write_all([rule, &usual].concat().as_bytes())
        .context("a temporary file")?;
    Ok(file)
}

impl Column {
    /// Ours, as this column has it. `table`: see `tree_table`.
    pub(super) fn ours(&self, usual: &Ours, table: &NamedTempFile) -> Ours {
        Ours {
            congestion: Some(self.congestion),
            slow_write: self.slow_write,
            tune: (self.tree).then(|| (table.path().to_owned(), "binomial tree")),
            ..usual.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsumuji_collective::Algorithm;

    /// The first rule of the table is the tree, and the others are the usual ones.
    #[test]
    fn broadcasts_take_the_tree() {
        let table = Table::read(tree_table().unwrap().path()).unwrap();
        assert_eq!(table.rules[0].algorithm, Algorithm::Tree);
        assert_eq!(table.rules[0].link, None);
        assert_eq!(table.rules[1..], Table::default().rules);
    }
}
