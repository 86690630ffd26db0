//! Any bytes read as an edge list: a graph whose edges join its nodes, or an error of one line.

use tsumuji_solve::fixed_point::Edges;

/// The target.
pub fn edges(bytes: &[u8]) {
    match Edges::parse("edges", bytes) {
        Ok(edges) => {
            let is_joined = |node: u32| (node as usize) < edges.nodes;
            assert!((edges.list.iter()).all(|edge| is_joined(edge.from) && is_joined(edge.to)));
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
}
