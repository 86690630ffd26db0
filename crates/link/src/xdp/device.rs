//! Abilities of an interface and its driver for AF_XDP, and its present XDP program, read from the kernel by netlink.
//!
//! Called by `open` to choose a mode and to name a foreign program, and by `probe`. All answers are optional: older kernels and some drivers leave
//! them out, and then the attempt itself decides.

use std::io;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::sys;

/// Longest answer; links with many functions have the longest.
const ANSWER_BYTES: usize = 64 << 10;
/// `struct nlmsghdr`, `struct ifinfomsg`, `struct genlmsghdr`.
const HEADER_BYTES: usize = 16;
const LINK_HEADER_BYTES: usize = 16;
const GENERIC_HEADER_BYTES: usize = 4;
const REQUEST: u16 = 1;
const ERROR: u16 = 2;
/// Attribute types use the upper two bits as flags.
const TYPE_MASK: u16 = 0x3fff;

const GET_LINK: u16 = 18;
const LINK_XDP: u16 = 43;
const XDP_ATTACHED: u16 = 2;
const XDP_PROGRAM: u16 = 4;
const XDP_PROGRAM_NATIVE: u16 = 5;
const XDP_PROGRAM_GENERIC: u16 = 6;
const ATTACHED_GENERIC: u8 = 2;

const GENERIC_CONTROL: u16 = 16;
const CONTROL_GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const NETDEV_GET: u8 = 1;
const NETDEV_INDEX: u16 = 1;
const NETDEV_FEATURES: u16 = 3;

/// Abilities of a driver's native XDP (`NETDEV_XDP_ACT_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Features(u64);

impl Features {
    const BASIC: u64 = 1;
    const REDIRECT: u64 = 2;
    const ZERO_COPY: u64 = 8;
    const SEVERAL_BUFFERS: u64 = 32;

    /// Runs a program in the driver that can redirect to a socket.
    pub(super) fn native(self) -> bool {
        self.0 & (Self::BASIC | Self::REDIRECT) == Self::BASIC | Self::REDIRECT
    }

    /// Receives straight into our memory.
    pub(super) fn zero_copy(self) -> bool {
        self.0 & Self::ZERO_COPY != 0
    }

    /// Takes frames of several buffers.
    pub(super) fn several_buffers(self) -> bool {
        self.0 & Self::SEVERAL_BUFFERS != 0
    }
}

/// An XDP program that an interface has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attached {
    pub(super) id: u32,
    /// Its name, if we may ask for it.
    pub(super) name: Option<String>,
    pub(super) generic: bool,
}

impl std::fmt::Display for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mode = if self.generic { "generic" } else { "native" };
        match &self.name {
            Some(name) if !name.is_empty() => write!(f, "'{name}' (id {}, {mode})", self.id),
            _ => write!(f, "id {} ({mode})", self.id),
        }
    }
}

/// Properties of a device for `open` and `probe`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Device {
    /// The driver's name; empty if not stated.
    pub(super) driver: String,
    /// Receive queues in use; `None`: not known.
    pub(super) receive_queues: Option<u32>,
    pub(super) features: Option<Features>,
    pub(super) attached: Option<Attached>,
}

impl Device {
    pub(super) fn ask(interface: &str, index: u32) -> Self {
        Self {
            driver: sys::driver(interface).unwrap_or_default(),
            receive_queues: sys::receive_queues(interface)
                .ok()
                .filter(|queues| *queues > 0),
            features: features(index).ok().flatten(),
            attached: attached(index).ok().flatten(),
        }
    }

    /// Name of this driver's receive queues in `ethtool -L`.
    pub(super) fn channels(&self) -> &'static str {
        if self.driver == "veth" {
            "rx"
        } else {
            "combined"
        }
    }

    /// Whether native mode is worth trying first. On veth it is slower than generic mode (docs/decisions/0014).
    pub(super) fn prefers_native(&self, several_buffers: bool) -> bool {
        if self.driver == "veth" {
            return false;
        }
        self.features.is_none_or(|features| {
            features.native() && (!several_buffers || features.several_buffers())
        })
    }
}

/// The XDP program of an interface.
pub(super) fn attached(index: u32) -> io::Result<Option<Attached>> {
    let mut request = vec![0; LINK_HEADER_BYTES];
    request[4..8].copy_from_slice(&index.to_ne_bytes());
    let answer = ask(None, GET_LINK, &request)?;
    let attributes = answer.get(LINK_HEADER_BYTES..).unwrap_or_default();
    Ok(attribute(attributes, LINK_XDP).and_then(parse_attached))
}

fn parse_attached(nested: &[u8]) -> Option<Attached> {
    let mode = *attribute(nested, XDP_ATTACHED)?.first()?;
    if mode == 0 {
        return None;
    }
    let id = [XDP_PROGRAM, XDP_PROGRAM_NATIVE, XDP_PROGRAM_GENERIC]
        .iter()
        .find_map(|kind| attribute(nested, *kind).and_then(u32_of))?;
    Some(Attached {
        id,
        name: sys::program_name(id).ok(),
        generic: mode == ATTACHED_GENERIC,
    })
}

/// The driver's stated abilities. `None`: the kernel (before 6.3) has no such request.
fn features(index: u32) -> io::Result<Option<Features>> {
    let mut request = vec![CONTROL_GET_FAMILY, 2, 0, 0];
    put_attribute(&mut request, FAMILY_NAME, b"netdev\0");
    let Ok(answer) = ask(Some(netlink::GENERIC), GENERIC_CONTROL, &request) else {
        return Ok(None);
    };
    let attributes = answer.get(GENERIC_HEADER_BYTES..).unwrap_or_default();
    let Some(&[low, high]) = attribute(attributes, FAMILY_ID) else {
        return Ok(None);
    };
    let mut request = vec![NETDEV_GET, 1, 0, 0];
    put_attribute(&mut request, NETDEV_INDEX, &index.to_ne_bytes());
    let answer = ask(
        Some(netlink::GENERIC),
        u16::from_ne_bytes([low, high]),
        &request,
    )?;
    let attributes = answer.get(GENERIC_HEADER_BYTES..).unwrap_or_default();
    let word = attribute(attributes, NETDEV_FEATURES).and_then(|value| value.try_into().ok());
    Ok(word.map(|word| Features(u64::from_ne_bytes(word))))
}

/// Sends a request and returns the body of its answer. `protocol` `None`: that of routes and links.
fn ask(protocol: Option<Protocol>, kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        protocol,
    )?;
    let length = HEADER_BYTES + body.len();
    let mut message = Vec::with_capacity(length);
    message.extend_from_slice(&(length as u32).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&REQUEST.to_ne_bytes());
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(body);
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&socket, &message, SendFlags::empty(), &kernel)?;
    let mut answer = vec![0; ANSWER_BYTES];
    // The kernel has answered before `send` returned, so this does not wait.
    let (_, bytes) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    answer.truncate(bytes);
    body_of(&answer).map(<[u8]>::to_vec)
}

/// The body of the first message.
fn body_of(answer: &[u8]) -> io::Result<&[u8]> {
    let broken = || io::Error::from(io::ErrorKind::InvalidData);
    let length = answer.get(..4).and_then(u32_of).ok_or_else(broken)? as usize;
    let message = answer.get(..length).ok_or_else(broken)?;
    let body = message.get(HEADER_BYTES..).ok_or_else(broken)?;
    if u16::from_ne_bytes([message[4], message[5]]) == ERROR {
        let code = body.get(..4).and_then(u32_of).ok_or_else(broken)?;
        return Err(io::Error::from_raw_os_error(
            code.cast_signed().wrapping_neg(),
        ));
    }
    Ok(body)
}

fn put_attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// The value of the first attribute of a kind.
fn attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    // Each pass drops at least 4 bytes.
    while let [l0, l1, k0, k1, ..] = *attributes {
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = attributes.get(4..length)?;
        if u16::from_ne_bytes([k0, k1]) & TYPE_MASK == kind {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
    None
}

fn u32_of(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attributes are found by kind, flags aside, and broken lengths end the search.
    #[test]
    fn attributes_are_found() {
        let mut list = Vec::new();
        put_attribute(&mut list, 7, b"abcde");
        put_attribute(&mut list, 43 | 0x8000, &[1, 2]);
        assert_eq!(attribute(&list, 7), Some(&b"abcde"[..]));
        assert_eq!(attribute(&list, 43), Some(&[1, 2][..]));
        assert_eq!(attribute(&list, 44), None);
        for cut in 0..list.len() {
            let _ = attribute(&list[..cut], 43);
        }
        assert_eq!(attribute(&[0, 0, 7, 0, 9, 9, 9, 9], 8), None, "length 0");
        assert_eq!(attribute(&[3, 0, 7, 0], 7), None, "shorter than its header");
        assert_eq!(
            attribute(&[255, 255, 7, 0], 7),
            None,
            "longer than the list"
        );
    }

    /// The error code of a refusal is returned; a cut answer is an error and no panic.
    #[test]
    fn refusals_are_errors() {
        let mut answer = vec![20u8, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        answer.extend_from_slice(&(-libc::ENODEV).to_ne_bytes());
        let error = body_of(&answer).expect_err("an error");
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        for cut in 0..answer.len() {
            assert!(body_of(&answer[..cut]).is_err());
        }
    }

    /// The kernel answers for the loopback interface, and refuses an index that no interface has.
    #[test]
    fn kernel_answers() {
        assert_eq!(attached(1).expect("loopback"), None);
        assert!(attached(i32::MAX as u32).is_err());
    }
}
