//! Fences: of this thread, of the compiler alone, and of all threads that take part.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};

use rustix::thread::{MembarrierCommand, membarrier};

/// The full fence of the doorbell handshake.
#[inline]
pub(crate) fn full_fence() {
    fence(Ordering::SeqCst);
}

/// A fence for the compiler alone; the processor may reorder across it.
#[inline]
pub(crate) fn no_reordering() {
    compiler_fence(Ordering::SeqCst);
}

/// Registers this process for `fence_others`, once. `false`: the kernel cannot do it.
pub(crate) fn is_fenced_by_others() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok())
}

/// A full fence here and, between two of its instructions, in every thread of every process that registered by `is_fenced_by_others`. `false`: the
/// kernel cannot do it.
pub(crate) fn fence_others() -> bool {
    fence(Ordering::SeqCst);
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// The fence between publishing a record and reading a bell, or reading whether the peer wants to be told.
#[inline]
pub(crate) fn fence_before_bell(is_fenced: bool) {
    if is_fenced {
        no_reordering(); // the sleeper makes the processor's fence
    } else {
        full_fence();
    }
}
