//! Programs that replace this one, and descriptors that leave the process.
//!
//! A program that is executed with this library in its environment finds in a variable which of the descriptors that it inherits are streams, and where
//! their memory is. Of one without the library (static, or with another environment) the connections go back to TCP first.
#![allow(unsafe_code)] // Environments and argument lists of C.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt::Write;
use std::sync::atomic::Ordering;

use crate::hello::Fd;
use crate::ring::{BELL, SLOTS, WAITERS};
use crate::table::{self, Socket, Use};
use crate::{close, demotion, epoll, explain, listener, lock, segment, start, sys};

/// `FD.FILE.SLOT.SIDE.GATEWAY;` for each stream; the last is one more than the descriptor, 0 if there is none.
const INHERIT: &CStr = c"TSUMUJI_SOCKETS_INHERIT";
/// Part of the library's path.
const LIBRARY: &[u8] = b"libtsumuji_sockets";
const PRELOAD: &[u8] = b"LD_PRELOAD=";

/// What was changed for an `exec`, and the environment for it.
pub(crate) struct Prepared {
    pub(crate) environment: Vec<*const c_char>,
    _text: Option<CString>,
    left: Vec<&'static Socket>,
    files: Vec<c_int>,
}

impl Prepared {
    /// The `exec` has failed: all is as before.
    pub(crate) fn undo(&self) {
        for socket in &self.left {
            let using = table::using(socket);
            using.mine().own.processes.fetch_add(1, Ordering::AcqRel);
        }
        for file in &self.files {
            let _ = sys::fcntl(*file, libc::F_SETFD, libc::FD_CLOEXEC as usize);
        }
    }
}

/// Makes the streams ready for another program at `path`. `None`: there is nothing to be done.
///
/// # Safety
/// `environment` is NULL or a list of texts that ends in NULL.
pub(crate) unsafe fn prepare(path: &CStr, environment: *const *const c_char) -> Option<Prepared> {
    let mut sockets = Vec::new();
    table::for_each_stream(|socket| sockets.push(socket));
    if sockets.is_empty() || !sys::is_executable(path) {
        return None;
    }
    let mut list = Vec::new();
    let mut at = environment;
    // SAFETY: the list ends in NULL, as the caller promises.
    while !at.is_null() && !unsafe { *at }.is_null() {
        // SAFETY: as above.
        unsafe {
            list.push(*at);
            at = at.add(1);
        }
    }
    // SAFETY: each is a text.
    let text = |entry: &*const c_char| unsafe { CStr::from_ptr(*entry) }.to_bytes();
    let is_preloaded = list.iter().map(text).any(|entry| {
        entry.starts_with(PRELOAD) && entry.windows(LIBRARY.len()).any(|part| part == LIBRARY)
    });
    let is_reached = is_preloaded && can_be_reached(path, 0);
    list.retain(|entry| !text(entry).starts_with(INHERIT.to_bytes()));
    let mut prepared = Prepared {
        environment: list,
        _text: None,
        left: Vec::new(),
        files: Vec::new(),
    };
    let mut value = format!("{}=", INHERIT.to_str().unwrap_or_default());
    let mut leaving = Vec::new();
    for socket in sockets {
        let using = table::using(socket);
        let fds = using.fds.with(|fds| fds.clone());
        if fds.is_empty() {
            // Another thread is still in a call of a stream that is closed.
            continue;
        }
        let kept: Vec<c_int> = fds.into_iter().filter(|fd| is_inherited(*fd)).collect();
        if kept.is_empty() {
            using.mine().own.leave_at_once();
            prepared.left.push(socket);
        } else if is_reached {
            if let Some(segment) = using.segment() {
                let file = segment.get().fd.load(Ordering::Relaxed) as c_int;
                let _ = sys::fcntl(file, libc::F_SETFD, 0);
                prepared.files.push(file);
                if let Some(gateway) = using.gateway() {
                    let _ = sys::fcntl(gateway, libc::F_SETFD, 0);
                    prepared.files.push(gateway);
                }
                let gateway = using.gateway().map_or(0, |gateway| gateway + 1);
                for fd in kept {
                    let (slot, side) = (using.number(), using.side());
                    let _ = write!(value, "{fd}.{file}.{slot}.{side}.{gateway};");
                }
            }
        } else {
            leaving.push((using, kept[0]));
        }
    }
    demotion::surrender(&leaving, "a program without this library is executed");
    if !prepared.files.is_empty()
        && let Ok(text) = CString::new(value)
    {
        prepared.environment.push(text.as_ptr());
        prepared._text = Some(text);
    }
    prepared.environment.push(std::ptr::null());
    Some(prepared)
}

fn is_inherited(fd: c_int) -> bool {
    sys::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC as usize == 0)
}

/// Whether a file is a program of glibc into which the dynamic linker loads us, or a script of one. `tsumuji run` looks more closely.
fn can_be_reached(path: &CStr, depth: u32) -> bool {
    let mut head = [0u8; 8192];
    // One that may be executed but not read is not known.
    let bytes = sys::read_file(path.as_ptr(), &mut head);
    let head = &head[..bytes];
    if head.starts_with(b"#!") {
        let line = head[2..].split(|byte| *byte == b'\n').next();
        let word = line
            .map(<[u8]>::trim_ascii)
            .and_then(|line| line.split(|byte| matches!(byte, b' ' | b'\t')).next());
        return depth < 4
            && word
                .and_then(|word| CString::new(word).ok())
                .is_some_and(|interpreter| can_be_reached(&interpreter, depth + 1));
    }
    !sys::gives_rights(path) && asks_for_glibc(head)
}

/// Of the beginning of an ELF file: it names a dynamic linker that is not musl's, and has no note of Go's, whose programs call the kernel by themselves.
fn asks_for_glibc(head: &[u8]) -> bool {
    const PT_INTERP: usize = 3;
    const PT_NOTE: usize = 4;
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let field = head.get(at..at.checked_add(bytes)?)?;
        Some(
            field
                .iter()
                .rev()
                .fold(0, |value, byte| value << 8 | usize::from(*byte)),
        )
    };
    let is_elf64 = head.starts_with(b"\x7fELF\x02\x01");
    let (Some(table), Some(size), Some(count)) = (number(32, 8), number(54, 2), number(56, 2))
    else {
        return false;
    };
    // What a segment holds, as far as it lies in the beginning.
    let content = |at: usize| {
        let from = number(at.saturating_add(8), 8)?.min(head.len());
        let bytes = number(at.saturating_add(32), 8)?;
        Some(&head[from..from.saturating_add(bytes).min(head.len())])
    };
    let has = |kind: usize, word: &[u8]| {
        (0..count.min(64)).any(|entry| {
            let at = table.saturating_add(entry.saturating_mul(size));
            number(at, 4) == Some(kind)
                && content(at).is_some_and(|bytes| {
                    word.is_empty() || bytes.windows(word.len()).any(|part| part == word)
                })
        })
    };
    is_elf64 && has(PT_INTERP, b"") && !has(PT_INTERP, b"musl") && !has(PT_NOTE, b"Go\0\0")
}

/// Where `execvp` would find a program.
pub(crate) fn find(name: &CStr) -> CString {
    if name.to_bytes().contains(&b'/') {
        return name.to_owned();
    }
    let path = start::variable(c"PATH").unwrap_or(b"/bin:/usr/bin");
    for folder in path.split(|byte| *byte == b':') {
        let full = [folder, b"/", name.to_bytes()].concat();
        let Ok(full) = CString::new(full) else {
            continue;
        };
        if sys::is_executable(&full) {
            return full;
        }
    }
    name.to_owned()
}

/// Takes over what the program before this one has left in the environment.
pub(crate) fn inherit() {
    let Some(text) = start::variable(INHERIT) else {
        return;
    };
    let text = text.to_vec();
    // Relatives of the program before this one may use the same connections.
    lock::note_fork();
    // SAFETY: the name ends in a zero byte. The process has one thread that runs: this one.
    unsafe { libc::unsetenv(INHERIT.as_ptr()) };
    let mut files: Vec<c_int> = Vec::new();
    for entry in text.split(|byte| *byte == b';') {
        let mut numbers = entry
            .split(|byte| *byte == b'.')
            .map(|part| std::str::from_utf8(part).ok()?.parse::<c_int>().ok());
        let mut next = || numbers.next().flatten().filter(|number| *number >= 0);
        let (Some(fd), Some(file), Some(slot), Some(side), Some(gateway)) =
            (next(), next(), next(), next(), next())
        else {
            continue;
        };
        files.push(file);
        take(fd, file, slot as usize % SLOTS, side as usize % 2, gateway);
    }
    files.sort_unstable();
    files.dedup();
    for file in files {
        if sys::sealed_identity(file).is_ok() && table::is_plain(file) {
            let _ = sys::close(file);
        }
    }
}

fn take(fd: c_int, file: c_int, slot: usize, side: usize, gateway: c_int) -> Option<()> {
    let copy = sys::fcntl(file, libc::F_DUPFD_CLOEXEC, 3).ok()? as c_int;
    let segment = segment::attach(Fd::new(copy)).ok()?;
    if let Some(known) = table::by_slot(segment.get(), side, slot) {
        let first = known.any_fd()?;
        close::copied(first, fd);
        return Some(());
    }
    let using = table::add_stream(fd, segment, slot, side)?;
    if gateway > 0 {
        using.set_gateway(gateway - 1);
    }
    let end = using.mine();
    // The process was counted by the program before.
    end.own.leave_at_once();
    // And its waiter is gone; that of another process, which still has the stream, stays.
    let waiter = end.inn.waiter.load(Ordering::Acquire) as usize;
    if (1..=WAITERS).contains(&waiter) {
        let owner = &using.memory().header().owners[using.side()][waiter - 1];
        if owner.load(Ordering::Acquire) == sys::getpid() {
            end.inn.waiter.store(0, Ordering::Release);
        }
    }
    end.inn.is_asleep.fetch_or(BELL, Ordering::Release);
    Some(())
}

/// Descriptors leave for a process that may not have this library.
pub(crate) fn pass_on(fds: impl IntoIterator<Item = c_int>, why: &str) {
    let found = fds.into_iter().map(|fd| Some((table::stream(fd)?, fd)));
    let streams: Vec<(Use, c_int)> = found.flatten().collect();
    demotion::surrender(&streams, why);
}

/// The process will not be able to make the calls that carrying needs: its connections go back to TCP, and are none of our business any more.
pub(crate) fn let_go_of_all(why: &str) {
    explain::turn_off();
    let mut streams = Vec::new();
    table::for_each_open_stream(|using, fd| streams.push((using, fd)));
    listener::close_mailboxes();
    let outcomes = demotion::surrender(&streams, why);
    let_go_of(&streams, &outcomes);
    epoll::let_go_of_all();
    explain::fall_silent();
}

fn let_go_of(streams: &[(Use, i32)], have_gone_back: &[bool]) {
    for ((using, _), has_gone_back) in streams.iter().zip(have_gone_back) {
        if *has_gone_back {
            close::let_go(using);
        }
    }
}

/// The program uses an interface that goes past the C library: nothing is carried from now on. Connections whose other end makes no call in time go on by the
/// C library alone.
pub(crate) fn goes_past(why: &str) {
    explain::turn_off();
    let mut streams = Vec::new();
    table::for_each_open_stream(|using, fd| streams.push((using, fd)));
    listener::close_mailboxes();
    let outcomes = demotion::hand_over_all(&streams, why);
    let_go_of(&streams, &outcomes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beginning(path: &CStr) -> Vec<u8> {
        let mut head = vec![0; 8192];
        let bytes = sys::read_file(path.as_ptr(), &mut head);
        head.truncate(bytes);
        head
    }

    /// The tests' own program can be reached; one of musl, of Go or of no form cannot, wherever its file is cut.
    #[test]
    fn programs_are_told_apart() {
        assert!(can_be_reached(c"/proc/self/exe", 0));
        assert!(!can_be_reached(c"/proc/self/status", 0));
        assert!(!can_be_reached(c"/nonexistent", 0));
        let own = beginning(c"/proc/self/exe");
        assert!(asks_for_glibc(&own));
        let with = |word: &[u8], other: &[u8]| {
            let mut head = own.clone();
            let found = head.windows(word.len()).position(|part| part == word);
            let at = found.expect("what every program has");
            head[at..at + other.len()].copy_from_slice(other);
            head
        };
        assert!(!asks_for_glibc(&with(b"/ld-linux", b"/ld-musl-")));
        // The note with the build's number.
        assert!(!asks_for_glibc(&with(b"GNU\0", b"Go\0\0")));
        for length in 0..own.len().min(1024) {
            let _ = asks_for_glibc(&own[..length]);
        }
    }
}
