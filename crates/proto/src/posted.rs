//! Posted receives: memory of the program in which long messages are assembled.
//!
//! The driver holds the buffers that the program has posted, and gives one to each long message that begins (`Sink::place`). The buffer returns with
//! the message, or without it if the message will not come (`Sink::put_back`, `Engine::poll_unused`) or the driver recalls it (`Engine::recall`).

use alloc::boxed::Box;
use core::any::Any;
use core::fmt;
use core::ops::Range;

/// Memory for a message. Its length must not change.
pub trait ReceiveBuffer: Any + Send {
    /// Content of the buffer.
    fn bytes(&self) -> &[u8];
    /// Content of the buffer, to be written.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl<T: AsRef<[u8]> + AsMut<[u8]> + Any + Send> ReceiveBuffer for T {
    fn bytes(&self) -> &[u8] {
        self.as_ref()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.as_mut()
    }
}

/// There is no memory for what has arrived of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no memory for what has arrived of the message")]
pub struct OutOfMemory;

/// A posted buffer that is assigned to a message, and the length of that message.
pub struct Posted {
    /// Number that the driver gave to the buffer.
    pub number: u64,
    /// Length of the message.
    length_bytes: usize,
    /// The program's buffer.
    pub buffer: Box<dyn ReceiveBuffer>,
}

impl Posted {
    /// Assigns `buffer` to a message of `length_bytes`. `Err`: the buffer is too short, and is returned.
    pub fn new(
        number: u64,
        length_bytes: usize,
        buffer: Box<dyn ReceiveBuffer>,
    ) -> Result<Self, Box<dyn ReceiveBuffer>> {
        if buffer.bytes().len() < length_bytes {
            return Err(buffer);
        }
        Ok(Self {
            number,
            length_bytes,
            buffer,
        })
    }

    pub(crate) fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// The message, as far as it has arrived.
    pub fn message(&self) -> &[u8] {
        self.buffer
            .bytes()
            .get(..self.length_bytes)
            .unwrap_or_default()
    }

    /// The range `place` of the message; empty if the buffer has become shorter.
    pub(crate) fn part(&mut self, place: Range<usize>) -> &mut [u8] {
        self.buffer.bytes_mut().get_mut(place).unwrap_or_default()
    }
}

impl fmt::Debug for Posted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Posted")
            .field("number", &self.number)
            .field("length_bytes", &self.length_bytes)
            .finish_non_exhaustive()
    }
}
