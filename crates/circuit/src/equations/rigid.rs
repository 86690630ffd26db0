//! Nodes whose voltages differ by constants: joined by short circuits, inductors and voltage sources.
//!
//! Called by `super`. Such nodes share one unknown, that of their root, or none if ground is among them. The sources of a sweep change the
//! constants but not which nodes share: [`Rigid::offsets`] is computed for each point.
//!
//! Invariant: `tree` lists each node that is no root once, after the node it hangs on.

use super::{EquationsError, Excitation, is_swept};
use crate::netlist::{Netlist, NodeId, Pair};
use crate::twofold::Twofold;

/// What joins two nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Link {
    Short,
    /// Place of the source in [`Netlist::voltages`].
    Voltage(u32),
}

/// A node hangs on another: its voltage is that of `from`, and the source's more (or less, if reversed).
#[derive(Debug, Clone, Copy)]
struct Hanging {
    node: u32,
    from: u32,
    link: Link,
    is_reversed: bool,
}

/// Which nodes share an unknown.
#[derive(Debug)]
pub(super) struct Rigid {
    /// The root of each node: ground if that is joined, any of them otherwise.
    pub(super) root: Vec<u32>,
    tree: Vec<Hanging>,
}

/// Disjoint sets of numbers.
#[derive(Debug, Clone)]
pub(super) struct Sets {
    parent: Vec<u32>,
}

impl Sets {
    pub(super) fn new(count: usize) -> Self {
        Self {
            parent: (0..count as u32).collect(),
        }
    }

    /// The set of `number`; paths are halved on the way.
    pub(super) fn find(&mut self, mut number: u32) -> u32 {
        while self.parent[number as usize] != number {
            let above = self.parent[self.parent[number as usize] as usize];
            self.parent[number as usize] = above;
            number = above;
        }
        number
    }

    /// Joins two sets under the smaller number, so that ground stays its own root. `false`: they were one already.
    pub(super) fn join(&mut self, a: u32, b: u32) -> bool {
        let (a, b) = (self.find(a), self.find(b));
        self.parent[a.max(b) as usize] = a.min(b);
        a != b
    }
}

impl Rigid {
    /// Joins nodes. Sources with `is_branch` get equations of their own instead.
    pub(super) fn new(netlist: &Netlist, is_branch: &[bool]) -> Result<Self, EquationsError> {
        let mut sets = Sets::new(netlist.nodes.len());
        let mut links: Vec<(Pair, Link)> = Vec::new();
        // A loop of these has no voltage, and its current is not asked for.
        for &nodes in &netlist.shorts {
            if sets.join(nodes[0].0, nodes[1].0) {
                links.push((nodes, Link::Short));
            }
        }
        let voltages = (0..)
            .zip(&netlist.voltages)
            .filter(|(place, _)| !is_branch[*place as usize]);
        let (zero, others): (Vec<_>, Vec<_>) =
            voltages.partition(|(place, source)| source.value == 0.0 && !is_swept(netlist, *place));
        for (place, source) in zero {
            if sets.join(source.nodes[0].0, source.nodes[1].0) {
                links.push((source.nodes, Link::Voltage(place)));
            }
        }
        for (place, source) in others {
            if !sets.join(source.nodes[0].0, source.nodes[1].0) {
                return Err(closed_loop(
                    netlist,
                    &links,
                    source.nodes,
                    source.name,
                    Some(source.value),
                ));
            }
            links.push((source.nodes, Link::Voltage(place)));
        }
        check_branches(netlist, is_branch, &links, &mut sets.clone())?;
        let root: Vec<u32> = (0..netlist.nodes.len() as u32)
            .map(|node| sets.find(node))
            .collect();
        let tree = hang(&links, &root);
        Ok(Self { root, tree })
    }

    /// Voltage of each node less that of its root.
    pub(super) fn offsets(&self, excitation: &Excitation<'_>) -> Vec<Twofold> {
        let mut offsets = vec![Twofold::ZERO; self.root.len()];
        for hanging in &self.tree {
            let volts = match hanging.link {
                Link::Short => 0.0,
                Link::Voltage(place) => excitation.volts(place),
            };
            let signed = if hanging.is_reversed { -volts } else { volts };
            offsets[hanging.node as usize] = offsets[hanging.from as usize] + Twofold::from(signed);
        }
        offsets
    }
}

/// Sources with equations of their own must not close loops either: nothing would say how current divides.
fn check_branches(
    netlist: &Netlist,
    is_branch: &[bool],
    links: &[(Pair, Link)],
    sets: &mut Sets,
) -> Result<(), EquationsError> {
    let voltages = netlist
        .voltages
        .iter()
        .zip(is_branch)
        .filter(|(_, is_branch)| **is_branch);
    let voltages = voltages.map(|(source, _)| (source.nodes, source.name, Some(source.value)));
    let gains = netlist
        .voltage_gains
        .iter()
        .map(|gain| (gain.nodes, gain.name, None));
    for (nodes, name, value) in voltages.chain(gains) {
        if !sets.join(nodes[0].0, nodes[1].0) {
            return Err(closed_loop(netlist, links, nodes, name, value));
        }
    }
    Ok(())
}

/// Breadth first from the roots.
fn hang(links: &[(Pair, Link)], root: &[u32]) -> Vec<Hanging> {
    let (starts, entries) = adjacency(links, root.len());
    let mut tree: Vec<Hanging> = Vec::with_capacity(links.len());
    let mut is_reached: Vec<bool> = (0..).zip(root).map(|(node, &root)| node == root).collect();
    let mut visit = |from: u32, tree: &mut Vec<Hanging>| {
        for &entry in &entries[starts[from as usize]..starts[from as usize + 1]] {
            let (nodes, link) = links[entry as usize];
            // Plus is higher by the source's voltage.
            let is_reversed = nodes[0].0 == from;
            let node = nodes[usize::from(is_reversed)].0;
            if !std::mem::replace(&mut is_reached[node as usize], true) {
                tree.push(Hanging {
                    node,
                    from,
                    link,
                    is_reversed,
                });
            }
        }
    };
    for (node, &root) in (0..).zip(root) {
        if node == root {
            let mut next = tree.len();
            visit(node, &mut tree);
            while next < tree.len() {
                visit(tree[next].node, &mut tree);
                next += 1;
            }
        }
    }
    tree
}

/// Places of links by node.
fn adjacency(links: &[(Pair, Link)], nodes: usize) -> (Vec<usize>, Vec<u32>) {
    let mut starts = vec![0usize; nodes + 1];
    for end in links.iter().flat_map(|(nodes, _)| nodes) {
        starts[end.index() + 1] += 1;
    }
    for node in 0..nodes {
        starts[node + 1] += starts[node];
    }
    let mut fill = starts.clone();
    let mut entries = vec![0u32; 2 * links.len()];
    for (place, (nodes, _)) in (0..).zip(links) {
        for end in nodes {
            entries[fill[end.index()]] = place;
            fill[end.index()] += 1;
        }
    }
    (starts, entries)
}

/// The error for a source whose ends are joined by others already.
fn closed_loop(
    netlist: &Netlist,
    links: &[(Pair, Link)],
    [plus, minus]: Pair,
    name: u32,
    value: Option<f64>,
) -> EquationsError {
    let element = netlist.sources.get(name).to_owned();
    if plus == minus {
        return EquationsError::Loop {
            element,
            nodes: vec![netlist.node_name(plus).to_owned()],
            volts: value,
        };
    }
    let root: Vec<u32> = (0..netlist.nodes.len() as u32)
        .map(|node| if node == minus.0 { node } else { u32::MAX })
        .collect();
    let tree = hang(links, &root);
    let mut above = vec![None; netlist.nodes.len()];
    for hanging in &tree {
        above[hanging.node as usize] = Some(hanging);
    }
    let mut nodes = vec![netlist.node_name(plus).to_owned()];
    let mut node = plus.0;
    // Voltage from minus to plus along the others; a loop through dependent sources has none that is known.
    let mut around = Some(0.0);
    while let Some(hanging) = above[node as usize] {
        let volts = match hanging.link {
            Link::Short => 0.0,
            Link::Voltage(place) => netlist.voltages[place as usize].value,
        };
        around = around.map(|sum| {
            if hanging.is_reversed {
                sum - volts
            } else {
                sum + volts
            }
        });
        node = hanging.from;
        nodes.push(netlist.node_name(NodeId(node)).to_owned());
    }
    if node != minus.0 {
        around = None;
        nodes.push(netlist.node_name(minus).to_owned());
    }
    let volts = value.zip(around).map(|(value, around)| value - around);
    EquationsError::Loop {
        element,
        nodes,
        volts,
    }
}
