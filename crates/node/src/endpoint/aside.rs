//! For libraries between the endpoint and the program: messages and shares of their own (see [`Aside`]), and what they need to
//! know of the link.

use std::time::Duration;

use tsumuji_link::Link;
use tsumuji_proto::{DeliveryClass, Lane, NodeId, Payload, Priority};

use super::{Core, Endpoint};
use crate::aside::{ASIDE_CHANNEL, Aside, ToAside};
use crate::error::{EndpointError, SendError};
use crate::lock::WriteGuard;

/// The group memory of an endpoint's link, held for as long as this is: nobody else drives meanwhile.
pub struct HeldCast<'a, L: Link>(WriteGuard<'a, Core<L>>);

impl<L: Link> HeldCast<'_, L> {
    /// The memory.
    #[inline]
    pub fn get(&mut self) -> tsumuji_link::shm::Cast<'_> {
        self.0
            .drive
            .link
            .cast()
            .expect("a link that has group memory keeps it")
    }
}

impl<L: Link> Endpoint<L> {
    /// For libraries above the endpoint: one turn; what came for them goes to `aside`, all else to where it stays for the program.
    /// Returns how much was done. Never waits.
    pub fn progress_aside(&mut self, aside: &mut impl Aside) -> Result<usize, EndpointError> {
        let core = &mut *self.core.write();
        let mut before = 0;
        if !core.shelf.is_empty() {
            before = core.hand_over_aside(aside);
        }
        let mut intake = ToAside {
            aside,
            inbox: &mut core.inbox,
            peers: &mut core.peers,
        };
        Ok(before + core.drive.turn(true, &mut intake)?)
    }

    /// The same until something was done; `false`: nothing within `timeout`. Idles as the policy says.
    pub fn wait_aside(
        &mut self,
        aside: &mut impl Aside,
        timeout: Duration,
    ) -> Result<bool, EndpointError> {
        let core = &mut *self.core.write();
        if !core.shelf.is_empty() {
            core.hand_over_aside(aside);
            return Ok(true);
        }
        let mut intake = ToAside {
            aside,
            inbox: &mut core.inbox,
            peers: &mut core.peers,
        };
        Ok(core.drive.run_until(&mut intake, timeout, |_, _| true)?)
    }

    /// For libraries above the endpoint: queues `head` and `body` as one message of theirs, ordered among those of its priority,
    /// or says [`SendError::WouldBlock`]: also where memory is short.
    pub fn try_send_aside(
        &mut self,
        to: NodeId,
        priority: Priority,
        head: &[u8],
        body: &[u8],
    ) -> Result<(), SendError> {
        let lane = Lane::new(DeliveryClass::Ordered, priority, ASIDE_CHANNEL);
        let core = &mut *self.core.write();
        match core
            .drive
            .submit(to, lane, Payload::Joined(head, body), false, false)
        {
            Err(SendError::NoMemory { .. }) => Err(SendError::WouldBlock { peer: to }),
            done => done.map(drop),
        }
    }

    /// For libraries above the endpoint: memory in which one writes what a group reads, where the link has such.
    #[inline]
    pub fn cast(&mut self) -> Option<HeldCast<'_, L>> {
        let mut core = self.core.write();
        core.drive.link.cast().is_some().then_some(HeldCast(core))
    }

    /// Whether this endpoint, while it waits, polls without giving its core away at once.
    pub fn spins(&self) -> bool {
        self.core.read().drive.spins()
    }

    /// Largest message that travels in one frame, so that its receiver reads it where the link has it.
    pub fn frame_message_bytes(&self) -> usize {
        (self.core.read().drive.caps().frame_bytes).saturating_sub(tsumuji_wire::DATA_HEADER_BYTES)
    }

    /// Largest message that this node takes.
    pub fn message_limit_bytes(&self) -> usize {
        self.core.read().drive.engine.message_limit_bytes()
    }
}

impl<L: Link> Core<L> {
    #[cold]
    fn hand_over_aside(&mut self, aside: &mut impl Aside) -> usize {
        let count = self.shelf.hand_over(&mut self.drive.engine, aside);
        self.drive.touched();
        count
    }
}
