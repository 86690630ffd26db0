//! Pauses of all launches of this process: when a terminal suspends it (Ctrl-Z), it suspends first what it has launched, on all hosts.
//!
//! Called by programs that handle SIGTSTP, from whatever thread; `launcher` registers its launches here. Those that have ended are forgotten.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::shared::{Shared, State};

/// A keeper that cannot tell its workers of a pause within this is not waited for.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// A launch: its state, and what wakes its keeper.
type Launch = (Weak<Shared>, Weak<OwnedFd>);

#[derive(Debug)]
struct Launches {
    all: Vec<Launch>,
    /// They are suspended, and so is one that begins meanwhile.
    pause: bool,
}

static LAUNCHES: Mutex<Launches> = Mutex::new(Launches {
    all: Vec::new(),
    pause: false,
});

/// Each entry is pushed and removed in one step, so a panic elsewhere leaves the list sound.
fn launches() -> MutexGuard<'static, Launches> {
    LAUNCHES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes a launch that begins. To be called before its keeper runs.
pub(super) fn register(shared: &Arc<Shared>, wake: &Arc<OwnedFd>) {
    let mut launches = launches();
    launches.all.retain(|(shared, _)| shared.strong_count() > 0);
    launches
        .all
        .push((Arc::downgrade(shared), Arc::downgrade(wake)));
    shared.lock().pause = launches.pause;
}

/// Suspends the programs of all launches of this process, and what they started in their process groups, on all hosts; agents wait for
/// [`continue_launches`] as long as this process lives, without signs of life. To be called before the process itself is suspended. Returns when all are
/// told, two seconds later at the latest. False: some may not be told. An agent that was not takes the silence for its launcher's death.
pub fn pause_launches() -> bool {
    set_all(true)
}

/// Continues what [`pause_launches`] has suspended.
pub fn continue_launches() {
    set_all(false);
}

fn set_all(pause: bool) -> bool {
    let mut running = Vec::new();
    let mut launches = launches();
    launches.pause = pause;
    launches.all.retain(|(shared, wake)| {
        let launch = shared.upgrade().zip(wake.upgrade());
        let lives = launch.is_some();
        running.extend(launch);
        lives
    });
    drop(launches);
    for (shared, wake) in &running {
        shared.lock().pause = pause;
        let _ = rustix::io::write(wake, &1_u64.to_ne_bytes()); // fails only when it is awake already
    }
    let deadline = Instant::now() + TOLD_WITHIN;
    let is_told = |state: &State| state.is_paused == pause || state.ended;
    running
        .iter()
        .all(|(shared, _)| is_told(&shared.wait(Some(deadline), is_told)))
}
