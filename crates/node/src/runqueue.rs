//! How long the kernel has kept this thread from a core though it could run: what tells of others that want the same cores, in
//! whichever container they are.
//!
//! Read by `drive` now and then between waits. Where the kernel does not tell, nobody is known of.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::process::Pid;

/// Three decimal numbers and a line's end.
const TEXT_BYTES: usize = 80;

/// The account of one thread: that which read it last.
#[derive(Debug, Default)]
pub(crate) struct Runqueue {
    open: Option<(Pid, File)>,
}

impl Runqueue {
    /// Nanoseconds in which the calling thread was ready to run and did not, in all; `None`: not told.
    pub(crate) fn delay_ns(&mut self) -> Option<u64> {
        let thread = rustix::thread::gettid();
        if self.open.as_ref().is_none_or(|open| open.0 != thread) {
            let file = File::open("/proc/thread-self/schedstat").ok()?;
            self.open = Some((thread, file));
        }
        let mut text = [0; TEXT_BYTES];
        let bytes = self.open.as_ref()?.1.read_at(&mut text, 0).ok()?;
        second_number(&text[..bytes])
    }
}

/// Of time on a core, time waited for one, and slices.
fn second_number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second number is taken, and nothing else for it.
    #[test]
    fn accounts_are_read() {
        assert_eq!(second_number(b"12 345 6\n"), Some(345));
        for text in [&b""[..], b"12", b"12 x 6", b"12 -1 6", b"\xff\xff 3"] {
            assert_eq!(second_number(text), None, "{text:?}");
        }
    }

    /// Delays of a thread only grow, and another thread has its own.
    #[test]
    fn delays_are_of_the_thread_that_asks() {
        let mut queue = Runqueue::default();
        let Some(first) = queue.delay_ns() else {
            eprintln!("skipped: this kernel does not tell");
            return;
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let before = queue.open.as_ref().map(|open| open.0);
                assert!(queue.delay_ns().is_some());
                assert_ne!(queue.open.as_ref().map(|open| open.0), before);
            });
        });
        assert!(queue.delay_ns().is_some_and(|again| again >= first));
    }
}
