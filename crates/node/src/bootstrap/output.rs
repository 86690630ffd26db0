//! The thread that writes what workers print to this process's own outputs.
//!
//! `keeper` queues blocks. An output that is not read blocks this thread and, once the queue is full, the reading of the workers' pipes, and so in
//! the end the workers that print, but never the keeper, which must notice deaths.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that may wait to be written before workers' pipes are left unread.
const QUEUE_BYTES: usize = 1 << 20;

/// One of this process's outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Stdout,
    Stderr,
}

#[derive(Debug, Default)]
struct Queue {
    blocks: VecDeque<(Target, Vec<u8>)>,
    bytes: usize,
    /// A block is being written.
    writing: bool,
    /// The keeper found the queue full and wants to be woken.
    wanted: bool,
    /// Standard output can no longer be written: its reader has gone away, or it failed.
    stdout_gone: bool,
    /// The error, unless the reader has gone away.
    stdout_error: Option<std::io::Error>,
    closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner) // each change is one step
    }
}

/// The keeper's end of the queue. When it is dropped the thread writes what is left and ends.
#[derive(Debug)]
pub(super) struct Output {
    shared: Arc<Shared>,
}

impl Output {
    /// Starts the thread. `wake` is written to when there is room again after `has_room` said no.
    pub(super) fn start(wake: Arc<OwnedFd>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("tsumuji-output".to_owned());
        // Never joined: an output that is not read may block it for ever.
        thread.spawn(move || write_all(&theirs, &wake))?;
        Ok(Self { shared })
    }

    /// Queues a block, which is written whole.
    pub(super) fn push(&self, target: Target, block: Vec<u8>) {
        if !block.is_empty() {
            let mut queue = self.shared.lock();
            queue.bytes += block.len();
            queue.blocks.push_back((target, block));
            drop(queue);
            self.shared.changed.notify_all();
        }
    }

    /// Whether more should be read. If not, the thread wakes the caller once there is room.
    pub(super) fn has_room(&self) -> bool {
        let mut queue = self.shared.lock();
        queue.wanted = queue.bytes >= QUEUE_BYTES;
        !queue.wanted
    }

    /// Whether the reader of standard output has gone away. The thread wakes the caller when that happens.
    pub(super) fn is_stdout_gone(&self) -> bool {
        self.shared.lock().stdout_gone
    }

    /// The error of standard output, unless its reader has gone away. Returned once.
    pub(super) fn stdout_error(&self) -> Option<std::io::Error> {
        self.shared.lock().stdout_error.take()
    }

    /// Waits until all is written; `false`: `timeout` has passed.
    pub(super) fn flush(&self, timeout: Duration) -> bool {
        let waits = |queue: &mut Queue| queue.writing || !queue.blocks.is_empty();
        let changed = &self.shared.changed;
        let waited = changed.wait_timeout_while(self.shared.lock(), timeout, waits);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

fn write_all(shared: &Shared, wake: &OwnedFd) {
    let mut queue = shared.lock();
    loop {
        let Some((target, block)) = queue.blocks.pop_front() else {
            if queue.closed {
                return;
            }
            queue = shared
                .changed
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        queue.writing = true;
        drop(queue);
        let written = match target {
            Target::Stdout => {
                let mut out = std::io::stdout().lock();
                out.write_all(&block).and_then(|()| out.flush())
            }
            Target::Stderr => std::io::stderr().lock().write_all(&block),
        };
        queue = shared.lock();
        queue.writing = false;
        queue.bytes -= block.len();
        // A reader of ours that goes away is no failure. Workers' pipes are closed, so they notice as if they had printed there themselves.
        let gone = written.is_err() && target == Target::Stdout && !queue.stdout_gone;
        queue.stdout_gone |= gone;
        if let (true, Err(error)) = (gone, written)
            && error.kind() != std::io::ErrorKind::BrokenPipe
        {
            queue.stdout_error = Some(error);
        }
        if gone || queue.wanted && queue.bytes < QUEUE_BYTES {
            queue.wanted = false;
            let _ = rustix::io::write(wake, &1_u64.to_ne_bytes()); // fails only when it is awake already
        }
        shared.changed.notify_all();
    }
}
