//! Data that came by TCP before the other end went over to its ring, and what follows it there.

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};

use super::kernel::note_error;
use super::{far, has_taken, is_carried, receive_by_tcp, stored_error};
use crate::ring::Reading;
use crate::sys::{AGAIN, Result};
use crate::table::Use;

/// What the ring has behind the last data of TCP: a call that leaves room in the program's buffers has received all there is. Caller: holder of `receiving`.
pub(super) fn receive_behind(
    using: &Use,
    fd: c_int,
    buffers: &[iovec],
    skip: usize,
    how: Reading,
) -> usize {
    if !is_carried(using, fd) || using.mine().inn.is_frozen.load(Ordering::Acquire) != 0 {
        return 0;
    }
    // What is wrong with the ring is the next call's.
    let bytes = using.reader().read(buffers, skip, how).unwrap_or(0);
    if bytes > 0 && how != Reading::Peek {
        has_taken(using, fd, bytes);
    }
    bytes
}

/// Data of the time before the ring, and whether all of it has been received; `None`: that is over. Caller: holder of `receiving`.
pub(super) fn receive_before_ring(
    using: &Use,
    fd: c_int,
    buffers: &[iovec],
    skip: usize,
    how: Reading,
) -> Result<Option<(usize, bool)>> {
    let own = &using.mine().own;
    let taken = own.tcp_taken.load(Ordering::Relaxed);
    let left_now = || match using.theirs().out.switch_at.load(Ordering::Acquire) {
        0 => u64::MAX,
        switch_at => (switch_at - 1).saturating_sub(taken),
    };
    // Behind the bells there may be data again.
    let most = usize::try_from(left_now()).unwrap_or(usize::MAX);
    let received = receive_by_tcp(fd, buffers, skip, most, how);
    // What the other end wrote before it sent what we have: it says from where on bytes are bells.
    let left = left_now();
    match received {
        Ok(0) if left > 0 && far::is_early_end(using) => Err(AGAIN),
        // All has come, and the ring may have come with it since we looked.
        Ok(0) if left_now() > 0 => stored_error(using).map(|()| Some((0, false))),
        Ok(bytes) => {
            let data = (bytes as u64).min(left);
            if how != Reading::Peek {
                own.tcp_taken.fetch_add(data, Ordering::Relaxed);
                own.bells_taken
                    .fetch_add(bytes as u64 - data, Ordering::AcqRel);
            }
            Ok((data > 0).then_some((data as usize, data == left)))
        }
        Err(AGAIN) if left == 0 => Ok(None),
        // How much came by TCP only the gateway would have told.
        Err(AGAIN) if far::is_lost(using) => stored_error(using).map(|()| Some((0, false))),
        Err(error) if left > 0 => Err(error),
        Err(error) => {
            note_error(using, error);
            Ok(None)
        }
    }
}
