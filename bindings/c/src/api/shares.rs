//! Shares: best-effort frames, to one peer or to all, never queued.
#![allow(unsafe_code, reason = "exports symbols to C, and takes its pointers")]

use std::ffi::{c_int, c_void};

use super::{answer, done, number, size};
use crate::failure::Failure;
use crate::ffi;
use crate::handle::{Tsumuji, on};
use crate::node::Node;
use tsumuji_node::Share;

/// A best-effort frame, sent or received: what a board's values travel in, or whatever a program makes of it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TsumujiShare {
    /// The values.
    pub data: *const c_void,
    /// Their length; at most tsumuji_share_capacity.
    pub bytes: usize,
    /// Who wrote it; not looked at when sent.
    pub from: c_int,
    /// The life of the one who wrote it; not looked at when sent.
    pub incarnation: u32,
    /// Which of the program's own uses; boards use 0.
    pub port: u16,
    /// Not used; 0.
    pub reserved: u16,
    /// Period of the computation.
    pub epoch: u32,
    /// The writer's lap; wraps.
    pub lap: u32,
    /// Index of the first element.
    pub start: u32,
}

/// Every peer.
pub const TSUMUJI_ALL: c_int = -1;

/// Sends a share to one peer or to all (TSUMUJI_ALL): once on a link with broadcast, else once per peer. Returns to how many it could
/// not be sent now. On shared memory and raw Ethernet one frame reaches everybody.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_share(
    handle: *mut Tsumuji,
    to: c_int,
    share: *const TsumujiShare,
) -> c_int {
    // SAFETY: the header asks for what `on` and `gather` need.
    number(unsafe {
        on(handle, |node| {
            let missed = gather(node, to, share)?;
            node.endpoint.push()?;
            Ok(missed)
        })
    })
}

/// Like tsumuji_share, but the frame may wait for tsumuji_push: cheaper when several follow each other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_gather_share(
    handle: *mut Tsumuji,
    to: c_int,
    share: *const TsumujiShare,
) -> c_int {
    // SAFETY: the header asks for what `on` and `gather` need.
    number(unsafe { on(handle, |node| gather(node, to, share)) })
}

/// # Safety
/// `share` is NULL, or can be read, and so can its data.
unsafe fn gather(node: &mut Node, to: c_int, share: *const TsumujiShare) -> Result<c_int, Failure> {
    if share.is_null() {
        return Err(Failure::invalid("the share is NULL"));
    }
    // SAFETY: not NULL; readable, as the caller promises.
    let share = unsafe { share.read_unaligned() };
    // SAFETY: as the caller promises.
    let data = unsafe { ffi::bytes(share.data, share.bytes) }?;
    let room = node.endpoint.share_capacity_bytes();
    if data.len() > room {
        return Err(Failure::invalid(format!(
            "a share of {} bytes; this link takes {room}",
            data.len()
        )));
    }
    let share = Share {
        port: share.port,
        epoch: share.epoch,
        lap: share.lap,
        start: share.start,
        payload: data,
        ..Share::EMPTY
    };
    if to == TSUMUJI_ALL {
        let missed = node.endpoint.gather_share(share)?;
        return Ok(c_int::try_from(missed).unwrap_or(c_int::MAX));
    }
    let to = node.peer(to)?;
    let sent = node.endpoint.gather_share_to(to, share)?;
    Ok(c_int::from(!sent))
}

/// Sends what tsumuji_gather_share gathered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_push(handle: *mut Tsumuji) -> c_int {
    // SAFETY: the header asks for what `on` needs.
    done(unsafe { on(handle, |node| Ok(node.endpoint.push()?)) })
}

/// Largest share on this link, in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_share_capacity(handle: *mut Tsumuji) -> isize {
    // SAFETY: the header asks for what `on` needs.
    size(unsafe { on(handle, |node| Ok(node.endpoint.share_capacity_bytes())) })
}

/// 1: one frame of this link reaches everybody.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_broadcasts(handle: *mut Tsumuji) -> c_int {
    // SAFETY: the header asks for what `on` needs.
    answer(unsafe { on(handle, |node| Ok(node.endpoint.broadcasts())) })
}
