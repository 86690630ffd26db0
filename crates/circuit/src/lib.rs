//! Circuits: netlists, their equations, and the direct solution of these in parts.
//!
//! - [`netlist`]: reads SPICE netlists.
//! - [`equations`]: makes of them a sparse linear system with few unknowns, and gives voltages back.
//! - [`newton`]: operating points of circuits with diodes, and sweeps of a source.
//! - [`substructure`]: solves a sparse system in parts, through a Schur complement, by threads or another team.
//! - [`remote`]: the same parts, computed by other processes.
//! - [`compute`]: all of this for what a netlist asks for.
//! - [`grid`]: makes power grids of any size.
//!
//! The command line calls `netlist`, `compute` and `remote`. Transients, small-signal analysis and semiconductors other than diodes are left out.

pub mod compute;
pub mod equations;
pub mod grid;
pub mod names;
pub mod netlist;
pub mod newton;
pub mod remote;
pub mod substructure;
mod twofold;
