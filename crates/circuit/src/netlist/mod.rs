//! Netlists of circuits in the language of SPICE: elements between named nodes.
//!
//! The command line calls [`read`]. `lines` gives logical lines, `directives` takes those that begin with a dot, `cards` the elements, `instances`
//! unfolds subcircuits, `scope` knows parameters, `waveforms` functions of time. Elements with plain values are stored as they come; what refers to something that may stand further
//! below waits until the end of the file. Reading takes any bytes without panicking, in time and memory that [`Limits`] bound.
//!
//! Left out on purpose: transistors, transmission lines, behavioural sources, `.lib`, `.func`, conditions. They are refused with one line.

mod cards;
mod directives;
mod expression;
mod instances;
mod lines;
mod number;
mod reader;
mod scope;
#[cfg(test)]
mod tests;
mod values;
mod waveforms;

use crate::names::Names;
use std::path::Path;
pub use tsumuji_numbers::FileError;
use tsumuji_numbers::memory;

/// A node: its number in [`Netlist::nodes`]. Number 0 is ground, called `0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The node whose voltage is 0.
    pub const GROUND: Self = Self(0);

    /// Its place in an array.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Two nodes; current and voltage count from the first to the second.
pub type Pair = [NodeId; 2];

/// A resistor that is no short circuit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Resistor {
    /// Its ends.
    pub nodes: Pair,
    /// Resistance in ohms; not zero, negative for active ones.
    pub ohms: f64,
}

/// A constant source of voltage or current.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Source {
    /// Plus and minus. A current flows from plus through the source to minus.
    pub nodes: Pair,
    /// Volts or amperes.
    pub value: f64,
    /// Number in [`Netlist::sources`].
    pub name: u32,
}

/// A source that a voltage between two nodes controls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VoltageControlled {
    /// Plus and minus.
    pub nodes: Pair,
    /// The controlling voltage.
    pub control: Pair,
    /// Volts per volt (E), or siemens (G).
    pub gain: f64,
    /// Number in [`Netlist::sources`].
    pub name: u32,
}

/// A source that the current through a voltage source controls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CurrentControlled {
    /// Plus and minus.
    pub nodes: Pair,
    /// Place of the controlling source in [`Netlist::voltages`].
    pub control: u32,
    /// Amperes per ampere (F), or ohms (H).
    pub gain: f64,
    /// Number in [`Netlist::sources`].
    pub name: u32,
}

/// A diode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Diode {
    /// Anode and cathode.
    pub nodes: Pair,
    /// Saturation current in amperes, area included.
    pub saturation_amperes: f64,
    /// Emission coefficient.
    pub emission: f64,
    /// Series resistance in ohms, area included; 0 for none.
    pub series_ohms: f64,
    /// Reverse voltage at which it breaks down, in volts; infinite for none.
    pub breakdown_volts: f64,
    /// Number in [`Netlist::sources`].
    pub name: u32,
}

/// A source that a sweep varies: its place in [`Netlist::voltages`] or [`Netlist::currents`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceRef {
    /// A voltage source.
    Voltage(u32),
    /// A current source.
    Current(u32),
}

/// What is to be computed.
#[derive(Debug, Clone, PartialEq)]
pub enum Analysis {
    /// The operating point.
    OperatingPoint,
    /// One operating point for each value of a source.
    Sweep {
        /// The source.
        source: SourceRef,
        /// Its values, in volts or amperes.
        values: Vec<f64>,
    },
}

/// A circuit without hierarchy.
#[derive(Debug, Clone)]
pub struct Netlist {
    /// Name for messages: of the file.
    pub name: String,
    /// First line of the file.
    pub title: String,
    /// Names of the nodes, in lower case; those within instances as `x1.node`.
    pub nodes: Names,
    /// Names of sources and diodes, which are distinct.
    pub sources: Names,
    /// Resistors other than short circuits.
    pub resistors: Vec<Resistor>,
    /// Inductors and resistors of no ohms: ends that have one voltage.
    pub shorts: Vec<Pair>,
    /// Capacitors, which carry no current.
    pub capacitors: usize,
    /// Sources of voltage (V).
    pub voltages: Vec<Source>,
    /// Sources of current (I).
    pub currents: Vec<Source>,
    /// Voltage from voltage (E).
    pub voltage_gains: Vec<VoltageControlled>,
    /// Current from voltage (G).
    pub transconductances: Vec<VoltageControlled>,
    /// Current from current (F).
    pub current_gains: Vec<CurrentControlled>,
    /// Voltage from current (H).
    pub transresistances: Vec<CurrentControlled>,
    /// Diodes (D).
    pub diodes: Vec<Diode>,
    /// Conductance beside each diode in siemens, so that blocking diodes leave no node without a path.
    pub gmin: f64,
    /// What the file asks for.
    pub analysis: Analysis,
    /// Notes for the user, one sentence each.
    pub notes: Vec<String>,
}

/// [`Netlist::gmin`] where `.options gmin` does not state another.
pub const GMIN: f64 = 1e-12;

impl Netlist {
    /// A circuit of ground alone.
    pub fn new(name: &str) -> Self {
        let mut nodes = Names::default();
        nodes.intern("0");
        Self {
            name: name.into(),
            title: String::new(),
            nodes,
            sources: Names::default(),
            resistors: Vec::new(),
            shorts: Vec::new(),
            capacitors: 0,
            voltages: Vec::new(),
            currents: Vec::new(),
            voltage_gains: Vec::new(),
            transconductances: Vec::new(),
            current_gains: Vec::new(),
            transresistances: Vec::new(),
            diodes: Vec::new(),
            gmin: GMIN,
            analysis: Analysis::OperatingPoint,
            notes: Vec::new(),
        }
    }

    /// Elements of all kinds.
    pub fn elements(&self) -> usize {
        self.resistors.len()
            + self.shorts.len()
            + self.capacitors
            + self.voltages.len()
            + self.currents.len()
            + self.voltage_gains.len()
            + self.transconductances.len()
            + self.current_gains.len()
            + self.transresistances.len()
            + self.diodes.len()
    }

    /// The name of a node.
    pub fn node_name(&self, node: NodeId) -> &str {
        self.nodes.get(node.0)
    }

    /// Bytes of names and elements, about.
    fn bytes(&self) -> usize {
        self.nodes.bytes() + self.sources.bytes() + self.elements() * size_of::<VoltageControlled>()
    }
}

/// A place in a netlist: number of its file, and line counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Origin {
    file: u16,
    line: u32,
}

/// What reading may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of the circuit in memory.
    pub memory_bytes: u64,
    /// Most letters of cards that come from instances: a few lines can unfold to any number.
    pub unfolded_bytes: u64,
}

impl Limits {
    /// Some 25 million elements from subcircuits.
    const UNFOLDED_BYTES: u64 = 1 << 30;

    /// Half of the memory that is available: the other half is for the equations.
    pub fn of_this_machine() -> Self {
        Self {
            memory_bytes: memory::available_bytes().unwrap_or(u64::MAX) / 2,
            unfolded_bytes: Self::UNFOLDED_BYTES,
        }
    }
}

/// Reads a netlist, gzipped or not.
pub fn read(path: &Path) -> Result<Netlist, FileError> {
    let (source, reader) = tsumuji_numbers::Source::open(path, |_| ())?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => Path::new(".").to_owned(),
    };
    reader::read(
        &source.file,
        reader,
        Some(folder),
        Limits::of_this_machine(),
    )
}

/// Reads a netlist from bytes in memory, not compressed; `name` is for messages. It may include no files.
pub fn from_bytes(name: &str, bytes: &[u8], limits: Limits) -> Result<Netlist, FileError> {
    reader::read(name, Box::new(bytes), None, limits)
}

/// A piece of a netlist within a message: quoted, in one line, and not too long.
fn quoted(text: &str) -> String {
    tsumuji_numbers::shown(text)
}
