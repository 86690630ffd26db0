//! The sender: each way to send, with times of its parts.

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use super::memory::{
    BYTES_MAX, DAMAGED, DESCRIPTOR_BYTES, Descriptor, Line, Memory, REGISTERED, REGISTERED_DATA,
    RING, RING_DATA, STOP, checksum, code_of, error_of, now_ns, spin,
};
use super::{MeasureError, Way, ZeroCopies, sys};

/// Where the data lies in what a ring has registered.
const DATA_IN_RING: usize = REGISTERED_DATA - REGISTERED;

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
    /// Made when they are first wanted.
    ring: Option<sys::Ring>,
    stream: Option<TcpStream>,
    /// Why there is no stream: an error of the kernel.
    no_stream: Option<u64>,
    zero_copies: ZeroCopies,
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
            ring: None,
            stream: None,
            no_stream: None,
            zero_copies: ZeroCopies::default(),
            data: (0..BYTES_MAX)
                .map(|place| (place * 31 + place / 251) as u8)
                .collect(),
            number: 0,
            is_stopped,
        })
    }

    /// What follows goes this way. Nothing may be under way.
    pub(super) fn choose(&mut self, way: Way, stamps: bool) -> Result<(), MeasureError> {
        self.memory.store(Line::Mode, 1, u64::from(stamps));
        self.memory.store(Line::Mode, 0, way as u64 + 1);
        let refused = |source: io::Error| {
            let way = way.name();
            MeasureError::Refused { way, source }
        };
        if way == Way::Uring && self.ring.is_none() {
            let ring = sys::Ring::over(&self.memory.0, REGISTERED, RING - REGISTERED);
            self.ring = Some(ring.map_err(refused)?);
        }
        if way.is_tcp() && self.stream.is_none() {
            // The interface connects once.
            let stream = match self.no_stream {
                Some(code) => Err(error_of(code)),
                None => self.accept(),
            };
            let stream = stream.map_err(|source| {
                self.no_stream = Some(code_of(&source));
                refused(source)
            })?;
            self.stream = Some(stream.ok_or(MeasureError::Stopped)?);
        }
        if let (Way::TcpZeroCopy, Some(stream)) = (way, &self.stream) {
            sys::allow_zero_copy(stream.as_fd()).map_err(refused)?;
        }
        Ok(())
    }

    pub(super) fn zero_copies(&self) -> ZeroCopies {
        self.zero_copies
    }

    /// Has the interface connect; `None`: it is gone.
    fn accept(&self) -> io::Result<Option<TcpStream>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        self.memory.store(Line::Mode, 4, u64::from(port));
        let mut spins = 0;
        let mut accepted = Vec::new();
        loop {
            match listener.accept() {
                Ok((stream, from)) => accepted.push((stream, u64::from(from.port()))),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(error),
            }
            // Any other connection is not listened to.
            let port = self.memory.load(Line::Stream, 0);
            if let Some(place) = accepted.iter().position(|(_, from)| *from == port) {
                let (stream, _) = accepted.swap_remove(place);
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                return Ok(Some(stream));
            }
            match self.memory.load(Line::Stream, 1) {
                0 => {}
                code => return Err(error_of(code)),
            }
            if spin(&mut spins) && (self.is_stopped)() {
                return Ok(None);
            }
        }
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
        let address = if way.is_registered() {
            self.memory.0.address() + REGISTERED_DATA as u64
        } else {
            data.as_ptr().expose_provenance() as u64
        };
        let descriptor = Descriptor {
            number,
            address,
            bytes: bytes as u64,
            checksum: checksum(data),
        };
        let head = descriptor.to_bytes();
        // Data and descriptor are where the program made them: not part of the time.
        if way.is_registered() {
            self.memory.0.put(REGISTERED_DATA, data);
        }
        if matches!(way, Way::User | Way::Uring) {
            self.memory.0.put(REGISTERED, &head);
        }
        fence(Ordering::SeqCst);
        let mut split = Split::default();
        let mut zero_copy_calls = 0;
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
            Way::SyscallSt => self.call(way, (&head, &[]), &write)?,
            Way::SyscallStDt => self.call(way, (&head, data), &write)?,
            Way::Uring => self.call_ring(bytes)?,
            Way::Tcp => {
                self.call(way, (&head, data), &|stream, pieces| {
                    sys::send(stream, pieces, false)
                })?;
            }
            Way::TcpZeroCopy => {
                let calls = std::cell::Cell::new(0);
                self.call(way, (&head, data), &|stream, pieces| {
                    let sent = sys::send(stream, pieces, true)?;
                    calls.set(calls.get() + 1);
                    Ok(sent)
                })?;
                zero_copy_calls = calls.get();
            }
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
        self.take_back(zero_copy_calls)?;
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
                return Err(MeasureError::Refused {
                    way: way_name,
                    source: error_of(code),
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
        give: &dyn Fn(BorrowedFd<'_>, &[IoSlice<'_>]) -> io::Result<usize>,
    ) -> Result<(), MeasureError> {
        let to = match &self.stream {
            Some(stream) if way.is_tcp() => stream.as_fd(),
            _ => self.pipe.as_fd(),
        };
        let mut given = 0;
        let all = head.len() + data.len();
        while given < all {
            let pieces = [
                IoSlice::new(&head[given.min(head.len())..]),
                IoSlice::new(&data[given.saturating_sub(head.len())..]),
            ];
            let from = usize::from(pieces[0].is_empty());
            let end = if pieces[1].is_empty() { 1 } else { 2 };
            match give(to, &pieces[from..end]) {
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

    /// Has the ring write the registered descriptor and data, whole.
    fn call_ring(&mut self, bytes: usize) -> Result<(), MeasureError> {
        let mut ring = self.ring.take().expect("made when the way was chosen");
        let end = DATA_IN_RING + bytes;
        let mut parts = [0..DESCRIPTOR_BYTES, DATA_IN_RING..end];
        let mut all = 0;
        while all < DESCRIPTOR_BYTES + bytes {
            let (written, refused) = ring.write(self.pipe.as_fd(), parts)?;
            match refused {
                // Nothing is under way, so that other ways can go on.
                Some(source) if all + written == 0 => {
                    let way = Way::Uring.name();
                    return Err(MeasureError::Refused { way, source });
                }
                Some(error) => return Err(error.into()),
                None => {}
            }
            all += written;
            if all < DESCRIPTOR_BYTES {
                return Err(io::Error::other("a pipe that takes no whole descriptor").into());
            }
            parts = [0..0, DATA_IN_RING + all - DESCRIPTOR_BYTES..end];
        }
        self.ring = Some(ring);
        Ok(())
    }

    /// Waits until the kernel has given the memory of so many calls back.
    fn take_back(&mut self, mut calls: u64) -> Result<(), MeasureError> {
        let Some(stream) = &self.stream else {
            return Ok(());
        };
        let mut spins = 0;
        while calls > 0 {
            if let Some(ended) = sys::ended_zero_copies(stream.as_fd())? {
                calls = calls.saturating_sub(ended.calls);
                self.zero_copies.calls += ended.calls;
                self.zero_copies.copied += ended.copied;
            } else if spin(&mut spins) && (self.is_stopped)() {
                return Err(MeasureError::Stopped);
            }
        }
        Ok(())
    }

    fn wait(&self, line: Line) -> Result<(), MeasureError> {
        let mut spins = 0;
        while self.memory.load(line, 0) != self.number {
            if spin(&mut spins) && (self.is_stopped)() {
                return Err(MeasureError::Stopped);
            }
        }
        Ok(())
    }
}

fn write(pipe: BorrowedFd<'_>, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    Ok(rustix::io::writev(pipe, pieces)?)
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
