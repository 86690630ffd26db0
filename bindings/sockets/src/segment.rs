//! The segments that this process has mapped: those that it made as a client, and those that clients gave it.
//!
//! A client makes a segment for the first connection to a listener and takes its slots for the following ones, so that most connections need no new
//! memory. A server keeps the segments that it was given, by the identity of their files. `handshake` asks for both; `table` gives back.
//!
//! Invariant: `users` counts what refers to the mapping in this process (sockets, epoll instances, hellos); it is unmapped only at zero, under the
//! lock of the list. Structures are never freed, so that a stale reference finds an empty one.
#![allow(unsafe_code)] // Mapping and unmapping.

use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::address::Address;
use crate::hello::Fd;
use crate::lock::Locked;
use crate::lock::thread_group;
use crate::ring::{self, CLAIMED, CLIENT, Memory, SEGMENT_BYTES, SERVER, SLOTS};
use crate::sys::{self, Errno, Result};
use crate::table::{self, Socket};
use crate::tuning::TUNING;

/// Segments of one process: more connections than `SEGMENTS_MAX * SLOTS` stay with TCP.
const SEGMENTS_MAX: usize = 2048;
/// And what part of the descriptors that the process may have open: each segment takes one.
const SEGMENTS_SHARE: u64 = 4;
/// And what part of its address space, if that is limited.
const SPACE_SHARE: u64 = 8;

#[derive(Debug, Default)]
pub(crate) struct Segment {
    address: AtomicPtr<u8>,
    pub(crate) fd: AtomicU32,
    /// As its client: the connection to the listener's mailbox by which the server got the segment; it has it as long as that stands. -1: none.
    control: AtomicI32,
    /// Connections that were offered by a hello, of late.
    hellos: AtomicU32,
    identity: Locked<(u64, u64)>,
    /// The listener that it was made for, and the process that made it (0: a peer's).
    target: Locked<(Address, u32)>,
    users: AtomicU32,
    /// Slots that this process has given out as their client.
    taken: AtomicU32,
    last_used: AtomicU64,
    /// The socket of each slot, as client and as server.
    pub(crate) sockets: [[AtomicPtr<Socket>; SLOTS]; 2],
}

static LIST: Locked<Vec<&'static Segment>> = Locked::new(Vec::new());
static CLOCK: AtomicU64 = AtomicU64::new(0);

/// A reference that keeps the mapping.
#[derive(Debug)]
pub(crate) struct SegmentRef(&'static Segment);

impl SegmentRef {
    pub(crate) fn get(&self) -> &'static Segment {
        self.0
    }
}

impl Clone for SegmentRef {
    fn clone(&self) -> Self {
        self.0.users.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }
}

impl Drop for SegmentRef {
    fn drop(&mut self) {
        let now = CLOCK.fetch_add(1, Ordering::Relaxed);
        self.0.last_used.store(now, Ordering::Relaxed);
        if self.0.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            trim(TUNING.segments.idle_max);
        }
    }
}

impl Segment {
    /// Whether the server still has the segment.
    fn is_reached(&self) -> bool {
        let control = self.control.load(Ordering::Acquire);
        if control < 0 {
            return false;
        }
        let is_shared = self.memory().header().is_shared.load(Ordering::Relaxed) != 0;
        if is_shared && self.hellos.load(Ordering::Relaxed) < TUNING.segments.shared_hellos {
            return false;
        }
        let mut room = [0; 1];
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        let stands = sys::recv(control, &mut room, flags) == Err(sys::AGAIN);
        if !stands {
            self.forget_control();
        }
        stands
    }

    /// A connection was offered without a hello, and nobody has claimed it: some process of the server does not have the segment.
    pub(crate) fn was_missed(&self) {
        self.hellos
            .store(TUNING.segments.shared_hellos / 2, Ordering::Relaxed);
    }

    fn forget_control(&self) {
        let control = self.control.swap(-1, Ordering::AcqRel);
        if control >= 0 {
            table::close_own(control);
        }
    }

    /// The connection over which a hello was sent.
    pub(crate) fn keep_control(&self, fd: i32) {
        self.hellos.fetch_add(1, Ordering::Relaxed);
        let kept = table::keep_own(fd);
        let old = self.control.swap(kept, Ordering::AcqRel);
        if old >= 0 {
            table::close_own(old);
        }
    }

    pub(crate) fn memory(&self) -> Memory {
        // SAFETY: the caller has come here by a `SegmentRef`, or by a socket or list that holds one.
        unsafe { Memory::new(self.address.load(Ordering::Acquire)) }
    }
}

/// The process is about to limit its address space.
pub(crate) fn let_go_of_idle() {
    trim(0);
}

/// Unmaps the longest unused of more than `most` idle segments.
fn trim(most: usize) {
    LIST.with(|list| {
        let idle = |segment: &&&'static Segment| {
            segment.users.load(Ordering::Acquire) == 0
                && !segment.address.load(Ordering::Acquire).is_null()
        };
        while list.iter().filter(idle).count() > most {
            let oldest = list
                .iter()
                .filter(idle)
                .min_by_key(|segment| segment.last_used.load(Ordering::Relaxed));
            let Some(oldest) = oldest else { break };
            let address = oldest.address.swap(std::ptr::null_mut(), Ordering::AcqRel);
            oldest.identity.with(|identity| *identity = (0, 0));
            // SAFETY: nothing refers to it: `users` is zero, and it grows only under the lock of the list.
            unsafe { sys::unmap(address, SEGMENT_BYTES) };
            table::close_own(oldest.fd.load(Ordering::Relaxed) as i32);
            oldest.forget_control();
        }
    });
}

/// Puts a file into the list, or finds it there.
fn enter(
    list: &mut Vec<&'static Segment>,
    fd: Fd,
    identity: (u64, u64),
    target: (Address, u32),
) -> Result<SegmentRef> {
    let known = list.iter().find(|segment| {
        !segment.address.load(Ordering::Acquire).is_null()
            && segment.identity.with(|known| *known == identity)
    });
    if let Some(known) = known {
        known.users.fetch_add(1, Ordering::AcqRel);
        return Ok(SegmentRef(known));
    }
    let is_empty = |segment: &&&'static Segment| segment.address.load(Ordering::Acquire).is_null();
    let empty = list.iter().find(is_empty).copied();
    let mapped = list.len() - list.iter().filter(is_empty).count();
    if mapped as u64 >= sys::open_files_limit() / SEGMENTS_SHARE {
        return Err(Errno(libc::EMFILE));
    }
    if mapped as u64 >= sys::address_space_limit() / SPACE_SHARE / SEGMENT_BYTES as u64 {
        return Err(Errno(libc::ENOMEM));
    }
    let segment = match empty {
        Some(empty) => empty,
        None if list.len() >= SEGMENTS_MAX => return Err(Errno(libc::ENOMEM)),
        None => {
            let segment: &'static Segment = Box::leak(Box::new(Segment {
                control: AtomicI32::new(-1),
                ..Segment::default()
            }));
            list.push(segment);
            segment
        }
    };
    let address = sys::map_shared(fd.get(), SEGMENT_BYTES)?;
    let fd = table::keep_own(fd.take());
    segment.fd.store(fd as u32, Ordering::Relaxed);
    segment.identity.with(|known| *known = identity);
    segment.target.with(|known| *known = target);
    segment.taken.store(0, Ordering::Relaxed);
    segment.hellos.store(0, Ordering::Relaxed);
    segment.users.store(1, Ordering::Relaxed);
    segment.address.store(address, Ordering::Release);
    Ok(SegmentRef(segment))
}

/// A free slot for a connection to `target`, of a segment that its server has already.
pub(crate) fn take_reached_slot(target: &Address) -> Option<(SegmentRef, usize)> {
    LIST.with(|list| take_of(list, target, Segment::is_reached))
}

fn take_of(
    list: &[&'static Segment],
    target: &Address,
    is_wanted: impl Fn(&Segment) -> bool,
) -> Option<(SegmentRef, usize)> {
    let pid = thread_group();
    for segment in list {
        let is_ours = !segment.address.load(Ordering::Acquire).is_null()
            && segment.target.with(|known| *known == (*target, pid));
        if !is_ours {
            continue;
        }
        // The kernel is asked only about those that have room.
        if let Some(slot) = free_slot(segment)
            && is_wanted(segment)
        {
            segment.taken.fetch_or(1 << slot, Ordering::Relaxed);
            segment.users.fetch_add(1, Ordering::AcqRel);
            return Some((SegmentRef(segment), slot));
        }
    }
    None
}

/// A free slot for a connection to `target`, of a segment that this process has made or makes now.
pub(crate) fn take_slot(target: Address) -> Result<(SegmentRef, usize)> {
    let pid = thread_group();
    LIST.with(|list| {
        if let Some(taken) = take_of(list, &target, |_| true) {
            return Ok(taken);
        }
        let fd = Fd::new(sys::sealed_memfd(SEGMENT_BYTES)?);
        let (device, inode, _) = sys::sealed_identity(fd.get())?;
        let segment = enter(list, fd, (device, inode), (target, pid))?;
        let header = segment.get().memory().header();
        header.client_pid.store(pid, Ordering::Relaxed);
        header.magic.store(ring::MAGIC, Ordering::Release);
        segment.get().taken.store(1, Ordering::Relaxed);
        Ok((segment, 0))
    })
}

fn free_slot(segment: &Segment) -> Option<usize> {
    let taken = segment.taken.load(Ordering::Relaxed);
    (0..SLOTS).find(|slot| {
        if taken & (1 << slot) != 0 {
            return false;
        }
        let words = segment.memory().slot(*slot);
        let is_open = |side: usize| words.ends[side].own.processes.load(Ordering::Acquire) > 0;
        // A server's process that was killed has not counted itself down; then the slot is lost until the segment goes.
        let was_claimed = words.state.load(Ordering::Acquire) & CLAIMED != 0;
        !(is_open(CLIENT) || was_claimed && is_open(SERVER))
    })
}

/// The client has done with a slot.
pub(crate) fn free(segment: &Segment, slot: usize) {
    segment.taken.fetch_and(!(1 << slot), Ordering::Release);
}

/// A file that a client has sent.
pub(crate) fn attach(fd: Fd) -> Result<SegmentRef> {
    let (device, inode, bytes) = sys::sealed_identity(fd.get())?;
    if bytes != SEGMENT_BYTES {
        return Err(Errno(libc::EINVAL));
    }
    let identity = (device, inode);
    let segment = LIST.with(|list| enter(list, fd, identity, (Address::default(), 0)))?;
    if segment
        .get()
        .memory()
        .header()
        .magic
        .load(Ordering::Acquire)
        != ring::MAGIC
    {
        return Err(Errno(libc::EINVAL));
    }
    Ok(segment)
}

/// Before a fork.
pub(crate) fn freeze() {
    LIST.freeze();
}

/// After it.
pub(crate) fn thaw() {
    LIST.thaw();
}

pub(crate) fn own_moved(from: i32, to: i32) {
    LIST.with(|list| {
        for segment in list.iter() {
            let _ = segment
                .control
                .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
            let _ = segment.fd.compare_exchange(
                from as u32,
                to as u32,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
        }
    });
}
