//! The only door of `shm` to the kernel and to mapped memory.
//!
//! `Map` owns a mapping; the views (`ReadWord`, `WriteWord`, `BellRef`, `LinesRo` …) hold it alive and were checked against its
//! bounds when made, so that reading and writing through them needs no check and no `unsafe` outside.
//!
//! Invariant: the file behind each map is sealed against shrinking and was found large enough before mapping, so no access
//! faults. All memory is shared with other processes: words are touched by atomics only; the bytes of ring slots belong to one
//! side at a time by the ring's protocol. A process that breaks the protocol on purpose can change a frame while its receiver
//! looks at it: the processes of a job are programs of one user, not adversaries. Dying at any point is within the protocol.
#![allow(unsafe_code)] // mmap, raw views into shared memory, OFD locks: nothing safe offers them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::thread::futex;

use super::broadcast::{BroadcastRead, BroadcastWrite};
use super::cast::{CastRead, CastWrite, UNIT_BYTES};
use super::doorbell::BellWord;
use super::ring::{COMMIT_BYTES, LINE_BYTES, RingRead, RingWrite};

/// A shared mapping of a part of the job's file.
#[derive(Debug)]
pub(crate) struct Map {
    base: NonNull<u8>,
    bytes: usize,
    writable: bool,
}

// SAFETY: a mapping is not bound to a thread; all access goes through views whose own rules hold on any thread.
unsafe impl Send for Map {}
// SAFETY: `Map` itself offers no access through `&self` but the making of views.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `bytes` bytes of `fd` from `offset` (both multiples of the page size). The file must be sealed and large enough.
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        writable: bool,
    ) -> io::Result<Arc<Self>> {
        let prot = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a null hint lets the kernel choose a free range, so nothing that exists is replaced.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                prot,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                offset,
            )
        }?;
        // Rings say nothing of why a process died, and would make each core dump larger than all else in it. A kernel that
        // refuses changes nothing for us.
        // SAFETY: the range is the mapping made above; the advice alters no byte of it.
        let _ = unsafe { rustix::mm::madvise(base, bytes, Advice::LinuxDontDump) };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Arc::new(Self {
            base,
            bytes,
            writable,
        }))
    }

    fn at<T>(&self, offset: usize, bytes: usize, write: bool) -> NonNull<T> {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "view beyond its map"
        );
        assert!(
            offset.is_multiple_of(align_of::<T>()),
            "view not aligned in its map"
        );
        assert!(
            self.writable || !write,
            "writable view of a read-only mapping"
        );
        // SAFETY: `offset <= bytes`, the size of the live allocation at `base` (a mapping of that size).
        unsafe { self.base.add(offset) }.cast()
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: `base` and `bytes` are what mmap gave; every view holds an `Arc` of this map, so none is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// A word of another process: loads only.
#[derive(Debug)]
pub(crate) struct ReadWord {
    _map: Arc<Map>,
    at: NonNull<AtomicU64>,
}

// SAFETY: points into memory that `_map` keeps mapped; touched by atomic loads only.
unsafe impl Send for ReadWord {}

impl ReadWord {
    pub(crate) fn new(map: &Arc<Map>, offset: usize) -> Self {
        Self {
            at: map.at(offset, 8, false),
            _map: Arc::clone(map),
        }
    }

    #[inline]
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        // SAFETY: in bounds, aligned and mapped (checked by `Map::at`); an 8-byte atomic load needs no write access on the
        // 64-bit targets we build for.
        unsafe { self.at.as_ref() }.load(order)
    }
}

/// A word of our own memory.
#[derive(Debug)]
pub(crate) struct WriteWord {
    _map: Arc<Map>,
    at: NonNull<AtomicU64>,
}

// SAFETY: points into memory that `_map` keeps mapped; touched by atomics only.
unsafe impl Send for WriteWord {}

impl WriteWord {
    pub(crate) fn new(map: &Arc<Map>, offset: usize) -> Self {
        Self {
            at: map.at(offset, 8, true),
            _map: Arc::clone(map),
        }
    }
}

impl std::ops::Deref for WriteWord {
    type Target = AtomicU64;

    #[inline]
    fn deref(&self) -> &AtomicU64 {
        // SAFETY: in bounds, aligned and mapped writable (checked by `Map::at`).
        unsafe { self.at.as_ref() }
    }
}

/// A doorbell word.
#[derive(Debug)]
pub(crate) struct BellRef {
    _map: Arc<Map>,
    at: NonNull<AtomicU32>,
}

// SAFETY: points into memory that `_map` keeps mapped; touched by atomics only.
unsafe impl Send for BellRef {}

impl BellRef {
    pub(crate) fn new(map: &Arc<Map>, offset: usize) -> Self {
        Self {
            at: map.at(offset, 4, true),
            _map: Arc::clone(map),
        }
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: in bounds, aligned and mapped writable (checked by `Map::at`).
        unsafe { self.at.as_ref() }
    }

    /// Wakes whoever waits for the word.
    pub(crate) fn futex_wake(&self) {
        let _ = futex::wake(self.word(), futex::Flags::empty(), 1);
    }

    /// Sleeps while the word is `expected`; returns early on signals and spuriously.
    pub(crate) fn futex_wait(&self, expected: u32, timeout: Duration) -> io::Result<()> {
        let timeout = rustix::time::Timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        match futex::wait(self.word(), futex::Flags::empty(), expected, Some(&timeout)) {
            Ok(())
            | Err(
                rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::TIMEDOUT,
            ) => Ok(()),
            Err(other) => Err(other.into()),
        }
    }
}

impl BellWord for BellRef {
    #[inline]
    fn load(&self) -> u32 {
        self.word().load(Ordering::Acquire)
    }

    fn store(&self, word: u32) {
        self.word().store(word, Ordering::Release);
    }

    fn swap_if(&self, from: u32, to: u32) -> Result<(), u32> {
        self.word()
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }
}

/// A ring that we consume: `lines` lines and a margin of another process's region.
#[derive(Debug)]
pub(crate) struct LinesRo {
    _map: Arc<Map>,
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: points into memory that `_map` keeps mapped; who may touch which byte when is the ring's protocol.
unsafe impl Send for LinesRo {}

impl LinesRo {
    pub(crate) fn new(map: &Arc<Map>, offset: usize, bytes: usize) -> Self {
        assert!(offset.is_multiple_of(LINE_BYTES));
        Self {
            at: map.at(offset, bytes, false),
            _map: Arc::clone(map),
            bytes,
        }
    }
}

impl RingRead for LinesRo {
    #[inline]
    fn commit(&self, line: usize) -> u64 {
        debug_assert!((line + 1) * LINE_BYTES <= self.bytes);
        // SAFETY: `ring` masks `line` to the ring's lines, which `new` checked to lie in the map; the line is 64-byte aligned.
        // A commit word is stored atomically; a payload that lay there earlier was written before an atomic store we acquired.
        unsafe { self.at.add(line * LINE_BYTES).cast::<AtomicU64>().as_ref() }
            .load(Ordering::Acquire)
    }

    #[inline]
    unsafe fn read<R>(&self, line: usize, bytes: usize, f: impl FnOnce(&[u8]) -> R) -> R {
        let from = line * LINE_BYTES + COMMIT_BYTES;
        debug_assert!(from + bytes <= self.bytes);
        // SAFETY: `ring` bounds `bytes` by the frame size, and the view holds a margin of one largest record behind its last
        // line, so the range is mapped. The caller vouches that the producer does not write it meanwhile.
        f(unsafe { std::slice::from_raw_parts(self.at.add(from).as_ptr(), bytes) })
    }
}

/// A ring that we produce, in our own region.
#[derive(Debug)]
pub(crate) struct LinesRw {
    _map: Arc<Map>,
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: as for `LinesRo`.
unsafe impl Send for LinesRw {}

impl LinesRw {
    pub(crate) fn new(map: &Arc<Map>, offset: usize, bytes: usize) -> Self {
        assert!(offset.is_multiple_of(LINE_BYTES));
        Self {
            at: map.at(offset, bytes, true),
            _map: Arc::clone(map),
            bytes,
        }
    }

    #[inline]
    fn commit_word(&self, line: usize) -> &AtomicU64 {
        debug_assert!((line + 1) * LINE_BYTES <= self.bytes);
        // SAFETY: `ring` masks `line` to the ring's lines, which `new` checked to lie in the writable map; aligned to 64.
        unsafe { self.at.add(line * LINE_BYTES).cast().as_ref() }
    }
}

impl RingWrite for LinesRw {
    #[inline]
    fn publish(&self, line: usize, word: u64) {
        self.commit_word(line).store(word, Ordering::Release);
    }

    #[inline]
    fn clear(&self, line: usize) {
        self.commit_word(line).store(0, Ordering::Relaxed);
    }

    #[inline]
    unsafe fn write<R>(&self, line: usize, bytes: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let from = line * LINE_BYTES + COMMIT_BYTES;
        debug_assert!(from + bytes <= self.bytes);
        // SAFETY: in the writable map with its margin, as in `LinesRo::read`. The caller vouches that the consumer is done with
        // the range; in this process only the one `Producer` that owns this view writes it, through `&mut self`.
        f(unsafe { std::slice::from_raw_parts_mut(self.at.add(from).as_ptr(), bytes) })
    }
}

/// Another process's broadcast ring.
#[derive(Debug)]
pub(crate) struct WordsRo {
    _map: Arc<Map>,
    at: NonNull<AtomicU64>,
    words: usize,
    tail: ReadWord,
    newest: ReadWord,
    reserve: ReadWord,
}

// SAFETY: points into memory that `_map` keeps mapped; touched by atomic loads only.
unsafe impl Send for WordsRo {}

impl WordsRo {
    pub(crate) fn new(
        map: &Arc<Map>,
        offset: usize,
        words: usize,
        [tail, newest, reserve]: [usize; 3],
    ) -> Self {
        Self {
            at: map.at(offset, words * 8, false),
            words,
            tail: ReadWord::new(map, tail),
            newest: ReadWord::new(map, newest),
            reserve: ReadWord::new(map, reserve),
            _map: Arc::clone(map),
        }
    }
}

impl BroadcastRead for WordsRo {
    #[inline]
    fn word(&self, index: usize) -> u64 {
        debug_assert!(index < self.words);
        // SAFETY: `broadcast` masks `index` to the ring's words, which `new` checked to lie in the map; aligned.
        unsafe { self.at.add(index).as_ref() }.load(Ordering::Relaxed)
    }

    #[inline]
    fn tail(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    #[inline]
    fn fenced_reserve(&self) -> u64 {
        fence(Ordering::Acquire);
        self.reserve.load(Ordering::Acquire)
    }
}

/// Our own broadcast ring.
#[derive(Debug)]
pub(crate) struct WordsRw {
    _map: Arc<Map>,
    at: NonNull<AtomicU64>,
    words: usize,
    tail: WriteWord,
    newest: WriteWord,
    reserve: WriteWord,
}

// SAFETY: as for `WordsRo`, with stores.
unsafe impl Send for WordsRw {}

impl WordsRw {
    pub(crate) fn new(
        map: &Arc<Map>,
        offset: usize,
        words: usize,
        [tail, newest, reserve]: [usize; 3],
    ) -> Self {
        Self {
            at: map.at(offset, words * 8, true),
            words,
            tail: WriteWord::new(map, tail),
            newest: WriteWord::new(map, newest),
            reserve: WriteWord::new(map, reserve),
            _map: Arc::clone(map),
        }
    }
}

impl BroadcastWrite for WordsRw {
    #[inline]
    fn set_word(&self, index: usize, word: u64) {
        debug_assert!(index < self.words);
        // SAFETY: `broadcast` masks `index` to the ring's words, which `new` checked to lie in the writable map; aligned.
        unsafe { self.at.add(index).as_ref() }.store(word, Ordering::Relaxed);
    }

    fn reserve(&self, end: u64) {
        self.reserve.store(end, Ordering::Release);
        fence(Ordering::Release);
    }

    fn finish(&self, start: u64, end: u64) {
        self.tail.store(end, Ordering::Release);
        self.newest.store(start, Ordering::Release);
    }
}

/// A casting ring of another process.
#[derive(Debug)]
pub(crate) struct CastRo {
    _map: Arc<Map>,
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: points into memory that `_map` keeps mapped; read by atomic loads and by copies that the ring's protocol checks.
unsafe impl Send for CastRo {}

impl CastRo {
    pub(crate) fn new(map: &Arc<Map>, offset: usize, bytes: usize) -> Self {
        assert!(offset.is_multiple_of(UNIT_BYTES) && bytes.is_multiple_of(UNIT_BYTES));
        Self {
            at: map.at(offset, bytes, false),
            _map: Arc::clone(map),
            bytes,
        }
    }
}

impl CastRead for CastRo {
    #[inline]
    fn commit(&self, unit: usize) -> u64 {
        debug_assert!((unit + 1) * UNIT_BYTES <= self.bytes);
        // SAFETY: `cast` masks `unit` to the ring's units, which `new` checked to lie in the map; units are 8-byte aligned.
        unsafe { self.at.add(unit * UNIT_BYTES).cast::<AtomicU64>().as_ref() }
            .load(Ordering::Acquire)
    }

    #[inline]
    fn copy(&self, at: usize, target: &mut [u8]) {
        assert!(at <= self.bytes && target.len() <= self.bytes - at);
        // SAFETY: the range lies in the mapped ring, by the check above, and `target` is private memory of ours. Its writer writes
        // nothing there before we publish that we are done; where it gave the ring to another group meanwhile, or breaks the
        // protocol, `cast::Reader` finds out afterwards, and what was copied (plain bytes, any of which are valid) is thrown
        // away. No reference to the shared bytes is ever made.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.at.as_ptr().add(at),
                target.as_mut_ptr(),
                target.len(),
            );
        }
    }
}

/// A casting ring of our own.
#[derive(Debug)]
pub(crate) struct CastRw {
    _map: Arc<Map>,
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: as for `CastRo`, with stores.
unsafe impl Send for CastRw {}

impl CastRw {
    pub(crate) fn new(map: &Arc<Map>, offset: usize, bytes: usize) -> Self {
        assert!(offset.is_multiple_of(UNIT_BYTES) && bytes.is_multiple_of(UNIT_BYTES));
        Self {
            at: map.at(offset, bytes, true),
            _map: Arc::clone(map),
            bytes,
        }
    }

    #[inline]
    fn commit_word(&self, unit: usize) -> &AtomicU64 {
        debug_assert!((unit + 1) * UNIT_BYTES <= self.bytes);
        // SAFETY: `cast` masks `unit` to the ring's units, which `new` checked to lie in the writable map; 8-byte aligned.
        unsafe { self.at.add(unit * UNIT_BYTES).cast().as_ref() }
    }
}

impl CastWrite for CastRw {
    #[inline]
    fn publish(&self, unit: usize, word: u64) {
        self.commit_word(unit).store(word, Ordering::Release);
    }

    #[inline]
    fn clear(&self, unit: usize) {
        self.commit_word(unit).store(0, Ordering::Relaxed);
    }

    #[inline]
    fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at <= self.bytes && bytes.len() <= self.bytes - at);
        // SAFETY: the range lies in the mapped ring of our own region, by the check above; `bytes` is private memory. Readers
        // copy nothing from there before we publish it; one of an abandoned binding may, and throws it away (`CastRo::copy`).
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.as_ptr().add(at), bytes.len());
        }
    }
}

/// A row of words of another process: loads only.
#[derive(Debug)]
pub(crate) struct RowRo {
    _map: Arc<Map>,
    at: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: points into memory that `_map` keeps mapped; touched by atomic loads only.
unsafe impl Send for RowRo {}

impl RowRo {
    pub(crate) fn new(map: &Arc<Map>, offset: usize, words: usize) -> Self {
        Self {
            at: map.at(offset, words * 8, false),
            words,
            _map: Arc::clone(map),
        }
    }

    /// Acquire.
    #[inline]
    pub(crate) fn load(&self, word: usize) -> u64 {
        assert!(word < self.words);
        // SAFETY: within the row, which `new` checked to lie in the map; aligned.
        unsafe { self.at.add(word).as_ref() }.load(Ordering::Acquire)
    }
}

/// A row of words of our own.
#[derive(Debug)]
pub(crate) struct RowRw {
    _map: Arc<Map>,
    at: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: points into memory that `_map` keeps mapped; touched by atomics only.
unsafe impl Send for RowRw {}

impl RowRw {
    pub(crate) fn new(map: &Arc<Map>, offset: usize, words: usize) -> Self {
        Self {
            at: map.at(offset, words * 8, true),
            words,
            _map: Arc::clone(map),
        }
    }

    /// Release.
    #[inline]
    pub(crate) fn store(&self, word: usize, value: u64) {
        assert!(word < self.words);
        // SAFETY: within the row, which `new` checked to lie in the writable map; aligned.
        unsafe { self.at.add(word).as_ref() }.store(value, Ordering::Release);
    }
}

/// The full fence of the doorbell handshake.
#[inline]
pub(crate) fn full_fence() {
    fence(Ordering::SeqCst);
}

/// What was stored before this is seen before what is stored behind it.
#[inline]
pub(crate) fn store_fence() {
    fence(Ordering::Release);
}

/// The compiler moves nothing across; the processor may.
#[inline]
pub(crate) fn no_reordering() {
    compiler_fence(Ordering::SeqCst);
}

/// What was loaded before this is not loaded again after what is loaded behind it.
#[inline]
pub(crate) fn load_fence() {
    fence(Ordering::Acquire);
}

/// Says that this process takes part in `fence_others`. Once for each process; `false`: the kernel cannot.
pub(crate) fn is_fenced_by_others() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED))
}

/// A full fence here and, between two of its instructions, in every thread of every process for which `is_fenced_by_others`.
/// `false`: the kernel cannot.
pub(crate) fn fence_others() -> bool {
    fence(Ordering::SeqCst);
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes three integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Copies what process `pid` has at `address` into `target`; how many bytes that were. The kernel refuses what this process may
/// not trace, and addresses that are not the other's.
pub(crate) fn read_process(pid: u32, address: u64, target: &mut [u8]) -> io::Result<usize> {
    let (Ok(pid), Ok(start)) = (libc::pid_t::try_from(pid), usize::try_from(address)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let local = libc::iovec {
        iov_base: target.as_mut_ptr().cast(),
        iov_len: target.len(),
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(start),
        iov_len: target.len(),
    };
    // SAFETY: `local` is exactly the exclusively borrowed `target`, of which any bytes are valid; the remote range is only read,
    // by the kernel, which checks it against the other process's address space and answers EFAULT otherwise. Both vectors live
    // through the call, and their counts are 1.
    let read = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// Makes an anonymous file of `bytes` bytes that can neither shrink nor grow. Takes memory only where it is written.
pub(crate) fn sealed_memfd(bytes: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("tsumuji", flags | MemfdFlags::NOEXEC_SEAL)
        // Kernels before 6.3 do not know the flag.
        .or_else(|_| rustix::fs::memfd_create("tsumuji", flags))?;
    rustix::fs::ftruncate(&fd, bytes)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Whether a file is sealed against shrinking, and its size.
pub(crate) fn seal_and_size(fd: BorrowedFd<'_>) -> io::Result<(bool, u64)> {
    let sealed =
        rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    Ok((sealed, rustix::fs::fstat(fd)?.st_size as u64))
}

/// A descriptor of the same file with an open file description, hence locks, of its own.
pub(crate) fn reopen(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(rustix::fs::open(
        path,
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

fn byte_lock(offset: u64) -> libc::flock {
    // SAFETY: all-zero bytes are a valid `flock`.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = offset as _;
    lock.l_len = 1;
    lock
}

/// Takes the write lock on one byte of the file for this open file description. `false`: somebody else holds it.
pub(crate) fn try_lock_byte(fd: BorrowedFd<'_>, offset: u64) -> io::Result<bool> {
    let lock = byte_lock(offset);
    // SAFETY: the descriptor is open for the call, and `lock` is a live, initialised `flock`.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &lock) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Whether another open file description holds the lock on one byte of the file.
pub(crate) fn is_byte_locked(fd: BorrowedFd<'_>, offset: u64) -> io::Result<bool> {
    let mut lock = byte_lock(offset);
    // SAFETY: the descriptor is open for the call, and the kernel writes only into `lock`, which is live and ours.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) } == 0 {
        return Ok(i32::from(lock.l_type) != libc::F_UNLCK);
    }
    Err(io::Error::last_os_error())
}

/// The first place at or behind `offset` that has memory; `None`: there is none. Moves the descriptor's position.
pub(crate) fn next_data(fd: BorrowedFd<'_>, offset: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(fd, rustix::fs::SeekFrom::Data(offset)) {
        Ok(at) => Ok(Some(at)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads a word of the file without mapping it: what was never written, or given back, reads as 0 and takes no memory.
pub(crate) fn read_word(fd: BorrowedFd<'_>, offset: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    let read = rustix::io::pread(fd, &mut bytes, offset)?;
    if read < bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(u64::from_ne_bytes(bytes))
}

/// Gives a range's memory back to the kernel; it reads as zero from now on, through every mapping. The size stays.
pub(crate) fn give_back(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(fd, flags, offset, bytes)?)
}

/// Milliseconds of a clock that is read in a few nanoseconds and goes in steps of some milliseconds.
///
/// By the C library: `rustix` looks for the kernel's page of clocks by itself, and fails where a checker of memory hides it.
#[inline]
pub fn coarse_ms() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes only into `now`, which is live and ours. It does not fail: every kernel has the clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
}

/// The largest file this process may make.
pub(crate) fn file_size_limit_bytes() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Fsize)
        .current
        .unwrap_or(u64::MAX)
}

/// Bytes read per call when the bell socket is emptied; each byte is a datagram.
const BELL_DRAIN_MAX: usize = 64;

/// The socket that makes us wakeable through a descriptor: abstract, so that nothing is left in the file system.
#[derive(Debug)]
pub(crate) struct BellSocket {
    fd: OwnedFd,
    name: u64,
}

impl BellSocket {
    /// Binds to a free abstract name that the kernel chooses.
    pub(crate) fn new() -> io::Result<Self> {
        let fd = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        rustix::net::bind(&fd, &SocketAddrUnix::new_unnamed())?;
        let addr = SocketAddrUnix::try_from(rustix::net::getsockname(&fd)?)?;
        let name = addr
            .abstract_name()
            .and_then(pack_name)
            .ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { fd, name })
    }

    /// Our name, packed into a word: the length in the lowest byte.
    pub(crate) fn name(&self) -> u64 {
        self.name
    }

    /// Readable when somebody rang.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Takes what was rung so far.
    pub(crate) fn drain(&self) {
        let mut byte = [0u8; 1];
        for _ in 0..BELL_DRAIN_MAX {
            if rustix::net::recv(&self.fd, &mut byte, RecvFlags::DONTWAIT).is_err() {
                return;
            }
        }
    }

    /// Rings a peer by its packed name. A full queue is readable already; a peer that is gone needs no bell.
    pub(crate) fn ring(&self, name: u64) {
        let bytes = name.to_le_bytes();
        let Some(name) = bytes[1..].get(..usize::from(bytes[0])) else {
            return;
        };
        if let Ok(addr) = SocketAddrUnix::new_abstract_name(name) {
            let _ = rustix::net::sendto(
                &self.fd,
                &[1],
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
                &addr,
            );
        }
    }
}

/// The kernel's own names are 5 hexadecimal digits; up to 7 bytes fit.
fn pack_name(name: &[u8]) -> Option<u64> {
    let mut bytes = [0; 8];
    bytes[1..].get_mut(..name.len())?.copy_from_slice(name);
    bytes[0] = name.len() as u8;
    Some(u64::from_le_bytes(bytes))
}
