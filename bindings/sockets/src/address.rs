//! Addresses of TCP connections: read from what programs and the kernel give, compared, and made into the names of mailboxes.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::{self, Result};

/// An IP address and a port. IPv4 stands as IPv6 has it (`::ffff:a.b.c.d`), so that both views of one connection are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Address {
    pub(crate) ip: [u8; 16],
    pub(crate) port: u16,
}

const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

impl Address {
    /// Of the bytes of a `sockaddr_in` or `sockaddr_in6`.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let family = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
        let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
        let mut ip = [0; 16];
        match i32::from(family) {
            libc::AF_INET => {
                ip[..12].copy_from_slice(&MAPPED);
                ip[12..].copy_from_slice(bytes.get(4..8)?);
            }
            libc::AF_INET6 if bytes.len() >= 24 => ip.copy_from_slice(bytes.get(8..24)?),
            _ => return None,
        }
        Some(Self { ip, port })
    }

    pub(crate) fn is_v4(&self) -> bool {
        self.ip[..12] == MAPPED
    }

    /// `0.0.0.0` or `::`.
    pub(crate) fn is_any(&self) -> bool {
        self.ip == [0; 16] || (self.is_v4() && self.ip[12..] == [0; 4])
    }

    /// 127.0.0.0/8 or ::1.
    pub(crate) fn is_loopback(&self) -> bool {
        (self.is_v4() && self.ip[12] == 127) || (self.ip[..15] == [0; 15] && self.ip[15] == 1)
    }

    /// With all addresses of the host instead: those names under which a listener may have its mailbox, besides its own.
    pub(crate) fn wildcards(&self) -> impl Iterator<Item = Self> {
        let mut v4 = Self {
            ip: [0; 16],
            port: self.port,
        };
        v4.ip[..12].copy_from_slice(&MAPPED);
        let v6 = Self {
            ip: [0; 16],
            port: self.port,
        };
        self.is_v4().then_some(v4).into_iter().chain([v6])
    }

    fn words(&self) -> [u64; 3] {
        let half = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| self.ip[at + byte]));
        [half(0), half(8), u64::from(self.port)]
    }

    /// As people write it.
    pub(crate) fn text(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        if self.is_v4() {
            let [a, b, c, d] = [12, 13, 14, 15].map(|byte| self.ip[byte]);
            let _ = write!(text, "{a}.{b}.{c}.{d}:{}", self.port);
        } else {
            let ip = std::net::Ipv6Addr::from(self.ip);
            let _ = write!(text, "[{ip}]:{}", self.port);
        }
        text
    }
}

/// Both addresses of a connection, as its client sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) client: Address,
    pub(crate) server: Address,
}

impl Pair {
    pub(crate) fn store(&self, words: &[AtomicU64; 6]) {
        let all = self.client.words().into_iter().chain(self.server.words());
        for (word, value) in words.iter().zip(all) {
            word.store(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_stored_in(&self, words: &[AtomicU64; 6]) -> bool {
        let all = self.client.words().into_iter().chain(self.server.words());
        words
            .iter()
            .zip(all)
            .all(|(word, value)| word.load(Ordering::Relaxed) == value)
    }
}

/// The socket's own address.
pub(crate) fn own(fd: i32) -> Result<Address> {
    named(libc::SYS_getsockname, fd)
}

pub(crate) fn peer(fd: i32) -> Result<Address> {
    named(libc::SYS_getpeername, fd)
}

fn named(number: i64, fd: i32) -> Result<Address> {
    let mut room = [0; 128];
    let bytes = sys::name_of(number, fd, &mut room)?;
    Address::parse(&room[..bytes]).ok_or(sys::Errno(libc::EAFNOSUPPORT))
}

/// The abstract UNIX address of the mailbox of a listener at `address`.
pub(crate) fn mailbox(address: &Address) -> ([u8; 64], usize) {
    let mut bytes = [0; 64];
    bytes[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    // `bytes[2]` stays zero: an abstract name.
    let mut at = 3;
    let port = address.port.to_be_bytes();
    for byte in *b"tsumuji-tcp/1/" {
        bytes[at] = byte;
        at += 1;
    }
    for byte in address.ip.into_iter().chain(port) {
        for digit in [byte >> 4, byte & 15] {
            bytes[at] = b"0123456789abcdef"[usize::from(digit)];
            at += 1;
        }
    }
    (bytes, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(ip: [u8; 4], port: u16) -> Address {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        bytes[4..8].copy_from_slice(&ip);
        Address::parse(&bytes).expect("an address")
    }

    /// An IPv4 address is the same by either family, and its wildcards are those of both.
    #[test]
    fn families_agree() {
        let four = v4([127, 0, 0, 1], 80);
        let mut bytes = [0; 28];
        bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&80u16.to_be_bytes());
        bytes[8..24].copy_from_slice(&four.ip);
        assert_eq!(Address::parse(&bytes), Some(four));
        assert!(four.is_v4() && four.is_loopback() && !four.is_any());
        assert!(four.wildcards().all(|name| name.is_any()));
        assert_eq!(four.wildcards().count(), 2);
        assert_eq!(four.text(), "127.0.0.1:80");
    }

    /// What is too short or of another family is none; names of different listeners differ.
    #[test]
    fn others_are_refused() {
        for length in 0..8 {
            assert_eq!(
                Address::parse(&[2, 0, 0, 80, 1, 2, 3][..length.min(7)]),
                None
            );
        }
        assert_eq!(Address::parse(&[1; 128]), None);
        let (one, length) = mailbox(&v4([127, 0, 0, 1], 80));
        let (two, _) = mailbox(&v4([127, 0, 0, 1], 81));
        assert!(one != two && length < one.len());
    }
}
