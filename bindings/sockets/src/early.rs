//! TCP sockets that are in epoll instances, or have copies, before they connect.
//!
//! What the program has asked instances about such a socket is written down until it connects: the interests of the stream begin with that. A socket of
//! which there are several descriptors is never offered, since only one of them would become a stream: it is the kernel's, by all of them.

use libc::{c_int, epoll_event};

use crate::epoll::Epoll;
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

/// Whether it is a TCP socket that is not connected, does not connect and does not listen.
pub(crate) fn is_unconnected(fd: c_int) -> bool {
    const IS_CLOSED: u8 = 7;
    sys::get_option(fd, libc::IPPROTO_TCP, libc::TCP_INFO) == Ok(IS_CLOSED)
}

/// The kernel has done this for an instance of ours and a descriptor that is no stream.
pub(crate) fn note(epoll: &'static Epoll, operation: c_int, fd: c_int, event: Option<epoll_event>) {
    let is_new = operation == libc::EPOLL_CTL_ADD && table::is_plain(fd);
    if !is_new && !table::is_early(fd) || is_new && !is_unconnected(fd) {
        return;
    }
    WANTED.with(|all| {
        all.retain(|(of, one)| *of != fd || !std::ptr::eq(one.epoll, epoll));
        if let Some(event) = event.filter(|_| operation != libc::EPOLL_CTL_DEL) {
            let (events, data) = (event.events, event.u64);
            let wanted = Wanted {
                epoll,
                events,
                data,
            };
            all.push((fd, wanted));
        }
    });
    if is_new {
        table::set_early(fd);
    }
}

/// What was asked about a socket that becomes a stream.
pub(crate) fn take(fd: c_int) -> Vec<Wanted> {
    if !table::is_early(fd) {
        return Vec::new();
    }
    WANTED.with(|all| {
        let own = all.extract_if(.., |(of, _)| *of == fd);
        own.map(|(_, wanted)| wanted).collect()
    })
}

/// A stream is a socket again that has not connected.
pub(crate) fn put_back(fd: c_int, wanted: Vec<Wanted>) {
    if !wanted.is_empty() && table::set_early(fd) {
        WANTED.with(|all| all.extend(wanted.into_iter().map(|one| (fd, one))));
    }
}

/// The socket listens, is connected without us, or goes.
pub(crate) fn forget(fd: c_int) {
    if table::is_early(fd) {
        drop(take(fd));
        table::clear(fd);
    }
}

/// `copy` is the same as `fd`, which is no stream.
pub(crate) fn copied(fd: c_int, copy: c_int) {
    if matches!(table::kind(fd), Kind::None) && is_unconnected(fd) {
        drop(take(fd));
        table::set_shared(fd);
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
