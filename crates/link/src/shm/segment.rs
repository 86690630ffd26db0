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
//!    one generation, alive or dead, and of those earlier generations that a live process still maps, because it has not polled since. `generations`
//!    bounds even these.
//!
//! Nothing is in `/dev/shm`; the memory is gone with the last process that holds the descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::errors::{ShmAttachError, ShmCreateError};
use super::layout::{Layout, PAGE_BYTES, ShmConfig, generation, head};
use super::sys::{self, Map, ReadWord, WriteWord};

const MAGIC: u64 = u64::from_le_bytes(*b"tsumuji\x03");

/// Makes the memory of a job.
#[derive(Debug)]
pub struct ShmJob;

impl ShmJob {
    /// Makes the memory for `nodes` processes. Each attaches with `Shm::attach`, from a copy of the descriptor (inherited, or
    /// sent by SCM_RIGHTS). Close-on-exec.
    pub fn create(nodes: usize, config: ShmConfig) -> Result<OwnedFd, ShmCreateError> {
        let mut config = config;
        let mut layout = Layout::new(nodes, config)?;
        let limit = sys::file_size_limit_bytes();
        if layout.total_bytes > limit {
            // Fewer restarts rather than failure: exceeding the limit would raise SIGXFSZ.
            let generations =
                limit.saturating_sub(layout.head_bytes as u64) / layout.generation_bytes as u64;
            if generations < nodes as u64 {
                return Err(ShmCreateError::FileSizeLimit {
                    nodes,
                    bytes: layout.generation_at(nodes as u64 + 1),
                    limit,
                });
            }
            config.generations = generations;
            layout = Layout::new(nodes, config)?;
        }
        let fd = sys::sealed_memfd(layout.total_bytes)?;
        let map = Map::new(fd.as_fd(), 0, layout.head_bytes, true)?;
        for (offset, value) in [
            (head::NODES, nodes as u64),
            (head::FRAME_BYTES, layout.frame_bytes as u64),
            (head::RING_BYTES, layout.ring_bytes as u64),
            (head::BROADCAST_BYTES, layout.broadcast_bytes as u64),
            (head::GENERATIONS, layout.generations),
            (head::MAGIC, MAGIC),
        ] {
            WriteWord::new(&map, offset).store(value, Ordering::Relaxed);
        }
        Ok(fd)
    }
}

/// One process's claim on the job: the file with its lock, and the head.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) layout: Layout,
    fd: OwnedFd,
    head: Arc<Map>,
    changes: WriteWord,
    directory: Vec<ReadWord>,
}

impl Job {
    /// Opens the job's memory anew and takes `node`'s lock.
    pub(crate) fn claim(fd: BorrowedFd<'_>, node: u16) -> Result<Self, ShmAttachError> {
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
                generations: word(head::GENERATIONS),
            };
            Layout::new(size(head::NODES), config).map_err(|_| foreign("impossible sizes"))?
        };
        if layout.total_bytes != bytes {
            return Err(foreign("its length does not match its head"));
        }
        if usize::from(node) >= layout.nodes {
            return Err(ShmAttachError::NoSuchNode {
                node,
                nodes: layout.nodes,
            });
        }
        if !sys::try_lock_byte(fd.as_fd(), u64::from(node))
            .map_err(io_error("cannot lock the node's index (F_OFD_SETLK)"))?
        {
            return Err(ShmAttachError::Taken { node });
        }
        let head = Map::new(fd.as_fd(), 0, layout.head_bytes, true)
            .map_err(io_error("mmap of the job's head"))?;
        Ok(Self {
            layout,
            fd,
            changes: WriteWord::new(&head, head::CHANGES),
            directory: (0..layout.nodes)
                .map(|node| ReadWord::new(&head, layout.directory_at(node)))
                .collect(),
            head,
        })
    }

    /// Begins a new generation for `node` and maps its region.
    pub(crate) fn begin_generation(
        &self,
        node: u16,
        bell_name: u64,
        identity: [u64; 3],
    ) -> Result<(u64, Arc<Map>), ShmAttachError> {
        let generations = self.layout.generations;
        let generation = WriteWord::new(&self.head, head::NEXT_GENERATION)
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
        if generation > generations {
            return Err(ShmAttachError::NoGenerationsLeft { generations });
        }
        let map = self.map_generation(generation, true)?;
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
        WriteWord::new(&self.head, self.layout.directory_at(usize::from(node)))
            .store(generation, Ordering::Release);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// A counter that grows with each `announce` of any process.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The generation of a node: 0 if it never attached.
    pub(crate) fn generation_of(&self, node: usize) -> u64 {
        self.directory[node].load(Ordering::Acquire)
    }

    /// Maps the region of a peer's generation and reads its bell's name. `None`: the directory names a generation of another node.
    pub(crate) fn open_generation(
        &self,
        node: usize,
        generation: u64,
    ) -> Result<Option<(Arc<Map>, u64)>, ShmAttachError> {
        if generation == 0 || generation > self.layout.generations {
            return Ok(None);
        }
        let map = self.map_generation(generation, false)?;
        let word = |offset| ReadWord::new(&map, offset).load(Ordering::Acquire);
        if word(generation::NUMBER) != generation || word(generation::NODE) != node as u64 {
            return Ok(None);
        }
        let name = word(generation::BELL_NAME);
        Ok(Some((map, name)))
    }

    fn map_generation(&self, generation: u64, writable: bool) -> Result<Arc<Map>, ShmAttachError> {
        let what = "mmap of a generation's region (is the address space limited? see `ulimit -v`)";
        Map::new(
            self.fd.as_fd(),
            self.layout.generation_at(generation),
            self.layout.generation_bytes,
            writable,
        )
        .map_err(io_error(what))
    }

    /// Releases the memory of all earlier generations of `node`, whose present generation is `generation` and announced. `false`: a process may still
    /// read one of them. `has_left` tells of a node whether its process has told `generation` where to start.
    ///
    /// Why nobody reads them when this frees them. Their processes are gone: we hold their lock, which goes with the last of their mappings. Another
    /// process maps a generation only while the directory names it, and the directory names `generation` now. So the danger is processes that read
    /// the directory before. Each holds its node's lock as long as it is alive; hence a node whose lock is free has no such process, and one that
    /// comes later sees `generation` in the directory. A live process drops its mapping of the earlier generation *before* it tells `generation`
    /// where to start (`Peer::turn_to`), so one that has told has none.
    pub(crate) fn free_dead_generations(
        &self,
        node: u16,
        generation: u64,
        mut has_left: impl FnMut(u16) -> bool,
    ) -> io::Result<bool> {
        for other in (0..self.layout.nodes as u16).filter(|other| *other != node) {
            if !has_left(other) && sys::is_byte_locked(self.fd.as_fd(), other.into())? {
                return Ok(false);
            }
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
        sys::is_byte_locked(self.fd.as_fd(), node.into()).ok()
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
        self.map_generation(generation, true).expect("map")
    }
}
