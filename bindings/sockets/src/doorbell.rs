//! Doorbells: what wakes an epoll instance without a byte over TCP.
//!
//! `epoll` opens one for an instance that sleeps, registers it there, and writes its number and its word down in the segments that it watches. `stream` rings
//! it. A doorbell is a datagram socket with an abstract name, which anybody can read in `/proc/net/unix`. So a filter throws all away that does not
//! begin with the word, while its sender still holds it: no stranger wakes a sleeper, fills the socket, or leaves descriptors in it that are costly to close.
//! A ring says nothing itself: who is woken looks into memory. Where ringing fails, the connection's own bell is rung instead.

use std::sync::atomic::{AtomicI32, Ordering};

use tsumuji_streams::address;

use crate::ring::Plate;
use crate::sys::{self, Result};
use crate::table;

/// More rings than the kernel lets wait (`net.unix.max_dgram_qlen`: 10, or 512 by systemd).
pub(crate) const ALL_RINGS: usize = 1024;

/// The socket that this process rings by; -1: not made yet.
static RINGER: AtomicI32 = AtomicI32::new(-1);

fn datagrams() -> Result<i32> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    sys::socket(libc::AF_UNIX, kind, 0)
}

/// A new doorbell.
pub(crate) fn open() -> Result<(i32, Plate)> {
    let fd = datagrams()?;
    let plate = Plate {
        number: sys::random(),
        word: sys::random(),
    };
    let name = address::doorbell(plate.number);
    let outcome = sys::take_only(fd, plate.word)
        .and_then(|_| sys::with_address(libc::SYS_bind, fd, name.bytes()));
    if let Err(error) = outcome {
        let _ = sys::close(fd);
        return Err(error);
    }
    Ok((table::keep_own(fd), plate))
}

/// Rings a doorbell of another process. False: it cannot be, or is full.
pub(crate) fn ring(plate: Plate) -> bool {
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
    let name = address::doorbell(plate.number);
    sys::send_to(ringer, &plate.word.to_be_bytes(), name.bytes()).is_ok()
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
        let (fd, plate) = open().expect("a socket");
        let (other, other_plate) = open().expect("a socket");
        assert!(plate.number != other_plate.number && !is_rung(fd));
        assert!(ring(plate));
        assert!(is_rung(fd) && !is_rung(other));
        take(fd, 1);
        assert!(!is_rung(fd));
        let rings = (0..100_000).take_while(|_| ring(plate)).count();
        assert!((1..100_000).contains(&rings), "{rings}");
        take(fd, ALL_RINGS);
        assert!(!is_rung(fd) && ring(plate));
        table::close_own(fd);
        assert!(!ring(plate) && ring(other_plate));
        table::close_own(other);
    }

    /// What does not begin with the word never comes, and takes no place.
    #[test]
    fn strangers_do_not_ring() {
        let (fd, plate) = open().expect("a socket");
        let (from, name) = (
            datagrams().expect("a socket"),
            address::doorbell(plate.number),
        );
        let (first, second) = (plate.word ^ 1 << 63, plate.word ^ 1);
        for _ in 0..2000 {
            for bytes in [&first.to_be_bytes()[..], &second.to_be_bytes(), &[0], &[]] {
                let _ = sys::send_to(from, bytes, name.bytes());
            }
        }
        assert!(!is_rung(fd));
        assert!(ring(plate) && is_rung(fd));
        let _ = sys::close(from);
        table::close_own(fd);
    }
}
