//! Shortest paths from one node (Bellman, Ford): x[v] = min (x[u] + w(u, v)) over the edges that end in v.
//!
//! x begins above the distances and falls. So it is never below them, but for the rounding of sums; and where no edge is violated it is not above them. The
//! certificate is the greatest violation |x[v] − min (x[u] + w)|; 0 means that the distances are exact. A node that no path reaches stays at [`UNREACHED`].

use std::ops::Range;

use super::FixedPoint;
use super::edges::{Edges, Incoming};

/// The distance of a node that no path reaches. It is finite, because values of boards are; adding a weight does not change it.
pub const UNREACHED: f64 = f64::MAX;

/// A graph with weights of 0 or more, and a source.
#[derive(Debug, Clone)]
pub struct ShortestPaths {
    nodes: usize,
    source: usize,
    incoming: Incoming,
}

impl ShortestPaths {
    /// Panics unless the graph has the node `source`.
    pub fn new(edges: &Edges, source: usize) -> Self {
        assert!(source < edges.nodes, "{source} of {} nodes", edges.nodes);
        Self {
            nodes: edges.nodes,
            source,
            incoming: edges.incoming(),
        }
    }

    fn renewed(&self, node: usize, x: &[f64]) -> f64 {
        if node == self.source {
            return 0.0;
        }
        let edges = self.incoming.of(node).iter();
        let lengths = edges.map(|(u, weight)| x[*u as usize] + weight);
        lengths.fold(UNREACHED, f64::min)
    }
}

impl FixedPoint for ShortestPaths {
    fn len(&self) -> usize {
        self.nodes
    }

    fn start(&self, range: Range<usize>, x: &mut [f64]) {
        x[range.clone()].fill(UNREACHED);
        if range.contains(&self.source) {
            x[self.source] = 0.0;
        }
    }

    fn update(&mut self, range: Range<usize>, x: &mut [f64]) {
        for node in range {
            x[node] = self.renewed(node, x);
        }
    }

    fn certificate(&self, range: Range<usize>, x: &[f64]) -> f64 {
        let violation = |node: usize| (x[node] - self.renewed(node, x)).abs();
        range.map(violation).fold(0.0, f64::max)
    }

    fn reads(&self, range: Range<usize>) -> Option<Vec<u32>> {
        Some(self.incoming.sources(range))
    }
}
