//! Short broadcasts over shared memory allocate nothing once they run.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{Over, on_all};
use tsumuji_collective::Table;
use tsumuji_node::Options;

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is being torn down has no counter any more; those are not counted.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

#[allow(unsafe_code)] // the trait is unsafe; all work is the system allocator's
// SAFETY: every call goes unchanged to `System`, which keeps the trait's promises; `count` neither allocates nor unwinds
// (the thread-local is const-initialised and has no destructor).
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(place, layout) }
    }
    unsafe fn realloc(&self, place: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(place, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Neither the root nor the others, whether they wait for each other or not.
#[test]
fn short_broadcasts_allocate_nothing() {
    on_all(
        Over::Shm,
        3,
        &Options::default(),
        &Table::default(),
        |member| {
            let world = member.collectives.world();
            let mut once = |root: usize| {
                let mut data = [if member.rank == root { 5_u64 } else { 0 }; 12];
                let (endpoint, collectives) = (&mut member.endpoint, &mut member.collectives);
                let done = collectives.broadcast(endpoint, world, root, &mut data);
                assert!(done.is_ok() && data == [5; 12]);
            };
            // Each in turn, so that everybody waits for everybody.
            for round in 0..3_000 {
                once(round % 3);
            }
            let before = ALLOCATIONS.with(Cell::get);
            for round in 0..20_000 {
                once(if round < 10_000 { round % 3 } else { 1 });
            }
            let made = ALLOCATIONS.with(Cell::get) - before;
            // Acknowledgements and keep-alives of the endpoint go on meanwhile.
            assert!(made < 12, "{made} allocations");
        },
    );
}
