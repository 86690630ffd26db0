//! What nodes tell each other of the table of members: control messages, as values and as bytes.
//!
//! Used by `members`, which decides what is believed. Bytes are not trusted: what is not understood is none of these.

use std::net::{IpAddr, SocketAddr};

use tsumuji_link::LinkAddr;
use tsumuji_link::ether::MacAddr;
use tsumuji_proto::NodeId;

/// Longest name of a member, in bytes.
pub(crate) const NAME_BYTES: usize = tsumuji_wire::join::JOIN_TEXT_BYTES;

/// Kinds of control messages: the first byte, beside those of `control` and `statistics`.
const ENTRY: u8 = 5;
const TABLE: u8 = 6;
/// Bytes of an entry before its name.
const ENTRY_BYTES: usize = 28;

/// One line of the table, as nodes tell it each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: NodeId,
    pub(super) version: u32,
    pub(super) addr: LinkAddr,
    pub(super) name: String,
}

/// A control message about the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum News {
    Entry(Entry),
    /// All entries were told; there are so many.
    Table(u16),
}

/// As much of a name as is told.
pub(crate) fn cut(name: &str) -> &str {
    let mut end = name.len().min(NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

impl News {
    /// Entry: 0 kind · 1 zero · 2 id · 4 version · 8 kind of address · 9 zero · 10 address (18) · 28 name. Table: 0 kind · 1 zero · 2 number of nodes.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let entry = match self {
            Self::Table(nodes) => {
                let [low, high] = nodes.to_le_bytes();
                return vec![TABLE, 0, low, high];
            }
            Self::Entry(entry) => entry,
        };
        let mut bytes = vec![ENTRY, 0];
        bytes.extend(entry.id.0.to_le_bytes());
        bytes.extend(entry.version.to_le_bytes());
        let (kind, addr) = match entry.addr {
            LinkAddr::Local(index) => (0, index.to_le_bytes().to_vec()),
            LinkAddr::Inet(addr) => {
                let (kind, ip) = match addr.ip() {
                    IpAddr::V4(ip) => (1, ip.octets().to_vec()),
                    IpAddr::V6(ip) => (2, ip.octets().to_vec()),
                };
                (kind, [&ip[..], &addr.port().to_le_bytes()].concat())
            }
            LinkAddr::Ether(mac) => (3, mac.0.to_vec()),
            _ => (u8::MAX, Vec::new()), // no member's
        };
        bytes.extend([kind, 0]);
        bytes.extend(addr);
        bytes.resize(ENTRY_BYTES, 0);
        bytes.extend(entry.name.as_bytes());
        bytes
    }

    /// `None`: it is none, or of a later version.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        if let [TABLE, 0, low, high] = *bytes {
            return Some(Self::Table(u16::from_le_bytes([low, high])));
        }
        let (head, name) = bytes.split_first_chunk::<ENTRY_BYTES>()?;
        let [ENTRY, 0, i0, i1, v0, v1, v2, v3, kind, 0, addr @ ..] = *head else {
            return None;
        };
        let port = |at: usize| u16::from_le_bytes([addr[at], addr[at + 1]]);
        let (addr, length) = match kind {
            0 => (LinkAddr::Local(port(0)), 2),
            1 => {
                let ip: [u8; 4] = addr[..4].try_into().ok()?;
                (LinkAddr::Inet(SocketAddr::new(ip.into(), port(4))), 6)
            }
            2 => {
                let ip: [u8; 16] = addr[..16].try_into().ok()?;
                (LinkAddr::Inet(SocketAddr::new(ip.into(), port(16))), 18)
            }
            3 => (LinkAddr::Ether(MacAddr(addr[..6].try_into().ok()?)), 6),
            _ => return None,
        };
        let is_sound =
            name.len() <= NAME_BYTES && head[10 + length..].iter().all(|&byte| byte == 0);
        let name = std::str::from_utf8(name).ok().filter(|_| is_sound)?;
        Some(Self::Entry(Entry {
            id: NodeId(u16::from_le_bytes([i0, i1])),
            version: u32::from_le_bytes([v0, v1, v2, v3]),
            addr,
            name: name.to_owned(),
        }))
    }
}

/// Whether the bytes are news of the table, and read as they would be written: for fuzzing.
pub fn is_understood(bytes: &[u8]) -> bool {
    let news = News::parse(bytes);
    if let Some(news) = &news {
        assert_eq!(news.to_bytes(), bytes, "{news:?}");
    }
    news.is_some()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn entry(id: u16, version: u32, addr: &str) -> Entry {
        let inet = addr.parse().map(LinkAddr::Inet);
        Entry {
            id: NodeId(id),
            version,
            addr: inet.unwrap_or_else(|_| match addr.parse() {
                Ok(mac) => LinkAddr::Ether(mac),
                Err(_) => LinkAddr::Local(addr.parse().expect(addr)),
            }),
            name: format!("näme {id}"),
        }
    }

    /// What is told is read back; anything cut or changed in length is refused.
    #[test]
    fn news_read_as_written() {
        for addr in [
            "7",
            "10.0.0.1:7000",
            "[2001:db8::1]:65535",
            "02:00:00:00:00:09",
        ] {
            let news = News::Entry(entry(300, 1 << 30, addr));
            let bytes = news.to_bytes();
            assert!(is_understood(&bytes), "{addr}");
            assert_eq!(News::parse(&bytes), Some(news));
            for cut in 0..ENTRY_BYTES {
                assert_eq!(News::parse(&bytes[..cut]), None);
            }
            let long = [&bytes[..ENTRY_BYTES], &[b'a'; NAME_BYTES + 1]].concat();
            assert_eq!(News::parse(&long), None);
        }
        assert!(is_understood(&News::Table(65_535).to_bytes()));
        for other in [
            &[][..],
            &[ENTRY],
            &[TABLE, 0, 1],
            &[TABLE, 1, 0, 0],
            &[9; 40],
        ] {
            assert_eq!(News::parse(other), None);
        }
    }
}
