//! One peer as this process sees it: which life it is in, our ring towards it, and views into its region.
//!
//! Called by `mod` when the directory changed. The argument why a process killed at any instruction harms nobody:
//!
//! - *Our ring towards a peer* lies in our region; nobody else can write it. It outlives the peer's lives: `tail` goes on. When
//!   the directory names a new life C of the peer, we store `start = tail` and the broadcast position, then `start.life = C`
//!   (release). C reads nothing of ours before it sees its own number there, hence never anything meant for its predecessor. The
//!   predecessor is gone: C holds its lock. So all lines before `start` are free, which is why `restart` may set `head = tail`.
//! - *The peer's head* for our ring lies in the peer's region, as `{life: ours, head}`. C writes `head`, then `life` (release);
//!   until we see our own life there we take `start` for the head. A predecessor of ours with another life number never
//!   matches, so heads of an earlier ring of ours are never mistaken for this one's.
//! - *Killed while writing a record*: its commit word is still zero, the consumer waits at it until the next life shows up in the
//!   directory. *After the commit, before the bell*: the frame is whole; its receiver finds it when it wakes for any reason.
//! - *Killed while consuming*: its head stays, we fill the ring and are refused from then on, without blocking. The next life
//!   sets us free.
//! - *Killed between the directory entry and the counter `changes`*: nobody looks until the next attach; the dead life had sent
//!   nothing yet.
//! - *Two quick restarts*: we may see only the second, or map a life that is dead already: its region is all there, nobody
//!   writes it, nobody gives its memory back before we turned away from it, and the directory differs again at the next look.
//! - *Killed before it told a new life where to start*: its mapping of the earlier life went with it, and its lock says so.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::broadcast::{Reader, Writer};
use super::errors::ShmAttachError;
use super::layout::{Layout, life};
use super::memory::{ProcessMemory, Referred};
use super::ring::{Consumer, Producer};
use super::segment::Job;
use super::sys::{BellRef, LinesRo, LinesRw, Map, ReadWord, WordsRo, WriteWord};
use crate::LinkAddr;

/// No honest ring gets here; keeps positions that a scribbled region names from overflowing.
const START_MAX: u64 = 1 << 62;

/// What a peer's region lets us do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Receiving {
    /// It has not yet said where we start.
    Waiting,
    /// Frames flow.
    Open,
    /// It wrote garbage: ignored until its next life.
    Broken,
}

/// Views into the region of a peer's present life.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) receiving: Receiving,
    /// `false`: its head made no sense.
    pub(super) sendable: bool,
    pub(super) lines: LinesRo,
    pub(super) consumer: Consumer,
    pub(super) words: WordsRo,
    pub(super) reader: Reader,
    /// The last look found the ring empty: frames come singly, do not look twice for one.
    pub(super) was_empty: bool,
    /// The ring took the whole of the last turn: the broadcast ring goes first now.
    pub(super) broadcast_first: bool,
    start_life: ReadWord,
    start_ring: ReadWord,
    start_broadcast: ReadWord,
    start_sequence: ReadWord,
    taken_life: ReadWord,
    taken_head: ReadWord,
    taken_reads: ReadWord,
    reference_max: ReadWord,
    /// Where the bodies lie that it refers us to, if we may read there.
    pub(super) memory: Option<ProcessMemory>,
    pub(super) bell_name: u64,
}

impl Inbound {
    fn new(layout: &Layout, map: &Arc<Map>, me: usize, bell_name: u64) -> Self {
        let word = |offset| ReadWord::new(map, offset);
        let (ring_at, ring_bytes) = layout.ring_at(me);
        let start = layout.start_at(me);
        let taken = layout.consumed_at(me);
        Self {
            receiving: Receiving::Waiting,
            sendable: true,
            lines: LinesRo::new(map, ring_at, ring_bytes),
            consumer: Consumer::new(layout.ring_lines(), layout.frame_bytes, 0),
            words: WordsRo::new(
                map,
                layout.broadcast_at(),
                layout.broadcast_words() as usize,
                layout.broadcast_counters_at(),
            ),
            reader: Reader::new(layout.broadcast_words(), layout.frame_bytes, (0, 0)),
            was_empty: true,
            broadcast_first: false,
            start_life: word(start.life),
            start_ring: word(start.ring),
            start_broadcast: word(start.broadcast),
            start_sequence: word(start.broadcast_sequence),
            taken_life: word(taken.life),
            taken_head: word(taken.head),
            taken_reads: word(taken.reads),
            reference_max: word(life::REFERENCE_MAX),
            memory: ProcessMemory::of(
                [0, 8, 16].map(|at| word(life::IDENTITY + at).load(Ordering::Relaxed)),
            ),
            bell_name,
        }
    }

    /// Whether the peer has said where our life `life` starts.
    pub(super) fn is_started(&self, life: u64) -> bool {
        self.start_life.load(Ordering::Acquire) == life
    }

    /// The peer's head in our ring, once it has published one for our life.
    #[inline]
    pub(super) fn taken(&self, our_life: u64) -> Option<u64> {
        (self.taken_life.load(Ordering::Acquire) == our_life)
            .then(|| self.taken_head.load(Ordering::Acquire))
    }

    /// How many bytes the peer may be referred to at a time; `None`: it cannot read our life's memory, takes nothing so, or has not said it.
    pub(super) fn reference_max(&self, our_life: u64) -> Option<usize> {
        let reads = self.taken_life.load(Ordering::Acquire) == our_life
            && self.taken_reads.load(Ordering::Relaxed) == our_life;
        let most = reads.then(|| self.reference_max.load(Ordering::Relaxed) as usize);
        most.filter(|most| *most > 0)
    }
}

/// One other node of the job.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) addr: LinkAddr,
    pub(super) life: u64,
    pub(super) inbound: Option<Inbound>,
    pub(super) lines: LinesRw,
    pub(super) producer: Producer,
    pub(super) bell: BellRef,
    /// The bell's word that we rang last; 0 is the word of an awake node and never rung.
    pub(super) rung: u32,
    /// The life that the last frame came from.
    pub(super) heard: u64,
    /// Sent to since the last flush.
    pub(super) touched: bool,
    /// What this life is to read in our memory.
    pub(super) referred: Referred,
    /// The life before this one, and how many counted frames it has not read.
    before: (u64, usize),
    start_life: WriteWord,
    start_ring: WriteWord,
    start_broadcast: WriteWord,
    start_sequence: WriteWord,
    consumed_life: WriteWord,
    pub(super) consumed_head: WriteWord,
    pub(super) consumed_reads: WriteWord,
}

impl Peer {
    /// Our half of the pair (me, `node`), with no life of the peer known.
    pub(super) fn new(job: &Job, own: &Arc<Map>, node: u16) -> Self {
        let layout = &job.layout;
        let index = usize::from(node);
        let word = |offset| WriteWord::new(own, offset);
        let (ring_at, ring_bytes) = layout.ring_at(index);
        let start = layout.start_at(index);
        let consumed = layout.consumed_at(index);
        Self {
            addr: LinkAddr::Local(node),
            life: 0,
            inbound: None,
            lines: LinesRw::new(own, ring_at, ring_bytes),
            producer: Producer::new(layout.ring_lines(), layout.frame_bytes),
            bell: BellRef::new(job.head(), layout.bell_at(index)),
            rung: 0,
            heard: 0,
            touched: false,
            referred: Referred::default(),
            before: (0, 0),
            start_life: word(start.life),
            start_ring: word(start.ring),
            start_broadcast: word(start.broadcast),
            start_sequence: word(start.broadcast_sequence),
            consumed_life: word(consumed.life),
            consumed_head: word(consumed.head),
            consumed_reads: word(consumed.reads),
        }
    }

    /// Turns to a new life of the peer: maps it and tells it where to start. `false`: the directory names nonsense.
    pub(super) fn turn_to(
        &mut self,
        job: &Job,
        me: u16,
        node: usize,
        life: u64,
        broadcast: &Writer,
        our_life: u64,
    ) -> Result<bool, ShmAttachError> {
        self.before = (self.life, self.unread(self.life, our_life));
        // The earlier life's mapping goes first: once `start_life` is told, its pages may be given back.
        self.inbound = None;
        self.referred.clear(); // the earlier life is over, for the new one holds its lock
        self.life = life;
        let Some((map, bell_name)) = job.open_life(node, life)? else {
            return Ok(false);
        };
        self.inbound = Some(Inbound::new(&job.layout, &map, me.into(), bell_name));
        self.producer.restart();
        let (position, sequence) = broadcast.start();
        self.start_ring
            .store(self.producer.tail(), Ordering::Relaxed);
        self.start_broadcast.store(position, Ordering::Relaxed);
        self.start_sequence.store(sequence, Ordering::Relaxed);
        self.start_life.store(life, Ordering::Release);
        Ok(true)
    }

    /// Frames of any length that surely find room in the ring to the peer that lives now.
    #[inline]
    pub(super) fn free_frames(&mut self, our_life: u64) -> usize {
        match self.inbound.as_ref().filter(|inbound| inbound.sendable) {
            Some(inbound) => self.producer.free_frames(|| inbound.taken(our_life)),
            None => 0,
        }
    }

    /// Frames of that length that find room in the ring to that life of the peer.
    pub(super) fn room(&mut self, life: u64, our_life: u64, frame_bytes: usize) -> usize {
        let open = self.inbound.as_ref().filter(|inbound| inbound.sendable);
        let Some(inbound) = open.filter(|_| life == self.life) else {
            return 0;
        };
        self.producer.room(frame_bytes, || inbound.taken(our_life))
    }

    /// Counted frames sent to that life of the peer which it has not read, as far as is known.
    pub(super) fn unread(&self, life: u64, our_life: u64) -> usize {
        if life != self.life {
            let (before, unread) = self.before;
            return if before == life { unread } else { 0 };
        }
        let head = (self.inbound.as_ref()).and_then(|inbound| inbound.taken(our_life));
        self.producer.unread(&self.lines, head)
    }

    /// Starts to receive, if the peer has said where. `Err`: what it said is nonsense.
    #[cold]
    pub(super) fn open(&mut self, layout: &Layout, our_life: u64) -> Result<bool, ()> {
        let Some(inbound) = &mut self.inbound else {
            return Ok(false);
        };
        if !inbound.is_started(our_life) {
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
            self.life
        } else {
            0
        };
        self.consumed_reads.store(reads, Ordering::Relaxed);
        self.consumed_life.store(self.life, Ordering::Release);
        Ok(true)
    }
}
