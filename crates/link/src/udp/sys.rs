//! The only access of `udp` to the kernel: messages with addresses and segment sizes, and calls without a safe wrapper.
//!
//! `RecvBatch` owns the header arrays that the kernel reads and writes; they are built once and reused for every call, so that nothing is allocated
//! per frame. Invariant: a pointer in a header array leads into a boxed slice that the same batch owns and never replaces, or (scattered receives)
//! into memory that the call borrows.
#![allow(unsafe_code)] // recvmsg, recvmmsg with control messages.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

pub(super) use crate::gather::set_option;
use crate::gather::{RawAddr, SEGMENTS_MAX, option};
use crate::{HEAD_BYTES_MAX, Placement};
use libc::{c_int, iovec, mmsghdr, socklen_t};

/// Largest datagram, also of those that the kernel coalesces.
pub(super) const DATAGRAM_BYTES_MAX: usize = 65_536;
/// Most frames of one datagram that are separated from their bodies: as many as one send is cut into.
const SCATTERED_MAX: usize = SEGMENTS_MAX;
/// Enough for one control message with a 4-byte value.
const CONTROL_WORDS: usize = 4;

/// One received datagram, or several of one size that the kernel coalesced.
#[derive(Debug, Clone, Copy)]
pub(super) struct Datagram<'a> {
    pub(super) from: SocketAddr,
    pub(super) bytes: &'a [u8],
    /// Size of each frame in it but the last.
    pub(super) segment_bytes: usize,
    /// It was longer than the buffer and is cut.
    pub(super) truncated: bool,
}

/// One received datagram whose frames lie apart; see `RecvBatch::recv_scattered`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scattered {
    pub(super) from: SocketAddr,
    pub(super) bytes: usize,
    /// How many frames had a place of their own.
    pub(super) frames: usize,
    /// How many of `bytes` lie there; the rest is spilled.
    pub(super) in_place_bytes: usize,
    /// Size of each frame in it but the last.
    pub(super) segment_bytes: usize,
    /// It was longer than all places together and is cut.
    pub(super) truncated: bool,
}

const NO_VECTOR: iovec = iovec {
    iov_base: ptr::null_mut(),
    iov_len: 0,
};

fn vector_of(bytes: &mut [u8]) -> iovec {
    iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}

/// Buffers and headers for receiving.
pub(super) struct RecvBatch {
    headers: Box<[mmsghdr]>,
    names: Box<[RawAddr]>,
    controls: Box<[[u64; CONTROL_WORDS]]>,
    buffers: Box<[u8]>,
    // The headers point into these; the field keeps them alive.
    _vectors: Box<[iovec]>,
    /// Heads of frames whose bodies go elsewhere.
    heads: Box<[[u8; HEAD_BYTES_MAX]]>,
    /// Head and body of each of them, and the buffer for the rest.
    scattered: Box<[iovec]>,
}

// SAFETY: the raw pointers lead into boxed slices that this value owns; nothing in them is bound to a thread.
unsafe impl Send for RecvBatch {}

impl std::fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RecvBatch({})", self.headers.len())
    }
}

impl RecvBatch {
    pub(super) fn new(datagrams: usize) -> Self {
        let mut names = vec![RawAddr::EMPTY; datagrams].into_boxed_slice();
        let mut controls = vec![[0u64; CONTROL_WORDS]; datagrams].into_boxed_slice();
        let mut buffers = vec![0u8; datagrams * DATAGRAM_BYTES_MAX].into_boxed_slice();
        let base = buffers.as_mut_ptr();
        let mut vectors: Box<[iovec]> = (0..datagrams)
            .map(|index| iovec {
                iov_base: base.wrapping_add(index * DATAGRAM_BYTES_MAX).cast(),
                iov_len: DATAGRAM_BYTES_MAX,
            })
            .collect();
        let (names_at, controls_at) = (names.as_mut_ptr(), controls.as_mut_ptr());
        let vectors_at = vectors.as_mut_ptr();
        let headers = (0..datagrams)
            .map(|index| {
                // SAFETY: all-zero bytes are a valid `mmsghdr` (null pointers, zero lengths).
                let mut header: mmsghdr = unsafe { zeroed() };
                header.msg_hdr.msg_name = names_at.wrapping_add(index).cast();
                header.msg_hdr.msg_iov = vectors_at.wrapping_add(index);
                header.msg_hdr.msg_iovlen = 1;
                header.msg_hdr.msg_control = controls_at.wrapping_add(index).cast();
                header
            })
            .collect();
        Self {
            headers,
            names,
            controls,
            buffers,
            _vectors: vectors,
            heads: vec![[0; HEAD_BYTES_MAX]; SCATTERED_MAX].into(),
            scattered: vec![NO_VECTOR; 2 * SCATTERED_MAX + 1].into(),
        }
    }

    /// Receives one datagram, without waiting: heads apart and bodies into `placement`, as far as it has room; the rest goes into the first buffer.
    pub(super) fn recv_scattered(
        &mut self,
        fd: BorrowedFd<'_>,
        placement: &mut Placement<'_>,
    ) -> io::Result<Scattered> {
        let head_bytes = placement.head_bytes.min(HEAD_BYTES_MAX);
        let bodies = placement.place.chunks_mut(placement.body_bytes.max(1));
        let (mut frames, mut in_place_bytes) = (0, 0);
        for ((head, body), pair) in self
            .heads
            .iter_mut()
            .zip(bodies)
            .zip(self.scattered.chunks_exact_mut(2))
        {
            let head = &mut head[..head_bytes];
            in_place_bytes += head.len() + body.len();
            pair[0] = vector_of(head);
            pair[1] = vector_of(body);
            frames += 1;
        }
        self.scattered[2 * frames] = vector_of(&mut self.buffers[..DATAGRAM_BYTES_MAX]);
        let mut header = self.headers[0].msg_hdr;
        header.msg_namelen = size_of::<RawAddr>() as socklen_t;
        header.msg_controllen = size_of::<[u64; CONTROL_WORDS]>();
        header.msg_flags = 0;
        header.msg_iov = self.scattered.as_mut_ptr();
        header.msg_iovlen = 2 * frames + 1;
        // SAFETY: name and control of the first header are memory of this batch, of the stated lengths; the vectors were just pointed
        // at heads and a buffer of this batch and at chunks of `placement.place`, disjoint and all borrowed mutably for the call.
        let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut header, libc::MSG_DONTWAIT) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        self.headers[0].msg_hdr.msg_controllen = header.msg_controllen;
        let bytes = got as usize;
        Ok(Scattered {
            from: self.names[0].decode(),
            bytes,
            frames,
            in_place_bytes: in_place_bytes.min(bytes),
            segment_bytes: self.segment_bytes(0).unwrap_or(bytes).max(1),
            truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        })
    }

    /// Head of frame number `frame` that the last `recv_scattered` received.
    #[inline]
    pub(super) fn head(&self, frame: usize, bytes: usize) -> &[u8] {
        &self.heads[frame][..bytes]
    }

    /// The bytes for which the last `recv_scattered` found no other place.
    pub(super) fn spill(&self, bytes: usize) -> &[u8] {
        &self.buffers[..bytes]
    }

    /// Puts a scattered datagram together again, as the second buffer.
    pub(super) fn rejoin(&mut self, scattered: &Scattered, placement: &Placement<'_>) {
        let (spill, whole) = self.buffers.split_at_mut(DATAGRAM_BYTES_MAX);
        let whole = &mut whole[..DATAGRAM_BYTES_MAX];
        let mut at = 0;
        let mut add = |part: &[u8]| {
            let part = &part[..part.len().min(scattered.bytes - at)];
            whole[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        let bodies = placement.place.chunks(placement.body_bytes.max(1));
        for (head, body) in self.heads.iter().zip(bodies) {
            add(&head[..placement.head_bytes.min(HEAD_BYTES_MAX)]);
            add(body);
        }
        add(spill);
    }

    /// The datagram that `rejoin` put together.
    pub(super) fn rejoined(&self, bytes: usize) -> &[u8] {
        &self.buffers[DATAGRAM_BYTES_MAX..DATAGRAM_BYTES_MAX + bytes]
    }

    fn rearm(header: &mut mmsghdr) {
        header.msg_hdr.msg_namelen = size_of::<RawAddr>() as socklen_t;
        header.msg_hdr.msg_controllen = size_of::<[u64; CONTROL_WORDS]>();
        header.msg_hdr.msg_flags = 0;
    }

    /// Receives one datagram into the first buffer, without waiting.
    #[inline]
    pub(super) fn recv_one(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let header = &mut self.headers[0];
        Self::rearm(header);
        // SAFETY: every pointer in the header leads to memory this batch owns, of the stated length, borrowed mutably here.
        let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut header.msg_hdr, libc::MSG_DONTWAIT) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        header.msg_len = got as u32;
        Ok(())
    }

    /// Receives as many datagrams as there are, up to the size of the batch, without waiting.
    pub(super) fn recv_many(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        self.headers.iter_mut().for_each(Self::rearm);
        // SAFETY: as in `recv_one`, for each header of the array, whose length is given.
        let got = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.headers.len() as u32,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(got as usize)
    }

    /// The datagram that the last call put at `index`.
    #[inline]
    pub(super) fn datagram(&self, index: usize) -> Datagram<'_> {
        let header = &self.headers[index];
        let bytes = (header.msg_len as usize).min(DATAGRAM_BYTES_MAX);
        let at = index * DATAGRAM_BYTES_MAX;
        Datagram {
            from: self.names[index].decode(),
            bytes: &self.buffers[at..at + bytes],
            segment_bytes: self.segment_bytes(index).unwrap_or(bytes).max(1),
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
        }
    }

    /// Size of coalesced datagrams, from the one control message that we ask for.
    #[inline]
    fn segment_bytes(&self, index: usize) -> Option<usize> {
        let header = &self.headers[index].msg_hdr;
        if header.msg_controllen == 0 {
            return None;
        }
        let control = &self.controls[index];
        // cmsghdr: length (8 bytes), level and type (4 each), then the value.
        let [length, kind, value, _] = *control;
        let level = kind as u32 as c_int;
        let of_type = (kind >> 32) as u32 as c_int;
        let fits = length as usize >= size_of::<libc::cmsghdr>() + size_of::<c_int>();
        (fits && level == libc::SOL_UDP && of_type == libc::UDP_GRO)
            .then_some(value as u32 as usize)
    }
}

/// `segment_bytes` reads control messages as 64-bit little-endian words.
const _: () = assert!(
    size_of::<libc::cmsghdr>() == 16 && cfg!(target_endian = "little"),
    "the reading of control messages is written for 64-bit little-endian targets"
);

/// Positions in the answer to SO_MEMINFO.
const MEMINFO_WORDS: usize = 9;
const MEMINFO_RCVBUF: usize = 1;
const MEMINFO_DROPS: usize = 8;

/// Size of the receive buffer as the kernel accounts it, in bytes, and the number of datagrams dropped.
pub(super) fn receive_memory(fd: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let none = [0u32; MEMINFO_WORDS];
    // SAFETY: plain integers.
    let words = unsafe { option(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, none) }?;
    Ok((words[MEMINFO_RCVBUF], words[MEMINFO_DROPS]))
}
