//! Available devices: drivers of virtual devices, and network cards on the PCI bus.
//!
//! Called by `device`, before anything is made, and by `probe`.

use std::fs;
use std::path::Path;

use super::errors::DpdkOpenError;
use super::{DpdkSpec, sys};

/// The kernel's drivers that leave a card to DPDK, or share it.
const CARD_DRIVERS: [&str; 6] = [
    "vfio-pci",
    "uio_pci_generic",
    "igb_uio",
    "uio_hv_generic",
    "mlx5_core",
    "mlx4_core",
];
const PCI_DEVICES: &str = "/sys/bus/pci/devices";
/// Cards or drivers named in an error message.
const NAMED_MAX: usize = 16;

pub(super) fn check_driver(spec: &DpdkSpec) -> Result<(), DpdkOpenError> {
    let (_, folder) = sys::describe()?;
    let there = drivers(Path::new(&folder));
    let driver = spec.driver().unwrap_or_default();
    // An unreadable folder does not mean that there are no drivers.
    if there.is_empty() || there.iter().any(|name| name == driver) {
        return Ok(());
    }
    Err(DpdkOpenError::NoDriver {
        driver: driver.to_owned(),
        there: there.join(", "),
    })
}

/// Drivers of virtual devices that carry frames, with the name of their library.
const VIRTUAL: [(&str, &str); 10] = [
    ("net_af_packet", "af_packet"),
    ("net_af_xdp", "af_xdp"),
    ("net_bonding", "bond"),
    ("net_memif", "memif"),
    ("net_null", "null"),
    ("net_pcap", "pcap"),
    ("net_ring", "ring"),
    ("net_tap", "tap"),
    ("net_vhost", "vhost"),
    ("net_virtio_user", "virtio"),
];

/// The drivers whose library is in the folder.
pub(super) fn drivers(folder: &Path) -> Vec<String> {
    let there = |library: &str| folder.join(format!("librte_net_{library}.so")).exists();
    let found = VIRTUAL.iter().filter(|(_, library)| there(library));
    found.map(|(name, _)| (*name).to_owned()).collect()
}

/// A network card of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Card {
    pub(super) address: String,
    /// The kernel's driver of the card, or `none`.
    pub(super) driver: String,
}

impl Card {
    pub(super) fn is_for_dpdk(&self) -> bool {
        CARD_DRIVERS.contains(&self.driver.as_str())
    }
}

/// All network cards on the PCI bus.
pub(super) fn cards() -> Vec<Card> {
    let folders = fs::read_dir(PCI_DEVICES).into_iter().flatten().flatten();
    let mut cards: Vec<_> = folders
        .filter_map(|folder| {
            let class = fs::read_to_string(folder.path().join("class")).ok()?;
            let driver = fs::read_link(folder.path().join("driver")).ok();
            let driver = driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
            Some(Card {
                address: folder.file_name().into_string().ok()?,
                driver: driver.unwrap_or_else(|| "none".to_owned()),
            })
            .filter(|_| class.starts_with("0x02"))
        })
        .collect();
    cards.sort_by(|one, other| one.address.cmp(&other.address));
    cards
}

pub(super) fn check_card(address: &str) -> Result<(), DpdkOpenError> {
    let cards = cards();
    let Some(card) = cards.iter().find(|card| card.address == address) else {
        let names: Vec<_> = cards
            .iter()
            .take(NAMED_MAX)
            .map(|card| card.address.as_str())
            .collect();
        let there = if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        };
        return Err(DpdkOpenError::NoCard {
            address: address.to_owned(),
            there,
        });
    };
    if card.is_for_dpdk() {
        return Ok(());
    }
    Err(DpdkOpenError::NotBound {
        address: address.to_owned(),
        driver: card.driver.clone(),
    })
}
