//! The job's memory: one sealed anonymous file, and the claiming of a generation in it. `layout` has the offsets.
//!
//! `ShmJob::create` makes it (the launcher does that once and hands the descriptor to each process); `Job::claim` takes a node's
//! index and `Job::begin_generation` a fresh generation for it; `mod` and `peers` make views by the offsets of `layout`.
//!
//! Invariants:
//! 1. A generation's region is never written by another generation: all that a process reads of a peer was written by that one generation or by
//!    nobody, and a restarted peer cannot tear it.
//! 2. The live process of node `i` holds the lock on byte `i` of the file, by an open file description of its own: it goes with the process, and not
//!    before the last of its mappings. A second claimant gets an error. (A child forked without exec keeps the lock: avoid that.)
//! 3. An attach killed at any step leaves nothing visible: the directory entry comes last but for the counter `changes`, and a
//!    generation without entry is only a used-up number.
//! 4. Sizes are read once, checked against the file's sealed size, and never read again.
//! 5. A dead generation's pages are released only when nobody maps them any more: see `free_dead_generations`. So each node has at most the pages of
//!    one generation, alive or dead, and of those earlier generations that a live process still maps, because it has not polled since.
//!
//! Nothing is in `/dev/shm`; the memory is gone with the last process that holds the descriptor.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::errors::{ShmAttachError, ShmCreateError};
use super::layout::{FILE_BYTES_MAX, Layout, NODES_MAX, PAGE_BYTES, ShmConfig, generation, head};
use super::sys::{self, Map, ReadWord, WriteWord};
use crate::tuning::TUNING;

const MAGIC: u64 = u64::from_le_bytes(*b"tsumuji\x04");

/// Makes the memory of a job.
#[derive(Debug)]
pub struct ShmJob;

impl ShmJob {
    /// Makes the memory for `nodes` processes; others may join, up to `NODES_MAX` at a time, and any may end and come back as often as they like. Each
    /// attaches with `Shm::attach`, from a copy of the descriptor (inherited, or sent by SCM_RIGHTS). Close-on-exec.
    ///
    /// Where the process may only make small files (`ulimit -f`), fewer may join, and processes may come back less often: exceeding the limit would
    /// raise SIGXFSZ.
    pub fn create(nodes: usize, config: ShmConfig) -> Result<OwnedFd, ShmCreateError> {
        let layout = layout_within(sys::file_size_limit_bytes(), nodes, config)?;
        let fd = sys::sealed_memfd(layout.total_bytes)?;
        let map = Map::new(fd.as_fd(), 0, layout.head_bytes, true)?;
        for (offset, value) in [
            (head::NODES, nodes as u64),
            (head::FRAME_BYTES, layout.frame_bytes as u64),
            (head::RING_BYTES, layout.ring_bytes as u64),
            (head::BROADCAST_BYTES, layout.broadcast_bytes as u64),
            (head::NODES_MAX, layout.nodes_max as u64),
            (head::MAGIC, MAGIC),
        ] {
            WriteWord::new(&map, offset).store(value, Ordering::Relaxed);
        }
        Ok(fd)
    }
}

/// The layout of a file that is at most as long as `limit`.
pub(super) fn layout_within(
    limit: u64,
    nodes: usize,
    config: ShmConfig,
) -> Result<Layout, ShmCreateError> {
    let limit = limit.min(FILE_BYTES_MAX);
    let mut layout = Layout::new((nodes, NODES_MAX), config, limit)?;
    while layout.generations < TUNING.shm.generations_wanted && layout.nodes_max > nodes {
        let fewer = (layout.nodes_max / 2).max(nodes);
        layout = Layout::new((nodes, fewer), config, limit)?;
    }
    if layout.generations < nodes as u64 {
        return Err(ShmCreateError::FileSizeLimit {
            nodes,
            bytes: layout.generation_at(nodes as u64 + 1),
            limit,
        });
    }
    Ok(layout)
}

/// One process's claim on the job: the file with its lock, and the head.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) layout: Layout,
    fd: OwnedFd,
    head: Arc<Map>,
    changes: WriteWord,
}

/// What a process maps of a peer's generation.
#[derive(Debug)]
pub(crate) struct Opened {
    /// All but the rings.
    pub(crate) front: Arc<Map>,
    /// The ring towards this process.
    pub(crate) ring: Arc<Map>,
    pub(crate) bell_name: u64,
}

impl Job {
    /// Opens the job's memory anew and takes `node`'s lock.
    pub(crate) fn claim(fd: BorrowedFd<'_>, node: u16) -> Result<Self, ShmAttachError> {
        let job = Self::open(fd)?;
        let nodes = job.layout.nodes_max;
        if usize::from(node) >= nodes {
            return Err(ShmAttachError::NoSuchNode { node, nodes });
        }
        if !job.lock(node)? {
            return Err(ShmAttachError::Taken { node });
        }
        Ok(job)
    }

    /// Opens the job's memory anew and takes the lock of the lowest node from `first` on that no live process holds; with `is_fresh` of one that none
    /// has held, if there is any.
    pub(crate) fn claim_free(
        fd: BorrowedFd<'_>,
        first: u16,
        is_fresh: bool,
    ) -> Result<(Self, u16), ShmAttachError> {
        let job = Self::open(fd)?;
        let nodes = job.layout.nodes_max;
        let never_held = |node: &u16| is_fresh && job.generation_of((*node).into()) == 0;
        let fresh = (first..nodes as u16).filter(never_held);
        for node in fresh.chain(first..nodes as u16) {
            if job.lock(node)? {
                return Ok((job, node));
            }
        }
        Err(ShmAttachError::Full { nodes })
    }

    /// `false`: another process holds the lock.
    fn lock(&self, node: u16) -> Result<bool, ShmAttachError> {
        sys::try_lock_byte(self.fd.as_fd(), node.into())
            .map_err(io_error("cannot lock the node's index (F_OFD_SETLK)"))
    }

    /// Opens the job's memory anew, with a description of its own for locks.
    fn open(fd: BorrowedFd<'_>) -> Result<Self, ShmAttachError> {
        let foreign = |reason| ShmAttachError::Foreign { reason };
        let (sealed, bytes) =
            sys::seal_and_size(fd).map_err(io_error("fstat of the job's memory"))?;
        if !sealed {
            return Err(foreign("not a memfd sealed against shrinking"));
        }
        if bytes < PAGE_BYTES as u64 {
            return Err(foreign("shorter than its head"));
        }
        let fd = sys::reopen(fd).map_err(io_error(
            "cannot reopen the job's memory through /proc/self/fd (is /proc mounted?)",
        ))?;
        let layout = {
            let map = Map::new(fd.as_fd(), 0, PAGE_BYTES, false)
                .map_err(io_error("mmap of the job's head"))?;
            let word = |offset| ReadWord::new(&map, offset).load(Ordering::Relaxed);
            if word(head::MAGIC) != MAGIC {
                return Err(foreign("wrong magic or version"));
            }
            let size = |offset| usize::try_from(word(offset)).unwrap_or(usize::MAX);
            let config = ShmConfig {
                frame_bytes: size(head::FRAME_BYTES),
                ring_bytes: size(head::RING_BYTES),
                broadcast_bytes: size(head::BROADCAST_BYTES),
            };
            let nodes = (size(head::NODES), size(head::NODES_MAX));
            Layout::new(nodes, config, bytes).map_err(|_| foreign("impossible sizes"))?
        };
        if layout.total_bytes != bytes {
            return Err(foreign("its length does not match its head"));
        }
        let head = Map::new(fd.as_fd(), 0, layout.head_bytes, true)
            .map_err(io_error("mmap of the job's head"))?;
        Ok(Self {
            layout,
            fd,
            changes: WriteWord::new(&head, head::CHANGES),
            head,
        })
    }

    /// Begins a new generation for `node` and maps its front.
    pub(crate) fn begin_generation(
        &self,
        node: u16,
        bell_name: u64,
        identity: [u64; 3],
    ) -> Result<(u64, Arc<Map>), ShmAttachError> {
        let generations = self.layout.generations;
        let next = |last: u64| last.checked_add(1).filter(|next| *next <= generations);
        let generation = WriteWord::new(&self.head, head::NEXT_GENERATION)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .map_err(|_| ShmAttachError::NoGenerationsLeft { generations })?
            + 1;
        let map = self.map_front(generation, true)?;
        let word = |offset| WriteWord::new(&map, offset);
        if word(generation::NUMBER).load(Ordering::Relaxed) != 0 {
            return Err(ShmAttachError::Foreign {
                reason: "the next generation's region is in use",
            });
        }
        word(generation::NODE).store(u64::from(node), Ordering::Relaxed);
        word(generation::BELL_NAME).store(bell_name, Ordering::Relaxed);
        for (at, value) in (generation::IDENTITY..).step_by(8).zip(identity) {
            word(at).store(value, Ordering::Relaxed);
        }
        word(generation::NUMBER).store(generation, Ordering::Release);
        Ok((generation, map))
    }

    /// Makes the generation visible to all others, and with it everything written before.
    pub(crate) fn announce(&self, node: u16, generation: u64) {
        let word = |offset| WriteWord::new(&self.head, offset);
        word(head::NODES_SEEN).fetch_max(u64::from(node) + 1, Ordering::AcqRel);
        word(self.layout.directory_at(node.into())).store(generation, Ordering::Release);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// A counter that grows with each `announce` of any process.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// No node from this one on ever attached. Any process may write that word. At worst, joining processes are seen later, or empty places are read.
    pub(crate) fn nodes_seen(&self) -> usize {
        let seen = ReadWord::new(&self.head, head::NODES_SEEN).load(Ordering::Acquire);
        seen.min(self.layout.nodes_max as u64) as usize
    }

    /// The word that names a node's generation.
    pub(crate) fn entry_of(&self, node: usize) -> ReadWord {
        ReadWord::new(&self.head, self.layout.directory_at(node))
    }

    /// The generation of a node: 0 if it never attached.
    pub(crate) fn generation_of(&self, node: usize) -> u64 {
        self.entry_of(node).load(Ordering::Acquire)
    }

    /// Maps what node `me` reads of a peer's generation. `None`: the directory names a generation of another node.
    pub(crate) fn open_generation(
        &self,
        node: usize,
        generation: u64,
        me: usize,
    ) -> Result<Option<Opened>, ShmAttachError> {
        if generation == 0 || generation > self.layout.generations {
            return Ok(None);
        }
        let front = self.map_front(generation, false)?;
        let word = |offset| ReadWord::new(&front, offset).load(Ordering::Acquire);
        if word(generation::NUMBER) != generation || word(generation::NODE) != node as u64 {
            return Ok(None);
        }
        let bell_name = word(generation::BELL_NAME);
        let ring = self.map_ring(generation, me, false)?;
        Ok(Some(Opened {
            front,
            ring,
            bell_name,
        }))
    }

    fn map_front(&self, generation: u64, writable: bool) -> Result<Arc<Map>, ShmAttachError> {
        let at = self.layout.generation_at(generation);
        self.map(at, self.layout.front_bytes, writable)
    }

    /// Maps the ring of a generation, which the job has, towards `consumer`.
    pub(crate) fn map_ring(
        &self,
        generation: u64,
        consumer: usize,
        writable: bool,
    ) -> Result<Arc<Map>, ShmAttachError> {
        let at = self.layout.ring_at(generation, consumer);
        self.map(at, self.layout.ring_stride_bytes, writable)
    }

    fn map(&self, at: u64, bytes: usize, writable: bool) -> Result<Arc<Map>, ShmAttachError> {
        let what = "mmap of a generation's region (is the address space limited? see `ulimit -v`)";
        Map::new(self.fd.as_fd(), at, bytes, writable).map_err(io_error(what))
    }

    /// Releases the memory of all earlier generations of `node`, whose present generation is `generation` and announced. `false`: a process may still
    /// read one of them. `has_left` tells of each of the first `known` nodes whether its process has told `generation` where to start.
    ///
    /// Nobody reads them when this frees them. Their own processes are gone: we hold their lock, which goes with the last of their mappings. Another
    /// process maps a generation only while the directory names it, and the directory names `generation` now. So the danger is processes that read
    /// the directory before. Each holds its node's lock as long as it is alive; hence a node whose lock is free has no such process, and one that
    /// comes later sees `generation` in the directory. A live process drops its mapping of the earlier generation *before* it tells `generation`
    /// where to start (`Peer::switch_to`), so one that has told has none. Those beyond the first `known` have told nothing.
    pub(crate) fn free_dead_generations(
        &self,
        (node, generation): (u16, u64),
        known: u16,
        mut has_left: impl FnMut(u16) -> bool,
    ) -> io::Result<bool> {
        let are_claimed = |nodes: Range<u64>| sys::is_locked(self.fd.as_fd(), nodes);
        for other in (0..known).filter(|other| *other != node) {
            let at = u64::from(other);
            if !has_left(other) && are_claimed(at..at + 1)? {
                return Ok(false);
            }
        }
        if are_claimed(known.into()..self.layout.nodes_max as u64)? {
            return Ok(false);
        }
        let mut next = 1;
        while next < generation {
            let at = self.layout.generation_at(next);
            let Some(data) = sys::next_data(self.fd.as_fd(), at)? else {
                break;
            };
            let found =
                1 + (data - self.layout.head_bytes as u64) / self.layout.generation_bytes as u64;
            let at = self.layout.generation_at(found);
            let word = |offset: usize| sys::read_word(self.fd.as_fd(), at + offset as u64);
            if found < generation
                && word(generation::NUMBER)? == found
                && word(generation::NODE)? == u64::from(node)
            {
                sys::give_back(self.fd.as_fd(), at, self.layout.generation_bytes as u64)?;
            }
            next = found + 1;
        }
        Ok(true)
    }

    /// Whether a live process holds the node; `None`: the kernel does not tell.
    pub(crate) fn is_claimed(&self, node: u16) -> Option<bool> {
        let at = u64::from(node);
        sys::is_locked(self.fd.as_fd(), at..at + 1).ok()
    }

    /// The map that holds the bells.
    pub(crate) fn head(&self) -> &Arc<Map> {
        &self.head
    }
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> ShmAttachError {
    move |source| ShmAttachError::Io { what, source }
}

#[cfg(test)]
impl Job {
    /// A second writable view of a generation, for tests only.
    pub(crate) fn own_region_for_test(&self, generation: u64) -> Arc<Map> {
        let at = self.layout.generation_at(generation);
        (self.map(at, self.layout.generation_bytes, true)).expect("map")
    }

    /// As if that many generations had begun.
    pub(crate) fn pass_generations_for_test(&self, generations: u64) {
        WriteWord::new(&self.head, head::NEXT_GENERATION).store(generations, Ordering::Relaxed);
    }
}
