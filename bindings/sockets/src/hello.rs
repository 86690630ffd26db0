//! The hello that a client leaves in a listener's mailbox: which slot of which segment it offers, and from which port its connection will come.
//!
//! `handshake` leaves hellos, `listener` reads them. Every field is bounded when it is read; a segment is given only to a process whose mailbox was opened
//! by our user, and taken only from our user (`SO_PEERCRED`).

use std::sync::atomic::Ordering;

use crate::address::{self, Address};
use crate::explain::{self, Count};
use crate::ring::{GENERATION_SHIFT, SLOTS};
use crate::segment::{self, SegmentRef};
use crate::sys::{self, Errno};

const HELLO_MAGIC: u64 = 0x7473_756d_6865_6c31;

const HELLO_BYTES: usize = 40;

/// What a client leaves in a mailbox, besides the segment's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) generation: u64,
    pub(crate) sent_ns: u64,
    pub(crate) slot: usize,
    pub(crate) port: u16,
}

impl Hello {
    fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let words = [
            HELLO_MAGIC,
            self.generation,
            self.sent_ns,
            self.slot as u64,
            u64::from(self.port),
        ];
        let mut bytes = [0; HELLO_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HELLO_BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at * 8 + byte]));
        let slot = usize::try_from(word(3)).ok().filter(|slot| *slot < SLOTS)?;
        let port = u16::try_from(word(4)).ok()?;
        (word(0) == HELLO_MAGIC).then_some(Self {
            generation: word(1) & (u64::MAX >> GENERATION_SHIFT),
            sent_ns: word(2),
            slot,
            port,
        })
    }
}

pub(crate) fn unix_socket() -> sys::Result<i32> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    sys::socket(libc::AF_UNIX, kind, 0)
}

/// Puts a hello into the mailbox at `address`, over a connection that `find_mailbox` has made or a new one.
pub(crate) fn leave_hello(
    address: &Address,
    connected: Option<i32>,
    hello: &Hello,
    segment: &SegmentRef,
    is_own: bool,
) -> sys::Result<()> {
    let fd = match connected {
        Some(fd) => fd,
        None => {
            let fd = unix_socket()?;
            let (name, length) = address::mailbox(address);
            let connected = sys::with_address(libc::SYS_connect, fd, &name[..length]);
            let owner = connected.and_then(|_| sys::peer_credentials(fd));
            if !owner.is_ok_and(|owner| owner.uid == sys::geteuid()) {
                let _ = sys::close(fd);
                return Err(Errno(libc::EPERM));
            }
            fd
        }
    };
    let file = segment.get().fd.load(Ordering::Relaxed) as i32;
    let sent = sys::send_with_fd(fd, &hello.to_bytes(), file);
    if is_own && sent.is_ok() {
        segment.get().keep_control(fd);
    } else {
        let _ = sys::close(fd);
    }
    sent.map(|_| ())
}

/// What a client has left, if it is of our user.
pub(crate) fn read_hello(fd: i32) -> Option<(Hello, SegmentRef)> {
    let is_ours = sys::peer_credentials(fd).is_ok_and(|peer| peer.uid == sys::geteuid());
    let mut room = [0; HELLO_BYTES];
    let (bytes, file) = sys::recv_with_fd(fd, &mut room).ok()?;
    let file = file?;
    let Some(hello) = Hello::parse(&room[..bytes]).filter(|_| is_ours) else {
        explain::count(Count::Refused);
        let _ = sys::close(file);
        return None;
    };
    let segment = segment::adopt(file).ok()?;
    Some((hello, segment))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hello says what was said, and any other bytes are none.
    #[test]
    fn hellos_are_bounded() {
        let hello = Hello {
            generation: 7,
            sent_ns: 9,
            slot: SLOTS - 1,
            port: 65535,
        };
        let bytes = hello.to_bytes();
        assert_eq!(Hello::parse(&bytes), Some(hello));
        for length in 0..HELLO_BYTES {
            assert_eq!(Hello::parse(&bytes[..length]), None);
        }
        for (at, value) in [(0, 0xff), (24, SLOTS as u8), (26, 1), (34, 1)] {
            let mut wrong = bytes;
            wrong[at] = value;
            assert_eq!(Hello::parse(&wrong), None, "byte {at}");
        }
    }
}
