//! How the two ends of a connection find each other: a mailbox beside each listener, a hello before each SYN, a claim after each `accept`.
//!
//! `listen` makes a mailbox, an abstract UNIX socket named by the listener's address. A client that connects looks for it; where there is none, the
//! connection is plain TCP and nothing else happens. Otherwise the client checks the mailbox's owner, offers a slot of a segment and leaves a hello
//! (slot, generation, its own port, the segment's file) before it sends its SYN, so that `accept` cannot miss it. After `connect` it confirms the offer
//! with both addresses of the connection. The server claims an offer by the port of the connection that it has accepted, and names that connection by
//! both addresses, too. Each end compares what both have named, and cancels if it is not the same.
//!
//! Until both have happened data goes by TCP; then each end says after how many bytes it goes on in its ring (`stream`). No byte waits for an offer that
//! nobody claims, and none that the other end does not expect is ever sent. An offer to another host's listener waits for its gateway's word.
//!
//! Invariants: a segment is given only to a process whose mailbox was opened by our user (`SO_PEERCRED`), and taken only from our user; every field
//! of a hello is bounded; a mailbox's backlog bounds the hellos that wait.

use std::sync::atomic::Ordering;

use tsumuji_streams::hello::OFFERED_THERE;

use crate::address::{self, Address, Pair};
use crate::explain::{self, Count};
use crate::hello::{Fd, Hello, connect_to, send_hello};
use crate::lock::Locked;
use crate::ring::{self, CANCELLED, CLAIMED, CLIENT, CONFIRMED, GENERATION_SHIFT, OFFERED, SERVER};
use crate::segment::{self, SegmentRef};
use crate::sys::{self, Errno};
use crate::table::{self, Use};
use crate::tuning::TUNING;
use crate::{brief, early, epoll, stream};

/// Entries of both memories.
const MEMORY: usize = 16;
/// `IP_LOCAL_PORT_RANGE`, Linux 6.3: which port `connect` shall choose. Unlike `bind`, it leaves the port to other connections, too.
const IP_LOCAL_PORT_RANGE: i32 = 51;

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

/// Whether the addresses that the client has written down are those of this connection.
fn is_pair(using: &Use, fd: i32) -> bool {
    let known = using.pair.with(|known| *known).or_else(|| {
        // Of a stream that was inherited by `exec`.
        let (client, server) = (address::peer(fd).ok()?, address::own(fd).ok()?);
        Some(Pair { client, server })
    });
    known.is_some_and(|pair| pair.is_stored_in(&using.slot().pair))
}

/// Whether the server has claimed the offer for the connection that it was made for: it may have claimed it before it could know.
fn is_claimed_as_confirmed(using: &Use) -> bool {
    let slot = using.slot();
    let confirmed = Pair::load(&slot.pair);
    confirmed.is_some() && confirmed == Pair::load(&slot.claimed)
}

/// Whether both ends have agreed to carry the connection. Both look at the addresses when they first see that.
pub(crate) fn is_agreed(using: &Use, fd: i32) -> bool {
    let state = using.slot().state.load(Ordering::Acquire);
    if state & (CONFIRMED | CLAIMED | CANCELLED) != CONFIRMED | CLAIMED {
        return false;
    }
    let is_one = match using.side() {
        SERVER => is_pair(using, fd),
        // A gateway claims what its other host has claimed.
        _ => using.gateway().is_some() || is_claimed_as_confirmed(using),
    };
    if !is_one {
        using.slot().state.fetch_or(CANCELLED, Ordering::AcqRel);
        return false;
    }
    true
}

/// Ends the offer of a connection that is not carried yet. False: it is carried.
pub(crate) fn cancel(using: &Use) -> bool {
    let slot = using.slot();
    let mut state = slot.state.load(Ordering::Acquire);
    loop {
        if state & CANCELLED != 0 {
            return true;
        }
        if state & (CONFIRMED | CLAIMED) == CONFIRMED | CLAIMED {
            return false;
        }
        let after = state | CANCELLED;
        match slot
            .state
            .compare_exchange(state, after, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => {
                stream::wake_gateway(using);
                return true;
            }
            Err(now) => state = now,
        }
    }
}

/// Connects by `real`, with a hello to the listener's mailbox before it, if there is one. The result and `errno` are those of `real`.
pub(crate) fn connect(fd: i32, address: &[u8], real: impl Fn() -> i32) -> i32 {
    let result = try_all(fd, address, real);
    let error = sys::errno();
    early::tried_to_connect(fd, result);
    let is_nowhere = address[..2] == (libc::AF_UNSPEC as u16).to_ne_bytes();
    if result == 0 && is_nowhere && table::is_plain(fd) && early::is_unconnected(fd) {
        // One that was connected: what instances were asked about it then is not known.
        early::leave_to_kernel(fd);
    }
    sys::set_errno(error);
    result
}

fn try_all(fd: i32, address: &[u8], real: impl Fn() -> i32) -> i32 {
    let target = Address::parse(address)
        .filter(|_| table::may_be_stream(fd) && !table::is_standard(fd) && !explain::is_off());
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
    // One that connects already asks how that has ended, and goes by TCP.
    if !early::is_unconnected(fd) {
        return real();
    }
    let now_ns = sys::now_ns();
    if is_known_absent(&target, now_ns) {
        let result = real();
        let why = "the listener had no mailbox lately";
        explain::plain_connect(&target, Count::NoMailbox, why, result);
        return result;
    }
    let bound = address::own(fd).map_or(0, |own| own.port);
    let mut tried = Tried::No;
    let tries = if crate::start::is_all_far() {
        0
    } else {
        TUNING.meeting.ports_tried
    };
    for _ in 0..tries {
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
        let Ok(taken) = taken else { break };
        let Some(port) = choose_port(fd, bound, target.is_v4()) else {
            segment::free(taken.0.get(), taken.1);
            break;
        };
        tried = try_port(fd, &target, port, taken, mailbox, &real);
        let Tried::Result(result, error) = tried else {
            if bound == 0 {
                set_port_range(fd, 0);
            }
            break;
        };
        let is_taken = result != 0 && error == Errno(libc::EADDRNOTAVAIL) && bound == 0;
        if !is_taken {
            break;
        }
    }
    let is_brief =
        matches!(tried, Tried::No) && crate::start::has_gateway() && brief::is_expected(&target);
    if let Tried::No = tried
        && !is_brief
        && let Some(result) = through_gateway(fd, &target, bound, &real)
    {
        return result;
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
            let (what, why) = if is_brief {
                (Count::Brief, "the last connections to it were short")
            } else {
                let why = "the listener has no mailbox of this user";
                (Count::NoMailbox, why)
            };
            explain::plain_connect(&target, what, why, result);
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

pub(crate) fn is_in_progress(error: Errno) -> bool {
    [libc::EINPROGRESS, libc::EINTR].contains(&error.0)
}

/// One attempt, from that port: an offer, the connection, and a word that it is the one.
fn try_port(
    fd: i32,
    target: &Address,
    port: u16,
    taken: (SegmentRef, usize),
    mailbox: Option<Fd>,
    real: &impl Fn() -> i32,
) -> Tried {
    let segment = taken.0.clone();
    // The address that it will come from is known only then.
    let client = Address { ip: [0; 16], port };
    let Some((using, hello)) = offer(fd, taken, client, *target) else {
        return Tried::No;
    };
    let is_left = match mailbox {
        Some(mailbox) => {
            let is_left = send_hello(&mailbox, &hello, &segment, None).is_ok();
            if is_left {
                segment.get().keep_control(mailbox.take());
            }
            is_left
        }
        None => {
            let offers = &segment.get().memory().header().offers.0;
            offers.fetch_or(1 << hello.slot, Ordering::AcqRel);
            true
        }
    };
    connect_offered(fd, &using, target, is_left, real)
}

/// Connects, and says which connection was offered.
fn connect_offered(
    fd: i32,
    using: &Use,
    target: &Address,
    is_left: bool,
    real: &impl Fn() -> i32,
) -> Tried {
    let result = real();
    let error = sys::errno();
    let is_on_its_way = result == 0 || is_in_progress(error);
    // Over loopback a socket that waits is connected when the call returns; or its time has run out.
    let is_nonblocking =
        result != 0 && error == Errno(libc::EINPROGRESS) && sys::is_nonblocking(fd);
    let own = &using.mine().own;
    own.is_nonblocking
        .store(u32::from(is_nonblocking), Ordering::Relaxed);
    // Until it is confirmed, nobody carries anything.
    let is_watched = is_on_its_way && epoll::attach(using, fd, &early::take(fd));
    if is_watched && is_left && confirm(using, fd, target) {
        explain::offered(using, target);
    } else {
        retract(using, fd);
        if is_on_its_way {
            let why = "the other end was gone or had shut down before the offer was confirmed";
            explain::plain_connect(target, Count::Retracted, why, result);
        }
    }
    Tried::Result(result, error)
}

fn is_known_absent(target: &Address, now_ns: u64) -> bool {
    ABSENT.with(|known| {
        known.iter().any(|(address, at)| {
            address == target && now_ns.saturating_sub(*at) < TUNING.meeting.absent_ns
        })
    })
}

fn remember_absent(target: &Address, now_ns: u64) {
    ABSENT.with(|known| known[now_ns as usize / 64 % MEMORY] = (*target, now_ns));
}

/// Offers the connection to a listener of another host, by the gateways of both, and connects. `None`: there is none; nothing was done.
fn through_gateway(fd: i32, target: &Address, bound: u16, real: &impl Fn() -> i32) -> Option<i32> {
    let is_host = target.is_any() || target.is_loopback();
    if !crate::start::has_gateway() || is_host && !crate::start::is_all_far() {
        return None;
    }
    for _ in 0..TUNING.meeting.ports_tried {
        let tried = try_gateway(fd, target, bound, real);
        let Some(Tried::Result(result, error)) = tried else {
            break;
        };
        if result != 0 && error == Errno(libc::EADDRNOTAVAIL) && bound == 0 {
            continue;
        }
        if result != 0 {
            sys::set_errno(error);
        }
        return Some(result);
    }
    if bound == 0 {
        set_port_range(fd, 0);
    }
    None
}

fn try_gateway(fd: i32, target: &Address, bound: u16, real: &impl Fn() -> i32) -> Option<Tried> {
    if !table::may_be_far() {
        return None;
    }
    let mailbox = connect_to(&address::gateway(sys::geteuid())).ok()?;
    let port = choose_port(fd, bound, target.is_v4())?;
    let own = address::own(fd).ok().filter(|own| !own.is_any());
    let client = Address {
        ip: own.or_else(|| route(target).ok())?.ip,
        port,
    };
    let taken = segment::take_slot(Address::GATEWAY).ok()?;
    let segment = taken.0.clone();
    let (using, hello) = offer(fd, taken, client, *target)?;
    let is_offered = sys::socket_pair().is_ok_and(|[ours, theirs]| {
        using.set_gateway(ours);
        let theirs = Fd::new(theirs);
        let is_left = send_hello(&mailbox, &hello, &segment, Some(theirs.get())).is_ok();
        drop(theirs);
        is_left && is_offered_there(&mailbox)
    });
    if !is_offered {
        retract(&using, fd);
        return None;
    }
    Some(connect_offered(fd, &using, target, true, real))
}

/// What the gateway says of an offer.
fn is_offered_there(mailbox: &Fd) -> bool {
    let until = sys::now_ns() + TUNING.meeting.gateway_ns;
    let left = || Some(until.saturating_sub(sys::now_ns()));
    let mut answer = [0];
    while sys::poll_one(mailbox.get(), libc::POLLIN, left()) == Err(Errno(libc::EINTR)) {}
    sys::recv(mailbox.get(), &mut answer, libc::MSG_DONTWAIT) == Ok(1) && answer[0] == OFFERED_THERE
}

/// A connection to the mailbox of a listener at that address, if it exists and belongs to our user.
fn find_mailbox(target: &Address) -> Option<Fd> {
    let names = std::iter::once(*target).chain(target.wildcards());
    let is_host = target.is_any() || target.is_loopback();
    names
        .into_iter()
        .filter_map(|name| Some((name, connect_to(&address::mailbox(&name)).ok()?)))
        .find(|(name, _)| name == target || is_host || is_local(target))
        .map(|(_, mailbox)| mailbox)
}

/// Whether an address is one of this host: the kernel would connect to it from itself.
fn is_local(target: &Address) -> bool {
    let now_ns = sys::now_ns();
    let known = LOCAL.with(|known| {
        known
            .iter()
            .find(|(ip, _, at)| {
                *ip == target.ip && now_ns.saturating_sub(*at) < TUNING.meeting.local_ns
            })
            .map(|known| known.1)
    });
    if let Some(known) = known {
        return known;
    }
    let is_local = route(target).is_ok_and(|own| own.ip == target.ip);
    LOCAL.with(|known| known[now_ns as usize / 64 % MEMORY] = (target.ip, is_local, now_ns));
    is_local
}

/// The address of this host from which the kernel would connect to that one.
fn route(target: &Address) -> sys::Result<Address> {
    let family = if target.is_v4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    let fd = Fd::new(sys::socket(
        family,
        libc::SOCK_DGRAM | libc::SOCK_CLOEXEC,
        0,
    )?);
    let (bytes, length) = target.socket_address();
    sys::with_address(libc::SYS_connect, fd.get(), &bytes[..length])?;
    address::own(fd.get())
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
fn offer(
    fd: i32,
    taken: (SegmentRef, usize),
    client: Address,
    server: Address,
) -> Option<(Use, Hello)> {
    let (segment, slot_number) = taken;
    let slot = segment.get().memory().slot(slot_number);
    let generation = (slot.state.load(Ordering::Acquire) >> GENERATION_SHIFT).wrapping_add(1);
    ring::reset(slot);
    slot.port.store(u32::from(client.port), Ordering::Relaxed);
    slot.state
        .store(generation << GENERATION_SHIFT | OFFERED, Ordering::Release);
    let using = table::add_stream(fd, segment, slot_number, CLIENT)?;
    let hello = Hello {
        generation,
        sent_ns: sys::now_ns(),
        slot: slot_number,
        client,
        server,
    };
    Some((using, hello))
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
    stream::wake_gateway(using);
    before & CANCELLED == 0
}

/// The connection is plain TCP after all.
fn retract(using: &Use, fd: i32) {
    using.slot().state.fetch_or(CANCELLED, Ordering::AcqRel);
    let offers = &using.memory().header().offers.0;
    offers.fetch_and(!(1 << using.number()), Ordering::AcqRel);
    let wanted = epoll::release(using);
    using.leave();
    table::clear(fd);
    table::abandon(using);
    if early::is_unconnected(fd) {
        early::put_back(fd, wanted);
    } else if !wanted.is_empty() {
        // It may fail yet, and be tried again.
        table::set_shared(fd);
    }
}
