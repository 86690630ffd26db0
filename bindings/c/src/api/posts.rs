//! Posted receives: where the next messages of a channel are to go.
#![allow(unsafe_code, reason = "exports symbols to C, and takes its pointers")]

use std::ffi::{c_int, c_void};

use tsumuji_node::Arrived;

use super::messages::{channel_number, read_channel_id, source_of};
use super::{TsumujiMessage, answer, done, size};
use crate::failure::Failure;
use crate::ffi::{self, Output};
use crate::handle::{Tsumuji, on};

/// Has the next message of an opened channel from a peer (-1: from anyone) put into `buffer`: the oldest that waits there, or the first that comes.
/// Posts of a channel are filled in the order in which they were made. A long message lands there as its frames come, without another
/// copy, whatever the program does meanwhile. The buffer is the library's until tsumuji_unpost or tsumuji_close; *post names it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_post(
    handle: *mut Tsumuji,
    channel_id: c_int,
    from: c_int,
    buffer: *mut c_void,
    room: usize,
    post: *mut u64,
) -> c_int {
    // SAFETY: the header asks for what `on`, `Output::new` and `put` need: the memory is the library's until the post ends.
    done(unsafe {
        on(handle, |node| {
            let channel_id = read_channel_id(channel_id)?;
            let from = source_of(node, (-1, from))?.from;
            if post.is_null() {
                return Err(Failure::invalid("the place for the post is NULL"));
            }
            let buffer = Output::new(buffer, room)?;
            let made = node.endpoint.post(channel_id, from, buffer)?;
            ffi::put(post, "the place for the post", made.number())?;
            node.posts.insert(made.number(), made);
            Ok(())
        })
    })
}

/// Waits until a message has come for that buffer, or its channel was closed: 1, or 0 if timeout_us microseconds have passed (negative: without
/// limit).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_wait_posted(
    handle: *mut Tsumuji,
    post: u64,
    timeout_us: i64,
) -> c_int {
    // SAFETY: the header asks for what `on` needs.
    answer(unsafe {
        on(handle, |node| {
            let made = node.posts.get(&post).ok_or_else(|| unknown(post))?;
            Ok(node.endpoint.wait_posted(made, ffi::timeout(timeout_us))?)
        })
    })
}

/// Ends a post: the buffer is the program's again. Returns the length of the message that lies in it; about may be NULL. TSUMUJI_EAGAIN: none
/// has come; one that was arriving there waits on its channel when it is whole. TSUMUJI_EMSGSIZE: the one that came is longer than
/// the buffer, and waits on its channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_unpost(
    handle: *mut Tsumuji,
    post: u64,
    about: *mut TsumujiMessage,
) -> isize {
    // SAFETY: the header asks for what `on` and `put_if_wanted` need.
    size(unsafe {
        on(handle, |node| {
            let made = node.posts.remove(&post).ok_or_else(|| unknown(post))?;
            let ended = node.endpoint.unpost(made)?;
            match ended.arrived {
                Arrived::Message {
                    from,
                    channel,
                    bytes,
                } => {
                    ffi::put_if_wanted(
                        about,
                        TsumujiMessage {
                            data: std::ptr::null(),
                            bytes,
                            from: from.0.into(),
                            channel: channel_number(channel),
                            borrow: 0,
                        },
                    );
                    Ok(bytes)
                }
                Arrived::TooLong { bytes, .. } => {
                    Err(Failure::too_large(bytes, ended.buffer.as_ref().len()))
                }
                _ => Err(Failure::NOT_NOW),
            }
        })
    })
}

fn unknown(post: u64) -> Failure {
    Failure::invalid(format!(
        "{post} is no post of this handle; was it ended before?"
    ))
}
