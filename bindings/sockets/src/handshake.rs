//! How the two ends of a connection find each other: a mailbox beside each listener, a hello before each SYN, a claim after each `accept`.
//!
//! `listen` makes a mailbox, an abstract UNIX socket named by the listener's address. A client that connects looks for it; where there is none, the
//! connection is plain TCP and nothing else happens. Otherwise the client checks the mailbox's owner, offers a slot of a segment and leaves a hello
//! (slot, generation, its own port, the segment's file) before it sends its SYN, so that `accept` cannot miss it. After `connect` it confirms the offer
//! with both addresses of the connection. The server claims the offer whose addresses are those of the connection that it has accepted.
//!
//! Until both have happened data goes by TCP; then each end says after how many bytes it goes on in its ring (`stream`). An offer that nobody claims
//! costs nothing and delays nothing: no byte waits for it, and none that the other end does not expect is ever sent.
//!
//! Invariants: a segment is given only to a process whose mailbox was opened by our user (`SO_PEERCRED`), and taken only from our user; every field
//! of a hello is bounded; a mailbox's backlog bounds the hellos that wait.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::address::{self, Address, Pair};
use crate::explain::{self, Count};
use crate::lock::{Locked, hold};
use crate::ring::{
    self, CLAIMED, CLIENT, CONFIRMED, GENERATION_SHIFT, OFFERED, SERVER, SLOTS, WITHDRAWN,
};
use crate::segment::{self, SegmentRef};
use crate::sys::{self, Errno};
use crate::table::{self, Kind, Use};

/// Hellos that may wait in a mailbox; the kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// Hellos that a process keeps for connections that it has not accepted yet.
const PENDING_MAX: usize = 4096;
/// Segments of clients that a listener keeps for their next connections.
const KNOWN_MAX: usize = 1024;
/// A hello whose connection was not accepted after this time is dropped.
const PENDING_NS: u64 = 60_000_000_000;
/// A listener that had no mailbox is not asked again for this time.
const ABSENT_NS: u64 = 50_000_000;
/// What is known of an address of the host is asked again after this time.
const LOCAL_NS: u64 = 1_000_000_000;
/// Entries of both memories.
const MEMORY: usize = 16;
/// Ports that a client tries before it leaves the choice to the kernel and the connection to TCP.
const PORTS_TRIED: usize = 3;
/// `IP_LOCAL_PORT_RANGE`, Linux 6.3: which port `connect` shall choose. Unlike `bind`, it leaves the port to other connections, too.
const IP_LOCAL_PORT_RANGE: i32 = 51;

const HELLO_MAGIC: u64 = 0x7473_756d_6865_6c31;
const HELLO_BYTES: usize = 40;

/// What a client leaves in a mailbox, besides the segment's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hello {
    generation: u64,
    sent_ns: u64,
    slot: usize,
    port: u16,
}

impl Hello {
    fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let words = [
            HELLO_MAGIC,
            self.generation,
            self.sent_ns,
            self.slot as u64,
            u64::from(self.port),
        ];
        let mut bytes = [0; HELLO_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HELLO_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at * 8 + byte]));
        let slot = usize::try_from(word(3)).ok().filter(|slot| *slot < SLOTS)?;
        let port = u16::try_from(word(4)).ok()?;
        (word(0) == HELLO_MAGIC).then_some(Self {
            generation: word(1) & (u64::MAX >> GENERATION_SHIFT),
            sent_ns: word(2),
            slot,
            port,
        })
    }
}

#[derive(Debug)]
struct Pending {
    hello: Hello,
    segment: SegmentRef,
}

impl Pending {
    fn state(&self) -> u64 {
        let slot = self.segment.get().memory().slot(self.hello.slot);
        slot.state.load(Ordering::Acquire)
    }

    fn is_open(&self, now_ns: u64) -> bool {
        let state = self.state();
        state >> GENERATION_SHIFT == self.hello.generation
            && state & OFFERED != 0
            && state & (CLAIMED | WITHDRAWN) == 0
            && now_ns.saturating_sub(self.hello.sent_ns) < PENDING_NS
    }
}

/// A listening socket with a mailbox. Never freed.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Listener {
    mailbox: AtomicI32,
    address: Locked<Address>,
    fds: Locked<Vec<i32>>,
    pending: Locked<Vec<Pending>>,
    /// Segments of clients that offer further connections in them, with the connections to our mailbox by which they know that we are there.
    known: Locked<Vec<(SegmentRef, i32)>>,
    /// Other processes may accept from it, too: after a fork.
    is_shared: AtomicU32,
    /// One word of memory that forked processes share.
    word: SharedWord,
}

/// A lock between processes that have forked from each other.
#[derive(Debug)]
struct SharedWord(Option<&'static AtomicU32>);

static LISTENERS: Locked<Vec<&'static Listener>> = Locked::new(Vec::new());
static ABSENT: Locked<[(Address, u64); MEMORY]> = Locked::new(
    [(
        Address {
            ip: [0; 16],
            port: 0,
        },
        0,
    ); MEMORY],
);
static LOCAL: Locked<[([u8; 16], bool, u64); MEMORY]> = Locked::new([([0; 16], false, 0); MEMORY]);

/// Listens by `real`, with a mailbox, which is there first: no client shall find the one without the other.
pub(crate) fn listen(fd: i32, real: impl Fn() -> i32) -> i32 {
    if !table::is_plain(fd) || explain::is_off() {
        return real();
    }
    // A socket that is not bound gets its port only now.
    if address::own(fd).is_ok_and(|own| own.port == 0) {
        let result = real();
        if result == 0 {
            add_listener(fd);
        }
        return result;
    }
    add_listener(fd);
    let result = real();
    if result != 0
        && let Kind::Listener(listener) = table::kind(fd)
    {
        let error = sys::errno();
        listener.remove_fd(fd);
        sys::set_errno(error);
    }
    result
}

/// Makes a mailbox, if this is a TCP socket.
fn add_listener(fd: i32) {
    let protocol: Result<i32, _> = sys::get_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL);
    if protocol != Ok(libc::IPPROTO_TCP) {
        return;
    }
    let Ok(address) = address::own(fd) else {
        return;
    };
    // Listeners may share a port (SO_REUSEPORT). Those of one process share its mailbox; a hello that comes to another process than its connection
    // is claimed by nobody.
    let known = LISTENERS.with(|all| {
        let same = |one: &&&'static Listener| one.address.with(|known| *known == address);
        all.iter().find(same).copied()
    });
    if let Some(known) = known {
        known.add_fd(fd);
        return;
    }
    let Ok(mailbox) = make_mailbox(&address) else {
        explain::listens(&address, "no mailbox could be made");
        return;
    };
    let listener: &'static Listener = Box::leak(Box::new(Listener {
        mailbox: AtomicI32::new(table::keep_own(mailbox)),
        address: Locked::new(address),
        fds: Locked::new(vec![fd]),
        pending: Locked::new(Vec::new()),
        known: Locked::new(Vec::new()),
        is_shared: AtomicU32::new(0),
        word: SharedWord(sys::shared_word()),
    }));
    LISTENERS.with(|all| all.push(listener));
    table::set_listener(fd, listener);
    explain::listens(&address, "");
}

fn make_mailbox(address: &Address) -> sys::Result<i32> {
    let fd = unix_socket()?;
    let (name, length) = address::mailbox(address);
    let made = sys::with_address(libc::SYS_bind, fd, &name[..length])
        .and_then(|_| sys::listen(fd, BACKLOG));
    if let Err(error) = made {
        let _ = sys::close(fd);
        return Err(error);
    }
    Ok(fd)
}

fn unix_socket() -> sys::Result<i32> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    sys::socket(libc::AF_UNIX, kind, 0)
}

impl Listener {
    pub(crate) fn add_fd(&'static self, fd: i32) {
        self.fds.with(|fds| fds.push(fd));
        table::set_listener(fd, self);
    }

    /// One of its descriptors goes; with the last one the mailbox.
    pub(crate) fn remove_fd(&self, fd: i32) {
        table::clear(fd);
        let is_last = self.fds.with(|fds| {
            fds.retain(|one| *one != fd);
            fds.is_empty()
        });
        if is_last {
            let mailbox = self.mailbox.swap(-1, Ordering::AcqRel);
            if mailbox >= 0 {
                table::close_own(mailbox);
            }
            drop(self.pending.with(std::mem::take));
            for (_, control) in self.known.with(std::mem::take) {
                table::close_own(control);
            }
            LISTENERS.with(|all| all.retain(|one| !std::ptr::eq(*one, self)));
        }
    }

    /// Takes the hello of the connection that `fd` is, if there is one, and claims it.
    pub(crate) fn claim(&self, fd: i32, client: Address, is_nonblocking: bool) {
        let mailbox = self.mailbox.load(Ordering::Acquire);
        if mailbox < 0 {
            return;
        }
        let now_ns = sys::now_ns();
        if let Some(pending) = self.offered(client.port) {
            return match take(fd, pending, self.pair(fd, client), is_nonblocking) {
                Some(using) => explain::claimed(&using, &client),
                None => explain::count(Count::Mismatched),
            };
        }
        let is_shared = self.is_shared.load(Ordering::Relaxed) != 0;
        // Who may have taken the hellos of others holds the lock until they are back.
        let word = self.word.0.filter(|_| is_shared);
        let _held = word.map(|word| hold(word));
        let mut stale = Vec::new();
        let mut found = self.pending.with(|pending| {
            self.collect(mailbox, pending, is_shared);
            stale.extend(extract(pending, |one| !one.is_open(now_ns)));
            let at = pending
                .iter()
                .rposition(|one| one.hello.port == client.port);
            at.map(|at| pending.remove(at))
        });
        drop(stale);
        if is_shared {
            let others = self.pending.with(std::mem::take);
            let address = self.address.with(|address| *address);
            for other in others {
                let _ = leave_hello(&address, None, &other.hello, &other.segment, false);
            }
        }
        if let Some(pending) = found.take() {
            match take(fd, pending, self.pair(fd, client), is_nonblocking) {
                Some(using) => explain::claimed(&using, &client),
                None => explain::count(Count::Mismatched),
            }
        } else {
            explain::plain_accept(&client);
        }
    }
}

impl Listener {
    /// Both addresses of a connection that was accepted.
    fn pair(&self, fd: i32, client: Address) -> Pair {
        let mut server = self.address.with(|address| *address);
        if server.is_any() {
            server = address::own(fd).unwrap_or(server);
        }
        Pair { client, server }
    }

    /// An offer in a segment that we have, from that port.
    fn offered(&self, port: u16) -> Option<Pending> {
        self.known.with(|known| {
            known.iter().find_map(|(segment, _)| {
                let memory = segment.get().memory();
                let offers = &memory.header().offers.0;
                let mut left = offers.load(Ordering::Acquire);
                while left != 0 {
                    let number = left.trailing_zeros() as usize;
                    left &= left - 1;
                    let slot = memory.slot(number);
                    if slot.port.load(Ordering::Relaxed) != u32::from(port) {
                        continue;
                    }
                    offers.fetch_and(!(1 << number), Ordering::AcqRel);
                    let state = slot.state.load(Ordering::Acquire);
                    let hello = Hello {
                        generation: state >> GENERATION_SHIFT,
                        sent_ns: 0,
                        slot: number,
                        port,
                    };
                    let segment = segment.clone();
                    return Some(Pending { hello, segment });
                }
                None
            })
        })
    }

    /// Moves what is in the mailbox into the list, and keeps the segments.
    fn collect(&self, mailbox: i32, pending: &mut Vec<Pending>, is_shared: bool) {
        while pending.len() < PENDING_MAX {
            let Ok(fd) = sys::accept(mailbox, libc::SOCK_NONBLOCK) else {
                return;
            };
            let Some(one) = read_hello(fd) else {
                let _ = sys::close(fd);
                continue;
            };
            let header = one.segment.get().memory().header();
            header
                .is_shared
                .store(u32::from(is_shared), Ordering::Relaxed);
            self.keep(&one.segment, fd);
            pending.push(one);
        }
    }

    fn keep(&self, segment: &SegmentRef, control: i32) {
        let gone = self.known.with(|known| {
            let is_gone = |one: &(SegmentRef, i32)| {
                let mut room = [0; 1];
                std::ptr::eq(one.0.get(), segment.get())
                    || sys::recv(one.1, &mut room, libc::MSG_DONTWAIT) != Err(sys::AGAIN)
            };
            let (gone, kept): (Vec<_>, Vec<_>) =
                std::mem::take(known).into_iter().partition(is_gone);
            *known = kept;
            if known.len() < KNOWN_MAX {
                known.push((segment.clone(), table::keep_own(control)));
            } else {
                let _ = sys::close(control);
            }
            gone
        });
        for (_, control) in gone {
            table::close_own(control);
        }
    }
}

fn extract(pending: &mut Vec<Pending>, mut is_out: impl FnMut(&Pending) -> bool) -> Vec<Pending> {
    let (out, kept) = std::mem::take(pending)
        .into_iter()
        .partition(|one| is_out(one));
    *pending = kept;
    out
}

/// What a client has left, if it is of our user.
fn read_hello(fd: i32) -> Option<Pending> {
    let is_ours = sys::peer_credentials(fd).is_ok_and(|peer| peer.uid == sys::geteuid());
    let mut room = [0; HELLO_BYTES];
    let (bytes, file) = sys::recv_with_fd(fd, &mut room).ok()?;
    let file = file?;
    let Some(hello) = Hello::parse(&room[..bytes]).filter(|_| is_ours) else {
        explain::count(Count::Refused);
        let _ = sys::close(file);
        return None;
    };
    let segment = segment::adopt(file).ok()?;
    Some(Pending { hello, segment })
}

fn take(fd: i32, pending: Pending, pair: Pair, is_nonblocking: bool) -> Option<Use> {
    let (slot_number, generation) = (pending.hello.slot, pending.hello.generation);
    let slot = pending.segment.get().memory().slot(slot_number);
    let using = table::add_stream(fd, pending.segment, slot_number, SERVER)?;
    using.pair.with(|known| *known = Some(pair));
    let own = &using.mine().own;
    own.is_nonblocking
        .store(u32::from(is_nonblocking), Ordering::Relaxed);
    loop {
        let state = slot.state.load(Ordering::Acquire);
        let is_open = state >> GENERATION_SHIFT == generation
            && state & (OFFERED | CLAIMED | WITHDRAWN) == OFFERED;
        // A client that has confirmed has named the connection; one that will is checked by `is_agreed`.
        let is_same = state & CONFIRMED == 0 || pair.is_stored_in(&slot.pair);
        if !is_open || !is_same {
            table::clear(fd);
            own.processes.fetch_sub(1, Ordering::AcqRel);
            table::abandon(&using);
            return None;
        }
        let claimed = slot.state.compare_exchange(
            state,
            state | CLAIMED,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if claimed.is_ok() {
            return Some(using);
        }
    }
}

/// Whether the addresses that the client has written down are those of this connection.
fn is_pair(using: &Use, fd: i32) -> bool {
    let known = using.pair.with(|known| *known).or_else(|| {
        // Of a stream that was inherited by `exec`.
        let (client, server) = (address::peer(fd).ok()?, address::own(fd).ok()?);
        Some(Pair { client, server })
    });
    known.is_some_and(|pair| pair.is_stored_in(&using.slot().pair))
}

/// Whether both ends have agreed to carry the connection. A server looks at the addresses when it first sees that the client has confirmed.
pub(crate) fn is_agreed(using: &Use, fd: i32) -> bool {
    let state = using.slot().state.load(Ordering::Acquire);
    if state & (CONFIRMED | CLAIMED | WITHDRAWN) != CONFIRMED | CLAIMED {
        return false;
    }
    if using.side() == SERVER && !is_pair(using, fd) {
        using.slot().state.fetch_or(WITHDRAWN, Ordering::AcqRel);
        return false;
    }
    true
}

/// Ends the offer of a connection that is not carried yet. False: it is carried.
pub(crate) fn withdraw(using: &Use) -> bool {
    let slot = using.slot();
    let mut state = slot.state.load(Ordering::Acquire);
    loop {
        if state & WITHDRAWN != 0 {
            return true;
        }
        if state & (CONFIRMED | CLAIMED) == CONFIRMED | CLAIMED {
            return false;
        }
        let after = state | WITHDRAWN;
        match slot
            .state
            .compare_exchange(state, after, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => return true,
            Err(now) => state = now,
        }
    }
}

/// Connects by `real`, with a hello to the listener's mailbox before it, if there is one. The result and `errno` are those of `real`.
pub(crate) fn connect(fd: i32, address: &[u8], real: impl Fn() -> i32) -> i32 {
    let target = Address::parse(address).filter(|_| table::is_plain(fd) && !explain::is_off());
    let Some(target) = target else {
        return real();
    };
    let protocol: Result<i32, _> = sys::get_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL);
    if protocol != Ok(libc::IPPROTO_TCP) {
        if protocol == Ok(libc::IPPROTO_UDP) {
            explain::count(Count::Datagram);
        }
        return real();
    }
    let now_ns = sys::now_ns();
    if is_known_absent(&target, now_ns) {
        explain::count(Count::NoMailbox);
        return real();
    }
    let bound = address::own(fd).map_or(0, |own| own.port);
    let mut tried = Tried::No;
    for _ in 0..PORTS_TRIED {
        let reached = segment::take_reached_slot(&target);
        let mailbox = match &reached {
            Some(_) => None,
            None => match find_mailbox(&target) {
                Some(mailbox) => Some(mailbox),
                None => break,
            },
        };
        let taken = match reached {
            Some(taken) => Ok(taken),
            None => segment::take_slot(target),
        };
        tried = match (taken, choose_port(fd, bound, target.is_v4())) {
            (Ok(taken), Some(port)) => try_port(fd, &target, port, taken, mailbox, &real),
            (Ok((segment, slot)), None) => {
                segment::free(segment.get(), slot);
                close_mailbox(mailbox);
                break;
            }
            (Err(_), _) => {
                close_mailbox(mailbox);
                break;
            }
        };
        let Tried::Result(result, error) = tried else {
            break;
        };
        let is_taken = result != 0 && error == Errno(libc::EADDRNOTAVAIL) && bound == 0;
        if !is_taken {
            break;
        }
    }
    match tried {
        Tried::Result(result, error) => {
            let is_on_its_way = result == 0 || is_in_progress(error);
            if !is_on_its_way && bound == 0 {
                set_port_range(fd, 0);
                if error == Errno(libc::EADDRNOTAVAIL) {
                    explain::count(Count::NoPort);
                    return real();
                }
            }
            if result != 0 {
                sys::set_errno(error);
            }
            result
        }
        Tried::No => {
            let result = real();
            if result == 0 {
                remember_absent(&target, now_ns);
            }
            let why = "the listener has no mailbox of this user";
            explain::plain_connect(&target, Count::NoMailbox, why, result);
            result
        }
    }
}

/// How an attempt to connect has ended.
enum Tried {
    /// By what `real` returned, and `errno`.
    Result(i32, Errno),
    /// There was none: no mailbox, no memory, no port.
    No,
}

fn is_in_progress(error: Errno) -> bool {
    [libc::EINPROGRESS, libc::EINTR].contains(&error.0)
}

fn close_mailbox(mailbox: Option<(Address, i32)>) {
    if let Some((_, unused)) = mailbox {
        let _ = sys::close(unused);
    }
}

/// One attempt, from that port: an offer, the connection, and a word that it is the one.
fn try_port(
    fd: i32,
    target: &Address,
    port: u16,
    taken: (SegmentRef, usize),
    mailbox: Option<(Address, i32)>,
    real: &impl Fn() -> i32,
) -> Tried {
    let segment = taken.0.clone();
    let Some((using, hello)) = offer(fd, taken, port) else {
        close_mailbox(mailbox);
        return Tried::No;
    };
    let is_left = match mailbox {
        Some((address, connected)) => {
            leave_hello(&address, Some(connected), &hello, &segment, true).is_ok()
        }
        None => {
            let offers = &segment.get().memory().header().offers.0;
            offers.fetch_or(1 << hello.slot, Ordering::AcqRel);
            true
        }
    };
    let result = real();
    let error = sys::errno();
    let is_on_its_way = result == 0 || is_in_progress(error);
    // Over loopback a socket that waits is connected when the call returns.
    let is_nonblocking = result != 0 && error == Errno(libc::EINPROGRESS);
    let own = &using.mine().own;
    own.is_nonblocking
        .store(u32::from(is_nonblocking), Ordering::Relaxed);
    if is_on_its_way && is_left && confirm(&using, fd, target) {
        explain::offered(&using, target);
    } else {
        retract(&using, fd);
        if is_on_its_way {
            let why = "the other end was gone or had shut down before the offer was confirmed";
            explain::plain_connect(target, Count::Retracted, why, result);
        }
    }
    Tried::Result(result, error)
}

fn is_known_absent(target: &Address, now_ns: u64) -> bool {
    ABSENT.with(|known| {
        known
            .iter()
            .any(|(address, at)| address == target && now_ns.saturating_sub(*at) < ABSENT_NS)
    })
}

fn remember_absent(target: &Address, now_ns: u64) {
    ABSENT.with(|known| known[now_ns as usize / 64 % MEMORY] = (*target, now_ns));
}

/// The address whose mailbox exists and belongs to our user, and a connection to that.
fn find_mailbox(target: &Address) -> Option<(Address, i32)> {
    let fd = unix_socket().ok()?;
    let reaches = |address: &Address| {
        let (name, length) = address::mailbox(address);
        sys::with_address(libc::SYS_connect, fd, &name[..length]).is_ok()
    };
    let names = std::iter::once(*target).chain(target.wildcards());
    let is_host = target.is_any() || target.is_loopback();
    let found = names
        .into_iter()
        .find(|name| reaches(name) && (name == target || is_host || is_local(target)));
    let found =
        found.filter(|_| sys::peer_credentials(fd).is_ok_and(|owner| owner.uid == sys::geteuid()));
    if found.is_none() {
        let _ = sys::close(fd);
    }
    found.map(|name| (name, fd))
}

/// Whether an address is one of this host: the kernel would connect to it from itself.
fn is_local(target: &Address) -> bool {
    let now_ns = sys::now_ns();
    let known = LOCAL.with(|known| {
        known
            .iter()
            .find(|(ip, _, at)| *ip == target.ip && now_ns.saturating_sub(*at) < LOCAL_NS)
            .map(|known| known.1)
    });
    if let Some(known) = known {
        return known;
    }
    let is_local = asks_route(target).unwrap_or(false);
    LOCAL.with(|known| known[now_ns as usize / 64 % MEMORY] = (target.ip, is_local, now_ns));
    is_local
}

fn asks_route(target: &Address) -> sys::Result<bool> {
    let family = if target.is_v4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let fd = sys::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0)?;
    let mut bytes = [0; 28];
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&target.port.to_be_bytes());
    let length = if target.is_v4() {
        bytes[4..8].copy_from_slice(&target.ip[12..]);
        16
    } else {
        bytes[8..24].copy_from_slice(&target.ip);
        28
    };
    let own =
        sys::with_address(libc::SYS_connect, fd, &bytes[..length]).and_then(|_| address::own(fd));
    let _ = sys::close(fd);
    own.map(|own| own.ip == target.ip)
}

/// The port that the client will have: its own choice, if the kernel lets it have one without taking it from others.
fn choose_port(fd: i32, bound: u16, is_v4: bool) -> Option<u16> {
    if bound != 0 {
        return Some(bound);
    }
    let (low, high) = crate::start::port_range();
    let span = u64::from(high.saturating_sub(low)) + 1;
    let port = low + (sys::random() % span) as u16;
    if set_port_range(fd, u32::from(port) << 16 | u32::from(port)) {
        return Some(port);
    }
    // Older kernels: any free port.
    let family = if is_v4 { libc::AF_INET } else { libc::AF_INET6 };
    let domain: Result<i32, Errno> = sys::get_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN);
    let family = domain.unwrap_or(family);
    let mut bytes = [0; 28];
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    let length = if family == libc::AF_INET { 16 } else { 28 };
    sys::with_address(libc::SYS_bind, fd, &bytes[..length]).ok()?;
    address::own(fd).ok().map(|own| own.port)
}

fn set_port_range(fd: i32, range: u32) -> bool {
    sys::set_option(fd, libc::SOL_IP, IP_LOCAL_PORT_RANGE, &range).is_ok()
}

/// Makes a slot ready and the descriptor a stream that may be carried.
fn offer(fd: i32, taken: (SegmentRef, usize), port: u16) -> Option<(Use, Hello)> {
    let (segment, slot_number) = taken;
    let slot = segment.get().memory().slot(slot_number);
    let generation = (slot.state.load(Ordering::Acquire) >> GENERATION_SHIFT).wrapping_add(1);
    ring::reset(slot);
    slot.port.store(u32::from(port), Ordering::Relaxed);
    slot.state
        .store(generation << GENERATION_SHIFT | OFFERED, Ordering::Release);
    let using = table::add_stream(fd, segment, slot_number, CLIENT)?;
    let hello = Hello {
        generation,
        sent_ns: sys::now_ns(),
        slot: slot_number,
        port,
    };
    Some((using, hello))
}

/// Puts a hello into the mailbox at `address`, over a connection that `find_mailbox` has made or a new one.
fn leave_hello(
    address: &Address,
    connected: Option<i32>,
    hello: &Hello,
    segment: &SegmentRef,
    is_own: bool,
) -> sys::Result<()> {
    let fd = match connected {
        Some(fd) => fd,
        None => {
            let fd = unix_socket()?;
            let (name, length) = address::mailbox(address);
            let connected = sys::with_address(libc::SYS_connect, fd, &name[..length]);
            let owner = connected.and_then(|_| sys::peer_credentials(fd));
            if !owner.is_ok_and(|owner| owner.uid == sys::geteuid()) {
                let _ = sys::close(fd);
                return Err(Errno(libc::EPERM));
            }
            fd
        }
    };
    let file = segment.get().fd.load(Ordering::Relaxed) as i32;
    let sent = sys::send_with_fd(fd, &hello.to_bytes(), file);
    if is_own && sent.is_ok() {
        segment.get().keep_control(fd);
    } else {
        let _ = sys::close(fd);
    }
    sent.map(|_| ())
}

/// Names the connection, now that the kernel has given it addresses.
fn confirm(using: &Use, fd: i32, target: &Address) -> bool {
    let Ok(client) = address::own(fd) else {
        return false;
    };
    let mut server = *target;
    if server.is_any() {
        // The kernel takes that for the loopback address, on both ends.
        server.ip = client.ip;
    }
    Pair { client, server }.store(&using.slot().pair);
    let slot = using.slot();
    let before = slot.state.fetch_or(CONFIRMED, Ordering::AcqRel);
    before & WITHDRAWN == 0
}

/// The connection is plain TCP after all.
fn retract(using: &Use, fd: i32) {
    using.slot().state.fetch_or(WITHDRAWN, Ordering::AcqRel);
    let offers = &using.memory().header().offers.0;
    offers.fetch_and(!(1 << using.number()), Ordering::AcqRel);
    using.mine().own.processes.fetch_sub(1, Ordering::AcqRel);
    table::clear(fd);
    table::abandon(using);
}

/// After a fork, in both processes: hellos may be found by either.
pub(crate) fn share_listeners() {
    LISTENERS.with(|all| {
        for listener in all.iter() {
            listener.is_shared.store(1, Ordering::Relaxed);
        }
    });
}

pub(crate) fn own_moved(from: i32, to: i32) {
    LISTENERS.with(|all| {
        for listener in all.iter() {
            listener.known.with(|known| {
                for (_, control) in known.iter_mut().filter(|one| one.1 == from) {
                    *control = to;
                }
            });
            let _ =
                listener
                    .mailbox
                    .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hello says what was said, and any other bytes are none.
    #[test]
    fn hellos_are_bounded() {
        let hello = Hello {
            generation: 7,
            sent_ns: 9,
            slot: SLOTS - 1,
            port: 65535,
        };
        let bytes = hello.to_bytes();
        assert_eq!(Hello::parse(&bytes), Some(hello));
        for length in 0..HELLO_BYTES {
            assert_eq!(Hello::parse(&bytes[..length]), None);
        }
        for (at, value) in [(0, 0xff), (24, SLOTS as u8), (26, 1), (34, 1)] {
            let mut wrong = bytes;
            wrong[at] = value;
            assert_eq!(Hello::parse(&wrong), None, "byte {at}");
        }
    }
}
