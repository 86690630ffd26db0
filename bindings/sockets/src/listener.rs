//! Listeners with a mailbox: where clients leave hellos, and how the connections that are accepted find theirs.
//!
//! `exports` calls `listen`, and `Listener::claim` after each `accept`; `close` says when a descriptor goes, `start` when the process has forked.
//!
//! A mailbox is an abstract UNIX socket named by the listener's address; its backlog bounds the hellos that wait. Several processes may accept from a
//! listener after a fork: the one that takes hellos out puts those back that are not of its connection, and holds a lock meanwhile. From a client whose
//! segment is here already, offers come through the segment itself.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use crate::address::{self, Address, Pair};
use crate::explain::{self, Count};
use crate::hello::{Fd, Hello, connect_to, is_ours, read_hello, send_hello, unix_socket};
use crate::lock::{Locked, hold};
use crate::ring::{CANCELLED, CLAIMED, CONFIRMED, GENERATION_SHIFT, OFFERED, SERVER};
use crate::segment::SegmentRef;
use crate::sys::{self};
use crate::table::{self, Kind, Use};
use crate::tuning::TUNING;
use crate::{early, stream};

/// Hellos that may wait in a mailbox; the kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Hellos that a process keeps for connections that it has not accepted yet.
const PENDING_MAX: usize = 4096;

/// Callers that one `accept` rejects, being of other users or without a hello: more could come for ever. The next one finds those behind them.
const REJECTED_MAX: u32 = 64;

/// A hello whose connection was not accepted after this time is dropped.
const PENDING_NS: u64 = 60_000_000_000;

#[derive(Debug)]
struct Pending {
    hello: Hello,
    segment: SegmentRef,
    /// Of a client of another host.
    gateway: Option<Fd>,
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
            && state & (CLAIMED | CANCELLED) == 0
            && now_ns.saturating_sub(self.hello.sent_ns) < PENDING_NS
    }

    /// Whether the connection that comes from there is meant. A client of this host names its port only.
    fn is_from(&self, client: &Address) -> bool {
        let said = &self.hello.client;
        said.port == client.port && (said.ip == [0; 16] || said.ip == client.ip)
    }
}

/// A listening socket with a mailbox. Never freed, but used again.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Listener {
    mailbox: AtomicI32,
    address: Locked<Address>,
    fds: Locked<Vec<i32>>,
    pending: Locked<Vec<Pending>>,
    /// Segments of clients that offer further connections in them, with the connections to our mailbox by which they know that we are there.
    known: Locked<Vec<(SegmentRef, i32)>>,
    /// Where among those the next polls for clients that have gone begin.
    polls: AtomicUsize,
    /// Other processes may accept from it, too: after a fork.
    is_shared: AtomicU32,
    /// One word of memory that forked processes share.
    word: SharedWord,
}

/// A lock between processes that have forked from each other.
#[derive(Debug, Default)]
struct SharedWord(Option<&'static AtomicU32>);

/// Listeners to be used again.
static FREE: Locked<Vec<&'static Listener>> = Locked::new(Vec::new());
static LISTENERS: Locked<Vec<&'static Listener>> = Locked::new(Vec::new());

/// Listens by `real`, with a mailbox, which is there first: no client shall find the one without the other.
pub(crate) fn listen(fd: i32, real: impl Fn() -> i32) -> i32 {
    if !table::may_be_listener(fd) || explain::is_off() {
        return real();
    }
    let is_shared = !table::may_be_stream(fd);
    // A socket that is not bound gets its port only now.
    if address::own(fd).is_ok_and(|own| own.port == 0) {
        let result = real();
        if result == 0 {
            add_listener(fd);
            drop(early::take(fd));
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
        match is_shared {
            true => table::set_shared(fd),
            false => early::put_back(fd, Vec::new()),
        }
        sys::set_errno(error);
    } else if result == 0 {
        drop(early::take(fd));
    }
    result
}

/// Nothing is carried any more: no client shall leave a hello that nobody reads.
pub(crate) fn close_mailboxes() {
    for listener in LISTENERS.with(|all| all.clone()) {
        listener.close_mailbox();
    }
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
    let listener = FREE
        .with(Vec::pop)
        .unwrap_or_else(|| Box::leak(Box::new(Listener::new())));
    listener.address.with(|known| *known = address);
    listener.fds.with(|fds| *fds = vec![fd]);
    listener.is_shared.store(0, Ordering::Relaxed);
    listener
        .mailbox
        .store(table::keep_own(mailbox), Ordering::Release);
    LISTENERS.with(|all| all.push(listener));
    crate::start::hold_gateway();
    table::set_listener(fd, listener);
    explain::listens(&address, "");
}

fn make_mailbox(address: &Address) -> sys::Result<i32> {
    let fd = unix_socket()?;
    sys::with_address(libc::SYS_bind, fd.get(), address::mailbox(address).bytes())?;
    sys::listen(fd.get(), BACKLOG)?;
    Ok(fd.take())
}

impl Listener {
    fn new() -> Self {
        Self {
            mailbox: AtomicI32::new(-1),
            word: SharedWord(sys::shared_word()),
            ..Self::default()
        }
    }

    pub(crate) fn add_fd(&'static self, fd: i32) {
        self.fds.with(|fds| fds.push(fd));
        table::set_listener(fd, self);
    }

    /// One of its descriptors goes; with the last one the mailbox.
    pub(crate) fn remove_fd(&'static self, fd: i32) {
        table::clear(fd);
        let is_last = self.fds.with(|fds| {
            let at = fds.iter().position(|one| *one == fd);
            at.map(|at| fds.swap_remove(at)).is_some() && fds.is_empty()
        });
        if is_last {
            self.close_mailbox();
            LISTENERS.with(|all| all.retain(|one| !std::ptr::eq(*one, self)));
            FREE.with(|free| free.push(self));
        }
    }

    fn close_mailbox(&self) {
        let mailbox = self.mailbox.swap(-1, Ordering::AcqRel);
        if mailbox >= 0 {
            table::close_own(mailbox);
        }
        drop(self.pending.with(std::mem::take));
        for (_, control) in self.known.with(std::mem::take) {
            table::close_own(control);
        }
    }

    /// Takes the hello of the connection that `fd` is, if there is one, and claims it.
    pub(crate) fn claim(&self, fd: i32, client: Address, is_nonblocking: bool) {
        let mailbox = self.mailbox.load(Ordering::Acquire);
        if mailbox < 0 || table::is_standard(fd) {
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
        // A thread that may have taken the hellos of others holds the lock until they are back.
        let word = self.word.0.filter(|_| is_shared);
        let _held = word.map(|word| hold(word));
        let mut stale = Vec::new();
        let mut found = self.pending.with(|pending| {
            self.collect(mailbox, pending, is_shared);
            stale.extend(pending.extract_if(.., |one| !one.is_open(now_ns)));
            let at = pending.iter().rposition(|one| one.is_from(&client));
            at.map(|at| pending.remove(at))
        });
        drop(stale);
        if is_shared {
            let name = address::mailbox(&self.address.with(|address| *address));
            // Within the lock: a process that is forked now has them, or finds them in the mailbox.
            self.pending.with(|pending| {
                for other in pending.drain(..) {
                    let gateway = other.gateway.as_ref().map(Fd::get);
                    let _ = connect_to(&name).and_then(|mailbox| {
                        send_hello(&mailbox, &other.hello, &other.segment, gateway)
                    });
                }
            });
        }
        // A client that has left a hello may offer the next connection in its segment before we have read that.
        if found.is_none() {
            found = self.offered(client.port);
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
                    let bit = 1 << number;
                    if offers.fetch_and(!bit, Ordering::AcqRel) & bit == 0 {
                        // Another process has taken it.
                        continue;
                    }
                    let state = slot.state.load(Ordering::Acquire);
                    let hello = Hello {
                        generation: state >> GENERATION_SHIFT,
                        sent_ns: 0,
                        slot: number,
                        client: Address { ip: [0; 16], port },
                        server: Address::default(),
                    };
                    return Some(Pending {
                        hello,
                        segment: segment.clone(),
                        gateway: None,
                    });
                }
                None
            })
        })
    }

    /// Moves what is in the mailbox into the list, and keeps the segments.
    fn collect(&self, mailbox: i32, pending: &mut Vec<Pending>, is_shared: bool) {
        let mut rejected = 0;
        while pending.len() < PENDING_MAX && rejected < REJECTED_MAX {
            let Ok(fd) = sys::accept(mailbox, libc::SOCK_NONBLOCK) else {
                return;
            };
            // Nobody is waited for who has no say here.
            let said = if is_ours(fd) {
                wait_for_hello(fd);
                read_hello(fd)
            } else {
                explain::count(Count::Refused);
                None
            };
            let Some((hello, segment, gateway)) = said else {
                let _ = sys::close(fd);
                rejected += 1;
                continue;
            };
            let one = Pending {
                hello,
                segment,
                gateway,
            };
            let header = one.segment.get().memory().header();
            header
                .is_shared
                .store(u32::from(is_shared), Ordering::Relaxed);
            if one.gateway.is_some() {
                // It leaves a hello for each connection.
                let _ = sys::close(fd);
            } else {
                self.keep(&one.segment, fd);
            }
            pending.push(one);
        }
    }

    fn keep(&self, segment: &SegmentRef, control: i32) {
        // Each client process takes two descriptors of ours.
        let most = TUNING
            .segments
            .known_max
            .min(sys::open_files_limit() as usize / TUNING.segments.known_divisor);
        let gone = self.known.with(|known| {
            let count = known.len();
            let polls = if count < most {
                TUNING.segments.known_polls
            } else {
                count
            };
            let from = self.polls.fetch_add(polls, Ordering::Relaxed);
            let is_gone = |at: usize, one: &(SegmentRef, i32)| {
                let mut room = [0; 1];
                let is_polled = (at + count - from % count) % count < polls;
                std::ptr::eq(one.0.get(), segment.get())
                    || is_polled
                        && sys::recv(one.1, &mut room, libc::MSG_DONTWAIT) != Err(sys::AGAIN)
            };
            let mut gone = Vec::new();
            for at in (0..count).rev() {
                if is_gone(at, &known[at]) {
                    gone.push(known.remove(at));
                }
            }
            if known.len() < most {
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

fn wait_for_hello(fd: i32) {
    let _ = sys::poll_one(fd, libc::POLLIN, Some(TUNING.meeting.hello_ns));
}

fn take(fd: i32, pending: Pending, pair: Pair, is_nonblocking: bool) -> Option<Use> {
    let (slot_number, generation) = (pending.hello.slot, pending.hello.generation);
    let slot = pending.segment.get().memory().slot(slot_number);
    let is_open = |state: u64| {
        state >> GENERATION_SHIFT == generation
            && state & (OFFERED | CLAIMED | CANCELLED) == OFFERED
    };
    // A slot that is offered again is not this connection's: nothing is counted there.
    if !is_open(slot.state.load(Ordering::Acquire))
        || pending.gateway.is_some() && !table::may_be_far()
    {
        return None;
    }
    let using = table::add_stream(fd, pending.segment, slot_number, SERVER)?;
    if let Some(gateway) = pending.gateway {
        using.set_gateway(gateway.take());
        crate::start::hold_gateway();
    }
    using.pair.with(|known| *known = Some(pair));
    let own = &using.mine().own;
    own.is_nonblocking
        .store(u32::from(is_nonblocking), Ordering::Relaxed);
    loop {
        let state = slot.state.load(Ordering::Acquire);
        // A client that has confirmed has named the connection; one that will is checked by `is_agreed`.
        let is_same = state & CONFIRMED == 0 || pair.is_stored_in(&slot.pair);
        if !is_open(state) || !is_same {
            table::clear(fd);
            using.leave();
            table::abandon(&using);
            return None;
        }
        // The client compares, if it confirms after this.
        pair.store(&slot.claimed);
        let claimed = slot.state.compare_exchange(
            state,
            state | CLAIMED,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if claimed.is_ok() {
            stream::wake_gateway(&using);
            return Some(using);
        }
    }
}

/// Before a fork. It waits for a thread that reads the mailbox.
pub(crate) fn freeze() {
    LISTENERS.freeze();
    LISTENERS.with_frozen(|all| {
        for listener in all {
            listener.address.freeze();
            listener.fds.freeze();
            listener.pending.freeze();
            listener.known.freeze();
        }
    });
    FREE.freeze();
}

/// After it.
pub(crate) fn thaw() {
    FREE.thaw();
    LISTENERS.with_frozen(|all| {
        for listener in all {
            listener.known.thaw();
            listener.pending.thaw();
            listener.fds.thaw();
            listener.address.thaw();
        }
    });
    LISTENERS.thaw();
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

    /// A mailbox of the tests' own, beside which no TCP socket listens.
    fn mailbox() -> (Fd, Address) {
        let address = Address {
            ip: [0xfe; 16],
            port: sys::getpid() as u16,
        };
        (Fd::new(make_mailbox(&address).expect("a mailbox")), address)
    }

    /// A fork waits for threads that work on what a listener keeps: the child shall have all of it.
    #[test]
    fn forks_find_whole_lists() {
        fn is_waited_for<T: Send>(listener: &'static Listener, list: &'static Locked<T>) {
            LISTENERS.with(|all| all.push(listener));
            let (inside, wait) = std::sync::mpsc::channel();
            let is_over = AtomicU32::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    list.with(|_| {
                        inside.send(()).expect("the test waits");
                        sys::sleep_us(20_000);
                        is_over.store(1, Ordering::Relaxed);
                    });
                });
                wait.recv().expect("the lock is held");
                freeze();
                assert_eq!(is_over.load(Ordering::Relaxed), 1);
                thaw();
            });
            LISTENERS.with(|all| all.retain(|one| !std::ptr::eq(*one, listener)));
            list.with(|_| {});
        }
        let listener: &'static Listener = Box::leak(Box::new(Listener::new()));
        is_waited_for(listener, &listener.known);
        is_waited_for(listener, &listener.pending);
        is_waited_for(listener, &listener.fds);
    }

    /// Callers that leave no hello do not hold up `accept` for as long as there are any.
    #[test]
    fn silent_callers_are_bounded() {
        let (mailbox, address) = mailbox();
        let callers: Vec<Fd> = (0..2 * REJECTED_MAX)
            .map(|_| connect_to(&address::mailbox(&address)).expect("a caller"))
            .collect();
        let listener = Listener::new();
        let mut pending = Vec::new();
        listener.collect(mailbox.get(), &mut pending, false);
        assert!(pending.is_empty());
        let mut left = 0;
        while let Ok(fd) = sys::accept(mailbox.get(), libc::SOCK_NONBLOCK) {
            let _ = sys::close(fd);
            left += 1;
        }
        assert_eq!(left, callers.len() as u32 - REJECTED_MAX);
    }
}
