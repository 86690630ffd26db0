//! The interface: fetches what the sender did not copy, puts the packet on the wire, says so, and receives it.
//!
//! Runs in a process of its own. The wire is the packet's buffer; the receiver behind it adds up the data and compares the sum with the descriptor's. What the
//! sender waits for is [`Line::Done`], which is set before that.

use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;

use super::Way;
use super::memory::{
    BYTES_MAX, DAMAGED, DESCRIPTOR_BYTES, Descriptor, Line, Memory, REGISTERED, RING, RING_DATA,
    STOP, checksum, code_of, now_ns, spin,
};
use super::sys;

/// How often an interface without a sender checks whether that still lives.
const ROUNDS_PER_CHECK: u32 = 1 << 10;

struct Interface {
    memory: Memory,
    pipe: OwnedFd,
    /// Made when it is first wanted.
    stream: Option<TcpStream>,
    packet: Vec<u8>,
    /// Number of the last message that came by the doorbell.
    last: u64,
}

/// Serves a sender until it says stop, or ends. `memory` and `pipe` are its own.
pub fn serve(memory: OwnedFd, pipe: OwnedFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(&pipe)?;
    rustix::fs::fcntl_setfl(&pipe, flags | OFlags::NONBLOCK)?; // polled, as the doorbell is
    let mut interface = Interface {
        memory: Memory::map(memory.as_fd())?,
        pipe,
        stream: None,
        packet: vec![1; BYTES_MAX],
        last: 0,
    };
    let (mut spins, mut rounds) = (0, 0);
    loop {
        if interface.memory.load(Line::Mode, 0) == STOP {
            return Ok(());
        }
        if !interface.poll()? && spin(&mut spins) {
            rounds += 1;
            if rounds % ROUNDS_PER_CHECK == 0 && !interface.has_sender() {
                return Ok(());
            }
        }
    }
}

impl Interface {
    fn has_sender(&self) -> bool {
        let pid = self.memory.load(Line::Mode, 2);
        pid == 0 || std::path::Path::new(&format!("/proc/{pid}")).exists()
    }

    fn way(&self) -> Option<Way> {
        let index = self.memory.load(Line::Mode, 0).checked_sub(1)?;
        Way::all().nth(usize::try_from(index).ok()?)
    }

    /// Connects to the sender, once, and tells of it.
    fn connect_if_wanted(&mut self) {
        let port = self.memory.load(Line::Mode, 4);
        if self.stream.is_some() || port == 0 || self.memory.load(Line::Stream, 1) != 0 {
            return;
        }
        let connected = || {
            let port = u16::try_from(port).map_err(io::Error::other)?;
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.set_nonblocking(true)?;
            let port = stream.local_addr()?.port();
            Ok((stream, port))
        };
        match connected() {
            Ok((stream, port)) => {
                self.stream = Some(stream);
                self.memory.store(Line::Stream, 0, u64::from(port));
            }
            Err(error) => self.memory.store(Line::Stream, 1, code_of(&error)),
        }
    }

    /// Where calls of that way arrive.
    fn incoming(&self, way: Way) -> Option<BorrowedFd<'_>> {
        if way.is_tcp() {
            self.stream.as_ref().map(AsFd::as_fd)
        } else {
            Some(self.pipe.as_fd())
        }
    }

    /// Sends one message, if there is one.
    fn poll(&mut self) -> io::Result<bool> {
        let mut head = [0; DESCRIPTOR_BYTES];
        let is_there = match self.way() {
            Some(way) if way.is_call() => {
                if way.is_tcp() {
                    self.connect_if_wanted();
                }
                match self.incoming(way) {
                    Some(incoming) => read_if_any(incoming, &mut head)?,
                    None => false,
                }
            }
            Some(_) => self.memory.load(Line::Doorbell, 0) != self.last,
            None => false,
        };
        // The way may have been changed before the message came.
        let Some(way) = self.way().filter(|_| is_there) else {
            return Ok(false);
        };
        let stamps = self.memory.load(Line::Mode, 1) == 1;
        let stamp = |word: usize| {
            if stamps {
                self.memory.store(Line::Stamps, word, now_ns());
            }
        };
        stamp(0);
        if !way.is_call() {
            let offset = match way {
                // The doorbell says at which address of the program it lies.
                Way::User => {
                    self.translated(self.memory.load(Line::Doorbell, 1), DESCRIPTOR_BYTES)?
                }
                _ => RING,
            };
            self.memory.0.take(offset, &mut head);
        }
        let descriptor = Descriptor::parse(&head);
        stamp(1);
        stamp(2); // unless there is an address to translate
        let bytes = usize::try_from(descriptor.bytes).unwrap_or(usize::MAX);
        if bytes > BYTES_MAX {
            return Err(io::Error::other(
                "a descriptor of more than the longest message",
            ));
        }
        match way {
            Way::User | Way::UserSt => {
                let offset = self.translated(descriptor.address, bytes)?;
                stamp(2);
                self.memory.0.take(offset, &mut self.packet[..bytes]);
            }
            Way::UserStDt | Way::Host => {
                self.memory.0.take(RING_DATA, &mut self.packet[..bytes]);
            }
            Way::Syscall | Way::SyscallStDt | Way::Uring => {
                read_whole(self.pipe.as_fd(), &mut self.packet[..bytes])?;
            }
            Way::Tcp | Way::TcpZeroCopy => {
                let stream = self.stream.as_ref().expect("its descriptor came by it");
                read_whole(stream.as_fd(), &mut self.packet[..bytes])?;
            }
            Way::SyscallSt => {
                let pid = u32::try_from(self.memory.load(Line::Mode, 2)).unwrap_or(0);
                let packet = &mut self.packet[..bytes];
                match sys::read_process(pid, descriptor.address, packet) {
                    Ok(read) if read == bytes => {}
                    Ok(_) => return Err(io::Error::other("the sender's memory ends early")),
                    Err(error) => {
                        self.refuse(descriptor.number, &error);
                        return Ok(true);
                    }
                }
            }
        }
        if stamps {
            self.memory.store(Line::Stamps, 3, now_ns());
        }
        if !way.is_call() {
            self.last = descriptor.number;
        }
        self.memory.store(Line::Done, 0, descriptor.number);
        // From here on it is the receiver.
        if checksum(&self.packet[..bytes]) != descriptor.checksum {
            self.memory.store(Line::Received, 1, DAMAGED);
        }
        self.packet[..bytes.min(8)].fill(0); // so that an old packet is not taken for the next
        self.memory.store(Line::Received, 0, descriptor.number);
        Ok(true)
    }

    /// Says that the kernel does not let this way of sending be, and why.
    fn refuse(&self, number: u64, error: &io::Error) {
        self.memory.store(Line::Received, 1, code_of(error));
        self.memory.store(Line::Done, 0, number);
        self.memory.store(Line::Received, 0, number);
    }

    /// Where in the shared memory an address of the program lies; refused outside of what is registered.
    fn translated(&self, address: u64, bytes: usize) -> io::Result<usize> {
        let base = self.memory.load(Line::Mode, 3);
        let offset = address
            .checked_sub(base)
            .and_then(|offset| usize::try_from(offset).ok());
        let is_registered = |offset: &usize| {
            let end = offset.checked_add(bytes);
            *offset >= REGISTERED && end.is_some_and(|end| end <= RING)
        };
        offset
            .filter(is_registered)
            .ok_or_else(|| io::Error::other("an address that is not registered"))
    }
}

fn read_if_any(from: BorrowedFd<'_>, head: &mut [u8; DESCRIPTOR_BYTES]) -> io::Result<bool> {
    let mut filled = 0;
    while filled < head.len() {
        match rustix::io::read(from, &mut head[filled..]) {
            Ok(0) => return Ok(false), // the sender is gone
            Ok(read) => filled += read,
            Err(rustix::io::Errno::AGAIN) if filled == 0 => return Ok(false),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

fn read_whole(from: BorrowedFd<'_>, data: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < data.len() {
        match rustix::io::read(from, &mut data[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
