//! The allocator of tests that count: what each thread allocates, how many bytes the process has, and the most it had.
#![allow(unsafe_code)] // The trait is unsafe; all work is the system allocator's.
#![allow(dead_code)] // Each test program uses a part.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn took(bytes: usize) {
    // A thread that is being torn down has no counter any more; those are not counted.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

fn gave(bytes: usize) {
    LIVE.fetch_sub(bytes, Ordering::Relaxed);
}

// SAFETY: every call goes unchanged to `System`, which keeps the trait's promises; counting neither allocates nor unwinds (the
// thread-local is const-initialised and has no destructor).
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

/// How often this thread has allocated.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Bytes in use.
pub(crate) fn live_bytes() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// Bytes in use now; the peak begins here.
pub(crate) fn begin_peak() -> usize {
    let live = live_bytes();
    PEAK.store(live, Ordering::Relaxed);
    live
}

/// The most that was in use since `begin_peak`.
pub(crate) fn peak_bytes() -> usize {
    PEAK.load(Ordering::Relaxed)
}
