//! Memory of the program's own for messages that are still to come: a long one is assembled there.
//!
//! The driver keeps what the program has posted, and lends one buffer to each long message that begins (`Sink::place`). It comes
//! back with the message, or without it if the message is not to come (`Sink::put_back`, `Engine::poll_unused`), or when the driver wants it
//! back (`Engine::recall`).

use alloc::boxed::Box;
use core::any::Any;
use core::fmt;
use core::ops::Range;

/// Memory in which a message can be put. It is as long as it was whenever it is asked.
pub trait ReceiveBuffer: Any + Send {
    /// What lies there.
    fn bytes(&self) -> &[u8];
    /// The same, to be written.
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

/// A buffer that was posted, and the length of the message for which it is.
pub struct Posted {
    /// As its driver calls it.
    pub number: u64,
    /// Of the message.
    length_bytes: usize,
    /// The program's.
    pub buffer: Box<dyn ReceiveBuffer>,
}

impl Posted {
    /// For a message of so many bytes. `Err`: it does not fit, and here is the buffer.
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

    /// Part of its place; nothing, if the buffer has become shorter.
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
