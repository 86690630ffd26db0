//! The only access of `shm` to the kernel and to mapped memory.
//!
//! `map` owns mappings and single words in them, `rings` the views of rings, `bell` the means to wake sleepers, `file` the job's file, `fence` the
//! order of memory accesses, `host` other system calls. The views (`ReadWord`, `BellRef`, `LinesRo` …) hold their mapping alive and were checked
//! against its bounds when made.
//!
//! Invariant: the file behind each map is sealed against shrinking and was found large enough before mapping, so no access faults. All memory is
//! shared with other processes: words are accessed by atomics only; the bytes of ring slots belong to one side at a time by the ring's protocol.
//! Bytes that another process can write are copied before they are read (`copy_shared`), and no reference to them is made: a process that breaks the
//! protocol can send garbage, as anybody can, but cannot change bytes that were checked. A process may die at any point.
#![allow(unsafe_code)] // mmap, raw views into shared memory, OFD locks: nothing safe offers them.

mod bell;
mod fence;
mod file;
mod host;
mod map;
mod rings;

pub(crate) use bell::{BellRef, BellSocket};
pub(crate) use fence::{fence_before_bell, fence_others, is_fenced_by_others};
pub(crate) use file::{
    file_size_limit_bytes, give_back, is_locked, next_data, read_word, reopen, seal_and_size,
    sealed_memfd, try_lock_byte,
};
pub use host::coarse_ms;
#[cfg(test)]
pub(crate) use host::page_bytes;
pub(crate) use host::read_process;
pub(crate) use map::{Map, ReadWord, WriteWord};
pub(crate) use rings::{LinesRo, LinesRw, WordsRo, WordsRw};
