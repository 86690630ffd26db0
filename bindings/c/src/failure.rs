//! Failures of calls from C: a code, a value for `errno`, and a text that the thread can ask for.
//!
//! Made from the errors of other crates; stored by `report`. Texts of failures that are no mistakes ("not now") are static, so that a loop that often
//! meets them does not allocate.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{c_char, c_int};

use tsumuji_collective::CollectiveError;
use tsumuji_node::{ChannelError, CloseError, EndpointError, OpenError, SendError};

use crate::api::{
    TSUMUJI_EAGAIN, TSUMUJI_EBUSY, TSUMUJI_EINVAL, TSUMUJI_ELINK, TSUMUJI_ELOST, TSUMUJI_EMISMATCH,
    TSUMUJI_EMSGSIZE, TSUMUJI_ENOMEM, TSUMUJI_EOPEN, TSUMUJI_EPANIC, TSUMUJI_EPEER,
    TSUMUJI_ETHREAD, TSUMUJI_ETIMEDOUT, TSUMUJI_EUNKNOWN,
};

/// Limit of a stored text in bytes; a longer one is cut.
const TEXT_LIMIT_BYTES: usize = 4096;

/// Failure of a call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: c_int,
    pub(crate) errno: c_int,
    text: Cow<'static, str>,
}

impl Failure {
    const fn plain(code: c_int, errno: c_int, text: &'static str) -> Self {
        let text = Cow::Borrowed(text);
        Self { code, errno, text }
    }

    /// Failure for an invalid argument.
    pub(crate) fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code: TSUMUJI_EINVAL,
            errno: libc::EINVAL,
            text: text.into(),
        }
    }

    pub(crate) const NOT_NOW: Self =
        Self::plain(TSUMUJI_EAGAIN, libc::EAGAIN, "nothing is there now");

    pub(crate) const TIMED_OUT: Self = Self::plain(
        TSUMUJI_ETIMEDOUT,
        libc::ETIMEDOUT,
        "it did not happen within the given time",
    );

    pub(crate) const OTHER_THREAD: Self = Self::plain(
        TSUMUJI_ETHREAD,
        libc::EPERM,
        "the handle belongs to another thread, which must call tsumuji_release_ownership, then this one tsumuji_acquire_ownership; or to the process before fork",
    );

    pub(crate) const CLOSED: Self =
        Self::plain(TSUMUJI_EINVAL, libc::EBADF, "the handle was closed");

    pub(crate) const BUSY: Self = Self::plain(
        TSUMUJI_EBUSY,
        libc::EBUSY,
        "the handle is in use: a callback must not use the handle that called it",
    );

    pub(crate) const PANICKED: Self = Self::plain(
        TSUMUJI_EPANIC,
        libc::ENOTRECOVERABLE,
        "a bug in tsumuji: see standard error; the handle can only be closed",
    );

    pub(crate) fn too_large(bytes: usize, room: usize) -> Self {
        Self {
            code: TSUMUJI_EMSGSIZE,
            errno: libc::EMSGSIZE,
            text: format!(
                "what is next has {bytes} bytes and the buffer {room}; it waits for a larger one"
            )
            .into(),
        }
    }

    pub(crate) fn link(text: &'static str) -> Self {
        Self::plain(TSUMUJI_ELINK, libc::EIO, text)
    }

    pub(crate) fn unknown(id: c_int) -> Self {
        Self {
            code: TSUMUJI_EUNKNOWN,
            errno: libc::ENXIO,
            text: format!("{id} is not another member of this cluster").into(),
        }
    }

    pub(crate) fn no_memory(text: String) -> Self {
        Self {
            code: TSUMUJI_ENOMEM,
            errno: libc::ENOMEM,
            text: text.into(),
        }
    }

    pub(crate) fn open(text: String, errno: c_int) -> Self {
        Self {
            code: TSUMUJI_EOPEN,
            errno,
            text: text.into(),
        }
    }

    /// Stores the text for this thread and sets `errno`; returns the code.
    pub(crate) fn report(&self) -> c_int {
        // A thread that is ending cannot store the text; code and `errno` must do.
        let _ = LAST.try_with(|last| {
            let mut last = last.borrow_mut();
            last.clear();
            let text = self.text.as_bytes();
            let text = &text[..text.len().min(TEXT_LIMIT_BYTES)];
            last.extend(text.iter().map(|&byte| if byte == 0 { b' ' } else { byte }));
            last.push(0);
        });
        crate::ffi::set_errno(self.errno);
        self.code
    }
}

thread_local! {
    /// Text of the last failure, ended by a zero byte; empty before the first one.
    static LAST: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The text, valid until the thread's next failure.
pub(crate) fn last_text() -> *const c_char {
    let text = LAST.try_with(|last| {
        let last = last.borrow();
        (!last.is_empty()).then_some(last.as_ptr().cast())
    });
    text.ok().flatten().unwrap_or(c"".as_ptr())
}

/// The system's error number in the chain of causes, if there is one.
fn errno_of(error: &(dyn std::error::Error + 'static), otherwise: c_int) -> c_int {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(number) = error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::raw_os_error)
        {
            return number;
        }
        cause = error.source();
    }
    otherwise
}

impl From<ChannelError> for Failure {
    fn from(error: ChannelError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<EndpointError> for Failure {
    fn from(error: EndpointError) -> Self {
        let (code, errno) = match error {
            EndpointError::Channel(error) => return error.into(),
            EndpointError::PeerDead { .. } => (TSUMUJI_EPEER, libc::ECONNRESET),
            _ => (TSUMUJI_ELINK, errno_of(&error, libc::EIO)),
        };
        Self {
            code,
            errno,
            text: error.to_string().into(),
        }
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        let (code, errno) = match &error {
            SendError::WouldBlock { .. } => {
                return Self::plain(
                    TSUMUJI_EAGAIN,
                    libc::EAGAIN,
                    "the queue or the channel to the peer is full, or memory short; wait until it is writable",
                );
            }
            SendError::TooLarge { .. } => (TSUMUJI_EMSGSIZE, libc::EMSGSIZE),
            SendError::PeerDead { .. } => (TSUMUJI_EPEER, libc::ECONNRESET),
            SendError::MessagesLost { .. } => (TSUMUJI_ELOST, libc::ECONNABORTED),
            SendError::OtherCongestion { .. } => (TSUMUJI_EMISMATCH, libc::EPROTO),
            SendError::UnknownPeer { .. } => (TSUMUJI_EUNKNOWN, libc::ENXIO),
            SendError::Closed => return Self::CLOSED,
            SendError::NoMemory { .. } => (TSUMUJI_ENOMEM, libc::ENOMEM),
            SendError::Link(_) => (TSUMUJI_ELINK, errno_of(&error, libc::EIO)),
            _ => (TSUMUJI_EINVAL, libc::EINVAL),
        };
        Self {
            code,
            errno,
            text: error.to_string().into(),
        }
    }
}

impl From<CloseError> for Failure {
    fn from(error: CloseError) -> Self {
        match error {
            CloseError::Link(error) => EndpointError::Link(error).into(),
            undelivered => Self {
                code: TSUMUJI_ELOST,
                errno: libc::ECONNABORTED,
                text: undelivered.to_string().into(),
            },
        }
    }
}

impl From<CollectiveError> for Failure {
    fn from(error: CollectiveError) -> Self {
        let (code, errno) = match error {
            CollectiveError::Endpoint(error) => return error.into(),
            CollectiveError::Send(error) => return error.into(),
            CollectiveError::MemberDead { .. } => (TSUMUJI_EPEER, libc::ECONNRESET),
            CollectiveError::Mismatch { .. }
            | CollectiveError::OtherTable { .. }
            | CollectiveError::OtherControl { .. } => (TSUMUJI_EMISMATCH, libc::EPROTO),
            CollectiveError::TooMany { .. } => (TSUMUJI_EAGAIN, libc::EAGAIN),
            _ => (TSUMUJI_EINVAL, libc::EINVAL),
        };
        Self {
            code,
            errno,
            text: error.to_string().into(),
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Self::open(error.to_string(), errno_of(&error, libc::EINVAL))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;
    use tsumuji_node::NodeId;

    fn last() -> String {
        LAST.with_borrow(|last| {
            let text = CStr::from_bytes_until_nul(last).unwrap_or_default();
            text.to_string_lossy().into_owned()
        })
    }

    /// The text is that of the thread's last failure, cut if it is long; zero bytes in it are replaced.
    #[test]
    fn texts_are_kept_by_thread() {
        assert_eq!(last(), "");
        Failure::invalid("a\0b").report();
        assert_eq!(last(), "a b");
        std::thread::spawn(|| assert_eq!(last(), ""))
            .join()
            .expect("thread");
        Failure::invalid("x".repeat(2 * TEXT_LIMIT_BYTES)).report();
        assert_eq!(last().len(), TEXT_LIMIT_BYTES);
    }

    /// Codes and `errno` follow the kind of failure, or the system's error number.
    #[test]
    fn codes_follow_causes() {
        let peer = NodeId(3);
        let dead = Failure::from(SendError::PeerDead { peer });
        assert_eq!((dead.code, dead.errno), (TSUMUJI_EPEER, libc::ECONNRESET));
        assert!(dead.text.contains("node 3"), "{}", dead.text);
        let source = std::io::Error::from_raw_os_error(libc::EACCES);
        let refused = Failure::from(OpenError::Random(source));
        assert_eq!(refused.code, TSUMUJI_EOPEN);
        assert_eq!(Failure::from(OpenError::NotLaunched).errno, libc::EINVAL);
    }
}
