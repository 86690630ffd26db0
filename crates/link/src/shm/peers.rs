//! One peer as this process sees it: its present generation, our ring towards it, and views into its region.
//!
//! Called by `mod` when the directory changed. Why a process killed at any instruction harms no other:
//!
//! - *Our ring towards a peer* lies in our region; nobody else can write it. It outlives the peer's generations: `tail` goes on. When
//!   the directory names a new generation C of the peer, we store `start = tail` and the broadcast position, then `start.generation = C`
//!   (release). C reads nothing of ours before it sees its own number there, hence never anything meant for its predecessor. The
//!   predecessor is gone: C holds its lock. So all lines before `start` are free, which is why `restart` may set `head = tail`.
//! - *The peer's head* for our ring lies in the peer's region, as `{generation: ours, head}`. C writes `head`, then `generation` (release);
//!   until we see our own generation there we take `start` for the head. A predecessor of ours with another generation number never
//!   matches, so heads of an earlier ring of ours are never mistaken for this one's.
//! - *Killed while writing a record*: its commit word is still zero, the consumer waits at it until the next generation shows up in the
//!   directory. *After the commit, before the bell*: the frame is whole; its receiver finds it when it wakes for any reason.
//! - *Killed while consuming*: its head stays, we fill the ring and are refused from then on, without blocking. The next generation
//!   sets us free.
//! - *Killed between the directory entry and the counter `changes`*: nobody reads the directory until the next attach; the dead generation had sent
//!   nothing yet.
//! - *Two quick restarts*: we may see only the second, or map a generation that is dead already: its region is complete, nobody writes it, nobody
//!   releases its memory before we switched to the next one, and the directory differs again when we next read it.
//! - *Killed before it told a new generation where to start*: its mapping of the earlier generation went with it, and its free lock shows that.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::broadcast::{Reader, Writer};
use super::errors::ShmAttachError;
use super::layout::{Layout, generation};
use super::memory::{ProcessMemory, Referred};
use super::ring::{Consumer, Producer};
use super::segment::{Job, Opened};
use super::sys::{BellRef, LinesRo, LinesRw, Map, ReadWord, WordsRo, WriteWord};
use crate::LinkAddr;

/// No correct ring gets here; keeps positions read from a garbage region from overflowing.
const START_MAX: u64 = 1 << 62;

/// State of receiving from a peer's region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Receiving {
    /// The peer has not yet stated where we start.
    Waiting,
    /// Frames flow.
    Open,
    /// The peer wrote garbage: ignored until its next generation.
    Broken,
}

/// Views into the region of a peer's present generation.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) receiving: Receiving,
    /// `false`: the peer's head was impossible.
    pub(super) sendable: bool,
    pub(super) lines: LinesRo,
    pub(super) consumer: Consumer,
    pub(super) words: WordsRo,
    pub(super) reader: Reader,
    /// The ring was empty when last checked: frames come singly, so do not check again after one.
    pub(super) was_empty: bool,
    /// The ring used all frames of the last call: the broadcast ring goes first now.
    pub(super) broadcast_first: bool,
    start_generation: ReadWord,
    start_ring: ReadWord,
    start_broadcast: ReadWord,
    start_sequence: ReadWord,
    taken_generation: ReadWord,
    taken_head: ReadWord,
    taken_reads: ReadWord,
    reference_max: ReadWord,
    /// The peer's memory, from which bodies sent by reference are read, if we may read it.
    pub(super) memory: Option<ProcessMemory>,
    pub(super) bell_name: u64,
}

impl Inbound {
    fn new(layout: &Layout, opened: &Opened, me: usize) -> Self {
        let word = |offset| ReadWord::new(&opened.front, offset);
        let start = layout.start_at(me);
        let taken = layout.consumed_at(me);
        Self {
            receiving: Receiving::Waiting,
            sendable: true,
            lines: LinesRo::new(&opened.ring, 0, layout.ring_stride_bytes),
            consumer: Consumer::new(layout.ring_lines(), layout.frame_bytes, 0),
            words: WordsRo::new(
                &opened.front,
                layout.broadcast_at(),
                layout.broadcast_words() as usize,
                layout.broadcast_counters_at(),
            ),
            reader: Reader::new(layout.broadcast_words(), layout.frame_bytes, (0, 0)),
            was_empty: true,
            broadcast_first: false,
            start_generation: word(start.generation),
            start_ring: word(start.ring),
            start_broadcast: word(start.broadcast),
            start_sequence: word(start.broadcast_sequence),
            taken_generation: word(taken.generation),
            taken_head: word(taken.head),
            taken_reads: word(taken.reads),
            reference_max: word(generation::REFERENCE_MAX),
            memory: ProcessMemory::of(
                [0, 8, 16].map(|at| word(generation::IDENTITY + at).load(Ordering::Relaxed)),
            ),
            bell_name: opened.bell_name,
        }
    }

    /// Whether the peer has stated where our generation `generation` starts.
    pub(super) fn is_started(&self, generation: u64) -> bool {
        self.start_generation.load(Ordering::Acquire) == generation
    }

    /// The peer's head in our ring, once it has published one for our generation.
    #[inline]
    pub(super) fn taken(&self, our_generation: u64) -> Option<u64> {
        (self.taken_generation.load(Ordering::Acquire) == our_generation)
            .then(|| self.taken_head.load(Ordering::Acquire))
    }

    /// How many bytes we may send the peer by reference at a time; `None`: it cannot read our memory, takes no references, or has not stated it.
    pub(super) fn reference_max(&self, our_generation: u64) -> Option<usize> {
        let reads = self.taken_generation.load(Ordering::Acquire) == our_generation
            && self.taken_reads.load(Ordering::Relaxed) == our_generation;
        let most = reads.then(|| self.reference_max.load(Ordering::Relaxed) as usize);
        most.filter(|most| *most > 0)
    }
}

/// One other node of the job.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) addr: LinkAddr,
    /// The directory's entry: which generation is present.
    pub(super) entry: ReadWord,
    /// The one that we switched to last.
    pub(super) generation: u64,
    pub(super) inbound: Option<Inbound>,
    /// Our ring, mapped when the peer's first generation shows up.
    pub(super) lines: Option<LinesRw>,
    pub(super) producer: Producer,
    pub(super) bell: BellRef,
    /// The bell's word that we rang last; 0 is the word of an awake node and never rung.
    pub(super) rung: u32,
    /// The generation that the last frame came from.
    pub(super) heard: u64,
    /// Sent to since the last flush, which rings its bell.
    pub(super) bell_pending: bool,
    /// Bodies that this generation has yet to read in our memory.
    pub(super) referred: Referred,
    /// The generation before this one, and how many counted frames it has not read.
    before: (u64, usize),
    start_generation: WriteWord,
    start_ring: WriteWord,
    start_broadcast: WriteWord,
    start_sequence: WriteWord,
    consumed_generation: WriteWord,
    pub(super) consumed_head: WriteWord,
    pub(super) consumed_reads: WriteWord,
}

impl Peer {
    /// Our half of the pair (me, `node`), with no generation of the peer known.
    pub(super) fn new(job: &Job, own: &Arc<Map>, node: u16) -> Self {
        let layout = &job.layout;
        let index = usize::from(node);
        let word = |offset| WriteWord::new(own, offset);
        let start = layout.start_at(index);
        let consumed = layout.consumed_at(index);
        Self {
            addr: LinkAddr::Local(node),
            entry: job.entry_of(index),
            generation: 0,
            inbound: None,
            lines: None,
            producer: Producer::new(layout.ring_lines(), layout.frame_bytes),
            bell: BellRef::new(job.head(), layout.bell_at(index)),
            rung: 0,
            heard: 0,
            bell_pending: false,
            referred: Referred::default(),
            before: (0, 0),
            start_generation: word(start.generation),
            start_ring: word(start.ring),
            start_broadcast: word(start.broadcast),
            start_sequence: word(start.broadcast_sequence),
            consumed_generation: word(consumed.generation),
            consumed_head: word(consumed.head),
            consumed_reads: word(consumed.reads),
        }
    }

    /// Has the next flush ring the bell of this peer, which is `node`.
    #[inline]
    pub(super) fn mark_pending(&mut self, bells_pending: &mut Vec<u16>, node: u16) {
        if !self.bell_pending {
            self.bell_pending = true;
            bells_pending.push(node);
        }
    }

    /// Switches to a new generation of the peer: maps it and tells it where to start. `false`: the directory names an impossible generation.
    pub(super) fn switch_to(
        &mut self,
        job: &Job,
        me: u16,
        node: usize,
        generation: u64,
        broadcast: &Writer,
        our_generation: u64,
    ) -> Result<bool, ShmAttachError> {
        self.before = (
            self.generation,
            self.unread(self.generation, our_generation),
        );
        // The earlier generation's mapping goes first: once `start_generation` is stored, its pages may be released.
        self.inbound = None;
        self.referred.clear(); // the earlier generation is over, for the new one holds its lock
        self.generation = generation;
        let Some(opened) = job.open_generation(node, generation, me.into())? else {
            return Ok(false);
        };
        if self.lines.is_none() {
            let ring = job.map_ring(our_generation, node, true)?;
            self.lines = Some(LinesRw::new(&ring, 0, job.layout.ring_stride_bytes));
        }
        self.inbound = Some(Inbound::new(&job.layout, &opened, me.into()));
        self.producer.restart();
        let (position, sequence) = broadcast.start();
        self.start_ring
            .store(self.producer.tail(), Ordering::Relaxed);
        self.start_broadcast.store(position, Ordering::Relaxed);
        self.start_sequence.store(sequence, Ordering::Relaxed);
        self.start_generation.store(generation, Ordering::Release);
        Ok(true)
    }

    /// Frames of any length that surely fit into the ring to the peer's present generation.
    #[inline]
    pub(super) fn free_frames(&mut self, our_generation: u64) -> usize {
        match self.inbound.as_ref().filter(|inbound| inbound.sendable) {
            Some(inbound) => self.producer.free_frames(|| inbound.taken(our_generation)),
            None => 0,
        }
    }

    /// Frames of that length that fit into the ring to that generation of the peer.
    pub(super) fn room(
        &mut self,
        generation: u64,
        our_generation: u64,
        frame_bytes: usize,
    ) -> usize {
        let open = self.inbound.as_ref().filter(|inbound| inbound.sendable);
        let Some(inbound) = open.filter(|_| generation == self.generation) else {
            return 0;
        };
        self.producer
            .room(frame_bytes, || inbound.taken(our_generation))
    }

    /// Counted frames sent to that generation of the peer which it has not read, as far as is known.
    pub(super) fn unread(&self, generation: u64, our_generation: u64) -> usize {
        if generation != self.generation {
            let (before, unread) = self.before;
            return if before == generation { unread } else { 0 };
        }
        let Some(lines) = &self.lines else {
            return 0;
        };
        let head = (self.inbound.as_ref()).and_then(|inbound| inbound.taken(our_generation));
        self.producer.unread(lines, head)
    }

    /// Starts to receive, if the peer has stated where. `Err`: it stated an impossible position.
    #[cold]
    pub(super) fn open(&mut self, layout: &Layout, our_generation: u64) -> Result<bool, ()> {
        let Some(inbound) = &mut self.inbound else {
            return Ok(false);
        };
        if !inbound.is_started(our_generation) {
            return Ok(false);
        }
        let start = inbound.start_ring.load(Ordering::Relaxed);
        let broadcast = inbound.start_broadcast.load(Ordering::Relaxed);
        if start > START_MAX || broadcast > START_MAX {
            return Err(());
        }
        let sequence = inbound.start_sequence.load(Ordering::Relaxed);
        inbound.consumer = Consumer::new(layout.ring_lines(), layout.frame_bytes, start);
        inbound.reader = Reader::new(
            layout.broadcast_words(),
            layout.frame_bytes,
            (broadcast, sequence),
        );
        inbound.receiving = Receiving::Open;
        self.consumed_head.store(start, Ordering::Relaxed);
        let reads = if inbound.memory.is_some() {
            self.generation
        } else {
            0
        };
        self.consumed_reads.store(reads, Ordering::Relaxed);
        self.consumed_generation
            .store(self.generation, Ordering::Release);
        Ok(true)
    }
}
