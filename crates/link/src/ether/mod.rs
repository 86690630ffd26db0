//! What all links over Ethernet share: addresses, the frame's header, interfaces, claims, and who may.
//!
//! Used by `packet` and `xdp`, and by whoever resolves host names. `sys` is the only `unsafe`.
//!
//! One process has an interface, in each network namespace (`claim`): the MAC address is the address of the link, and two
//! processes behind one address could not be told apart. Several processes of a host take macvlan interfaces.
//!
//! An Ethernet frame carries one or several frames of ours, each behind its length (`bundle`); padding behind them is not handed
//! over. An Ethernet frame without payload, and an announcement, are no frames for the program.

mod bundle;
mod claim;
mod ethers;
mod frame;
mod interface;
mod mac;
mod rights;
mod sys;
#[cfg(test)]
mod tests;

pub use bundle::{Frames, LENGTH_BYTES, write_length};
pub(crate) use bundle::{LEAD_BYTES, Reach, hand_over};
pub use claim::{Claim, ClaimError, claim};
pub use ethers::{ETHERS_PATH, Ethers, EthersError};
pub(crate) use frame::destination;
pub use frame::{ETHERTYPE, HEADER_BYTES, Ignored, accept, announcement, write_header};
pub use interface::{Interface, InterfaceError, InterfaceKind, InterfaceState, Watch, list};
pub use mac::{MacAddr, ParseMacError};
pub use rights::{Capability, has_capability, setcap_command};

/// A device that takes no frame for this long is not merely full: what waits is dropped, as a link may. Repetition is the business
/// of those above, and they have long begun it.
pub(crate) const STUCK_MAX: std::time::Duration = std::time::Duration::from_millis(50);

/// Slots of a receive ring for frames that others may be granted. An eighth is left for what comes without credit, above all
/// acknowledgements, one for each 128 KiB that we send: they take a slot each, and with none left they and granted frames would be
/// dropped by turns.
pub(crate) fn granted_slots(slots: usize) -> usize {
    (slots * 7 / 8).max(1)
}
