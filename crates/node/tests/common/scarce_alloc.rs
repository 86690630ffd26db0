//! An allocator that refuses large buffers of bytes to a thread that asked for that.

#![allow(unsafe_code, reason = "an allocator is unsafe to write")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Copies of what is kept are made in pieces of about this size.
pub(crate) const REFUSED_BYTES: usize = 32 << 10;

/// The system's allocator, which refuses large buffers of bytes to a thread that asked for that.
struct Scarce;

thread_local! {
    static IS_SCARCE: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: passes every call on to the system's allocator, or answers null, as an allocator may.
unsafe impl GlobalAlloc for Scarce {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let is_buffer = layout.align() == 1 && layout.size() >= REFUSED_BYTES;
        if is_buffer && IS_SCARCE.try_with(Cell::get).unwrap_or(false) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: what came from `alloc` came from the system's allocator.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Scarce = Scarce;

/// While it lives, this thread gets no large buffers; it must not panic then: a panic needs some.
pub(crate) struct Scarcity;

impl Scarcity {
    pub(crate) fn begin() -> Self {
        IS_SCARCE.set(true);
        Self
    }
}

impl Drop for Scarcity {
    fn drop(&mut self) {
        IS_SCARCE.set(false);
    }
}
