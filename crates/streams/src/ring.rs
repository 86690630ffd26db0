//! What lies where in the memory that two processes share, and the copying into and out of its rings.
//!
//! A segment is a sealed file of one client process for one listener. It has `SLOTS` slots; a slot is one connection: two ends, each with the words
//! that its processes write (`Out`, `In`, `Own`), and two rings of bytes. Ends are programs (`bindings/sockets`) and gateways.
//!
//! Invariants. All words are atomics. Every word of the other end is read once for each decision and bounded before it is used; positions that cannot
//! be (`used` above the size of the ring) end the connection. Positions only grow; a byte lies at its position modulo the size. A ring has one producer
//! and one consumer at a time: the holders of the locks `Own::sending` and `Own::receiving` of its ends.
//!
//! A producer that finds its ring empty goes on at the ring's beginning (`Out::skip_from` says from where), so that connections of small messages
//! touch little memory, and always the same.
#![allow(unsafe_code)] // Views into shared memory, and copies between it and the program's buffers.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::iovec;

use crate::tuning::TUNING;

/// Connections of one segment: a bit each in one word.
pub const SLOTS: usize = 32;

/// Waiters (epoll instances) of each end that a segment can name.
pub const WAITERS: usize = 16;

/// The ends of a connection.
pub const CLIENT: usize = 0;
/// The other one.
pub const SERVER: usize = 1;

/// Bytes of a ring. What kernel TCP holds for a connection over loopback is of this order, and programs depend on some of it.
pub const RING_BYTES: u64 = 1 << 20;

/// How often `unread` polls while another thread takes bytes.
const POLLS_MAX: u32 = 1000;

const HEADER_BYTES: usize = 4096;
const SLOT_BYTES: usize = 1024;

/// Bytes of a segment's file.
pub const SEGMENT_BYTES: usize =
    HEADER_BYTES + SLOTS * SLOT_BYTES + SLOTS * 2 * RING_BYTES as usize;

/// Of the form above; changes with it.
pub const MAGIC: u64 = 0x7473_756d_736f_0003;

/// The state of a slot is its generation, shifted, and these bits.
pub const OFFERED: u64 = 1;
/// The client knows the connection's addresses and has written them down.
pub const CONFIRMED: u64 = 2;
/// A server's process has taken it.
pub const CLAIMED: u64 = 4;
/// By either: the connection stays with TCP.
pub const CANCELLED: u64 = 8;
/// Bits of a state below the generation.
pub const GENERATION_SHIFT: u32 = 8;

/// A word in a cache line of its own.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Line(pub AtomicU32);

/// How a doorbell is found, the datagram socket by which a waiter is woken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Plate {
    /// Its name is of this number ([`crate::address::doorbell`]).
    pub number: u64,
    /// What a ring must begin with: the name is no secret.
    pub word: u64,
}

/// A place for a plate.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Doorbell {
    number: AtomicU64,
    word: AtomicU64,
}

impl Doorbell {
    /// The end that writes and reads says so by another word.
    pub fn set(&self, plate: Plate) {
        self.number.store(plate.number, Ordering::Relaxed);
        self.word.store(plate.word, Ordering::Relaxed);
    }

    /// What was written last, or parts of two.
    pub fn plate(&self) -> Plate {
        Plate {
            number: self.number.load(Ordering::Relaxed),
            word: self.word.load(Ordering::Relaxed),
        }
    }
}

/// The beginning of a segment.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Header {
    /// `MAGIC`, once all else is written.
    pub magic: AtomicU64,
    /// The process that made the segment.
    pub client_pid: AtomicU32,
    /// A bit for each slot that is offered here instead of by a hello, to a server that has the segment already.
    pub offers: Line,
    /// Written by the server: several processes accept from its listener, and not all of them may have the segment.
    pub is_shared: AtomicU32,
    /// For each end, a bit for each slot that has news for its waiter.
    pub ready: [Line; 2],
    /// For each end, how its waiters shall be woken, by [`BELL`] or [`DOORBELL`]; 0: they do not sleep.
    pub asleep: [[Line; WAITERS]; 2],
    /// Processes of the waiters; 0: free.
    pub owners: [[AtomicU32; WAITERS]; 2],
    /// The waiters' doorbells, of use where they sleep by [`DOORBELL`].
    pub doorbells: [[Doorbell; WAITERS]; 2],
}

/// Written by an end's sending half (but `bells`), read by the other end.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Out {
    /// Position after the last byte written.
    pub tail: AtomicU64,
    /// The consumer that gets here goes on at the next multiple of the ring's size.
    pub skip_from: AtomicU64,
    /// 1 + bytes of data that went by TCP before the first byte by the ring; 0: TCP still carries data.
    pub switch_at: AtomicU64,
    /// 1 + position in the ring after which data goes by TCP again; 0: not so.
    pub back_at: AtomicU64,
    /// Bells (bytes by TCP that are no data) that were ever sent.
    pub bells: AtomicU64,
    /// Nothing more will be sent (`shutdown`).
    pub is_finished: AtomicU32,
    /// All processes of this end have closed it; a hint, the kernel's word counts.
    pub is_closed: AtomicU32,
    /// The ring was full: a bell is wanted when there is room.
    pub wants_room: AtomicU32,
    /// The connection shall end by a reset (SO_LINGER of no time, unread data).
    pub ends_by_reset: AtomicU32,
}

/// Somebody sleeps in the kernel for the connection, or for others beside it.
pub const BELL: u32 = 1;
/// Somebody sleeps on the word [`In::is_asleep`] itself.
pub const FUTEX: u32 = 2;
/// A waiter sleeps in the kernel for its doorbell, a socket that any number of connections share.
pub const DOORBELL: u32 = 4;

/// Written by an end's receiving half, read by the other end.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct In {
    /// Position after the last byte taken.
    pub head: AtomicU64,
    /// How the next news shall be told: by [`BELL`], [`FUTEX`], or both; 0: it will be seen.
    pub is_asleep: AtomicU32,
    /// 1 + number of the waiter that is told of news by `Header::ready`; 0: none.
    pub waiter: AtomicU32,
    /// The other end shall send by TCP again.
    pub wants_tcp: AtomicU32,
    /// And shall begin with what is unread: nothing is taken from the ring any more.
    pub is_frozen: AtomicU32,
    /// The kernel has reported the other end's end; a gateway says when all that was sent before has come.
    pub sees_end: AtomicU32,
}

/// Of an end's own processes, which may be several after `fork`.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Own {
    /// Locks, by the number of the thread that holds them.
    pub sending: AtomicU32,
    /// Held by who reads the ring.
    pub receiving: AtomicU32,
    /// The thread that waits in the kernel, and the word on which others wait for it.
    pub leader: AtomicU32,
    /// Counts leaders.
    pub leads: AtomicU32,
    /// Threads that wait for a leader.
    pub followers: AtomicU32,
    /// Processes that have it open.
    pub processes: AtomicU32,
    /// As the program has set it.
    pub is_nonblocking: AtomicU32,
    /// `SHUT_RD` was asked for.
    pub is_deaf: AtomicU32,
    /// What the program believes of TCP_NODELAY and TCP_CORK.
    pub no_delay: AtomicI32,
    /// As above.
    pub cork: AtomicI32,
    /// SO_RCVLOWAT.
    pub low_water: AtomicI32,
    /// Bytes of data sent by TCP, before the ring and after it.
    pub tcp_sent: AtomicU64,
    /// Bytes of data received by TCP before the ring.
    pub tcp_taken: AtomicU64,
    /// Bells taken out of the kernel.
    pub bells_taken: AtomicU64,
    /// 1 + a byte of data that was taken while waiting for a bell.
    pub stash: AtomicU32,
    /// An error of the kernel's that the program has not been told yet.
    pub error: AtomicU32,
    /// `ENDED`, `RESET`: what the kernel has said about the connection.
    pub has_ended: AtomicU32,
}

/// In [`Own::processes`]: the last process is writing its last words.
const LEAVING: u32 = 1 << 31;

impl Own {
    /// One process less has it open. True: it was the last, which calls [`left`](Self::left) once it has written its last words. A client that offers its
    /// slot again has reset the count, also of a server's process that has counted itself for the offer before.
    pub fn leave(&self) -> bool {
        let count = &self.processes;
        let before = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| match count {
            0 | LEAVING => None,
            1 => Some(LEAVING),
            count => Some(count - 1),
        });
        before == Ok(1)
    }

    /// The last process has written all: the slot may be offered again.
    pub fn left(&self) {
        let count = &self.processes;
        let _ = count.compare_exchange(LEAVING, 0, Ordering::Release, Ordering::Relaxed); // offered again by force otherwise
    }

    /// As `leave`, for a process that has nothing to write.
    pub fn leave_at_once(&self) {
        if self.leave() {
            self.left();
        }
    }
}

/// All processes of the other end have closed the connection, or are gone.
pub const ENDED: u32 = 1;
/// The connection does not exist any more.
pub const RESET: u32 = 2;
/// The kernel has reset it only because bells were unread when the other end went: to the program it has ended in order.
pub const BY_BELLS: u32 = 4;
/// A byte that was sent after such an end counts as sent.
pub const OWED: u32 = 8;

/// One end of a connection.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct End {
    /// What it sends.
    pub out: Out,
    /// What it receives.
    pub inn: In,
    /// What its processes share.
    pub own: Own,
}

/// A connection.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Slot {
    /// Generation and bits.
    pub state: AtomicU64,
    /// The client's port, for an offer.
    pub port: AtomicU32,
    /// Addresses of both ends, as `address::Pair` packs them; valid once confirmed.
    pub pair: [AtomicU64; 6],
    /// Those of the connection that the server has claimed it for; valid once claimed by a server of this host.
    pub claimed: [AtomicU64; 6],
    /// Of the client and of the server.
    pub ends: [End; 2],
}

const _: () = assert!(size_of::<Header>() <= HEADER_BYTES && size_of::<Slot>() <= SLOT_BYTES);
const _: () = assert!(RING_BYTES.is_power_of_two());

/// A mapping of one segment. It stays mapped while connections use it (`segment`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory(*mut u8);

// SAFETY: a mapping is shared by nature; words in it are atomics, and bytes of rings are accessed under locks.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Safety
    /// `address` is a mapping of `SEGMENT_BYTES` of a sealed file, and stays so while the result or any view of it is used.
    pub unsafe fn new(address: *mut u8) -> Self {
        Self(address)
    }

    /// Where it is mapped.
    pub fn address(self) -> *mut u8 {
        self.0
    }

    /// The segment's header.
    pub fn header(self) -> &'static Header {
        // SAFETY: within the mapping (asserted above) and aligned, being at a page's start; only atomics are in it.
        unsafe { &*self.0.cast::<Header>() }
    }

    /// A slot, modulo their number.
    pub fn slot(self, slot: usize) -> &'static Slot {
        let offset = HEADER_BYTES + (slot % SLOTS) * SLOT_BYTES;
        // SAFETY: within the mapping for every slot number, and a multiple of the cache line; only atomics are in it.
        unsafe { &*self.0.add(offset).cast::<Slot>() }
    }

    /// The ring that `side` of `slot` writes.
    fn ring(self, slot: usize, side: usize) -> *mut u8 {
        let number = (slot % SLOTS) * 2 + side % 2;
        let offset = HEADER_BYTES + SLOTS * SLOT_BYTES + number * RING_BYTES as usize;
        // SAFETY: within the mapping, whose size counts two rings for each slot.
        unsafe { self.0.add(offset) }
    }

    /// The ring that `side` writes.
    pub fn writer(self, slot: usize, side: usize) -> Ring {
        let slot_words = self.slot(slot);
        Ring {
            bytes: self.ring(slot, side),
            out: &slot_words.ends[side % 2].out,
            inn: &slot_words.ends[(side + 1) % 2].inn,
        }
    }

    /// The ring that `side` reads.
    pub fn reader(self, slot: usize, side: usize) -> Ring {
        self.writer(slot, (side + 1) % 2)
    }
}

/// A process at the other end has written what cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken;

/// What becomes of bytes that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// They are taken out.
    Take,
    /// They stay.
    Peek,
    /// They are taken out and thrown away.
    Discard,
}

/// One direction of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Ring {
    bytes: *mut u8,
    out: &'static Out,
    inn: &'static In,
}

impl Ring {
    /// Position of the consumer, and bytes between it and `tail`.
    fn used(&self, tail: u64, head: u64) -> Result<(u64, u64), Broken> {
        self.used_but(tail, head, self.out.skip_from.load(Ordering::Relaxed))
    }

    fn used_but(&self, tail: u64, head: u64, skip_from: u64) -> Result<(u64, u64), Broken> {
        if tail == head {
            return Ok((head, 0));
        }
        let head = if skip_from == head {
            next_multiple(head)
        } else {
            head
        };
        let used = tail.wrapping_sub(head);
        if used > RING_BYTES {
            return Err(Broken);
        }
        Ok((head, used))
    }

    /// Unread bytes. Callers hold no lock: words that change while they are read are read again.
    pub fn unread(&self) -> Result<u64, Broken> {
        let mut head = self.inn.head.load(Ordering::Acquire);
        let mut polls = 0;
        loop {
            let tail = self.out.tail.load(Ordering::Acquire);
            let skip_from = self.out.skip_from.load(Ordering::Acquire);
            let again = self.inn.head.load(Ordering::Acquire);
            polls += 1;
            if again == head || polls == POLLS_MAX {
                let used = self.used_but(tail, again, skip_from);
                return used.map(|(_, used)| used);
            }
            head = again;
        }
    }

    /// Room for the producer.
    pub fn room(&self) -> Result<u64, Broken> {
        self.unread().map(|used| RING_BYTES - used)
    }

    /// Where the producer writes next (position), and how much room there is.
    fn next_to_write(&self) -> Result<(u64, u64), Broken> {
        let tail = self.out.tail.load(Ordering::Relaxed);
        let head = self.inn.head.load(Ordering::Acquire);
        let (_, used) = self.used(tail, head)?;
        if used == 0 && tail % RING_BYTES > TUNING.rewind_bytes && tail == head {
            self.out.skip_from.store(tail, Ordering::Relaxed);
            return Ok((next_multiple(tail), RING_BYTES));
        }
        // The consumer has not come past a gap yet: what lies before it is used, too.
        Ok((tail, RING_BYTES - used))
    }

    /// Copies from the program's buffers, from byte `skip` of them on, as much as there is room for. Caller: holder of `sending`.
    pub fn write(&self, buffers: &[iovec], skip: usize, most: usize) -> Result<usize, Broken> {
        let (start, room) = self.next_to_write()?;
        let mut position = start;
        for (from, bytes) in parts(buffers, skip, most.min(room as usize)) {
            // SAFETY: the program vouches for its buffer; the ring's room is ours.
            unsafe { self.copy_in(position, from, bytes) };
            position = position.wrapping_add(bytes as u64);
        }
        if position != start {
            self.out.tail.store(position, Ordering::Release);
        }
        Ok(position.wrapping_sub(start) as usize)
    }

    /// As `write`, from one slice.
    pub fn write_bytes(&self, bytes: &[u8]) -> Result<usize, Broken> {
        let buffer = iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        self.write(&[buffer], 0, bytes.len())
    }

    /// As `read`, into one slice.
    pub fn read_bytes(&self, room: &mut [u8], how: Reading) -> Result<usize, Broken> {
        let buffer = iovec {
            iov_base: room.as_mut_ptr().cast(),
            iov_len: room.len(),
        };
        self.read(&[buffer], 0, how)
    }

    /// Takes out so many bytes, which were peeked at.
    pub fn discard(&self, bytes: usize) -> Result<usize, Broken> {
        let nowhere = iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: bytes,
        };
        self.read(&[nowhere], 0, Reading::Discard)
    }

    /// # Safety
    /// `from` has `bytes` readable bytes, and the caller owns the room at `position`.
    unsafe fn copy_in(&self, position: u64, from: *const u8, bytes: usize) {
        let at = (position % RING_BYTES) as usize;
        let first = bytes.min(RING_BYTES as usize - at);
        // SAFETY: both parts are within the ring; the rest is the caller's promise.
        unsafe {
            copy_long(from, self.bytes.add(at), first);
            copy_long(from.add(first), self.bytes, bytes - first);
        }
    }

    /// Copies into the program's buffers, from byte `skip` of them on. Caller: holder of `receiving`.
    pub fn read(&self, buffers: &[iovec], skip: usize, how: Reading) -> Result<usize, Broken> {
        let tail = self.out.tail.load(Ordering::Acquire);
        let head = self.inn.head.load(Ordering::Relaxed);
        let (head, used) = self.used(tail, head)?;
        let mut position = head;
        for (into, bytes) in parts(buffers, skip, used as usize) {
            if how != Reading::Discard {
                // SAFETY: the program vouches for its buffer; the ring holds so many bytes, which the producer leaves alone until `head` moves.
                unsafe { self.copy_out(position, into, bytes) };
            }
            position = position.wrapping_add(bytes as u64);
        }
        if position != head && how != Reading::Peek {
            self.inn.head.store(position, Ordering::Release);
        }
        Ok(position.wrapping_sub(head) as usize)
    }

    /// # Safety
    /// `into` has room for `bytes`, and the ring has so many at `position`.
    unsafe fn copy_out(&self, position: u64, into: *mut u8, bytes: usize) {
        let at = (position % RING_BYTES) as usize;
        let first = bytes.min(RING_BYTES as usize - at);
        // SAFETY: both parts are within the ring; the rest is the caller's promise.
        unsafe {
            copy_long(self.bytes.add(at), into, first);
            copy_long(self.bytes, into.add(first), bytes - first);
        }
    }

    /// Lets `fill` write into the ring itself: it gets an address and a length, and says how much it wrote. Caller: holder of `sending`.
    pub fn write_with<E>(
        &self,
        most: usize,
        fill: impl FnOnce(*mut u8, usize) -> Result<usize, E>,
    ) -> Result<Result<usize, E>, Broken> {
        let (position, room) = self.next_to_write()?;
        let at = (position % RING_BYTES) as usize;
        let bytes = most.min(room as usize).min(RING_BYTES as usize - at);
        if bytes == 0 {
            return Ok(Ok(0));
        }
        // SAFETY: within the ring.
        let result = fill(unsafe { self.bytes.add(at) }, bytes);
        if let Ok(written) = result
            && written > 0
        {
            self.out.tail.store(
                position.wrapping_add(written.min(bytes) as u64),
                Ordering::Release,
            );
        }
        Ok(result)
    }

    /// Lets `drain` read in the ring itself: it gets an address and a length, and says how much it took. Caller: holder of `receiving`.
    pub fn read_with<E>(
        &self,
        most: usize,
        drain: impl FnOnce(*mut u8, usize) -> Result<usize, E>,
    ) -> Result<Result<usize, E>, Broken> {
        let tail = self.out.tail.load(Ordering::Acquire);
        let head = self.inn.head.load(Ordering::Relaxed);
        let (head, used) = self.used(tail, head)?;
        let at = (head % RING_BYTES) as usize;
        let bytes = most.min(used as usize).min(RING_BYTES as usize - at);
        if bytes == 0 {
            return Ok(Ok(0));
        }
        // SAFETY: within the ring.
        let result = drain(unsafe { self.bytes.add(at) }, bytes);
        if let Ok(taken) = result
            && taken > 0
        {
            self.inn.head.store(
                head.wrapping_add(taken.min(bytes) as u64),
                Ordering::Release,
            );
        }
        Ok(result)
    }

    /// Hands all that is unread to `send`, for a producer whose consumer takes no more. Caller: holder of `sending`.
    pub fn replay<E>(
        &self,
        mut send: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Result<(), E>, Broken> {
        let tail = self.out.tail.load(Ordering::Relaxed);
        let (head, used) = self.used(tail, self.inn.head.load(Ordering::Acquire))?;
        let at = (head % RING_BYTES) as usize;
        let first = (used as usize).min(RING_BYTES as usize - at);
        for (offset, bytes) in [(at, first), (0, used as usize - first)] {
            // SAFETY: within the ring. The bytes are ours: we wrote them, and the consumer has promised to leave them.
            let part = unsafe { std::slice::from_raw_parts(self.bytes.add(offset), bytes) };
            if let Err(error) = send(part) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    /// Position of the consumer, for an end that sends by TCP what was not read.
    pub fn consumer(&self) -> u64 {
        self.inn.head.load(Ordering::Acquire)
    }
}

/// The program's buffers from byte `skip` of them on, `most` bytes at most: address and length of each part, which is within its buffer.
#[inline]
pub fn parts(
    buffers: &[iovec],
    mut skip: usize,
    mut most: usize,
) -> impl Iterator<Item = (*mut u8, usize)> {
    buffers.iter().filter_map(move |buffer| {
        let from = skip.min(buffer.iov_len);
        let bytes = (buffer.iov_len - from).min(most);
        (skip, most) = (skip - from, most - bytes);
        (bytes > 0).then(|| (buffer.iov_base.cast::<u8>().wrapping_add(from), bytes))
    })
}

/// Copies into the program's buffers, from byte `skip` of them on; how much there was room for.
pub fn scatter(from: &[u8], buffers: &[iovec], skip: usize) -> usize {
    let mut copied = 0;
    for (into, bytes) in parts(buffers, skip, from.len()) {
        // SAFETY: the program vouches for its buffer; `parts` gives no more bytes than there are.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().add(copied), into, bytes) };
        copied += bytes;
    }
    copied
}

/// Copies `bytes` bytes by the C library's `memcpy`, in pieces where its `rep movsb` would be slow. It may use that from 2,048 bytes on; on some
/// processors (AMD's Zen 3 and later) it takes much longer where the target lies less than a line further behind a page's start than the source.
///
/// # Safety
/// As of `std::ptr::copy_nonoverlapping`.
#[inline]
unsafe fn copy_long(from: *const u8, into: *mut u8, bytes: usize) {
    const LINE_BYTES: usize = 64;
    const PAGE_BYTES: usize = 4096;
    let skew = into.addr().wrapping_sub(from.addr()) % PAGE_BYTES;
    let is_slow = (1..LINE_BYTES).contains(&skew);
    let piece_bytes = if is_slow { TUNING.copy_bytes } else { bytes };
    let mut at = 0;
    while at < bytes {
        let piece = (bytes - at).min(piece_bytes);
        // SAFETY: a part of both, as the caller promises.
        unsafe { std::ptr::copy_nonoverlapping(from.add(at), into.add(at), piece) };
        at += piece;
    }
}

fn next_multiple(position: u64) -> u64 {
    (position | (RING_BYTES - 1)).wrapping_add(1)
}

/// All words of both ends as at the beginning. Caller: the client, whose slot nobody else uses.
pub fn reset(slot: &Slot) {
    for End { out, inn, own } in &slot.ends {
        for word in [
            &out.tail,
            &out.switch_at,
            &out.back_at,
            &out.bells,
            &inn.head,
            &own.tcp_sent,
            &own.tcp_taken,
            &own.bells_taken,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        out.skip_from.store(u64::MAX, Ordering::Relaxed);
        for word in [
            &out.is_finished,
            &out.is_closed,
            &out.wants_room,
            &out.ends_by_reset,
            &inn.waiter,
            &inn.wants_tcp,
            &inn.is_frozen,
            &inn.sees_end,
            &own.sending,
            &own.receiving,
            &own.leader,
            &own.leads,
            &own.followers,
            &own.processes,
            &own.is_nonblocking,
            &own.is_deaf,
            &own.stash,
            &own.error,
            &own.has_ended,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        // The first news are told by a bell: whoever waits then waits in the kernel.
        inn.is_asleep.store(BELL, Ordering::Relaxed);
        own.no_delay.store(0, Ordering::Relaxed);
        own.cork.store(0, Ordering::Relaxed);
        own.low_water.store(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;

/// Copies between two places of the tests.
#[cfg(test)]
fn copy(from: &iovec, into: &iovec) -> usize {
    let bytes = from.iov_len.min(into.iov_len);
    // SAFETY: both have so many bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(from.iov_base.cast::<u8>(), into.iov_base.cast(), bytes)
    };
    bytes
}

/// A segment of the tests' own.
#[cfg(test)]
fn segment_for_tests() -> Memory {
    let layout = std::alloc::Layout::from_size_align(SEGMENT_BYTES, 4096).expect("a layout");
    // SAFETY: of a size above zero; it is never given back, and zeros are legal for all that is in it.
    unsafe { Memory::new(std::alloc::alloc_zeroed(layout)) }
}
