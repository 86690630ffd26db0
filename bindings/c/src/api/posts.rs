//! Posted receives: buffers for the next messages of a channel.
#![allow(unsafe_code, reason = "exports symbols to C, and takes its pointers")]

use std::ffi::{c_int, c_void};

use tsumuji_node::Arrived;

use super::messages::{read_received_id, source_of};
use super::{TsumujiMessage, answer, done, size};
use crate::failure::Failure;
use crate::ffi::{self, Output};
use crate::handle::{Handle, on};

/// Posts `buffer` for the next message of an opened channel from a peer (-1: from any): the oldest that waits there, or the next that arrives. Posts
/// of a channel are filled in the order in which they were made. A long message is received directly into the buffer, whatever the program does
/// meanwhile. The buffer belongs to the library until tsumuji_unpost or tsumuji_close; *post becomes the post's number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_post(
    handle: Handle,
    channel_id: c_int,
    from: c_int,
    buffer: *mut c_void,
    room: usize,
    post: *mut u64,
) -> c_int {
    // SAFETY: the header asks for what `Output::new` and `put` need: the memory belongs to the library until the post ends.
    done(unsafe {
        on(handle, |node| {
            let channel_id = read_received_id(node, channel_id)?;
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

/// Waits until a message has filled the buffer, or its channel was closed: 1, or 0 after timeout_us microseconds (negative: without limit).
/// TSUMUJI_EPEER: the post is for messages of one peer, which is dead; the buffer comes back by tsumuji_unpost.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_wait_posted(handle: Handle, post: u64, timeout_us: i64) -> c_int {
    answer(on(handle, |node| {
        let made = node.posts.get(&post).ok_or_else(|| unknown(post))?;
        Ok(node.endpoint.wait_posted(made, ffi::timeout(timeout_us))?)
    }))
}

/// Ends a post: the buffer is the program's again. Returns the length of the message in it; about may be NULL. TSUMUJI_EAGAIN: no message has filled
/// it; one that was arriving there waits on its channel when it is complete. TSUMUJI_EMSGSIZE: a message was longer than the buffer, and waits on its
/// channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_unpost(
    handle: Handle,
    post: u64,
    about: *mut TsumujiMessage,
) -> isize {
    // SAFETY: the header asks for what `put_if_wanted` needs.
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
                    ffi::put_if_wanted(about, TsumujiMessage::copied(bytes, from, channel));
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
