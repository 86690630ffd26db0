//! What is watched: `epoll_ctl`, and streams that go over to their rings or are closed.

use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, epoll_event};

use super::{
    CANNOT, ET, Epoll, GATEWAY_EVENTS, Interest, KERNEL_EVENTS, LIVE, Nested, OF_GATEWAY, ONESHOT,
    State,
};
use crate::early::{self, Wanted};
use crate::sys::{self, Errno, Result};
use crate::table::{self, Use};
use crate::{arena, stream};

/// `epoll_ctl` for a stream.
pub(crate) fn control(
    epoll: &'static Epoll,
    operation: c_int,
    fd: c_int,
    using: &Use,
    event: Option<epoll_event>,
) -> Result<()> {
    inherit();
    // Another thread may be connecting it just now.
    attach(using, fd, &early::take(fd));
    let kernel = epoll.fd.load(Ordering::Relaxed);
    epoll.is_ever_ours.store(1, Ordering::Release);
    let known = using.interests.with(|all| {
        all.iter()
            .find(|one| one.is_of(epoll) && one.fd.load(Ordering::Relaxed) == fd)
            .copied()
    });
    let active = known.filter(|one| one.is_active.load(Ordering::Relaxed) != 0);
    if operation == libc::EPOLL_CTL_DEL {
        let Some(interest) = active else {
            return Err(Errno(libc::ENOENT));
        };
        if interest.is_ours.load(Ordering::Acquire) == 0 {
            sys::epoll_ctl(kernel, libc::EPOLL_CTL_DEL, fd, 0, 0)?;
            using.interests.with(|all| {
                all.retain(|one| !std::ptr::eq(*one, interest));
            });
            epoll.drop_interest(interest);
        } else {
            // It stays registered: a program that deletes it often adds it again.
            interest.is_active.store(0, Ordering::Relaxed);
        }
        return Ok(());
    }
    let event = event.ok_or(Errno(libc::EFAULT))?;
    let is_carried = stream::is_carried(using, fd);
    let interest = match (operation, active, known) {
        (libc::EPOLL_CTL_ADD, Some(_), _) => return Err(Errno(libc::EEXIST)),
        (libc::EPOLL_CTL_ADD, None, Some(left)) => {
            change(epoll, using, left, &event)?;
            left
        }
        (libc::EPOLL_CTL_ADD, None, None) => add(epoll, fd, using, &event, is_carried)?,
        (libc::EPOLL_CTL_MOD, Some(active), _) => {
            change(epoll, using, active, &event)?;
            active
        }
        (libc::EPOLL_CTL_MOD, None, _) => return Err(Errno(libc::ENOENT)),
        _ => return Err(Errno(libc::EINVAL)),
    };
    if !is_carried {
        let data = std::ptr::from_ref(interest) as u64;
        if operation == libc::EPOLL_CTL_MOD {
            sys::epoll_ctl(kernel, libc::EPOLL_CTL_MOD, fd, event.events, data)?;
        }
        // Another thread may have taken the stream over meanwhile.
        if using.is_carried.load(Ordering::Acquire) != 0 {
            take_over(using);
            let _ = sys::epoll_ctl(kernel, libc::EPOLL_CTL_MOD, fd, KERNEL_EVENTS, data);
        }
        return Ok(());
    }
    epoll.state.with(|state| {
        if !is_for(interest, epoll, using) {
            return;
        }
        if interest.is_ours.load(Ordering::Relaxed) == 0 {
            epoll.watch(state, interest);
        } else {
            epoll.queue(state, interest, true);
        }
    });
    epoll.kick_if_pending();
    Ok(())
}

/// Whether the interest is still that of the stream in the instance: another thread may have closed either, and the interest may be in use again.
fn is_for(interest: &Interest, epoll: &Epoll, using: &Use) -> bool {
    interest.is_of(epoll) && std::ptr::eq(interest.socket.load(Ordering::Acquire), using.socket())
}

fn change(epoll: &Epoll, using: &Use, interest: &Interest, event: &epoll_event) -> Result<()> {
    epoll.state.with(|_| {
        if !is_for(interest, epoll, using) {
            return Err(Errno(libc::ENOENT));
        }
        interest.events.store(event.events, Ordering::Relaxed);
        interest.data.store(event.u64, Ordering::Relaxed);
        interest.is_spent.store(0, Ordering::Relaxed);
        interest.told.store(0, Ordering::Relaxed);
        interest.is_active.store(1, Ordering::Release);
        Ok(())
    })
}

/// A new interest. It is whole before the kernel knows of it: another thread may be told of its first edge at once.
fn add(
    epoll: &'static Epoll,
    fd: c_int,
    using: &Use,
    event: &epoll_event,
    is_carried: bool,
) -> Result<&'static Interest> {
    let kernel = epoll.fd.load(Ordering::Relaxed);
    let interest = arena::take().ok_or(Errno(libc::ENOMEM))?;
    let data = std::ptr::from_ref(interest) as u64;
    let events = if is_carried {
        KERNEL_EVENTS
    } else {
        event.events
    };
    set(interest, epoll, using, fd);
    change(epoll, using, interest, event)?;
    if is_carried {
        stream::take_old_bells(using, fd, 1);
    }
    using.interests.with(|all| all.push(interest));
    if let Err(error) = sys::epoll_ctl(kernel, libc::EPOLL_CTL_ADD, fd, events, data) {
        using.interests.with(|all| {
            all.retain(|one| !std::ptr::eq(*one, interest));
        });
        epoll.drop_interest(interest);
        return Err(error);
    }
    add_gateway(using, interest, kernel);
    Ok(interest)
}

fn add_gateway(using: &Use, interest: &'static Interest, kernel: c_int) {
    if let Some(gateway) = using.gateway() {
        let data = std::ptr::from_ref(interest) as u64 | OF_GATEWAY;
        let _ = sys::epoll_ctl(kernel, libc::EPOLL_CTL_ADD, gateway, GATEWAY_EVENTS, data);
    }
}

/// A socket that instances were asked about has become a stream: its interests begin with that, and the kernel names them. False: some cannot be.
pub(crate) fn attach(using: &Use, fd: c_int, all_wanted: &[Wanted]) -> bool {
    for wanted in all_wanted {
        let (epoll, events) = (wanted.epoll, wanted.events);
        let Some(interest) = arena::take() else {
            return false;
        };
        let data = std::ptr::from_ref(interest) as u64;
        epoll.is_ever_ours.store(1, Ordering::Release);
        set(interest, epoll, using, fd);
        let event = epoll_event {
            events,
            u64: wanted.data,
        };
        let _ = change(epoll, using, interest, &event); // it is of this socket
        using.interests.with(|all| all.push(interest));
        let kernel = epoll.fd.load(Ordering::Relaxed);
        match sys::epoll_ctl(kernel, libc::EPOLL_CTL_MOD, fd, events, data) {
            Ok(_) => add_gateway(using, interest, kernel),
            Err(error) => {
                (using.interests).with(|all| all.retain(|one| !std::ptr::eq(*one, interest)));
                epoll.drop_interest(interest);
                // One that is not there any more was closed meanwhile.
                if ![libc::ENOENT, libc::EBADF].contains(&error.0) {
                    return false;
                }
            }
        }
    }
    if !all_wanted.is_empty() && using.is_carried.load(Ordering::Acquire) != 0 {
        take_over(using);
    }
    true
}

fn set(interest: &Interest, epoll: &'static Epoll, using: &Use, fd: c_int) {
    interest.fd.store(fd, Ordering::Relaxed);
    interest.is_ours.store(0, Ordering::Relaxed);
    interest.is_scanned.store(0, Ordering::Relaxed);
    interest.is_queued.store(0, Ordering::Relaxed);
    interest.has_edge.store(0, Ordering::Relaxed);
    interest.was_reported.store(0, Ordering::Relaxed);
    interest.is_active.store(0, Ordering::Relaxed);
    interest.seen_tail.store(u64::MAX, Ordering::Relaxed);
    interest.seen_state.store(0, Ordering::Relaxed);
    interest.socket.store(
        std::ptr::from_ref(using.socket()).cast_mut(),
        Ordering::Release,
    );
    interest
        .epoll
        .store(std::ptr::from_ref(epoll).cast_mut(), Ordering::Release);
}

/// `epoll_ctl` for an instance, by its descriptor, in another.
pub(crate) fn control_nested(
    outer: &'static Epoll,
    operation: c_int,
    (fd, inner): (c_int, &'static Epoll),
    event: Option<epoll_event>,
) -> Result<()> {
    let kernel = outer.fd.load(Ordering::Relaxed);
    let is_changed = operation != libc::EPOLL_CTL_DEL;
    let event = event.filter(|_| is_changed);
    if is_changed && event.is_none() {
        return Err(Errno(libc::EFAULT));
    }
    // Under the lock: what threads find meanwhile is of before, and what they change at the kernel, too.
    let result = outer.state.with(|state| {
        let has_key = event.is_some_and(|event| event.events & (ET | ONESHOT) != 0);
        let key = has_key.then(|| arena::take().ok_or(Errno(libc::ENOMEM)));
        let key = key.transpose()?;
        let (events, data) = event.map_or((0, 0), |event| (event.events, event.u64));
        let named = key.map_or(data, |key| std::ptr::from_ref(key) as u64);
        if let Err(error) = sys::epoll_ctl(kernel, operation, fd, events, named) {
            key.into_iter().for_each(arena::give_back);
            return Err(error);
        }
        let is_it = |one: &Nested| std::ptr::eq(one.epoll, inner) && one.fd == fd;
        forget_nested(state, is_it);
        if is_changed {
            state.nested.push(Nested {
                epoll: inner,
                fd,
                events,
                data,
                key,
                // What there is already is news.
                seen: inner.edges.load(Ordering::Relaxed).wrapping_sub(1),
                is_spent: false,
            });
            inner.is_nested.store(1, Ordering::Relaxed);
            outer.is_ever_ours.store(1, Ordering::Release);
        }
        Ok(())
    });
    // A thread that sleeps in the outer one has not armed what is new, or due again.
    if result.is_ok() && is_changed {
        outer.kick();
    }
    result
}

/// Instances that are in another no more.
pub(super) fn forget_nested(state: &mut State, mut is_out: impl FnMut(&Nested) -> bool) {
    state.nested.retain(|one| {
        let is_out = is_out(one);
        one.key
            .filter(|_| is_out)
            .into_iter()
            .for_each(arena::give_back);
        !is_out
    });
}

/// A stream has gone over to its ring: its interests are answered from memory.
pub(crate) fn take_over(using: &Use) {
    let all = using.interests.with(|all| all.clone());
    for interest in all {
        let Some(epoll) = arena::epoll(interest.epoll.load(Ordering::Acquire)) else {
            continue;
        };
        let fd = interest.fd.load(Ordering::Relaxed);
        let kernel = epoll.fd.load(Ordering::Relaxed);
        let data = std::ptr::from_ref(interest) as u64;
        epoll.state.with(|state| {
            if interest.is_ours.load(Ordering::Relaxed) == 0 {
                epoll.watch(state, interest);
                let _ = sys::epoll_ctl(kernel, libc::EPOLL_CTL_MOD, fd, KERNEL_EVENTS, data);
            }
        });
        epoll.kick_if_pending();
    }
}

/// A stream has changed by this process's own doing: whoever sleeps for it looks again.
pub(crate) fn notify(using: &Use) {
    for interest in using.interests.with(|all| all.clone()) {
        let Some(epoll) = arena::epoll(interest.epoll.load(Ordering::Acquire)) else {
            continue;
        };
        epoll.state.with(|state| {
            if is_for(interest, epoll, using) {
                epoll.queue(state, interest, true);
            }
        });
        epoll.kick_if_pending();
    }
}

/// A thread has taken what the kernel had to say of a stream, and the kernel says it once: who sleeps for it elsewhere, and is told by the kernel only,
/// looks again.
pub(crate) fn rouse(using: &Use) {
    let sleeping = |interest: &&'static Interest| {
        let epoll = arena::epoll(interest.epoll.load(Ordering::Acquire))?;
        // A gateway rings no doorbells. One within another would report its edges again and again.
        let is_nested = epoll.is_nested.load(Ordering::Relaxed) != 0;
        let is_told = (using.gateway().is_none() || is_nested)
            && interest.is_scanned.load(Ordering::Relaxed) == 0
            && epoll.doorbell.load(Ordering::Relaxed) != CANNOT;
        (!is_told && epoll.sleepers.load(Ordering::SeqCst) > 0).then_some(epoll)
    };
    let others: Vec<&'static Epoll> =
        (using.interests).with(|all| all.iter().filter_map(sleeping).collect());
    others.into_iter().for_each(Epoll::kick);
}

/// A stream is the kernel's again: so are its interests, which are returned.
pub(crate) fn release(using: &Use) -> Vec<Wanted> {
    let mut released = Vec::new();
    for interest in using.interests.with(std::mem::take) {
        let Some(epoll) = arena::epoll(interest.epoll.load(Ordering::Acquire)) else {
            continue;
        };
        let kernel = epoll.fd.load(Ordering::Relaxed);
        let fd = interest.fd.load(Ordering::Relaxed);
        let is_active = interest.is_active.load(Ordering::Relaxed) != 0;
        let (operation, events) = if is_active {
            (libc::EPOLL_CTL_MOD, interest.events.load(Ordering::Relaxed))
        } else {
            (libc::EPOLL_CTL_DEL, 0)
        };
        let data = interest.data.load(Ordering::Relaxed);
        let _ = sys::epoll_ctl(kernel, operation, fd, events, data);
        if is_active {
            released.push(Wanted {
                epoll,
                events,
                data,
            });
        }
        epoll.drop_interest(interest);
    }
    released
}

/// The last descriptor of a stream goes: the kernel forgets it, and so do we.
pub(crate) fn forget(using: &Use) {
    for interest in using.interests.with(std::mem::take) {
        if let Some(epoll) = arena::epoll(interest.epoll.load(Ordering::Acquire)) {
            epoll.drop_interest(interest);
        }
    }
}

static IS_INHERITED: AtomicU32 = AtomicU32::new(0);

/// In a forked child: ready bits and waiters are the parent's, and so are sleepers. Nothing may be allocated there.
pub(crate) fn after_fork() {
    LIVE.with(|live| {
        for epoll in live.iter() {
            epoll.sleepers.store(0, Ordering::Relaxed);
            epoll.waiters.store(0, Ordering::Relaxed);
            epoll.is_inherited.store(1, Ordering::Relaxed);
            epoll.state.with(|state| state.watched.clear());
            // It is the parent's.
            let doorbell = epoll.doorbell.swap(-1, Ordering::AcqRel);
            if doorbell >= 0 {
                table::close_own(doorbell);
            }
            IS_INHERITED.store(1, Ordering::Relaxed);
        }
    });
}

/// Before an instance is used: in a forked child its streams are looked at one by one.
#[inline]
pub(super) fn inherit() {
    if IS_INHERITED.load(Ordering::Relaxed) != 0 && IS_INHERITED.swap(0, Ordering::Relaxed) != 0 {
        scan_inherited();
    }
}

#[cold]
fn scan_inherited() {
    table::for_each_stream(|socket| {
        for interest in socket.interests.with(|all| all.clone()) {
            let is_ours = interest.is_ours.load(Ordering::Relaxed) != 0;
            if let Some(epoll) = arena::epoll(interest.epoll.load(Ordering::Relaxed))
                && is_ours
                && interest.is_scanned.swap(1, Ordering::Relaxed) == 0
            {
                epoll.state.with(|state| state.scanned.push(interest));
            }
        }
    });
}
