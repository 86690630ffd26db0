//! Error codes and their texts.
#![allow(unsafe_code, reason = "exports symbols to C")]

use std::ffi::{c_char, c_int};

use crate::failure;

/// Success.
pub const TSUMUJI_OK: c_int = 0;
/// An argument is invalid: NULL where something is needed, or a number out of range.
pub const TSUMUJI_EINVAL: c_int = -1;
/// Not now: nothing has arrived, or the queue is full. Try again, or wait.
pub const TSUMUJI_EAGAIN: c_int = -2;
/// It did not happen within the given time.
pub const TSUMUJI_ETIMEDOUT: c_int = -3;
/// A message is larger than the buffer (it waits for a larger one), or than the peer accepts.
pub const TSUMUJI_EMSGSIZE: c_int = -4;
/// The peer is dead: nothing was heard from it for too long, or it left. See tsumuji_reconnect.
pub const TSUMUJI_EPEER: c_int = -5;
/// There is no such other node.
pub const TSUMUJI_EUNKNOWN: c_int = -6;
/// No memory for a copy of the message, or for a board.
pub const TSUMUJI_ENOMEM: c_int = -7;
/// The link failed permanently: close the handle.
pub const TSUMUJI_ELINK: c_int = -8;
/// The endpoint cannot be opened; the text says why, and what to do.
pub const TSUMUJI_EOPEN: c_int = -9;
/// The handle belongs to another thread. See tsumuji_acquire_ownership. Callbacks on the progress assistant's thread get this, too.
pub const TSUMUJI_ETHREAD: c_int = -10;
/// The handle is in use: a callback used the handle that called it.
pub const TSUMUJI_EBUSY: c_int = -11;
/// A bug in the library; the handle can only be closed.
pub const TSUMUJI_EPANIC: c_int = -12;
/// Members disagree on a collective operation, its length, root, reduction or table of algorithms, or on the congestion control; or one has closed the
/// group.
pub const TSUMUJI_EMISMATCH: c_int = -13;
/// Messages that earlier calls accepted were lost with their peer, or not delivered before tsumuji_close ended; the text says how many, to whom.
/// Reported once, by a call that does nothing else: repeat that call.
pub const TSUMUJI_ELOST: c_int = -14;

/// The library's version, for example "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// General meaning of a code. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_strerror(code: c_int) -> *const c_char {
    let text = match code {
        TSUMUJI_OK => c"it worked",
        TSUMUJI_EINVAL => c"an argument makes no sense",
        TSUMUJI_EAGAIN => c"not now",
        TSUMUJI_ETIMEDOUT => c"not within the given time",
        TSUMUJI_EMSGSIZE => c"message too large",
        TSUMUJI_EPEER => c"the peer is dead",
        TSUMUJI_EUNKNOWN => c"no such other member",
        TSUMUJI_ENOMEM => c"no memory for a copy of the message, or for a board",
        TSUMUJI_ELINK => c"the link failed",
        TSUMUJI_EOPEN => c"the endpoint cannot be opened",
        TSUMUJI_ETHREAD => c"the handle belongs to another thread",
        TSUMUJI_EBUSY => c"the handle is in use",
        TSUMUJI_EPANIC => c"a bug in tsumuji",
        TSUMUJI_EMISMATCH => c"members do not agree on what to do",
        TSUMUJI_ELOST => c"messages sent before were lost",
        _ => c"unknown error",
    };
    text.as_ptr()
}

/// Text of the last failure in this thread: which peer, which file, what to do. Valid until the thread's next failure; "" before the first. Never
/// NULL.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_last_error() -> *const c_char {
    failure::last_text()
}
