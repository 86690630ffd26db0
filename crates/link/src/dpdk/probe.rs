//! The probe for `tsumuji doctor`: whether DPDK is built in and installed, which devices could be used, and whether a frame passes.
//!
//! The frame passes a pair of memif devices in this process, which needs no rights and no card. DPDK then stays in the process.

use std::path::Path;

use super::{Dpdk, DpdkConfig, DpdkOpenError, NAME, cards, eal::Hugepages, sys};
use crate::{LinkAddr, Probe};

/// Most cards described; `dpdk-devbind.py` lists more.
const CARDS_MAX: usize = 16;
const INSTALL: &str = "apt-get install libdpdk-dev";

/// Sends a frame through a pair of virtual devices, and reads the state of hugepages and cards.
pub fn probe() -> Probe {
    let (version, folder) = match sys::describe() {
        Ok(found) => found,
        Err(absent) => {
            let mend = if sys::is_built_in() {
                INSTALL.to_owned()
            } else {
                format!("{INSTALL} && make build")
            };
            return Probe::fails(NAME, DpdkOpenError::from(absent).to_string(), mend);
        }
    };
    if let Err(reason) = try_out() {
        return Probe::fails(NAME, format!("{version}: {reason}"), String::new());
    }
    let mut notes = vec![
        format!("{version}: a frame passed virtual devices (net_memif)"),
        format!(
            "virtual devices: {}",
            cards::drivers(Path::new(&folder)).join(", ")
        ),
    ];
    let pages = Hugepages::read();
    notes.push(match pages.free {
        0 => format!(
            "no hugepages are free: virtual devices do without, network cards need them (`{}`)",
            Hugepages::command()
        ),
        free => format!("{free} hugepages of {} KiB are free", pages.page_kib),
    });
    let cards = cards::cards();
    if cards.is_empty() {
        notes.push("no network card on the PCI bus".to_owned());
    }
    for card in cards.iter().take(CARDS_MAX) {
        notes.push(if card.is_for_dpdk() {
            format!("card {}: ready ({})", card.address, card.driver)
        } else {
            format!(
                "card {}: has driver `{}`; `dpdk-devbind.py --bind=vfio-pci {}` gives it to DPDK",
                card.address, card.driver, card.address
            )
        });
    }
    Probe::works(NAME, notes)
}

fn try_out() -> Result<(), String> {
    let (mut server, mut client) =
        Dpdk::memif_pair("", DpdkConfig::default()).map_err(|error| error.to_string())?;
    let to = LinkAddr::Broadcast;
    Probe::pass_frame((&mut client, &mut server), to, "virtual devices")
}
