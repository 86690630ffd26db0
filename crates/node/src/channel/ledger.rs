//! The charges against a channel's budget, and when peers are told to stop and to go on.

use std::collections::BTreeMap;

use tsumuji_proto::NodeId;

use super::mailbox::Charge;

/// Charged for each message beside its bytes, as in the endpoint's budget.
const MESSAGE_BYTES: usize = 64;

/// Ledger of one channel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ledger {
    pub(crate) channel_id: u16,
    /// Distinguishes channels that had the same id one after the other.
    pub(crate) generation: u64,
    /// 0: the channel has none of its own, and all is charged to the endpoint.
    budget_bytes: usize,
    charged_bytes: usize,
    /// Bytes beyond the budget: charged to the endpoint, or to overdrafts of senders.
    beyond_bytes: usize,
}

/// How far each peer has overdrawn the budgets of channels.
#[derive(Debug)]
pub(crate) struct Overdrafts {
    /// Limit for each peer, over all channels.
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

    /// Releases a message; `ledger` is `None` if its channel was closed.
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

    /// Bytes of its messages, wherever they are charged.
    pub(crate) fn used_bytes(&self) -> usize {
        self.charged_bytes + self.beyond_bytes
    }

    /// Whether a message of that many bytes would exceed the budget.
    pub(crate) fn is_full(&self, bytes: usize) -> bool {
        self.charged_bytes + bytes + MESSAGE_BYTES > self.budget_bytes
    }

    /// Adds a message that is charged to the endpoint already.
    pub(crate) fn charge_beyond(&mut self, bytes: usize) {
        self.beyond_bytes += bytes + MESSAGE_BYTES;
    }

    /// Whether peers must stop: the second half of the budget is for messages on their way.
    pub(crate) fn is_pressed(&self) -> bool {
        self.budget_bytes > 0 && self.used_bytes() > self.budget_bytes / 2
    }

    /// Whether peers may go on.
    pub(crate) fn has_space(&self) -> bool {
        self.used_bytes() <= self.budget_bytes / 4
    }
}
