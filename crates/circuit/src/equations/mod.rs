//! The equations of a circuit: as few unknowns as its sources leave, one per node or group of nodes, and some for currents.
//!
//! The command line and `newton` call [`Equations::new`]. Nodes that voltage sources and short circuits join share an unknown (`rigid`); the rest
//! is nodal analysis: the currents that leave a node sum up to 0. A circuit of resistors and independent sources gives a symmetric M-matrix that
//! way. Controlled voltage sources, and voltage sources whose current controls others, get an unknown current and an equation each (modified nodal
//! analysis, Ho, Ruehli and Brennan, 1975); these may have zeros on the diagonal.
//!
//! The matrix does not depend on the values of independent sources; the right-hand side does ([`Equations::excite`]). Diodes have entries in the
//! matrix, which `newton` fills. What the assembled matrix has rounded away, the elements themselves still know: `balance` goes through them.
//!
//! Invariant: unknowns of nodes come first, then those of nodes within diodes, then those of currents, in the order V, E, H.

mod balance;
mod paths;
mod rigid;
mod stamps;
#[cfg(test)]
mod tests;

use crate::netlist::{Analysis, Netlist, NodeId, SourceRef};
use crate::twofold::Twofold;
pub(crate) use balance::Balance;
use rigid::Rigid;
use tsumuji_solve::system::{Csr, Matrix, StructureError, System, SystemError};

/// No unknown: the voltage is known.
const KNOWN: u32 = u32::MAX;

/// Why a circuit has no equations. Each is one line that names nodes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EquationsError {
    /// Voltage sources, inductors and short circuits form a loop.
    #[error("{}", loop_text(element, nodes, *volts))]
    Loop {
        /// The source that closes it.
        element: String,
        /// Nodes around it.
        nodes: Vec<String>,
        /// Volts that are left over around it, where they are known.
        volts: Option<f64>,
    },
    /// Nodes whose voltage nothing determines.
    #[error(
        "{} no path for direct current to ground (capacitors and current sources are none); join them to ground by a resistor",
        floating_text(nodes, *count)
    )]
    Floating {
        /// Some of the nodes.
        nodes: Vec<String>,
        /// All of them.
        count: usize,
    },
    /// Everything is known already.
    #[error("there is no node but ground; there is nothing to compute")]
    Nothing,
    /// More unknowns than a sparse matrix holds.
    #[error(transparent)]
    TooLarge(#[from] StructureError),
}

/// Names in quotes, not too many.
fn listed(names: &[String]) -> String {
    /// Nodes that an error names.
    const MOST_NAMED: usize = 4;
    let shown: Vec<String> = names
        .iter()
        .take(MOST_NAMED)
        .map(|name| format!("'{name}'"))
        .collect();
    let more = names.len().saturating_sub(MOST_NAMED);
    let dots = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    format!("{}{dots}", shown.join(", "))
}

fn loop_text(element: &str, nodes: &[String], volts: Option<f64>) -> String {
    let place = format!(
        "the source '{element}' closes a loop of voltage sources and short circuits over the nodes {}",
        listed(nodes)
    );
    match volts {
        Some(volts) if volts != 0.0 => {
            format!(
                "{place}, and contradicts the others by {volts} V; change it, or put a resistor into the loop"
            )
        }
        _ => format!(
            "{place}, so that its current is undetermined; leave it out, or put a resistor into the loop"
        ),
    }
}

fn floating_text(nodes: &[String], count: usize) -> String {
    let more = count - nodes.len();
    let names = listed(nodes);
    match (nodes.len(), more) {
        (1, 0) => format!("the node {names} has"),
        (_, 0) => format!("the nodes {names} have"),
        _ => format!("the nodes {names} and {more} more have"),
    }
}

/// Values of the independent sources.
#[derive(Debug, Clone, Copy)]
pub struct Excitation<'a> {
    netlist: &'a Netlist,
    swept: Option<(SourceRef, f64)>,
    scale: f64,
}

impl<'a> Excitation<'a> {
    /// The values of the netlist.
    pub fn new(netlist: &'a Netlist) -> Self {
        Self {
            netlist,
            swept: None,
            scale: 1.0,
        }
    }

    /// With another value of one source, in volts or amperes.
    pub fn with(self, source: SourceRef, value: f64) -> Self {
        Self {
            swept: Some((source, value)),
            ..self
        }
    }

    /// All sources multiplied by `scale`.
    pub fn scaled(self, scale: f64) -> Self {
        Self { scale, ..self }
    }

    fn volts(&self, place: u32) -> f64 {
        let value = match self.swept {
            Some((SourceRef::Voltage(swept), value)) if swept == place => value,
            _ => self.netlist.voltages[place as usize].value,
        };
        value * self.scale
    }

    fn amperes(&self, place: u32) -> f64 {
        let value = match self.swept {
            Some((SourceRef::Current(swept), value)) if swept == place => value,
            _ => self.netlist.currents[place as usize].value,
        };
        value * self.scale
    }
}

/// A right-hand side, and what turns unknowns into voltages.
#[derive(Debug, Clone)]
pub struct Excited<'a> {
    /// b, without the currents of diodes.
    pub rhs: Vec<f64>,
    /// Voltage of each node less its unknown.
    offsets: Vec<Twofold>,
    excitation: Excitation<'a>,
}

/// Where the voltage of an end of a diode comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terminal {
    /// Its unknown, or [`KNOWN`].
    unknown: u32,
    /// Its node, whose offset counts; none within a diode.
    node: Option<NodeId>,
}

/// The ideal diode of a diode, behind its series resistance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Junction {
    /// Place of its diode in [`Netlist::diodes`].
    pub(crate) diode: u32,
    anode: Terminal,
    cathode: Terminal,
    /// Places among the values of the matrix: (a, a), (c, c), (a, c), (c, a); none where an end is known.
    places: [Option<usize>; 4],
}

/// A circuit as a system of equations.
#[derive(Debug)]
pub struct Equations {
    matrix: Csr,
    rigid: Rigid,
    /// The unknown of each node, or [`KNOWN`].
    unknowns: Vec<u32>,
    /// Voltage sources with an unknown current: their places, ascending.
    branches: Vec<u32>,
    /// The first unknown that is a current.
    first_current: u32,
    junctions: Vec<Junction>,
}

impl Equations {
    /// Makes the equations.
    pub fn new(netlist: &Netlist) -> Result<Self, EquationsError> {
        let mut is_branch = vec![false; netlist.voltages.len()];
        for element in netlist
            .current_gains
            .iter()
            .chain(&netlist.transresistances)
        {
            is_branch[element.control as usize] = true;
        }
        let rigid = Rigid::new(netlist, &is_branch)?;
        paths::check(netlist, &rigid)?;
        let (unknowns, nodes) = number(&rigid.root);
        let branches = (0..)
            .zip(&is_branch)
            .filter(|(_, is_branch)| **is_branch)
            .map(|(place, _)| place);
        let branches: Vec<u32> = branches.collect();
        let mut equations = Self {
            matrix: Csr::from_triplets(0, 0, &[])?,
            rigid,
            unknowns,
            branches,
            first_current: nodes,
            junctions: Vec::new(),
        };
        let (matrix, junctions) = stamps::stamp(netlist, &mut equations)?;
        equations.matrix = matrix;
        equations.junctions = junctions;
        Ok(equations)
    }

    /// Unknowns.
    pub fn n(&self) -> usize {
        self.matrix.rows()
    }

    /// A, without the conductances of diodes.
    pub fn matrix(&self) -> &Csr {
        &self.matrix
    }

    pub(crate) fn junctions(&self) -> &[Junction] {
        &self.junctions
    }

    /// b and the constants of the voltages for given values of the sources.
    pub fn excite<'a>(&self, excitation: &Excitation<'a>) -> Excited<'a> {
        let mut excited = Excited {
            rhs: Vec::new(),
            offsets: self.rigid.offsets(excitation),
            excitation: *excitation,
        };
        let zeros = vec![Twofold::ZERO; self.n()];
        let balance = self.balance(&excited, &zeros, |_, _| (Twofold::ZERO, 0.0));
        excited.rhs = balance.rest;
        excited
    }

    /// The system for solvers that need a diagonal without zeros, as relaxation does; an error where modified nodal analysis has left one.
    pub fn system(&self, excited: &Excited<'_>, name: &str) -> Result<System, SystemError> {
        let matrix = Matrix::Sparse(self.matrix.clone());
        System::new(matrix, Some(excited.rhs.clone()), name.into())
    }

    /// Voltage of every node of the netlist, in volts, from the unknowns `x`.
    pub(crate) fn node_volts(&self, excited: &Excited<'_>, x: &[Twofold]) -> Vec<Twofold> {
        let pairs = self.unknowns.iter().zip(&excited.offsets);
        pairs
            .map(|(&unknown, &offset)| match unknown {
                KNOWN => offset,
                _ => x[unknown as usize] + offset,
            })
            .collect()
    }

    /// The unknown of a node and its offset's owner.
    fn terminal(&self, node: NodeId) -> Terminal {
        Terminal {
            unknown: self.unknowns[node.index()],
            node: Some(node),
        }
    }

    /// For messages: a node of this unknown, or the current it is.
    pub fn unknown_name(&self, netlist: &Netlist, unknown: usize) -> String {
        let node = self
            .unknowns
            .iter()
            .position(|&found| found as usize == unknown);
        match node {
            Some(node) => format!(
                "the voltage of the node '{}'",
                netlist.nodes.get(node as u32)
            ),
            None if unknown < self.first_current as usize => "a voltage within a diode".into(),
            None => "the current of a voltage source".into(),
        }
    }
}

impl Terminal {
    /// Its voltage.
    fn volts(self, excited: &Excited<'_>, x: &[Twofold]) -> Twofold {
        let unknown = match self.unknown {
            KNOWN => Twofold::ZERO,
            unknown => x[unknown as usize],
        };
        match self.node {
            Some(node) => unknown + excited.offsets[node.index()],
            None => unknown,
        }
    }
}

impl Junction {
    /// Voltage from anode to cathode.
    pub(crate) fn volts(&self, excited: &Excited<'_>, x: &[Twofold]) -> Twofold {
        self.anode.volts(excited, x) - self.cathode.volts(excited, x)
    }

    /// Adds a conductance to the values of the matrix.
    pub(crate) fn add_conductance(&self, values: &mut [f64], siemens: f64) {
        for (place, sign) in self.places.iter().zip([1.0, 1.0, -1.0, -1.0]) {
            if let Some(place) = place {
                values[*place] += sign * siemens;
            }
        }
    }
}

/// Whether the netlist asks for a sweep of this voltage source.
fn is_swept(netlist: &Netlist, place: u32) -> bool {
    matches!(&netlist.analysis, Analysis::Sweep { source: SourceRef::Voltage(swept), .. } if *swept == place)
}

/// Unknowns of nodes: one for each root but ground, in the order of nodes; and how many there are.
fn number(root: &[u32]) -> (Vec<u32>, u32) {
    let mut unknowns = vec![KNOWN; root.len()];
    let mut count = 0;
    // A root is the smallest number of its group: it comes before the nodes that share its unknown.
    for (node, &root) in root.iter().enumerate().skip(1) {
        unknowns[node] = if root as usize == node {
            count += 1;
            count - 1
        } else {
            unknowns[root as usize]
        };
    }
    (unknowns, count)
}
