//! Fences: of this thread, of the compiler alone, and of all threads that take part.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};

/// The full fence of the doorbell handshake.
#[inline]
pub(crate) fn full_fence() {
    fence(Ordering::SeqCst);
}

/// The compiler moves nothing across; the processor may.
#[inline]
pub(crate) fn no_reordering() {
    compiler_fence(Ordering::SeqCst);
}

/// Says that this process takes part in `fence_others`. Once for each process; `false`: the kernel cannot.
pub(crate) fn is_fenced_by_others() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED))
}

/// A full fence here and, between two of its instructions, in every thread of every process for which `is_fenced_by_others`.
/// `false`: the kernel cannot.
pub(crate) fn fence_others() -> bool {
    fence(Ordering::SeqCst);
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}

/// Between what was published and the look at a bell, or at whether anybody wants to hear of it.
#[inline]
pub(crate) fn fence_before_bell(is_fenced: bool) {
    if is_fenced {
        no_reordering(); // who sleeps makes the processor's fence
    } else {
        full_fence();
    }
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes three integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
