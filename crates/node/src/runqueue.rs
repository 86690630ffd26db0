//! The run-queue delay of this thread: how long it was ready to run without a core. It shows others that want the same cores, in any container.
//!
//! `drive` reads it now and then between waits. If the kernel does not provide it, no others are assumed.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::process::Pid;

/// Size of three decimal numbers and a newline.
const TEXT_BYTES: usize = 80;

/// The account of the thread that read it last. Values of two threads are never compared: on a change of thread the result is `None`.
#[derive(Debug, Default)]
pub(crate) struct Runqueue {
    open: Option<(Pid, File)>,
}

impl Runqueue {
    /// Total nanoseconds in which the calling thread was ready to run and did not; `None`: not available, or another thread called before.
    pub(crate) fn delay_ns(&mut self) -> Option<u64> {
        let thread = rustix::thread::gettid();
        // Put back only after success: the id of an ended thread may be reused, its file is not.
        let file = match self.open.take() {
            Some((reader, file)) if reader == thread => file,
            Some(_) => return None,
            None => File::open("/proc/thread-self/schedstat").ok()?,
        };
        let mut text = [0; TEXT_BYTES];
        let bytes = file.read_at(&mut text, 0).ok()?;
        self.open = Some((thread, file));
        second_number(&text[..bytes])
    }
}

/// The second of: time on a core, time waiting for one, slices.
fn second_number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports that the kernel has no schedstat; if TSUMUJI_REQUIRE contains `schedstat`, that is a failure.
    fn skip(test: &str) {
        println!("SKIPPED {test}: this kernel has no schedstat");
        let required = std::env::var("TSUMUJI_REQUIRE").unwrap_or_default();
        assert!(
            !required.split(',').any(|word| word == "schedstat"),
            "TSUMUJI_REQUIRE=schedstat, and nothing was read"
        );
    }

    /// The second number is taken; malformed texts give none.
    #[test]
    fn accounts_are_read() {
        assert_eq!(second_number(b"12 345 6\n"), Some(345));
        for text in [&b""[..], b"12", b"12 x 6", b"12 -1 6", b"\xff\xff 3"] {
            assert_eq!(second_number(text), None, "{text:?}");
        }
    }

    /// Delays of a thread only grow, and another thread has its own: the first reading after a change of thread is `None`.
    #[test]
    fn delays_are_of_the_thread_that_asks() {
        let mut queue = Runqueue::default();
        let Some(first) = queue.delay_ns() else {
            return skip("delays_are_of_the_thread_that_asks");
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let before = queue.open.as_ref().map(|open| open.0);
                assert_eq!(queue.delay_ns(), None);
                assert!(queue.delay_ns().is_some());
                assert_ne!(queue.open.as_ref().map(|open| open.0), before);
            });
        });
        assert_eq!(queue.delay_ns(), None);
        assert!(queue.delay_ns().is_some_and(|again| again >= first));
    }

    /// A file that cannot be read is dropped: here that of an ended thread, recorded under our id.
    #[test]
    fn an_account_that_ended_is_forgotten() {
        let mut queue = Runqueue::default();
        if queue.delay_ns().is_none() {
            return skip("an_account_that_ended_is_forgotten");
        }
        let ended = std::thread::spawn(|| File::open("/proc/thread-self/schedstat"));
        let ended = ended.join().expect("thread").expect("file");
        let mut text = [0; TEXT_BYTES];
        while ended.read_at(&mut text, 0).is_ok() {
            std::thread::yield_now(); // joined, but not reaped yet
        }
        queue.open = Some((rustix::thread::gettid(), ended));
        assert_eq!(queue.delay_ns(), None);
        assert!(queue.delay_ns().is_some());
    }
}
