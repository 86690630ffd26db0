//! Which file descriptors are ours: one word for each, read by every function that this library replaces.
//!
//! A descriptor is a stream that is carried or may be, a listener with a mailbox, an epoll instance that watches streams, one of our own (which the
//! program shall not close), or none of our business: a zero, and the C library's function is called.
//!
//! A thread that uses a stream holds a `Use`; the last one to let go of a stream without descriptors gives its slot back. `Socket`, `Listener` and
//! `Epoll` are never freed, only used again, so that a word that was read before a `close` in another thread leads to something.
#![allow(unsafe_code)] // The words lead to structures that are never freed.

use std::ops::Deref;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::address::Pair;
use crate::epoll::{Epoll, Interest};
use crate::idle::Spin;
use crate::listener::Listener;
use crate::lock::{Locked, Noted, hold_noted, thread, try_hold_noted};
use crate::ring::{CANCELLED, CLAIMED, CLIENT, End, Memory, Ring, Slot};
use crate::segment::{self, Segment, SegmentRef};
use crate::sys;

/// Descriptors from here on are never ours. Eight bytes of address space each; memory only where used.
const LIMIT: usize = 1 << 20;

const STREAM: usize = 1;
const LISTENER: usize = 2;
const EPOLL: usize = 3;
const OWN: usize = 4;
/// A TCP socket that has not connected and is in epoll instances, and one that is the kernel's for good (`early`). Of both the word is the tag alone.
const EARLY: usize = 5;
const SHARED: usize = 6;
/// What tells them apart, in the low bits of a pointer to something aligned to a cache line.
const TAGS: usize = 7;

static TABLE: AtomicPtr<AtomicUsize> = AtomicPtr::new(std::ptr::null_mut());
/// No descriptor above it is ours.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

/// A stream in this process.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Socket {
    /// Calls that use it now, and `CLOSING`.
    users: AtomicU32,
    /// This process was the last one of its end: the slot is given back when the last call has gone.
    is_leaving: AtomicU32,
    /// Calls of threads that a forked child does not have are counted among its users.
    has_lost_users: AtomicU32,
    memory: AtomicPtr<u8>,
    /// The threads of this process that hold the locks `Own::sending` and `Own::receiving`.
    sender: AtomicU32,
    receiver: AtomicU32,
    slot: AtomicU32,
    side: AtomicU32,
    /// Known to be carried: both ends have agreed.
    pub(crate) is_carried: AtomicU32,
    /// The kernel's connection is the program's alone since then, and calls that wait go on with that.
    pub(crate) is_let_go: AtomicU32,
    /// The kernel has reported something that has not been looked at; or may have data of the time before the rings.
    pub(crate) has_kernel_news: AtomicU32,
    /// Calls that found nothing, and calls that sent, since the kernel was last asked.
    pub(crate) empty_calls: AtomicU32,
    pub(crate) sends: AtomicU32,
    /// Threads that sleep in `poll` for it, and whether they ever were several.
    pub(crate) pollers: AtomicU32,
    /// Of these, those that sleep in the kernel or are about to.
    pub(crate) in_poll: AtomicU32,
    pub(crate) has_pollers: AtomicU32,
    pub(crate) spin: Spin,
    /// `TCP_INQ`.
    pub(crate) wants_unread: AtomicU32,
    /// Bytes by ring, sent and received, for `--explain`.
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    /// How often the other end was told by a bell or woken, and calls have slept: here, so that threads do not wait for each other's counters.
    pub(crate) bells: AtomicU32,
    pub(crate) wakes: AtomicU32,
    pub(crate) sleeps: AtomicU32,
    /// As a server: both addresses of the connection.
    pub(crate) pair: Locked<Option<Pair>>,
    /// Through a gateway: our end of the socket pair by which it and we wake each other; -1: the other end is of this host.
    gateway: AtomicI32,
    /// The gateway has ended: nobody is woken by it any more, and its descriptor would be ready for ever.
    pub(crate) has_lost_gateway: AtomicU32,
    /// When that was known, by `sys::now_ns`.
    pub(crate) began_ns: AtomicU64,
    segment: AtomicPtr<Segment>,
    held: Locked<Option<SegmentRef>>,
    pub(crate) fds: Locked<Vec<i32>>,
    pub(crate) interests: Locked<Vec<&'static Interest>>,
}

const CLOSING: u32 = 1 << 31;

/// Structures to be used again.
static FREE: Locked<Vec<&'static Socket>> = Locked::new(Vec::new());
/// Those in use.
static LIVE: Locked<Vec<&'static Socket>> = Locked::new(Vec::new());

/// Streams through a gateway: each has a descriptor of ours beside the program's.
static FAR: AtomicU32 = AtomicU32::new(0);
/// They have this part of those that the process may have.
const FAR_SHARE: u64 = 4;

/// Whether one more stream may go through a gateway.
pub(crate) fn may_be_far() -> bool {
    u64::from(FAR.load(Ordering::Relaxed)) < sys::open_files_limit() / FAR_SHARE
}

impl Socket {
    pub(crate) fn memory(&self) -> Memory {
        // SAFETY: set while the socket holds its segment, which a `Use` keeps it doing.
        unsafe { Memory::new(self.memory.load(Ordering::Relaxed)) }
    }

    pub(crate) fn number(&self) -> usize {
        self.slot.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn side(&self) -> usize {
        (self.side.load(Ordering::Relaxed) % 2) as usize
    }

    pub(crate) fn slot(&self) -> &'static Slot {
        self.memory().slot(self.number())
    }

    pub(crate) fn mine(&self) -> &'static End {
        &self.slot().ends[self.side()]
    }

    pub(crate) fn theirs(&self) -> &'static End {
        &self.slot().ends[1 - self.side()]
    }

    pub(crate) fn reader(&self) -> Ring {
        self.memory().reader(self.number(), self.side())
    }

    pub(crate) fn writer(&self) -> Ring {
        self.memory().writer(self.number(), self.side())
    }

    pub(crate) fn segment(&self) -> Option<SegmentRef> {
        self.held.with(|held| held.clone())
    }

    /// Where the gateway listens, if the other end is of another host.
    #[inline]
    pub(crate) fn gateway(&self) -> Option<i32> {
        let fd = self.gateway.load(Ordering::Relaxed);
        (fd >= 0).then_some(fd)
    }

    /// The same, where it has to be waited for: unless it has ended.
    pub(crate) fn living_gateway(&self) -> Option<i32> {
        self.gateway()
            .filter(|_| self.has_lost_gateway.load(Ordering::Relaxed) == 0)
    }

    /// The other end is of another host: `fd`, which is the socket's from now on, leads to the gateway.
    pub(crate) fn set_gateway(&self, fd: i32) {
        self.has_lost_gateway.store(0, Ordering::Relaxed);
        self.began_ns.store(crate::sys::now_ns(), Ordering::Relaxed);
        let old = self.gateway.swap(keep_own(fd), Ordering::AcqRel);
        if old >= 0 {
            close_own(old);
        } else {
            FAR.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn hold_sending(&self) -> Noted<'_> {
        hold_noted(&self.mine().own.sending, &self.sender)
    }

    /// For who reads the ring.
    #[inline]
    pub(crate) fn hold_receiving(&self) -> Noted<'_> {
        hold_noted(&self.mine().own.receiving, &self.receiver)
    }

    pub(crate) fn try_hold_receiving(&self) -> Option<Noted<'_>> {
        try_hold_noted(&self.mine().own.receiving, &self.receiver)
    }

    /// Whether the calling thread has it.
    pub(crate) fn holds_receiving(&self) -> bool {
        self.receiver.load(Ordering::Relaxed) == thread()
    }

    /// A descriptor of it, if any is left.
    pub(crate) fn any_fd(&self) -> Option<i32> {
        self.fds.with(|fds| fds.first().copied())
    }

    /// One process less has it open. True: it was the last, and writes its last words before it abandons the socket.
    pub(crate) fn leave(&self) -> bool {
        let is_last = self.mine().own.leave();
        if is_last {
            self.is_leaving.store(1, Ordering::Release);
        }
        is_last
    }

    fn give_slot_back(&self) {
        if self.is_leaving.swap(0, Ordering::AcqRel) != 0 {
            self.mine().own.left();
        }
    }

    fn release(&'static self) {
        let (slot, side) = (self.number(), self.side());
        let Some(held) = self.held.with(Option::take) else {
            return;
        };
        crate::explain::gather(self);
        let segment = held.get();
        // The slot may be another socket's of this process by now.
        let _ = segment.sockets[side][slot].compare_exchange(
            std::ptr::from_ref(self).cast_mut(),
            std::ptr::null_mut(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        self.give_slot_back();
        let gateway = self.gateway.swap(-1, Ordering::AcqRel);
        if gateway >= 0 {
            close_own(gateway);
            FAR.fetch_sub(1, Ordering::Relaxed);
        }
        if side == CLIENT {
            let words = self.slot();
            let state = words.state.load(Ordering::Acquire);
            let bit = 1 << slot;
            if self
                .memory()
                .header()
                .offers
                .0
                .fetch_and(!bit, Ordering::AcqRel)
                & bit
                != 0
            {
                segment.was_missed();
            }
            if state & (CLAIMED | CANCELLED) == 0 {
                // A server may be claiming it just now; then it finds a client that has closed.
                let _ = words.state.compare_exchange(
                    state,
                    state | CANCELLED,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
            }
            segment::free(segment, slot);
        }
        self.segment.store(std::ptr::null_mut(), Ordering::Release);
        drop(held);
        LIVE.with(|live| live.retain(|one| !std::ptr::eq(*one, self)));
        FREE.with(|free| free.push(self));
    }
}

/// A stream that stays while this lives.
#[derive(Debug)]
pub(crate) struct Use(&'static Socket);

impl Use {
    pub(crate) fn socket(&self) -> &'static Socket {
        self.0
    }
}

impl Deref for Use {
    type Target = Socket;
    fn deref(&self) -> &Socket {
        self.0
    }
}

impl Drop for Use {
    #[inline]
    fn drop(&mut self) {
        if self.0.users.fetch_sub(1, Ordering::AcqRel) == CLOSING | 1 {
            self.0.release();
        }
    }
}

/// What a descriptor is.
pub(crate) enum Kind {
    Stream(Use),
    Listener(&'static Listener),
    Epoll(&'static Epoll),
    Own,
    None,
}

#[inline(always)]
fn word(fd: i32) -> Option<&'static AtomicUsize> {
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() || fd as u32 as usize >= LIMIT {
        return None;
    }
    // SAFETY: the table has `LIMIT` words and stays.
    Some(unsafe { &*table.add(fd as usize) })
}

/// Standard input, output and error: the C library and its children read and write them past us, so streams there stay with TCP.
pub(crate) fn is_standard(fd: i32) -> bool {
    (0..=2).contains(&fd)
}

/// Whether a stream may be made of it: it is none of our business so far, or `early`.
pub(crate) fn may_be_stream(fd: i32) -> bool {
    is_plain(fd) || is_early(fd)
}

/// Whether a listener may be made of it: the same, or a socket with copies.
pub(crate) fn may_be_listener(fd: i32) -> bool {
    word(fd).is_none_or(|word| [0, EARLY, SHARED].contains(&word.load(Ordering::Relaxed)))
}

/// Whether it has not connected and is in epoll instances.
#[inline]
pub(crate) fn is_early(fd: i32) -> bool {
    word(fd).is_some_and(|word| word.load(Ordering::Relaxed) == EARLY)
}

/// Whether the descriptor is none of our business.
#[inline(always)]
pub(crate) fn is_plain(fd: i32) -> bool {
    word(fd).is_none_or(|word| word.load(Ordering::Relaxed) == 0)
}

pub(crate) fn kind(fd: i32) -> Kind {
    let Some(word) = word(fd) else {
        return Kind::None;
    };
    loop {
        let value = word.load(Ordering::Acquire);
        let pointer = value & !TAGS;
        // SAFETY: words with these tags are made of references to structures that are never freed.
        unsafe {
            match value & TAGS {
                STREAM => {
                    let socket = &*(pointer as *const Socket);
                    socket.users.fetch_add(1, Ordering::AcqRel);
                    let using = Use(socket);
                    if word.load(Ordering::Acquire) == value {
                        return Kind::Stream(using);
                    }
                }
                LISTENER => return Kind::Listener(&*(pointer as *const Listener)),
                EPOLL => return Kind::Epoll(&*(pointer as *const Epoll)),
                OWN => return Kind::Own,
                _ => return Kind::None,
            }
        }
    }
}

/// The stream that the descriptor is.
#[inline]
pub(crate) fn stream(fd: i32) -> Option<Use> {
    if is_plain(fd) {
        return None;
    }
    match kind(fd) {
        Kind::Stream(using) => Some(using),
        _ => None,
    }
}

/// The socket of a slot, if this process has it.
pub(crate) fn by_slot(segment: &Segment, side: usize, slot: usize) -> Option<Use> {
    let pointer = segment.sockets[side][slot].load(Ordering::Acquire);
    if pointer.is_null() {
        return None;
    }
    // SAFETY: sockets are never freed.
    let socket: &'static Socket = unsafe { &*pointer };
    socket.users.fetch_add(1, Ordering::AcqRel);
    let using = Use(socket);
    (segment.sockets[side][slot].load(Ordering::Acquire) == pointer).then_some(using)
}

/// Makes the table. Called before anything is put into it, in any thread.
fn ready() -> bool {
    if !TABLE.load(Ordering::Acquire).is_null() {
        return true;
    }
    let bytes = LIMIT * size_of::<AtomicUsize>();
    let Ok(table) = sys::map_private(bytes) else {
        return false;
    };
    let table = table.cast::<AtomicUsize>();
    let old = TABLE.compare_exchange(
        std::ptr::null_mut(),
        table,
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    if old.is_err() {
        // SAFETY: another thread's table is in use, nobody knows this one.
        unsafe { sys::unmap(table.cast(), bytes) };
    }
    true
}

fn set(fd: i32, value: usize) -> bool {
    if !ready() {
        return false;
    }
    let Some(word) = word(fd) else { return false };
    HIGHEST.fetch_max(fd, Ordering::Relaxed);
    word.store(value, Ordering::Release);
    true
}

/// The descriptor is none of our business any more; what it was stays as it is.
pub(crate) fn clear(fd: i32) {
    if let Some(word) = word(fd) {
        word.store(0, Ordering::Release);
    }
}

/// False: it is something else by now, or cannot be noted.
pub(crate) fn set_early(fd: i32) -> bool {
    swap_tag(fd, 0, EARLY) || is_early(fd)
}

pub(crate) fn set_shared(fd: i32) {
    let _ = swap_tag(fd, 0, SHARED) || swap_tag(fd, EARLY, SHARED);
}

/// Of a socket that is `early` or shared nothing is known any more.
pub(crate) fn forget_tags(fd: i32) {
    let _ = swap_tag(fd, EARLY, 0) || swap_tag(fd, SHARED, 0);
}

fn swap_tag(fd: i32, from: usize, to: usize) -> bool {
    if !ready() {
        return false;
    }
    let Some(word) = word(fd) else { return false };
    HIGHEST.fetch_max(fd, Ordering::Relaxed);
    word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

pub(crate) fn set_listener(fd: i32, listener: &'static Listener) -> bool {
    set(fd, std::ptr::from_ref(listener) as usize | LISTENER)
}

pub(crate) fn set_epoll(fd: i32, epoll: &'static Epoll) -> bool {
    set(fd, std::ptr::from_ref(epoll) as usize | EPOLL)
}

pub(crate) fn set_stream(fd: i32, socket: &'static Socket) -> bool {
    set(fd, std::ptr::from_ref(socket) as usize | STREAM)
}

/// Moves a descriptor of ours out of the program's way and protects it.
pub(crate) fn keep_own(fd: i32) -> i32 {
    let places = [60_000, 16_000, 3_900, 960, 200, 3];
    let moved = places
        .into_iter()
        .find_map(|place| sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, place).ok());
    let kept = match moved {
        Some(moved) => {
            let _ = sys::close(fd);
            moved as i32
        }
        None => fd,
    };
    set(kept, OWN);
    kept
}

/// The program puts something else at the number of a descriptor of ours.
pub(crate) fn move_own(fd: i32) {
    let Ok(moved) = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, fd as usize + 1) else {
        return;
    };
    clear(fd);
    set(moved as i32, OWN);
    crate::listener::own_moved(fd, moved as i32);
    crate::segment::own_moved(fd, moved as i32);
    crate::epoll::own_moved(fd, moved as i32);
    crate::doorbell::own_moved(fd, moved as i32);
    crate::explain::own_moved(fd, moved as i32);
    crate::start::own_moved(fd, moved as i32);
    for_each_stream(|socket| {
        let _ =
            socket
                .gateway
                .compare_exchange(fd, moved as i32, Ordering::AcqRel, Ordering::Relaxed);
    });
}

pub(crate) fn close_own(fd: i32) {
    clear(fd);
    let _ = sys::close(fd);
}

/// Our descriptors in a range, lowest first.
pub(crate) fn in_range(first: u32, last: u32) -> impl Iterator<Item = i32> {
    let highest = HIGHEST.load(Ordering::Relaxed);
    let last = (last.min(LIMIT as u32 - 1) as i32).min(highest);
    (first.min(LIMIT as u32) as i32..=last).filter(|fd| !is_plain(*fd))
}

/// A new stream, for `fd`.
pub(crate) fn add_stream(fd: i32, segment: SegmentRef, slot: usize, side: usize) -> Option<Use> {
    let socket = FREE.with(Vec::pop).unwrap_or_else(|| {
        Box::leak(Box::new(Socket {
            gateway: AtomicI32::new(-1),
            ..Socket::default()
        }))
    });
    let found = segment.get();
    // Late users of the socket's former life may still count up and down.
    socket.users.fetch_and(!CLOSING, Ordering::AcqRel);
    socket.users.fetch_add(1, Ordering::AcqRel);
    socket
        .memory
        .store(found.memory().address(), Ordering::Relaxed);
    socket.has_lost_users.store(0, Ordering::Relaxed);
    socket.slot.store(slot as u32, Ordering::Relaxed);
    socket.side.store(side as u32, Ordering::Relaxed);
    socket.is_carried.store(0, Ordering::Relaxed);
    socket.is_let_go.store(0, Ordering::Relaxed);
    socket.wants_unread.store(0, Ordering::Relaxed);
    socket.has_kernel_news.store(1, Ordering::Relaxed);
    socket.has_pollers.store(0, Ordering::Relaxed);
    socket.sent.store(0, Ordering::Relaxed);
    socket.received.store(0, Ordering::Relaxed);
    socket.spin.reset();
    socket.pair.with(|pair| *pair = None);
    socket
        .segment
        .store(std::ptr::from_ref(found).cast_mut(), Ordering::Release);
    found.sockets[side][slot].store(std::ptr::from_ref(socket).cast_mut(), Ordering::Release);
    socket.held.with(|held| *held = Some(segment));
    socket.fds.with(|fds| {
        fds.clear();
        fds.push(fd);
    });
    socket.mine().own.processes.fetch_add(1, Ordering::AcqRel);
    LIVE.with(|live| live.push(socket));
    let using = Use(socket);
    if !set_stream(fd, socket) {
        abandon(&using);
        return None;
    }
    Some(using)
}

/// A stream without descriptors goes when its last user has gone.
pub(crate) fn abandon(using: &Use) {
    if using.has_lost_users.load(Ordering::Relaxed) != 0 {
        using.give_slot_back();
    }
    using.0.users.fetch_or(CLOSING, Ordering::AcqRel);
}

/// Before a fork.
pub(crate) fn freeze() {
    LIVE.freeze();
    LIVE.with_frozen(|live| {
        for socket in live {
            socket.fds.freeze();
            socket.interests.freeze();
        }
    });
    FREE.freeze();
}

/// After it.
pub(crate) fn thaw() {
    FREE.thaw();
    LIVE.with_frozen(|live| {
        for socket in live {
            socket.interests.thaw();
            socket.fds.thaw();
        }
    });
    LIVE.thaw();
}

/// Streams that a child will have, as it has their descriptors. Caller: has frozen them.
pub(crate) fn for_each_frozen(mut act: impl FnMut(&'static Socket)) {
    LIVE.with_frozen(|live| {
        let is_open = |socket: &&&'static Socket| socket.fds.with_frozen(|fds| !fds.is_empty());
        live.iter().filter(is_open).copied().for_each(&mut act);
    });
}

/// In a forked child: its only thread has no more than so many uses of each stream.
pub(crate) fn after_fork(own_uses: u32) {
    LIVE.with(|live| {
        for socket in live.iter() {
            let has_lost = socket.users.load(Ordering::Relaxed) & !CLOSING > own_uses;
            socket
                .has_lost_users
                .store(u32::from(has_lost), Ordering::Relaxed);
            socket.pollers.store(0, Ordering::Relaxed);
            socket.in_poll.store(0, Ordering::Relaxed);
        }
    });
}

/// Whether this process has any stream.
pub(crate) fn has_any() -> bool {
    LIVE.with(|live| !live.is_empty())
}

/// All streams of this process.
pub(crate) fn for_each_stream(mut act: impl FnMut(&'static Socket)) {
    let all = LIVE.with(|live| live.clone());
    for socket in all {
        act(socket);
    }
}

/// The same, but for those whose descriptors are closed while other threads are still in calls of theirs.
pub(crate) fn for_each_open_stream(mut act: impl FnMut(Use, i32)) {
    for_each_stream(|socket| {
        let using = using(socket);
        if let Some(fd) = using.any_fd() {
            act(using, fd);
        }
    });
}

/// The same, while the list is held and without a copy of it.
pub(crate) fn for_each_open(act: impl Fn(&Use)) {
    LIVE.with(|live| {
        for socket in live.iter() {
            let using = using(socket);
            if using.any_fd().is_some() {
                act(&using);
            }
            // The last use of one that is being closed would look for the list.
            std::mem::forget(using);
        }
    });
}

/// A use of a stream that was listed.
pub(crate) fn using(socket: &'static Socket) -> Use {
    socket.users.fetch_add(1, Ordering::AcqRel);
    Use(socket)
}
