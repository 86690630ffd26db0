//! PageRank (Page, Brin, Motwani, Winograd, 1999): the stationary distribution of a walk that follows an edge with probability d, and else jumps anywhere.
//!
//! x[v] = d (Σ x[u] w(u, v) / W(u) + D / n) + (1 − d) / n, with W(u) the weight of all edges from u, and D the sum of x over nodes without any. The map shrinks
//! distances in the 1-norm by d at least, so ‖x − x*‖₁ ≤ ‖x − G(x)‖₁ / (1 − d): that is the certificate.

use std::ops::Range;

use super::edges::{Edges, Incoming};
use super::{Combine, FixedPoint};

/// A graph and d.
#[derive(Debug, Clone)]
pub struct PageRank {
    nodes: usize,
    damping: f64,
    /// Weights are shares w(u, v) / W(u).
    incoming: Incoming,
    /// Nodes that no edge leaves.
    dangling: Vec<u32>,
}

impl PageRank {
    /// `damping` is d, usually 0.85. Panics unless it is in 0..1.
    pub fn new(edges: &Edges, damping: f64) -> Self {
        assert!((0.0..1.0).contains(&damping), "d is in 0..1, not {damping}");
        let mut all = vec![0.0; edges.nodes];
        for edge in &edges.list {
            all[edge.from as usize] += edge.weight;
        }
        let mut incoming = edges.incoming();
        for (source, weight) in &mut incoming.entries {
            let all = all[*source as usize];
            *weight = if all > 0.0 { *weight / all } else { 0.0 };
        }
        let dangling = (0..edges.nodes as u32).filter(|node| all[*node as usize] <= 0.0);
        Self {
            nodes: edges.nodes,
            damping,
            incoming,
            dangling: dangling.collect(),
        }
    }

    /// The part of a node's value that does not come over edges; the same for all nodes.
    fn base(&self, x: &[f64]) -> f64 {
        let lost: f64 = self.dangling.iter().map(|node| x[*node as usize]).sum();
        (self.damping * lost + (1.0 - self.damping)) / self.nodes as f64
    }

    fn renewed(&self, node: usize, base: f64, x: &[f64]) -> f64 {
        let sources = self.incoming.of(node).iter();
        let sum: f64 = sources.map(|(u, share)| x[*u as usize] * share).sum();
        base + self.damping * sum
    }
}

impl FixedPoint for PageRank {
    fn len(&self) -> usize {
        self.nodes
    }

    fn start(&self, range: Range<usize>, x: &mut [f64]) {
        x[range].fill(1.0 / self.nodes as f64);
    }

    fn update(&mut self, range: Range<usize>, x: &mut [f64]) {
        let base = self.base(x);
        for node in range {
            x[node] = self.renewed(node, base, x);
        }
    }

    fn certificate(&self, range: Range<usize>, x: &[f64]) -> f64 {
        let base = self.base(x);
        let residual = |node: usize| (x[node] - self.renewed(node, base, x)).abs();
        range.map(residual).sum::<f64>() / (1.0 - self.damping)
    }

    fn combine(&self) -> Combine {
        Combine::Sum
    }

    fn reads(&self, range: Range<usize>) -> Option<Vec<u32>> {
        let mut reads = self.incoming.sources(range);
        reads.extend(&self.dangling);
        Some(reads)
    }
}
