//! Descriptors that come and go: copies, closing, shutting down.

use std::sync::atomic::Ordering;

use libc::c_int;

use crate::early::Wanted;
use crate::ring::FUTEX;
use crate::sys::{self, Errno, Result};
use crate::table::{self, Kind, Use};
use crate::{brief, demotion, early, epoll, explain, handshake, stream};

/// Before the kernel closes `fd`. An error: it must not be closed.
pub(crate) fn before(fd: c_int) -> Result<()> {
    match table::kind(fd) {
        Kind::None => early::forget(fd),
        // Programs that close all they have find it closed.
        Kind::Own => return Err(Errno(libc::EBADF)),
        Kind::Listener(listener) => listener.remove_fd(fd),
        Kind::Epoll(epoll) => epoll.remove_fd(fd),
        Kind::Stream(using) => close_stream(&using, fd),
    }
    Ok(())
}

fn close_stream(using: &Use, fd: c_int) {
    table::clear(fd);
    let is_last = using.fds.with(|fds| {
        let at = fds.iter().position(|one| *one == fd);
        at.map(|at| fds.remove(at)).is_some() && fds.is_empty()
    });
    if !is_last {
        return;
    }
    brief::judge(using);
    explain::closed(using, Some(fd));
    epoll::forget(using);
    let end = using.mine();
    let is_last_process = using.leave();
    let has_gone_back = end.out.back_at.load(Ordering::Acquire) != 0;
    if is_last_process && !handshake::cancel(using) && !has_gone_back {
        end.inn.is_asleep.store(0, Ordering::SeqCst);
        end.out.wants_room.store(0, Ordering::SeqCst);
        if !resets_unread(using, fd) {
            // Bells that nobody has taken would do that, too.
            stream::take_old_bells(using, fd, 1);
        }
        end.out.is_closed.store(1, Ordering::SeqCst);
        stream::mark(using);
        stream::wake_gateway(using);
    } else if is_last_process && has_gone_back {
        // Data that was left unread ends the connection by a reset; bells before it shall not.
        demotion::skip_bells(using, fd);
    }
    table::abandon(using);
}

/// As the kernel does where data was not read: the other end learns of it by a reset. False: all was. Caller: the end's last process, which closes it.
pub(crate) fn resets_unread(using: &Use, fd: c_int) -> bool {
    let end = using.mine();
    let has_unread = using.reader().unread().is_ok_and(|unread| unread > 0)
        && end.own.has_ended.load(Ordering::Relaxed) == 0;
    if has_unread {
        end.out.ends_by_reset.store(1, Ordering::SeqCst);
        let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &[1i32, 0]);
    }
    has_unread
}

/// The kernel's connection is an ordinary one from now on, with all its descriptors, which are returned with what instances were asked about it.
pub(crate) fn let_go(using: &Use) -> (Vec<c_int>, Vec<Wanted>) {
    let wanted = epoll::release(using);
    using.is_let_go.store(1, Ordering::Release);
    let fds = using.fds.with(std::mem::take);
    for fd in &fds {
        table::clear(*fd);
    }
    using.leave();
    table::abandon(using);
    (fds, wanted)
}

/// The program has taken the socket off its connection (`connect` to no address), which has ended by a reset.
pub(crate) fn disconnected(using: &Use) {
    handshake::cancel(using);
    let out = &using.mine().out;
    out.ends_by_reset.store(1, Ordering::SeqCst);
    out.is_closed.store(1, Ordering::SeqCst);
    stream::mark(using);
    stream::wake_gateway(using);
    match let_go(using) {
        (fds, wanted) if fds.len() == 1 => early::put_back(fds[0], wanted),
        (fds, _) => fds.into_iter().for_each(table::set_shared),
    }
}

/// `copy` is now the same as `fd`.
pub(crate) fn copied(fd: c_int, copy: c_int) {
    match table::kind(fd) {
        Kind::Own => {}
        Kind::None => early::copied(fd, copy),
        Kind::Listener(listener) => listener.add_fd(copy),
        Kind::Epoll(epoll) => epoll.add_fd(copy),
        Kind::Stream(using) => {
            using.fds.with(|fds| fds.push(copy));
            table::set_stream(copy, using.socket());
            let was_asked = using.mine().inn.wants_tcp.load(Ordering::Acquire) != 0;
            if table::is_standard(copy) && !was_asked {
                demotion::hand_over(&using, copy, "it is a standard input or output");
            }
        }
    }
}

/// `shutdown` of a stream to another host that is not carried yet. It may be, all the same: the other end may have gone over already, and what it has sent
/// since must come. What this end has sent went by TCP, and no bell goes that way.
fn shut_down_early(using: &Use, fd: c_int, how: c_int) -> Result<()> {
    let end = using.mine();
    if how != libc::SHUT_RD {
        let _held = using.hold_sending();
        end.out.is_finished.store(1, Ordering::SeqCst);
    }
    if how != libc::SHUT_WR {
        end.own.is_deaf.store(1, Ordering::SeqCst);
    }
    sys::shutdown(fd, how)?;
    stream::wake_gateway(using);
    Ok(())
}

/// `shutdown` of a stream.
pub(crate) fn shut_down(using: &Use, fd: c_int, how: c_int) -> Result<()> {
    if !(0..=2).contains(&how) {
        return Err(Errno(libc::EINVAL));
    }
    if using.gateway().is_some() && !stream::is_carried(using, fd) {
        return shut_down_early(using, fd, how);
    }
    if handshake::cancel(using) {
        return sys::shutdown(fd, how).map(|_| ());
    }
    stream::is_carried(using, fd);
    let end = using.mine();
    if stream::ask(using, fd) & libc::POLLHUP != 0 {
        return sys::shutdown(fd, how).map(|_| ());
    }
    if how != libc::SHUT_RD {
        let _held = using.hold_sending();
        end.out.is_finished.store(1, Ordering::SeqCst);
        if end.out.back_at.load(Ordering::Relaxed) != 0 {
            return sys::shutdown(fd, how).map(|_| ());
        }
        stream::tell(using, fd, true);
    }
    if how != libc::SHUT_WR {
        end.own.is_deaf.store(1, Ordering::SeqCst);
    }
    // Wakes threads of this process that wait for data or room, or are about to; what the kernel reports then is known to be this.
    end.inn.is_asleep.fetch_and(!FUTEX, Ordering::SeqCst);
    sys::futex_wake(&end.inn.is_asleep, u32::MAX);
    let is_both = end.out.is_finished.load(Ordering::Relaxed) != 0
        && end.own.is_deaf.load(Ordering::Relaxed) != 0;
    if how == libc::SHUT_WR {
        // What is ready for that the kernel does not tell of.
        epoll::notify(using);
    }
    // Of sending alone the kernel is not told; of both directions it is, and tells who sends here.
    match (is_both, how) {
        (true, _) => sys::shutdown(fd, libc::SHUT_RDWR).map(|_| ()),
        (false, libc::SHUT_WR) => Ok(()),
        (false, _) => sys::shutdown(fd, how).map(|_| ()),
    }
}
