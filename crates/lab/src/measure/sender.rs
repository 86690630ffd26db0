//! The sender: each way to send, with times of its parts.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use super::memory::{
    BYTES_MAX, DAMAGED, Descriptor, Line, Memory, REGISTERED, REGISTERED_DATA, RING, RING_DATA,
    STOP, checksum, now_ns, spin,
};
use super::{MeasureError, Way, sys};

/// Times of one message, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    /// Until the sender knows that the message has left.
    pub(super) sent: u64,
    /// Until it knows that the message was received.
    pub(super) received: u64,
    pub(super) split: Split,
}

/// Parts of one message, in nanoseconds. All but `kernel` and `interface` add up to what is sent, save what passes between them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Split {
    pub(super) descriptor: u64,
    pub(super) copy: u64,
    pub(super) start: u64,
    pub(super) wait: u64,
    /// Inside the sender's call.
    pub(super) kernel: u64,
    /// Of the wait: the interface's parts.
    pub(super) interface: u64,
    pub(super) fetch_descriptor: u64,
    pub(super) translation: u64,
    pub(super) fetch_data: u64,
}

pub(super) struct Sender<'a> {
    memory: Memory,
    pipe: OwnedFd,
    data: Vec<u8>,
    number: u64,
    is_stopped: &'a dyn Fn() -> bool,
}

impl<'a> Sender<'a> {
    /// `memory` and `pipe` are shared with an interface that serves them.
    pub(super) fn new(
        memory: &OwnedFd,
        pipe: OwnedFd,
        is_stopped: &'a dyn Fn() -> bool,
    ) -> io::Result<Self> {
        let memory = Memory::map(memory.as_fd())?;
        memory.store(Line::Mode, 2, u64::from(std::process::id()));
        memory.store(Line::Mode, 3, memory.0.address());
        Ok(Self {
            memory,
            pipe,
            data: (0..BYTES_MAX)
                .map(|place| (place * 31 + place / 251) as u8)
                .collect(),
            number: 0,
            is_stopped,
        })
    }

    /// What follows goes this way. Nothing may be under way.
    pub(super) fn choose(&self, way: Way, stamps: bool) {
        self.memory.store(Line::Mode, 1, u64::from(stamps));
        self.memory.store(Line::Mode, 0, way as u64 + 1);
    }

    /// Sends a message of `bytes` the chosen way, and waits until it was received and verified.
    pub(super) fn send(
        &mut self,
        way: Way,
        bytes: usize,
        stamps: bool,
    ) -> Result<Times, MeasureError> {
        self.number += 1;
        let number = self.number;
        let changing = bytes.min(4);
        self.data[..changing].copy_from_slice(&(number as u32).to_ne_bytes()[..changing]);
        let data = &self.data[..bytes];
        let address = match way {
            Way::User | Way::UserSt => self.memory.0.address() + REGISTERED_DATA as u64,
            _ => data.as_ptr().expose_provenance() as u64,
        };
        let descriptor = Descriptor {
            number,
            address,
            bytes: bytes as u64,
            checksum: checksum(data),
        };
        let head = descriptor.to_bytes();
        // Data and descriptor are where the program made them: not part of the time.
        if matches!(way, Way::User | Way::UserSt) {
            self.memory.0.put(REGISTERED_DATA, data);
        }
        if way == Way::User {
            self.memory.0.put(REGISTERED, &head);
        }
        fence(Ordering::SeqCst);
        let mut split = Split::default();
        let begin = now_ns();
        let mut last = begin;
        let mut lap = |part: &mut u64| {
            if stamps {
                let now = now_ns();
                *part = now - last;
                last = now;
            }
        };
        match way {
            Way::User => {
                let place = self.memory.0.address() + REGISTERED as u64;
                self.memory
                    .word(Line::Doorbell, 1)
                    .store(place, Ordering::Relaxed);
                self.memory.store(Line::Doorbell, 0, number);
            }
            Way::UserSt => {
                self.memory.0.put(RING, &head);
                lap(&mut split.descriptor);
                self.memory.store(Line::Doorbell, 0, number);
            }
            Way::UserStDt => {
                self.memory.0.put(RING, &head);
                lap(&mut split.descriptor);
                self.memory.0.put(RING_DATA, data);
                lap(&mut split.copy);
                self.memory.store(Line::Doorbell, 0, number);
            }
            Way::Syscall => self.call(way, (&head, data), &sys::splice)?,
            Way::SyscallSt => self.call(way, (&head, &[]), &|pipe, pieces| {
                Ok(rustix::io::writev(pipe, pieces)?)
            })?,
            Way::SyscallStDt => self.call(way, (&head, data), &|pipe, pieces| {
                Ok(rustix::io::writev(pipe, pieces)?)
            })?,
            Way::Host => {
                let words = self.memory.0.words(RING, 4);
                for (place, word) in words.iter().zip(descriptor.words()) {
                    place.store(word, Ordering::Relaxed);
                }
                lap(&mut split.descriptor);
                let words = self.memory.0.words(RING_DATA, bytes.div_ceil(8));
                for (place, word) in words.iter().zip(data.chunks(8)) {
                    let mut whole = [0; 8];
                    whole[..word.len()].copy_from_slice(word);
                    place.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
                }
                lap(&mut split.copy);
                self.memory.store(Line::Doorbell, 0, number);
            }
        }
        lap(&mut split.start);
        if way.is_call() {
            split.kernel = split.start;
        }
        // Without an interface the message is in the receiver's memory.
        if way != Way::Host {
            self.wait(Line::Done)?;
        }
        let sent = now_ns();
        lap(&mut split.wait);
        self.wait(Line::Received)?;
        let received = now_ns();
        let way_name = way.name();
        match self.memory.load(Line::Received, 1) {
            0 => {}
            DAMAGED => {
                let way = way_name;
                return Err(MeasureError::Damaged { way, bytes });
            }
            code => {
                self.memory.store(Line::Received, 1, 0);
                let code = i32::try_from(code).unwrap_or(libc::EPERM);
                return Err(MeasureError::Refused {
                    way: way_name,
                    source: io::Error::from_raw_os_error(code),
                });
            }
        }
        if stamps {
            let at = |word| self.memory.load(Line::Stamps, word);
            split.interface = at(3).saturating_sub(at(0));
            split.fetch_descriptor = at(1).saturating_sub(at(0));
            split.translation = at(2).saturating_sub(at(1));
            split.fetch_data = at(3).saturating_sub(at(2));
        }
        Ok(Times {
            sent: sent - begin,
            received: received - begin,
            split,
        })
    }

    /// Gives head and data to the kernel, whole.
    fn call(
        &self,
        way: Way,
        (head, data): (&[u8], &[u8]),
        give: &dyn Fn(std::os::fd::BorrowedFd<'_>, &[IoSlice<'_>]) -> io::Result<usize>,
    ) -> Result<(), MeasureError> {
        let mut given = 0;
        let all = head.len() + data.len();
        while given < all {
            let pieces = [
                IoSlice::new(&head[given.min(head.len())..]),
                IoSlice::new(&data[given.saturating_sub(head.len())..]),
            ];
            let from = usize::from(pieces[0].is_empty());
            let to = if pieces[1].is_empty() { 1 } else { 2 };
            match give(self.pipe.as_fd(), &pieces[from..to]) {
                Ok(more) => given += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nothing is under way, so that other ways can go on.
                Err(source) if given == 0 => {
                    let way = way.name();
                    return Err(MeasureError::Refused { way, source });
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn wait(&self, line: Line) -> Result<(), MeasureError> {
        let mut turns = 0;
        while self.memory.load(line, 0) != self.number {
            if spin(&mut turns) && (self.is_stopped)() {
                return Err(MeasureError::Stopped);
            }
        }
        Ok(())
    }
}

impl Drop for Sender<'_> {
    fn drop(&mut self) {
        self.memory.store(Line::Mode, 0, STOP);
    }
}

#[cfg(test)]
impl Sender<'_> {
    /// Has the interface read the memory of a process that there is not.
    pub(super) fn forget_process(&self) {
        self.memory.store(Line::Mode, 2, 0);
    }
}
