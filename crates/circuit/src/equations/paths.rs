//! Paths to ground: nodes that have none have no voltage.
//!
//! Called by `super` before the matrix is made, so that such nodes are named instead of found as a zero pivot.

use super::EquationsError;
use super::rigid::{Rigid, Sets};
use crate::netlist::{Netlist, NodeId, Pair};

/// Nodes that an error names.
const MOST_NAMED: usize = 3;

/// Refuses nodes without a path for direct current to ground.
pub(super) fn check(netlist: &Netlist, rigid: &Rigid) -> Result<(), EquationsError> {
    let mut sets = Sets::new(netlist.nodes.len());
    for (node, &root) in (0..).zip(&rigid.root) {
        sets.join(node, root);
    }
    let mut join = |nodes: Pair| sets.join(nodes[0].0, nodes[1].0);
    netlist.resistors.iter().for_each(|element| {
        join(element.nodes);
    });
    netlist.voltages.iter().for_each(|element| {
        join(element.nodes);
    });
    netlist.diodes.iter().for_each(|element| {
        join(element.nodes);
    });
    // A transconductance may be a conductance; whether it is one, the factors tell.
    for element in netlist
        .voltage_gains
        .iter()
        .chain(&netlist.transconductances)
    {
        join(element.nodes);
    }
    netlist.transresistances.iter().for_each(|element| {
        join(element.nodes);
    });
    let mut floating = (1..netlist.nodes.len() as u32).filter(|&node| sets.find(node) != 0);
    let named: Vec<String> = floating
        .by_ref()
        .take(MOST_NAMED)
        .map(|node| netlist.node_name(NodeId(node)).to_owned())
        .collect();
    if named.is_empty() {
        return Ok(());
    }
    let count = named.len() + floating.count();
    Err(EquationsError::Floating {
        nodes: named,
        count,
    })
}
