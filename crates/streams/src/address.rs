//! Addresses of TCP connections: read from what programs and the kernel give, compared, and made into the names of mailboxes.

use std::sync::atomic::{AtomicU64, Ordering};

/// An IP address and a port. IPv4 stands as IPv6 has it (`::ffff:a.b.c.d`), so that both views of one connection are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Address {
    /// In network order.
    pub ip: [u8; 16],
    /// In host order.
    pub port: u16,
}

const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

impl Address {
    /// Stands for the gateway of this host.
    pub const GATEWAY: Self = Self {
        ip: [0xff; 16],
        port: 0,
    };

    /// Of the bytes of a `sockaddr_in` or `sockaddr_in6`.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
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

    /// Whether it is an IPv4 address.
    pub fn is_v4(&self) -> bool {
        self.ip[..12] == MAPPED
    }

    /// `0.0.0.0` or `::`.
    pub fn is_any(&self) -> bool {
        self.ip == [0; 16] || (self.is_v4() && self.ip[12..] == [0; 4])
    }

    /// 127.0.0.0/8 or ::1.
    pub fn is_loopback(&self) -> bool {
        (self.is_v4() && self.ip[12] == 127) || (self.ip[..15] == [0; 15] && self.ip[15] == 1)
    }

    /// With all addresses of the host instead: those names under which a listener may have its mailbox, besides its own.
    pub fn wildcards(&self) -> impl Iterator<Item = Self> {
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

    /// The bytes of a `sockaddr_in` or `sockaddr_in6` for it, and how many of them count.
    pub fn socket_address(&self) -> ([u8; 28], usize) {
        let mut bytes = [0; 28];
        let (family, length) = if self.is_v4() {
            bytes[4..8].copy_from_slice(&self.ip[12..]);
            (libc::AF_INET, 16)
        } else {
            bytes[8..24].copy_from_slice(&self.ip);
            (libc::AF_INET6, 28)
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.port.to_be_bytes());
        (bytes, length)
    }

    /// As words, for shared memory and hellos.
    pub fn words(&self) -> [u64; 3] {
        let half = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| self.ip[at + byte]));
        [half(0), half(8), u64::from(self.port)]
    }

    /// Of such words; `None`: the port is none.
    pub fn from_words(words: [u64; 3]) -> Option<Self> {
        let mut ip = [0; 16];
        ip[..8].copy_from_slice(&words[0].to_ne_bytes());
        ip[8..].copy_from_slice(&words[1].to_ne_bytes());
        let port = u16::try_from(words[2]).ok()?;
        Some(Self { ip, port })
    }

    /// As people write it.
    pub fn text(&self) -> String {
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
pub struct Pair {
    /// Of the end that connected.
    pub client: Address,
    /// Of the end that accepted.
    pub server: Address,
}

impl Pair {
    /// Writes both into shared memory.
    pub fn store(&self, words: &[AtomicU64; 6]) {
        let all = self.client.words().into_iter().chain(self.server.words());
        for (word, value) in words.iter().zip(all) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// What `store` has written there.
    pub fn load(words: &[AtomicU64; 6]) -> Option<Self> {
        let word = |at: usize| words[at].load(Ordering::Relaxed);
        Some(Self {
            client: Address::from_words([word(0), word(1), word(2)])?,
            server: Address::from_words([word(3), word(4), word(5)])?,
        })
    }

    /// Whether these are the addresses there.
    pub fn is_stored_in(&self, words: &[AtomicU64; 6]) -> bool {
        let all = self.client.words().into_iter().chain(self.server.words());
        words
            .iter()
            .zip(all)
            .all(|(word, value)| word.load(Ordering::Relaxed) == value)
    }
}

/// An abstract UNIX address: the bytes of a `sockaddr_un`, and how many of them count.
#[derive(Debug, Clone, Copy)]
pub struct UnixName([u8; 64], usize);

impl UnixName {
    /// As the kernel takes it.
    pub fn bytes(&self) -> &[u8] {
        &self.0[..self.1]
    }

    /// The name without the family and the zero byte before it.
    pub fn name(&self) -> &[u8] {
        &self.bytes()[3..]
    }

    fn new(prefix: &[u8], number: impl Iterator<Item = u8>) -> Self {
        let mut bytes = [0; 64];
        bytes[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
        // `bytes[2]` stays zero: an abstract name.
        let digits = number.flat_map(|byte| [byte >> 4, byte & 15]);
        let text = prefix
            .iter()
            .copied()
            .chain(digits.map(|digit| b"0123456789abcdef"[usize::from(digit)]));
        let mut length = 3;
        for (place, byte) in bytes[3..].iter_mut().zip(text) {
            *place = byte;
            length += 1;
        }
        Self(bytes, length)
    }
}

/// The mailbox of a listener at `address`.
pub fn mailbox(address: &Address) -> UnixName {
    let port = address.port.to_be_bytes();
    UnixName::new(b"tsumuji-tcp/2/", address.ip.into_iter().chain(port))
}

/// The mailbox of the gateway to other hosts of a user.
pub fn gateway(user: u32) -> UnixName {
    UnixName::new(b"tsumuji-gateway/1/", user.to_be_bytes().into_iter())
}

/// What a waiter of that number can be woken by: a datagram socket.
pub fn doorbell(number: u64) -> UnixName {
    UnixName::new(b"tsumuji-doorbell/1/", number.to_be_bytes().into_iter())
}

/// A mailbox that no program looks for: that of a gateway which stands for another host in a test.
pub fn second_gateway(user: u32) -> UnixName {
    UnixName::new(b"tsumuji-gateway/1/far/", user.to_be_bytes().into_iter())
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
        let one = mailbox(&v4([127, 0, 0, 1], 80));
        let two = mailbox(&v4([127, 0, 0, 1], 81));
        assert!(one.bytes() != two.bytes() && one.bytes().len() < 64);
        assert_eq!(gateway(1000).name(), b"tsumuji-gateway/1/000003e8");
    }
}
