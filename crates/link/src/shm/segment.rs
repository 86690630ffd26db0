//! The job's memory: one sealed anonymous file, its layout, and the claiming of a life in it.
//!
//! `ShmJob::create` makes it (the launcher does that once and hands the descriptor to each process); `Job::attach` claims a
//! node's index and a fresh life for it; `mod` and `peers` make views by the offsets given here.
//!
//! ```text
//! head     magic, sizes | next life | changes | directory: node → life     mapped by all, writable
//! bells    64 bytes a node                                                 mapped by all, writable
//! life 1   identity | broadcast counters | starts | heads | bindings of casting rings | how far we read others' casting rings |
//!          rings | broadcast ring | casting rings
//! life 2   …                                           writable by the process that lives it, read-only for all others
//! ```
//!
//! Invariants:
//! 1. A life's region is never written by another life. What a process reads of a peer is therefore written by that one life or by
//!    nobody; a restarted peer cannot tear it.
//! 2. Who lives as node `i` holds the lock on byte `i` of the file, by an open file description of its own: it goes with the
//!    process, and not before the last of its mappings. A second claimant gets an error, not a share. (A child forked without exec keeps the lock alive: don't.)
//! 3. An attach killed at any step leaves nothing visible: the directory entry comes last but for the counter `changes`, and a
//!    life without entry is only a used-up number.
//! 4. Sizes are read once, checked against the file's sealed size, and never read again.
//! 5. A dead life's pages are given back only when nobody has them mapped any more: see `free_dead_lives`. So each node has at most
//!    the pages of one life, alive or dead, and of those earlier lives that a living process has not turned away from yet, because
//!    it has not polled since. `lives` bounds even these.
//!
//! Nothing is in `/dev/shm`; the memory is gone with the last process that holds the descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cast;
use super::ring::{LINE_BYTES, record_lines};
use super::sys::{self, Map, ReadWord, WriteWord};

/// Nodes of a job: the directory stays small and the regions within any address space.
pub const NODES_MAX: usize = 1024;
/// The largest frame: beyond it a ring of sane size holds too few.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// The largest ring.
pub const RING_BYTES_MAX: usize = 1 << 30;
/// The most lives of a job.
pub const LIVES_MAX: u64 = 1 << 20;

/// Memory for rings that one node's processes are meant to touch at most, by default.
const RINGS_BYTES_PER_NODE: usize = 16 << 20;
/// A casting ring by default: a fraction of a second-level cache, so that what is written there is still in it when it is read.
const CAST_BYTES: usize = 512 << 10;
/// The smallest and the largest one.
const CAST_BYTES_LIMITS: std::ops::RangeInclusive<usize> = 16 << 10..=16 << 20;
/// Casting rings of a node: groups to which it may have broadcast something that not all have read.
pub(crate) const CASTS: usize = 32;
const MAGIC: u64 = u64::from_le_bytes(*b"tsumuji\x02");
/// All parts start at a multiple of this: the largest page size of the processors we build for. Untouched space costs nothing.
const PAGE_BYTES: usize = 64 << 10;

/// Sizes of a job's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShmConfig {
    /// Largest frame.
    pub frame_bytes: usize,
    /// Each of the rings between two nodes; a power of two that holds two largest frames.
    pub ring_bytes: usize,
    /// Each node's broadcast ring; a power of two that holds four largest frames.
    pub broadcast_bytes: usize,
    /// Each of a node's casting rings, of which one serves a group; a power of two from 16 KiB on.
    pub cast_bytes: usize,
    /// How often processes may attach in all. Costs only address space.
    pub lives: u64,
}

impl ShmConfig {
    /// The default sizes for a job of `nodes` nodes.
    ///
    /// 32 KiB of payload and room for headers in a frame: copying it takes ten times as long as the work per frame, and large
    /// messages still overlap the sender's copy with the receiver's. 1 MiB a ring: both directions of a pair stay in a second-level
    /// cache; less when many nodes would make it add up.
    pub fn for_nodes(nodes: usize) -> Self {
        let share = RINGS_BYTES_PER_NODE / nodes.saturating_sub(1).max(1);
        let ring_bytes = prev_power_of_two(share).clamp(128 << 10, 1 << 20);
        Self {
            frame_bytes: (32 << 10) + 128 - 8,
            ring_bytes,
            broadcast_bytes: 512 << 10,
            cast_bytes: CAST_BYTES,
            lives: (nodes as u64 * 16).max(4096),
        }
    }
}

fn prev_power_of_two(value: usize) -> usize {
    1 << value.max(1).ilog2()
}

/// Why a job's memory could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmCreateError {
    /// Too many or no nodes.
    #[error("a shared-memory job of {nodes} nodes is not possible; take 1 to {NODES_MAX}")]
    Nodes {
        /// What was asked for.
        nodes: usize,
    },
    /// A size that the rings cannot have.
    #[error("{what} = {value} is not possible; {accepted}")]
    Size {
        /// Which.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// What would be taken.
        accepted: &'static str,
    },
    /// The process may not make a file that large.
    #[error(
        "shared memory for {nodes} nodes needs an address range of {bytes} bytes, the file size limit is {limit}; raise it with `ulimit -f unlimited`"
    )]
    FileSizeLimit {
        /// Nodes.
        nodes: usize,
        /// What the smallest layout needs.
        bytes: u64,
        /// RLIMIT_FSIZE.
        limit: u64,
    },
    /// The kernel refused.
    #[error("cannot make shared memory (memfd_create, ftruncate, seals): {0}")]
    Io(#[from] io::Error),
}

/// Why a process could not join a job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmAttachError {
    /// The descriptor is something else.
    #[error("the descriptor is no tsumuji shared memory of this version: {reason}")]
    Foreign {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No such node in the job.
    #[error("node {node} does not exist in a job of {nodes} nodes (0 to {last})", last = nodes - 1)]
    NoSuchNode {
        /// Asked for.
        node: u16,
        /// In the job.
        nodes: usize,
    },
    /// A living process has the index.
    #[error(
        "node {node} of this job is taken by a living process; end it first or take another index"
    )]
    Taken {
        /// Asked for.
        node: u16,
    },
    /// Too many restarts.
    #[error(
        "this job's {lives} lives are used up (each attach takes one); start the job anew, or with more lives"
    )]
    NoLivesLeft {
        /// The job's limit.
        lives: u64,
    },
    /// The kernel refused.
    #[error("{what}: {source}")]
    Io {
        /// Which step, and what may help.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> ShmAttachError {
    move |source| ShmAttachError::Io { what, source }
}

/// Offsets of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) nodes: usize,
    pub(crate) frame_bytes: usize,
    pub(crate) ring_bytes: usize,
    pub(crate) broadcast_bytes: usize,
    pub(crate) cast_bytes: usize,
    pub(crate) lives: u64,
    head_bytes: usize,
    ring_stride_bytes: usize,
    rings_at: usize,
    broadcast_at: usize,
    casts_at: usize,
    cast_stride_bytes: usize,
    life_bytes: usize,
    total_bytes: u64,
}

/// Offsets in the head.
mod head {
    pub(super) const MAGIC: usize = 0;
    pub(super) const NODES: usize = 8;
    pub(super) const FRAME_BYTES: usize = 16;
    pub(super) const RING_BYTES: usize = 24;
    pub(super) const BROADCAST_BYTES: usize = 32;
    pub(super) const LIVES: usize = 40;
    pub(super) const CAST_BYTES: usize = 48;
    pub(super) const NEXT_LIFE: usize = 64;
    pub(super) const CHANGES: usize = 128;
    pub(super) const DIRECTORY: usize = 192;
}

/// Offsets in a life. Each counter that one side writes and the other polls has a line of its own.
mod life {
    pub(super) const NODE: usize = 0;
    pub(super) const LIFE: usize = 8;
    pub(super) const BELL_NAME: usize = 16;
    pub(super) const BROADCAST_TAIL: usize = 64;
    pub(super) const BROADCAST_NEWEST: usize = 72;
    pub(super) const BROADCAST_RESERVE: usize = 128;
    pub(super) const STARTS: usize = 192;
}

impl Layout {
    fn new(nodes: usize, config: ShmConfig) -> Result<Self, ShmCreateError> {
        if !(1..=NODES_MAX).contains(&nodes) {
            return Err(ShmCreateError::Nodes { nodes });
        }
        let size = |ok: bool, what, value, accepted| {
            ok.then_some(()).ok_or(ShmCreateError::Size {
                what,
                value,
                accepted,
            })
        };
        let frame_bytes = config.frame_bytes;
        size(
            (64..=FRAME_BYTES_MAX).contains(&frame_bytes),
            "frame_bytes",
            frame_bytes as u64,
            "64 to 1048576",
        )?;
        let record_bytes = (record_lines(frame_bytes) as usize + 1) * LINE_BYTES;
        size(
            config.ring_bytes.is_power_of_two()
                && (2 * record_bytes..=RING_BYTES_MAX).contains(&config.ring_bytes),
            "ring_bytes",
            config.ring_bytes as u64,
            "a power of two, at least twice a frame and at most 1 GiB",
        )?;
        size(
            config.broadcast_bytes.is_power_of_two()
                && (4 * record_bytes..=RING_BYTES_MAX).contains(&config.broadcast_bytes),
            "broadcast_bytes",
            config.broadcast_bytes as u64,
            "a power of two, at least four times a frame and at most 1 GiB",
        )?;
        size(
            config.cast_bytes.is_power_of_two() && CAST_BYTES_LIMITS.contains(&config.cast_bytes),
            "cast_bytes",
            config.cast_bytes as u64,
            "a power of two from 16 KiB to 16 MiB",
        )?;
        size(
            (nodes as u64..=LIVES_MAX).contains(&config.lives),
            "lives",
            config.lives,
            "at least one a node and at most 1048576",
        )?;
        // The limits above keep all of these far below 2^63.
        let page = |bytes: usize| bytes.next_multiple_of(PAGE_BYTES);
        let head_bytes = page(head::DIRECTORY + nodes * 8) + page(nodes * LINE_BYTES);
        let ring_stride_bytes = page(config.ring_bytes + record_bytes);
        let lines = 2 * nodes + (1 + CASTS) + nodes * CAST_TAKEN_LINES;
        let rings_at = page(life::STARTS + lines * LINE_BYTES);
        let broadcast_at = rings_at + nodes * ring_stride_bytes;
        let casts_at = broadcast_at + page(config.broadcast_bytes);
        let cast_stride_bytes = page(config.cast_bytes + cast::margin_bytes(config.cast_bytes));
        let life_bytes = casts_at + CASTS * cast_stride_bytes;
        Ok(Self {
            nodes,
            frame_bytes,
            ring_bytes: config.ring_bytes,
            broadcast_bytes: config.broadcast_bytes,
            cast_bytes: config.cast_bytes,
            lives: config.lives,
            head_bytes,
            ring_stride_bytes,
            rings_at,
            broadcast_at,
            casts_at,
            cast_stride_bytes,
            life_bytes,
            total_bytes: head_bytes as u64 + config.lives * life_bytes as u64,
        })
    }

    pub(crate) fn ring_lines(&self) -> u64 {
        (self.ring_bytes / LINE_BYTES) as u64
    }

    pub(crate) fn broadcast_words(&self) -> u64 {
        (self.broadcast_bytes / 8) as u64
    }

    fn directory_at(&self, node: usize) -> usize {
        head::DIRECTORY + node * 8
    }

    /// In the head's map.
    pub(crate) fn bell_at(&self, node: usize) -> usize {
        (head::DIRECTORY + self.nodes * 8).next_multiple_of(PAGE_BYTES) + node * LINE_BYTES
    }

    fn life_at(&self, life: u64) -> u64 {
        self.head_bytes as u64 + (life - 1) * self.life_bytes as u64
    }

    /// In a life's map, as all below: where its rings' consumers must start. One line a consumer.
    pub(crate) fn start_at(&self, consumer: usize) -> StartAt {
        let line = life::STARTS + consumer * LINE_BYTES;
        StartAt {
            life: line,
            ring: line + 8,
            broadcast: line + 16,
            broadcast_sequence: line + 24,
        }
    }

    /// How far the life, as consumer, has come in each producer's ring. One line a producer.
    pub(crate) fn consumed_at(&self, producer: usize) -> ConsumedAt {
        let line = life::STARTS + (self.nodes + producer) * LINE_BYTES;
        ConsumedAt {
            life: line,
            head: line + 8,
        }
    }

    /// The ring towards a consumer: offset and bytes with its margin.
    pub(crate) fn ring_at(&self, consumer: usize) -> (usize, usize) {
        (
            self.rings_at + consumer * self.ring_stride_bytes,
            self.ring_stride_bytes,
        )
    }

    /// A casting ring: offset and bytes with its margin.
    pub(crate) fn cast_at(&self, slot: usize) -> (usize, usize) {
        (
            self.casts_at + slot * self.cast_stride_bytes,
            self.cast_stride_bytes,
        )
    }

    /// To which groups casting rings were given: a line with the count, then one line each.
    pub(crate) fn cast_bindings_at(&self) -> usize {
        life::STARTS + 2 * self.nodes * LINE_BYTES
    }

    /// How far the life has read each of a writer's casting rings: the writer's life, then a word for each ring.
    pub(crate) fn cast_taken_at(&self, writer: usize) -> CastTakenAt {
        let lines = 2 * self.nodes + (1 + CASTS) + writer * CAST_TAKEN_LINES;
        let line = life::STARTS + lines * LINE_BYTES;
        CastTakenAt {
            life: line,
            words: line + LINE_BYTES,
        }
    }

    /// The broadcast ring.
    pub(crate) fn broadcast_at(&self) -> usize {
        self.broadcast_at
    }

    /// Its counters: tail, newest, reserve.
    pub(crate) fn broadcast_counters_at(&self) -> [usize; 3] {
        [
            life::BROADCAST_TAIL,
            life::BROADCAST_NEWEST,
            life::BROADCAST_RESERVE,
        ]
    }
}

/// Written by a producer for one consumer; `life` last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StartAt {
    pub(crate) life: usize,
    pub(crate) ring: usize,
    pub(crate) broadcast: usize,
    pub(crate) broadcast_sequence: usize,
}

/// Written by a consumer for one producer; `head` belongs to the producer's life named in `life`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConsumedAt {
    pub(crate) life: usize,
    pub(crate) head: usize,
}

/// Written by a reader for one writer; `words` belong to the writer's life named in `life`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CastTakenAt {
    pub(crate) life: usize,
    pub(crate) words: usize,
}

/// Lines that a reader has for each writer.
const CAST_TAKEN_LINES: usize = 1 + (CASTS * 8).div_ceil(LINE_BYTES);

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
            // Fewer restarts rather than none: exceeding the limit would raise SIGXFSZ.
            let lives = limit.saturating_sub(layout.head_bytes as u64) / layout.life_bytes as u64;
            if lives < nodes as u64 {
                return Err(ShmCreateError::FileSizeLimit {
                    nodes,
                    bytes: layout.life_at(nodes as u64 + 1),
                    limit,
                });
            }
            config.lives = lives;
            layout = Layout::new(nodes, config)?;
        }
        let fd = sys::sealed_memfd(layout.total_bytes)?;
        let map = Map::new(fd.as_fd(), 0, layout.head_bytes, true)?;
        for (offset, value) in [
            (head::NODES, nodes as u64),
            (head::FRAME_BYTES, layout.frame_bytes as u64),
            (head::RING_BYTES, layout.ring_bytes as u64),
            (head::BROADCAST_BYTES, layout.broadcast_bytes as u64),
            (head::LIVES, layout.lives),
            (head::CAST_BYTES, layout.cast_bytes as u64),
            (head::MAGIC, MAGIC),
        ] {
            WriteWord::new(&map, offset).store(value, Ordering::Relaxed);
        }
        Ok(fd)
    }
}

/// One process's hold on the job: the file with its lock, and the head.
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
                cast_bytes: size(head::CAST_BYTES),
                lives: word(head::LIVES),
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

    /// Takes a fresh life for `node` and maps its region.
    pub(crate) fn begin_life(
        &self,
        node: u16,
        bell_name: u64,
    ) -> Result<(u64, Arc<Map>), ShmAttachError> {
        let lives = self.layout.lives;
        let life = WriteWord::new(&self.head, head::NEXT_LIFE)
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
        if life > lives {
            return Err(ShmAttachError::NoLivesLeft { lives });
        }
        let map = self.map_life(life, true)?;
        let word = |offset| WriteWord::new(&map, offset);
        if word(life::LIFE).load(Ordering::Relaxed) != 0 {
            return Err(ShmAttachError::Foreign {
                reason: "the next life's region is in use",
            });
        }
        word(life::NODE).store(u64::from(node), Ordering::Relaxed);
        word(life::BELL_NAME).store(bell_name, Ordering::Relaxed);
        word(life::LIFE).store(life, Ordering::Release);
        Ok((life, map))
    }

    /// Makes the life visible to all others. Everything before is then visible, too.
    pub(crate) fn announce(&self, node: u16, life: u64) {
        WriteWord::new(&self.head, self.layout.directory_at(usize::from(node)))
            .store(life, Ordering::Release);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Grows with each `announce` of anybody.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The life of a node: 0 if it never attached.
    pub(crate) fn life_of(&self, node: usize) -> u64 {
        self.directory[node].load(Ordering::Acquire)
    }

    /// Maps the region of a peer's life and reads its bell's name. `None`: the directory names a life that is not this node's.
    pub(crate) fn open_life(
        &self,
        node: usize,
        life: u64,
    ) -> Result<Option<(Arc<Map>, u64)>, ShmAttachError> {
        if life == 0 || life > self.layout.lives {
            return Ok(None);
        }
        let map = self.map_life(life, false)?;
        let word = |offset| ReadWord::new(&map, offset).load(Ordering::Acquire);
        if word(life::LIFE) != life || word(life::NODE) != node as u64 {
            return Ok(None);
        }
        let name = word(life::BELL_NAME);
        Ok(Some((map, name)))
    }

    fn map_life(&self, life: u64, writable: bool) -> Result<Arc<Map>, ShmAttachError> {
        let what = "mmap of a life's region (is the address space limited? see `ulimit -v`)";
        Map::new(
            self.fd.as_fd(),
            self.layout.life_at(life),
            self.layout.life_bytes,
            writable,
        )
        .map_err(io_error(what))
    }

    /// Gives back the memory of all earlier lives of `node`, whose present life is `life` and announced. `false`: somebody may
    /// still read one of them. `has_left` says of a node whether its process has told `life` where to start.
    ///
    /// Why nobody reads them when this frees them. Their processes are gone: we hold their lock, which goes with the last of
    /// their mappings. Another process maps a life only while the directory names it, and the directory names `life` now. So
    /// the danger is processes that looked before. Each holds its node's lock as long as it lives; hence a node whose lock is
    /// free has no such process, and one that comes later sees `life` in the directory. A process that lives drops its mapping
    /// of the earlier life *before* it tells `life` where to start (`Peer::turn_to`), so one that has told has none.
    pub(crate) fn free_dead_lives(
        &self,
        node: u16,
        life: u64,
        mut has_left: impl FnMut(u16) -> bool,
    ) -> io::Result<bool> {
        for other in (0..self.layout.nodes as u16).filter(|other| *other != node) {
            if !has_left(other) && sys::is_byte_locked(self.fd.as_fd(), other.into())? {
                return Ok(false);
            }
        }
        let mut next = 1;
        while next < life {
            let at = self.layout.life_at(next);
            let Some(data) = sys::next_data(self.fd.as_fd(), at)? else {
                break;
            };
            let found = 1 + (data - self.layout.head_bytes as u64) / self.layout.life_bytes as u64;
            let at = self.layout.life_at(found);
            let word = |offset: usize| sys::read_word(self.fd.as_fd(), at + offset as u64);
            if found < life && word(life::LIFE)? == found && word(life::NODE)? == u64::from(node) {
                sys::give_back(self.fd.as_fd(), at, self.layout.life_bytes as u64)?;
            }
            next = found + 1;
        }
        Ok(true)
    }

    /// The map that holds the bells.
    pub(crate) fn head(&self) -> &Arc<Map> {
        &self.head
    }
}

#[cfg(test)]
impl Job {
    /// A second writable view of a life, as no process has it.
    pub(crate) fn own_region_for_test(&self, life: u64) -> Arc<Map> {
        self.map_life(life, true).expect("map")
    }
}

#[cfg(test)]
impl Layout {
    /// Words that `reader` looks at in a peer's region: counters, starts, heads, and the front of the rings.
    pub(crate) fn interesting_words_for_test(&self, reader: usize) -> Vec<usize> {
        let start = self.start_at(reader);
        let consumed = self.consumed_at(reader);
        let (ring, _) = self.ring_at(reader);
        let mut words = vec![
            life::NODE,
            life::LIFE,
            life::BELL_NAME,
            start.life,
            start.ring,
            start.broadcast,
            start.broadcast_sequence,
            consumed.life,
            consumed.head,
        ];
        words.extend(self.broadcast_counters_at());
        words.extend((0..self.ring_bytes).step_by(64).map(|at| ring + at));
        words.extend(
            (0..self.broadcast_bytes / 4)
                .step_by(8)
                .map(|at| self.broadcast_at + at),
        );
        words
    }

    /// Words that `reader` looks at in a peer's region when it is cast to, or casts.
    pub(crate) fn cast_words_for_test(&self, reader: usize) -> Vec<usize> {
        let taken = self.cast_taken_at(reader);
        let mut words = vec![taken.life];
        words.extend((0..CASTS).map(|slot| taken.words + slot * 8));
        words.extend(
            (0..(1 + CASTS) * LINE_BYTES)
                .step_by(8)
                .map(|at| self.cast_bindings_at() + at),
        );
        let (cast, _) = self.cast_at(0);
        words.extend((0..self.cast_bytes / 4).step_by(8).map(|at| cast + at));
        words
    }
}
