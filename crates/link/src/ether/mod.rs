//! The common parts of all links over Ethernet: addresses, the frame's header, interfaces, claims, and capabilities.
//!
//! Used by `packet`, `xdp`, `dpdk` and `relay`, and to resolve host names. `sys` is the only `unsafe`.
//!
//! In each network namespace one process has an interface (`claim`), or one slot of it: the MAC address is the address of the link, and two processes with one
//! address could not be told apart. Processes that share an interface have slots, with addresses made from that of the interface (`stations`).
//!
//! An Ethernet frame carries one or several frames of ours, each behind its length (`bundle`); padding behind them is not delivered. An Ethernet
//! frame without payload, and an announcement, contain no frames for the program.

mod bundle;
mod claim;
mod ethers;
mod frame;
mod interface;
mod mac;
mod rights;
mod stations;
mod sys;
#[cfg(test)]
mod tests;

pub use bundle::{Frames, LENGTH_BYTES, write_length};
pub(crate) use bundle::{LEAD_BYTES, Reach, hand_over};
pub use claim::{Claim, ClaimError, claim, claim_slot};
pub use ethers::{ETHERS_PATH, Ethers, EthersError};
pub(crate) use frame::destination;
pub use frame::{ETHERTYPE, HEADER_BYTES, Ignored, accept, announcement, write_header};
pub use interface::{
    Checks, Interface, InterfaceError, InterfaceKind, InterfaceState, Watch, list,
};
pub use mac::{MacAddr, ParseMacError};
pub use rights::{Capability, has_capability, setcap_command};
pub(crate) use stations::Stations;
#[cfg(feature = "xdp")]
pub(crate) use sys::request_for;
pub(crate) use sys::{add_address, mtu_bytes_of};

/// Slots of a receive ring for frames sent with credit. An eighth is left for frames without credit, above all acknowledgements, one for each 128 KiB
/// that we send: they take a slot each, and with none left they and frames with credit would be dropped in turns.
pub(crate) fn granted_slots(slots: usize) -> usize {
    (slots * 7 / 8).max(1)
}
