//! What must hold of any bytes from outside: a function for each parser, called with bytes. It panics where something does not hold.
//!
//! Called by `tests/mutated.rs` (seeds and changed seeds, in every test run) and by `fuzz/` (libFuzzer, guided by coverage: `make fuzz`).
//! Left out on purpose: the parsers themselves; they live in their crates.

mod agent;
mod checked;
mod cluster;
mod edges;
mod engine;
mod ethernet;
mod ethers;
mod files;
mod frame;
mod gossip;
mod handshake;
mod keys;
mod learn_data;
#[path = "../../seal/tests/mem/mod.rs"]
mod mem;
mod members;
mod metrics;
mod model;
mod netlist;
mod profile;
mod rows;
mod sealed;
mod words;

use tsumuji_solve::system::formats::Format;

/// A target: what is called with any bytes.
pub type Target = fn(&[u8]);

macro_rules! targets {
    ($($module:ident)*; $($here:ident)*) => {
        $(pub use $module::$module;)*
        /// All targets by name.
        pub const ALL: &[(&str, Target)] = &[$((stringify!($module), $module),)* $((stringify!($here), $here)),*];
    };
}

targets! {
    agent checked cluster edges engine ethernet ethers frame gossip handshake keys learn_data members metrics model netlist profile rows sealed words;
    foreign harwell mtx npy parts petsc streams
}

/// Any text as the statement of another rank, the answer of a launcher's service, and the kernel's table of routes.
pub fn foreign(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        tsumuji_node::bootstrap::fuzzing::is_understood(text);
    }
}

/// Any bytes as a Harwell-Boeing file.
pub fn harwell(bytes: &[u8]) {
    files::read(Format::HarwellBoeing, bytes);
}

/// Any bytes as a Matrix Market file.
pub fn mtx(bytes: &[u8]) {
    files::read(Format::MatrixMarket, bytes);
}

/// Any bytes as a NumPy array.
pub fn npy(bytes: &[u8]) {
    files::read(Format::Npy, bytes);
}

/// Any bytes as what judge and workers of a circuit tell each other.
pub fn parts(bytes: &[u8]) {
    tsumuji_circuit::remote::parse_any(bytes);
}

/// Any bytes as a binary file of PETSc.
pub fn petsc(bytes: &[u8]) {
    files::read(Format::Petsc, bytes);
}

/// Any bytes as what gateways, and programs that connect to them, tell each other.
pub fn streams(bytes: &[u8]) {
    tsumuji_gateway::parse_any(bytes);
}
