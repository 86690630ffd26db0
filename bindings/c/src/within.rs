//! What a callback may do with its message: reply, and send.
//!
//! The endpoint is busy during a callback, so its handle cannot be used; instead there is a [`Context`], which lives as long as the callback runs. C
//! names it by the message's `borrow`, a number that no other call had, and it is looked up among those of this thread. So a message that outlived
//! its callback, or came to another thread, is an error and not a fault.
#![allow(
    unsafe_code,
    reason = "a context is reached by pointer while its callback runs"
)]

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use tsumuji_node::Context;

use crate::failure::Failure;

thread_local! {
    /// Callbacks that run on this thread, the innermost last. (A handler of one endpoint may poll another.)
    static RUNNING: RefCell<Vec<(u64, NonNull<()>)>> = const { RefCell::new(Vec::new()) };
}

/// Number of names given so far.
static NAMES: AtomicU64 = AtomicU64::new(0);

/// Runs a callback with the name of `context`.
pub(crate) fn run(context: &mut Context<'_>, call: impl FnOnce(u64)) {
    let name = 1 + NAMES.fetch_add(1, Ordering::Relaxed);
    let place = NonNull::from(context).cast::<()>();
    RUNNING.with_borrow_mut(|running| running.push((name, place)));
    let _leave = Leave;
    call(name);
}

/// Removes a callback's entry, however it ends.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        RUNNING.with_borrow_mut(Vec::pop);
    }
}

/// Runs `call` on the context that a callback's message names.
pub(crate) fn with<T>(
    name: u64,
    call: impl FnOnce(&mut Context<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let found = RUNNING.with_borrow(|running| {
        let known = running.iter().rev().find(|known| known.0 == name);
        known.map(|known| known.1)
    });
    let place = found.ok_or_else(|| {
        Failure::invalid("this is not the message of a callback that runs on this thread")
    })?;
    // SAFETY: put there by `run`, whose callback runs on this thread and has the only use of the context until it returns; the entry goes
    // before the context does. `call` is code of ours that calls no callback, so there is one reference.
    call(unsafe { place.cast::<Context<'_>>().as_mut() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name of no running callback is refused.
    #[test]
    fn only_running_callbacks_are_found() {
        let refused = with(u64::MAX, |_| Ok(()));
        assert!(refused.is_err());
    }
}
