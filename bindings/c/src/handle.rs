//! Handles of C programs: which thread may use one, and what a panic does.
//!
//! A handle belongs to one thread, the one that opened it, until that one releases it and another acquires it. A call from any other thread is
//! refused before anything is accessed, and so is a call from within a callback of the same handle: there is never more than one `&mut Node`. After a
//! fork the child has copies of the handles, which no thread of it owns or can acquire.
//!
//! Invariants: `busy` and `node` are accessed only by the thread whose number is in `owner`; handles are never freed, only what they own, so that a
//! closed one is recognised.
#![allow(
    unsafe_code,
    reason = "C programs hold handles as pointers; the rule above is checked here"
)]

use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use crate::failure::Failure;
use crate::node::Node;

/// Value of `owner`: no thread.
const NOBODY: usize = 0;

/// Value of `owner`: the handle was closed.
const CLOSED: usize = usize::MAX;

/// An endpoint as C programs hold it.
#[derive(Debug)]
pub struct Tsumuji {
    owner: AtomicUsize,
    /// Forks of the process when it was opened.
    forks: usize,
    busy: Cell<bool>,
    /// `None`: closed.
    node: UnsafeCell<Option<Box<Node>>>,
}

// Handles move between threads by `release_ownership` and `acquire_ownership`.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Node>();
};

thread_local! {
    static ME: Cell<usize> = const { Cell::new(NOBODY) };
}

/// Closed handles, 32 bytes each: kept, so that their addresses are not used again.
static CLOSED_ONES: Mutex<Vec<ClosedHandle>> = Mutex::new(Vec::new());

struct ClosedHandle(
    #[expect(dead_code, reason = "keeps the memory reachable, for leak checkers")] *const Tsumuji,
);

// SAFETY: the pointer is never dereferenced.
unsafe impl Send for ClosedHandle {}

static NEXT: AtomicUsize = AtomicUsize::new(NOBODY + 1);

/// Number of `fork`s from the first process to this one.
static FORKS: AtomicUsize = AtomicUsize::new(0);

/// Runs in a child after `fork`: its one thread gets a new number, and owns none of the parent's handles.
extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let _ = ME.try_with(|me| me.set(number)); // a thread that is ending needs no number
}

fn mind_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: `in_child` only touches atomics and a plain thread-local of the forking thread.
    ONCE.call_once(
        || match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
            0 => {}
            error => {
                eprintln!("tsumuji: pthread_atfork: error {error}; do not use handles after fork")
            }
        },
    );
}

/// Number of this thread, which no other thread has or had.
fn me() -> usize {
    // A thread that is ending and has lost its number gets a new one, and so owns no handle.
    let number = ME.try_with(Cell::get).unwrap_or(NOBODY);
    if number != NOBODY {
        return number;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let _ = ME.try_with(|me| me.set(number));
    number
}

impl Tsumuji {
    pub(crate) fn new(node: Node) -> Self {
        mind_forks();
        Self {
            owner: AtomicUsize::new(me()),
            forks: FORKS.load(Ordering::Relaxed),
            busy: Cell::new(false),
            node: UnsafeCell::new(Some(Box::new(node))),
        }
    }

    /// Makes a handle for C: it is never freed.
    pub(crate) fn give(node: Node) -> Handle {
        Handle(Box::into_raw(Box::new(Self::new(node))))
    }

    fn check_owner(&self) -> Result<(), Failure> {
        // Relaxed: only this thread writes its own number.
        match self.owner.load(Ordering::Relaxed) {
            owner if owner == me() => Ok(()),
            CLOSED => Err(Failure::CLOSED),
            _ => Err(Failure::OTHER_THREAD),
        }
    }

    /// Runs `call` on the handle's node, unless it may not be used now. A panic becomes a failure, and spoils the handle.
    pub(crate) fn run<T>(
        &self,
        call: impl FnOnce(&mut Node) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.check_owner()?;
        if self.busy.replace(true) {
            return Err(Failure::BUSY);
        }
        let _leave = Leave(&self.busy);
        // SAFETY: this thread is the owner, so no other accesses `node`, and the last owner's writes are visible (`acquire_ownership`). `busy` was
        // not set, so no call of this thread holds a reference.
        let Some(node) = (unsafe { (*self.node.get()).as_deref_mut() }) else {
            return Err(Failure::CLOSED);
        };
        if node.spoiled {
            return Err(Failure::PANICKED);
        }
        let result = contained(|| call(node));
        if matches!(&result, Err(failure) if failure.code == Failure::PANICKED.code) {
            node.spoiled = true;
        }
        result
    }

    /// Ends this thread's ownership, so that another thread can acquire it.
    pub(crate) fn release_ownership(&self) -> Result<(), Failure> {
        self.check_owner()?;
        if self.busy.get() {
            return Err(Failure::BUSY);
        }
        // Release: makes this thread's changes of `node` visible to the thread that acquires it.
        self.owner.store(NOBODY, Ordering::Release);
        Ok(())
    }

    /// Takes ownership of a released handle.
    pub(crate) fn acquire_ownership(&self) -> Result<(), Failure> {
        if self.forks != FORKS.load(Ordering::Relaxed)
            && self.owner.load(Ordering::Relaxed) != CLOSED
        {
            return Err(Failure::OTHER_THREAD);
        }
        self.owner
            .compare_exchange(NOBODY, me(), Ordering::Acquire, Ordering::Relaxed)
            .map(drop)
            .map_err(|owner| match owner {
                CLOSED => Failure::CLOSED,
                _ => Failure::OTHER_THREAD,
            })
    }

    /// Closes the handle and returns its node.
    pub(crate) fn close(&self) -> Result<Option<Box<Node>>, Failure> {
        self.check_owner()?;
        if self.busy.get() {
            return Err(Failure::BUSY);
        }
        // SAFETY: this thread is the owner, and in no call: as in `run`.
        let node = unsafe { (*self.node.get()).take() };
        self.owner.store(CLOSED, Ordering::Relaxed); // the other fields are not used any more
        let mut kept = CLOSED_ONES.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(ClosedHandle(std::ptr::from_ref(self)));
        Ok(node)
    }
}

/// Clears `busy` however the call ends.
struct Leave<'a>(&'a Cell<bool>);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Runs `call`; a panic becomes a failure.
pub(crate) fn contained<T>(call: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        std::mem::forget(payload); // dropping the payload might panic again
        Err(Failure::PANICKED)
    })
}

/// A handle as C programs pass it: NULL, or what opening an endpoint gave.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct Handle(*mut Tsumuji);

impl Handle {
    pub(crate) fn pointer(self) -> *mut Tsumuji {
        self.0
    }

    /// What is behind it; `None`: NULL.
    pub(crate) fn get(self) -> Option<&'static Tsumuji> {
        // SAFETY: made by `give`, or by C, of which the header asks for that or NULL. Handles are never freed. What is behind one is shared by
        // reference only: `run` keeps threads apart.
        unsafe { self.0.as_ref() }
    }

    /// What is behind it.
    pub(crate) fn needed(self) -> Result<&'static Tsumuji, Failure> {
        self.get()
            .ok_or_else(|| Failure::invalid("the handle is NULL"))
    }
}

/// Runs `call` on the node of a handle.
pub(crate) fn on<T>(
    handle: Handle,
    call: impl FnOnce(&mut Node) -> Result<T, Failure>,
) -> Result<T, Failure> {
    handle.needed()?.run(call)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
    use tsumuji_node::{Membership, MetricsAt, NodeId, Options, any_link::Base, endpoint_on};

    fn handle() -> Tsumuji {
        let job = ShmJob::create(1, ShmConfig::for_nodes(1)).expect("job");
        let link = Base::Shm(Shm::attach(&job, 0).expect("link"));
        let options = Options {
            metrics: MetricsAt::Off,
            ..Options::default()
        };
        let endpoint = endpoint_on(link, Membership::local(NodeId(0), 1), options);
        Tsumuji::new(Node::new(endpoint.expect("endpoint")))
    }

    fn code<T>(result: Result<T, Failure>) -> i32 {
        result.map_or_else(|failure| failure.code, |_| 0)
    }

    /// A panic becomes a code, and the handle is not used again.
    #[test]
    fn panics_are_contained() {
        let handle = handle();
        assert_eq!(code(handle.run(|_| Ok(()))), 0);
        let panicked = handle.run(|_| -> Result<(), Failure> { panic!("on purpose") });
        assert_eq!(code(panicked), crate::api::TSUMUJI_EPANIC);
        let again = handle.run(|_| -> Result<(), Failure> { unreachable!("it is spoiled") });
        assert_eq!(code(again), crate::api::TSUMUJI_EPANIC);
        let node = handle.close().expect("it can be closed");
        assert!(node.expect("once").spoiled);
    }

    /// A closed handle says so, to every thread and call.
    #[test]
    fn closed_handles_are_known() {
        struct Shared(Tsumuji);
        // SAFETY: as below.
        unsafe impl Sync for Shared {}
        let shared = Shared(handle());
        assert!(shared.0.close().expect("open").is_some());
        let shared = &shared;
        let refused = move || {
            let invalid = crate::api::TSUMUJI_EINVAL;
            assert_eq!(code(shared.0.run(|_| Ok(()))), invalid);
            assert_eq!(code(shared.0.close()), invalid);
            assert_eq!(code(shared.0.acquire_ownership()), invalid);
            assert_eq!(code(shared.0.release_ownership()), invalid);
        };
        refused();
        std::thread::scope(|scope| scope.spawn(refused).join().expect("thread"));
    }

    /// A call within a call is refused, and the outer one goes on.
    #[test]
    fn calls_do_not_nest() {
        let handle = handle();
        let outer = handle.run(|_| {
            assert_eq!(code(handle.run(|_| Ok(()))), crate::api::TSUMUJI_EBUSY);
            assert_eq!(code(handle.release_ownership()), crate::api::TSUMUJI_EBUSY);
            Ok(7)
        });
        assert_eq!(outer.expect("done"), 7);
        assert_eq!(code(handle.run(|_| Ok(()))), 0);
    }

    /// Of threads that compete for a released handle, one gets it, and only that one may use it.
    #[test]
    fn one_thread_owns_a_handle() {
        struct Shared(Tsumuji);
        // SAFETY: `run`, `release_ownership` and `acquire_ownership` keep threads apart; that is tested here.
        unsafe impl Sync for Shared {}
        let shared = Shared(handle());
        let shared = &shared;
        for _ in 0..50 {
            shared.0.release_ownership().expect("ours");
            let takers: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|_| {
                        scope.spawn(move || {
                            let acquired = shared.0.acquire_ownership().is_ok();
                            assert_eq!(shared.0.run(|_| Ok(())).is_ok(), acquired);
                            acquired
                        })
                    })
                    .collect();
                let taken = threads
                    .into_iter()
                    .map(|thread| thread.join().expect("thread"));
                taken.filter(|taken| *taken).count()
            });
            assert_eq!(takers, 1);
            assert_eq!(code(shared.0.run(|_| Ok(()))), crate::api::TSUMUJI_ETHREAD);
            // Its owner has ended; only a test may do this.
            shared.0.owner.store(me(), Ordering::Release);
        }
    }
}
