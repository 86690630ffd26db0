//! What a channel's budget is charged, and when peers are told to stop and to go on.

use std::collections::BTreeMap;

use tsumuji_proto::NodeId;

use super::mailbox::Charge;

/// Charged for each message beside its bytes, as in the endpoint's budget.
const MESSAGE_BYTES: usize = 64;

/// Of one channel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ledger {
    pub(crate) channel_id: u16,
    /// Of channels that had this number before, each had another.
    pub(crate) generation: u64,
    /// 0: it has none of its own, and all is the endpoint's.
    budget_bytes: usize,
    charged_bytes: usize,
    /// Charged beyond the budget: to the endpoint, or to what its senders may overdraw.
    beyond_bytes: usize,
}

/// What peers have overdrawn the budgets of channels by.
#[derive(Debug)]
pub(crate) struct Overdrafts {
    /// Of each peer, on all channels together.
    limit_bytes: usize,
    peers: BTreeMap<NodeId, usize>,
}

impl Overdrafts {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            peers: BTreeMap::new(),
        }
    }

    /// Charges a message to its channel if it fits, to its sender's overdraft if that does, and else to the endpoint.
    pub(crate) fn charge(&mut self, ledger: &mut Ledger, from: NodeId, bytes: usize) -> Charge {
        let weight = bytes + MESSAGE_BYTES;
        if !ledger.is_full(bytes) {
            ledger.charged_bytes += weight;
            return Charge::Channel;
        }
        ledger.beyond_bytes += weight;
        if ledger.budget_bytes == 0 {
            return Charge::Endpoint;
        }
        let overdrawn = self.peers.entry(from).or_default();
        if *overdrawn + weight > self.limit_bytes {
            return Charge::Endpoint;
        }
        *overdrawn += weight;
        Charge::Overdraft
    }

    /// A message is not needed any more; `None`: its channel is no more, either.
    pub(crate) fn release(
        &mut self,
        ledger: Option<&mut Ledger>,
        from: NodeId,
        charge: Charge,
        bytes: usize,
    ) {
        let weight = bytes + MESSAGE_BYTES;
        if charge == Charge::Overdraft
            && let Some(overdrawn) = self.peers.get_mut(&from)
        {
            *overdrawn -= weight;
        }
        if let Some(ledger) = ledger {
            let charged = match charge {
                Charge::Channel => &mut ledger.charged_bytes,
                Charge::Endpoint | Charge::Overdraft => &mut ledger.beyond_bytes,
            };
            *charged -= weight;
        }
    }
}

impl Ledger {
    pub(crate) fn new(channel_id: u16, generation: u64, budget_bytes: usize) -> Self {
        Self {
            channel_id,
            generation,
            budget_bytes,
            charged_bytes: 0,
            beyond_bytes: 0,
        }
    }

    pub(crate) fn budget_bytes(&self) -> usize {
        self.budget_bytes
    }

    pub(crate) fn set_budget(&mut self, bytes: usize) {
        self.budget_bytes = bytes;
    }

    /// What its messages take, wherever it is charged.
    pub(crate) fn used_bytes(&self) -> usize {
        self.charged_bytes + self.beyond_bytes
    }

    /// A message of so many bytes would exceed the budget.
    pub(crate) fn is_full(&self, bytes: usize) -> bool {
        self.charged_bytes + bytes + MESSAGE_BYTES > self.budget_bytes
    }

    /// A message that is charged to the endpoint already.
    pub(crate) fn charge_beyond(&mut self, bytes: usize) {
        self.beyond_bytes += bytes + MESSAGE_BYTES;
    }

    /// Peers must stop: the other half is for what is on the way.
    pub(crate) fn is_pressed(&self) -> bool {
        self.budget_bytes > 0 && self.used_bytes() > self.budget_bytes / 2
    }

    /// Peers may go on.
    pub(crate) fn is_eased(&self) -> bool {
        self.used_bytes() <= self.budget_bytes / 4
    }
}
