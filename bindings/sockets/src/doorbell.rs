//! Doorbells: what wakes an epoll instance without a byte over TCP.
//!
//! `epoll` opens one for an instance that sleeps, registers it there, and writes its number down in the segments that it watches. `stream` rings it. A
//! doorbell is a datagram socket with an abstract name. What comes there says nothing and is not read: who is woken looks into memory. So a stranger who
//! finds the name can wake a sleeper for nothing, or fill the socket; then ringing fails, and the connection's own bell is rung instead.

use std::sync::atomic::{AtomicI32, Ordering};

use tsumuji_streams::address;

use crate::sys::{self, Result};
use crate::table;

/// Rings that are taken at once, where all are: the kernel lets no more than some ten wait (`net.unix.max_dgram_qlen`).
pub(crate) const ALL_RINGS: usize = 16;

/// The socket that this process rings by; -1: not made yet.
static RINGER: AtomicI32 = AtomicI32::new(-1);

fn datagrams() -> Result<i32> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    sys::socket(libc::AF_UNIX, kind, 0)
}

/// A new doorbell and its number.
pub(crate) fn open() -> Result<(i32, u64)> {
    let fd = datagrams()?;
    let number = sys::random();
    if let Err(error) = sys::with_address(libc::SYS_bind, fd, address::doorbell(number).bytes()) {
        let _ = sys::close(fd);
        return Err(error);
    }
    Ok((table::keep_own(fd), number))
}

/// Rings the doorbell of that number. False: it cannot be, or is full.
pub(crate) fn ring(number: u64) -> bool {
    let mut ringer = RINGER.load(Ordering::Acquire);
    if ringer < 0 {
        let Ok(made) = datagrams() else { return false };
        ringer = table::keep_own(made);
        let set = RINGER.compare_exchange(-1, ringer, Ordering::AcqRel, Ordering::Acquire);
        if let Err(known) = set {
            table::close_own(ringer);
            ringer = known;
        }
    }
    sys::send_to(ringer, &[0], address::doorbell(number).bytes()).is_ok()
}

/// Takes so many rings out of a doorbell, or all that there are.
pub(crate) fn take(fd: i32, most: usize) {
    for _ in 0..most {
        if sys::recv(fd, &mut [0], libc::MSG_DONTWAIT).is_err() {
            break;
        }
    }
}

pub(crate) fn own_moved(from: i32, to: i32) {
    let _ = RINGER.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_rung(fd: i32) -> bool {
        sys::poll_now(fd, libc::POLLIN) != 0
    }

    /// A ring is there until it is taken; a doorbell that nobody takes rings from is full at last, and one that is closed is rung no more.
    #[test]
    fn rings_are_taken() {
        let (fd, number) = open().expect("a socket");
        let (other, other_number) = open().expect("a socket");
        assert!(number != other_number && !is_rung(fd));
        assert!(ring(number));
        assert!(is_rung(fd) && !is_rung(other));
        take(fd, ALL_RINGS);
        assert!(!is_rung(fd));
        let rings = (0..100_000).take_while(|_| ring(number)).count();
        assert!((1..100_000).contains(&rings), "{rings}");
        for _ in 0..=rings / ALL_RINGS {
            take(fd, ALL_RINGS);
        }
        assert!(!is_rung(fd) && ring(number));
        table::close_own(fd);
        assert!(!ring(number) && ring(other_number));
        table::close_own(other);
    }
}
