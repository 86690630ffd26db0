//! TCP sockets that are in epoll instances, or have copies, before they connect.
//!
//! What the program has asked instances about such a socket is written down until it connects: the interests of the stream begin with that. A socket
//! that is *shared* is never offered, but the kernel's by all of its descriptors: one with copies, of which only one would become a stream, and one of
//! whose interests we do not know all.
//!
//! Tags in `table` change by comparison only, since another thread may connect the socket at any time.

use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, epoll_event};

use crate::epoll::{self, Epoll};
use crate::lock::Locked;
use crate::sys;
use crate::table::{self, Kind};

/// What an instance was asked about a socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) epoll: &'static Epoll,
    pub(crate) events: u32,
    pub(crate) data: u64,
}

/// Sockets that have not connected: few at a time.
static WANTED: Locked<Vec<(c_int, Wanted)>> = Locked::new(Vec::new());
/// How many there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The kernel does not change these, or would tell them anew.
const AS_THEY_ARE: u32 = (libc::EPOLLEXCLUSIVE | libc::EPOLLONESHOT) as u32;

/// Whether it is a TCP socket that is not connected, does not connect and does not listen.
pub(crate) fn is_unconnected(fd: c_int) -> bool {
    const CLOSED: u8 = 7;
    sys::get_option(fd, libc::IPPROTO_TCP, libc::TCP_INFO) == Ok(CLOSED)
}

fn change<T>(act: impl FnOnce(&mut Vec<(c_int, Wanted)>) -> T) -> T {
    WANTED.with(|all| {
        let result = act(all);
        COUNT.store(all.len(), Ordering::Release);
        result
    })
}

/// The kernel has done this for an instance and a descriptor that was no stream. `None`: the instance is not ours.
pub(crate) fn note(
    epoll: Option<&'static Epoll>,
    operation: c_int,
    fd: c_int,
    event: Option<epoll_event>,
) {
    let is_new = operation == libc::EPOLL_CTL_ADD && table::is_plain(fd);
    if !is_new && !table::is_early(fd) || is_new && !is_unconnected(fd) {
        return;
    }
    let (events, data) = event.map_or((0, 0), |event| (event.events, event.u64));
    let Some(epoll) = epoll.filter(|_| events & AS_THEY_ARE == 0) else {
        return leave_to_kernel(fd);
    };
    let wanted = Wanted {
        epoll,
        events,
        data,
    };
    if is_new && !table::set_early(fd) {
        // Another thread has connected it meanwhile.
        if let Some(using) = table::stream(fd) {
            epoll::attach(&using, fd, &[wanted]);
        }
        return;
    }
    change(|all| {
        all.retain(|(of, one)| *of != fd || !std::ptr::eq(one.epoll, epoll));
        if operation != libc::EPOLL_CTL_DEL {
            all.push((fd, wanted));
        }
    });
}

/// What was asked about a socket that has connected.
pub(crate) fn take(fd: c_int) -> Vec<Wanted> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return Vec::new();
    }
    change(|all| {
        let own = all.extract_if(.., |(of, _)| *of == fd);
        own.map(|(_, wanted)| wanted).collect()
    })
}

/// What was a stream, or was to be one, is a socket again that has not connected.
pub(crate) fn put_back(fd: c_int, wanted: Vec<Wanted>) {
    change(|all| {
        all.extend(wanted.into_iter().map(|one| (fd, one)));
        if all.iter().any(|(of, _)| *of == fd) {
            table::set_early(fd);
        }
    });
}

/// After `connect`, by which no stream was made.
pub(crate) fn tried_to_connect(fd: c_int, result: c_int) {
    if !table::is_early(fd) || is_unconnected(fd) {
        return;
    }
    match result {
        0 => forget(fd),
        // It may fail later, and be tried again.
        _ => leave_to_kernel(fd),
    }
}

/// The socket is the kernel's for good.
pub(crate) fn leave_to_kernel(fd: c_int) {
    table::set_shared(fd);
    drop(take(fd));
}

/// The socket listens, is connected without us, or goes.
pub(crate) fn forget(fd: c_int) {
    table::forget_tags(fd);
    drop(take(fd));
}

/// The instance goes.
pub(crate) fn forget_instance(epoll: &'static Epoll) {
    if COUNT.load(Ordering::Acquire) != 0 {
        change(|all| all.retain(|(_, one)| !std::ptr::eq(one.epoll, epoll)));
    }
}

/// `copy` is the same as `fd`, which is no stream.
pub(crate) fn copied(fd: c_int, copy: c_int) {
    if matches!(table::kind(fd), Kind::None) && is_unconnected(fd) {
        leave_to_kernel(fd);
        table::set_shared(copy);
    }
}

/// Before a fork.
pub(crate) fn freeze() {
    WANTED.freeze();
}

/// After it.
pub(crate) fn thaw() {
    WANTED.thaw();
}
