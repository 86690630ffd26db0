//! The stations of one interface: the processes that share it, each in a slot with an address of its own (docs/decisions/0053).

use super::MacAddr;

/// The first so many slots of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stations {
    /// The address of the interface, and of slot 0.
    pub(crate) base: MacAddr,
    pub(crate) slots: u8,
}

impl Stations {
    /// The slot whose address this is.
    #[inline]
    pub(crate) fn slot_of(self, mac: MacAddr) -> Option<u8> {
        let slot = (mac.0[0] ^ self.base.0[0]) >> 2; // as `of_slot` makes it
        (slot < self.slots && self.base.of_slot(slot) == Some(mac)).then_some(slot)
    }

    /// All addresses.
    #[cfg(any(feature = "xdp", test))]
    pub(crate) fn addresses(self) -> impl Iterator<Item = MacAddr> {
        (0..self.slots).filter_map(move |slot| self.base.of_slot(slot))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// A slot is found by its address, and no other address has one.
    #[test]
    fn slots_have_addresses() {
        for base in [
            MacAddr([2, 0, 0, 0, 0, 1]),
            MacAddr([0x52, 0x54, 0, 3, 4, 5]),
            MacAddr([0x9c, 1, 2, 3, 4, 5]),
        ] {
            let all = Stations {
                base,
                slots: MacAddr::SLOTS,
            };
            let distinct: HashSet<_> = all.addresses().collect();
            assert_eq!(distinct.len(), usize::from(MacAddr::SLOTS));
            for (slot, mac) in (0..).zip(all.addresses()) {
                assert_eq!(all.slot_of(mac), Some(slot), "{mac}");
                let fewer = Stations { base, slots: 3 };
                assert_eq!(fewer.slot_of(mac), Some(slot).filter(|slot| *slot < 3));
                let mut other = mac;
                other.0[5] ^= 1;
                assert_eq!(all.slot_of(other), None);
            }
            assert_eq!(all.slot_of(MacAddr::BROADCAST), None);
            let group = MacAddr([base.0[0] | 1, 0, 0, 0, 0, 1]);
            assert_eq!(all.slot_of(group), None);
        }
    }
}
