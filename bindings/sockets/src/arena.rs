//! Where interests of epoll instances lie: in one range of addresses, so that events of ours are told from the program's by their data.
//!
//! `epoll` takes and gives back. Nothing is ever unmapped.
#![allow(unsafe_code)] // Addresses that come back from the kernel become references again.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::epoll::{Epoll, Interest};
use crate::lock::Locked;
use crate::sys;
use crate::table::Socket;

/// Interests that a process may have; memory only where used.
const INTERESTS_MAX: usize = 1 << 18;

static BASE: AtomicPtr<Interest> = AtomicPtr::new(std::ptr::null_mut());
static USED: AtomicUsize = AtomicUsize::new(0);
static FREE: Locked<Vec<&'static Interest>> = Locked::new(Vec::new());
static MARKER: Interest = Interest::new();

/// What an eventfd of ours is registered with. It is no interest, but `interest` finds it.
pub(crate) fn marker() -> &'static Interest {
    &MARKER
}

/// The interest whose address the data of an event are.
#[inline]
pub(crate) fn interest(data: u64) -> Option<&'static Interest> {
    if data == std::ptr::from_ref(&MARKER) as u64 {
        return Some(&MARKER);
    }
    let base = BASE.load(Ordering::Acquire);
    let offset = (data as usize).wrapping_sub(base as usize);
    let used = USED.load(Ordering::Acquire) * size_of::<Interest>();
    if base.is_null() || offset >= used || !offset.is_multiple_of(size_of::<Interest>()) {
        return None;
    }
    // SAFETY: an interest of the arena, made before `USED` grew past it.
    Some(unsafe { &*(data as *const Interest) })
}

pub(crate) fn take() -> Option<&'static Interest> {
    if let Some(free) = FREE.with(Vec::pop) {
        return Some(free);
    }
    FREE.with(|_| {
        if BASE.load(Ordering::Acquire).is_null() {
            let bytes = INTERESTS_MAX * size_of::<Interest>();
            let base = sys::map_private(bytes).ok()?;
            BASE.store(base.cast(), Ordering::Release);
        }
        let number = USED.load(Ordering::Acquire);
        if number == INTERESTS_MAX {
            return None;
        }
        let place = BASE.load(Ordering::Acquire).wrapping_add(number);
        // SAFETY: within the arena, and nobody else's: the lock is held and `USED` has not reached it.
        let interest = unsafe {
            place.write(Interest::new());
            &*place
        };
        USED.store(number + 1, Ordering::Release);
        Some(interest)
    })
}

/// Before a fork.
pub(crate) fn freeze() {
    FREE.freeze();
}

/// After it.
pub(crate) fn thaw() {
    FREE.thaw();
}

pub(crate) fn give_back(interest: &'static Interest) {
    FREE.with(|free| free.push(interest));
}

/// The instance at an address that was stored.
pub(crate) fn epoll(address: *mut Epoll) -> Option<&'static Epoll> {
    // SAFETY: NULL, or made of a reference to an instance; those are never freed.
    unsafe { address.as_ref() }
}

/// The socket at an address that was stored.
pub(crate) fn socket(address: *mut Socket) -> Option<&'static Socket> {
    // SAFETY: NULL, or made of a reference to a socket; those are never freed.
    unsafe { address.as_ref() }
}
