//! The only access of `gather` to the kernel: several sends by one call, each from several places. Also options of sockets, for all links.
//!
//! Invariant of `Batch`: its headers point to memory of its own, never replaced, and to pieces that the present call borrows.
#![allow(unsafe_code)] // sendmmsg with addresses and control messages; setsockopt, getsockopt.

use std::io;
use std::marker::PhantomData;
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use libc::{c_int, iovec, mmsghdr, socklen_t};

/// Datagrams that one send may be cut into (the kernel's own limit is 64 or 128).
pub(crate) const SEGMENTS_MAX: usize = 64;
/// Enough for one control message with a 2-byte value.
const CONTROL_WORDS: usize = 3;

/// A socket address as the kernel takes it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union RawAddr {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl RawAddr {
    pub(crate) const EMPTY: Self = Self {
        // SAFETY: all-zero bytes are a valid `sockaddr_in6` (family AF_UNSPEC).
        v6: unsafe { zeroed() },
    };

    /// `mapped`: the socket is IPv6 for both families, so IPv4 addresses are sent as ::ffff:a.b.c.d.
    pub(crate) fn encode(addr: SocketAddr, mapped: bool) -> Self {
        match addr {
            SocketAddr::V4(addr) if !mapped => {
                let mut raw = Self::EMPTY;
                raw.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as _,
                    sin_port: addr.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(addr.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                raw
            }
            SocketAddr::V4(addr) => {
                let addr = SocketAddrV6::new(addr.ip().to_ipv6_mapped(), addr.port(), 0, 0);
                Self::encode_v6(addr)
            }
            SocketAddr::V6(addr) => Self::encode_v6(addr),
        }
    }

    fn encode_v6(addr: SocketAddrV6) -> Self {
        let raw = libc::sockaddr_in6 {
            sin6_family: libc::AF_INET6 as _,
            sin6_port: addr.port().to_be(),
            sin6_flowinfo: addr.flowinfo(),
            sin6_addr: libc::in6_addr {
                s6_addr: addr.ip().octets(),
            },
            sin6_scope_id: addr.scope_id(),
        };
        Self { v6: raw }
    }

    fn family(&self) -> c_int {
        // SAFETY: both variants start with the family, and all bytes are initialised (by `EMPTY` or by the kernel).
        unsafe { self.v4.sin_family }.into()
    }

    fn bytes(&self) -> socklen_t {
        let bytes = if self.family() == libc::AF_INET6 {
            size_of::<libc::sockaddr_in6>()
        } else {
            size_of::<libc::sockaddr_in>()
        };
        bytes as socklen_t
    }

    pub(crate) fn decode(&self) -> SocketAddr {
        if self.family() == libc::AF_INET6 {
            // SAFETY: plain integers, initialised; the family says that the kernel wrote this variant.
            let raw = unsafe { self.v6 };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            match ip.to_ipv4_mapped() {
                Some(ip) => SocketAddrV4::new(ip, port).into(),
                None => SocketAddrV6::new(ip, port, 0, raw.sin6_scope_id).into(),
            }
        } else {
            // SAFETY: plain integers, initialised.
            let raw = unsafe { self.v4 };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into()
        }
    }
}

/// Sets an option of a socket.
pub(crate) fn set_option<T: Copy>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: T,
) -> io::Result<()> {
    let bytes = size_of::<T>() as socklen_t;
    // SAFETY: the kernel reads `bytes` bytes of `value`, which lives for the call and is that large.
    let done = unsafe {
        let value = ptr::from_ref(&value).cast();
        libc::setsockopt(fd.as_raw_fd(), level, name, value, bytes)
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// An option of a socket. Bytes that the kernel does not write stay as in `value`.
///
/// # Safety
/// Any bytes are a legal `T`.
pub(crate) unsafe fn option<T: Copy>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    mut value: T,
) -> io::Result<T> {
    let mut bytes = size_of::<T>() as socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes into `value`, which is that large and legal whatever they are (promised by the caller).
    let done = unsafe {
        let value = ptr::from_mut(&mut value).cast();
        libc::getsockopt(fd.as_raw_fd(), level, name, value, &mut bytes)
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value)
}

const NO_VECTOR: iovec = iovec {
    iov_base: ptr::null_mut(),
    iov_len: 0,
};

/// Headers for sending several datagrams at once.
pub(super) struct Batch {
    headers: Box<[mmsghdr]>,
    vectors: Box<[iovec]>,
    names: Box<[RawAddr]>,
    controls: Box<[[u64; CONTROL_WORDS]]>,
}

// SAFETY: the raw pointers lead into boxed slices that this value owns, or are stale and rewritten before use.
unsafe impl Send for Batch {}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch({})", self.headers.len())
    }
}

/// The sends of one call. Sends and pieces that do not fit the batch are left out.
pub(super) struct Filling<'b, 'a> {
    batch: &'b mut Batch,
    sends: usize,
    pieces: usize,
    /// The last send was left out, or one of its pieces.
    is_full: bool,
    borrowed: PhantomData<&'a [u8]>,
}

impl<'a> Filling<'_, 'a> {
    /// Begins another send: to that address, or to the one the socket is bound to; cut by the kernel into datagrams of that size, if one is given.
    #[inline]
    pub(super) fn begin(&mut self, to: Option<RawAddr>, segment_bytes: Option<u16>) {
        let Batch {
            headers,
            vectors,
            names,
            controls,
        } = self.batch;
        self.is_full |= self.sends == headers.len();
        if self.is_full {
            return;
        }
        let (index, at) = (self.sends, self.pieces);
        let (names_at, controls_at) = (names.as_mut_ptr(), controls.as_mut_ptr());
        let header = &mut headers[index].msg_hdr;
        (header.msg_name, header.msg_namelen) = (ptr::null_mut(), 0);
        if let Some(name) = to {
            names[index] = name;
            header.msg_name = names_at.wrapping_add(index).cast();
            header.msg_namelen = name.bytes();
        }
        (header.msg_control, header.msg_controllen) = (ptr::null_mut(), 0);
        if let Some(bytes) = segment_bytes {
            controls[index] = segment_control(bytes);
            header.msg_control = controls_at.wrapping_add(index).cast();
            header.msg_controllen = SEGMENT_CONTROL_BYTES.next_multiple_of(8);
        }
        header.msg_iov = vectors.as_mut_ptr().wrapping_add(at);
        header.msg_iovlen = 0;
        self.sends += 1;
    }

    /// Adds a piece to the last send.
    #[inline]
    pub(super) fn piece(&mut self, bytes: &'a [u8]) {
        if bytes.is_empty() || self.is_full || self.sends == 0 {
            return;
        }
        let Some(vector) = self.batch.vectors.get_mut(self.pieces) else {
            self.is_full = true;
            self.sends -= 1; // it would be cut short
            return;
        };
        *vector = iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        self.pieces += 1;
        self.batch.headers[self.sends - 1].msg_hdr.msg_iovlen += 1;
    }
}

impl Batch {
    pub(super) fn new(sends: usize, pieces: usize) -> Self {
        // SAFETY: all-zero bytes are a valid `mmsghdr` (null pointers, zero lengths).
        let header: mmsghdr = unsafe { zeroed() };
        Self {
            headers: vec![header; sends].into(),
            vectors: vec![NO_VECTOR; pieces].into(),
            names: vec![RawAddr::EMPTY; sends].into(),
            controls: vec![[0; CONTROL_WORDS]; sends].into(),
        }
    }

    /// Sends the batch that `fill` builds, without waiting; returns how many sends the kernel took.
    #[inline]
    pub(super) fn send<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        fill: impl FnOnce(&mut Filling<'_, 'a>),
    ) -> io::Result<usize> {
        let mut filling = Filling {
            batch: self,
            sends: 0,
            pieces: 0,
            is_full: false,
            borrowed: PhantomData,
        };
        fill(&mut filling);
        let sends = filling.sends as u32;
        // SAFETY: `begin` pointed each of the first `sends` headers at a name and a control message of this batch, or at none, and at
        // as many vectors of this batch as `piece` then wrote for it; those lead to slices that outlive this call (`'a`). The kernel
        // only reads them, but for `msg_len`.
        let sent = unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                sends,
                (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(sent as usize)
    }
}

const SEGMENT_CONTROL_BYTES: usize = size_of::<libc::cmsghdr>() + size_of::<u16>();
const _: () = assert!(
    size_of::<libc::cmsghdr>() == 16 && cfg!(target_endian = "little"),
    "the control message is written for 64-bit little-endian targets"
);

/// Builds the control message that asks the kernel to cut a send into datagrams of that size.
fn segment_control(segment_bytes: u16) -> [u64; CONTROL_WORDS] {
    let kind = libc::SOL_UDP as u32 as u64 | (libc::UDP_SEGMENT as u32 as u64) << 32;
    [SEGMENT_CONTROL_BYTES as u64, kind, segment_bytes.into()]
}
