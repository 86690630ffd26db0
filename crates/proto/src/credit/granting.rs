//! How `credit` reacts to frames: each one that was taken or refused updates what its sender is granted, and our data frames carry that to it. Part
//! of `credit`.

use super::{Arbiter, Credit, Grant, MemoryFrames, Seen};
use crate::config::Config;
use crate::counters::Drop;
use crate::memory::Memory;
use crate::peer::Peer;
use crate::peer::receive::Receive;
use crate::receiving::{Carried, Members};
use crate::time::Instant;
use tsumuji_wire::{Data, flags};

impl Grant {
    /// The peer may send numbers below this.
    pub(crate) fn end(&self) -> u64 {
        self.granted
    }

    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn set_limit(&mut self, frames: u64) {
        self.limit = frames;
    }

    /// The peer has more to send, or memory refused its latest frame.
    pub(crate) fn has_backlog(&self) -> bool {
        self.backlog
    }

    /// Acknowledgement and credit for a data frame of ours. It acknowledges all that has arrived, unless something is missing.
    #[inline(always)] // on the path of every frame
    pub(crate) fn carry(&mut self, now: Instant, flags: u8, receive: &mut Receive) -> Carried {
        let carried = Carried {
            flags,
            ack: receive.arrivals.base() as u32,
            credit: self.granted as u32,
            delay: receive.ack_delay(now),
        };
        if !receive.arrivals.has_gap() {
            self.told = self.granted;
            receive.on_ack_sent();
        }
        carried
    }

    pub(crate) fn state(&mut self, receive: &mut Receive) -> (u64, u8) {
        self.told = self.granted;
        let refused = core::mem::take(&mut receive.refused);
        (self.granted, if refused { flags::REFUSED } else { 0 })
    }
}

impl Credit {
    pub(crate) fn of(config: &Config) -> Self {
        let mut credit = Self::new(config.receive_frames);
        if !config.lossless {
            credit.path.begin_small(); // a switch may hold less than our receive side
        }
        credit
    }

    /// No other peer's messages take less memory, or a policy decides.
    pub(crate) fn is_fair(&self, used_bytes: usize) -> bool {
        self.is_least_holder(used_bytes) || self.rules.has_policy()
    }

    /// Accounts a data frame that was used or refused.
    #[inline(always)] // on the path of every frame
    pub(crate) fn on_data(
        &mut self,
        now: Instant,
        peer: &mut Peer,
        (data, number): (&Data<'_>, u64),
        refusal: Option<Drop>,
        memory: &Memory,
    ) {
        let (grant, receive) = (peer.account.grant(), &mut peer.receive);
        let refused = refusal == Some(Drop::Memory);
        let seen = Seen {
            next: number + 1,
            floor: receive.arrivals.base(),
            // A refused frame waits at the sender, whatever the frame said.
            more: data.flags & flags::MORE != 0 || refused,
            busy: data.flags & flags::BUSY != 0,
            used: refusal.is_none(),
            urgency: (
                data.channel.priority().get(),
                receive.remaining.bytes as u64,
            ),
            used_bytes: receive.used_bytes(),
        };
        self.set_refused(grant, refused);
        if self.on_frame(now, peer.id.0, grant, seen) {
            self.hungry = true;
        }
        grant.served += u64::from(seen.used);
        self.raise_told(peer.id.0, grant, receive, memory);
    }

    /// Grants the peer what it may have now, and has it told in time.
    #[inline(always)] // as `on_data`
    fn raise_told(&mut self, peer: u16, grant: &mut Grant, receive: &mut Receive, memory: &Memory) {
        let before = grant.window;
        self.raise(peer, grant, memory_frames(receive, memory));
        if grant.window != before {
            receive.set_window(grant.window);
        }
        if grant.worth_telling() {
            receive.ack_now = true;
        }
    }

    /// Decides the credit of the active senders anew; free memory goes to the one that takes up least.
    pub(crate) fn feed(&mut self, mut members: Members<'_>) {
        let memory = members.memory;
        self.hungry = false;
        let mut arbiter = Arbiter::default();
        let mut index = 0;
        while let Some(id) = self.active_peer(index) {
            if let Some(peer) = members.peer(id) {
                let (grant, receive) = (peer.account.grant(), &mut peer.receive);
                self.raise_told(id, grant, receive, memory);
                self.note(index, receive.used_bytes());
                let memory = memory_frames(receive, memory);
                let rank = self.memory_rank(id, grant, memory);
                arbiter.consider(id, grant, memory, receive.waits_for_head(), rank);
                members.tell(id);
            }
            index += 1;
        }
        if self.hungry
            && let Some(id) = arbiter.peer()
            && let Some(Peer {
                account, receive, ..
            }) = members.peer(id)
        {
            let grant = account.grant();
            self.grant_scarce(&arbiter, grant, memory_frames(receive, memory));
            receive.ack_now |= grant.worth_telling();
            members.tell(id);
        }
    }

    pub(crate) fn regrant(&mut self, mut members: Members<'_>) {
        let memory = members.memory;
        members.each_up(|peer| {
            let grant = peer.account.grant();
            self.raise_told(peer.id.0, grant, &mut peer.receive, memory);
        });
    }
}

#[inline]
fn memory_frames(receive: &Receive, memory: &Memory) -> MemoryFrames {
    MemoryFrames {
        free_bytes: memory.free_bytes(),
        reserved_frames: receive.remaining.frames,
        frame_bytes: receive.frame_bytes,
        used_bytes: receive.used_bytes(),
    }
}
