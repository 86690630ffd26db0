//! One operation on one member: carries out a plan's transfers as messages, memory and credit allow.
//!
//! Driven by `collectives`: `handle` for what arrives, `advance` after each turn. Both sides of a transfer know its length. Up
//! to `EAGER_BYTES` it is sent at once, on credit; a longer one when its receiver has opened it, and is then written where it
//! belongs as it comes.
//!
//! Invariants: bytes of a transfer are taken in order and once; nothing is written to a place before the steps it waits for are
//! done; an operation that failed touches nothing more.

use std::any::Any;
use std::time::Instant;

use tsumuji_node::{Endpoint, Link, NodeId, Priority, SendError, Share};
use zerocopy::IntoBytes;

use crate::direct::{self, Reads};
use crate::element::{Fold, Memory};
use crate::error::CollectiveError;
use crate::group::Members;
use crate::header::{Header, Kind};
use crate::native::Native;
use crate::plan::{Action, Buffer, Place, Plan, Step};
use crate::shared::Shared;
use crate::table::Algorithm;
use crate::wires::{Control, EAGER_BYTES, FEED_BYTES, Wires};

/// Read directly in one turn: a fraction of any `dead_after`, for peers must be heard and answered.
const READ_PER_TURN_BYTES: usize = 8 << 20;

/// Read and folded at a time: stays in the first caches.
const FOLD_BYTES: usize = 64 << 10;

/// Why an operation, and with it its group, failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    Dead(NodeId),
    Mismatch(NodeId),
    OtherTable(NodeId),
}

impl From<Failure> for CollectiveError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Dead(member) => Self::MemberDead { member },
            Failure::Mismatch(member) => Self::Mismatch { member },
            Failure::OtherTable(member) => Self::OtherTable { member },
        }
    }
}

/// What a member gives.
pub(crate) enum Source<'b> {
    None,
    Slice(&'b [u8]),
    Owned(Box<dyn Memory>),
}

/// What it gets.
pub(crate) enum Target<'b> {
    None,
    Slice(&'b mut [u8]),
    Owned(Box<dyn Memory>),
}

impl Source<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Slice(bytes) => bytes,
            Self::Owned(memory) => memory.bytes(),
        }
    }
}

impl Target<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Slice(bytes) => bytes,
            Self::Owned(memory) => memory.bytes(),
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::None => &mut [],
            Self::Slice(bytes) => bytes,
            Self::Owned(memory) => memory.bytes_mut(),
        }
    }
}

/// What a call says of its operation, before it has a place in its group's sequence.
pub(crate) struct Call<'b> {
    pub(crate) algorithm: u8,
    pub(crate) input: Source<'b>,
    pub(crate) output: Target<'b>,
    pub(crate) plan: Plan,
    /// Bytes of an element that is folded; 1 where none is.
    pub(crate) unit: usize,
    pub(crate) fold: Option<Fold>,
    pub(crate) after: After,
}

/// A broadcast of the whole output from a root, after the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    Nothing,
    Native(usize),
    Shared(usize),
}

impl After {
    pub(crate) fn of(algorithm: Algorithm, root: usize) -> Self {
        match algorithm {
            Algorithm::Native => Self::Native(root),
            Algorithm::Shared => Self::Shared(root),
            _ => Self::Nothing,
        }
    }
}

/// A message for an operation that is not ready for it.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) from: NodeId,
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
}

impl Arrival {
    pub(crate) fn new(from: NodeId, header: Header, payload: &[u8]) -> Self {
        Self {
            from,
            header,
            payload: payload.to_vec(),
        }
    }

    /// It waits no longer for its operation to be called.
    pub(crate) fn leave(&self, wires: &mut Wires) {
        wires.keeps_no_longer(self.from, self.header.kind, self.payload.len());
    }

    /// It was consumed or dropped.
    pub(crate) fn pay(&self, wires: &mut Wires) {
        if self.header.kind == Kind::Eager {
            wires.pay(self.from, self.payload.len());
        }
    }
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handled {
    Done,
    /// Too early: keep it.
    Early,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// Bytes sent or taken, in order from the start.
    progress: usize,
    done: bool,
    /// Send: the receiver has opened it. Receive: we have.
    open: bool,
    /// Send: the receiver was asked to.
    asked: bool,
    /// Send: the receiver reads it here. Receive: we read it there.
    direct: bool,
    /// Send: it was told where. Receive: all was read.
    told: bool,
    /// Receive: where the sender has it.
    address: u64,
}

pub(crate) struct Operation<'b> {
    pub(crate) id: u64,
    pub(crate) group: usize,
    pub(crate) key: u64,
    pub(crate) sequence: u32,
    pub(crate) failure: Option<Failure>,
    algorithm: u8,
    input: Source<'b>,
    pub(crate) output: Target<'b>,
    scratch: Vec<u8>,
    steps: Vec<Step>,
    states: Vec<State>,
    /// Numbers of steps that are not done.
    open: Vec<u32>,
    /// The step that was found last.
    found: usize,
    unit: usize,
    fold: Option<Fold>,
    early: Vec<Arrival>,
    native: Option<Native>,
    pub(crate) shared: Option<Shared>,
    /// More can be done at once.
    pub(crate) busy: bool,
}

impl<'b> Operation<'b> {
    pub(crate) fn new(call: Call<'b>, group: &Members, id: u64, sequence: u32) -> Self {
        let Plan {
            steps,
            copies,
            scratch_bytes,
        } = call.plan;
        let bytes = call.output.bytes().len();
        let mut operation = Self {
            id,
            group: group.index,
            key: group.key,
            sequence,
            failure: None,
            algorithm: call.algorithm,
            input: call.input,
            output: call.output,
            scratch: vec![0; scratch_bytes],
            states: vec![State::default(); steps.len()],
            open: (0..steps.len() as u32).collect(),
            steps,
            found: 0,
            unit: call.unit,
            fold: call.fold,
            early: Vec::new(),
            native: match call.after {
                After::Native(root) => Some(Native::new(group, root, bytes)),
                _ => None,
            },
            shared: match call.after {
                After::Shared(root) => Some(Shared::new(group, root, bytes)),
                _ => None,
            },
            busy: false,
        };
        for (from, to) in copies {
            operation.copy(from, to);
        }
        operation
    }

    /// All is done here: what is left is others' to do.
    pub(crate) fn is_done(&self) -> bool {
        self.open.is_empty()
            && self.native.as_ref().is_none_or(Native::is_done)
            && self.shared.as_ref().is_none_or(Shared::is_done)
    }

    /// When something must be done though nothing arrives.
    pub(crate) fn timer(&self) -> Option<Instant> {
        if self.busy && self.failure.is_none() {
            return Some(Instant::now());
        }
        self.native.as_ref().and_then(Native::timer)
    }

    /// What the member gets, if it was handed in.
    pub(crate) fn into_output(self) -> Option<Box<dyn Any>> {
        match self.output {
            Target::Owned(memory) => Some(memory),
            _ => None,
        }
    }

    fn slice(&self, place: Place) -> &[u8] {
        let bytes = match place.buffer {
            Buffer::Input => self.input.bytes(),
            Buffer::Output => self.output.bytes(),
            Buffer::Scratch => &self.scratch,
        };
        &bytes[place.start..place.start + place.len]
    }

    fn slice_mut(&mut self, place: Place) -> &mut [u8] {
        let bytes = match place.buffer {
            Buffer::Input => &mut [], // never written
            Buffer::Output => self.output.bytes_mut(),
            Buffer::Scratch => &mut self.scratch,
        };
        &mut bytes[place.start..place.start + place.len]
    }

    fn copy(&mut self, from: Place, to: Place) {
        let source = match from.buffer {
            Buffer::Input => self.input.bytes(),
            Buffer::Output | Buffer::Scratch => return, // plans copy from what is given
        };
        let source = &source[from.start..from.start + from.len];
        let target = match to.buffer {
            Buffer::Input => return,
            Buffer::Output => self.output.bytes_mut(),
            Buffer::Scratch => &mut self.scratch,
        };
        target[to.start..to.start + to.len].copy_from_slice(source);
    }

    fn may_begin(&self, step: &Step) -> bool {
        let done =
            |earlier: &Option<u32>| earlier.is_none_or(|step| self.states[step as usize].done);
        step.after.iter().all(done)
    }

    fn find(&mut self, peer: usize, tag: u16, sends: bool) -> Option<usize> {
        let matches = |number: &usize| {
            let step = &self.steps[*number];
            step.peer == peer && step.tag == tag && (step.action == Action::Send) == sends
        };
        // Most come about in the plan's order.
        let mut numbers = (self.found..self.steps.len()).chain(0..self.found);
        let number = numbers.find(matches)?;
        self.found = number;
        Some(number)
    }

    fn finish(&mut self, step: usize) {
        self.states[step].done = true;
        if let Some(place) = self.open.iter().position(|open| *open as usize == step) {
            self.open.remove(place);
        }
    }

    fn header(&self, kind: Kind, step: &Step, offset: usize) -> Header {
        Header {
            kind,
            algorithm: self.algorithm,
            tag: step.tag,
            sequence: self.sequence,
            key: self.key,
            offset: offset as u64,
            total: step.place.len as u64,
        }
    }

    /// A message of member `rank`, for this operation.
    pub(crate) fn handle(
        &mut self,
        (from, rank): (NodeId, usize),
        header: &Header,
        payload: &[u8],
        wires: &mut Wires,
    ) -> Handled {
        if self.failure.is_none() {
            let handled = if header.algorithm == self.algorithm {
                self.take(rank, header, payload, from, wires)
            } else {
                None
            };
            match handled {
                Some(Handled::Early) => return Handled::Early,
                Some(Handled::Done) => {}
                None => self.failure = Some(Failure::Mismatch(from)),
            }
        }
        if header.kind == Kind::Eager {
            wires.pay(from, payload.len());
        }
        Handled::Done
    }

    /// The same, kept if it is early.
    pub(crate) fn handle_or_keep(
        &mut self,
        from: (NodeId, usize),
        header: Header,
        payload: &[u8],
        wires: &mut Wires,
    ) {
        if self.handle(from, &header, payload, wires) == Handled::Early {
            self.keep(Arrival::new(from.0, header, payload));
        }
    }

    /// `None`: the member does something else than we do.
    fn take(
        &mut self,
        rank: usize,
        header: &Header,
        payload: &[u8],
        from: NodeId,
        wires: &mut Wires,
    ) -> Option<Handled> {
        let sends = match header.kind {
            Kind::Open | Kind::Taken => true,
            Kind::Eager | Kind::Piece | Kind::Ask | Kind::Direct | Kind::Confirm => false,
            _ => {
                let native = self.native.as_mut()?;
                native.handle(rank, header, payload, &mut self.output)?;
                return Some(Handled::Done);
            }
        };
        let number = self.find(rank, header.tag, sends)?;
        let step = self.steps[number];
        if header.total != step.place.len as u64 {
            return None;
        }
        if self.states[number].done {
            // A question or its answer may cross the credit that made it needless. Bytes come once.
            return matches!(header.kind, Kind::Open | Kind::Ask).then_some(Handled::Done);
        }
        match header.kind {
            Kind::Open => {
                let state = &mut self.states[number];
                state.open = true;
                state.direct = header.offset == 1 && wires.identity.is_some();
            }
            Kind::Taken => {
                let state = &mut self.states[number];
                if !(state.direct && state.told) {
                    return None;
                }
                if header.offset == header.total {
                    wires.control(from, self.header(Kind::Confirm, &step, 0));
                    self.finish(number);
                } else {
                    state.direct = false; // in pieces, then
                }
            }
            Kind::Direct => self.told_where(number, &step, header.offset, payload, from, wires)?,
            Kind::Confirm => {
                let state = self.states[number];
                if !(state.direct && state.told) {
                    return None;
                }
                wires.counters.direct_reads += 1;
                self.finish(number);
            }
            Kind::Ask => {
                // Small: kept by us if it is still early when it comes.
                if step.place.len > EAGER_BYTES {
                    return None;
                }
                if !self.states[number].open {
                    self.states[number].open = true;
                    wires.control(from, self.header(Kind::Open, &step, 0));
                }
            }
            Kind::Eager | Kind::Piece
                if step.place.len <= EAGER_BYTES && !self.may_begin(&step) =>
            {
                let whole = header.offset == 0 && payload.len() == step.place.len;
                let again = |kept: &Arrival| kept.from == from && kept.header.tag == header.tag;
                let fits = whole && !self.early.iter().any(again);
                return fits.then_some(Handled::Early);
            }
            _ => self.receive(number, step, header.offset, payload)?,
        }
        Some(Handled::Done)
    }

    /// The sender says where it has a transfer. `None`: nobody asked.
    fn told_where(
        &mut self,
        number: usize,
        step: &Step,
        address: u64,
        payload: &[u8],
        from: NodeId,
        wires: &mut Wires,
    ) -> Option<()> {
        let state = &mut self.states[number];
        if !state.open || state.direct || state.progress > 0 || wires.identity.is_none() {
            return None;
        }
        let words = direct::parse(payload)?;
        let peer = &mut wires.peers[usize::from(from.0)];
        if peer.reads == Reads::Unknown {
            peer.reads = if direct::verify(words) {
                Reads::Yes
            } else {
                Reads::No
            };
            peer.pid = words[0];
        }
        if peer.reads == Reads::Yes {
            (state.direct, state.address) = (true, address);
        } else {
            wires.control(from, self.header(Kind::Taken, step, 0));
        }
        Some(())
    }

    /// Reads on where the sender has it, and says so at the end.
    fn read(&mut self, number: usize, step: Step, from: NodeId, wires: &mut Wires) {
        let state = self.states[number];
        let pid = wires.peers[usize::from(from.0)].pid;
        let end = step
            .place
            .len
            .min(state.progress + READ_PER_TURN_BYTES / self.unit * self.unit);
        let place = Place {
            start: step.place.start + state.progress,
            len: end - state.progress,
            ..step.place
        };
        let address = state.address.wrapping_add(state.progress as u64);
        let mut folded = state.progress > 0;
        let read = match (step.action, &self.fold) {
            (Action::Fold { incoming_left }, Some(fold)) => {
                let fold = std::sync::Arc::clone(fold);
                let mut block = std::mem::take(&mut wires.block);
                block.resize((FOLD_BYTES / self.unit).max(1) * self.unit, 0);
                let (mut at, target) = (address, self.slice_mut(place));
                let read = target.chunks_mut(block.len()).all(|held| {
                    let block = &mut block[..held.len()];
                    let read = direct::read(pid, at, block);
                    if read {
                        fold(held, block, incoming_left);
                        folded = true;
                        at = at.wrapping_add(held.len() as u64);
                    }
                    read
                });
                wires.block = block;
                read
            }
            _ => direct::read(pid, address, self.slice_mut(place)),
        };
        if !read {
            let state = &mut self.states[number];
            if matches!(step.action, Action::Fold { .. }) && folded {
                // What the sender had is gone, so its part has failed: we will hear why. Nothing was confirmed.
                state.told = true;
            } else {
                (state.direct, state.progress) = (false, 0);
                wires.control(from, self.header(Kind::Taken, &step, 0));
            }
            return;
        }
        self.states[number].progress = end;
        if end < step.place.len {
            self.busy = true;
        } else {
            self.states[number].told = true;
            wires.control(from, self.header(Kind::Taken, &step, step.place.len));
        }
    }

    /// Takes the next bytes of a transfer; `None`: they are not.
    fn receive(&mut self, number: usize, step: Step, offset: u64, payload: &[u8]) -> Option<()> {
        let progress = self.states[number].progress;
        let end = progress + payload.len();
        let fits = offset == progress as u64
            && end <= step.place.len
            && (!payload.is_empty() || step.place.len == 0)
            && payload.len().is_multiple_of(self.unit)
            && !self.states[number].direct
            && self.may_begin(&step);
        if !fits {
            return None;
        }
        let place = Place {
            buffer: step.place.buffer,
            start: step.place.start + progress,
            len: payload.len(),
        };
        match (step.action, &self.fold) {
            (Action::Fold { incoming_left }, Some(fold)) => {
                let fold = std::sync::Arc::clone(fold);
                fold(self.slice_mut(place), payload, incoming_left);
            }
            _ => self.slice_mut(place).copy_from_slice(payload),
        }
        self.states[number].progress = end;
        if end == step.place.len {
            self.finish(number);
        }
        Some(())
    }

    /// Its transfers are done: what comes after them may begin.
    pub(crate) fn is_planned_done(&self) -> bool {
        self.open.is_empty()
    }

    /// As other members see it.
    pub(crate) fn algorithm(&self) -> u8 {
        self.algorithm
    }

    /// A frame of a native broadcast by one of the group's members.
    pub(crate) fn share(&mut self, group: &Members, share: &Share<'_>) {
        if self.failure.is_none()
            && let Some(native) = &mut self.native
            && let Some(rank) = group.rank_of(share.source)
        {
            let start = share.start as usize;
            native.share(rank, start, share.payload, &mut self.output);
        }
    }

    /// Does what can be done now.
    pub(crate) fn advance<L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
        group: &Members,
        wires: &mut Wires,
    ) -> Result<(), CollectiveError> {
        self.busy = false;
        let mut again = true;
        while again && self.failure.is_none() {
            again = self.take_early(group, wires);
            let mut index = 0;
            while index < self.open.len() && self.failure.is_none() {
                let number = self.open[index] as usize;
                let step = self.steps[number];
                let to = group.nodes[step.peer];
                if step.action == Action::Send {
                    again |= self.send(number, step, to, endpoint, wires)?;
                } else if step.place.len > EAGER_BYTES
                    && !self.states[number].open
                    && self.may_begin(&step)
                {
                    self.states[number].open = true;
                    let how = usize::from(wires.may_read(to));
                    wires.control(to, self.header(Kind::Open, &step, how));
                } else if self.states[number].direct && !self.states[number].told && !self.busy {
                    self.read(number, step, to, wires);
                }
                index += usize::from(self.open.get(index) == Some(&(number as u32)));
            }
        }
        if self.failure.is_none()
            && self.open.is_empty()
            && let Some(native) = &mut self.native
        {
            let at = (self.key, self.sequence, self.algorithm);
            native.advance(at, &self.output, endpoint, group, wires)?;
        }
        Ok(())
    }

    /// Small messages that came before the steps they had to wait for.
    fn take_early(&mut self, group: &Members, wires: &mut Wires) -> bool {
        let (mut took, mut index) = (false, 0);
        while index < self.early.len() {
            let (from, tag) = (self.early[index].from, self.early[index].header.tag);
            let rank = group.rank_of(from);
            let number = rank.and_then(|rank| self.find(rank, tag, false));
            let Some(number) = number.filter(|number| self.may_begin(&self.steps[*number])) else {
                index += 1;
                continue;
            };
            let arrival = self.early.swap_remove(index);
            let step = self.steps[number];
            if self.receive(number, step, 0, &arrival.payload).is_none() {
                self.failure = Some(Failure::Mismatch(arrival.from));
            }
            arrival.pay(wires);
            took = true;
        }
        took
    }

    /// Keeps a message that `handle` said is early.
    pub(crate) fn keep(&mut self, arrival: Arrival) {
        self.early.push(arrival);
    }

    /// Sends what may be sent of a transfer; whether that finished it.
    fn send<L: Link>(
        &mut self,
        number: usize,
        step: Step,
        to: NodeId,
        endpoint: &mut Endpoint<L>,
        wires: &mut Wires,
    ) -> Result<bool, CollectiveError> {
        if !self.may_begin(&step) {
            return Ok(false);
        }
        let len = step.place.len;
        // What is read directly is not known to be sound before it is confirmed.
        let there = step.follows.map_or(len, |receive| {
            let from = self.states[receive as usize];
            if from.direct && !from.done {
                0
            } else {
                from.progress
            }
        });
        let state = self.states[number];
        if len <= EAGER_BYTES {
            let ready = there == len;
            let paid = ready && !state.open && wires.take_credit(to, len);
            if ready && !state.open && !paid {
                if !state.asked {
                    self.states[number].asked = true;
                    wires.control(to, self.header(Kind::Ask, &step, 0));
                }
                return Ok(false);
            }
            if !ready {
                return Ok(false);
            }
            // Opened by its receiver it needs no credit, and is paid back by nobody.
            let kind = if paid { Kind::Eager } else { Kind::Piece };
            let sent = self.send_piece(kind, &step, 0, len, to, endpoint)?;
            if sent {
                self.finish(number);
            } else if paid {
                wires.give_back(to, len);
            }
            return Ok(sent);
        }
        if !state.open {
            return Ok(false);
        }
        if state.direct {
            if there == len && !state.told {
                self.tell_where(number, &step, to, wires);
            }
            return Ok(false);
        }
        let piece = wires.piece_bytes(self.unit);
        let mut sent = state.progress;
        while sent < there {
            let bytes = piece.min(len - sent);
            let queued = endpoint.flow(to).map_or(0, |flow| flow.queued_bytes);
            if there - sent < bytes
                || queued >= FEED_BYTES
                || !self.send_piece(Kind::Piece, &step, sent, bytes, to, endpoint)?
            {
                break;
            }
            sent += bytes;
        }
        self.states[number].progress = sent;
        if sent == len {
            self.finish(number);
        }
        Ok(sent == len)
    }

    /// The whole of a transfer is here: its receiver may read it.
    fn tell_where(&mut self, number: usize, step: &Step, to: NodeId, wires: &mut Wires) {
        let Some(identity) = &wires.identity else {
            return;
        };
        let body = identity.words().as_bytes().to_vec();
        let address = self.slice(step.place).as_ptr().expose_provenance();
        self.states[number].told = true;
        let header = self.header(Kind::Direct, step, address);
        wires.outbox.push_back(Control { to, header, body });
    }

    fn send_piece<L: Link>(
        &mut self,
        kind: Kind,
        step: &Step,
        offset: usize,
        bytes: usize,
        to: NodeId,
        endpoint: &mut Endpoint<L>,
    ) -> Result<bool, CollectiveError> {
        let head = self.header(kind, step, offset).to_bytes();
        let body = &self.slice(step.place)[offset..offset + bytes];
        match endpoint.try_send_aside(to, Priority::NORMAL, &head, body) {
            Ok(()) => Ok(true),
            Err(SendError::WouldBlock { .. }) => Ok(false),
            Err(SendError::PeerDead { peer }) => {
                self.failure = Some(Failure::Dead(peer));
                Ok(false)
            }
            Err(error) => Err(CollectiveError::Send(error)),
        }
    }

    /// Can it not end without member `rank`, of whom nothing more will come?
    pub(crate) fn needs(&self, rank: usize, node: NodeId) -> bool {
        let lacks = |&number: &u32| {
            let step = &self.steps[number as usize];
            let here = |arrival: &Arrival| arrival.from == node && arrival.header.tag == step.tag;
            step.peer == rank && (step.action == Action::Send || !self.early.iter().any(here))
        };
        self.open.iter().any(lacks)
            || self
                .native
                .as_ref()
                .is_some_and(|native| native.needs(rank))
            || self
                .shared
                .as_ref()
                .is_some_and(|shared| shared.needs(rank))
    }

    /// It failed: messages it kept are paid for, so that their senders' credit is not lost to other groups.
    pub(crate) fn drop_early(&mut self, wires: &mut Wires) {
        for arrival in self.early.drain(..) {
            arrival.pay(wires);
        }
    }
}
