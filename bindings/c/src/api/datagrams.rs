//! Datagrams: best-effort messages, to one peer or to all.
#![allow(unsafe_code, reason = "exports symbols to C, and takes its pointers")]

use std::ffi::{c_int, c_void};
use std::time::Duration;

use super::messages::source_of;
use super::{answer, number, size};
use crate::failure::Failure;
use crate::ffi;
use crate::handle::{Handle, on};
use tsumuji_node::{Datagram, Destination};

/// A best-effort message, sent or received.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TsumujiDatagram {
    /// The payload.
    pub data: *const c_void,
    /// Its length in bytes.
    pub bytes: usize,
    /// The sender; ignored when sent.
    pub from: c_int,
    /// Incarnation of the sender; ignored when sent.
    pub incarnation: u32,
    /// Id of its channel.
    pub channel_id: u16,
    /// Not used; 0.
    pub reserved: u16,
    /// What the values are: a newer datagram of the same channel and key replaces an older one. For group memory, the index of the first element.
    pub key: u32,
    /// Period of the computation; wraps.
    pub epoch: u32,
    /// Which is newer within the epoch; wraps. For group memory, the writer's lap.
    pub lap: u32,
}

/// As receiver of a datagram: every peer. As owner of elements that are waited for: every other node.
pub const TSUMUJI_ALL: c_int = -1;

/// Sends a datagram to one peer or to all (TSUMUJI_ALL), best effort. If the link has no room now, it waits until a newer one of its channel and key
/// replaces it, or until deadline_us microseconds have passed, when it is dropped and counted (negative: no deadline; 0: it is sent now or dropped).
/// Between tsumuji_cork and tsumuji_uncork it leaves with the batch, else at once. Returns the number of peers for which it was dropped at once. Up
/// to tsumuji_datagram_capacity bytes it is one frame, which reaches all peers on shared memory and raw Ethernet; a longer one is sent to each peer
/// separately, within its window.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_send_datagram(
    handle: Handle,
    to: c_int,
    datagram: *const TsumujiDatagram,
    deadline_us: i64,
) -> c_int {
    // SAFETY: the header asks for what `read` needs.
    number(unsafe {
        on(handle, |node| {
            let datagram = read(datagram)?;
            let to = match to {
                TSUMUJI_ALL => Destination::Broadcast,
                to => Destination::Peer(node.peer(to)?),
            };
            let deadline = u64::try_from(deadline_us).ok().map(Duration::from_micros);
            let missed = node.endpoint.datagram(to, datagram, deadline)?;
            Ok(super::count(missed))
        })
    })
}

/// # Safety
/// `datagram` is NULL, or it and its data can be read for as long as the result is used.
unsafe fn read<'a>(datagram: *const TsumujiDatagram) -> Result<Datagram<'a>, Failure> {
    if datagram.is_null() {
        return Err(Failure::invalid("the datagram is NULL"));
    }
    // SAFETY: not NULL; readable, as the caller promises.
    let datagram = unsafe { datagram.read_unaligned() };
    Ok(Datagram {
        channel_id: datagram.channel_id,
        key: datagram.key,
        epoch: datagram.epoch,
        lap: datagram.lap,
        // SAFETY: as the caller promises.
        payload: unsafe { ffi::bytes(datagram.data, datagram.bytes) }?,
        ..Datagram::EMPTY
    })
}

/// Copies the next datagram of an opened channel (-1: of channels that nobody opened), if no callback got it, into `buffer`; returns its length. Only
/// the newest of each source, channel and key waits. about may be NULL; its data is NULL. TSUMUJI_ETIMEDOUT: none arrived in time; TSUMUJI_EAGAIN
/// with a timeout_us of 0: there is none. TSUMUJI_EMSGSIZE: it has more than `room` bytes, and waits for a larger buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_recv_datagram(
    handle: Handle,
    channel_id: c_int,
    buffer: *mut c_void,
    room: usize,
    about: *mut TsumujiDatagram,
    timeout_us: i64,
) -> isize {
    // SAFETY: the header asks for what `copy_out` and `put_if_wanted` need; the payload lies in memory of ours, not in C's.
    size(unsafe {
        on(handle, |node| {
            ffi::check_buffer(buffer, room)?;
            let channel_id = source_of(node, (channel_id, -1))?.channel_id;
            let datagram = node.recv_datagram(channel_id, room, ffi::timeout(timeout_us))?;
            ffi::copy_out(&datagram.payload, buffer)?;
            let about_it = TsumujiDatagram {
                data: std::ptr::null(),
                bytes: datagram.payload.len(),
                from: datagram.from.0.into(),
                incarnation: datagram.incarnation,
                channel_id: datagram.channel_id,
                reserved: 0,
                key: datagram.key,
                epoch: datagram.epoch,
                lap: datagram.lap,
            };
            ffi::put_if_wanted(about, about_it);
            Ok(datagram.payload.len())
        })
    })
}

/// Largest one-frame datagram in bytes, for this link and every peer met so far.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_datagram_capacity(handle: Handle) -> isize {
    size(on(handle, |node| {
        Ok(node.endpoint.datagram_capacity_bytes())
    }))
}

/// 1: one frame of this link reaches all peers.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_broadcasts(handle: Handle) -> c_int {
    answer(on(handle, |node| Ok(node.endpoint.broadcasts())))
}
