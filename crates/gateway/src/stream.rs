//! One connection: between the ring of a program of this host and the channel to the gateway of another one.
//!
//! The two programs agree through both gateways. The server's end goes over to its ring when it has claimed and the client's confirmation has come; the
//! client's when the word of that has come. The server's ring is read only after the client's end has gone over, so that nothing is lost if the client
//! stays with TCP instead; then the server's end is told to go back, and sends by TCP what is in its ring.
//!
//! Invariants: messages of a stream are sent in the order of what the program did; flags of a program are read before its ring, so that what it wrote
//! before it set them is sent before they are told. A word that the program can write is read once for each decision.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tsumuji_node::Delivery;
use tsumuji_node::{Channel, Context, Endpoint, Handler, NodeId, Retained, SendError};
use tsumuji_streams::address::Pair;
use tsumuji_streams::ring::{self, Broken, CANCELLED, CLAIMED, CONFIRMED, Reading};

use crate::end::End;
use crate::message::{self, HEAD_BYTES, Kind};
use crate::tuning::TUNING;

/// Which program is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// Why a stream cannot go on.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The program wrote what cannot be.
    Broken,
    /// The other gateway is gone, or cannot be sent to.
    Peer,
}

impl From<Broken> for Fault {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

/// What came on the stream's channel and did not go into the program's ring at once.
#[derive(Debug)]
pub(crate) struct Incoming {
    end: End,
    token: u32,
    queue: VecDeque<Retained>,
    /// Bytes of the first message that are in the ring.
    taken: usize,
    /// The slot is this connection's until the gateway lets go of it.
    is_ours: bool,
    is_broken: bool,
}

/// Streams that something came for, by their index.
pub(crate) type Listed = Arc<Mutex<Vec<usize>>>;

/// The handler of a stream's channel.
pub(crate) struct Receiver {
    incoming: Arc<Mutex<Incoming>>,
    listed: Listed,
    index: usize,
}

pub(crate) fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handler for Receiver {
    fn message(&mut self, context: &mut Context<'_>, delivery: Delivery<'_>) {
        let mut incoming = locked(&self.incoming);
        let Some((kind, token, rest)) = message::split(delivery.body.bytes()) else {
            return;
        };
        if token != incoming.token || incoming.is_broken || kind == Kind::Data && !incoming.is_ours
        {
            return;
        }
        if kind == Kind::Data && incoming.queue.is_empty() && !incoming.end.is_shut() {
            match incoming.end.write(rest) {
                Ok(written) if written == rest.len() => return,
                Ok(written) => incoming.taken = written,
                Err(Broken) => incoming.is_broken = true,
            }
        }
        let retained = context.retain(delivery);
        incoming.queue.push_back(retained);
        locked(&self.listed).push(self.index);
    }
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) end: End,
    incoming: Arc<Mutex<Incoming>>,
    pub(crate) role: Role,
    pub(crate) peer: NodeId,
    pub(crate) token: u32,
    /// Token and channel at the other gateway, once it has answered.
    pub(crate) there: Option<(u32, u16)>,
    /// The client's connection to our mailbox, which waits for the answer.
    pub(crate) asker: Option<OwnedFd>,
    /// What was told to the other gateway, a bit for each kind: all but data is told once.
    told: u16,
    /// The other program goes by its ring.
    is_claimed_there: bool,
    /// Both do, and each gateway knows.
    is_agreed: bool,
    /// The program stays with TCP although the other one had gone over.
    is_refused: bool,
    /// All processes of the program have closed the connection, or are gone.
    pub(crate) is_program_gone: bool,
    is_peer_gone: bool,
    /// It has ended by a fault, of which the other gateway may not know yet.
    is_aborted: bool,
    /// Bytes carried, out and in, for the report.
    pub(crate) sent_bytes: u64,
}

/// How far a stream was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// There is nothing more to do now.
    Idle,
    /// It has had its share of bytes.
    More,
    /// What is sent next must wait for room.
    Blocked,
    /// The stream has ended at both ends.
    Done,
}

impl Stream {
    pub(crate) fn new(end: End, role: Role, peer: NodeId, token: u32) -> Self {
        let incoming = Incoming {
            end: end.clone(),
            token,
            queue: VecDeque::new(),
            taken: 0,
            is_ours: role == Role::Server,
            is_broken: false,
        };
        Self {
            end,
            incoming: Arc::new(Mutex::new(incoming)),
            role,
            peer,
            token,
            there: None,
            asker: None,
            told: 0,
            is_claimed_there: false,
            is_agreed: false,
            is_refused: false,
            is_program_gone: false,
            is_peer_gone: false,
            is_aborted: false,
            sent_bytes: 0,
        }
    }

    pub(crate) fn receiver(&self, index: usize, listed: &Listed) -> Receiver {
        Receiver {
            incoming: Arc::clone(&self.incoming),
            listed: Arc::clone(listed),
            index,
        }
    }

    /// Whether data goes this way.
    pub(crate) fn is_agreed(&self) -> bool {
        self.is_agreed
    }

    /// Whether the slot is this connection's until we let go of it. That of a client is from the agreement on; before, the client may use it again, and
    /// nothing but its state, which has a generation, may be written.
    pub(crate) fn is_ours(&self) -> bool {
        locked(&self.incoming).is_ours
    }

    /// Wakes the program, so that it looks at its slot.
    fn wake(&self) {
        if self.is_ours() {
            self.end.mark();
        }
        self.end.wake();
    }

    /// Does what can be done now, in both directions.
    pub(crate) fn serve(
        &mut self,
        endpoint: &mut Endpoint,
        room: &mut [u8],
    ) -> Result<Served, Fault> {
        if self.is_aborted {
            let is_told = self.there.is_none() || self.tell(endpoint, Kind::Gone, &[1])?;
            return Ok(if is_told {
                Served::Done
            } else {
                Served::Blocked
            });
        }
        let is_closed = self.end.program().out.is_closed.load(Ordering::Acquire) != 0;
        if is_closed && self.end.state().is_some() {
            self.is_program_gone = true;
        }
        self.take_in(endpoint)?;
        let served = self.send_out(endpoint, room)?;
        // What the program has sent before it shut down has left.
        self.take_in(endpoint)?;
        Ok(if self.has_told(Kind::Gone) && self.is_peer_gone {
            Served::Done
        } else {
            served
        })
    }

    /// Nothing goes on after a fault: the program sees that at once, and the other gateway is told by the next calls. False: that has been tried.
    pub(crate) fn abort(&mut self) -> bool {
        locked(&self.incoming).is_broken = true;
        self.end.hang_up();
        !std::mem::replace(&mut self.is_aborted, true)
    }

    /// Takes what came on the channel.
    fn take_in(&mut self, endpoint: &mut Endpoint) -> Result<(), Fault> {
        loop {
            let retained = {
                let mut incoming = locked(&self.incoming);
                if incoming.is_broken {
                    return Err(Fault::Broken);
                }
                let taken = incoming.taken;
                let Some(first) = incoming.queue.front() else {
                    return Ok(());
                };
                let Some((kind, _, rest)) = message::split(first) else {
                    return Err(Fault::Peer);
                };
                // What nobody will read would keep the channel full, and the other gateway from telling more.
                let is_wanted = kind == Kind::Data && !self.is_program_gone;
                if is_wanted && self.end.is_shut() {
                    return match self.has_told(Kind::Finished) {
                        true => Err(Fault::Broken),
                        false => Ok(()),
                    };
                }
                if is_wanted && taken < rest.len() {
                    let written = self.end.write(&rest[taken..])?;
                    incoming.taken += written;
                    if taken + written < incoming.queue[0].len() - HEAD_BYTES {
                        if !self.end.wants_room()? {
                            return Ok(());
                        }
                        continue;
                    }
                }
                incoming.taken = 0;
                incoming.queue.pop_front()
            };
            let Some(retained) = retained else {
                return Ok(());
            };
            if let Some((kind, _, rest)) = message::split(&retained) {
                self.hear(kind, rest)?;
            }
            endpoint.release(retained);
        }
    }

    /// What the other gateway says.
    fn hear(&mut self, kind: Kind, rest: &[u8]) -> Result<(), Fault> {
        let mine = self.end.mine();
        let needs_slot = [Kind::Switch, Kind::Finished, Kind::Back, Kind::WantsTcp].contains(&kind);
        if needs_slot && !self.is_ours() {
            return Err(Fault::Peer);
        }
        match kind {
            Kind::Data => {}
            Kind::Confirmed if self.role == Role::Server => {
                let pair = message::pair(rest).ok_or(Fault::Peer)?;
                pair.store(&self.end.slot().pair);
                if self.end.set(CONFIRMED, CANCELLED) {
                    self.end.wake();
                }
            }
            Kind::Claimed if self.role == Role::Client => self.is_claimed_there = true,
            Kind::Agreed if self.role == Role::Server => self.is_agreed = true,
            Kind::Cancelled => self.stay_with_tcp(),
            Kind::Switch => {
                let switch_at = message::number(rest).ok_or(Fault::Peer)?;
                mine.out
                    .switch_at
                    .store(switch_at.max(1), Ordering::Release);
            }
            Kind::Finished => {
                mine.out.is_finished.store(1, Ordering::SeqCst);
                self.end.tell();
            }
            Kind::Back => {
                mine.out
                    .back_at
                    .store(self.end.end_of_ring(), Ordering::Release);
                self.wake();
            }
            Kind::WantsTcp => {
                mine.inn.wants_tcp.store(1, Ordering::SeqCst);
                self.wake();
            }
            Kind::SeesEnd => self.see_end(),
            Kind::Gone => self.peer_has_gone(rest.first() == Some(&1)),
            Kind::Confirmed | Kind::Claimed | Kind::Agreed => return Err(Fault::Peer),
        }
        Ok(())
    }

    /// The other program stays with TCP.
    fn stay_with_tcp(&mut self) {
        if self.is_agreed {
            return;
        }
        if !self.end.set(CANCELLED, CLAIMED) && self.role == Role::Server {
            // It has gone over already; of what it sent since nothing was read.
            self.is_refused = true;
            let ring::End { out, inn, .. } = self.end.mine();
            // All that comes, comes by TCP.
            out.back_at.store(self.end.end_of_ring(), Ordering::Release);
            inn.is_frozen.store(1, Ordering::SeqCst);
            inn.wants_tcp.store(1, Ordering::SeqCst);
        }
        self.wake();
    }

    /// The other program's kernel says that our program has closed the connection: nobody will claim it, or write more.
    fn see_end(&mut self) {
        let is_half = self.end.state().is_some()
            && self.end.program().out.is_finished.load(Ordering::Acquire) != 0;
        if is_half {
            // It may have shut down sending only; its end is known by the socket between us.
            return;
        }
        let is_open = self.end.state().is_some_and(|state| state & CLAIMED == 0);
        if is_open && self.role == Role::Server && self.end.set(CANCELLED, CLAIMED) {
            return;
        }
        self.is_program_gone = true;
    }

    fn peer_has_gone(&mut self, is_by_reset: bool) {
        self.is_peer_gone = true;
        if self.is_refused {
            return;
        }
        self.end.set(CANCELLED, CLAIMED);
        if self.is_ours() {
            let out = &self.end.mine().out;
            let is_reset = u32::from(is_by_reset);
            out.ends_by_reset.store(is_reset, Ordering::Relaxed);
            if !is_by_reset {
                // A reset is the kernel's to tell.
                out.is_finished.store(1, Ordering::SeqCst);
            }
            out.is_closed.store(1, Ordering::SeqCst);
        }
        self.wake();
        if self
            .end
            .state()
            .is_none_or(|state| state & (CLAIMED | CANCELLED) == CANCELLED)
        {
            // Nobody here has ever had it.
            self.is_program_gone = true;
        }
    }

    fn has_told(&self, kind: Kind) -> bool {
        self.told & 1 << kind as u16 != 0
    }

    /// Sends a message of this kind, unless one was sent. False: there is no room.
    fn tell(&mut self, endpoint: &mut Endpoint, kind: Kind, rest: &[u8]) -> Result<bool, Fault> {
        if !self.has_told(kind) && self.say(endpoint, kind, rest)? {
            self.told |= 1 << kind as u16;
        }
        Ok(self.has_told(kind))
    }

    /// Sends a message. False: there is no room.
    fn say(&self, endpoint: &mut Endpoint, kind: Kind, rest: &[u8]) -> Result<bool, Fault> {
        let Some((token, channel)) = self.there else {
            return Ok(false);
        };
        let head = message::head(kind, token);
        match endpoint.try_send_joined(self.peer, Channel::ordered(channel), (&head, rest)) {
            Ok(()) => Ok(true),
            Err(SendError::WouldBlock { .. }) => Ok(false),
            Err(_) => Err(Fault::Peer),
        }
    }

    /// Tells the other gateway what the program did.
    fn send_out(&mut self, endpoint: &mut Endpoint, room: &mut [u8]) -> Result<Served, Fault> {
        if self.there.is_none() {
            return Ok(Served::Idle);
        }
        let state = self.end.state();
        let sees_end =
            state.is_some() && self.end.program().inn.sees_end.load(Ordering::Acquire) != 0;
        if sees_end && !self.tell(endpoint, Kind::SeesEnd, &[])? {
            return Ok(Served::Blocked);
        }
        if !self.is_agreed && !self.agree(endpoint, state)? {
            return Ok(Served::Blocked);
        }
        if self.is_agreed {
            match self.pump(endpoint, room)? {
                Served::Idle => {}
                served => return Ok(served),
            }
        }
        // What the program has sent since it went over is read only then.
        let waits_for_client = self.has_told(Kind::Claimed)
            && !self.is_agreed
            && !self.is_refused
            && !self.is_peer_gone;
        if self.is_program_gone && !waits_for_client {
            let is_by_reset = self.is_agreed && self.end.was_reset();
            if !self.tell(endpoint, Kind::Gone, &[u8::from(is_by_reset)])? {
                return Ok(Served::Blocked);
            }
        }
        Ok(Served::Idle)
    }

    /// Steps towards an agreement. False: a message must wait.
    fn agree(&mut self, endpoint: &mut Endpoint, state: Option<u64>) -> Result<bool, Fault> {
        let state = state.unwrap_or(CANCELLED);
        if self.is_refused {
            return Ok(true);
        }
        if state & CANCELLED != 0 {
            // The stream has no more to do; TCP carries the connection.
            self.is_program_gone = true;
            return self.tell(endpoint, Kind::Cancelled, &[]);
        }
        match self.role {
            Role::Client => {
                if state & CONFIRMED != 0 && !self.has_told(Kind::Confirmed) {
                    let pair = Pair::load(&self.end.slot().pair).ok_or(Fault::Broken)?;
                    if !self.tell(endpoint, Kind::Confirmed, &message::pair_to_bytes(&pair))? {
                        return Ok(false);
                    }
                }
                if self.is_claimed_there && self.has_told(Kind::Confirmed) {
                    let processes = &self.end.mine().own.processes;
                    if state & CLAIMED == 0 {
                        processes.store(1, Ordering::Release);
                        if !self.end.set(CLAIMED, CANCELLED) {
                            processes.store(0, Ordering::Release);
                            return self.agree(endpoint, self.end.state());
                        }
                        locked(&self.incoming).is_ours = true;
                        self.end.wake();
                    }
                    self.is_agreed = self.tell(endpoint, Kind::Agreed, &[])?;
                    return Ok(self.is_agreed);
                }
            }
            Role::Server => {
                const BOTH: u64 = CLAIMED | CONFIRMED;
                if state & BOTH == BOTH {
                    return self.tell(endpoint, Kind::Claimed, &[]);
                }
            }
        }
        Ok(true)
    }

    /// Sends what the program has written. Flags before data: what was written before they were set is there.
    fn pump(&mut self, endpoint: &mut Endpoint, room: &mut [u8]) -> Result<Served, Fault> {
        let program = self.end.program();
        let is_finished = program.out.is_finished.load(Ordering::Acquire) != 0;
        let back_at = program.out.back_at.load(Ordering::Acquire);
        let wants_tcp = program.inn.wants_tcp.load(Ordering::Acquire) != 0;
        let switch_at = program.out.switch_at.load(Ordering::Acquire);
        if switch_at != 0 && !self.tell(endpoint, Kind::Switch, &switch_at.to_le_bytes())? {
            return Ok(Served::Blocked);
        }
        if wants_tcp && !self.tell(endpoint, Kind::WantsTcp, &[])? {
            return Ok(Served::Blocked);
        }
        let ring = self.end.reader();
        let mut sent = 0;
        let channel = self.there.map_or(0, |(_, channel)| channel);
        loop {
            if sent >= TUNING.served_bytes_max {
                return Ok(Served::More);
            }
            // Before anything is copied.
            if endpoint.is_stopped(self.peer, channel) {
                return Ok(Served::Blocked);
            }
            let bytes = ring.read_bytes(room, Reading::Peek)?;
            if bytes == 0 {
                break;
            }
            if !self.say(endpoint, Kind::Data, &room[..bytes])? {
                return Ok(Served::Blocked);
            }
            ring.discard(bytes)?;
            self.end.has_taken()?;
            sent += bytes;
            self.sent_bytes += bytes as u64;
        }
        let is_behind = back_at != 0 && ring.consumer() == back_at - 1;
        if is_behind && !self.tell(endpoint, Kind::Back, &[])? {
            return Ok(Served::Blocked);
        }
        if is_finished && !self.tell(endpoint, Kind::Finished, &[])? {
            return Ok(Served::Blocked);
        }
        Ok(if sent > 0 { Served::More } else { Served::Idle })
    }
}

#[cfg(test)]
mod tests;
