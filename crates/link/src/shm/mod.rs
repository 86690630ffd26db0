//! `shm`: processes of one host over shared memory. No rights needed, nothing in `/dev/shm`, nothing lost between live processes.
//!
//! The launcher makes the job's memory (`ShmJob::create`) and passes the descriptor to the processes; each attaches under its node index, and those that
//! join later under a free one. `layout` has the offsets, `segment` the ownership of generations, `peers` the argument why a process may die at any
//! point, `ring` and `broadcast` the two kinds of rings, `memory` the bodies sent by reference, `doorbell` the waking, `sys` the only `unsafe` beside
//! them.
//!
//! ```
//! use tsumuji_link::{Frame, Link, LinkAddr, each, shm::{Shm, ShmConfig, ShmJob}};
//! let job = ShmJob::create(2, ShmConfig::for_nodes(2)).unwrap();
//! let mut a = Shm::attach(&job, 0).unwrap(); // in one process
//! let mut b = Shm::attach(&job, 1).unwrap(); // in another
//! a.send_one(LinkAddr::Local(1), Frame::whole(b"hello")).unwrap();
//! a.flush().unwrap();
//! b.receive(16, &mut each(|from, frame| assert_eq!((from, frame), (LinkAddr::Local(0), &b"hello"[..])))).unwrap();
//! ```
//!
//! Left out on purpose: protection against a process of the same job that forges memory (all are programs of one user; garbage is noticed, counted,
//! and ignored); waking through `fd` across network namespaces (the bell's socket name is per namespace; `wait` has no such limit).

mod broadcast;
mod doorbell;
mod errors;
#[cfg(test)]
mod garbage_tests;
#[cfg(test)]
mod generation_tests;
mod layout;
mod memory;
mod peers;
mod probe;
mod ring;
mod rx;
mod segment;
mod sys;
#[cfg(test)]
mod tests;
mod tx;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use errors::{ShmAttachError, ShmCreateError};
pub use layout::{FRAME_BYTES_MAX, NODES_MAX, RING_BYTES_MAX, ShmConfig};
pub use memory::{Identity, ProcessMemory};
pub use probe::probe;
pub use segment::ShmJob;
pub use sys::coarse_ms;

use bytes::Bytes;

use crate::tuning::TUNING;
use crate::{
    Capacity, Frame, Link, LinkAddr, LinkCaps, LinkCounters, LinkError, MayHaveRings, Process,
    Receiver, Rings,
};
use broadcast::Writer;
use doorbell::{Doze, Sleeper};
use peers::Peer;
use ring::record_lines;
use segment::Job;
use sys::{BellRef, BellSocket, Map, WordsRw, WriteWord};

/// The link's name.
const NAME: &str = "shm";

/// One process's place in a shared-memory job.
#[derive(Debug)]
pub struct Shm {
    // Fields are dropped in this order: `_identity` first, so that nobody reads our memory any more when `peers` releases bodies sent by reference;
    // `job` last, so that all views are gone before it releases the lock on our index.
    _identity: Identity,
    /// By index; grows as nodes join.
    peers: Vec<Peer>,
    words: WordsRw,
    /// The front of our generation.
    own: Arc<Map>,
    /// How many bytes of bodies each peer may send us by reference at a time.
    reference_max: WriteWord,
    /// A peer has not read all bodies that were sent to it by reference.
    has_referred: bool,
    /// The present call has read a body.
    has_fetched: bool,
    /// When `take_back` last checked whether those peers are alive.
    claims_seen_ms: u64,
    bell: BellRef,
    socket: Option<BellSocket>,
    sleeper: Sleeper,
    broadcast: Writer,
    me: u16,
    generation: u64,
    /// `Job::changes` when the directory was last read.
    changes_seen: u64,
    /// Nodes whose region is mapped.
    live: Vec<u16>,
    /// Index into `live` of the peer that was busy last.
    cursor: usize,
    hot_calls: u32,
    /// Peers sent to since the last flush: their bells are rung by the next.
    bells_pending: Vec<u16>,
    /// An earlier generation of ours may still use memory.
    has_dead_generations: bool,
    /// Sleepers make the fence for us (`sys::is_fenced_by_others`).
    is_fenced: bool,
    /// The descriptor is armed.
    armed: bool,
    /// Broadcast frames are read into this.
    scratch: Box<[u8]>,
    /// Broadcast frames are written here first.
    slot: Box<[u8]>,
    counters: LinkCounters,
    job: Job,
}

impl Shm {
    /// Joins the job behind `fd` as `node`, which may be one beyond those that the job was made for. The descriptor may be closed afterwards.
    pub fn attach(fd: impl AsFd, node: u16) -> Result<Self, ShmAttachError> {
        Self::begin(Job::claim(fd.as_fd(), node)?, node)
    }

    /// Joins the job behind `fd` as the lowest node from `first` on that no live process is. With `is_fresh` one that no process has ever been goes
    /// first: others may know a node that has left by its place.
    pub fn attach_free(fd: impl AsFd, first: u16, is_fresh: bool) -> Result<Self, ShmAttachError> {
        let (job, node) = Job::claim_free(fd.as_fd(), first, is_fresh)?;
        Self::begin(job, node)
    }

    /// Begins a generation of a node that is claimed.
    fn begin(job: Job, node: u16) -> Result<Self, ShmAttachError> {
        let layout = job.layout;
        let socket = BellSocket::new().ok();
        let name = socket.as_ref().map_or(0, BellSocket::name);
        let has_dead_generations = job.generation_of(node.into()) != 0;
        let identity = Identity::new();
        let (generation, own) = job.begin_generation(node, name, identity.words())?;
        let bell = BellRef::new(job.head(), layout.bell_at(node.into()));
        let nodes = layout.nodes;
        let mut shm = Self {
            _identity: identity,
            reference_max: WriteWord::new(&own, layout::generation::REFERENCE_MAX),
            has_referred: false,
            has_fetched: false,
            claims_seen_ms: 0,
            peers: (0..(nodes as u16).max(node + 1))
                .map(|peer| Peer::new(&job, &own, peer))
                .collect(),
            words: WordsRw::new(
                &own,
                layout.broadcast_at(),
                layout.broadcast_words() as usize,
                layout.broadcast_counters_at(),
            ),
            own,
            sleeper: Sleeper::new(&bell),
            bell,
            socket,
            broadcast: Writer::new(layout.broadcast_words()),
            me: node,
            generation,
            changes_seen: u64::MAX,
            live: Vec::with_capacity(nodes),
            cursor: 0,
            hot_calls: 0,
            bells_pending: Vec::with_capacity(nodes),
            has_dead_generations,
            is_fenced: sys::is_fenced_by_others(),
            armed: false,
            scratch: vec![0; layout.frame_bytes.next_multiple_of(8)].into(),
            slot: vec![0; layout.frame_bytes].into(),
            counters: LinkCounters::default(),
            job,
        };
        shm.job.announce(node, generation);
        shm.refresh().map_err(|error| ShmAttachError::Io {
            what: "cannot map the memory of the peers",
            source: std::io::Error::other(error),
        })?;
        Ok(shm)
    }

    /// Nodes that the job was made for.
    pub fn nodes(&self) -> usize {
        self.job.layout.nodes
    }

    /// Releases the memory of our earlier generations, as soon as every other process has switched to the present one. Called whenever one more process
    /// may have: a peer stated where to start, or the directory changed.
    #[cold]
    fn free_dead_generations(&mut self) {
        let Self {
            job,
            peers,
            me,
            generation,
            ..
        } = self;
        let known = peers.len() as u16;
        let freed = job.free_dead_generations((*me, *generation), known, |node| {
            let inbound = peers[usize::from(node)].inbound.as_ref();
            inbound.is_some_and(|inbound| inbound.is_started(*generation))
        });
        match freed {
            Ok(freed) => self.has_dead_generations = !freed,
            Err(error) => {
                self.has_dead_generations = false; // what the kernel refuses once it refuses again; the next generation will ask anew
                tracing::warn!(%error, "the memory of an earlier generation stays until the job ends");
            }
        }
    }

    #[inline]
    fn notice_changes(&mut self) -> Result<(), LinkError> {
        if self.job.changes() != self.changes_seen {
            self.refresh()?;
        }
        Ok(())
    }

    #[cold]
    fn disarm(&mut self) {
        self.armed = false;
        self.sleeper.wake(&self.bell);
        if let Some(socket) = &self.socket {
            socket.drain();
        }
    }

    /// Announces a sleep; `None` if a frame came meanwhile: then the announcement is taken back.
    fn doze(&mut self, how: Doze) -> Option<u32> {
        let word = self.sleeper.doze(&self.bell, how);
        // Senders do not make a processor fence by themselves, unless the kernel cannot make it for them.
        sys::fence_others();
        if self.is_ready() {
            self.sleeper.wake(&self.bell);
            return None;
        }
        Some(word)
    }
}

impl Link for Shm {
    fn caps(&self) -> LinkCaps {
        let layout = &self.job.layout;
        let per_ring = layout.ring_lines() / record_lines(layout.frame_bytes);
        LinkCaps {
            name: NAME,
            frame_bytes: layout.frame_bytes,
            // One ring for each sender, so this is the sum over all senders that were expected.
            receive_frames: (per_ring - 1) as usize * (layout.nodes - 1).max(1),
            burst_frames: TUNING.shm.burst_frames,
            gathers: false,
            broadcast: true,
            lossless: true,
            damages: false,
            polls_by_call: false,
        }
    }

    fn local_addr(&self) -> LinkAddr {
        LinkAddr::Local(self.me)
    }

    #[inline]
    fn capacity(&mut self, to: LinkAddr) -> Result<Capacity, LinkError> {
        self.notice_changes()?;
        let frames = match to {
            LinkAddr::Local(node)
                if node != self.me && usize::from(node) < self.job.layout.nodes_max =>
            {
                // Nobody may have taken that place yet.
                let peer = self.peers.get_mut(usize::from(node));
                peer.map_or(0, |peer| peer.free_frames(self.generation))
            }
            LinkAddr::Broadcast => TUNING.shm.burst_frames,
            _ => return Err(LinkError::NoSuchPeer { link: NAME, to }),
        };
        self.counters.refused += u64::from(frames == 0);
        Ok(Capacity {
            frames: frames.min(TUNING.shm.burst_frames),
            bytes: usize::MAX,
        })
    }

    #[inline]
    fn send(&mut self, to: LinkAddr, frames: &[Frame<'_>]) -> Result<usize, LinkError> {
        self.notice_changes()?;
        let mut sent = 0;
        for frame in frames {
            match to {
                LinkAddr::Local(node) => {
                    let parts = [frame.head, frame.body, &[]];
                    let is_sent = self.send_to((node, None), |producer, lines, head| {
                        producer.send(lines, head, 0, &parts)
                    })?;
                    if !is_sent {
                        break;
                    }
                }
                LinkAddr::Broadcast => self.send_to_all(frame),
                LinkAddr::Inet(_) | LinkAddr::Ether(_) => {
                    return Err(LinkError::NoSuchPeer { link: NAME, to });
                }
            }
            sent += 1;
        }
        Ok(sent)
    }

    #[inline]
    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        self.notice_changes()?;
        if self.armed {
            self.disarm();
        }
        if self.has_referred {
            self.take_back();
        }
        Ok(self.take_frames(max, receiver))
    }

    #[inline]
    fn flush(&mut self) -> Result<(), LinkError> {
        self.ring_bells();
        if self.has_referred {
            self.take_back();
        }
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        self.ring_bells();
        if self.armed {
            self.disarm();
        }
        let Some(word) = self.doze(Doze::Futex) else {
            return Ok(());
        };
        let waited = self.bell.futex_wait(word, timeout);
        self.sleeper.wake(&self.bell);
        waited.map_err(|source| LinkError::Io {
            what: "futex wait on the doorbell",
            source,
        })
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(BellSocket::fd)
    }

    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        self.ring_bells();
        let Some(socket) = &self.socket else {
            return Ok(false);
        };
        // Before the announcement, so that a byte that comes after it stays.
        socket.drain();
        self.armed = self.doze(Doze::Fd).is_some();
        Ok(self.armed)
    }

    #[inline]
    fn note_time(&mut self, _: u64) {}

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}

impl MayHaveRings for Shm {
    #[inline]
    fn rings(&self) -> Option<&impl Rings> {
        Some(self)
    }

    #[inline]
    fn rings_mut(&mut self) -> Option<&mut impl Rings> {
        Some(self)
    }
}

impl Rings for Shm {
    fn ring_bytes(&self) -> usize {
        self.job.layout.ring_bytes
    }

    fn heard(&self, peer: LinkAddr) -> Option<Process> {
        let LinkAddr::Local(index) = peer else {
            return None;
        };
        let generation = self.peers.get(usize::from(index))?.heard;
        (generation != 0).then_some(Process { index, generation })
    }

    #[inline]
    fn send_counted(
        &mut self,
        to: Process,
        counted: bool,
        parts: [&[u8]; 3],
    ) -> Result<bool, LinkError> {
        self.notice_changes()?;
        let marks = if counted { ring::COUNTED } else { 0 };
        self.send_to((to.index, Some(to.generation)), |producer, lines, head| {
            producer.send(lines, head, marks, &parts)
        })
    }

    fn reference_room(&mut self, to: Process) -> Option<usize> {
        self.notice_changes().ok()?;
        self.take_back();
        self.reference_room_of(to)
    }

    fn send_reference(
        &mut self,
        to: Process,
        counted: bool,
        head: &[u8],
        body: &Bytes,
    ) -> Result<bool, LinkError> {
        self.refer(to, counted, head, body)
    }

    fn set_reference_max(&mut self, bytes: usize) {
        self.reference_max.store(bytes as u64, Ordering::Relaxed);
    }

    fn counted_room(&mut self, to: Process, frame_bytes: usize) -> usize {
        if self.notice_changes().is_err() {
            return 0;
        }
        let peer = self.peers.get_mut(usize::from(to.index));
        peer.map_or(0, |peer| {
            peer.room(to.generation, self.generation, frame_bytes)
        })
    }

    fn unread(&self, of: Process) -> usize {
        let peer = self.peers.get(usize::from(of.index));
        peer.map_or(0, |peer| peer.unread(of.generation, self.generation))
    }

    /// A live process of a node holds the lock on that node's byte, until the last of its mappings goes.
    fn process_at(&self, peer: LinkAddr) -> Option<u64> {
        match peer {
            LinkAddr::Local(node)
                if node != self.me && usize::from(node) < self.job.layout.nodes_max =>
            {
                let claimed = self.job.is_claimed(node)?;
                Some(if claimed {
                    self.job.generation_of(node.into())
                } else {
                    0
                })
            }
            _ => None,
        }
    }
}
