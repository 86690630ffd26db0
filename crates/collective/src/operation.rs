//! One operation on one member: carries out a plan's transfers as messages, as memory and credit allow.
//!
//! Driven by `collectives`: `handle` for messages, `advance` after each poll. Both sides of a transfer know its length. Up to `eager_bytes` it is
//! sent at once, on credit; a longer one after its receiver has opened it, and is then written in place as it arrives. The two halves of a transfer
//! are in `send` and `receive`. Each message says what its sender called (`Called`). A side that hears nothing for long asks the other (`ask`), which
//! compares lengths: if the sender takes the transfer to be long and the receiver to be short, neither begins. A member whose operation is over answers
//! that (`over`): a member that still waits for it has then called something else.
//!
//! Invariants: bytes of a transfer are taken in order and once; nothing is written to a place before the steps that it waits for are done; a failed
//! operation accesses nothing any more.

mod receive;
mod send;

use std::any::Any;
use std::sync::Weak;
use std::time::Instant;

use tsumuji_node::{Datagram, Endpoint, NodeId};

use crate::call::{Call, Source, Target};
use crate::element::Fold;
use crate::error::CollectiveError;
use crate::group::Members;
use crate::header::{Called, Header, Kind};
use crate::ledger::{Ledger, PIECE_BYTES_LEAST};
use crate::native::Native;
use crate::plan::{Action, Buffer, Place, Plan, Step};

/// Why an operation failed, and with it its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    Dead(NodeId),
    Mismatch(NodeId),
    OtherTable(NodeId),
    OtherControl(NodeId),
}

impl From<Failure> for CollectiveError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Dead(member) => Self::MemberDead { member },
            Failure::Mismatch(member) => Self::Mismatch { member },
            Failure::OtherTable(member) => Self::OtherTable { member },
            Failure::OtherControl(member) => Self::OtherControl { member },
        }
    }
}

/// A message for an operation that is not ready for it.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) from: NodeId,
    /// Number of the sender's session.
    pub(crate) session: u64,
    pub(crate) header: Header,
    pub(crate) payload: Vec<u8>,
}

impl Arrival {
    pub(crate) fn new((from, session): (NodeId, u64), header: Header, payload: &[u8]) -> Self {
        Self {
            from,
            session,
            header,
            payload: payload.to_vec(),
        }
    }

    /// Whether it is still of use: not if it wants an answer to a session that ended.
    pub(crate) fn is_useful(&self, ledger: &Ledger) -> bool {
        self.session == ledger.session(self.from) || !self.header.kind.wants_answer()
    }

    /// The message no longer waits for its operation to be called.
    pub(crate) fn leave(&self, ledger: &mut Ledger) {
        let from = (self.from, self.session);
        ledger.keeps_no_longer(from, self.header.kind, self.payload.len());
    }

    /// The message was consumed or dropped: grants credit for it.
    pub(crate) fn pay(&self, ledger: &mut Ledger) {
        if self.header.kind == Kind::Eager {
            ledger.pay((self.from, self.session), self.payload.len());
        }
    }
}

/// Result of handling a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handled {
    Done,
    /// It is too early: keep it.
    Early,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// Bytes sent or received, in order from the start.
    progress: usize,
    done: bool,
    /// Send: the receiver has opened the transfer. Receive: this side has.
    open: bool,
    /// Send: the receiver was asked to open it.
    asked: bool,
    /// Send: the receiver reads it in our memory. Receive: we read it in the sender's.
    direct: bool,
    /// Send: the receiver was told the address. Receive: all was read.
    told: bool,
    /// Receive: address in the sender's memory.
    address: u64,
}

pub(crate) struct Operation<'b> {
    pub(crate) id: u64,
    pub(crate) group: usize,
    pub(crate) key: u64,
    pub(crate) sequence: u32,
    pub(crate) failure: Option<Failure>,
    /// Tells whether its request still exists; a blocking call has none.
    pub(crate) request: Weak<()>,
    called: Called,
    input: Source<'b>,
    pub(crate) output: Target<'b>,
    scratch: Vec<u8>,
    steps: Vec<Step>,
    /// Copies (from, to) of the steps that move.
    moves: Vec<(Place, Place)>,
    states: Vec<State>,
    /// Numbers of steps that are not done.
    open: Vec<u32>,
    /// Index of the step found last.
    found: usize,
    unit: usize,
    /// Some members forward bytes as they arrive.
    streams: bool,
    fold: Option<Fold>,
    pub(crate) early: Vec<Arrival>,
    native: Option<Native>,
    /// More can be done without a message.
    pub(crate) busy: bool,
    /// It was under way when questions were asked last.
    has_waited: bool,
}

impl<'b> Operation<'b> {
    pub(crate) fn new(call: Call<'b>, group: &Members, id: u64, sequence: u32) -> Self {
        let Plan {
            steps,
            copies,
            moves,
            scratch_bytes,
            streams,
        } = call.plan;
        let bytes = call.output.bytes().len();
        let mut operation = Self {
            id,
            group: group.index,
            key: group.key,
            sequence,
            failure: None,
            request: Weak::new(),
            called: call.called,
            input: call.input,
            output: call.output,
            scratch: vec![0; scratch_bytes],
            states: vec![State::default(); steps.len()],
            open: (0..steps.len() as u32).collect(),
            steps,
            moves,
            found: 0,
            unit: call.unit,
            streams,
            fold: call.fold,
            early: Vec::new(),
            native: (call.native_root).map(|root| Native::new(group, root, bytes)),
            busy: false,
            has_waited: false,
        };
        for (from, to) in copies {
            operation.copy(from, to);
        }
        operation
    }

    /// Whether this member's part is done; others may go on.
    pub(crate) fn is_done(&self) -> bool {
        self.open.is_empty() && self.native.as_ref().is_none_or(Native::is_done)
    }

    /// When to advance even if nothing arrives.
    pub(crate) fn timer(&self) -> Option<Instant> {
        if self.busy && self.failure.is_none() {
            return Some(Instant::now());
        }
        self.native.as_ref().and_then(Native::timer)
    }

    /// The output, if the operation owns it.
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
        let bytes = from.start..from.start + from.len;
        let (source, target) = match (from.buffer, to.buffer) {
            (Buffer::Input, Buffer::Output) => (self.input.bytes(), self.output.bytes_mut()),
            (Buffer::Input, Buffer::Scratch) => (self.input.bytes(), &mut self.scratch[..]),
            (Buffer::Scratch, Buffer::Output) => (&self.scratch[..], self.output.bytes_mut()),
            (Buffer::Scratch, Buffer::Scratch) => {
                return self.scratch.copy_within(bytes, to.start);
            }
            (_, Buffer::Input) | (Buffer::Output, _) => return, // no plan does that
        };
        target[to.start..to.start + to.len].copy_from_slice(&source[bytes]);
    }

    /// Makes the copies of a step that moves.
    fn make_moves(&mut self, first: u32, end: u32) {
        for number in first..end {
            let (from, to) = self.moves[number as usize];
            self.copy(from, to);
        }
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
        // Most messages arrive in the plan's order.
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
            called: self.called,
            tag: step.tag,
            sequence: self.sequence,
            key: self.key,
            offset: offset as u64,
            total: step.place.len as u64,
        }
    }

    /// Handles a message of member `rank` for this operation. The caller grants credit for it if it is done with.
    pub(crate) fn handle(
        &mut self,
        (from, rank): (NodeId, usize),
        header: &Header,
        payload: &[u8],
        ledger: &mut Ledger,
    ) -> Handled {
        if self.failure.is_none() {
            let handled = if header.called == self.called {
                self.take(rank, header, payload, from, ledger)
            } else {
                None
            };
            match handled {
                Some(Handled::Early) => return Handled::Early,
                Some(Handled::Done) => {}
                None => self.failure = Some(Failure::Mismatch(from)),
            }
        }
        Handled::Done
    }

    /// As `handle`, but keeps an early message, and grants credit for others. `session`: number of the session in which it was sent.
    pub(crate) fn handle_or_keep(
        &mut self,
        from: (NodeId, usize),
        session: u64,
        header: Header,
        payload: &[u8],
        ledger: &mut Ledger,
    ) {
        match self.handle(from, &header, payload, ledger) {
            Handled::Early => self.keep(Arrival::new((from.0, session), header, payload)),
            Handled::Done if header.kind == Kind::Eager => {
                ledger.pay((from.0, session), payload.len())
            }
            Handled::Done => {}
        }
    }

    /// Handles a message; `None`: the member called something else.
    fn take(
        &mut self,
        rank: usize,
        header: &Header,
        payload: &[u8],
        from: NodeId,
        ledger: &mut Ledger,
    ) -> Option<Handled> {
        let sends = match header.kind {
            Kind::Open | Kind::Taken => true,
            Kind::Eager | Kind::Piece | Kind::Ask | Kind::Direct | Kind::Confirm => false,
            Kind::Over => {
                let waits = self.waits_in_vain(rank, from, header)?;
                return (!waits).then_some(Handled::Done);
            }
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
            // `Open` and `Ask` may cross the credit that made them needless. Bytes arrive once.
            return matches!(header.kind, Kind::Open | Kind::Ask).then_some(Handled::Done);
        }
        match header.kind {
            Kind::Open => {
                let state = &mut self.states[number];
                state.open = true;
                state.direct =
                    header.offset == 1 && ledger.identity.is_some() && !ledger.forbids_reads;
            }
            Kind::Taken => {
                let state = &mut self.states[number];
                if !(state.direct && state.told) {
                    return None;
                }
                if header.offset == header.total {
                    ledger.control(from, self.header(Kind::Confirm, &step, 0));
                    self.finish(number);
                } else {
                    state.direct = false; // it is sent in pieces
                }
            }
            Kind::Direct => self.told_where(number, &step, header.offset, payload, from, ledger)?,
            Kind::Confirm => {
                let state = self.states[number];
                if !(state.direct && state.told) {
                    return None;
                }
                ledger.counters.direct_reads += 1;
                self.finish(number);
            }
            Kind::Ask => {
                // Pieces of a small transfer are kept here if they come early. A long one is opened when its turn comes.
                if step.place.len <= ledger.eager_bytes && !self.states[number].open {
                    self.states[number].open = true;
                    ledger.control(from, self.header(Kind::Open, &step, 0));
                }
            }
            Kind::Eager | Kind::Piece
                if step.place.len <= ledger.eager_bytes
                    && (!self.may_begin(&step) || self.kept(from, header.tag).is_some()) =>
            {
                return self
                    .continues(from, header, payload)
                    .then_some(Handled::Early);
            }
            _ => self.receive(number, step, header.offset, payload)?,
        }
        Some(Handled::Done)
    }

    /// Whether this member still waits for what it asked member `rank` for, whose operation is over: it will never come. The answer comes behind all
    /// that the member sent for the operation. `None`: this is not expected.
    fn waits_in_vain(&mut self, rank: usize, from: NodeId, header: &Header) -> Option<bool> {
        let is_of = |kind: Kind| header.offset == kind as u64;
        let sends = is_of(Kind::Ask);
        if !sends && !is_of(Kind::Open) {
            let native = self.native.as_ref()?;
            return Some(if is_of(Kind::Unheard) {
                native.lacks_report(rank)
            } else {
                native.lacks_bytes(rank)
            });
        }
        let number = self.find(rank, header.tag, sends)?;
        let state = self.states[number];
        let begun = state.done || state.progress > 0 || sends && state.open;
        Some(!begun && self.kept(from, header.tag).is_none())
    }

    /// Whether these bytes of a transfer come next after those of it that are kept.
    fn continues(&self, from: NodeId, header: &Header, payload: &[u8]) -> bool {
        let kept = self.kept(from, header.tag);
        let next = kept.unwrap_or(0);
        let (end, len) = ((next + payload.len()) as u64, header.total);
        header.offset == next as u64
            && (end == len || end < len && payload.len() >= PIECE_BYTES_LEAST)
            && (kept.is_none() || end > next as u64)
    }

    /// Handles a frame of a native broadcast by a member of the group.
    pub(crate) fn piece_came(&mut self, group: &Members, piece: &Datagram<'_>) {
        if self.failure.is_none()
            && let Some(native) = &mut self.native
            && let Some(rank) = group.rank_of(piece.source)
        {
            let start = piece.key as usize;
            native.piece_came(rank, start, piece.payload, &mut self.output);
        }
    }

    /// Does what is possible now. `dead`: ranks of members that died; their next incarnations do not belong to this group, and get nothing for it.
    pub(crate) fn advance(
        &mut self,
        endpoint: &mut Endpoint,
        group: &Members,
        dead: &[usize],
        ledger: &mut Ledger,
    ) -> Result<(), CollectiveError> {
        self.busy = false;
        let mut again = true;
        while again && self.failure.is_none() {
            again = self.take_early(group, ledger);
            let mut index = 0;
            while index < self.open.len() && self.failure.is_none() {
                let number = self.open[index] as usize;
                let step = self.steps[number];
                let to = group.nodes[step.peer];
                if dead.contains(&step.peer) {
                    index += 1;
                    continue;
                }
                if step.action == Action::Send {
                    again |= self.send(number, step, to, endpoint, ledger)?;
                } else if let Action::Move { first, end } = step.action {
                    // Open steps are in the plan's order.
                    if index == 0 {
                        self.finish(number);
                        self.make_moves(first, end);
                        again = true;
                    }
                } else if step.place.len > ledger.eager_bytes
                    && !self.states[number].open
                    && self.may_begin(&step)
                {
                    self.states[number].open = true;
                    let is_long = step.place.len >= ledger.direct_bytes;
                    let how = usize::from(is_long && ledger.may_read(to));
                    ledger.control(to, self.header(Kind::Open, &step, how));
                } else if self.states[number].direct && !self.states[number].told && !self.busy {
                    self.read(number, step, to, ledger);
                }
                index += usize::from(self.open.get(index) == Some(&(number as u32)));
            }
        }
        if self.failure.is_none()
            && let Some(native) = &mut self.native
        {
            let at = (self.key, self.sequence, self.called);
            native.advance(at, &self.output, endpoint, group, ledger)?;
        }
        Ok(())
    }

    /// Called now and then: from the second time on asks about transfers that the other side should begin, each once.
    pub(crate) fn ask(&mut self, group: &Members, dead: &[usize], ledger: &mut Ledger) {
        if !std::mem::replace(&mut self.has_waited, true) {
            return;
        }
        for index in 0..self.open.len() {
            let number = self.open[index] as usize;
            let step = self.steps[number];
            if !step.action.transfers() || dead.contains(&step.peer) || !self.may_begin(&step) {
                continue;
            }
            let (to, state) = (group.nodes[step.peer], self.states[number]);
            let is_long = step.place.len > ledger.eager_bytes;
            if step.action == Action::Send {
                if is_long && !state.open && !state.asked {
                    self.states[number].asked = true;
                    ledger.control(to, self.header(Kind::Ask, &step, 0));
                }
            } else if !is_long && !state.open && state.progress == 0 {
                self.states[number].open = true;
                ledger.control(to, self.header(Kind::Open, &step, 0));
            }
        }
        if let Some(native) = &mut self.native {
            let at = (self.key, self.sequence, self.called);
            native.ask_unheard(at, group, dead, ledger);
        }
    }

    /// Keeps a message that `handle` found to be early.
    pub(crate) fn keep(&mut self, arrival: Arrival) {
        self.early.push(arrival);
    }

    /// Number of early bytes of a transfer of `from` that are kept, in order from its start; `None`: there are none.
    fn kept(&self, from: NodeId, tag: u16) -> Option<usize> {
        let kept = |arrival: &&Arrival| {
            let header = &arrival.header;
            arrival.from == from && header.tag == tag && !header.kind.wants_answer()
        };
        let bytes = |arrival: &Arrival| arrival.payload.len();
        let mut all = self.early.iter().filter(kept).map(bytes);
        all.next().map(|first| first + all.sum::<usize>())
    }

    /// Whether the operation cannot end without member `rank`, which sends nothing more.
    pub(crate) fn needs(&self, rank: usize, node: NodeId) -> bool {
        let lacks = |&number: &u32| {
            let step = &self.steps[number as usize];
            step.peer == rank
                && (step.action == Action::Send
                    || self.kept(node, step.tag) != Some(step.place.len))
        };
        self.open.iter().any(lacks)
            || self
                .native
                .as_ref()
                .is_some_and(|native| native.needs(rank))
    }

    /// After a failure: grants credit for the messages kept, so that it is not lost to other groups.
    pub(crate) fn drop_early(&mut self, ledger: &mut Ledger) {
        for arrival in self.early.drain(..) {
            arrival.pay(ledger);
        }
    }
}
