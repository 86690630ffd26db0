//! How long the kernel has kept this thread from a core though it could run: what tells of others that want the same cores, in
//! whichever container they are.
//!
//! Read by `drive` now and then between waits. Where the kernel does not tell, nobody is known of.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::process::Pid;

/// Three decimal numbers and a line's end.
const TEXT_BYTES: usize = 80;

/// The account of one thread: that which read it last. Those of two are never compared: between them `None` is said.
#[derive(Debug, Default)]
pub(crate) struct Runqueue {
    open: Option<(Pid, File)>,
}

impl Runqueue {
    /// Nanoseconds in which the calling thread was ready to run and did not, in all; `None`: not told, or it was another thread that
    /// asked before.
    pub(crate) fn delay_ns(&mut self) -> Option<u64> {
        let thread = rustix::thread::gettid();
        // Taken, and put back only if all goes well: the number of a thread that ended may be another's by now, its file is not.
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

/// Of time on a core, time waited for one, and slices.
fn second_number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says that the kernel does not tell; where TSUMUJI_REQUIRE has the word `schedstat`, it must.
    fn skip(test: &str) {
        println!("SKIPPED {test}: this kernel has no schedstat");
        let required = std::env::var("TSUMUJI_REQUIRE").unwrap_or_default();
        assert!(
            !required.split(',').any(|word| word == "schedstat"),
            "TSUMUJI_REQUIRE=schedstat, and nothing was read"
        );
    }

    /// The second number is taken, and nothing else for it.
    #[test]
    fn accounts_are_read() {
        assert_eq!(second_number(b"12 345 6\n"), Some(345));
        for text in [&b""[..], b"12", b"12 x 6", b"12 -1 6", b"\xff\xff 3"] {
            assert_eq!(second_number(text), None, "{text:?}");
        }
    }

    /// Delays of a thread only grow, and another thread has its own: the first look of each after another is none.
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

    /// A file that cannot be read is not asked again: here that of a thread that ended, whose number we have now.
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
