//! How many bytes this process has allocated and not freed, and the most it ever had: what an attacker may not make grow.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn took(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

fn gave(bytes: usize) {
    LIVE.fetch_sub(bytes, Ordering::Relaxed);
}

#[allow(unsafe_code)] // the trait is unsafe; all work is the system allocator's
// SAFETY: every call goes unchanged to `System`, which keeps the trait's promises; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        gave(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(place, layout) }
    }
    unsafe fn realloc(&self, place: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        took(new_size);
        gave(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(place, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes in use now; the peak begins here.
pub(crate) fn begin() -> usize {
    let live = LIVE.load(Ordering::Relaxed);
    PEAK.store(live, Ordering::Relaxed);
    live
}

/// The most that was in use since `begin`.
pub(crate) fn peak() -> usize {
    PEAK.load(Ordering::Relaxed)
}
